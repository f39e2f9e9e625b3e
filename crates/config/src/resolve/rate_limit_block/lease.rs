//! The fields of leased limits: `max_overshoot` and `lease_hits`.
//!
//! Guarantees:
//! - Both fields are valid only with `mode: leased`.
//! - A leased limit has a bound on its overshoot.

use super::{CountingSettings, RateLimitReader};
use crate::diagnostic::Code;
use crate::kernel::lease::Overshoot;
use crate::kernel::lease::sizer::{self, LeaseSizing};
use crate::kernel::rate::Strategy;
use crate::kernel::units::Hits;
use crate::resolve::keyword_reader::{InvalidSetting, KeywordReader};
use crate::resolve::keywords::{ModeKeyword, StrategyKeyword};
use crate::resolve::overshoot::{self, OvershootAmount};

impl RateLimitReader<'_, '_, '_> {
    /// Returns the largest overshoot, or `None` if the limit is not leased.
    pub(super) fn overshoot(
        &mut self,
        counting: CountingSettings,
    ) -> Result<Option<Overshoot>, InvalidSetting> {
        let own = self.raw.max_overshoot.as_ref();
        if let (Some(mode), Some(own)) =
            (counting.mode.ok().filter(|word| *word != ModeKeyword::Leased), own)
        {
            let fix = "use `mode: leased`, or remove `max_overshoot`";
            self.contradict(own.span, "max_overshoot", format_args!("mode: {mode}"), fix);
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
        let burst = raw.burst.as_ref().map_or(requests, |burst| burst.value);
        amount.for_limit(requests, burst, strategy).map_err(|reason| {
            let (code, message, fix) = overshoot::error_message_and_fix(&reason, requests);
            self.error(code, at, message, &fix);
            InvalidSetting
        })
    }

    /// Verifies that the limit with `lease_hits` is leased, and that the number is large enough.
    pub(super) fn check_lease_hits(
        &mut self,
        mode: Result<ModeKeyword, InvalidSetting>,
    ) -> Result<(), InvalidSetting> {
        let Some(hits) = self.raw.lease_hits.as_ref() else { return Ok(()) };
        if let Some(mode) = mode.ok().filter(|word| *word != ModeKeyword::Leased) {
            let fix = "use `mode: leased`, or remove `lease_hits`";
            self.contradict(hits.span, "lease_hits", format_args!("mode: {mode}"), fix);
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
    pub(super) fn lease_size(
        &mut self,
        strategy: &Strategy,
    ) -> Result<LeaseSizing, InvalidSetting> {
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
}
