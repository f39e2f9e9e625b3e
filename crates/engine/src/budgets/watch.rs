//! Finds budgets that proxies reserve and never settle, or settle under another key.
//!
//! | after 100 requests of a rule | finding |
//! |---|---|
//! | no settle, and the first hold has expired | never settled |
//! | 100 settles without a hold, none with one | settled under another key |
//!
//! Guarantees:
//! - Each finding is logged once for each rule.
//!
//! Not covered:
//! - Other replicas: each process counts the calls that it gets.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::kernel::budget::Ended;
use crate::kernel::units::Nanos;

/// The number of requests after which a rule is judged.
const SAMPLES: u64 = 100;

/// The most rules that are watched.
const MAX_RULES: usize = 1_000;

/// What happened to the budgets of each rule, by path.
#[derive(Debug, Default)]
pub(crate) struct SettleWatch(Mutex<BTreeMap<Arc<str>, RuleWatch>>);

#[derive(Debug, Default)]
struct RuleWatch {
    reserved: u64,
    first_reserve: Option<Nanos>,
    /// Settles that ended a hold.
    settled: u64,
    /// Settles without a hold.
    unreserved: u64,
    finding: Option<SettleFinding>,
}

/// A likely mistake in a proxy's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleFinding {
    /// Requests reserve, and none settles.
    NeverSettled,
    /// Requests settle, and none of them has a hold.
    OtherKey,
}

impl SettleFinding {
    /// Returns the finding as a clause, with the fix.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::NeverSettled => {
                "requests reserve and none settles, so every estimate is charged when it expires; \
                 add a filter that sends sluicegate.settle at the end of a request"
            }
            Self::OtherKey => {
                "requests settle and none of them has a hold; the settle must have the same domain, \
                 entries and id as the reserve"
            }
        }
    }
}

impl SettleWatch {
    pub(super) fn reserved(&self, path: &Arc<str>, now: Nanos, time_limit: Nanos) {
        self.update(path, |watch| {
            watch.reserved = watch.reserved.saturating_add(1);
            let first = *watch.first_reserve.get_or_insert(now);
            let has_expired = time_limit < now.since(first);
            let is_silent = watch.settled == 0 && watch.unreserved == 0;
            (SAMPLES <= watch.reserved && has_expired && is_silent)
                .then_some(SettleFinding::NeverSettled)
        });
    }

    pub(super) fn ended(&self, path: &Arc<str>, ended: Ended) {
        self.update(path, |watch| {
            match ended {
                Ended::Now | Ended::Corrected => {
                    watch.settled = watch.settled.saturating_add(1);
                    watch.finding = None;
                }
                Ended::Unknown => watch.unreserved = watch.unreserved.saturating_add(1),
                Ended::Before => {}
            }
            (SAMPLES <= watch.unreserved && watch.settled == 0).then_some(SettleFinding::OtherKey)
        });
    }

    fn update(
        &self,
        path: &Arc<str>,
        change: impl FnOnce(&mut RuleWatch) -> Option<SettleFinding>,
    ) {
        let mut rules = self.0.lock();
        if MAX_RULES <= rules.len() && !rules.contains_key(path) {
            return;
        }
        let watch = rules.entry(Arc::clone(path)).or_default();
        let found = change(watch).filter(|found| watch.finding != Some(*found));
        if let Some(found) = found {
            watch.finding = Some(found);
            tracing::warn!(budget = &**path, "{}", found.text());
        }
    }

    /// Returns the rules with a finding.
    pub(super) fn findings(&self) -> Vec<(Arc<str>, SettleFinding)> {
        let rules = self.0.lock();
        let found =
            rules.iter().filter_map(|(path, watch)| Some((Arc::clone(path), watch.finding?)));
        found.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Nanos = Nanos::from_secs(600);

    #[test]
    fn budgets_without_a_settle_are_found_after_the_first_expiry() {
        let (watch, path) = (SettleWatch::default(), Arc::from("llm.org"));
        for number in 0..200 {
            watch.reserved(&path, Nanos::from_secs(number), LIMIT);
        }
        assert_eq!(watch.findings(), [], "the first request may still run");
        watch.reserved(&path, LIMIT.plus(Nanos(1)), LIMIT);
        assert_eq!(watch.findings(), [(Arc::clone(&path), SettleFinding::NeverSettled)]);
        watch.ended(&path, Ended::Now);
        assert_eq!(watch.findings(), [], "the first settle ends the finding");
    }

    #[test]
    fn settles_of_another_key_are_found() {
        let (watch, path) = (SettleWatch::default(), Arc::from("llm.org"));
        (0..99).for_each(|_| watch.ended(&path, Ended::Unknown));
        assert_eq!(watch.findings(), []);
        watch.ended(&path, Ended::Unknown);
        assert_eq!(watch.findings(), [(path, SettleFinding::OtherKey)]);
    }
}
