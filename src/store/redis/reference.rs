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
//! - Checks over several stores, key formats or slots (`store_group`, in two steps).
//!
//! Intended differences from envoyproxy/ratelimit:
//! - Hits beyond the range of a counter are denied; envoyproxy/ratelimit fails the call.
//! - A limit in shadow mode never stops other charges.
//! - The quota group stops other charges only as a whole.

mod check;
mod deny_cache;
mod send;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use fred::bytes::Bytes;
use smallvec::SmallVec;

use super::{RedisStore, StoreFailure};
use crate::kernel::decision::Cost;
use crate::kernel::rate::fixed_window::{FixedWindow, WindowCount, Windows};
use crate::kernel::rate::limit::EXACT_BOUND;
use crate::kernel::rate::{CounterDecision, Headroom, Strategy};
use crate::kernel::units::{Hits, Nanos};
use crate::store::stats::DenyCacheStats;
use crate::store::{Charge, ChargeOutcome, Charges, CounterHits, Outcomes};
use check::CompatCheck;
use deny_cache::KeyDenyCache;

/// Options of the counters under envoyproxy/ratelimit's keys.
#[derive(Clone, Debug, Default)]
pub struct CompatOptions {
    /// The prefix of every key.
    pub prefix: String,
    /// The upper bound of the random part of an expiry, in seconds, exclusive. Each
    /// hit draws a new number and adds it to the length of the window.
    pub jitter_secs: u32,
    /// The size of the deny cache in bytes; 0 for none.
    pub deny_cache_bytes: usize,
    /// A denied check charges only the limits that deny it.
    pub stop_when_over: bool,
    /// Every limit is in the quota group.
    pub quota_for_all: bool,
    /// A key may have several limits. A key over one of them may be within a larger one.
    pub keys_have_several_limits: bool,
    /// The start of the random sequence, different in every process.
    pub seed: u64,
}

#[derive(Debug)]
pub(super) struct CompatCounters {
    options: CompatOptions,
    deny_cache: KeyDenyCache,
    jitter_state: AtomicU64,
    script_digest: OnceLock<String>,
}

/// One charge as a Redis key and an increment.
struct CompatCounter {
    key: Bytes,
    window: FixedWindow,
    start: Nanos,
    end: Nanos,
    hits: Hits,
    is_refund: bool,
    expiry_secs: i64,
}

/// Returns true if `charge` has a fixed window and a key in envoyproxy/ratelimit's format.
pub(super) fn is_compat_charge(charge: &Charge) -> bool {
    charge.key.compatible_bytes().is_some() && window_length(charge).is_some()
}

fn window_length(charge: &Charge) -> Option<(FixedWindow, Nanos)> {
    let Strategy::FixedWindow(window) = charge.strategy else { return None };
    match *window.windows() {
        Windows::Every(length) if Nanos::SECOND <= length => Some((window, length)),
        Windows::Every(_) | Windows::Calendar { .. } => None,
    }
}

impl CompatCounters {
    pub(super) fn new(options: CompatOptions) -> Self {
        let denied = KeyDenyCache::new(options.deny_cache_bytes);
        let drawn = AtomicU64::new(options.seed);
        Self { options, deny_cache: denied, jitter_state: drawn, script_digest: OnceLock::new() }
    }

    pub(super) fn deny_cache_stats(&self) -> Option<DenyCacheStats> {
        (self.options.deny_cache_bytes != 0).then(|| self.deny_cache.stats())
    }

    /// Returns true if a denied check skips the limits
    /// that do not deny it, even in the mode `each`.
    pub(super) const fn skips_after_denial(&self) -> bool {
        self.options.stop_when_over
    }

    pub(super) const fn quota_for_all(&self) -> bool {
        self.options.quota_for_all
    }

    /// Charges `charges`, all under envoyproxy/ratelimit's
    /// keys. Each call waits for at most `call_timeout`.
    pub(super) async fn charge(
        &self,
        redis: &RedisStore,
        now: Nanos,
        charges: &Charges,
        decided: DecidingStep,
        call_timeout: Duration,
    ) -> Outcomes {
        let counters: SmallVec<[CompatCounter; 2]> =
            charges.list.iter().filter_map(|charge| self.to_counter(charge, now)).collect();
        if counters.len() != charges.list.len() {
            return super::all_failed(charges, StoreFailure::InvalidReply);
        }
        let counters = &counters[..];
        let question = CompatCheck {
            reference: self,
            redis,
            now,
            charges,
            counters,
            deciding_step: decided,
            call_timeout,
        };
        question.charge().await
    }

    /// Returns the limit of a deny cache entry, or 0 if each key has only one limit.
    ///
    /// With 0 an entry stays valid after its limit was raised, as in envoyproxy/ratelimit.
    const fn cache_limit(&self, counter: &CompatCounter) -> u32 {
        if self.options.keys_have_several_limits { counter.window.limit() } else { 0 }
    }

    pub(super) fn slot(&self, redis: &RedisStore, charge: &Charge, now: Nanos) -> u16 {
        self.to_counter(charge, now).map_or(0, |counter| redis.route.slot_of(&counter.key))
    }

    fn to_counter(&self, charge: &Charge, now: Nanos) -> Option<CompatCounter> {
        let (window, length) = window_length(charge)?;
        let start = Nanos(now.0.saturating_sub(now.0.checked_rem(length.0)?));
        let spelling = charge.key.compatible_bytes()?;
        let began = start.0 / Nanos::SECOND.0;
        let key = [self.options.prefix.as_bytes(), spelling, began.to_string().as_bytes()].concat();
        let (hits, is_refund) = match charge.cost {
            Cost::Charge(hits) => (hits, false),
            Cost::Refund(hits) => (hits, true),
        };
        let seconds = length.0 / Nanos::SECOND.0 + self.random_jitter_secs();
        Some(CompatCounter {
            key: key.into(),
            window,
            start,
            end: start.plus(length),
            hits,
            is_refund,
            expiry_secs: i64::try_from(seconds).unwrap_or(i64::MAX),
        })
    }

    /// Returns a random number of seconds below `jitter_secs`, or 0.
    ///
    /// Source: Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014.
    fn random_jitter_secs(&self) -> u64 {
        let below = u64::from(self.options.jitter_secs);
        if below == 0 {
            return 0;
        }
        let mut mixed = self.jitter_state.fetch_add(0x9e37_79b9_7f4a_7c15, Relaxed);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % below
    }
}

impl CompatCounter {
    /// Returns the kernel's result of this charge, for a counter that contains `held` afterwards.
    fn step_after_charge(&self, held: u64, now: Nanos) -> CounterDecision {
        self.preview_step(held.saturating_sub(self.hits.0), now, self.hits)
    }

    /// Returns the kernel's result of `hits`, for a counter that contains `held` before.
    fn preview_step(&self, held: u64, now: Nanos, hits: Hits) -> CounterDecision {
        self.window.peek(
            &WindowCount { start: self.start, count: held.min(EXACT_BOUND) },
            now,
            hits,
        )
    }

    fn cached_denial(&self, now: Nanos) -> ChargeOutcome {
        let held = u64::from(self.window.limit()) + 1;
        ChargeOutcome::Counted(
            self.preview_step(held, now, self.hits),
            CounterHits { hits: held, is_cached_denial: true },
        )
    }

    fn room_left(&self, held: u64, now: Nanos) -> Headroom {
        match self.preview_step(held, now, Hits(0)) {
            CounterDecision::Allow(room)
            | CounterDecision::ExceedsLimit(room)
            | CounterDecision::Deny { headroom: room, .. } => room,
            CounterDecision::OutsideWindows => Headroom::default(),
        }
    }

    /// Returns the operand of INCRBY, which has 63 bits.
    /// Any larger number exceeds every limit, too.
    fn increment(&self) -> i64 {
        i64::try_from(self.hits.0).unwrap_or(i64::MAX)
    }
}

/// The step that decides a check.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DecidingStep {
    /// This step, by the charge mode.
    ThisOne,
    /// An earlier step: this one makes every charge.
    AnEarlierOne,
}
