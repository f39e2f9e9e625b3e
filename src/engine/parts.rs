//! A replica's part of a limit that nobody shares for the moment.
//!
//! Guarantees: pure; parts are whole hits, and those of all replicas that see one fleet add up to the
//! limit, never to more; a part is none only where a limit has fewer hits than replicas. Of GCRA the
//! bursts are divided so, and the rate exactly among those that have any.
//! Leaves out: who the replicas are ([`super::membership`]) and what is counted ([`super::local`]).

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

/// How a limit is divided, as one replica has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Division {
    /// Into how many parts.
    pub replicas: NonZeroU32,
    /// Where this replica stands, from 0, among those that are given the hits which the division
    /// leaves over. Nothing where the replicas are not known: then nobody is given them.
    pub rank: Option<u32>,
}

/// One replica's part of a limit; none where it has no hit of it.
#[must_use]
pub fn part(whole: &Strategy, division: Division) -> Option<Strategy> {
    let replicas = division.replicas;
    if replicas == NonZeroU32::MIN {
        return Some(*whole);
    }
    let most = share(whole.most(), division);
    if most == 0 {
        return None;
    }
    match whole {
        Strategy::Gcra(gcra) => {
            let worth = gcra.worth();
            // Those that have no part of the burst have none of the rate.
            let earners = replicas.get().min(gcra.burst());
            let ticks = worth.ticks.get().checked_mul(u64::from(earners))?;
            Gcra::new(worth.hits, period(gcra.tick(), ticks)?, most).ok().map(Strategy::Gcra)
        }
        Strategy::FixedWindow(window) => {
            FixedWindow::new(most, *window.windows()).ok().map(Strategy::FixedWindow)
        }
        Strategy::SlidingWindow(window) => {
            let period = period(window.tick(), window.worth().ticks.get())?;
            SlidingWindow::new(most, period).ok().map(Strategy::SlidingWindow)
        }
        Strategy::SlidingLog(log) => {
            SlidingLog::new(most, log.period()).ok().map(Strategy::SlidingLog)
        }
    }
}

/// One replica's part of so many.
#[must_use]
pub fn share(whole: u32, Division { replicas, rank }: Division) -> u32 {
    let left_over = whole % replicas;
    whole / replicas + u32::from(rank.is_some_and(|rank| rank < left_over))
}

/// Where `me` stands among `members` for `key`: another order for each key, the same at every
/// replica. Cost: one hash of the key for each member.
///
/// Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.
pub fn rank<'m>(key: &CounterKey, me: &str, members: impl Iterator<Item = &'m str>) -> u32 {
    let mine = (weight(key, me), me);
    let above = members.filter(|other| mine < (weight(key, other), other)).count();
    u32::try_from(above).unwrap_or(u32::MAX)
}

fn weight(key: &CounterKey, member: &str) -> u64 {
    // The key of the hash is no secret: every replica must come to the same order. A name has no
    // zero byte, so that where it ends is clear.
    let mut bytes = Vec::with_capacity(member.len() + 1 + key.as_bytes().len());
    bytes.extend(member.as_bytes());
    bytes.push(0);
    bytes.extend(key.as_bytes());
    SipHasher24::new().hash(&bytes)
}

fn period(tick: Tick, ticks: u64) -> Option<Nanos> {
    ticks.checked_mul(tick.size().0).map(Nanos)
}
