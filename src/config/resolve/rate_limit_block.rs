//! Validates one `rate_limit` block and converts it to a limit.
//!
//! Guarantees:
//! - Applies all rules of envoyproxy/ratelimit for a valid block.
//! - Every accepted field that envoyproxy/ratelimit does not have has an effect.
//! - All problems of a block are reported at once.

use std::sync::Arc;

use super::findings::{FileFindings, FileSpan};
use super::keywords::{self, Keywords, ModeKeyword, StrategyKeyword};
use super::overshoot::{self, OvershootAmount};
use super::{calendar_block, duration};
use crate::config::diagnostic::{Code, Span, Spanned};
use crate::config::raw;
use crate::config::{FallbackMode, Limit, LimitWindow, Unit};
use crate::kernel::lease::Overshoot;
use crate::kernel::lease::sizer::{self, LeaseSizing};
use crate::kernel::rate::Strategy;
use crate::kernel::rate::fixed_window::{FixedWindow, Windows};
use crate::kernel::rate::gcra::Gcra;
use crate::kernel::rate::limit::LimitError;
use crate::kernel::rate::sliding_log::SlidingLog;
use crate::kernel::rate::sliding_window::SlidingWindow;
use crate::kernel::units::{Hits, Nanos};

/// The largest `burst` without a warning, as a multiple of `requests_per_unit`.
const LARGE_BURST_FACTOR: u32 = 10;

/// The validated `defaults` of a domain. An invalid field is `Err`, and validations that need the
/// field are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DomainDefaults {
    pub(super) strategy: Result<StrategyKeyword, InvalidSetting>,
    pub(super) mode: Result<ModeKeyword, InvalidSetting>,
    pub(super) overshoot: Result<Option<OvershootAmount>, InvalidSetting>,
    pub(super) on_backend_failure: FallbackMode,
}

impl Default for DomainDefaults {
    fn default() -> Self {
        Self {
            strategy: Ok(StrategyKeyword::default()),
            mode: Ok(ModeKeyword::default()),
            overshoot: Ok(None),
            on_backend_failure: FallbackMode::default(),
        }
    }
}

impl DomainDefaults {
    /// The `defaults` of a domain that may be in an unreadable file.
    pub(super) fn unknown() -> Self {
        Self {
            strategy: Err(InvalidSetting),
            mode: Err(InvalidSetting),
            overshoot: Err(InvalidSetting),
            on_backend_failure: FallbackMode::default(),
        }
    }
}

/// The error for an invalid field or block. The findings contain the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidSetting;

/// The strategy, mode and fallback of a block. The domain's `defaults` replace missing fields.
#[derive(Clone, Copy)]
struct CountingSettings {
    strategy: Result<StrategyKeyword, InvalidSetting>,
    mode: Result<ModeKeyword, InvalidSetting>,
    on_backend_failure: FallbackMode,
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
    let DomainDefaults { strategy, mode, .. } = DomainDefaults::default();
    let fallback = raw.on_backend_failure.as_ref();
    let fallback = reader.read("on_backend_failure", keywords::FALLBACK_MODES, fallback);
    let keyword = raw.strategy.as_ref();
    DomainDefaults {
        strategy: reader.read_or(strategy, "strategy", keywords::STRATEGIES, keyword),
        mode: reader.read_or(mode, "mode", keywords::MODES, raw.mode.as_ref()),
        overshoot: reader.read_default_overshoot(raw.max_overshoot.as_ref()),
        on_backend_failure: fallback.unwrap_or_default(),
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
        // Run all validations before the first `?`, so that one problem does not hide another.
        let window = self.read_window();
        let counting = self.read_counting_settings();
        let CountingSettings { strategy, mode, on_backend_failure } = counting;
        let window = self.read_calendar(strategy, window);
        let (burst, overshoot) = (self.read_burst(strategy), self.read_overshoot(counting));
        let requests_check = self.check_zero_requests(strategy);
        let lease_hits_check = self.check_lease_hits(mode);
        let (window, burst, overshoot) =
            (window.ok_or(InvalidSetting)?, burst.ok_or(InvalidSetting)?, overshoot?);
        let strategy = requests_check.and(strategy)?;
        let strategy = self.build_strategy(strategy, &window, burst).ok_or(InvalidSetting)?;
        let sizing = lease_hits_check.and_then(|()| self.read_lease_hits(&strategy))?;
        let mode = overshoot::resolve_mode(mode?, overshoot, window.length(), sizing);
        let requests = self.raw.requests_per_unit.value;
        Ok(Limit { requests, window, strategy, mode, on_backend_failure })
    }

    fn read_counting_settings(&mut self) -> CountingSettings {
        let (raw, defaults) = (self.raw, self.defaults);
        let mut reader = KeywordReader { file: self.file, findings: self.findings };
        let mode = reader.read_or(defaults.mode, "mode", keywords::MODES, raw.mode.as_ref());
        let fallback = raw.on_backend_failure.as_ref();
        let fallback = reader.read("on_backend_failure", keywords::FALLBACK_MODES, fallback);
        let on_backend_failure = fallback.unwrap_or(defaults.on_backend_failure);
        let keyword = raw.strategy.as_ref();
        let strategy = reader.read_or(defaults.strategy, "strategy", keywords::STRATEGIES, keyword);
        CountingSettings { strategy, mode, on_backend_failure }
    }

    fn check_unlimited(&mut self) -> Result<(), InvalidSetting> {
        let raw = self.raw;
        let unit = &raw.unit;
        let mut is_valid = true;
        if keywords::parse_unit(&unit.value).is_some() {
            let message = format!("`unit: {}` beside `unlimited: true`", unit.value);
            self.error(Code::UnlimitedWithLimit, unit.span, message, "leave out one of the two");
            is_valid = false;
        }
        let own_fields = [
            ("per", raw.per.as_ref().map(|field| field.span)),
            ("strategy", raw.strategy.as_ref().map(|field| field.span)),
            ("burst", raw.burst.as_ref().map(|field| field.span)),
            ("mode", raw.mode.as_ref().map(|field| field.span)),
            ("max_overshoot", raw.max_overshoot.as_ref().map(|field| field.span)),
            ("lease_hits", raw.lease_hits.as_ref().map(|field| field.span)),
            ("on_backend_failure", raw.on_backend_failure.as_ref().map(|field| field.span)),
            ("calendar", raw.calendar.as_ref().map(|block| block.span)),
        ];
        for (field, span) in own_fields {
            let Some(span) = span else { continue };
            let message = format!("`{field}` beside `unlimited: true` would mean nothing");
            self.error(Code::UnlimitedWithLimit, span, message, "leave out one of the two");
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
            // `check_unlimited` reports a valid unit as an error. An invalid unit is only ignored.
            ("unit", raw.unit.span, !unit.is_empty() && keywords::parse_unit(unit).is_none()),
            ("requests_per_unit", requests, requests.start < requests.end),
        ];
        for (field, span, _) in ignored.into_iter().filter(|&(.., is_set)| is_set) {
            let message = format!("`{field}` has no effect beside `unlimited: true`");
            self.findings.add(Code::NoEffect, self.file_span(span), message, "leave it out");
        }
    }

    fn read_window(&mut self) -> Option<LimitWindow> {
        let raw = self.raw;
        match &raw.per {
            Some(per) if !raw.unit.value.is_empty() => {
                let message = format!("`unit: {}` and `per: {}`", raw.unit.value, per.value);
                self.error(Code::Contradiction, per.span, message, "leave out one of the two");
                None
            }
            Some(per) => self.read_per(per),
            None => self.read_unit().map(LimitWindow::Unit),
        }
    }

    fn read_unit(&mut self) -> Option<Unit> {
        let unit = &self.raw.unit;
        let parsed_unit = keywords::parse_unit(&unit.value);
        if parsed_unit.is_none() && unit.value.is_empty() {
            let message = "a rate_limit needs a `unit`".to_owned();
            let help =
                "`unit: minute` for example, or `unlimited: true`, or no `rate_limit` at all";
            let span = if unit.span.end == 0 { self.raw.span } else { unit.span };
            self.error(Code::UnknownUnit, span, message, help);
        } else if parsed_unit.is_none() {
            let message = format!("invalid unit `{}`", unit.value);
            let help = keywords::suggest(keywords::UNITS, &unit.value);
            self.error(Code::UnknownUnit, unit.span, message, &help);
        }
        parsed_unit
    }

    fn read_per(&mut self, per: &Spanned<String>) -> Option<LimitWindow> {
        let example = "a whole number and `ms`, `s`, `m`, `h` or `d`, as in `90s` or `1h30m`";
        let period = match duration::parse(&per.value) {
            Ok(period) => period,
            Err(error) => {
                let (message, help) = error.message_and_fix("per", &per.value, example);
                self.error(Code::BadDuration, per.span, message, help);
                return None;
            }
        };
        if period < Nanos::MILLI {
            let message = format!("`per: {}` is shorter than 1ms", per.value);
            self.error(Code::BadDuration, per.span, message, "at least `1ms`");
            return None;
        }
        Some(LimitWindow::Per(period))
    }

    fn read_calendar(
        &mut self,
        strategy: Result<StrategyKeyword, InvalidSetting>,
        window: Option<LimitWindow>,
    ) -> Option<LimitWindow> {
        let Some(raw) = &self.raw.calendar else { return window };
        let is_fixed = strategy == Ok(StrategyKeyword::FixedWindow);
        if let Some(strategy) = strategy.ok().filter(|_| !is_fixed) {
            let message = format!("`calendar` with `strategy: {strategy}`");
            let help = "only `fixed_window` has windows that a calendar can place";
            self.error(Code::Contradiction, raw.span, message, help);
        }
        if let Some(LimitWindow::Per(_)) = window {
            let help = "give a `unit` of day, week, month or year instead of `per`";
            self.error(Code::Contradiction, raw.span, "`calendar` with `per`".to_owned(), help);
        }
        let unit = if let Some(LimitWindow::Unit(unit)) = window { Some(unit) } else { None };
        let calendar = calendar_block::read_calendar(raw, unit, self.file, self.findings)?;
        Some(LimitWindow::Calendar(unit?, Arc::new(calendar))).filter(|_| is_fixed)
    }

    fn read_burst(&mut self, strategy: Result<StrategyKeyword, InvalidSetting>) -> Option<u32> {
        let requests = self.raw.requests_per_unit.value;
        let Some(burst) = &self.raw.burst else { return Some(requests) };
        if let Some(strategy) = strategy.ok().filter(|strategy| *strategy != StrategyKeyword::Gcra)
        {
            let message = format!("`burst` with `strategy: {strategy}`");
            let help =
                "say `strategy: gcra`, the one strategy with a burst of its own, or leave it out";
            self.error(Code::Contradiction, burst.span, message, help);
            return None;
        }
        if burst.value == 0 {
            let message = "burst 0 would deny everything".to_owned();
            let help = format!("leave it out for a burst of `requests_per_unit` ({requests})");
            self.error(Code::ZeroBurst, burst.span, message, &help);
            return None;
        }
        let is_large = requests != 0 && requests.saturating_mul(LARGE_BURST_FACTOR) < burst.value;
        if is_large && strategy.is_ok() {
            let message = format!(
                "a burst of {} admits {} units' worth of hits at one instant",
                burst.value,
                burst.value / requests
            );
            let help = format!("for a burst of `requests_per_unit` ({requests}) leave it out");
            self.findings.add(Code::LargeBurst, self.file_span(burst.span), message, help);
        }
        Some(burst.value)
    }

    /// Returns the `max_overshoot`, or `None` if the limit is not leased.
    fn read_overshoot(
        &mut self,
        counting: CountingSettings,
    ) -> Result<Option<Overshoot>, InvalidSetting> {
        let field = self.raw.max_overshoot.as_ref();
        let unleased_mode = counting.mode.ok().filter(|mode| *mode != ModeKeyword::Leased);
        if let (Some(mode), Some(field)) = (unleased_mode, field) {
            let message = format!("`max_overshoot` with `mode: {mode}`, which never overshoots");
            let help = "say `mode: leased`, or leave it out";
            self.error(Code::Contradiction, field.span, message, help);
            return Err(InvalidSetting);
        }
        let amount =
            KeywordReader { file: self.file, findings: self.findings }.read_overshoot(field)?;
        if counting.mode? != ModeKeyword::Leased {
            return Ok(None);
        }
        let amount = amount.map_or(self.defaults.overshoot, |amount| Ok(Some(amount)))?;
        self.resolve_overshoot(amount, counting.strategy).map(Some)
    }

    fn resolve_overshoot(
        &mut self,
        amount: Option<OvershootAmount>,
        strategy: Result<StrategyKeyword, InvalidSetting>,
    ) -> Result<Overshoot, InvalidSetting> {
        let raw = self.raw;
        let field = raw.max_overshoot.as_ref().or(raw.mode.as_ref());
        let span = field.map_or(raw.span, |field| field.span);
        let Some(amount) = amount else {
            let message = "`mode: leased` without a `max_overshoot`".to_owned();
            let help = "say what the fleet may admit above the limit at most, as in `2%`";
            self.error(Code::OutOfRange, span, message, help);
            return Err(InvalidSetting);
        };
        let (requests, strategy) = (raw.requests_per_unit.value, strategy?);
        amount.to_overshoot(requests, strategy).map_err(|error| {
            let (code, message, help) =
                overshoot::error_message_and_fix(&error, requests, strategy);
            self.error(code, span, message, &help);
            InvalidSetting
        })
    }

    fn check_lease_hits(
        &mut self,
        mode: Result<ModeKeyword, InvalidSetting>,
    ) -> Result<(), InvalidSetting> {
        let Some(hits) = self.raw.lease_hits.as_ref() else { return Ok(()) };
        if let Some(mode) = mode.ok().filter(|mode| *mode != ModeKeyword::Leased) {
            let message = format!("`lease_hits` with `mode: {mode}`, which borrows nothing");
            let help = "say `mode: leased`, or leave it out";
            self.error(Code::Contradiction, hits.span, message, help);
            return Err(InvalidSetting);
        }
        if hits.value == 0 {
            let help = "at least 1; left out, it is learned";
            self.error(Code::OutOfRange, hits.span, "leases of 0 hits".to_owned(), help);
            return Err(InvalidSetting);
        }
        Ok(())
    }

    fn read_lease_hits(&mut self, strategy: &Strategy) -> Result<LeaseSizing, InvalidSetting> {
        let Some(hits) = self.raw.lease_hits.as_ref() else { return Ok(LeaseSizing::Learned) };
        let max_lease = sizer::max_lease(strategy.max_at_once());
        if max_lease < Hits(hits.value.into()) {
            let message = format!("leases of {} hits", hits.value);
            let help = format!(
                "1 to {}, a tenth of what passes at one instant; left out, it is learned",
                max_lease.0
            );
            self.error(Code::OutOfRange, hits.span, message, &help);
            return Err(InvalidSetting);
        }
        Ok(LeaseSizing::Fixed(Hits(hits.value.into())))
    }

    fn build_strategy(
        &mut self,
        keyword: StrategyKeyword,
        window: &LimitWindow,
        burst: u32,
    ) -> Option<Strategy> {
        let requests = self.raw.requests_per_unit.value;
        self.warn_denies_all();
        match build_strategy(keyword, requests, window, burst) {
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
        let strategy = strategy.ok().filter(|strategy| *strategy != StrategyKeyword::FixedWindow);
        let Some(strategy) = strategy.filter(|_| requests.value == 0) else { return Ok(()) };
        let span = if self.has_requests() { requests.span } else { self.raw.span };
        let message = format!("`{strategy}` of 0 requests never earns a hit");
        let help = "`requests_per_unit` of at least 1; to deny everything `strategy: fixed_window`";
        self.error(Code::ZeroRequests, span, message, help);
        Err(InvalidSetting)
    }

    fn warn_denies_all(&mut self) {
        if !self.has_requests() {
            let message = "no `requests_per_unit`, so every hit is denied".to_owned();
            let help = "say how many, or `requests_per_unit: 0` if that is meant";
            self.findings.add(Code::DeniesAll, self.file_span(self.raw.span), message, help);
        }
    }

    fn has_requests(&self) -> bool {
        let requests = &self.raw.requests_per_unit;
        requests.value != 0 || requests.span.start < requests.span.end
    }

    fn warn_coarse_tick(&mut self, strategy: &Strategy) {
        let Some(hits_per_tick) = strategy.refill_rate().filter(|_| strategy.is_coarse()) else {
            return;
        };
        let message = format!(
            "one tick of {} is worth {hits_per_tick} hits, more than 1 % of the {} that pass at one instant",
            strategy.tick(),
            strategy.max_at_once()
        );
        let help = "answers are that coarse; a larger burst or fewer requests make them finer";
        self.findings.add(Code::CoarseTick, self.file_span(self.raw.span), message, help);
    }

    fn report_limit_error(&mut self, error: LimitError) {
        let burst = self.raw.burst.as_ref();
        let span = burst.map_or(self.raw.requests_per_unit.span, |burst| burst.span);
        let help = match error {
            LimitError::TooLarge { largest, .. } => {
                format!("at most {largest}, or a shorter period")
            }
            _ => "a smaller number or another period".to_owned(),
        };
        self.findings.add(Code::DoesNotFit, self.file_span(span), error.to_string(), help);
    }

    fn file_span(&self, span: Span) -> FileSpan {
        FileSpan { file: self.file, span }
    }

    fn error(&mut self, code: Code, span: Span, message: String, help: &str) {
        self.findings.add(code, self.file_span(span), message, help);
    }
}

fn build_strategy(
    keyword: StrategyKeyword,
    requests: u32,
    window: &LimitWindow,
    burst: u32,
) -> Result<Strategy, LimitError> {
    let period = window.length();
    Ok(match keyword {
        StrategyKeyword::Gcra => Strategy::Gcra(Gcra::new(requests, period, burst)?),
        StrategyKeyword::SlidingWindow => {
            Strategy::SlidingWindow(SlidingWindow::new(requests, period)?)
        }
        StrategyKeyword::SlidingLog => Strategy::SlidingLog(SlidingLog::new(requests, period)?),
        StrategyKeyword::FixedWindow => {
            Strategy::FixedWindow(FixedWindow::new(requests, windows_of(window))?)
        }
    })
}

/// Returns the windows of a fixed-window limit. Calendar windows are placeholders, which each
/// charge replaces.
fn windows_of(window: &LimitWindow) -> Windows {
    match window {
        LimitWindow::Calendar(_, calendar) => Windows::Calendar { starts: calendar.past_starts() },
        LimitWindow::Unit(_) | LimitWindow::Per(_) => Windows::Every(window.length()),
    }
}

pub(super) struct KeywordReader<'f, 'a> {
    pub(super) file: usize,
    pub(super) findings: &'f mut FileFindings<'a>,
}

impl KeywordReader<'_, '_> {
    pub(super) fn read<T: Copy>(
        &mut self,
        field: &str,
        keywords: &Keywords<T>,
        text: Option<&Spanned<String>>,
    ) -> Option<T> {
        let text = text?;
        let meaning = keywords::parse_keyword(keywords, &text.value);
        if meaning.is_none() {
            let message = format!("`{field}: {}` is not known", text.value);
            let help = keywords::suggest(keywords, &text.value);
            self.error(Code::UnknownWord, text.span, message, &help);
        }
        meaning
    }

    fn read_or<T: Copy>(
        &mut self,
        default: Result<T, InvalidSetting>,
        field: &str,
        keywords: &Keywords<T>,
        text: Option<&Spanned<String>>,
    ) -> Result<T, InvalidSetting> {
        if text.is_none() {
            default
        } else {
            self.read(field, keywords, text).ok_or(InvalidSetting)
        }
    }

    fn read_overshoot(
        &mut self,
        text: Option<&Spanned<String>>,
    ) -> Result<Option<OvershootAmount>, InvalidSetting> {
        let Some(text) = text else { return Ok(None) };
        let amount = overshoot::parse(&text.value);
        if amount.is_none() {
            let message = format!("`max_overshoot: {}` is no number of hits", text.value);
            let help =
                "whole hits, as in `100`, or a percentage of the limit, as in `2%` or `0.5%`";
            self.error(Code::OutOfRange, text.span, message, help);
        }
        amount.map(Some).ok_or(InvalidSetting)
    }

    fn read_default_overshoot(
        &mut self,
        text: Option<&Spanned<String>>,
    ) -> Result<Option<OvershootAmount>, InvalidSetting> {
        let amount = self.read_overshoot(text)?;
        if let Some(text) = text.filter(|_| amount.is_some_and(OvershootAmount::exceeds_any_limit))
        {
            let message = format!("`max_overshoot: {}` is above any limit itself", text.value);
            self.error(Code::OutOfRange, text.span, message, "at most `100%`");
            return Err(InvalidSetting);
        }
        Ok(amount)
    }

    fn error(&mut self, code: Code, span: Span, message: String, help: &str) {
        self.findings.add(code, FileSpan { file: self.file, span }, message, help);
    }
}
