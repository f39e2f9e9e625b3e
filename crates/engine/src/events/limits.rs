//! Events of rate limits: an allowed check used much of its limit, or a limit denied.
//!
//! Guarantees:
//! - One event of each type for each counter and window, at all replicas together by its id.
//! - The window of a `fixed_window` limit is that of the store's clock, up to half a window of
//!   clock difference.
//!
//! Not covered:
//! - Leased hits that other replicas have not spent, which count as used.
//! - Limits with a forced decision, which charge no counter.

use std::borrow::Cow;

use serde_json::{Map, json};

use super::EventOptions;
use crate::decide::limit_plan::LimitPlan;
use crate::decide::path::PreparedCheck;
use crate::kernel::decision::{Descriptor, DescriptorDecision, Reason};
use crate::kernel::rate::Strategy;
use crate::kernel::rate::fixed_window::Windows;
use crate::kernel::units::Nanos;
use crate::store::Charge;
use crate::telemetry::cloud_events::{EventContent, EventKey, EventWindow, format_time};

/// A limit of a check, with its charge and its decision.
struct ChargedLimit<'a, 'q> {
    limit: &'a LimitPlan<'a>,
    descriptor: &'a Descriptor<'q>,
    charge: &'a Charge,
    decision: &'a DescriptorDecision,
}

impl EventOptions {
    /// Sends an event if the limit at `index` in the plan denied, or is nearly used up.
    #[inline]
    pub(crate) fn offer_limit_event(
        &self,
        prepared: &PreparedCheck<'_, '_>,
        (index, decision): (usize, &DescriptorDecision),
        charge: &Charge,
    ) {
        if let Some(event_type) = self.event_type(charge, decision) {
            self.send_limit((event_type, index), charge, prepared, decision);
        }
    }

    /// Returns the type of the limit's event, if it has one.
    #[inline]
    fn event_type(&self, charge: &Charge, decision: &DescriptorDecision) -> Option<&'static str> {
        if decision.is_denied {
            return self.kinds.denied.then_some("io.sluicegate.limit.denied");
        }
        let is_near = self.kinds.near_limit
            && decision.reason == Reason::WithinLimit
            && self.is_near_limit(&charge.strategy, decision);
        is_near.then_some("io.sluicegate.limit.near")
    }

    fn is_near_limit(&self, strategy: &Strategy, decision: &DescriptorDecision) -> bool {
        let limit = u64::from(strategy.max_at_once());
        let used = limit.saturating_sub(decision.headroom.remaining.0);
        let threshold = limit * u64::from(self.near_limit.millionths());
        limit != 0 && threshold <= used.saturating_mul(1_000_000)
    }

    #[cold]
    fn send_limit(
        &self,
        (event_type, index): (&'static str, usize),
        charge: &Charge,
        prepared: &PreparedCheck<'_, '_>,
        decision: &DescriptorDecision,
    ) {
        let limit = prepared.plan.with_descriptors(prepared.check).nth(index);
        let Some((limit, descriptor)) = limit else { return };
        let limit = ChargedLimit { limit, descriptor, charge, decision };
        let window = limit.window(prepared.now);
        let key = EventKey { event_type, key: charge.key.as_bytes(), window };
        self.queue.offer(key, prepared.now, || self.content(&limit, prepared.check.domain, window));
    }

    fn content(
        &self,
        limit: &ChargedLimit<'_, '_>,
        domain: &str,
        window: EventWindow,
    ) -> EventContent {
        let ChargedLimit { limit: plan, descriptor, charge, decision } = limit;
        let (applied, most) = (decision.limit.as_ref(), charge.strategy.max_at_once());
        let remaining = decision.is_counted().then_some(decision.headroom.remaining.0);
        let used = remaining.map(|remaining| used_share(most, remaining));
        let data = Map::from_iter([
            ("domain".to_owned(), json!(domain)),
            ("limit".to_owned(), json!(applied.and_then(|limit| limit.name.as_deref()))),
            ("descriptor".to_owned(), self.descriptor_json(descriptor)),
            ("requests".to_owned(), json!(applied.map(|limit| limit.requests))),
            ("period".to_owned(), json!(applied.map(|limit| limit.period.to_string()))),
            ("window_start".to_owned(), json!(format_time(window.start))),
            ("remaining".to_owned(), json!(remaining)),
            ("used".to_owned(), json!(used)),
            ("reason".to_owned(), json!(decision.reason.as_str())),
            ("shadow".to_owned(), json!(self.shadow_mode || decision.enforcement.shadow)),
            ("replica".to_owned(), json!(self.replica)),
        ]);
        let subject = plan.path().map_or_else(|| domain.to_owned(), Cow::into_owned);
        EventContent { subject, data }
    }
}

/// Returns the used part of a limit, from 0 to 1, rounded to a thousandth.
fn used_share(limit: u32, remaining: u64) -> f64 {
    let used = u64::from(limit).saturating_sub(remaining);
    let thousandths = used.saturating_mul(1_000).checked_div(limit.into()).unwrap_or(1_000);
    f64::from(u32::try_from(thousandths).unwrap_or(1_000)) / 1_000.0
}

impl ChargedLimit<'_, '_> {
    /// Returns the window of the event: that of a fixed window, otherwise the period that contains
    /// `now`.
    fn window(&self, now: Nanos) -> EventWindow {
        let period = self.decision.limit.as_ref().map_or(Nanos::SECOND, |limit| limit.period);
        match &self.charge.strategy {
            Strategy::FixedWindow(limit) => match limit.windows() {
                Windows::Every(length) => {
                    fixed_window(now, *length, self.decision.headroom.reset_after)
                }
                Windows::Calendar { starts: [_, start, end, _] } => {
                    EventWindow { start: *start, end: *end }
                }
            },
            Strategy::Gcra(_) | Strategy::SlidingWindow(_) | Strategy::SlidingLog(_) => {
                EventWindow::aligned(now, period)
            }
        }
    }
}

/// Returns the window that ends `reset_after` from `now`. Its end is rounded to the next multiple of
/// `length`, because the store's clock may differ from this replica's.
const fn fixed_window(now: Nanos, length: Nanos, reset_after: Nanos) -> EventWindow {
    if reset_after.0 == 0 || length.0 < reset_after.0 {
        return EventWindow::aligned(now, length);
    }
    let end = EventWindow::aligned(now.plus(reset_after).plus(Nanos(length.0 / 2)), length).start;
    EventWindow { start: end.since(length), end }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Nanos = Nanos::from_secs(60);

    #[test]
    fn the_window_follows_the_clock_of_the_store() {
        let second = Nanos::from_secs;
        // The store's clock is at 119 s, 120 s and 121 s, while this replica's is at 120 s.
        for (reset_after, start) in [(1, 60), (60, 120), (59, 120)] {
            let window = fixed_window(second(120), MINUTE, second(reset_after));
            let wanted = EventWindow { start: second(start), end: second(start + 60) };
            assert_eq!(window, wanted, "{reset_after}");
        }
        assert_eq!(fixed_window(second(130), MINUTE, Nanos(0)).start, second(120), "unknown");
    }

    #[test]
    fn the_used_share_is_from_0_to_1() {
        let shares = [(10, 10), (10, 2), (3, 2), (10, 0), (0, 0), (10, 11)];
        let shares = shares.map(|(limit, remaining)| used_share(limit, remaining).to_string());
        assert_eq!(shares, ["0", "0.8", "0.333", "1", "1", "0"]);
    }
}
