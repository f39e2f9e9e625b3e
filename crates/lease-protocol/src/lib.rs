//! The messages of `sluicegate.v1.Leases`, and their conversion to and from the types of the kernel
//! and of stores.
//!
//! Guarantees:
//! - No time of validity grows by a conversion, and no wait shrinks.
//!
//! The messages are documented in `proto/sluicegate/v1/leases.proto`. Values that the protocol does
//! not define, for example of a newer version, convert to `None`.

use std::time::Duration;

use sluicegate_kernel::lease::{BorrowReply, BorrowRequest, MessageNumber};
use sluicegate_kernel::rate::fixed_window::{FixedWindow, Windows};
use sluicegate_kernel::rate::gcra::Gcra;
use sluicegate_kernel::rate::on_excess::OnExcess;
use sluicegate_kernel::rate::sliding_log::SlidingLog;
use sluicegate_kernel::rate::sliding_window::SlidingWindow;
use sluicegate_kernel::rate::{CounterDecision, Headroom, Strategy};
use sluicegate_kernel::units::{Hits, Nanos};

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
pub mod api {
    include!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto/sluicegate/v1/leases.rs"));
}

pub mod concurrency;
mod failure;
pub mod permits;
pub mod proxy_rule;
pub mod shares;

pub use failure::{failure, failure_message};

/// The version of the protocol.
pub const PROTOCOL: u32 = 1;

/// Converts from microseconds; saturates.
#[must_use]
pub const fn nanos(micros: u64) -> Nanos {
    Nanos(micros.saturating_mul(1_000))
}

/// Converts from microseconds.
#[must_use]
pub const fn duration(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// Returns the strategy, or `None` if its numbers are invalid.
#[must_use]
pub fn strategy(wire: &api::RateStrategy) -> Option<Strategy> {
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
#[must_use]
pub fn strategy_message(strategy: &Strategy) -> api::RateStrategy {
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
                window_starts_us: starts.map(micros).to_vec(),
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

/// Returns the result of a counter.
#[must_use]
pub fn decision(wire: &api::CounterDecision) -> Option<CounterDecision> {
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
#[must_use]
pub fn borrow_reply(wire: &api::BorrowReply, number: MessageNumber) -> Option<BorrowReply> {
    Some(BorrowReply {
        number,
        decision: decision(wire.decision.as_ref()?)?,
        granted: Hits(wire.granted),
        kept: Hits(wire.kept),
        outstanding_elsewhere: Hits(wire.outstanding_elsewhere),
        valid_for: nanos(wire.valid_for_us),
    })
}

/// Returns the message of a borrow request.
#[must_use]
pub fn borrow_message(counter: api::LeasedCounter, borrow: &BorrowRequest) -> api::BorrowMessage {
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

/// Converts to microseconds, rounded up.
#[must_use]
pub const fn micros(time: Nanos) -> u64 {
    time.0.div_ceil(1_000)
}

/// Returns the borrow request of a message.
#[must_use]
pub const fn borrow_request(message: &api::BorrowMessage) -> BorrowRequest {
    BorrowRequest {
        number: MessageNumber(message.number),
        hits: Hits(message.hits),
        wanted: Hits(message.wanted),
        demand: Hits(message.demand),
        balance: Hits(message.balance),
        returned: Hits(message.returned),
        last_lease: MessageNumber(message.last_lease),
    }
}

/// Returns the message of an applied borrow. The validity is rounded down, other times are rounded
/// up.
#[must_use]
pub fn borrow_reply_message(reply: &BorrowReply) -> api::BorrowReply {
    api::BorrowReply {
        decision: Some(decision_message(reply.decision)),
        granted: reply.granted.0,
        kept: reply.kept.0,
        outstanding_elsewhere: reply.outstanding_elsewhere.0,
        valid_for_us: reply.valid_for.0 / 1_000,
    }
}

/// Returns the message of the result of a counter.
#[must_use]
pub fn decision_message(decision: CounterDecision) -> api::CounterDecision {
    let (verdict, headroom, retry_after) = match decision {
        CounterDecision::Allow(room) => (Verdict::Allow, room, Nanos(0)),
        CounterDecision::Deny { retry_after, headroom } => (Verdict::Deny, headroom, retry_after),
        CounterDecision::ExceedsLimit(room) => (Verdict::ExceedsLimit, room, Nanos(0)),
        CounterDecision::OutsideWindows => (Verdict::OutsideWindows, Headroom::default(), Nanos(0)),
    };
    api::CounterDecision {
        verdict: verdict.into(),
        remaining: headroom.remaining.0,
        reset_after_us: micros(headroom.reset_after),
        retry_after_us: micros(retry_after),
    }
}

/// Returns descriptor entries as messages.
#[must_use]
pub fn entries<'e>(entries: impl Iterator<Item = (&'e str, &'e str)>) -> Vec<api::LeaseEntry> {
    let entry =
        |(key, value): (&str, &str)| api::LeaseEntry { key: key.into(), value: value.into() };
    entries.map(entry).collect()
}

#[cfg(test)]
mod tests;
