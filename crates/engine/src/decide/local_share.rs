//! Computes a replica's local share of a limit for store outages, without I/O or state.
//!
//! Guarantees:
//! - Local shares are whole hits. They add up to the limit if all replicas see the same fleet.
//! - A local share is zero only if the limit has fewer hits than replicas.
//! - GCRA divides its burst among all replicas, and its rate among those with a part of the burst.

use std::num::NonZeroU32;

use siphasher::sip::SipHasher24;

use crate::kernel::key::CounterKey;
use crate::kernel::rate::Strategy;
use crate::kernel::rate::fixed_window::FixedWindow;
use crate::kernel::rate::gcra::Gcra;
use crate::kernel::rate::limit::Tick;
use crate::kernel::rate::sliding_log::SlidingLog;
use crate::kernel::rate::sliding_window::SlidingWindow;
use crate::kernel::units::Nanos;

/// The number of replicas that share a limit, and this replica's rank among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetDivision {
    /// The number of live replicas.
    pub replicas: NonZeroU32,
    /// This replica's rank, from 0. If the limit does not divide evenly, the lowest ranks get one
    /// more hit. `None` if the list of replicas is unknown: then no replica gets it.
    pub rank: Option<u32>,
}

/// Returns one replica's local share of the limit `whole`, or `None` if that is zero hits.
#[must_use]
pub fn local_share(limit: &Strategy, division: FleetDivision) -> Option<Strategy> {
    let replicas = division.replicas;
    if replicas == NonZeroU32::MIN {
        return Some(*limit);
    }
    let max_hits = divide(limit.max_at_once(), division);
    if max_hits == 0 {
        return None;
    }
    let on_excess = limit.on_excess();
    match limit {
        Strategy::Gcra(gcra) => {
            let rate = gcra.refill_rate();
            // A replica without a part of the burst gets no part of the rate.
            let divisor = replicas.get().min(gcra.burst());
            let ticks = rate.ticks.get().checked_mul(u64::from(divisor))?;
            let period = period(gcra.tick(), ticks)?;
            Gcra::with_on_excess(rate.hits, period, max_hits, on_excess).ok().map(Strategy::Gcra)
        }
        Strategy::FixedWindow(window) => {
            let window = FixedWindow::new(max_hits, *window.windows()).ok()?;
            Some(Strategy::FixedWindow(window.with_on_excess(on_excess)))
        }
        Strategy::SlidingWindow(window) => {
            let period = period(window.tick(), window.refill_rate().ticks.get())?;
            let window = SlidingWindow::new(max_hits, period).ok()?;
            Some(Strategy::SlidingWindow(window.with_on_excess(on_excess)))
        }
        Strategy::SlidingLog(log) => {
            let log = SlidingLog::new(max_hits, log.period()).ok()?;
            Some(Strategy::SlidingLog(log.with_on_excess(on_excess)))
        }
    }
}

/// Returns one replica's part of `limit` hits.
#[must_use]
pub fn divide(limit: u32, FleetDivision { replicas, rank }: FleetDivision) -> u32 {
    let left_over = limit % replicas;
    limit / replicas + u32::from(rank.is_some_and(|rank| rank < left_over))
}

/// Returns the rank of this replica among `replicas` for `key`, from 0. All replicas compute the
/// same order for a key. Cost: one hash for each replica.
///
/// Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.
pub fn rank<'m>(key: &CounterKey, own_name: &str, replicas: impl Iterator<Item = &'m str>) -> u32 {
    let own_weight = (weight(key, own_name), own_name);
    let above = replicas.filter(|replica| own_weight < (weight(key, replica), replica)).count();
    u32::try_from(above).unwrap_or(u32::MAX)
}

fn weight(key: &CounterKey, replica: &str) -> u64 {
    // The hash key is fixed, because every replica needs the same order. The zero byte separates
    // the replica's name, which contains none, from the counter key.
    let mut bytes = Vec::with_capacity(replica.len() + 1 + key.as_bytes().len());
    bytes.extend(replica.as_bytes());
    bytes.push(0);
    bytes.extend(key.as_bytes());
    SipHasher24::new().hash(&bytes)
}

fn period(tick: Tick, ticks: u64) -> Option<Nanos> {
    ticks.checked_mul(tick.size().0).map(Nanos)
}
