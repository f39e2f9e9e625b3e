//! Fixed windows under the keys of envoyproxy/ratelimit, so that both services count together.
//!
//! Guarantees:
//! - Keys, increments and expiries match byte for byte (`reference` §2.5 and §2.6).
//! - A key contains the start of its window, by this replica's clock.
//! - `INCRBY` and `EXPIRE` share a pipeline, one for each slot of a Cluster.
//! - Each pipeline has its own deadline and circuit breaker.
//! - The kernel decides from the returned count.
//! - On one node `all_or_nothing` and `stop_when_over` are atomic: one script.
//!
//! Not covered:
//! - Checks over several stores, key formats or slots (`stores`, in two steps).
//!
//! Intended differences from envoyproxy/ratelimit:
//! - Hits beyond the range of a counter are denied; envoyproxy/ratelimit fails the call.
//! - A limit in shadow mode never stops other charges.
//! - The quota group stops other charges only as a whole.

mod denied;
mod question;
mod send;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use fred::bytes::Bytes;
use smallvec::SmallVec;

use super::{Cause, Redis};
use crate::backend::inside::Remembered;
use crate::backend::{Charge, Charges, Held, Outcome, Outcomes};
use crate::kernel::decision::Cost;
use crate::kernel::rate::fixed_window::{Count, FixedWindow, Windows};
use crate::kernel::rate::limit::EXACT;
use crate::kernel::rate::{Room, Step, Strategy};
use crate::kernel::units::{Hits, Nanos};
use denied::Denied;
use question::Question;

/// Options of the counters under envoyproxy/ratelimit's keys.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The prefix of every key.
    pub prefix: String,
    /// The upper bound of the random part of an expiry, in seconds, exclusive. Each
    /// hit draws a new number and adds it to the length of the window.
    pub jitter_secs: u32,
    /// The size of the deny cache in bytes; 0 for none.
    pub denied_bytes: usize,
    /// A denied check charges only the limits that deny it.
    pub stop_when_over: bool,
    /// Every limit is in the quota group.
    pub quota_for_all: bool,
    /// A key may have several limits. A key over one of them may be within a larger one.
    pub several_limits: bool,
    /// The start of the random sequence, different in every process.
    pub seed: u64,
}

#[derive(Debug)]
pub(super) struct Reference {
    options: Options,
    denied: Denied,
    drawn: AtomicU64,
    digest: OnceLock<String>,
}

/// One charge as a Redis key and an increment.
struct Counter {
    key: Bytes,
    window: FixedWindow,
    start: Nanos,
    end: Nanos,
    hits: Hits,
    is_refund: bool,
    seconds: i64,
}

/// Returns true if `charge` has a fixed window and a key in envoyproxy/ratelimit's format.
pub(super) fn is_reference(charge: &Charge) -> bool {
    charge.key.spelling().is_some() && length(charge).is_some()
}

fn length(charge: &Charge) -> Option<(FixedWindow, Nanos)> {
    let Strategy::FixedWindow(window) = charge.strategy else { return None };
    match *window.windows() {
        Windows::Every(length) if Nanos::SECOND <= length => Some((window, length)),
        Windows::Every(_) | Windows::Calendar { .. } => None,
    }
}

impl Reference {
    pub(super) fn new(options: Options) -> Self {
        let denied = Denied::new(options.denied_bytes);
        let drawn = AtomicU64::new(options.seed);
        Self { options, denied, drawn, digest: OnceLock::new() }
    }

    pub(super) fn remembered(&self) -> Option<Remembered> {
        (self.options.denied_bytes != 0).then(|| self.denied.seen())
    }

    /// Returns true if a denied check skips the limits
    /// that do not deny it, even in the mode `each`.
    pub(super) const fn stops(&self) -> bool {
        self.options.stop_when_over
    }

    pub(super) const fn quota_for_all(&self) -> bool {
        self.options.quota_for_all
    }

    /// Charges `charges`, all under envoyproxy/ratelimit's
    /// keys. Each call waits for at most `patience`.
    pub(super) async fn charge(
        &self,
        redis: &Redis,
        now: Nanos,
        charges: &Charges,
        decided: Decided,
        patience: Duration,
    ) -> Outcomes {
        let counters: SmallVec<[Counter; 2]> =
            charges.list.iter().filter_map(|charge| self.counter(charge, now)).collect();
        if counters.len() != charges.list.len() {
            return super::failed(charges, Cause::NotUnderstood);
        }
        let counters = &counters[..];
        let question =
            Question { reference: self, redis, now, charges, counters, decided, patience };
        question.answer().await
    }

    /// Returns the limit of a deny cache entry, or 0 if each key has only one limit.
    ///
    /// With 0 an entry stays valid after its limit was raised, as in envoyproxy/ratelimit.
    const fn known_for(&self, counter: &Counter) -> u32 {
        if self.options.several_limits { counter.window.limit() } else { 0 }
    }

    pub(super) fn slot(&self, redis: &Redis, charge: &Charge, now: Nanos) -> u16 {
        self.counter(charge, now).map_or(0, |counter| redis.route.slot_of(&counter.key))
    }

    fn counter(&self, charge: &Charge, now: Nanos) -> Option<Counter> {
        let (window, length) = length(charge)?;
        let start = Nanos(now.0.saturating_sub(now.0.checked_rem(length.0)?));
        let spelling = charge.key.spelling()?;
        let began = start.0 / Nanos::SECOND.0;
        let key = [self.options.prefix.as_bytes(), spelling, began.to_string().as_bytes()].concat();
        let (hits, is_refund) = match charge.cost {
            Cost::Charge(hits) => (hits, false),
            Cost::Refund(hits) => (hits, true),
        };
        let seconds = length.0 / Nanos::SECOND.0 + self.draw();
        Some(Counter {
            key: key.into(),
            window,
            start,
            end: start.plus(length),
            hits,
            is_refund,
            seconds: i64::try_from(seconds).unwrap_or(i64::MAX),
        })
    }

    /// Returns a random number of seconds below `jitter_secs`, or 0.
    ///
    /// Source: Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014.
    fn draw(&self) -> u64 {
        let below = u64::from(self.options.jitter_secs);
        if below == 0 {
            return 0;
        }
        let mut mixed = self.drawn.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    }
}

impl Counter {
    /// Returns the kernel's result of this charge, for a counter that contains `held` afterwards.
    fn counted(&self, held: u64, now: Nanos) -> Step {
        self.step(held.saturating_sub(self.hits.0), now, self.hits)
    }

    /// Returns the kernel's result of `hits`, for a counter that contains `held` before.
    fn step(&self, held: u64, now: Nanos, hits: Hits) -> Step {
        self.window.ask(&Count { start: self.start, count: held.min(EXACT) }, now, hits)
    }

    fn over(&self, now: Nanos) -> Outcome {
        let held = u64::from(self.window.limit()) + 1;
        Outcome::Counted(self.step(held, now, self.hits), Held { held, is_remembered: true })
    }

    fn room(&self, held: u64, now: Nanos) -> Room {
        match self.step(held, now, Hits(0)) {
            Step::Admit(room) | Step::Never(room) | Step::Deny { room, .. } => room,
            Step::Stale => Room::default(),
        }
    }

    /// Returns the operand of INCRBY, which has 63 bits.
    /// Any larger number exceeds every limit, too.
    fn addend(&self) -> i64 {
        i64::try_from(self.hits.0).unwrap_or(i64::MAX)
    }
}

/// The step that decides a check.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Decided {
    /// This step, by the charge mode.
    Here,
    /// An earlier step: this one makes every charge.
    Before,
}
