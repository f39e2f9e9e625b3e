//! Fixed windows under the reference's keys, so that its replicas and ours count together.
//!
//! Guarantees: keys, increments and expiries are the reference's byte for byte (`reference` §2.5 and
//! §2.6): the window's start stands in the key, by this replica's clock, and `INCRBY` and `EXPIRE`
//! go out in one pipeline, or one per slot of a Cluster, each with the deadline and breaker of its
//! own; the answer is the kernel's for the count that came back. On one node `all_or_nothing` and
//! `stop_when_over` are one script and atomic.
//! Leaves out: dividing a question among stores and between these keys and ours, and deciding for
//! several slots at once (`stores`, in two steps).
//!
//! Three things differ on purpose. Hits beyond what a counter can hold are denied, where the
//! reference fails the call. A limit in shadow mode stops no charge of others. The quota group
//! does so only as a whole.

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

/// How the reference's keys are kept.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What each begins with.
    pub prefix: String,
    /// An expiry is drawn anew at each hit from the window's length and up to so many seconds
    /// more, this number itself not among them.
    pub jitter_secs: u32,
    /// Bytes for keys that are known to be over; 0 for none.
    pub denied_bytes: usize,
    /// A question that is denied charges only the limits that deny it.
    pub stop_when_over: bool,
    /// Every limit is in the quota group.
    pub quota_for_all: bool,
    /// A key may be asked for under several limits, and what is over one of them need not be over a larger one.
    pub several_limits: bool,
    /// Any number, another one in every process: where the drawing begins.
    pub seed: u64,
}

/// Counters under the reference's keys.
#[derive(Debug)]
pub(super) struct Reference {
    options: Options,
    denied: Denied,
    drawn: AtomicU64,
    /// What Redis calls the script.
    digest: OnceLock<String>,
}

/// One charge as the store sees it.
struct Counter {
    key: Bytes,
    window: FixedWindow,
    start: Nanos,
    end: Nanos,
    hits: Hits,
    is_refund: bool,
    seconds: i64,
}

/// A window's counter by the reference's key, if `charge` is one.
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

    /// What the denials that are remembered came to, where any may be.
    pub(super) fn remembered(&self) -> Option<Remembered> {
        (self.options.denied_bytes != 0).then(|| self.denied.seen())
    }

    /// Whether a denied question spares the limits that do not deny it, though its rule is `each`.
    pub(super) const fn stops(&self) -> bool {
        self.options.stop_when_over
    }

    /// Whether every limit is in the quota group.
    pub(super) const fn quota_for_all(&self) -> bool {
        self.options.quota_for_all
    }

    /// Puts `charges`, all of them the reference's, to `redis` at `now`; each call waits for `patience`.
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

    /// The limit that what is known of `counter` is for. Where each key has one limit it is the same for all, also for one that
    /// was raised since, as in the reference.
    const fn known_for(&self, counter: &Counter) -> u32 {
        if self.options.several_limits { counter.window.limit() } else { 0 }
    }

    /// The slot of the key that `charge` has at `now`.
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

    /// A number of seconds below `jitter_secs`, or 0.
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
    /// What the kernel says of a counter that holds `held` after these hits.
    fn counted(&self, held: u64, now: Nanos) -> Step {
        self.step(held.saturating_sub(self.hits.0), now, self.hits)
    }

    /// What the kernel says of `hits` to a counter that holds `held`.
    fn step(&self, held: u64, now: Nanos, hits: Hits) -> Step {
        self.window.ask(&Count { start: self.start, count: held.min(EXACT) }, now, hits)
    }

    /// What is known to be over, without being asked.
    fn over(&self, now: Nanos) -> Outcome {
        let held = u64::from(self.window.limit()) + 1;
        Outcome::Counted(self.step(held, now, self.hits), Held { held, is_remembered: true })
    }

    /// What is left of a counter that holds `held`.
    fn room(&self, held: u64, now: Nanos) -> Room {
        match self.step(held, now, Hits(0)) {
            Step::Admit(room) | Step::Never(room) | Step::Deny { room, .. } => room,
            Step::Stale => Room::default(),
        }
    }

    /// INCRBY takes 63 bits; what is more is more than any limit, too.
    fn addend(&self) -> i64 {
        i64::try_from(self.hits.0).unwrap_or(i64::MAX)
    }
}

/// Where it is decided what of a question is charged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Decided {
    /// Here, by the rule.
    Here,
    /// In an earlier step: everything is to be charged.
    Before,
}
