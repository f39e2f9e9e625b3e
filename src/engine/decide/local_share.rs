//! Computes a replica's local share of a limit for store outages, without I/O or state.
//!
//! Guarantees:
//! - Local shares are whole hits. They add up to the limit if all replicas see the same fleet.
//! - A local share is zero only if the limit has fewer hits than replicas.
//! - GCRA divides its burst among all replicas, and its rate among those with a part of the burst.
//!
//! Not covered:
//! - The list of replicas: see [`crate::engine::fleet::membership`].
//! - Counting: see [`crate::engine::decide::local_fallback`].

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

/// The division of a limit, as seen by one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetDivision {
    /// The number of live replicas, among which the limit is divided.
    pub replicas: NonZeroU32,
    /// This replica's rank, from 0. The limit may not divide evenly: a rank below the remainder
    /// gets one more hit. `None` if the list of replicas is unknown: then no replica gets it.
    pub rank: Option<u32>,
}

/// Returns one replica's local share of the limit `whole`. `None` if the share is zero hits.
#[must_use]
pub fn local_share(whole: &Strategy, division: FleetDivision) -> Option<Strategy> {
    let replicas = division.replicas;
    if replicas == NonZeroU32::MIN {
        return Some(*whole);
    }
    let most = divide(whole.max_at_once(), division);
    if most == 0 {
        return None;
    }
    match whole {
        Strategy::Gcra(gcra) => {
            let rate = gcra.refill_rate();
            // A replica without a part of the burst gets no part of the rate.
            let divisor = replicas.get().min(gcra.burst());
            let ticks = rate.ticks.get().checked_mul(u64::from(divisor))?;
            Gcra::new(rate.hits, period(gcra.tick(), ticks)?, most).ok().map(Strategy::Gcra)
        }
        Strategy::FixedWindow(window) => {
            FixedWindow::new(most, *window.windows()).ok().map(Strategy::FixedWindow)
        }
        Strategy::SlidingWindow(window) => {
            let period = period(window.tick(), window.refill_rate().ticks.get())?;
            SlidingWindow::new(most, period).ok().map(Strategy::SlidingWindow)
        }
        Strategy::SlidingLog(log) => {
            SlidingLog::new(most, log.period()).ok().map(Strategy::SlidingLog)
        }
    }
}

/// Returns one replica's part of `whole` hits.
#[must_use]
pub fn divide(whole: u32, FleetDivision { replicas, rank }: FleetDivision) -> u32 {
    let left_over = whole % replicas;
    whole / replicas + u32::from(rank.is_some_and(|rank| rank < left_over))
}

/// Returns the rank of this replica among `members` for `key`. The order of replicas differs
/// between keys and is the same at every replica. Cost: one hash of the key for each member.
/// member.
///
/// Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.
pub fn rank<'m>(key: &CounterKey, own_name: &str, members: impl Iterator<Item = &'m str>) -> u32 {
    let mine = (weight(key, own_name), own_name);
    let above = members.filter(|other| mine < (weight(key, other), other)).count();
    u32::try_from(above).unwrap_or(u32::MAX)
}

fn weight(key: &CounterKey, member: &str) -> u64 {
    // A fixed hash key, because every replica needs the same order. The zero byte separates the
    // replica's name, which contains none, from the counter key.
    let mut bytes = Vec::with_capacity(member.len() + 1 + key.as_bytes().len());
    bytes.extend(member.as_bytes());
    bytes.push(0);
    bytes.extend(key.as_bytes());
    SipHasher24::new().hash(&bytes)
}

fn period(tick: Tick, ticks: u64) -> Option<Nanos> {
    ticks.checked_mul(tick.size().0).map(Nanos)
}
