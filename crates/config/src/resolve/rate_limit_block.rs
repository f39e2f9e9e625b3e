//! Validates one `rate_limit` block and converts it to a limit.
//!
//! Guarantees:
//! - Applies all rules of envoyproxy/ratelimit for a valid block.
//! - Every accepted field that envoyproxy/ratelimit lacks has an effect.
//! - All problems of a block are reported at once.
//!
//! Not covered:
//! - The place of the limit in the descriptor tree (see [`super`]).

mod lease;
mod penalty;
mod strategy;
mod window;

use std::fmt::Display;

use super::domain_defaults::DomainDefaults;
use super::findings::{FileFindings, FileSpan};
use super::keyword_reader::{InvalidSetting, KeywordReader};
use super::keywords::{self, ExcessKeyword, ModeKeyword, StrategyKeyword};
use super::overshoot;
use crate::diagnostic::{Code, Span};
use crate::kernel::rate::on_excess::OnExcess;
use crate::{FallbackMode, Limit, raw};

/// The strategy, mode and fallback of a block, or of the domain's `defaults` if the block lacks
/// them.
#[derive(Clone, Copy)]
struct CountingSettings {
    strategy: Result<StrategyKeyword, InvalidSetting>,
    mode: Result<ModeKeyword, InvalidSetting>,
    on_store_failure: FallbackMode,
}

pub(super) struct RateLimitReader<'r, 'f, 'a> {
    pub(super) file: usize,
    pub(super) raw: &'r raw::RateLimit,
    pub(super) defaults: DomainDefaults,
    pub(super) findings: &'f mut FileFindings<'a>,
}

impl RateLimitReader<'_, '_, '_> {
    /// Returns the limit, or `None` if the block is `unlimited`.
    pub(super) fn read(mut self) -> Result<Option<Limit>, InvalidSetting> {
        if self.raw.unlimited.value {
            return self.check_unlimited().map(|()| None);
        }
        self.read_limited().map(Some)
    }

    fn read_limited(&mut self) -> Result<Limit, InvalidSetting> {
        let window = self.window();
        let counting = self.counting_settings();
        let CountingSettings { strategy, mode, on_store_failure } = counting;
        let window = self.calendar(strategy, window);
        let (burst, overshoot) = (self.burst(strategy), self.overshoot(counting));
        // Run all validations before the first `?`, so that one problem does not hide another.
        let (requests, lease_hits_check) =
            (self.check_zero_requests(strategy), self.check_lease_hits(mode));
        let (on_excess, penalty) = (self.on_excess(counting), self.penalty());
        let (window, burst, overshoot) =
            (window.ok_or(InvalidSetting)?, burst.ok_or(InvalidSetting)?, overshoot?);
        let strategy = requests.and(strategy)?;
        let numbers = LimitNumbers { strategy, burst, on_excess: on_excess? };
        let strategy = self.strategy(numbers, &window).ok_or(InvalidSetting)?;
        let size = lease_hits_check.and_then(|()| self.lease_size(&strategy))?;
        let mode = overshoot::resolve_mode(mode?, overshoot, window.length(), size);
        let requests = self.raw.requests_per_unit.value;
        let (name, from, penalty) = (None, None, penalty?);
        Ok(Limit { name, requests, window, strategy, mode, on_store_failure, from, penalty })
    }

    /// Returns the effect of excess hits. A lease may spend hits that the store cannot charge twice,
    /// so a leased limit cannot charge excess hits.
    fn on_excess(&mut self, counting: CountingSettings) -> Result<OnExcess, InvalidSetting> {
        let raw = self.raw;
        let defaults =
            if raw.is_incomplete { Err(InvalidSetting) } else { self.defaults.on_excess };
        let mut reader = KeywordReader { file: self.file, findings: self.findings };
        let keyword = reader.on_excess_or(defaults, raw.on_excess.as_ref())?;
        let word = raw.on_excess.as_ref();
        match (keyword, word) {
            (Some(ExcessKeyword::Charge), _) if counting.mode? == ModeKeyword::Leased => {
                let span = word.or(raw.mode.as_ref()).map_or(raw.span, |word| word.span);
                let fix = "use `mode: exact` or `mode: cached_deny`, or remove `on_excess`";
                self.contradict(span, "on_excess: charge", "mode: leased", fix);
                Err(InvalidSetting)
            }
            (Some(ExcessKeyword::Refuse), Some(word))
                if counting.strategy? == StrategyKeyword::FixedWindow =>
            {
                let message = "`on_excess: refuse` cannot be combined with `strategy: fixed_window`, which \
                     counts denied hits";
                let fix = "use another strategy, or remove `on_excess`";
                self.error(Code::Contradiction, word.span, message.to_owned(), fix);
                Err(InvalidSetting)
            }
            (Some(ExcessKeyword::Charge), _) => Ok(OnExcess::Charge),
            (Some(ExcessKeyword::Refuse) | None, _) => Ok(OnExcess::ByStrategy),
        }
    }

    fn counting_settings(&mut self) -> CountingSettings {
        let raw = self.raw;
        // The unreadable field may be the strategy or the mode.
        let defaults = if raw.is_incomplete { DomainDefaults::unknown() } else { self.defaults };
        let mut reader = KeywordReader { file: self.file, findings: self.findings };
        let mode = reader.keyword_or(defaults.mode, keywords::MODES, "mode", raw.mode.as_ref());
        let word = raw.on_store_failure.as_ref();
        let failure = reader.keyword(keywords::FALLBACK_MODES, "on_store_failure", word);
        let on_store_failure = failure.unwrap_or(defaults.on_store_failure);
        let word = raw.strategy.as_ref();
        let strategy = reader.keyword_or(defaults.strategy, keywords::STRATEGIES, "strategy", word);
        CountingSettings { strategy, mode, on_store_failure }
    }

    fn check_unlimited(&mut self) -> Result<(), InvalidSetting> {
        let raw = self.raw;
        let unit = &raw.unit;
        let mut is_valid = true;
        if keywords::parse_unit(&unit.value).is_some() {
            let message =
                format!("`unit: {}` cannot be combined with `unlimited: true`", unit.value);
            self.error(Code::UnlimitedWithLimit, unit.span, message, "remove one of the two");
            is_valid = false;
        }
        let own_fields = [
            ("per", raw.per.as_ref().map(|word| word.span)),
            ("strategy", raw.strategy.as_ref().map(|word| word.span)),
            ("burst", raw.burst.as_ref().map(|word| word.span)),
            ("on_excess", raw.on_excess.as_ref().map(|word| word.span)),
            ("mode", raw.mode.as_ref().map(|word| word.span)),
            ("max_overshoot", raw.max_overshoot.as_ref().map(|word| word.span)),
            ("lease_hits", raw.lease_hits.as_ref().map(|word| word.span)),
            ("on_store_failure", raw.on_store_failure.as_ref().map(|word| word.span)),
            ("calendar", raw.calendar.as_ref().map(|block| block.span)),
            ("from", raw.from.as_ref().map(|word| word.span)),
            ("by", raw.by.as_ref().map(|word| word.span)),
            ("penalty", raw.penalty.as_ref().map(|block| block.span)),
        ];
        for (word, span) in own_fields.into_iter().filter_map(|(word, span)| Some((word, span?))) {
            let message = format!("`{word}` cannot be combined with `unlimited: true`");
            self.error(Code::UnlimitedWithLimit, span, message, "remove one of the two");
            is_valid = false;
        }
        self.warn_ignored_beside_unlimited();
        if is_valid { Ok(()) } else { Err(InvalidSetting) }
    }

    /// Warns about fields beside `unlimited` that envoyproxy/ratelimit accepts but ignores.
    fn warn_ignored_beside_unlimited(&mut self) {
        let raw = self.raw;
        let (unit, requests) = (&raw.unit.value, raw.requests_per_unit.span);
        let ignored = [
            // A valid unit beside `unlimited` is an error, which `check_unlimited` reports. An
            // invalid one is only ignored.
            ("unit", raw.unit.span, !unit.is_empty() && keywords::parse_unit(unit).is_none()),
            ("requests_per_unit", requests, requests.start < requests.end),
        ];
        for (word, span, _) in ignored.into_iter().filter(|&(.., written)| written) {
            let message = format!("`{word}` has no effect with `unlimited: true`");
            self.findings.add(Code::NoEffect, self.file_span(span), message, "remove it");
        }
    }

    fn file_span(&self, span: Span) -> FileSpan {
        FileSpan { file: self.file, span }
    }

    /// Reports that a field cannot be combined with another one.
    fn contradict(&mut self, span: Span, field: impl Display, other: impl Display, fix: &str) {
        self.findings.contradict(self.file_span(span), field, other, fix);
    }

    fn error(&mut self, code: Code, span: Span, message: String, help: &str) {
        self.findings.add(code, self.file_span(span), message, help);
    }
}

/// The fields of a block that determine its strategy, besides `requests_per_unit` and the window.
#[derive(Clone, Copy)]
struct LimitNumbers {
    strategy: StrategyKeyword,
    burst: u32,
    on_excess: OnExcess,
}
