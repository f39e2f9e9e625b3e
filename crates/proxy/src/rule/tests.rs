//! Rules from replies: operators' verdicts, shadow mode, failure rules and several limits.

use std::time::Duration;

use proptest::prelude::{any, proptest};
use prost::Message as _;
use sluicegate_lease::store::{Charge, ChargeOutcome};

use super::KnownRule;
use crate::answer::{Answer, RuleAnswer};
use crate::fixtures::{leased_limit, leased_reply, read_rule};
use crate::kernel::decision::{RuleVerdict, StoreFailure, Verdict};
use crate::kernel::proxy_rule::ProxyHandling;
use crate::kernel::rate::{CounterDecision, Headroom};
use crate::kernel::units::{Hits, Nanos};
use crate::wire::api::leased_limit::OnFailure;
use crate::wire::api::rule_reply::Handling as WireHandling;
use crate::wire::{self, api};

const FAILED: ChargeOutcome = ChargeOutcome::Failed(StoreFailure::TimedOut);

fn room(remaining: u64) -> Headroom {
    Headroom { remaining: Hits(remaining), reset_after: Nanos::SECOND }
}

fn allow(remaining: u64) -> ChargeOutcome {
    ChargeOutcome::Decided(CounterDecision::Allow(room(remaining)))
}

fn deny(seconds: u64) -> ChargeOutcome {
    let retry_after = Nanos::from_secs(seconds);
    ChargeOutcome::Decided(CounterDecision::Deny { retry_after, headroom: room(0) })
}

fn reply(handling: WireHandling) -> api::RuleReply {
    let rule = "shop/user".to_owned();
    api::RuleReply { handling: handling.into(), rule, ..Default::default() }
}

fn with_limit(count: usize, change: impl Fn(&mut api::LeasedLimit)) -> api::RuleReply {
    let limit = |number: usize| {
        let mut limit = leased_limit(&format!("limit-{number}"));
        change(&mut limit);
        limit
    };
    leased_reply("ann", (0..count).map(limit).collect())
}

fn charges(rule: &KnownRule) -> &[Charge] {
    &rule.charges.as_ref().expect("a leased rule").list
}

/// The result of a request with these outcomes, one for each limit, and the filter rule `allow`.
fn decide(reply: &api::RuleReply, outcomes: &[ChargeOutcome]) -> RuleAnswer {
    read_rule(reply, Nanos(0)).unwrap().leased_answer(outcomes, Verdict::Allow)
}

#[test]
fn an_operators_denial_is_only_reported_in_shadow_mode() {
    for (handling, shadow, expected) in [
        (WireHandling::ForcedAllow, false, RuleVerdict::Allow),
        (WireHandling::ForcedAllow, true, RuleVerdict::Allow),
        (WireHandling::ForcedDeny, false, RuleVerdict::Deny),
        (WireHandling::ForcedDeny, true, RuleVerdict::ShadowDeny),
    ] {
        let rule = read_rule(&api::RuleReply { shadow, ..reply(handling) }, Nanos(0)).unwrap();
        let ProxyHandling::Forced(verdict) = rule.reply.handling else { panic!("{rule:?}") };
        assert_eq!(rule.forced_answer(verdict).verdict, expected, "{handling:?}, shadow: {shadow}");
    }
}

#[test]
fn one_denial_denies_with_the_longest_retry_after() {
    let three = with_limit(3, |_| {});
    let answer = decide(&three, &[deny(2), allow(5), deny(9)]);
    assert_eq!(answer.verdict, RuleVerdict::Deny);
    assert_eq!(answer.retry_after, Some(Duration::from_secs(9)));
    assert_eq!(answer.path.as_deref(), Some("shop/user"));
    assert_eq!(decide(&three, &[allow(5), deny(1), FAILED]).verdict, RuleVerdict::Deny);
}

#[test]
fn all_limits_must_allow_and_the_fewest_remaining_is_reported() {
    let answer = decide(&with_limit(3, |_| {}), &[allow(7), allow(2), allow(5)]);
    assert_eq!((answer.verdict, answer.retry_after), (RuleVerdict::Allow, None));
    let reported = answer.reported.unwrap();
    assert_eq!((reported.remaining, reported.requests), (2, 100));
    assert_eq!(
        (reported.period, reported.reset_after),
        (Duration::from_secs(1), Duration::from_secs(1))
    );
}

#[test]
fn hits_above_the_limit_are_denied_without_a_retry_after() {
    let exceeds = ChargeOutcome::Decided(CounterDecision::ExceedsLimit(room(3)));
    let answer = decide(&with_limit(1, |_| {}), &[exceeds]);
    assert_eq!((answer.verdict, answer.retry_after), (RuleVerdict::Deny, None));
}

#[test]
fn shadow_mode_allows_and_reports_denials() {
    let shadowed = api::RuleReply { shadow: true, ..with_limit(2, |_| {}) };
    let part = decide(&shadowed, &[deny(2), allow(5)]);
    assert_eq!(part.verdict, RuleVerdict::ShadowDeny);
    let mut answer = Answer::unlimited();
    answer.add(part);
    assert_eq!((answer.verdict, answer.retry_after), (RuleVerdict::Allow, None));
    assert_eq!(decide(&shadowed, &[allow(1), allow(5)]).verdict, RuleVerdict::Allow);
}

#[test]
fn the_failure_rule_of_a_limit_wins_over_that_of_the_filter() {
    for (on_failure, expected) in [
        (OnFailure::Unspecified, RuleVerdict::FallbackAllow),
        (OnFailure::Allow, RuleVerdict::FallbackAllow),
        (OnFailure::Deny, RuleVerdict::FallbackDeny),
    ] {
        let limits = with_limit(1, |limit| limit.on_failure = on_failure.into());
        assert_eq!(decide(&limits, &[FAILED]).verdict, expected, "{on_failure:?}");
    }
    let rule = read_rule(&with_limit(1, |_| {}), Nanos(0)).unwrap();
    let answer = rule.leased_answer(&[FAILED], Verdict::Deny);
    assert_eq!(answer.verdict, RuleVerdict::FallbackDeny);
}

#[test]
fn a_rule_is_valid_for_the_time_of_its_reply() {
    let reply = api::RuleReply { valid_for_us: Some(2), ..reply(WireHandling::Ask) };
    let rule = read_rule(&reply, Nanos(1_000)).unwrap();
    assert!(!rule.is_expired(Nanos(2_999)));
    assert!(rule.is_expired(Nanos(3_000)));
    let forever = read_rule(&self::reply(WireHandling::Ask), Nanos(1_000)).unwrap();
    assert!(!forever.is_expired(Nanos(u64::MAX)));
}

#[test]
fn limits_of_one_list_have_different_counters() {
    let rule = read_rule(&with_limit(3, |_| {}), Nanos(0)).unwrap();
    let [first, second, third] = charges(&rule) else { panic!("{rule:?}") };
    assert!(first.key != second.key && second.key != third.key && first.key != third.key);
    assert_eq!(first.key.parse().and_then(|key| key.limit_name), Some("limit-0"));
}

/// Reads a reply, and decides a request with the outcomes of `decision`.
fn read_and_decide(reply: &api::RuleReply, decision: &api::CounterDecision, now: u64) {
    let Some(rule) = read_rule(reply, Nanos(now)) else { return };
    if rule.charges.is_none() {
        return;
    }
    let outcome = wire::decision(decision).map_or(FAILED, ChargeOutcome::Decided);
    let outcomes = vec![outcome; charges(&rule).len()];
    let verdict = rule.leased_answer(&outcomes, Verdict::Deny).verdict;
    assert!(!reply.shadow || verdict.is_allowed());
    assert!(reply.shadow || verdict != RuleVerdict::ShadowDeny);
    assert_eq!(rule.terms().count(), outcomes.len());
}

proptest! {
    #[test]
    fn any_bytes_are_a_rule_or_refused(bytes: Vec<u8>, now: u64) {
        if let Ok(reply) = api::RuleReply::decode(&*bytes) {
            read_and_decide(&reply, &api::CounterDecision::default(), now);
        }
    }

    #[test]
    fn any_numbers_in_a_rule_cause_no_panic(
        numbers: [u64; 6],
        small: [u32; 3],
        kinds in (0..7, 0..6, 0..4),
        starts: Vec<u64>,
        flags: [bool; 3],
    ) {
        let mut limit = leased_limit("a");
        limit.strategy = Some(api::RateStrategy {
            kind: kinds.1,
            hits: small[0],
            period_ns: numbers[0],
            burst: small[1],
            charges_excess: flags[0],
            window_starts_us: starts,
        });
        (limit.period_ns, limit.duration_us, limit.requests) = (numbers[1], numbers[2], small[2]);
        limit.max_overshoot = Some(numbers[3]).filter(|_| flags[1]);
        limit.on_failure = kinds.2;
        let reply = api::RuleReply {
            handling: kinds.0,
            valid_for_us: Some(numbers[4]),
            shadow: flags[2],
            ..leased_reply("ann", vec![limit.clone(), limit])
        };
        let decision = api::CounterDecision {
            verdict: kinds.0,
            remaining: numbers[3],
            reset_after_us: numbers[4],
            retry_after_us: numbers[5],
        };
        read_and_decide(&reply, &decision, numbers[5]);
    }

    #[test]
    fn entries_of_any_text_are_a_counter(key in any::<String>(), value in any::<String>()) {
        let mut reply = with_limit(1, |_| {});
        reply.counter = vec![api::LeaseEntry { key: key.clone(), value: value.clone() }];
        let rule = read_rule(&reply, Nanos(0)).unwrap();
        let parsed = charges(&rule)[0].key.parse().unwrap();
        assert_eq!(parsed.entries, [(&*key, &*value)]);
    }
}
