//! The combination of the results of several rules.

use std::sync::Arc;
use std::time::Duration;

use super::{Answer, ReportedLimit, RuleAnswer, RuleVerdict};

fn part(verdict: RuleVerdict, path: &str, seconds: u64, remaining: u64) -> RuleAnswer {
    let (period, reset_after) = (Duration::from_secs(60), Duration::from_secs(seconds));
    RuleAnswer {
        verdict,
        path: Some(Arc::from(path)),
        retry_after: Some(reset_after).filter(|_| !verdict.is_allowed()),
        ban_status: None,
        reported: Some(ReportedLimit { requests: 10, period, remaining, reset_after }),
    }
}

fn combine(parts: &[RuleAnswer]) -> Answer {
    let mut answer = Answer::unlimited();
    for part in parts {
        answer.add(part.clone());
    }
    answer
}

#[test]
fn a_request_passes_only_if_all_parts_pass() {
    for one in RuleVerdict::ALL {
        for other in RuleVerdict::ALL {
            let both = one.and(other);
            assert_eq!(both.is_allowed(), one.is_allowed() && other.is_allowed());
            assert_eq!(both, other.and(one), "the order is irrelevant");
        }
        assert_eq!(one.and(RuleVerdict::Deny), RuleVerdict::Deny);
        let alone = if one == RuleVerdict::ShadowDeny { RuleVerdict::Allow } else { one };
        assert_eq!([one.and(RuleVerdict::Allow), one.and(one)], [alone; 2]);
    }
}

#[test]
fn a_denied_request_waits_for_its_longest_retry_after() {
    let parts = [
        part(RuleVerdict::Deny, "a", 3, 0),
        part(RuleVerdict::Deny, "b", 7, 0),
        part(RuleVerdict::Deny, "c", 5, 0),
    ];
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let answer = combine(&order.map(|index| parts[index].clone()));
        assert_eq!(answer.retry_after, Some(Duration::from_secs(7)));
        assert_eq!(answer.denied_by, parts[order[0]].path);
    }
}

#[test]
fn an_allowed_part_delays_nothing() {
    let mut allowed = part(RuleVerdict::Allow, "a", 9, 4);
    allowed.retry_after = Some(Duration::from_secs(9));
    assert_eq!(combine(&[allowed.clone()]).retry_after, None);
    let answer = combine(&[allowed, part(RuleVerdict::Deny, "b", 2, 0)]);
    assert_eq!(answer.retry_after, Some(Duration::from_secs(2)));
}

#[test]
fn the_limit_with_the_fewest_remaining_requests_is_reported() {
    let parts = [4, 1, 6].map(|remaining| part(RuleVerdict::Allow, "a", remaining, remaining));
    let unreported = RuleAnswer { reported: None, ..parts[0].clone() };
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let mut ordered = order.map(|index| parts[index].clone()).to_vec();
        ordered.push(unreported.clone());
        assert_eq!(combine(&ordered).reported, parts[1].reported);
    }
}

#[test]
fn each_rule_is_listed_with_its_own_result() {
    let answer = combine(&[
        part(RuleVerdict::FallbackAllow, "a", 0, 0),
        part(RuleVerdict::FallbackDeny, "b", 0, 0),
        RuleAnswer::UNLIMITED,
        part(RuleVerdict::Deny, "c", 0, 0),
    ]);
    let rules: Vec<(&str, bool)> =
        answer.rules.iter().map(|(path, is_allowed)| (&**path, *is_allowed)).collect();
    assert_eq!(rules, [("a", true), ("b", false), ("c", false)]);
    assert_eq!((answer.verdict, answer.denied_by.as_deref()), (RuleVerdict::Deny, Some("c")));
}

#[test]
fn a_request_without_rules_is_allowed() {
    assert!(combine(&[]).verdict.is_allowed());
    assert!(combine(&[RuleAnswer::UNLIMITED]).rules.is_empty());
}
