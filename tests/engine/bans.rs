//! The laws of penalties and bans, with a memory store and a manual clock.
//!
//! Each row shows a deliberate fault in the code, and a test that failed with it.
//!
//! | fault | failed test |
//! |---|---|
//! | strike number `after` is still allowed | `the_strike_number_after_begins_the_ban` |
//! | a banned check is charged | `a_banned_check_charges_no_counter` |
//! | a begin does not remove the strikes | `a_ban_starts_over_after_its_end` |
//! | a shadow denial is a strike | `only_enforced_denials_by_the_counter_are_strikes` |
//! | the bans of a limit without penalty stay | `a_reload_without_penalty_ends_its_bans` |

use std::sync::Arc;

use sluicegate::clock::Clock;
use sluicegate::config::action::ActionEffect;
use sluicegate::config::settings::DescriptorValues;
use sluicegate::engine::actions::{ActionError, ActionKind, Operator};
use sluicegate::engine::bans::{LiftError, MAX_BANS};
use sluicegate::engine::{AdmissionOutcome, Decision, DecisionPolicy, Engine, PlanSettings};
use sluicegate::kernel::decision::{Check, Cost, Descriptor, Reason, Verdict};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::memory::{MemoryStore, WhenFull};

use crate::support::dice::{Dice, seed};
use crate::support::engine::{
    Target, advance_clock, allow_everything, block_on, check, check_of, check_of_entry, end_action,
    force, publish, try_act,
};

/// The first hit of a second is allowed. Three denials in a minute ban for ten minutes.
const RULE: &str = "- {key: k, rate_limit: {unit: second, requests_per_unit: 1, \
     penalty: {after: 3, within: 1m, for: 10m, status: 403}}}\n";

const LENGTH: Nanos = Nanos::from_secs(600);
const START: Nanos = Nanos::from_secs(1_000_000);
const OPERATOR: Operator<'_> = Operator { name: "alice", reason: "ticket 7" };

fn engine_with(policy: DecisionPolicy, keys: usize, rules: &str) -> Engine {
    let memory = Arc::new(MemoryStore::new(keys, WhenFull::Deny, [7; 16]));
    let engine = Engine::new(Clock::manual(START), memory, policy);
    publish(&engine, "", rules);
    engine
}

fn engine(rules: &str) -> Engine {
    engine_with(DecisionPolicy::default(), 100_000, rules)
}

fn ask(engine: &Engine, value: &str) -> Decision {
    block_on(engine.decide(&check_of_entry("k", value))).unwrap()
}

fn reason(decision: &Decision) -> Reason {
    decision.statuses[0].decision.reason
}

/// Asks until the key is banned: once within the limit, and three times above it.
fn ban(engine: &Engine, value: &str) {
    for wanted in [Reason::WithinLimit, Reason::OverLimit, Reason::OverLimit, Reason::OverLimit] {
        assert_eq!(reason(&ask(engine, value)), wanted);
    }
}

fn is_banned(engine: &Engine, value: &str) -> bool {
    reason(&ask(engine, value)) == Reason::Banned
}

fn lift(engine: &Engine, entries: &[(&str, &str)]) -> Result<(), LiftError> {
    block_on(engine.lift_bans("d", entries, OPERATOR)).map(|_| ())
}

#[test]
fn the_strike_number_after_begins_the_ban() {
    let (rules, mut dice) = (RULE.replace("after: 3", "after: 5"), Dice::new(seed()));
    for _ in 0..200 {
        let engine = engine(&rules);
        let (mut strikes, mut now) = (Vec::new(), START);
        // No hit fits, so every check is a denial.
        let denied = check(&[("k", "v")], Cost::Charge(Hits(2)));
        loop {
            let pause = Nanos(1_000 * (dice.up_to(30_000_000) + 1));
            advance_clock(&engine, pause);
            now = now.plus(pause);
            let decision = block_on(engine.decide(&denied)).unwrap();
            assert_eq!(reason(&decision), Reason::LargerThanLimit, "{strikes:?}");
            strikes.push(now);
            // A log of the last minute, which does not contain its first instant.
            let recent = |strike: &&Nanos| now.since(**strike) < Nanos::from_secs(60);
            let is_due = 5 <= strikes.iter().filter(recent).count();
            assert_eq!(engine.bans().len(), usize::from(is_due), "{strikes:?}");
            if is_due {
                break;
            }
        }
        assert_eq!(reason(&block_on(engine.decide(&denied)).unwrap()), Reason::Banned);
    }
}

#[test]
fn a_banned_client_succeeds_at_retry_after() {
    let engine = engine(RULE);
    ban(&engine, "v");
    advance_clock(&engine, Nanos::from_secs(100));
    let denied = ask(&engine, "v");
    let left = Nanos::from_secs(500);
    assert_eq!((denied.verdict, denied.ban_status), (Verdict::Deny, Some(403)));
    assert_eq!((denied.retry_after, denied.denied_by.as_deref()), (Some(left), Some("d.k")));
    let status = &denied.statuses[0].decision;
    assert_eq!((status.headroom.remaining, status.headroom.reset_after), (Hits(0), left));
    assert_eq!(status.limit.as_ref().map(|limit| limit.requests), Some(1));
    advance_clock(&engine, left.since(Nanos(1)));
    assert!(is_banned(&engine, "v"));
    advance_clock(&engine, Nanos(1));
    assert_eq!(ask(&engine, "v").verdict, Verdict::Allow);
    assert_eq!(engine.bans(), []);
}

#[test]
fn a_ban_is_of_one_key() {
    let engine = engine(RULE);
    ban(&engine, "v");
    assert!(is_banned(&engine, "v"));
    assert_eq!(ask(&engine, "other").verdict, Verdict::Allow);
    let bans = engine.bans();
    assert_eq!((&*bans[0].domain, &*bans[0].descriptor, &*bans[0].limit), ("d", "k=v", "d.k"));
    assert_eq!((bans.len(), bans[0].until), (1, START.plus(LENGTH)));
}

#[test]
fn a_ban_starts_over_after_its_end() {
    let engine = engine(&RULE.replace("for: 10m", "for: 10s"));
    ban(&engine, "v");
    advance_clock(&engine, Nanos::from_secs(10));
    ban(&engine, "v");
    assert!(is_banned(&engine, "v"), "the strikes before the first ban did not count");
}

#[test]
fn a_banned_check_charges_no_counter() {
    for domain_fields in ["", "charge: all_or_nothing\n"] {
        let engine = engine("");
        let other = "- {key: o, rate_limit: {unit: day, requests_per_unit: 10}}\n";
        publish(&engine, domain_fields, &format!("{RULE}{other}"));
        ban(&engine, "v");
        let denied = block_on(engine.decide(&check_of(&[("o", "v"), ("k", "v")]))).unwrap();
        assert_eq!(denied.verdict, Verdict::Deny);
        let reasons: Vec<_> = denied.statuses.iter().map(|one| one.decision.reason).collect();
        assert_eq!(reasons, [Reason::Skipped, Reason::Banned]);
        let read = check(&[("o", "v"), ("k", "v")], Cost::Charge(Hits(0)));
        let read = block_on(engine.inspect(&Check { domain: "d", ..read })).unwrap();
        assert_eq!(read.verdict, Verdict::Deny, "also a peek");
        let read = block_on(engine.inspect(&check(&[("o", "v")], Cost::Charge(Hits(0))))).unwrap();
        assert_eq!(read.statuses[0].decision.headroom.remaining, Hits(10));
    }
}

#[test]
fn only_enforced_denials_by_the_counter_are_strikes() {
    let deny = |engine: &Engine, hits: u64| {
        for _ in 0..10 {
            let asked = check(&[("k", "v")], Cost::Charge(Hits(hits)));
            block_on(engine.decide(&asked)).unwrap();
        }
        engine.bans().len()
    };
    assert_eq!(deny(&engine(RULE), 1), 1);
    let shadow = RULE.replace("key: k,", "key: k, shadow_mode: true,");
    assert_eq!(deny(&engine(&shadow), 1), 0, "shadow mode of the rule");
    let policy = DecisionPolicy { is_shadow: true, ..DecisionPolicy::default() };
    assert_eq!(deny(&engine_with(policy, 100, RULE), 1), 0, "global shadow mode");
    let shadowed = engine(RULE);
    allow_everything(&shadowed, Nanos::from_secs(60));
    assert_eq!(deny(&shadowed, 1), 0, "shadow mode by an operator");
    let forced = engine(RULE);
    force(&forced, ("d", &[("k", "v")]), Verdict::Deny, Nanos::from_secs(60));
    assert_eq!(deny(&forced, 1), 0, "a forced decision");
    assert_eq!(deny(&engine(RULE), 0), 0, "peeks");
    let no_room = "- {key: k, rate_limit: {unit: second, requests_per_unit: 9, penalty: \
                   {after: 1, within: 1m, for: 10m}}}\n";
    assert_eq!(deny(&engine_with(DecisionPolicy::default(), 0, no_room), 1), 0, "a full store");
}

#[test]
fn an_operator_can_allow_a_banned_key() {
    let (engine, key): (_, Target<'_>) = (engine(RULE), ("d", &[("k", "v")]));
    ban(&engine, "v");
    let allow = (ActionKind::ForceKey, ActionEffect::Force(Verdict::Allow));
    try_act(&engine, key, allow, Nanos::from_secs(60)).unwrap();
    assert_eq!(reason(&ask(&engine, "v")), Reason::Forced);
    end_action(&engine, key, ActionKind::ForceKey).unwrap();
    assert!(is_banned(&engine, "v"), "the ban lasts");
}

#[test]
fn a_reload_without_penalty_ends_its_bans() {
    let without = "- {key: k, rate_limit: {unit: second, requests_per_unit: 1}}\n";
    let gone = "- {key: other, rate_limit: {unit: second, requests_per_unit: 1}}\n";
    let named = RULE.replace("unit: second,", "unit: second, name: other,");
    for (rules, bans) in [(RULE, 1), (&*named, 1), (without, 0), (gone, 0)] {
        let engine = engine(RULE);
        ban(&engine, "v");
        publish(&engine, "", rules);
        assert_eq!(engine.bans().len(), bans, "{rules}");
        let asked = ask(&engine, "v");
        assert_eq!(reason(&asked) == Reason::Banned, bans == 1, "{rules}");
    }
}

#[test]
fn a_lift_ends_the_ban_and_its_strikes() {
    let engine = engine(RULE);
    assert_eq!(lift(&engine, &[("k", "v")]), Err(LiftError::NotBanned));
    ban(&engine, "v");
    let nobody = Operator { name: "alice", reason: " " };
    let refused = block_on(engine.lift_bans("d", &[("k", "v")], nobody)).unwrap_err();
    assert_eq!(refused, LiftError::Action(ActionError::InvalidReason));
    assert_eq!(lift(&engine, &[("k", "other")]), Err(LiftError::NotBanned));
    assert!(is_banned(&engine, "v"));
    let entry = block_on(engine.lift_bans("d", &[("k", "v")], OPERATOR)).unwrap();
    assert_eq!((&*entry.action, entry.limit.as_deref()), ("lift", Some("d.k")));
    assert_eq!((entry.descriptor.as_deref(), &*entry.by), (Some("k=v"), "alice"));
    assert_eq!(engine.bans(), []);
    advance_clock(&engine, Nanos::SECOND);
    ban(&engine, "v");
    assert!(is_banned(&engine, "v"), "three strikes are needed again");
    assert_eq!(lift(&engine, &[("k", "v")]), Ok(()));
}

#[test]
fn keys_that_share_a_counter_share_the_ban() {
    let penalty = "unit: second, requests_per_unit: 1, penalty: {after: 3, within: 1m, for: 10m}";
    let long = |end: &str| format!("{}{end}", "x".repeat(300));
    for (rule, own, other, is_shared) in [
        ("value: a*, share_threshold: true", "a1".to_owned(), "a2".to_owned(), true),
        ("value: a*", "a1".to_owned(), "a2".to_owned(), false),
        ("network: 10.0.0.0/8, counter_per: /16", "10.1.0.1".into(), "10.1.9.9".into(), true),
        ("network: 10.0.0.0/8, counter_per: /16", "10.1.0.1".into(), "10.2.0.1".into(), false),
        (
            "network: '2001:db8::/32', counter_per: network",
            "2001:db8::1".into(),
            "2001:db8::2".into(),
            true,
        ),
        ("shadow_mode: false", long("1"), long("2"), false),
        ("shadow_mode: false", "a,b=c\\".into(), "a".into(), false),
    ] {
        let engine = engine(&format!("- {{key: k, {rule}, rate_limit: {{{penalty}}}}}\n"));
        ban(&engine, &own);
        assert!(is_banned(&engine, &own), "{rule}");
        assert_eq!(is_banned(&engine, &other), is_shared, "{rule}");
        // A reload finds the counter again from the name of the ban.
        publish(&engine, "", &format!("- {{key: k, {rule}, rate_limit: {{{penalty}}}}}\n"));
        assert!(is_banned(&engine, &own), "{rule}");
        lift(&engine, &[("k", if is_shared { &other } else { &own })]).unwrap();
        assert!(!is_banned(&engine, &own), "{rule}");
    }
}

#[test]
fn each_limit_of_a_list_counts_its_own_strikes() {
    let engine = engine(
        "- key: k\n  rate_limits:\n  - {unit: second, requests_per_unit: 1}\n  \
         - {unit: hour, requests_per_unit: 2, penalty: {after: 2, within: 1m, for: 10m}}\n",
    );
    let wanted = [Verdict::Allow, Verdict::Deny];
    assert_eq!([ask(&engine, "v"), ask(&engine, "v")].map(|one| one.verdict), wanted);
    assert_eq!(engine.bans().len(), 0, "the limit per hour has not denied");
    ask(&engine, "v");
    assert_eq!(engine.bans().len(), 0);
    ask(&engine, "v");
    assert_eq!(engine.bans()[0].limit, "d.k.per-hour");
    assert!(is_banned(&engine, "v"));
    lift(&engine, &[("k", "v")]).unwrap();
}

#[test]
fn a_ban_denies_alone_in_the_quota_group() {
    let policy = |quota_for_all| DecisionPolicy {
        planning: PlanSettings { quota_for_all, ..PlanSettings::default() },
        ..DecisionPolicy::default()
    };
    for (quota_for_all, flag) in [(true, ""), (false, "quota_mode: true, ")] {
        let other =
            format!("- {{key: o, {flag}rate_limit: {{unit: day, requests_per_unit: 10}}}}\n");
        let rules = RULE.replace("key: k,", &format!("key: k, {flag}")) + &other;
        let engine = engine_with(policy(quota_for_all), 100, &rules);
        ban(&engine, "v");
        let both = check_of(&[("o", "v"), ("k", "v")]);
        let denied = block_on(engine.decide(&both)).unwrap();
        assert_eq!((denied.verdict, denied.retry_after), (Verdict::Deny, Some(LENGTH)));
        lift(&engine, &[("k", "v")]).unwrap();
        let allowed = (0..9).map(|_| block_on(engine.decide(&both)).unwrap().verdict);
        assert!(allowed.into_iter().all(|verdict| verdict == Verdict::Allow), "{flag}");
        assert_eq!(engine.bans(), [], "the checks were allowed, so they were no strikes");
    }
}

#[test]
fn a_banned_request_gets_no_permit_and_does_not_wait() {
    let engine = engine(&format!(
        "{RULE}- {{key: up, concurrency: {{limit: 1, mode: local, max_duration: 60s, queue: {{size: 9, timeout: 60s}}}}}}\n"
    ));
    ban(&engine, "v");
    let descriptor = |entry| Descriptor {
        entries: [entry].into_iter().collect(),
        cost: Cost::Charge(Hits(1)),
        limit: None,
    };
    let free = Check { domain: "d", descriptors: [descriptor(("up", "u"))].into_iter().collect() };
    let banned = check_of(&[("up", "u"), ("k", "v")]);
    block_on(async {
        let AdmissionOutcome::Decided(_, permits) = engine.admit(&free, None).await.unwrap() else {
            panic!("the first request has a permit")
        };
        let denied = engine.admit(&banned, None).await.unwrap();
        let AdmissionOutcome::Decided(denied, _) = denied else { panic!("{denied:?}") };
        assert_eq!((denied.verdict, denied.ban_status), (Verdict::Deny, Some(403)));
        drop(permits);
    });
}

#[test]
fn the_number_of_bans_is_bounded() {
    let engine = engine(&RULE.replace("after: 3", "after: 1"));
    let values: Vec<_> = (0..MAX_BANS + 10).map(|number| format!("v{number}")).collect();
    let denied = |value| check(&[("k", value)], Cost::Charge(Hits(2)));
    block_on(async {
        for value in &values {
            engine.decide(&denied(value)).await.unwrap();
        }
    });
    assert_eq!(engine.bans().len(), MAX_BANS);
    assert!(is_banned(&engine, "v0"));
    assert_eq!(reason(&ask(&engine, &values[MAX_BANS + 5])), Reason::OverLimit, "refused");
    lift(&engine, &[("k", "v0")]).unwrap();
    advance_clock(&engine, LENGTH);
    assert!(!is_banned(&engine, "v1"));
    block_on(engine.decide(&denied(&values[MAX_BANS + 5]))).unwrap();
    assert!(is_banned(&engine, &values[MAX_BANS + 5]));
}

#[test]
fn listed_values_have_the_form_of_the_setting() {
    for (values, wanted) in [(DescriptorValues::Shown, "k=v"), (DescriptorValues::Hidden, "k=*")] {
        let policy = DecisionPolicy { descriptor_values: values, ..DecisionPolicy::default() };
        let engine = engine_with(policy, 100, RULE);
        ban(&engine, "v");
        assert_eq!(engine.bans()[0].descriptor, wanted);
        lift(&engine, &[("k", "v")]).unwrap();
    }
}
