//! Fixed windows under the keys of envoyproxy/ratelimit, so that both services count together.
//!
//! Guarantees:
//! - Keys, increments and expiries are byte for byte those of envoyproxy/ratelimit (`reference`
//!   §2.5, §2.6).
//! - A key contains the start of its window, by this replica's clock.
//! - `INCRBY` and `EXPIRE` are sent in one pipeline, or in one for each slot of a Cluster.
//! - Each pipeline has its own deadline and circuit breaker.
//! - The decision is computed in Rust (`crates/kernel`) from the returned count.
//! - On one node, checks with `all_or_nothing` or `stop_when_over` are atomic: one script call.
//!
//! Intended differences from envoyproxy/ratelimit:
//! - Hits that overflow a counter are denied; envoyproxy/ratelimit returns an error.
//! - A limit in shadow mode never causes other limits to be skipped.
//! - A quota group causes other limits to be skipped only if all its limits deny.

mod charge;
mod check;
mod deny_cache;
mod send;

use std::sync::OnceLock;

use fred::bytes::Bytes;
use parking_lot::Mutex;

use super::RedisStore;
use crate::kernel::decision::Cost;
use crate::kernel::rate::fixed_window::{FixedWindow, WindowCount, Windows};
use crate::kernel::rate::limit::EXACT_BOUND;
use crate::kernel::rate::{CounterDecision, Headroom, Strategy};
use crate::kernel::units::{Hits, Nanos};
use crate::stats::DenyCacheStats;
use crate::{Charge, ChargeOutcome, CounterHits};
use deny_cache::KeyDenyCache;

/// Options of the counters under envoyproxy/ratelimit's keys.
#[derive(Clone, Debug, Default)]
pub struct CompatOptions {
    /// The prefix of every key.
    pub prefix: String,
    /// The upper bound (exclusive) of the random number of seconds that is added to each expiry.
    pub jitter_secs: u32,
    /// The size of the deny cache in bytes; 0 for none.
    pub deny_cache_bytes: usize,
    /// True if a denied check charges only the limits that deny it.
    pub stop_when_over: bool,
    /// True if every limit is in the quota group.
    pub quota_for_all: bool,
    /// True if several limits may use the same key: a denial is then cached with its limit, because
    /// a larger limit may still allow the key.
    pub keys_have_several_limits: bool,
    /// The seed of the jitter, different in every process.
    pub seed: u64,
}

#[derive(Debug)]
pub(super) struct CompatCounters {
    options: CompatOptions,
    deny_cache: KeyDenyCache,
    random: Mutex<fastrand::Rng>,
    script_digest: OnceLock<String>,
}

/// One charge, as a key of envoyproxy/ratelimit and the hits to add.
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
        let deny_cache = KeyDenyCache::new(options.deny_cache_bytes);
        let random = Mutex::new(fastrand::Rng::with_seed(options.seed));
        Self { options, deny_cache, random, script_digest: OnceLock::new() }
    }

    pub(super) fn deny_cache_stats(&self) -> Option<DenyCacheStats> {
        (self.options.deny_cache_bytes != 0).then(|| self.deny_cache.stats())
    }

    /// Returns true if a denied check charges only the limits that deny it, in every charge mode.
    pub(super) const fn skips_after_denial(&self) -> bool {
        self.options.stop_when_over
    }

    pub(super) const fn quota_for_all(&self) -> bool {
        self.options.quota_for_all
    }

    /// Returns the limit to cache with a denial, or 0 if each key has only one limit. With 0, a
    /// cached denial outlasts a reload that raises the limit, as in envoyproxy/ratelimit.
    const fn cache_limit(&self, counter: &CompatCounter) -> u32 {
        if self.options.keys_have_several_limits { counter.window.limit() } else { 0 }
    }

    pub(super) fn slot(&self, redis: &RedisStore, charge: &Charge, now: Nanos) -> u16 {
        self.to_counter(charge, now).map_or(0, |counter| redis.route.slot_of(&counter.key))
    }

    fn to_counter(&self, charge: &Charge, now: Nanos) -> Option<CompatCounter> {
        let (window, length) = window_length(charge)?;
        let start = Nanos(now.0.saturating_sub(now.0.checked_rem(length.0)?));
        let key_text = charge.key.compatible_bytes()?;
        let start_secs = start.0 / Nanos::SECOND.0;
        let key =
            [self.options.prefix.as_bytes(), key_text, start_secs.to_string().as_bytes()].concat();
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
    fn random_jitter_secs(&self) -> u64 {
        match u64::from(self.options.jitter_secs) {
            0 => 0,
            bound => self.random.lock().u64(..bound),
        }
    }
}

impl CompatCounter {
    /// Returns the decision of this charge if the counter contains `hits_after` hits after it.
    fn decision_after(&self, hits_after: u64, now: Nanos) -> CounterDecision {
        self.preview_charge(hits_after.saturating_sub(self.hits.0), now, self.hits)
    }

    /// Returns the decision of a charge of `hits` if the counter contains `hits_before` hits before
    /// it.
    fn preview_charge(&self, hits_before: u64, now: Nanos, hits: Hits) -> CounterDecision {
        self.window.peek(
            &WindowCount { start: self.start, count: hits_before.min(EXACT_BOUND) },
            now,
            hits,
        )
    }

    fn cached_denial(&self, now: Nanos) -> ChargeOutcome {
        let hits = u64::from(self.window.limit()) + 1;
        ChargeOutcome::Counted(
            self.preview_charge(hits, now, self.hits),
            CounterHits { hits, is_cached_denial: true },
        )
    }

    fn headroom_at(&self, counted_hits: u64, now: Nanos) -> Headroom {
        match self.preview_charge(counted_hits, now, Hits(0)) {
            CounterDecision::Allow(room)
            | CounterDecision::ExceedsLimit(room)
            | CounterDecision::Deny { headroom: room, .. } => room,
            CounterDecision::OutsideWindows => Headroom::default(),
        }
    }

    /// Returns the operand of `INCRBY`, which has 63 bits: larger hits exceed every limit anyway.
    fn increment(&self) -> i64 {
        i64::try_from(self.hits.0).unwrap_or(i64::MAX)
    }
}

/// The store call that decides a check.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum DecidingStep {
    /// This call decides the check, by its charge mode.
    ThisCall,
    /// An earlier call decided the check, so this call makes all its charges.
    EarlierCall,
}
