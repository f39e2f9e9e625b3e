//! Counts the keys with the most hits, and with the most denied hits, of each rule.
//!
//! A key is the descriptor of a check. [`crate::kernel::top_keys`] counts the keys of one set of slots. Here each rule
//! gets two tables of [`rule_keys::SETS`] sets, with a lock for each set.
//!
//! Guarantees:
//! - Tables of at most [`MAX_RULES`] rules exist, with at most 1 MiB each.
//! - A text has at most [`MAX_TEXT_BYTES`] bytes.
//! - A check takes the lock of one set for each list, and never a lock of a whole rule.
//! - A rule without hits for an hour loses its tables if another rule needs them.
//!
//! Not covered:
//! - Refunds, checks of 0 hits and limit overrides.
//! - Requests that a concurrency limit allowed; its rejections are denied hits.
//! - Rules beyond the setting `telemetry.metrics.max_rules`.

mod calls;
pub(crate) mod list;
mod rule_keys;
pub(super) mod text;

use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::config::settings::DescriptorValues;
use crate::kernel::units::{Hits, Nanos};
use crate::rule_counters::RuleCounter;
pub use list::{TopKeyList, TopKeyRow, TopKeysPage, TopKeysQuery};
pub(crate) use rule_keys::RuleTopKeys;
pub use text::MAX_TEXT_BYTES;
use text::{Entries, key_text};

/// The largest number of rules with top keys: the first rules with hits.
pub const MAX_RULES: usize = 100;

/// After a search for an idle rule in vain, the next search is this much later.
const SEARCH_INTERVAL: Nanos = Nanos::from_secs(60);

/// Counts the top keys of all rules.
#[derive(Debug)]
pub(crate) struct TopKeys {
    values: DescriptorValues,
    hasher: RandomState,
    /// The rules that have tables.
    tracked: Mutex<Vec<Weak<RuleCounter>>>,
    /// Until this instant no rule gets tables, because [`MAX_RULES`] rules have some.
    full_until: AtomicU64,
}

/// Hits of one key of a rule.
#[derive(Clone, Copy)]
struct KeyHits<'e> {
    entries: Entries<'e>,
    hits: Hits,
    is_denied: bool,
    now: Nanos,
}

impl TopKeys {
    pub(crate) fn new(values: DescriptorValues) -> Self {
        Self {
            values,
            hasher: RandomState::default(),
            tracked: Mutex::default(),
            full_until: AtomicU64::new(0),
        }
    }

    fn is_off(&self) -> bool {
        self.values == DescriptorValues::Hidden
    }

    fn count(&self, rule: &Arc<RuleCounter>, key: KeyHits<'_>) {
        let keys = rule.top_keys.load();
        if let Some(keys) = &*keys {
            return self.count_in(keys, key);
        }
        if let Some(keys) = self.track(rule, key.now) {
            self.count_in(&keys, key);
        }
    }

    fn count_in(&self, keys: &RuleTopKeys, KeyHits { entries, hits, is_denied, now }: KeyHits<'_>) {
        let hash = self.hasher.hash_one(entries);
        let text = || key_text(entries, self.values);
        keys.all.count(hash, hits, now, text);
        if is_denied {
            keys.denied.count(hash, hits, now, text);
        }
    }

    /// Gives tables to the rule. Returns `None` if [`MAX_RULES`] other rules need theirs.
    #[cold]
    fn track(&self, rule: &Arc<RuleCounter>, now: Nanos) -> Option<Arc<RuleTopKeys>> {
        if now.0 < self.full_until.load(Relaxed) {
            return None;
        }
        let mut tracked = self.tracked.lock();
        if let Some(keys) = rule.top_keys.load_full() {
            return Some(keys);
        }
        if MAX_RULES <= tracked.len() {
            tracked.retain(|rule| is_in_use(rule, now));
        }
        if MAX_RULES <= tracked.len() {
            self.full_until.store(now.plus(SEARCH_INTERVAL).0, Relaxed);
            return None;
        }
        let keys = Arc::new(RuleTopKeys::new());
        rule.top_keys.store(Some(Arc::clone(&keys)));
        tracked.push(Arc::downgrade(rule));
        Some(keys)
    }

    /// Returns the rules that have tables.
    fn tracked(&self) -> Vec<Arc<RuleCounter>> {
        self.tracked.lock().iter().filter_map(Weak::upgrade).collect()
    }
}

/// Returns `true` if the rule exists and had hits in the last hour. Otherwise takes its tables.
fn is_in_use(rule: &Weak<RuleCounter>, now: Nanos) -> bool {
    let Some(rule) = rule.upgrade() else { return false };
    let is_idle = rule.top_keys.load().as_ref().is_none_or(|keys| keys.is_idle(now));
    if is_idle {
        rule.top_keys.store(None);
    }
    !is_idle
}

#[cfg(test)]
mod tests;
