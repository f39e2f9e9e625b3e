//! The messages of `sluicegate.v1.Leases`, and their conversion to the kernel's types.
//!
//! The messages are documented in `proto/sluicegate/v1/leases.proto`. Values that the protocol does
//! not define, for example of a newer version, convert to `None`.

use std::time::Duration;

use crate::kernel::lease::sizer::LeaseSizing;
use crate::kernel::lease::{BorrowReply, BorrowRequest, LeaseTerms, MessageNumber, Overshoot};
use crate::kernel::rate::fixed_window::{FixedWindow, Windows};
use crate::kernel::rate::gcra::Gcra;
use crate::kernel::rate::on_excess::OnExcess;
use crate::kernel::rate::sliding_log::SlidingLog;
use crate::kernel::rate::sliding_window::SlidingWindow;
use crate::kernel::rate::{CounterDecision, Headroom, Strategy};
use crate::kernel::units::{Hits, Nanos};

use api::counter_decision::Verdict;
use api::rate_strategy::Kind;

/// The generated messages and the client.
#[allow(
    clippy::all,
    clippy::pedantic,
    clippy::nursery,
    missing_docs,
    unreachable_pub,
    dead_code,
    unused_qualifications
)]
pub(crate) mod api {
    include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto/sluicegate/v1/leases.rs"));
}

/// The version of the protocol.
pub(crate) const PROTOCOL: u32 = 1;

pub(crate) const fn nanos(micros: u64) -> Nanos {
    Nanos(micros.saturating_mul(1_000))
}

pub(crate) const fn duration(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// Returns the strategy, or `None` if its numbers are invalid.
pub(crate) fn strategy(wire: &api::RateStrategy) -> Option<Strategy> {
    let (hits, period) = (wire.hits, Nanos(wire.period_ns));
    let on_excess = if wire.charges_excess { OnExcess::Charge } else { OnExcess::ByStrategy };
    let fixed = |windows| {
        let window = FixedWindow::new(hits, windows).ok()?;
        Some(Strategy::FixedWindow(window.with_on_excess(on_excess)))
    };
    match Kind::try_from(wire.kind).ok()? {
        Kind::Unspecified => None,
        Kind::Gcra => {
            Gcra::with_on_excess(hits, period, wire.burst, on_excess).ok().map(Strategy::Gcra)
        }
        Kind::FixedWindow => fixed(Windows::Every(period)),
        Kind::CalendarWindow => {
            let starts: [u64; 4] = wire.window_starts_us.as_slice().try_into().ok()?;
            fixed(Windows::Calendar { starts: starts.map(nanos) })
        }
        Kind::SlidingWindow => {
            let window = SlidingWindow::new(hits, period).ok()?;
            Some(Strategy::SlidingWindow(window.with_on_excess(on_excess)))
        }
        Kind::SlidingLog => {
            let log = SlidingLog::new(hits, period).ok()?;
            Some(Strategy::SlidingLog(log.with_on_excess(on_excess)))
        }
    }
}

/// Returns the message of a strategy, with which the counter's owner compares its own.
pub(crate) fn strategy_message(strategy: &Strategy) -> api::RateStrategy {
    let charges_excess = strategy.on_excess().is_charge();
    let message = |kind: Kind, hits, period: Nanos| api::RateStrategy {
        kind: kind.into(),
        hits,
        period_ns: period.0,
        charges_excess,
        ..api::RateStrategy::default()
    };
    match strategy {
        Strategy::Gcra(gcra) => {
            let rate = gcra.refill_rate();
            let period = Nanos(rate.ticks.get().saturating_mul(gcra.tick().size().0));
            let burst = gcra.burst();
            api::RateStrategy { burst, ..message(Kind::Gcra, rate.hits, period) }
        }
        Strategy::FixedWindow(window) => match window.windows() {
            Windows::Every(period) => message(Kind::FixedWindow, window.limit(), *period),
            Windows::Calendar { starts } => api::RateStrategy {
                window_starts_us: starts.map(|start| start.0 / 1_000).to_vec(),
                ..message(Kind::CalendarWindow, window.limit(), Nanos(0))
            },
        },
        Strategy::SlidingWindow(window) => {
            let period = window.refill_rate().ticks.get().saturating_mul(window.tick().size().0);
            message(Kind::SlidingWindow, window.limit(), Nanos(period))
        }
        Strategy::SlidingLog(log) => message(Kind::SlidingLog, log.limit(), log.period()),
    }
}

/// Returns the lease terms of a limit.
pub(crate) fn terms(limit: &api::LeasedLimit) -> Option<LeaseTerms> {
    let sizing = match limit.sizes.as_ref()?.sizes? {
        api::lease_sizes::Sizes::Fixed(hits) => LeaseSizing::Fixed(Hits(hits)),
        api::lease_sizes::Sizes::Recent(_) => LeaseSizing::Recent,
        api::lease_sizes::Sizes::Learned(_) => LeaseSizing::Learned,
    };
    let overshoot =
        limit.max_overshoot.map_or(Overshoot::InWindow, |most| Overshoot::AtMost(Hits(most)));
    Some(LeaseTerms { overshoot, duration: nanos(limit.duration_us), sizing })
}

/// Returns the result of a counter.
pub(crate) fn decision(wire: &api::CounterDecision) -> Option<CounterDecision> {
    let headroom =
        Headroom { remaining: Hits(wire.remaining), reset_after: nanos(wire.reset_after_us) };
    match Verdict::try_from(wire.verdict).ok()? {
        Verdict::Unspecified => None,
        Verdict::Allow => Some(CounterDecision::Allow(headroom)),
        Verdict::Deny => {
            Some(CounterDecision::Deny { retry_after: nanos(wire.retry_after_us), headroom })
        }
        Verdict::ExceedsLimit => Some(CounterDecision::ExceedsLimit(headroom)),
        Verdict::OutsideWindows => Some(CounterDecision::OutsideWindows),
    }
}

/// Returns the reply to the message `number`.
pub(crate) fn borrow_reply(wire: &api::BorrowReply, number: MessageNumber) -> Option<BorrowReply> {
    Some(BorrowReply {
        number,
        decision: decision(wire.decision.as_ref()?)?,
        granted: Hits(wire.granted),
        kept: Hits(wire.kept),
        outstanding_elsewhere: Hits(wire.outstanding_elsewhere),
        valid_for: nanos(wire.valid_for_us),
    })
}

pub(crate) fn borrow_message(
    counter: api::LeasedCounter,
    borrow: &BorrowRequest,
) -> api::BorrowMessage {
    api::BorrowMessage {
        counter: Some(counter),
        number: borrow.number.0,
        hits: borrow.hits.0,
        wanted: borrow.wanted.0,
        demand: borrow.demand.0,
        balance: borrow.balance.0,
        returned: borrow.returned.0,
        last_lease: borrow.last_lease.0,
    }
}

/// Returns descriptor entries as messages.
pub(crate) fn entries<'e>(
    entries: impl Iterator<Item = (&'e str, &'e str)>,
) -> Vec<api::LeaseEntry> {
    let entry =
        |(key, value): (&str, &str)| api::LeaseEntry { key: key.into(), value: value.into() };
    entries.map(entry).collect()
}

#[cfg(test)]
mod tests;
