//! The counters of one rule.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What one rule did.
#[derive(Debug)]
pub struct Rule {
    names: [Box<str>; SUFFIXES.len()],
    cells: [AtomicU64; SUFFIXES.len()],
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

/// What became of one charge.
#[derive(Clone, Copy, Debug)]
pub struct Verdict {
    /// Of the charge.
    pub hits: u64,
    /// What the counter holds with them.
    pub held: u64,
    /// What it may hold.
    pub limit: u64,
    /// From beyond how many on it is near its limit.
    pub near: u64,
    /// Nobody was asked: it was known to be over.
    pub is_remembered: bool,
    /// The rule is in shadow mode.
    pub shadow: bool,
}

impl Rule {
    pub(super) fn new(name: &str) -> Self {
        let names =
            SUFFIXES.map(|suffix| format!("ratelimit.service.rate_limit.{name}.{suffix}").into());
        Self { names, cells: Default::default() }
    }

    /// Counts hits that are about to be put to the counter.
    pub fn hits(&self, hits: u64) {
        self.add(TOTAL, hits);
    }

    /// Counts hits that are given back.
    pub fn refund(&self, hits: u64) {
        self.add(NEGATIVE, hits);
    }

    /// Counts what became of them. Source: `reference` §6.2.
    pub fn verdict(&self, verdict: Verdict) {
        let Verdict { hits, held, limit, near, is_remembered, shadow } = verdict;
        let before = held.saturating_sub(hits);
        if held <= limit && !is_remembered {
            self.add(WITHIN, hits);
            if near < held {
                self.add(NEAR, if near <= before { hits } else { held - near });
            }
            return;
        }
        let over = if is_remembered || limit <= before { hits } else { held - limit };
        self.add(OVER, over);
        if shadow {
            self.add(SHADOW, over);
        }
        if is_remembered {
            self.add(OVER_IN_CACHE, hits);
        } else if before < limit {
            self.add(NEAR, limit - near.max(before).min(limit));
        }
    }

    fn add(&self, cell: usize, count: u64) {
        self.cells[cell].fetch_add(count, Relaxed);
    }

    pub(super) fn each(&self, mut see: impl FnMut(&str, u64)) {
        for (name, cell) in self.names.iter().zip(&self.cells) {
            see(name, cell.load(Relaxed));
        }
    }
}
