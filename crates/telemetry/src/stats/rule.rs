//! The counters of envoyproxy/ratelimit for one rule.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The statistics of envoyproxy/ratelimit for one rule.
#[derive(Debug)]
pub struct RuleStats {
    names: [Box<str>; SUFFIXES.len()],
    counters: [AtomicU64; SUFFIXES.len()],
}

const SUFFIXES: [&str; 7] = [
    "total_hits",
    "within_limit",
    "near_limit",
    "over_limit",
    "over_limit_with_local_cache",
    "shadow_mode",
    "total_negative_hits",
];

const TOTAL: usize = 0;
const WITHIN: usize = 1;
const NEAR: usize = 2;
const OVER: usize = 3;
const OVER_IN_CACHE: usize = 4;
const SHADOW: usize = 5;
const NEGATIVE: usize = 6;

/// The result of one charge of a rule's limit.
#[derive(Clone, Copy, Debug)]
pub struct RuleCharge {
    /// The hits of the charge.
    pub hits: u64,
    /// The value of the counter after the charge.
    pub counter: u64,
    /// The limit.
    pub limit: u64,
    /// Values of the counter above this one are near the limit.
    pub near_limit: u64,
    /// `true` if the deny cache denied the charge without a store call.
    pub is_cached_denial: bool,
    /// `true` if the rule is in shadow mode.
    pub is_shadow: bool,
}

impl RuleStats {
    pub(super) fn new(name: &str) -> Self {
        let names =
            SUFFIXES.map(|suffix| format!("ratelimit.service.rate_limit.{name}.{suffix}").into());
        Self { names, counters: Default::default() }
    }

    /// Counts hits in `total_hits`, before they are charged.
    pub fn hits(&self, hits: u64) {
        self.add(TOTAL, hits);
    }

    /// Counts refunded hits in `total_negative_hits`.
    pub fn refund(&self, hits: u64) {
        self.add(NEGATIVE, hits);
    }

    /// Counts the hits of a charge as within, near or over the limit, as envoyproxy/ratelimit does.
    pub fn count_result(&self, charge: RuleCharge) {
        let RuleCharge { hits, counter, limit, near_limit, is_cached_denial, is_shadow } = charge;
        let before = counter.saturating_sub(hits);
        if counter <= limit && !is_cached_denial {
            self.add(WITHIN, hits);
            if near_limit < counter {
                self.add(NEAR, if near_limit <= before { hits } else { counter - near_limit });
            }
            return;
        }
        let over = if is_cached_denial || limit <= before { hits } else { counter - limit };
        self.add(OVER, over);
        if is_shadow {
            self.add(SHADOW, over);
        }
        if is_cached_denial {
            self.add(OVER_IN_CACHE, hits);
        } else if before < limit {
            self.add(NEAR, limit - near_limit.max(before).min(limit));
        }
    }

    fn add(&self, index: usize, count: u64) {
        self.counters[index].fetch_add(count, Relaxed);
    }

    pub(super) fn for_each(&self, mut visit: impl FnMut(&str, u64)) {
        for (name, counter) in self.names.iter().zip(&self.counters) {
            visit(name, counter.load(Relaxed));
        }
    }
}
