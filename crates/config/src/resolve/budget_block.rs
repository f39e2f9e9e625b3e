//! Validates one `budget` block and converts it to a budget.
//!
//! Guarantees:
//! - A budget has an amount for each period, or it is prepaid.
//! - Every accepted field has an effect.
//! - All problems of a block are reported at once.
//!
//! Not covered:
//! - The place of the budget in the descriptor tree (see [`super::domain_budgets`]).

use std::sync::Arc;

use smallvec::SmallVec;

use super::amount_fix::AmountField;
use super::findings::{FileFindings, FileSpan};
use super::keyword_reader::KeywordReader;
use super::keywords;
use super::window::{WindowFields, WindowReader};
use crate::budget::{BudgetRule, BudgetUnit, BudgetWindow};
use crate::budget_amount;
use crate::diagnostic::{Code, Span};
use crate::kernel::budget::Amount;
use crate::kernel::units::Nanos;
use crate::tree::NodeId;
use crate::{FallbackMode, LimitWindow, RuleNumber, raw};

const NO_PERIOD_FIX: &str =
    "add for example `unit: month`; for top-ups instead of periods, write `prepaid: true`";

pub(super) struct BudgetReader<'r, 'f, 'a> {
    pub(super) file: usize,
    pub(super) raw: &'r raw::Budget,
    /// `on_store_failure` of `defaults`.
    pub(super) default_fallback: FallbackMode,
    pub(super) shadow: bool,
    /// As [`BudgetRule::path`].
    pub(super) path: Arc<str>,
    /// As [`BudgetRule::location`].
    pub(super) location: Box<str>,
    pub(super) findings: &'f mut FileFindings<'a>,
}

/// A valid budget in the tree, and the position of its block.
#[derive(Clone, Copy)]
pub(super) struct PlacedBudget {
    pub(super) node: NodeId,
    pub(super) at: FileSpan,
    pub(super) unit: BudgetUnit,
}

impl PlacedBudget {
    /// Returns the position and the currency of a budget of money.
    pub(super) fn money(self) -> Option<(FileSpan, BudgetUnit)> {
        matches!(self.unit, BudgetUnit::Money(_)).then_some((self.at, self.unit))
    }
}

type Terms = (Amount, BudgetUnit, BudgetWindow);

impl BudgetReader<'_, '_, '_> {
    /// Returns the validated block, or `None` if it is invalid and the findings contain the reason.
    pub(super) fn read(mut self) -> Option<BudgetRule> {
        let terms = if self.raw.prepaid.value { self.prepaid() } else { self.each_period() };
        let (warn_at, on_store_failure) = (self.warn_at(), self.fallback());
        let (amount, unit, window) = terms?;
        Some(BudgetRule {
            number: RuleNumber::default(),
            unit,
            amount,
            window,
            warn_at: warn_at?,
            on_store_failure: on_store_failure?,
            shadow: self.shadow,
            path: self.path,
            location: self.location,
            from: None,
        })
    }

    fn each_period(&mut self) -> Option<Terms> {
        // A misspelt field may be `prepaid`.
        if let Some(of) = self.raw.of.as_ref().filter(|_| !self.raw.is_incomplete) {
            let fix = "remove it: `amount` has the unit; or add `prepaid: true`";
            self.error(Code::Contradiction, of.span, "`of` needs `prepaid: true`".into(), fix);
        }
        let amount = self.amount();
        let window = self.window();
        let ((amount, unit), window) = (amount?, window?);
        Some((amount, unit, BudgetWindow::Each(window)))
    }

    fn amount(&mut self) -> Option<(Amount, BudgetUnit)> {
        let Some(text) = &self.raw.amount else {
            if self.raw.is_incomplete {
                return None;
            }
            let fix = "add for example `amount: 500 usd`; for top-ups, write `prepaid: true` and \
                       `of: usd`";
            let message = "`budget` needs an `amount`".to_owned();
            self.error(Code::OutOfRange, self.raw.span, message, fix);
            return None;
        };
        let parsed = AmountField::Amount.parse(&text.value);
        let (message, fix) = match parsed {
            Ok(found) => return Some(found),
            Err(wrong) => wrong,
        };
        self.error(Code::BadAmount, text.span, message, &fix);
        None
    }

    fn window(&mut self) -> Option<LimitWindow> {
        let raw = self.raw;
        let fields = WindowFields {
            block: "budget",
            missing_fix: NO_PERIOD_FIX,
            shortest: (Nanos::SECOND, "1s"),
            span: raw.span,
            is_incomplete: raw.is_incomplete,
            unit: &raw.unit,
            per: raw.per.as_ref(),
            calendar: raw.calendar.as_ref(),
        };
        let mut reader = WindowReader { file: self.file, fields, findings: self.findings };
        let window = reader.window();
        reader.calendar(window)
    }

    /// Returns the terms of a budget whose amount is the sum of its top-ups.
    fn prepaid(&mut self) -> Option<Terms> {
        self.refuse_beside_prepaid();
        let Some(word) = &self.raw.of else {
            if !self.raw.is_incomplete {
                let fix = "add the unit of the top-ups, such as `of: usd` or `of: tokens`";
                let message = "`prepaid: true` needs `of`".to_owned();
                self.error(Code::OutOfRange, self.raw.prepaid.span, message, fix);
            }
            return None;
        };
        let unit = budget_amount::parse_unit(&word.value);
        if unit.is_none() {
            let fix = "use `tokens`, `input_tokens`, `output_tokens`, or a currency such as `usd`";
            let message = format!("`of: {}` is not a unit", word.value);
            self.error(Code::BadAmount, word.span, message, fix);
        }
        Some((Amount(0), unit?, BudgetWindow::Prepaid))
    }

    /// Reports the fields that a prepaid budget cannot have.
    fn refuse_beside_prepaid(&mut self) {
        let raw = self.raw;
        let unit = Some(&raw.unit).filter(|unit| !unit.value.is_empty());
        let fields = [
            ("amount", raw.amount.as_ref().map(|word| word.span)),
            ("unit", unit.map(|word| word.span)),
            ("per", raw.per.as_ref().map(|word| word.span)),
            ("calendar", raw.calendar.as_ref().map(|block| block.span)),
            ("from", raw.from.as_ref().map(|word| word.span)),
            ("by", raw.by.as_ref().map(|word| word.span)),
        ];
        let written = fields.into_iter().filter_map(|(word, span)| Some((word, span?)));
        for (word, span) in written {
            let fix = "remove one of the two: top-ups give the amount of a prepaid budget";
            let at = FileSpan { file: self.file, span };
            self.findings.contradict(at, word, "prepaid: true", fix);
        }
    }

    fn warn_at(&mut self) -> Option<SmallVec<[u8; 2]>> {
        let mut percents = SmallVec::new();
        for item in self.raw.warn_at.iter().flat_map(|list| &list.value.0) {
            let problem = match (parse_percent(&item.value), percents.last()) {
                (None, _) => not_a_percentage(&item.value),
                (Some(percent), Some(last)) if percent <= *last => {
                    let message = format!("`warn_at`: `{percent}%` comes after `{last}%`");
                    (message, "write ascending percentages, such as `[80%, 100%]`".to_owned())
                }
                (Some(percent), _) => {
                    percents.push(percent);
                    continue;
                }
            };
            self.error(Code::OutOfRange, item.span, problem.0, &problem.1);
            return None;
        }
        Some(percents)
    }

    /// Returns the fallback. `local` in `defaults` is `deny` here: without the store, a replica does
    /// not know what others spent.
    fn fallback(&mut self) -> Option<FallbackMode> {
        let Some(word) = &self.raw.on_store_failure else {
            let is_local = self.default_fallback == FallbackMode::Local;
            return Some(if is_local { FallbackMode::Deny } else { self.default_fallback });
        };
        if word.value == keywords::keyword_of(keywords::FALLBACK_MODES, FallbackMode::Local) {
            let fix = "use `deny`, `error` or `allow`: a replica alone does not know what others \
                       spent";
            let message = format!("`on_store_failure: {}` is not valid in `budget`", word.value);
            self.error(Code::UnknownValue, word.span, message, fix);
            return None;
        }
        let mut reader = KeywordReader { file: self.file, findings: self.findings };
        reader.keyword(keywords::BUDGET_FALLBACKS, "on_store_failure", Some(word))
    }

    fn error(&mut self, code: Code, span: Span, message: String, fix: &str) {
        self.findings.add(code, FileSpan { file: self.file, span }, message, fix);
    }
}

/// Returns the message about an item of `warn_at`, and the suggested fix.
fn not_a_percentage(text: &str) -> (String, String) {
    let message = format!("`warn_at`: `{text}` is not a percentage from `1%` to `100%`");
    let meant = format!("{text}%");
    let fix = match parse_percent(&meant) {
        Some(_) => format!("write `{meant}`"),
        None => "use whole percentages, such as `[80%, 100%]`".to_owned(),
    };
    (message, fix)
}

/// Parses a percentage from `1%` to `100%`.
pub(super) fn parse_percent(text: &str) -> Option<u8> {
    let digits = text.strip_suffix('%')?;
    let is_plain = !digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|percent| is_plain && *percent <= 100)
}
