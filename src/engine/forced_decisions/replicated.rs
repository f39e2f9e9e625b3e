//! The changes to forced decisions that replicas exchange, as pure functions.
//!
//! Guarantees:
//! - Replicas that exchange changes reach the same state, whatever the order of messages.
//! - Of two changes to a rule the larger number wins; if equal, the larger replica name.
//! - A new change has a larger number than every change that its replica knows.
//! - A change is remembered longer than all changes that it replaced, so they cannot return.
//! - Messages contain remaining durations, not instants, so clocks may differ.
//! - The number and the size of remembered changes are bounded.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::config::forced_decision::{ForcedDecision, ForcedRule};
use crate::kernel::decision::Verdict;
use crate::kernel::units::Nanos;

/// The largest number of rules with a forced decision.
pub const MOST: usize = 100;

/// The longest duration of a forced decision.
pub const MAX_FORCED_DURATION: Nanos = Nanos::from_secs(24 * 60 * 60);

/// A change is remembered for this time after its forced decision expired: until then, other
/// replicas may still send a change that it replaced.
pub(super) const REMEMBER_MARGIN: Nanos = Nanos::from_secs(60);

/// The largest number of remembered changes, including those of expired forced decisions.
const MAX_CHANGES: usize = 2 * MOST;

/// The largest total size of the names in remembered changes, in bytes. Each replica sends them
/// once a second.
const MAX_NAME_BYTES: usize = 16 * 1024;

/// The largest number of a change. JSON numbers are doubles, which are exact up to 2^53.
const MAX_NUMBER: u64 = 1 << 53;

/// The domain and path of a rule.
type RulePath = (Box<str>, Box<str>);

/// The last change to the forced decision of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RuleChange {
    number: u64,
    by: Box<str>,
    /// `None` if an operator ended the forced decision.
    forced: Option<ForcedDecision>,
    remembered_until: Nanos,
}

impl RuleChange {
    fn is_forced(&self, now: Nanos) -> bool {
        self.forced.is_some_and(|forced| now < forced.until)
    }
}

/// A change to a forced decision, as replicas send it to each other.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForcedChange {
    /// The domain of the rule.
    pub domain: Box<str>,
    /// The path of the rule.
    pub limit: Box<str>,
    /// `deny` or `allow`. `None` if the forced decision was ended.
    #[serde(rename = "as", default)]
    pub verdict: Option<Box<str>>,
    /// The time until the forced decision expires, in milliseconds.
    pub left_ms: u64,
    /// The time for which the change is still sent, in milliseconds.
    pub known_ms: u64,
    /// The number of the change. Of two changes to a rule, the larger number wins.
    pub number: u64,
    /// The replica that received the operator's call.
    pub by: Box<str>,
}

/// The last change to each rule.
#[derive(Clone, Debug, Default)]
pub(super) struct ForcedRules(BTreeMap<RulePath, RuleChange>);

impl ForcedRules {
    /// Records that an operator starts (`Some`) or ends (`None`) a forced decision through the
    /// replica `by`. Returns `false` if there is no room for the change.
    pub(super) fn record(
        &mut self,
        rule: (&str, &str),
        (forced, by): (Option<ForcedDecision>, &str),
        now: Nanos,
    ) -> bool {
        self.forget_expired(now);
        let rule: RulePath = (rule.0.into(), rule.1.into());
        let largest_number = self.0.values().map(|change| change.number).max().unwrap_or(0);
        let replaced_until = self.0.get(&rule).map_or(Nanos(0), |change| change.remembered_until);
        let ends_at = forced.map_or(now, |forced| forced.until).plus(REMEMBER_MARGIN);
        let number = largest_number.saturating_add(1).min(MAX_NUMBER);
        let change = RuleChange {
            number,
            by: by.into(),
            forced,
            remembered_until: ends_at.max(replaced_until),
        };
        self.insert_bounded(rule, change)
    }

    /// Applies a change from another replica. Returns `true` if it starts, replaces or ends a
    /// forced decision that has not expired.
    pub(super) fn apply_change(&mut self, received: &ForcedChange, now: Nanos) -> bool {
        self.forget_expired(now);
        let millis = |ms: u64, max: Nanos| now.plus(Nanos(ms.saturating_mul(1_000_000)).min(max));
        let until = millis(received.left_ms, MAX_FORCED_DURATION);
        let verdict = match received.verdict.as_deref() {
            None => None,
            Some("deny") => Some(Verdict::Deny),
            Some("allow") => Some(Verdict::Allow),
            // An unknown verdict comes from a later version of Sluicegate.
            Some(_) => return false,
        };
        let forced = verdict.map(|verdict| ForcedDecision { verdict, until });
        let (rule, by) = ((received.domain.clone(), received.limit.clone()), received.by.clone());
        let known_until = millis(received.known_ms, MAX_FORCED_DURATION.plus(REMEMBER_MARGIN));
        let own = self.0.get(&rule);
        let is_newer = own.is_none_or(|own| (own.number, &own.by) < (received.number, &by));
        if MAX_NUMBER < received.number || !is_newer {
            return false;
        }
        // Remember this change at least as long as the change that it replaces.
        let known_until = own.map_or(known_until, |own| own.remembered_until.max(known_until));
        let change =
            RuleChange { number: received.number, by, forced, remembered_until: known_until };
        let has_effect = change.is_forced(now) || own.is_some_and(|own| own.is_forced(now));
        // Also store a change without an effect, so that no older change is applied later.
        self.insert_bounded(rule, change) && has_effect
    }

    pub(super) fn changes(&self, now: Nanos) -> Vec<ForcedChange> {
        let millis = |until: Nanos| until.since(now).0 / Nanos::MILLI.0;
        let remembered = self.0.iter().filter(|(_, change)| now < change.remembered_until);
        let changes = remembered.map(|((domain, limit), change)| ForcedChange {
            domain: domain.clone(),
            limit: limit.clone(),
            verdict: change.forced.map(|forced| verdict_name(forced.verdict).into()),
            left_ms: change.forced.map_or(0, |forced| millis(forced.until)),
            known_ms: millis(change.remembered_until),
            number: change.number,
            by: change.by.clone(),
        });
        changes.collect()
    }

    pub(super) fn forced_at(&self, now: Nanos) -> Vec<ForcedRule> {
        let rules = self.0.iter().filter_map(|((domain, path), change)| {
            let forced = change.forced.filter(|forced| now < forced.until)?;
            Some(ForcedRule { domain: domain.clone(), path: path.clone(), decision: forced })
        });
        rules.collect()
    }

    fn forget_expired(&mut self, now: Nanos) {
        self.0.retain(|_, change| now < change.remembered_until);
    }

    fn insert_bounded(&mut self, rule: RulePath, change: RuleChange) -> bool {
        let bytes = |(domain, path): &RulePath, by: &str| domain.len() + path.len() + by.len();
        let other_changes = self.0.iter().filter(|(other, _)| **other != rule);
        let other_bytes =
            other_changes.map(|(other, change)| bytes(other, &change.by)).sum::<usize>();
        let fits = self.0.contains_key(&rule) || self.0.len() < MAX_CHANGES;
        if !fits || MAX_NAME_BYTES < other_bytes + bytes(&rule, &change.by) {
            return false;
        }
        self.0.insert(rule, change);
        true
    }
}

/// Returns the name of a verdict in files and messages.
#[must_use]
pub const fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Allow => "allow",
        Verdict::Deny => "deny",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: (&str, &str) = ("d", "d.k");

    fn at(seconds: u64) -> Nanos {
        Nanos::from_secs(seconds)
    }

    fn deny(until: u64) -> ForcedDecision {
        ForcedDecision { verdict: Verdict::Deny, until: at(until) }
    }

    /// Sends all changes of `from` to `to` as JSON. Returns the number of changes with an effect.
    fn send_changes(from: &ForcedRules, to: &mut ForcedRules, now: Nanos) -> usize {
        let text = serde_json::to_string(&from.changes(now)).unwrap();
        let told: Vec<ForcedChange> = serde_json::from_str(&text).unwrap();
        told.iter().filter(|one| to.apply_change(one, now)).count()
    }

    #[test]
    fn forced_decisions_start_and_end_on_all_replicas() {
        let [mut a, mut b, mut c] = [(); 3].map(|()| ForcedRules::default());
        assert!(a.record(RULE, (Some(deny(60)), "a"), at(0)));
        send_changes(&a, &mut b, at(1));
        send_changes(&b, &mut c, at(2));
        assert_eq!([b.forced_at(at(59)).len(), c.forced_at(at(59)).len()], [1, 1]);
        assert_eq!(
            (b.forced_at(at(60)), c.forced_at(at(60))),
            (vec![], vec![]),
            "as long, and no longer"
        );
        assert!(c.record(RULE, (None, "c"), at(10)));
        send_changes(&c, &mut a, at(11));
        assert_eq!(a.forced_at(at(11)), []);
        // A replica that missed the end does not restore the decision.
        send_changes(&b, &mut a, at(12));
        send_changes(&b, &mut c, at(12));
        assert_eq!((a.forced_at(at(12)), c.forced_at(at(12))), (vec![], vec![]));
    }

    #[test]
    fn an_early_end_is_a_change_but_an_expiry_is_not() {
        let [mut a, mut b] = [(); 2].map(|()| ForcedRules::default());
        assert!(a.record(RULE, (Some(deny(60)), "a"), at(0)));
        let told = a.changes(at(1));
        assert!(b.apply_change(&told[0], at(2)), "a hold");
        assert_eq!(send_changes(&a, &mut b, at(3)), 0, "it is known");
        // `b` got the change later, so it remembers it longer.
        let b_alone = at(60).plus(REMEMBER_MARGIN);
        assert_eq!((a.changes(b_alone).len(), b.changes(b_alone).len()), (0, 1));
        assert_eq!(send_changes(&b, &mut a, b_alone), 0, "it is over");
        assert_eq!(
            (a.changes(b_alone).len(), a.forced_at(b_alone)),
            (1, vec![]),
            "known, and not held"
        );
        let [mut c, mut d, mut new] = [(); 3].map(|()| ForcedRules::default());
        assert!(c.record(RULE, (Some(deny(60)), "c"), at(0)));
        assert_eq!(send_changes(&c, &mut d, at(1)), 1);
        assert!(c.record(RULE, (None, "c"), at(10)));
        assert_eq!(send_changes(&c, &mut d, at(11)), 1, "it was held there");
        assert_eq!(d.forced_at(at(11)), []);
        assert_eq!(send_changes(&c, &mut new, at(11)), 0, "nothing was");
    }

    #[test]
    fn a_replaced_decision_does_not_return_after_its_successor_expired() {
        let (mut a, mut cut_off) = (ForcedRules::default(), ForcedRules::default());
        a.record(RULE, (Some(deny(3_600)), "a"), at(0));
        send_changes(&a, &mut cut_off, at(1));
        a.record(RULE, (Some(deny(20)), "a"), at(10));
        for now in [21, 200, 3_599] {
            send_changes(&cut_off, &mut a, at(now));
            assert_eq!(a.forced_at(at(now)), [], "{now}");
        }
        send_changes(&a, &mut cut_off, at(3_000));
        assert_eq!(cut_off.forced_at(at(3_000)), []);
    }

    #[test]
    fn replicas_agree_on_simultaneous_changes() {
        let [mut a, mut b] = [(); 2].map(|()| ForcedRules::default());
        a.record(RULE, (Some(deny(60)), "a"), at(0));
        b.record(
            RULE,
            (Some(ForcedDecision { verdict: Verdict::Allow, until: at(60) }), "b"),
            at(0),
        );
        send_changes(&a, &mut b, at(1));
        send_changes(&b, &mut a, at(1));
        assert_eq!(a.forced_at(at(2)), b.forced_at(at(2)));
        assert_eq!(a.forced_at(at(2))[0].decision.verdict, Verdict::Allow, "the greater name's");
    }

    #[test]
    fn changes_from_other_replicas_are_bounded() {
        let mut holds = ForcedRules::default();
        let told = |n: usize, domain: &str| ForcedChange {
            domain: domain.into(),
            limit: format!("d.k{n}").into(),
            verdict: Some("deny".into()),
            left_ms: u64::MAX,
            known_ms: u64::MAX,
            number: 1,
            by: "b".into(),
        };
        assert!(!holds.apply_change(&told(0, &"d".repeat(MAX_NAME_BYTES)), at(0)));
        assert!(!holds.apply_change(&ForcedChange { number: u64::MAX, ..told(0, "d") }, at(0)));
        assert!(
            !holds.apply_change(
                &ForcedChange { verdict: Some("wait".into()), ..told(0, "d") },
                at(0)
            )
        );
        let heard = (0..1_000).filter(|n| holds.apply_change(&told(*n, "d"), at(0))).count();
        assert_eq!(heard, MAX_CHANGES);
        assert_eq!(holds.forced_at(MAX_FORCED_DURATION), [], "no longer than anybody may hold one");
        assert!(
            holds.apply_change(&told(1_000, "d"), MAX_FORCED_DURATION.plus(REMEMBER_MARGIN)),
            "what is over makes room"
        );
    }
}
