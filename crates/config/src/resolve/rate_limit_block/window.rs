//! The window of a rate limit: the fields `unit`, `per` and `calendar`.
//!
//! Guarantees:
//! - `calendar` is valid only with `strategy: fixed_window`.

use super::RateLimitReader;
use crate::LimitWindow;
use crate::kernel::units::Nanos;
use crate::resolve::keyword_reader::InvalidSetting;
use crate::resolve::keywords::StrategyKeyword;
use crate::resolve::window::{WindowFields, WindowReader};

const MISSING_FIX: &str =
    "add for example `unit: minute` or `unlimited: true`, or remove `rate_limit`";

impl<'r, 'a> RateLimitReader<'r, '_, 'a> {
    pub(super) fn window(&mut self) -> Option<LimitWindow> {
        self.window_reader().window()
    }

    pub(super) fn calendar(
        &mut self,
        strategy: Result<StrategyKeyword, InvalidSetting>,
        window: Option<LimitWindow>,
    ) -> Option<LimitWindow> {
        let Some(raw) = &self.raw.calendar else { return window };
        let is_fixed = strategy == Ok(StrategyKeyword::FixedWindow);
        if let Some(strategy) = strategy.ok().filter(|_| !is_fixed) {
            let fix = "use `strategy: fixed_window`, or remove `calendar`";
            self.contradict(raw.span, "calendar", format_args!("strategy: {strategy}"), fix);
        }
        self.window_reader().calendar(window).filter(|_| is_fixed)
    }

    fn window_reader(&mut self) -> WindowReader<'r, '_, 'a> {
        let raw = self.raw;
        let fields = WindowFields {
            block: "rate_limit",
            missing_fix: MISSING_FIX,
            shortest: (Nanos::MILLI, "1ms"),
            span: raw.span,
            is_incomplete: raw.is_incomplete,
            unit: &raw.unit,
            per: raw.per.as_ref(),
            calendar: raw.calendar.as_ref(),
        };
        WindowReader { file: self.file, fields, findings: self.findings }
    }
}
