//! Counts and lists the top keys of an engine.

use super::KeyHits;
use crate::Engine;
use crate::config::RuleNumber;
use crate::config::settings::DescriptorValues;
use crate::decide::path::PreparedCheck;
use crate::kernel::decision::{Cost, Descriptor, Verdict};
use crate::kernel::key::CounterKey;
use crate::kernel::units::Hits;
use crate::rule_counters::RuleCounters;
use crate::top_keys::list::TopKeyCollector;
use crate::top_keys::list::{TopKeysPage, TopKeysQuery};
use crate::{Decision, LimitStatus};

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
                keys.all.add_to(&mut all, rule.key(), query, now);
                keys.denied.add_to(&mut denied, rule.key(), query, now);
            }
        }
        TopKeysPage { all: all.sorted(), denied: denied.sorted() }
    }
}
