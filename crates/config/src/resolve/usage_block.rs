//! Validates the block `usage` of a domain.
//!
//! Guarantees:
//! - All problems of the block are reported at once.
//!
//! Not covered:
//! - Whether a budget needs the prices (see [`super::domain_budgets`]).
//! - Whether the service has the table of prices (see `serve`).

use std::ops::RangeInclusive;

use super::amount_fix::AmountField;
use super::duration;
use super::findings::{FileFindings, FileSpan};
use super::keyword_reader::KeywordReader;
use super::keywords;
use crate::budget::{Estimate, UsageRules};
use crate::diagnostic::{Code, Span, Spanned};
use crate::kernel::budget::OnExpiry;
use crate::kernel::units::Nanos;
use crate::raw;
use crate::table_column::TableColumn;

/// The range of `time_limit`.
const TIME_LIMITS: RangeInclusive<Nanos> = Nanos::SECOND..=Nanos::from_secs(86_400);

/// Returns the block. An invalid field has its default; the findings contain the reason.
pub(super) fn read_usage(
    raw: &raw::Usage,
    file: usize,
    findings: &mut FileFindings<'_>,
) -> UsageRules {
    let mut reader = UsageReader { file, findings };
    let default = UsageRules::default();
    let estimate = raw.estimate.as_ref().and_then(|word| reader.estimate(word));
    let estimate = estimate.unwrap_or(default.estimate);
    let at_most = raw.at_most.as_ref().and_then(|word| reader.tokens(AmountField::AtMost, word));
    let at_most = match (estimate, at_most) {
        (Estimate::Tokens(tokens), Some(most)) if most < tokens => {
            reader.refuse_above_at_most(raw);
            most
        }
        (Estimate::Tokens(tokens), None) => tokens.max(default.at_most),
        (_, at_most) => at_most.unwrap_or(default.at_most),
    };
    let time_limit = raw.time_limit.as_ref().and_then(|word| reader.time_limit(word));
    let on_expiry = reader.on_expiry(raw.on_expiry.as_ref());
    let model = raw.model.as_ref().filter(|key| !key.value.is_empty());
    UsageRules {
        estimate,
        at_most,
        time_limit: time_limit.unwrap_or(default.time_limit),
        on_expiry: on_expiry.unwrap_or(default.on_expiry),
        prices: raw.prices.as_ref().and_then(|name| reader.prices(name)),
        model: model.map_or(default.model, |key| key.value.as_str().into()),
    }
}

struct UsageReader<'f, 'a> {
    file: usize,
    findings: &'f mut FileFindings<'a>,
}

impl UsageReader<'_, '_> {
    /// Reads a number of tokens or a keyword. A text that begins with a letter is a keyword.
    fn estimate(&mut self, word: &Spanned<String>) -> Option<Estimate> {
        if !word.value.starts_with(|first: char| first.is_ascii_alphabetic()) {
            return self.tokens(AmountField::Estimate, word).map(Estimate::Tokens);
        }
        let known = keywords::parse_keyword(keywords::ESTIMATES, &word.value);
        if known.is_none() {
            let message = format!("`estimate: {}` is not a valid value", word.value);
            let near = keywords::suggest(keywords::ESTIMATES, &word.value);
            let has_match = near.starts_with("did you mean");
            let fix =
                if has_match { near } else { format!("{near}, or a number such as `4k tokens`") };
            self.error(Code::UnknownValue, word.span, message, &fix);
        }
        known
    }

    fn tokens(&mut self, field: AmountField, word: &Spanned<String>) -> Option<u64> {
        match field.parse(&word.value) {
            Ok((amount, _)) => Some(amount.0),
            Err((message, fix)) => {
                self.error(Code::BadAmount, word.span, message, &fix);
                None
            }
        }
    }

    fn refuse_above_at_most(&mut self, raw: &raw::Usage) {
        let (Some(estimate), Some(at_most)) = (&raw.estimate, &raw.at_most) else { return };
        let (written, most) = (&estimate.value, &at_most.value);
        let message = format!("`estimate: {written}` is larger than `at_most: {most}`");
        self.error(Code::Contradiction, estimate.span, message, "use a smaller `estimate`");
    }

    fn time_limit(&mut self, word: &Spanned<String>) -> Option<Nanos> {
        let example = "use whole numbers and `s`, `m` or `h`, such as `10m`";
        let (message, fix) = match duration::parse(&word.value) {
            Ok(found) if TIME_LIMITS.contains(&found) => return Some(found),
            Ok(_) => (format!("`time_limit: {}` is out of range", word.value), "use 1s to 24h"),
            Err(wrong) => wrong.message_and_fix("time_limit", &word.value, example),
        };
        self.error(Code::BadDuration, word.span, message, fix);
        None
    }

    fn on_expiry(&mut self, word: Option<&Spanned<String>>) -> Option<OnExpiry> {
        let mut reader = KeywordReader { file: self.file, findings: self.findings };
        reader.keyword(keywords::ON_EXPIRY, "on_expiry", word)
    }

    fn prices(&mut self, name: &Spanned<String>) -> Option<Box<str>> {
        if TableColumn::is_name(&name.value) {
            return Some(name.value.as_str().into());
        }
        let message = format!("`prices: {}` is not the name of a table", name.value);
        let fix = "write the `name` of a table of the setting `tables`, such as `prices: models`";
        self.error(Code::BadTableColumn, name.span, message, fix);
        None
    }

    fn error(&mut self, code: Code, span: Span, message: String, fix: &str) {
        self.findings.add(code, FileSpan { file: self.file, span }, message, fix);
    }
}
