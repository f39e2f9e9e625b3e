//! Validates one `rate_limit` block and converts it to a limit.
//!
//! Guarantees:
//! - Applies all rules of envoyproxy/ratelimit for a valid block.
//! - Every accepted field that envoyproxy/ratelimit lacks has an effect.
//! - All problems of a block are reported at once.
//!
//! Not covered:
//! - The place of the limit in the descriptor tree (see [`super`]).

use std::sync::Arc;

use super::findings::{FileFindings, FileSpan};
use super::keywords::{self, ExcessKeyword, Keywords, ModeKeyword, StrategyKeyword};
use super::overshoot::{self, OvershootAmount};
use super::{calendar_block, duration};
use crate::diagnostic::{Code, Span, Spanned};
use crate::kernel::lease::Overshoot;
use crate::kernel::lease::sizer::{self, LeaseSizing};
use crate::kernel::rate::Strategy;
use crate::kernel::rate::fixed_window::{FixedWindow, Windows};
use crate::kernel::rate::gcra::Gcra;
use crate::kernel::rate::limit::LimitError;
use crate::kernel::rate::on_excess::OnExcess;
use crate::kernel::rate::sliding_log::SlidingLog;
use crate::kernel::rate::sliding_window::SlidingWindow;
use crate::kernel::units::{Hits, Nanos};
use crate::raw;
use crate::{Calendar, FallbackMode, Limit, LimitWindow, Unit};

/// The largest `burst` without a warning, as a multiple of `requests_per_unit`. A larger one is
/// probably a mistake.
const LARGE_BURST_FACTOR: u32 = 10;

/// The `defaults` of a domain, validated.
///
/// `Err` means that the field has an invalid value. Validations that depend on it are skipped,
/// because the intended value may be valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DomainDefaults {
    pub(super) strategy: Result<StrategyKeyword, InvalidSetting>,
    pub(super) on_excess: Result<Option<ExcessKeyword>, InvalidSetting>,
    pub(super) mode: Result<ModeKeyword, InvalidSetting>,
    pub(super) overshoot: Result<Option<OvershootAmount>, InvalidSetting>,
    pub(super) on_store_failure: FallbackMode,
}

impl Default for DomainDefaults {
    fn default() -> Self {
        Self {
            strategy: Ok(StrategyKeyword::default()),
            on_excess: Ok(None),
            mode: Ok(ModeKeyword::default()),
            overshoot: Ok(None),
            on_store_failure: FallbackMode::default(),
        }
    }
}

impl DomainDefaults {
    pub(super) fn unknown() -> Self {
        Self {
            strategy: Err(InvalidSetting),
            on_excess: Err(InvalidSetting),
            mode: Err(InvalidSetting),
            overshoot: Err(InvalidSetting),
            on_store_failure: FallbackMode::default(),
        }
    }
}

/// The error for a field or block that is invalid. The findings contain the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidSetting;

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

pub(super) fn read_defaults(
    raw: &raw::Defaults,
    file: usize,
    findings: &mut FileFindings<'_>,
) -> DomainDefaults {
    let mut reader = KeywordReader { file, findings };
    let base =
        if raw.is_incomplete { DomainDefaults::unknown() } else { DomainDefaults::default() };
    let DomainDefaults { strategy, on_excess, mode, on_store_failure, .. } = base;
    let word = raw.on_store_failure.as_ref();
    let failure = reader.keyword(keywords::FALLBACK_MODES, "on_store_failure", word);
    DomainDefaults {
        strategy: reader.keyword_or(
            strategy,
            keywords::STRATEGIES,
            "strategy",
            raw.strategy.as_ref(),
        ),
        on_excess: reader.on_excess_or(on_excess, raw.on_excess.as_ref()),
        mode: reader.keyword_or(mode, keywords::MODES, "mode", raw.mode.as_ref()),
        overshoot: reader.default_overshoot_amount(raw.max_overshoot.as_ref()),
        on_store_failure: failure.unwrap_or(on_store_failure),
    }
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
        let on_excess = self.on_excess(counting);
        let (window, burst, overshoot) =
            (window.ok_or(InvalidSetting)?, burst.ok_or(InvalidSetting)?, overshoot?);
        let strategy = requests.and(strategy)?;
        let numbers = LimitNumbers { strategy, burst, on_excess: on_excess? };
        let strategy = self.strategy(numbers, &window).ok_or(InvalidSetting)?;
        let size = lease_hits_check.and_then(|()| self.lease_size(&strategy))?;
        let mode = overshoot::resolve_mode(mode?, overshoot, window.length(), size);
        let requests = self.raw.requests_per_unit.value;
        Ok(Limit { name: None, requests, window, strategy, mode, on_store_failure })
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
                let message = "`on_excess: charge` cannot be combined with `mode: leased`";
                let fix = "use `mode: exact` or `mode: cached_deny`, or remove `on_excess`";
                self.error(Code::Contradiction, span, message.to_owned(), fix);
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

    fn window(&mut self) -> Option<LimitWindow> {
        let raw = self.raw;
        match &raw.per {
            Some(per) if !raw.unit.value.is_empty() => {
                let (unit, per_text) = (&raw.unit.value, &per.value);
                let message = format!("`per: {per_text}` cannot be combined with `unit: {unit}`");
                self.error(Code::Contradiction, per.span, message, "remove one of the two");
                None
            }
            Some(per) => self.per(per),
            None => self.unit().map(LimitWindow::Unit),
        }
    }

    fn unit(&mut self) -> Option<Unit> {
        let unit = &self.raw.unit;
        let parsed_unit = keywords::parse_unit(&unit.value);
        if unit.value.is_empty() && self.raw.is_incomplete {
            return None;
        }
        if parsed_unit.is_none() && unit.value.is_empty() {
            let message = "`rate_limit` needs a `unit`".to_owned();
            let fix = "add for example `unit: minute` or `unlimited: true`, or remove `rate_limit`";
            let span = if unit.span.end == 0 { self.raw.span } else { unit.span };
            self.error(Code::UnknownUnit, span, message, fix);
        } else if parsed_unit.is_none() {
            let message = format!("invalid unit `{}`", unit.value);
            self.error(
                Code::UnknownUnit,
                unit.span,
                message,
                &keywords::suggest(keywords::UNITS, &unit.value),
            );
        }
        parsed_unit
    }

    fn per(&mut self, per: &Spanned<String>) -> Option<LimitWindow> {
        let example = "use whole numbers and `ms`, `s`, `m`, `h` or `d`, such as `90s` or `1h30m`";
        let period = match duration::parse(&per.value) {
            Ok(period) => period,
            Err(wrong) => {
                let (message, fix) = wrong.message_and_fix("per", &per.value, example);
                self.error(Code::BadDuration, per.span, message, fix);
                return None;
            }
        };
        if period < Nanos::MILLI {
            let message = format!("`per: {}` is shorter than 1ms", per.value);
            self.error(Code::BadDuration, per.span, message, "use at least `1ms`");
            return None;
        }
        Some(LimitWindow::Per(period))
    }

    fn calendar(
        &mut self,
        strategy: Result<StrategyKeyword, InvalidSetting>,
        window: Option<LimitWindow>,
    ) -> Option<LimitWindow> {
        let Some(raw) = &self.raw.calendar else { return window };
        let is_fixed = strategy == Ok(StrategyKeyword::FixedWindow);
        if let Some(strategy) = strategy.ok().filter(|_| !is_fixed) {
            let message = format!("`calendar` cannot be combined with `strategy: {strategy}`");
            let fix = "use `strategy: fixed_window`, or remove `calendar`";
            self.error(Code::Contradiction, raw.span, message, fix);
        }
        if let Some(LimitWindow::Per(_)) = window {
            let message = "`calendar` cannot be combined with `per`".to_owned();
            let fix = "use `unit: day`, `week`, `month` or `year` instead of `per`";
            self.error(Code::Contradiction, raw.span, message, fix);
        }
        let unit = if let Some(LimitWindow::Unit(unit)) = window { Some(unit) } else { None };
        let calendar = calendar_block::read(raw, unit, self.file, self.findings)?;
        Some(LimitWindow::Calendar(unit?, Arc::new(calendar))).filter(|_| is_fixed)
    }

    /// Returns the hits that are allowed at one instant (`burst`). The default is
    /// `requests_per_unit`.
    fn burst(&mut self, strategy: Result<StrategyKeyword, InvalidSetting>) -> Option<u32> {
        let requests = self.raw.requests_per_unit.value;
        let Some(burst) = &self.raw.burst else { return Some(requests) };
        if let Some(strategy) = strategy.ok().filter(|word| *word != StrategyKeyword::Gcra) {
            let message = format!("`burst` cannot be combined with `strategy: {strategy}`");
            let fix = "use `strategy: gcra`, or remove `burst`";
            self.error(Code::Contradiction, burst.span, message, fix);
            return None;
        }
        if burst.value == 0 {
            let message = "`burst: 0` denies everything".to_owned();
            let fix = format!("use at least 1, or remove it for a burst of {requests}");
            self.error(Code::ZeroBurst, burst.span, message, &fix);
            return None;
        }
        let is_large = requests != 0 && requests.saturating_mul(LARGE_BURST_FACTOR) < burst.value;
        if is_large && strategy.is_ok() {
            let message = format!(
                "`burst: {}` allows {} times `requests_per_unit` at one instant",
                burst.value,
                burst.value / requests
            );
            let fix = format!("use a smaller burst, or remove it for a burst of {requests}");
            self.findings.add(Code::LargeBurst, self.file_span(burst.span), message, fix);
        }
        Some(burst.value)
    }

    /// Returns the largest overshoot, or `None` if the limit is not leased.
    fn overshoot(
        &mut self,
        counting: CountingSettings,
    ) -> Result<Option<Overshoot>, InvalidSetting> {
        let own = self.raw.max_overshoot.as_ref();
        if let (Some(mode), Some(own)) =
            (counting.mode.ok().filter(|word| *word != ModeKeyword::Leased), own)
        {
            let message = format!("`max_overshoot` cannot be combined with `mode: {mode}`");
            let fix = "use `mode: leased`, or remove `max_overshoot`";
            self.error(Code::Contradiction, own.span, message, fix);
            return Err(InvalidSetting);
        }
        let amount =
            KeywordReader { file: self.file, findings: self.findings }.overshoot_amount(own)?;
        if counting.mode? != ModeKeyword::Leased {
            return Ok(None);
        }
        let amount = amount.map_or(self.defaults.overshoot, |own| Ok(Some(own)))?;
        self.resolve_overshoot(amount, counting.strategy).map(Some)
    }

    /// Converts `amount` to the largest overshoot of this limit, in hits.
    fn resolve_overshoot(
        &mut self,
        amount: Option<OvershootAmount>,
        strategy: Result<StrategyKeyword, InvalidSetting>,
    ) -> Result<Overshoot, InvalidSetting> {
        let raw = self.raw;
        let word = raw.max_overshoot.as_ref().or(raw.mode.as_ref());
        let at = word.map_or(raw.span, |word| word.span);
        let Some(amount) = amount else {
            if raw.is_incomplete {
                return Err(InvalidSetting);
            }
            let message = "`mode: leased` needs a `max_overshoot`".to_owned();
            let fix = "add the most hits that the fleet may allow above the limit, such as `2%`";
            self.error(Code::OutOfRange, at, message, fix);
            return Err(InvalidSetting);
        };
        let (requests, strategy) = (raw.requests_per_unit.value, strategy?);
        amount.for_limit(requests, strategy).map_err(|reason| {
            let (code, message, fix) =
                overshoot::error_message_and_fix(&reason, requests, strategy);
            self.error(code, at, message, &fix);
            InvalidSetting
        })
    }

    /// Verifies that the limit with `lease_hits` is leased, and that the number is large enough.
    fn check_lease_hits(
        &mut self,
        mode: Result<ModeKeyword, InvalidSetting>,
    ) -> Result<(), InvalidSetting> {
        let Some(hits) = self.raw.lease_hits.as_ref() else { return Ok(()) };
        if let Some(mode) = mode.ok().filter(|word| *word != ModeKeyword::Leased) {
            let message = format!("`lease_hits` cannot be combined with `mode: {mode}`");
            let fix = "use `mode: leased`, or remove `lease_hits`";
            self.error(Code::Contradiction, hits.span, message, fix);
            return Err(InvalidSetting);
        }
        if hits.value == 0 {
            let message = "`lease_hits: 0` is too small".to_owned();
            let fix = "use at least 1, or remove it to learn the number from demand";
            self.error(Code::OutOfRange, hits.span, message, fix);
            return Err(InvalidSetting);
        }
        Ok(())
    }

    /// Returns the lease size, after verifying that a lease of this size is possible with the
    /// strategy.
    fn lease_size(&mut self, strategy: &Strategy) -> Result<LeaseSizing, InvalidSetting> {
        let Some(hits) = self.raw.lease_hits.as_ref() else { return Ok(LeaseSizing::Learned) };
        let max_lease = sizer::max_lease(strategy.max_at_once());
        if max_lease < Hits(hits.value.into()) {
            let message = format!("`lease_hits: {}` is too large", hits.value);
            let fix = format!(
                "use at most {}, a tenth of the hits allowed at one instant, or remove it",
                max_lease.0
            );
            self.error(Code::OutOfRange, hits.span, message, &fix);
            return Err(InvalidSetting);
        }
        Ok(LeaseSizing::Fixed(Hits(hits.value.into())))
    }

    fn strategy(&mut self, numbers: LimitNumbers, window: &LimitWindow) -> Option<Strategy> {
        let requests = self.raw.requests_per_unit.value;
        self.warn_denies_all();
        match build_strategy(numbers, requests, window) {
            Ok(strategy) => {
                self.warn_coarse_tick(&strategy);
                Some(strategy)
            }
            Err(error) => {
                self.report_limit_error(error);
                None
            }
        }
    }

    /// Rejects a `requests_per_unit` of 0, except with `fixed_window`, where it denies everything.
    fn check_zero_requests(
        &mut self,
        strategy: Result<StrategyKeyword, InvalidSetting>,
    ) -> Result<(), InvalidSetting> {
        let requests = &self.raw.requests_per_unit;
        if self.raw.is_incomplete && !self.has_requests() {
            return Err(InvalidSetting);
        }
        let word = strategy.ok().filter(|word| *word != StrategyKeyword::FixedWindow);
        let Some(word) = word.filter(|_| requests.value == 0) else { return Ok(()) };
        let span = if self.has_requests() { requests.span } else { self.raw.span };
        let message = format!("`strategy: {word}` cannot have a limit of 0 requests");
        let fix = "use at least 1; to deny everything, use `strategy: fixed_window`";
        self.error(Code::ZeroRequests, span, message, fix);
        Err(InvalidSetting)
    }

    fn warn_denies_all(&mut self) {
        if !self.has_requests() {
            let message = "`requests_per_unit` is missing, so every hit is denied".to_owned();
            let fix = "add it; if every hit should be denied, write `requests_per_unit: 0`";
            self.findings.add(Code::DeniesAll, self.file_span(self.raw.span), message, fix);
        }
    }

    fn has_requests(&self) -> bool {
        let requests = &self.raw.requests_per_unit;
        requests.value != 0 || requests.span.start < requests.span.end
    }

    fn warn_coarse_tick(&mut self, strategy: &Strategy) {
        let Some(rate) = strategy.refill_rate().filter(|_| strategy.is_coarse()) else { return };
        let step = u64::from(rate.hits).div_ceil(rate.ticks.get());
        let message = format!(
            "up to {step} hits return at once every {}, more than 1 % of the burst of {}",
            strategy.tick(),
            strategy.max_at_once()
        );
        let fix = "for smaller steps, use a larger `burst` or a smaller `requests_per_unit`";
        self.findings.add(Code::CoarseTick, self.file_span(self.raw.span), message, fix);
    }

    fn report_limit_error(&mut self, error: LimitError) {
        let burst = self.raw.burst.as_ref();
        let numbers = burst.map_or(self.raw.requests_per_unit.span, |burst| burst.span);
        let fix = match error {
            LimitError::TooLarge { largest, .. } => {
                format!("use at most {largest}, or a shorter period")
            }
            _ => "use a smaller number or another period".to_owned(),
        };
        self.findings.add(Code::DoesNotFit, self.file_span(numbers), error.to_string(), fix);
    }

    fn file_span(&self, span: Span) -> FileSpan {
        FileSpan { file: self.file, span }
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

fn build_strategy(
    LimitNumbers { strategy, burst, on_excess }: LimitNumbers,
    requests: u32,
    window: &LimitWindow,
) -> Result<Strategy, LimitError> {
    let period = match window {
        LimitWindow::Unit(unit) | LimitWindow::Calendar(unit, _) => unit.length(),
        LimitWindow::Per(period) => *period,
    };
    Ok(match strategy {
        StrategyKeyword::Gcra => {
            Strategy::Gcra(Gcra::with_on_excess(requests, period, burst, on_excess)?)
        }
        StrategyKeyword::SlidingWindow => {
            let limit = SlidingWindow::new(requests, period)?;
            Strategy::SlidingWindow(limit.with_on_excess(on_excess))
        }
        StrategyKeyword::SlidingLog => {
            let limit = SlidingLog::new(requests, period)?;
            Strategy::SlidingLog(limit.with_on_excess(on_excess))
        }
        StrategyKeyword::FixedWindow => {
            let limit = FixedWindow::new(requests, windows(window, period))?;
            Strategy::FixedWindow(limit.with_on_excess(on_excess))
        }
    })
}

/// Returns the windows of a fixed-window limit.
///
/// A calendar limit gets windows of about the year 2000 as placeholders. Each charge must replace
/// them with the windows around its own time. Otherwise the charge fails with `OutsideWindows`.
fn windows(window: &LimitWindow, period: Nanos) -> Windows {
    match window {
        LimitWindow::Calendar(_, calendar) => {
            Windows::Calendar { starts: Calendar::past_starts(calendar) }
        }
        LimitWindow::Unit(_) | LimitWindow::Per(_) => Windows::Every(period),
    }
}

pub(super) struct KeywordReader<'f, 'a> {
    pub(super) file: usize,
    pub(super) findings: &'f mut FileFindings<'a>,
}

impl KeywordReader<'_, '_> {
    /// Returns the meaning of a keyword. Reports an unknown keyword as an error and returns `None`.
    pub(super) fn keyword<T: Copy>(
        &mut self,
        words: &Keywords<T>,
        key: &str,
        word: Option<&Spanned<String>>,
    ) -> Option<T> {
        let word = word?;
        let meaning = keywords::parse_keyword(words, &word.value);
        if meaning.is_none() {
            let message = format!("`{key}: {}` is not a valid value", word.value);
            let at = FileSpan { file: self.file, span: word.span };
            self.findings.add(
                Code::UnknownValue,
                at,
                message,
                keywords::suggest(words, &word.value),
            );
        }
        meaning
    }

    fn keyword_or<T: Copy>(
        &mut self,
        default: Result<T, InvalidSetting>,
        words: &Keywords<T>,
        key: &str,
        word: Option<&Spanned<String>>,
    ) -> Result<T, InvalidSetting> {
        if word.is_none() { default } else { self.keyword(words, key, word).ok_or(InvalidSetting) }
    }

    fn on_excess_or(
        &mut self,
        default: Result<Option<ExcessKeyword>, InvalidSetting>,
        word: Option<&Spanned<String>>,
    ) -> Result<Option<ExcessKeyword>, InvalidSetting> {
        if word.is_none() {
            return default;
        }
        self.keyword(keywords::ON_EXCESS, "on_excess", word).map(Some).ok_or(InvalidSetting)
    }

    fn overshoot_amount(
        &mut self,
        word: Option<&Spanned<String>>,
    ) -> Result<Option<OvershootAmount>, InvalidSetting> {
        let Some(word) = word else { return Ok(None) };
        let amount = overshoot::parse(&word.value);
        if amount.is_none() {
            let message =
                format!("`max_overshoot: {}` is not a number of hits or a percentage", word.value);
            let fix = "use whole hits such as `100`, or a percentage of the limit such as `0.5%`";
            let at = FileSpan { file: self.file, span: word.span };
            self.findings.add(Code::OutOfRange, at, message, fix);
        }
        amount.map(Some).ok_or(InvalidSetting)
    }

    /// Reads the `max_overshoot` of a domain's `defaults`. An amount that no limit is large enough
    /// for is an error.
    fn default_overshoot_amount(
        &mut self,
        word: Option<&Spanned<String>>,
    ) -> Result<Option<OvershootAmount>, InvalidSetting> {
        let amount = self.overshoot_amount(word)?;
        if let Some(word) = word.filter(|_| amount.is_some_and(OvershootAmount::is_above_any)) {
            let message = format!("`max_overshoot: {}` is larger than any limit", word.value);
            let at = FileSpan { file: self.file, span: word.span };
            self.findings.add(Code::OutOfRange, at, message, "use at most `100%`");
            return Err(InvalidSetting);
        }
        Ok(amount)
    }
}
