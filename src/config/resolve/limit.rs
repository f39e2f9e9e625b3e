//! Resolves one `rate_limit` block.
//!
//! Guarantees:
//! - Applies envoyproxy/ratelimit's checks of a block.
//! - No accepted field of Sluicegate's own is ignored.
//! - All problems of a block are reported at once.
//!
//! Not covered:
//! - The block's node in the tree (see [`super`]).

use std::sync::Arc;

use super::findings::{At, Findings};
use super::overshoot::{self, Amount};
use super::words::{self, ModeWord, StrategyWord, Words};
use super::{calendar_of, duration};
use crate::config::diagnostic::{Code, Span, Spanned};
use crate::config::raw;
use crate::config::{Calendar, Limit, OnBackendFailure, Unit, Window};
use crate::kernel::lease::Overshoot;
use crate::kernel::lease::sizer::{self, Size};
use crate::kernel::rate::Strategy;
use crate::kernel::rate::fixed_window::{FixedWindow, Windows};
use crate::kernel::rate::gcra::Gcra;
use crate::kernel::rate::limit::LimitError;
use crate::kernel::rate::sliding_log::SlidingLog;
use crate::kernel::rate::sliding_window::SlidingWindow;
use crate::kernel::units::{Hits, Nanos};

/// A burst of more than this many units' worth of hits is probably a mistake.
const LARGE_BURST: u32 = 10;

/// The default settings of a domain's limits.
///
/// `Err` means that a setting is unknown. Checks that depend
/// on it are skipped, because the missing value may be valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Defaults {
    pub(super) strategy: Result<StrategyWord, Wrong>,
    pub(super) mode: Result<ModeWord, Wrong>,
    pub(super) overshoot: Result<Option<Amount>, Wrong>,
    pub(super) on_backend_failure: OnBackendFailure,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            strategy: Ok(StrategyWord::default()),
            mode: Ok(ModeWord::default()),
            overshoot: Ok(None),
            on_backend_failure: OnBackendFailure::default(),
        }
    }
}

impl Defaults {
    pub(super) fn unknown() -> Self {
        let (strategy, mode, overshoot) = (Err(Wrong), Err(Wrong), Err(Wrong));
        Self { strategy, mode, overshoot, on_backend_failure: OnBackendFailure::default() }
    }
}

/// A setting or block is invalid; the findings contain the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wrong;

/// The counting settings of a block, with the domain's defaults applied.
#[derive(Clone, Copy)]
struct Said {
    strategy: Result<StrategyWord, Wrong>,
    mode: Result<ModeWord, Wrong>,
    on_backend_failure: OnBackendFailure,
}

pub(super) struct Block<'r, 'f, 'a> {
    pub(super) file: usize,
    pub(super) raw: &'r raw::RateLimit,
    pub(super) defaults: Defaults,
    pub(super) findings: &'f mut Findings<'a>,
}

pub(super) fn defaults(raw: &raw::Defaults, file: usize, findings: &mut Findings<'_>) -> Defaults {
    let mut ask = Ask { file, findings };
    let Defaults { strategy, mode, on_backend_failure, .. } = Defaults::default();
    let word = raw.on_backend_failure.as_ref();
    let failure = ask.word(words::FAILURES, "on_backend_failure", word);
    Defaults {
        strategy: ask.or(strategy, words::STRATEGIES, "strategy", raw.strategy.as_ref()),
        mode: ask.or(mode, words::MODES, "mode", raw.mode.as_ref()),
        overshoot: ask.amount_of_any(raw.max_overshoot.as_ref()),
        on_backend_failure: failure.unwrap_or(on_backend_failure),
    }
}

impl Block<'_, '_, '_> {
    /// Returns the limit; `None` is `unlimited`.
    pub(super) fn read(mut self) -> Result<Option<Limit>, Wrong> {
        if self.raw.unlimited.value {
            return self.unlimited().map(|()| None);
        }
        self.limited().map(Some)
    }

    fn limited(&mut self) -> Result<Limit, Wrong> {
        let window = self.window();
        let said = self.said();
        let Said { strategy, mode, on_backend_failure } = said;
        let window = self.calendar(strategy, window);
        let (burst, overshoot) = (self.burst(strategy), self.overshoot(said));
        // Run all checks before the first `?`, so that one problem does not hide another.
        let (requests, borrows) = (self.earns(strategy), self.borrows(mode));
        let (window, burst, overshoot) = (window.ok_or(Wrong)?, burst.ok_or(Wrong)?, overshoot?);
        let strategy = requests.and(strategy)?;
        let strategy = self.strategy(strategy, &window, burst).ok_or(Wrong)?;
        let size = borrows.and_then(|()| self.size(&strategy))?;
        let mode = overshoot::mode(mode?, overshoot, window.length(), size);
        let requests = self.raw.requests_per_unit.value;
        Ok(Limit { requests, window, strategy, mode, on_backend_failure })
    }

    fn said(&mut self) -> Said {
        let (raw, defaults) = (self.raw, self.defaults);
        let mut ask = Ask { file: self.file, findings: self.findings };
        let mode = ask.or(defaults.mode, words::MODES, "mode", raw.mode.as_ref());
        let word = raw.on_backend_failure.as_ref();
        let failure = ask.word(words::FAILURES, "on_backend_failure", word);
        let on_backend_failure = failure.unwrap_or(defaults.on_backend_failure);
        let word = raw.strategy.as_ref();
        let strategy = ask.or(defaults.strategy, words::STRATEGIES, "strategy", word);
        Said { strategy, mode, on_backend_failure }
    }

    fn unlimited(&mut self) -> Result<(), Wrong> {
        let raw = self.raw;
        let unit = &raw.unit;
        let mut sound = true;
        if words::unit(&unit.value).is_some() {
            let message = format!("`unit: {}` beside `unlimited: true`", unit.value);
            self.error(Code::UnlimitedWithLimit, unit.span, message, "leave out one of the two");
            sound = false;
        }
        let ours = [
            ("per", raw.per.as_ref().map(|word| word.span)),
            ("strategy", raw.strategy.as_ref().map(|word| word.span)),
            ("burst", raw.burst.as_ref().map(|word| word.span)),
            ("mode", raw.mode.as_ref().map(|word| word.span)),
            ("max_overshoot", raw.max_overshoot.as_ref().map(|word| word.span)),
            ("lease_hits", raw.lease_hits.as_ref().map(|word| word.span)),
            ("on_backend_failure", raw.on_backend_failure.as_ref().map(|word| word.span)),
            ("calendar", raw.calendar.as_ref().map(|block| block.span)),
        ];
        for (word, span) in ours.into_iter().filter_map(|(word, span)| Some((word, span?))) {
            let message = format!("`{word}` beside `unlimited: true` would mean nothing");
            self.error(Code::UnlimitedWithLimit, span, message, "leave out one of the two");
            sound = false;
        }
        self.ignored_beside_unlimited();
        if sound { Ok(()) } else { Err(Wrong) }
    }

    /// Warns about fields beside `unlimited` that envoyproxy/ratelimit accepts and ignores.
    fn ignored_beside_unlimited(&mut self) {
        let raw = self.raw;
        let (unit, requests) = (&raw.unit.value, raw.requests_per_unit.span);
        let ignored = [
            // A valid unit is an error instead, reported with the other contradictions.
            ("unit", raw.unit.span, !unit.is_empty() && words::unit(unit).is_none()),
            ("requests_per_unit", requests, requests.start < requests.end),
        ];
        for (word, span, _) in ignored.into_iter().filter(|&(.., written)| written) {
            let message = format!("`{word}` has no effect beside `unlimited: true`");
            self.findings.add(Code::NoEffect, self.at(span), message, "leave it out");
        }
    }

    fn window(&mut self) -> Option<Window> {
        let raw = self.raw;
        match &raw.per {
            Some(per) if !raw.unit.value.is_empty() => {
                let message = format!("`unit: {}` and `per: {}`", raw.unit.value, per.value);
                self.error(Code::Contradiction, per.span, message, "leave out one of the two");
                None
            }
            Some(per) => self.per(per),
            None => self.unit().map(Window::Unit),
        }
    }

    fn unit(&mut self) -> Option<Unit> {
        let unit = &self.raw.unit;
        let found = words::unit(&unit.value);
        if found.is_none() && unit.value.is_empty() {
            let message = "a rate_limit needs a `unit`".to_owned();
            let cure =
                "`unit: minute` for example, or `unlimited: true`, or no `rate_limit` at all";
            let span = if unit.span.end == 0 { self.raw.span } else { unit.span };
            self.error(Code::UnknownUnit, span, message, cure);
        } else if found.is_none() {
            let message = format!("invalid unit `{}`", unit.value);
            self.error(
                Code::UnknownUnit,
                unit.span,
                message,
                &words::cure(words::UNITS, &unit.value),
            );
        }
        found
    }

    fn per(&mut self, per: &Spanned<String>) -> Option<Window> {
        let example = "a whole number and `ms`, `s`, `m`, `h` or `d`, as in `90s` or `1h30m`";
        let period = match duration::parse(&per.value) {
            Ok(period) => period,
            Err(wrong) => {
                let (message, cure) = wrong.told("per", &per.value, example);
                self.error(Code::BadDuration, per.span, message, cure);
                return None;
            }
        };
        if period < Nanos::MILLI {
            let message = format!("`per: {}` is shorter than 1ms", per.value);
            self.error(Code::BadDuration, per.span, message, "at least `1ms`");
            return None;
        }
        Some(Window::Per(period))
    }

    fn calendar(
        &mut self,
        strategy: Result<StrategyWord, Wrong>,
        window: Option<Window>,
    ) -> Option<Window> {
        let Some(raw) = &self.raw.calendar else { return window };
        let is_fixed = strategy == Ok(StrategyWord::FixedWindow);
        if let Some(strategy) = strategy.ok().filter(|_| !is_fixed) {
            let message = format!("`calendar` with `strategy: {strategy}`");
            let cure = "only `fixed_window` has windows that a calendar can place";
            self.error(Code::Contradiction, raw.span, message, cure);
        }
        if let Some(Window::Per(_)) = window {
            let cure = "give a `unit` of day, week, month or year instead of `per`";
            self.error(Code::Contradiction, raw.span, "`calendar` with `per`".to_owned(), cure);
        }
        let unit = if let Some(Window::Unit(unit)) = window { Some(unit) } else { None };
        let calendar = calendar_of::read(raw, unit, self.file, self.findings)?;
        Some(Window::Calendar(unit?, Arc::new(calendar))).filter(|_| is_fixed)
    }

    /// Returns the hits allowed at one instant; the default is `requests_per_unit`.
    fn burst(&mut self, strategy: Result<StrategyWord, Wrong>) -> Option<u32> {
        let requests = self.raw.requests_per_unit.value;
        let Some(burst) = &self.raw.burst else { return Some(requests) };
        if let Some(strategy) = strategy.ok().filter(|word| *word != StrategyWord::Gcra) {
            let message = format!("`burst` with `strategy: {strategy}`");
            let cure =
                "say `strategy: gcra`, the one strategy with a burst of its own, or leave it out";
            self.error(Code::Contradiction, burst.span, message, cure);
            return None;
        }
        if burst.value == 0 {
            let message = "burst 0 would deny everything".to_owned();
            let cure = format!("leave it out for a burst of `requests_per_unit` ({requests})");
            self.error(Code::ZeroBurst, burst.span, message, &cure);
            return None;
        }
        let is_large = requests != 0 && requests.saturating_mul(LARGE_BURST) < burst.value;
        if is_large && strategy.is_ok() {
            let message = format!(
                "a burst of {} admits {} units' worth of hits at one instant",
                burst.value,
                burst.value / requests
            );
            let cure = format!("for a burst of `requests_per_unit` ({requests}) leave it out");
            self.findings.add(Code::LargeBurst, self.at(burst.span), message, cure);
        }
        Some(burst.value)
    }

    /// Returns the maximum overshoot, or `None` if the limit is not leased.
    fn overshoot(&mut self, said: Said) -> Result<Option<Overshoot>, Wrong> {
        let own = self.raw.max_overshoot.as_ref();
        if let (Some(mode), Some(own)) =
            (said.mode.ok().filter(|word| *word != ModeWord::Leased), own)
        {
            let message = format!("`max_overshoot` with `mode: {mode}`, which never overshoots");
            let cure = "say `mode: leased`, or leave it out";
            self.error(Code::Contradiction, own.span, message, cure);
            return Err(Wrong);
        }
        let amount = Ask { file: self.file, findings: self.findings }.amount(own)?;
        if said.mode? != ModeWord::Leased {
            return Ok(None);
        }
        let amount = amount.map_or(self.defaults.overshoot, |own| Ok(Some(own)))?;
        self.leased(amount, said.strategy).map(Some)
    }

    /// Converts `amount` to this limit's maximum overshoot.
    fn leased(
        &mut self,
        amount: Option<Amount>,
        strategy: Result<StrategyWord, Wrong>,
    ) -> Result<Overshoot, Wrong> {
        let raw = self.raw;
        let word = raw.max_overshoot.as_ref().or(raw.mode.as_ref());
        let at = word.map_or(raw.span, |word| word.span);
        let Some(amount) = amount else {
            let message = "`mode: leased` without a `max_overshoot`".to_owned();
            let cure = "say what the fleet may admit above the limit at most, as in `2%`";
            self.error(Code::OutOfRange, at, message, cure);
            return Err(Wrong);
        };
        let (requests, strategy) = (raw.requests_per_unit.value, strategy?);
        amount.of(requests, strategy).map_err(|not| {
            let (code, message, cure) = overshoot::refusal(&not, requests, strategy);
            self.error(code, at, message, &cure);
            Wrong
        })
    }

    /// Checks `lease_hits` against the mode and its minimum.
    fn borrows(&mut self, mode: Result<ModeWord, Wrong>) -> Result<(), Wrong> {
        let Some(hits) = self.raw.lease_hits.as_ref() else { return Ok(()) };
        if let Some(mode) = mode.ok().filter(|word| *word != ModeWord::Leased) {
            let message = format!("`lease_hits` with `mode: {mode}`, which borrows nothing");
            let cure = "say `mode: leased`, or leave it out";
            self.error(Code::Contradiction, hits.span, message, cure);
            return Err(Wrong);
        }
        if hits.value == 0 {
            let cure = "at least 1; left out, it is learned";
            self.error(Code::OutOfRange, hits.span, "leases of 0 hits".to_owned(), cure);
            return Err(Wrong);
        }
        Ok(())
    }

    /// Returns the lease size, after a check against the largest lease.
    fn size(&mut self, strategy: &Strategy) -> Result<Size, Wrong> {
        let Some(hits) = self.raw.lease_hits.as_ref() else { return Ok(Size::Learned) };
        let most = sizer::most(strategy.most());
        if most < Hits(hits.value.into()) {
            let message = format!("leases of {} hits", hits.value);
            let cure = format!(
                "1 to {}, a tenth of what passes at one instant; left out, it is learned",
                most.0
            );
            self.error(Code::OutOfRange, hits.span, message, &cure);
            return Err(Wrong);
        }
        Ok(Size::Fixed(Hits(hits.value.into())))
    }

    fn strategy(&mut self, word: StrategyWord, window: &Window, burst: u32) -> Option<Strategy> {
        let requests = self.raw.requests_per_unit.value;
        self.denies_all();
        match build(word, requests, window, burst) {
            Ok(strategy) => {
                self.coarse(&strategy);
                Some(strategy)
            }
            Err(error) => {
                self.refuse(error);
                None
            }
        }
    }

    /// Rejects a limit of zero, except with `fixed_window`, where it denies everything.
    fn earns(&mut self, strategy: Result<StrategyWord, Wrong>) -> Result<(), Wrong> {
        let requests = &self.raw.requests_per_unit;
        let word = strategy.ok().filter(|word| *word != StrategyWord::FixedWindow);
        let Some(word) = word.filter(|_| requests.value == 0) else { return Ok(()) };
        let span = if self.says_requests() { requests.span } else { self.raw.span };
        let message = format!("`{word}` of 0 requests never earns a hit");
        let cure = "`requests_per_unit` of at least 1; to deny everything `strategy: fixed_window`";
        self.error(Code::ZeroRequests, span, message, cure);
        Err(Wrong)
    }

    fn denies_all(&mut self) {
        if !self.says_requests() {
            let message = "no `requests_per_unit`, so every hit is denied".to_owned();
            let cure = "say how many, or `requests_per_unit: 0` if that is meant";
            self.findings.add(Code::DeniesAll, self.at(self.raw.span), message, cure);
        }
    }

    fn says_requests(&self) -> bool {
        let requests = &self.raw.requests_per_unit;
        requests.value != 0 || requests.span.start < requests.span.end
    }

    fn coarse(&mut self, strategy: &Strategy) {
        let Some(worth) = strategy.worth().filter(|_| strategy.is_coarse()) else { return };
        let message = format!(
            "one tick of {} is worth {worth} hits, more than 1 % of the {} that pass at one instant",
            strategy.tick(),
            strategy.most()
        );
        let cure = "answers are that coarse; a larger burst or fewer requests make them finer";
        self.findings.add(Code::CoarseTick, self.at(self.raw.span), message, cure);
    }

    fn refuse(&mut self, error: LimitError) {
        let burst = self.raw.burst.as_ref();
        let numbers = burst.map_or(self.raw.requests_per_unit.span, |burst| burst.span);
        let cure = match error {
            LimitError::TooLarge { largest, .. } => {
                format!("at most {largest}, or a shorter period")
            }
            _ => "a smaller number or another period".to_owned(),
        };
        self.findings.add(Code::DoesNotFit, self.at(numbers), error.to_string(), cure);
    }

    fn at(&self, span: Span) -> At {
        At { file: self.file, span }
    }

    fn error(&mut self, code: Code, span: Span, message: String, cure: &str) {
        self.findings.add(code, self.at(span), message, cure);
    }
}

fn build(
    word: StrategyWord,
    requests: u32,
    window: &Window,
    burst: u32,
) -> Result<Strategy, LimitError> {
    let period = match window {
        Window::Unit(unit) | Window::Calendar(unit, _) => unit.length(),
        Window::Per(period) => *period,
    };
    Ok(match word {
        StrategyWord::Gcra => Strategy::Gcra(Gcra::new(requests, period, burst)?),
        StrategyWord::SlidingWindow => {
            Strategy::SlidingWindow(SlidingWindow::new(requests, period)?)
        }
        StrategyWord::SlidingLog => Strategy::SlidingLog(SlidingLog::new(requests, period)?),
        StrategyWord::FixedWindow => {
            Strategy::FixedWindow(FixedWindow::new(requests, windows(window, period))?)
        }
    })
}

/// Returns the windows of a fixed-window limit.
///
/// A calendar gets windows of the past as placeholders. Each charge must replace
/// them with the windows around its own time; otherwise it fails with `Stale`.
fn windows(window: &Window, period: Nanos) -> Windows {
    match window {
        Window::Calendar(_, calendar) => Windows::Calendar { starts: Calendar::long_ago(calendar) },
        Window::Unit(_) | Window::Per(_) => Windows::Every(period),
    }
}

pub(super) struct Ask<'f, 'a> {
    pub(super) file: usize,
    pub(super) findings: &'f mut Findings<'a>,
}

impl Ask<'_, '_> {
    /// Returns the meaning of a keyword. Reports an unknown keyword and returns `None`.
    pub(super) fn word<T: Copy>(
        &mut self,
        words: &Words<T>,
        key: &str,
        word: Option<&Spanned<String>>,
    ) -> Option<T> {
        let word = word?;
        let found = words::meaning(words, &word.value);
        if found.is_none() {
            let message = format!("`{key}: {}` is not known", word.value);
            let at = At { file: self.file, span: word.span };
            self.findings.add(Code::UnknownWord, at, message, words::cure(words, &word.value));
        }
        found
    }

    fn or<T: Copy>(
        &mut self,
        default: Result<T, Wrong>,
        words: &Words<T>,
        key: &str,
        word: Option<&Spanned<String>>,
    ) -> Result<T, Wrong> {
        if word.is_none() { default } else { self.word(words, key, word).ok_or(Wrong) }
    }

    fn amount(&mut self, word: Option<&Spanned<String>>) -> Result<Option<Amount>, Wrong> {
        let Some(word) = word else { return Ok(None) };
        let found = overshoot::parse(&word.value);
        if found.is_none() {
            let message = format!("`max_overshoot: {}` is no number of hits", word.value);
            let cure =
                "whole hits, as in `100`, or a percentage of the limit, as in `2%` or `0.5%`";
            let at = At { file: self.file, span: word.span };
            self.findings.add(Code::OutOfRange, at, message, cure);
        }
        found.map(Some).ok_or(Wrong)
    }

    /// Reads a `max_overshoot` for several limits. Rejects an amount above every possible limit.
    fn amount_of_any(&mut self, word: Option<&Spanned<String>>) -> Result<Option<Amount>, Wrong> {
        let amount = self.amount(word)?;
        if let Some(word) = word.filter(|_| amount.is_some_and(Amount::is_above_any)) {
            let message = format!("`max_overshoot: {}` is above any limit itself", word.value);
            let at = At { file: self.file, span: word.span };
            self.findings.add(Code::OutOfRange, at, message, "at most `100%`");
            return Err(Wrong);
        }
        Ok(amount)
    }
}
