//! The strategy of a rate limit with its numbers: `requests_per_unit` and `burst`.
//!
//! Guarantees:
//! - A limit that cannot be counted exactly is an error.
//!
//! Not covered:
//! - The window (see [`super::window`]).

use super::{LimitNumbers, RateLimitReader};
use crate::diagnostic::Code;
use crate::kernel::rate::Strategy;
use crate::kernel::rate::fixed_window::{FixedWindow, Windows};
use crate::kernel::rate::gcra::Gcra;
use crate::kernel::rate::limit::LimitError;
use crate::kernel::rate::sliding_log::SlidingLog;
use crate::kernel::rate::sliding_window::SlidingWindow;
use crate::kernel::units::Nanos;
use crate::resolve::keyword_reader::InvalidSetting;
use crate::resolve::keywords::StrategyKeyword;
use crate::{Calendar, LimitWindow};

/// The largest `burst` without a warning, as a multiple of `requests_per_unit`. A larger one is
/// probably a mistake.
const LARGE_BURST_FACTOR: u32 = 10;

impl RateLimitReader<'_, '_, '_> {
    /// Returns the hits that are allowed at one instant (`burst`). The default is
    /// `requests_per_unit`.
    pub(super) fn burst(
        &mut self,
        strategy: Result<StrategyKeyword, InvalidSetting>,
    ) -> Option<u32> {
        let requests = self.raw.requests_per_unit.value;
        let Some(burst) = &self.raw.burst else { return Some(requests) };
        if let Some(strategy) = strategy.ok().filter(|word| *word != StrategyKeyword::Gcra) {
            let fix = "use `strategy: gcra`, or remove `burst`";
            self.contradict(burst.span, "burst", format_args!("strategy: {strategy}"), fix);
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

    pub(super) fn strategy(
        &mut self,
        numbers: LimitNumbers,
        window: &LimitWindow,
    ) -> Option<Strategy> {
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
    pub(super) fn check_zero_requests(
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
