//! The window of a rate limit: the fields `unit`, `per` and `calendar`.
//!
//! Guarantees:
//! - A valid block has either `unit` or `per`.
//! - `calendar` is valid only with `unit` and `strategy: fixed_window`.

use std::sync::Arc;

use super::RateLimitReader;
use crate::diagnostic::{Code, Spanned};
use crate::kernel::units::Nanos;
use crate::resolve::keyword_reader::InvalidSetting;
use crate::resolve::keywords::{self, StrategyKeyword};
use crate::resolve::{calendar_block, duration};
use crate::{LimitWindow, Unit};

impl RateLimitReader<'_, '_, '_> {
    pub(super) fn window(&mut self) -> Option<LimitWindow> {
        let raw = self.raw;
        match &raw.per {
            Some(per) if !raw.unit.value.is_empty() => {
                let (field, other) =
                    (format_args!("per: {}", per.value), format_args!("unit: {}", raw.unit.value));
                self.contradict(per.span, field, other, "remove one of the two");
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
        if let Some(LimitWindow::Per(_)) = window {
            let fix = "use `unit: day`, `week`, `month` or `year` instead of `per`";
            self.contradict(raw.span, "calendar", "per", fix);
        }
        let unit = if let Some(LimitWindow::Unit(unit)) = window { Some(unit) } else { None };
        let calendar = calendar_block::read(raw, unit, self.file, self.findings)?;
        Some(LimitWindow::Calendar(unit?, Arc::new(calendar))).filter(|_| is_fixed)
    }
}
