//! The replicated state of forced decisions, as pure functions.
//!
//! Guarantees:
//! - Replicas that exchange changes converge, independent of the order of messages.
//! - The change with the larger number wins, then the larger replica name.
//! - A new number is larger than every number that its replica knows.
//! - A change outlives everything that it replaced by [`SLACK`], so nothing stale returns.
//! - Messages contain remaining durations, not instants.
//! - The number and the size of remembered changes are bounded.
//!
//! Not covered:
//! - The choice of the rule.
//! - Authorization.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{LONGEST, MOST};
use crate::config::frozen::{Frozen, Held};
use crate::kernel::decision::Verdict;
use crate::kernel::units::Nanos;

/// The time for which a change is remembered after its
/// decision has expired, so that no replica still sends it.
pub(super) const SLACK: Nanos = Nanos::from_secs(60);

/// The largest number of remembered changes, including expired ones.
const MOST_KNOWN: usize = 2 * MOST;

/// The largest total size of their names. Every replica sends all of them once per second.
const MOST_BYTES: usize = 16 * 1024;

/// The largest number of a change. Doubles, and so JSON numbers, are exact up to 2^53.
const HIGHEST: u64 = 1 << 53;

/// The domain and path of a rule.
type Rule = (Box<str>, Box<str>);

/// The last change to a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Change {
    number: u64,
    by: Box<str>,
    /// The forced decision and its expiry. `None`: it was ended by an operator.
    frozen: Option<Frozen>,
    /// The instant at which this change is forgotten.
    known_until: Nanos,
}

impl Change {
    fn is_held(&self, now: Nanos) -> bool {
        self.frozen.is_some_and(|frozen| now < frozen.until)
    }
}

/// A change as replicas send it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// The domain of the rule.
    pub domain: Box<str>,
    /// The path of the rule.
    pub limit: Box<str>,
    /// `deny` or `allow`. `None` if the forced decision was ended.
    #[serde(rename = "as", default)]
    pub held: Option<Box<str>>,
    /// The remaining time of the forced decision.
    pub left_ms: u64,
    /// The remaining time for which this change is sent.
    pub known_ms: u64,
    /// The number of the change.
    pub number: u64,
    /// The replica that received the operator's call.
    pub by: Box<str>,
}

/// The last changes by rule.
#[derive(Clone, Debug, Default)]
pub(super) struct Holds(BTreeMap<Rule, Change>);

impl Holds {
    /// Starts or ends a forced decision. Returns `false` if there is no room for the change.
    pub(super) fn change(
        &mut self,
        rule: (&str, &str),
        (frozen, by): (Option<Frozen>, &str),
        now: Nanos,
    ) -> bool {
        self.forget(now);
        let rule: Rule = (rule.0.into(), rule.1.into());
        let highest = self.0.values().map(|change| change.number).max().unwrap_or(0);
        let before = self.0.get(&rule).map_or(Nanos(0), |change| change.known_until);
        let over = frozen.map_or(now, |frozen| frozen.until).plus(SLACK);
        let number = highest.saturating_add(1).min(HIGHEST);
        let change = Change { number, by: by.into(), frozen, known_until: over.max(before) };
        self.put(rule, change)
    }

    /// Applies a change from another replica. Returns `true` if it changes a current
    /// decision. An expired change does so only where the rule is still forced.
    pub(super) fn hear(&mut self, told: &Told, now: Nanos) -> bool {
        self.forget(now);
        let millis = |ms: u64, most: Nanos| now.plus(Nanos(ms.saturating_mul(1_000_000)).min(most));
        let until = millis(told.left_ms, LONGEST);
        let verdict = match told.held.as_deref() {
            None => None,
            Some("deny") => Some(Verdict::Deny),
            Some("allow") => Some(Verdict::Admit),
            // From a later version with other verdicts.
            Some(_) => return false,
        };
        let frozen = verdict.map(|verdict| Frozen { verdict, until });
        let (rule, by) = ((told.domain.clone(), told.limit.clone()), told.by.clone());
        let known_until = millis(told.known_ms, LONGEST.plus(SLACK));
        let own = self.0.get(&rule);
        let is_later = own.is_none_or(|own| (own.number, &own.by) < (told.number, &by));
        if HIGHEST < told.number || !is_later {
            return false;
        }
        // Remember this change at least as long as the change that it replaces.
        let known_until = own.map_or(known_until, |own| own.known_until.max(known_until));
        let change = Change { number: told.number, by, frozen, known_until };
        let is_news = change.is_held(now) || own.is_some_and(|own| own.is_held(now));
        // Also remembered without an effect, so that no older change returns.
        self.put(rule, change) && is_news
    }

    pub(super) fn told(&self, now: Nanos) -> Vec<Told> {
        let millis = |until: Nanos| until.since(now).0 / Nanos::MILLI.0;
        let known = self.0.iter().filter(|(_, change)| now < change.known_until);
        let told = known.map(|((domain, limit), change)| Told {
            domain: domain.clone(),
            limit: limit.clone(),
            held: change.frozen.map(|frozen| word(frozen.verdict).into()),
            left_ms: change.frozen.map_or(0, |frozen| millis(frozen.until)),
            known_ms: millis(change.known_until),
            number: change.number,
            by: change.by.clone(),
        });
        told.collect()
    }

    pub(super) fn held(&self, now: Nanos) -> Vec<Held> {
        let held = self.0.iter().filter_map(|((domain, path), change)| {
            let frozen = change.frozen.filter(|frozen| now < frozen.until)?;
            Some(Held { domain: domain.clone(), path: path.clone(), frozen })
        });
        held.collect()
    }

    fn forget(&mut self, now: Nanos) {
        self.0.retain(|_, change| now < change.known_until);
    }

    fn put(&mut self, rule: Rule, change: Change) -> bool {
        let bytes = |(domain, path): &Rule, by: &str| domain.len() + path.len() + by.len();
        let others = self.0.iter().filter(|(known, _)| **known != rule);
        let sum = others.map(|(known, change)| bytes(known, &change.by)).sum::<usize>();
        let fits = self.0.contains_key(&rule) || self.0.len() < MOST_KNOWN;
        if !fits || MOST_BYTES < sum + bytes(&rule, &change.by) {
            return false;
        }
        self.0.insert(rule, change);
        true
    }
}

/// Returns the name of a verdict in files and messages.
#[must_use]
pub const fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Admit => "allow",
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

    fn deny(until: u64) -> Frozen {
        Frozen { verdict: Verdict::Deny, until: at(until) }
    }

    /// Sends all changes of `from` to `to` as JSON. Returns the number of changes with an effect.
    fn tell(from: &Holds, to: &mut Holds, now: Nanos) -> usize {
        let text = serde_json::to_string(&from.told(now)).unwrap();
        let told: Vec<Told> = serde_json::from_str(&text).unwrap();
        told.iter().filter(|one| to.hear(one, now)).count()
    }

    #[test]
    fn forced_decisions_spread_and_end_together_on_all_replicas() {
        let [mut a, mut b, mut c] = [(); 3].map(|()| Holds::default());
        assert!(a.change(RULE, (Some(deny(60)), "a"), at(0)));
        tell(&a, &mut b, at(1));
        tell(&b, &mut c, at(2));
        assert_eq!([b.held(at(59)).len(), c.held(at(59)).len()], [1, 1]);
        assert_eq!((b.held(at(60)), c.held(at(60))), (vec![], vec![]), "as long, and no longer");
        assert!(c.change(RULE, (None, "c"), at(10)));
        tell(&c, &mut a, at(11));
        assert_eq!(a.held(at(11)), []);
        // A replica that missed the end does not restore the decision.
        tell(&b, &mut a, at(12));
        tell(&b, &mut c, at(12));
        assert_eq!((a.held(at(12)), c.held(at(12))), (vec![], vec![]));
    }

    #[test]
    fn an_expired_decision_is_no_change_but_an_early_end_is() {
        let [mut a, mut b] = [(); 2].map(|()| Holds::default());
        assert!(a.change(RULE, (Some(deny(60)), "a"), at(0)));
        let told = a.told(at(1));
        assert!(b.hear(&told[0], at(2)), "a hold");
        assert_eq!(tell(&a, &mut b, at(3)), 0, "it is known");
        // `b` got the change later, so it remembers it longer.
        let b_alone = at(60).plus(SLACK);
        assert_eq!((a.told(b_alone).len(), b.told(b_alone).len()), (0, 1));
        assert_eq!(tell(&b, &mut a, b_alone), 0, "it is over");
        assert_eq!((a.told(b_alone).len(), a.held(b_alone)), (1, vec![]), "known, and not held");
        let [mut c, mut d, mut new] = [(); 3].map(|()| Holds::default());
        assert!(c.change(RULE, (Some(deny(60)), "c"), at(0)));
        assert_eq!(tell(&c, &mut d, at(1)), 1);
        assert!(c.change(RULE, (None, "c"), at(10)));
        assert_eq!(tell(&c, &mut d, at(11)), 1, "it was held there");
        assert_eq!(d.held(at(11)), []);
        assert_eq!(tell(&c, &mut new, at(11)), 0, "nothing was");
    }

    #[test]
    fn an_expired_decision_is_not_undone_by_its_longer_predecessor() {
        let (mut a, mut cut_off) = (Holds::default(), Holds::default());
        a.change(RULE, (Some(deny(3_600)), "a"), at(0));
        tell(&a, &mut cut_off, at(1));
        a.change(RULE, (Some(deny(20)), "a"), at(10));
        for now in [21, 200, 3_599] {
            tell(&cut_off, &mut a, at(now));
            assert_eq!(a.held(at(now)), [], "{now}");
        }
        tell(&a, &mut cut_off, at(3_000));
        assert_eq!(cut_off.held(at(3_000)), []);
    }

    #[test]
    fn replicas_agree_on_simultaneous_changes() {
        let [mut a, mut b] = [(); 2].map(|()| Holds::default());
        a.change(RULE, (Some(deny(60)), "a"), at(0));
        b.change(RULE, (Some(Frozen { verdict: Verdict::Admit, until: at(60) }), "b"), at(0));
        tell(&a, &mut b, at(1));
        tell(&b, &mut a, at(1));
        assert_eq!(a.held(at(2)), b.held(at(2)));
        assert_eq!(a.held(at(2))[0].frozen.verdict, Verdict::Admit, "the greater name's");
    }

    #[test]
    fn decisions_from_peers_are_bounded() {
        let mut holds = Holds::default();
        let told = |n: usize, domain: &str| Told {
            domain: domain.into(),
            limit: format!("d.k{n}").into(),
            held: Some("deny".into()),
            left_ms: u64::MAX,
            known_ms: u64::MAX,
            number: 1,
            by: "b".into(),
        };
        assert!(!holds.hear(&told(0, &"d".repeat(MOST_BYTES)), at(0)));
        assert!(!holds.hear(&Told { number: u64::MAX, ..told(0, "d") }, at(0)));
        assert!(!holds.hear(&Told { held: Some("wait".into()), ..told(0, "d") }, at(0)));
        let heard = (0..1_000).filter(|n| holds.hear(&told(*n, "d"), at(0))).count();
        assert_eq!(heard, MOST_KNOWN);
        assert_eq!(holds.held(LONGEST), [], "no longer than anybody may hold one");
        assert!(holds.hear(&told(1_000, "d"), LONGEST.plus(SLACK)), "what is over makes room");
    }
}
