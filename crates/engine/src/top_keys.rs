//! Counts the keys with the most hits, and with the most denied hits, of each rule.
//!
//! A key is the descriptor of a check. [`KeySet`] counts the keys of one set of slots; here each
//! rule gets two tables of [`SETS`] sets with a lock each.
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

pub(crate) mod list;
pub(super) mod text;

use std::hash::BuildHasher as _;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::Engine;
use crate::config::RuleNumber;
use crate::config::settings::DescriptorValues;
use crate::decide::path::PreparedCheck;
use crate::kernel::decision::{Cost, Descriptor, Verdict};
use crate::kernel::key::CounterKey;
use crate::kernel::top_keys::KeySet;
use crate::kernel::units::{Hits, Nanos};
use crate::rule_counters::{RuleCounter, RuleCounters};
use crate::{Decision, LimitStatus};
use list::TopKeyCollector;
pub use list::{TopKeyList, TopKeyRow, TopKeysPage, TopKeysQuery};
use text::key_text;

/// The largest number of rules with top keys: the first rules with hits.
pub const MAX_RULES: usize = 100;

/// The largest size of a key's text in bytes. In a longer text, all values are hashed.
pub const MAX_TEXT_BYTES: usize = 256;

/// The sets of a table, by the first bits of a key's hash.
const SETS: usize = 1 << SET_BITS;
const SET_BITS: u32 = 5;

/// After a search for an idle rule in vain, the next search is this much later.
const SEARCH_INTERVAL: Nanos = Nanos::from_secs(60);

/// The keys of one descriptor list, as pairs.
type Entries<'e> = &'e [(&'e str, &'e str)];

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

/// The top keys of one rule.
#[derive(Debug)]
pub(crate) struct RuleTopKeys {
    all: KeyTable,
    denied: KeyTable,
}

#[derive(Debug)]
struct KeyTable {
    sets: Box<[Mutex<KeySet>]>,
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

impl RuleTopKeys {
    fn new() -> Self {
        Self { all: KeyTable::new(), denied: KeyTable::new() }
    }

    fn is_idle(&self, now: Nanos) -> bool {
        // Every denied hit is also in the list of all hits, except those of concurrency limits.
        [&self.all, &self.denied].iter().all(|table| table.is_idle(now))
    }
}

impl KeyTable {
    fn new() -> Self {
        Self { sets: (0..SETS).map(|_| Mutex::default()).collect() }
    }

    fn count(&self, hash: u64, hits: Hits, now: Nanos, text: impl FnOnce() -> Box<str>) {
        let index = usize::try_from(hash >> (u64::BITS - SET_BITS)).unwrap_or(0);
        if let Some(set) = self.sets.get(index) {
            set.lock().count(hash, hits, now, text);
        }
    }

    fn is_idle(&self, now: Nanos) -> bool {
        self.sets.iter().all(|set| set.lock().is_idle(now))
    }

    fn add_to(
        &self,
        list: &mut TopKeyCollector,
        rule: &RuleCounter,
        query: &TopKeysQuery<'_>,
        now: Nanos,
    ) {
        for set in &self.sets {
            for row in set.lock().rows(query.window, now) {
                list.add(rule.key(), row);
            }
        }
    }
}

impl Engine {
    /// Counts the keys of a decided check.
    pub(crate) fn count_top_keys(&self, prepared: &PreparedCheck<'_, '_>, decision: &Decision) {
        if self.top_keys.is_off() {
            return;
        }
        let PreparedCheck { config, check, now, plan, .. } = prepared;
        let decided = check.descriptors.iter().zip(plan.rules()).zip(&decision.statuses);
        for ((descriptor, rule), LimitStatus { decision, .. }) in decided {
            let Descriptor { entries, cost: Cost::Charge(hits), .. } = descriptor else { continue };
            let counter = rule.and_then(|rule| config.counters.counter(rule.number));
            if let (Some(counter), 1..) = (counter, hits.0) {
                let (hits, is_denied) = (*hits, decision.is_denied);
                self.top_keys.count(counter, KeyHits { entries, hits, is_denied, now: *now });
            }
        }
    }

    /// Counts hits of one descriptor of the rule `number`, which a proxy decided.
    pub(crate) fn count_proxy_hits(
        &self,
        counters: &RuleCounters,
        number: RuleNumber,
        entries: &[(&str, &str)],
        (hits, verdict): (Hits, Verdict),
    ) {
        let counter = counters.counter(number).filter(|_| !self.top_keys.is_off());
        if let (Some(counter), 1..) = (counter, hits.0) {
            let (is_denied, now) = (verdict == Verdict::Deny, self.clock.now());
            self.top_keys.count(counter, KeyHits { entries, hits, is_denied, now });
        }
    }

    /// Counts a rejection by a concurrency limit as a denied hit of its bucket.
    pub(crate) fn count_rejected_key(
        &self,
        counters: &RuleCounters,
        rule: RuleNumber,
        bucket: &[u8],
    ) {
        let counter = counters.counter(rule).filter(|_| !self.top_keys.is_off());
        let parsed = counter.zip(CounterKey::parse_concurrency_bucket(bucket));
        if let Some((counter, (_, entries))) = parsed {
            let (hits, now) = (Hits(1), self.clock.now());
            let key = KeyHits { entries: &entries, hits, is_denied: true, now };
            self.top_keys.count(counter, key);
        }
    }

    /// Returns the form of descriptor values in the lists of top keys.
    #[must_use]
    pub const fn top_key_values(&self) -> DescriptorValues {
        self.top_keys.values
    }

    /// Returns the keys with the most hits at this replica. Cost: up to a millisecond.
    #[must_use]
    pub fn top_keys(&self, query: &TopKeysQuery<'_>) -> TopKeysPage {
        let now = self.clock.now();
        let (mut all, mut denied) =
            (TopKeyCollector::new(query.max), TopKeyCollector::new(query.max));
        for rule in self.top_keys.tracked().iter().filter(|rule| query.selects(rule.key())) {
            if let Some(keys) = &*rule.top_keys.load() {
                keys.all.add_to(&mut all, rule, query, now);
                keys.denied.add_to(&mut denied, rule, query, now);
            }
        }
        TopKeysPage { all: all.sorted(), denied: denied.sorted() }
    }
}

#[cfg(test)]
mod tests;
