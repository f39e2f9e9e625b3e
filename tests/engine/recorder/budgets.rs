//! Tests of recordings of reserves, settles and renewals.
//!
//! Each row shows a deliberate fault in the code, and a test that failed with it.
//!
//! | fault | failed test |
//! |---|---|
//! | settles are left out | `reserves_and_their_ends_are_recorded_in_order` |
//! | ids are clear | `a_hashed_id_is_the_same_in_all_calls_of_a_request` |
//! | a sample has whole descriptors only | `a_sampled_first_entry_has_all_its_reserves_and_settles` |
//! | a check that another budget rejected is recorded | `a_denial_outside_the_sample_changes_no_sampled_counter` |
//! | a hold that another limit canceled is recorded | the same |
//! | checks without budgets use no new budgets | `checks_of_a_replica_without_budgets_charge_new_budgets` |

use std::collections::HashMap;

use sluicegate::config::Config;
use sluicegate::config::prices::TokenCounts;
use sluicegate::engine::budgets::{BudgetUse, RequestUsage, Reserve};
use sluicegate::engine::recorder::{RecordedKeys, RecordingOptions};
use sluicegate::engine::{AdmissionOutcome, Engine, PermitLifetime, RequestStart};
use sluicegate::kernel::decision::{Check, Cost, Descriptor, Verdict};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::recording::percent::Percent;
use sluicegate::recording::{CheckOutcome, RecordedBudgets, RecordedReserve};
use sluicegate::replay::comparison::{ReplayLimits, compare};

use super::{OPTIONS, engine, stopped};
use crate::recording::read;
use crate::support::dice::{Dice, seed};
use crate::support::engine::{advance_clock, check, publish};

const BUDGETS: &str = "\
- key: org
  budget: {amount: 1k tokens, unit: hour}
  descriptors:
  - {key: model, budget: {amount: 600 tokens, unit: minute}}
- {key: user, budget: {amount: 2k tokens, unit: minute}}
- {key: path, rate_limit: {unit: minute, requests_per_unit: 2}}
";

/// An engine with budgets whose holds expire after 20 seconds.
fn engine_of(estimate: &str) -> Engine {
    let engine = engine();
    let usage = format!("usage: {{estimate: {estimate}, at_most: 300 tokens, time_limit: 20s}}\n");
    publish(&engine, &usage, BUDGETS);
    engine
}

fn descriptor<'a>(entries: &[(&'a str, &'a str)]) -> Descriptor<'a> {
    let entries = entries.iter().copied().collect();
    Descriptor { entries, cost: Cost::Charge(Hits(1)), limit: None }
}

/// The descriptor of an organization and a model.
fn of_org<'a>(org: &'a str, model: &'a str) -> Descriptor<'a> {
    descriptor(&[("org", org), ("model", model)])
}

fn check_of(descriptors: Vec<Descriptor<'_>>) -> Check<'_> {
    Check { domain: "d", descriptors: descriptors.into_iter().collect() }
}

/// Decides a check that reserves in the budgets of its first descriptor. Returns `true` if it is
/// admitted.
async fn reserve(engine: &Engine, check: &Check<'_>, id: &str, tokens: u64) -> bool {
    let covered = check_of(check.descriptors.iter().take(1).cloned().collect());
    let reserve = Reserve { id, covered: &covered, tokens: Some(tokens) };
    admit(engine, check, BudgetUse::Reserve(reserve)).await
}

async fn admit<'q>(engine: &Engine, check: &Check<'q>, budgets: BudgetUse<'_, 'q>) -> bool {
    let no_permits = check_of(Vec::new());
    let start = RequestStart { covered: &no_permits, budgets };
    let admitted = engine.admit_request(start, check, None, PermitLifetime::UntilReleased).await;
    matches!(admitted.unwrap(), AdmissionOutcome::Decided(it, _) if it.verdict == Verdict::Allow)
}

async fn settle(engine: &Engine, check: &Check<'_>, id: &str, usage: RequestUsage) {
    let covered = check_of(check.descriptors.iter().take(1).cloned().collect());
    engine.settle(&covered, id, usage, None).await.unwrap();
}

fn used(any: u64) -> RequestUsage {
    RequestUsage::Tokens(TokenCounts { any, ..TokenCounts::default() })
}

fn reserved(id: &str, covered: &[u32], is_admitted: bool) -> RecordedBudgets<String> {
    let (id, covered, tokens) = (id.to_owned(), covered.to_vec(), Some(300));
    RecordedBudgets::Reserve(RecordedReserve { id, covered, tokens, is_admitted })
}

#[tokio::test]
async fn reserves_and_their_ends_are_recorded_in_order() {
    let engine = engine_of("max_tokens");
    let recording = engine.start_recording(OPTIONS).unwrap();
    let both = check_of(vec![of_org("acme", "m"), descriptor(&[("path", "/")])]);
    assert!(reserve(&engine, &both, "request-1", 300).await);
    assert!(reserve(&engine, &both, "request-2", 300).await);
    assert!(!reserve(&engine, &both, "request-3", 300).await, "the model's budget is held");
    assert!(engine.renew_budgets(&both, "request-1", None).await.unwrap());
    settle(&engine, &both, "request-1", used(10)).await;
    settle(&engine, &both, "request-2", RequestUsage::Nothing).await;
    assert!(!reserve(&engine, &both, "request-4", 300).await, "a rate limit of two denies");
    let hits = check_of(vec![of_org("acme", "m")]);
    assert!(admit(&engine, &hits, BudgetUse::Charge).await);
    engine.peek(hits.clone(), None).await.unwrap();
    let recorded = read(&stopped(&engine, recording).await).unwrap();
    let budgets: Vec<_> = recorded.checks.iter().map(|one| one.budgets.clone()).collect();
    let settled = |id: &str, usage| RecordedBudgets::Settle(id.to_owned(), usage);
    let expected = [
        reserved("request-1", &[0], true),
        reserved("request-2", &[0], true),
        reserved("request-3", &[0], false),
        RecordedBudgets::Renew("request-1".to_owned()),
        settled("request-1", used(10)),
        settled("request-2", RequestUsage::Nothing),
        reserved("request-4", &[0], false),
        RecordedBudgets::Charge,
        RecordedBudgets::Unused,
    ];
    assert_eq!(budgets, expected);
    let decided =
        |at: usize| (recorded.checks[at].outcome, recorded.checks[at].denied_by.as_deref());
    assert_eq!(decided(0), (CheckOutcome::Allow, None));
    assert_eq!(decided(2), (CheckOutcome::Deny, Some("d.org.model")));
    assert_eq!(decided(6), (CheckOutcome::Deny, Some("d.path")));
    assert_eq!(recorded.checks[0].descriptors.len(), 2);
    assert_eq!(recorded.checks[4].descriptors[0].0[0], ("org".to_owned(), "acme".to_owned()));
    assert_eq!(recorded.end.unwrap().recorded, 9);
}

/// Makes random calls for this time, with up to ten requests in flight.
async fn random_calls(engine: &Engine, dice: &mut Dice, duration: Nanos) {
    let (orgs, models) = (["a", "b", "c", "e", "f"], ["m", "n"]);
    let end = engine.clock().now().plus(duration);
    let mut open: Vec<(String, Check<'static>)> = Vec::new();
    let mut number = 0;
    while engine.clock().now() < end {
        advance_clock(engine, Nanos(dice.up_to(1_500) * Nanos::MILLI.0));
        let check = check_of(vec![
            of_org(dice.pick(&orgs), dice.pick(&models)),
            descriptor(&[("path", dice.pick(&orgs))]),
        ]);
        match dice.up_to(5) {
            0 => drop(admit(engine, &check, BudgetUse::Charge).await),
            1 if !open.is_empty() => {
                let indexes: Vec<_> = (0..open.len()).collect();
                let (id, check) = &open[dice.pick(&indexes)];
                engine.renew_budgets(check, id, None).await.unwrap();
            }
            2 | 3 if !open.is_empty() => {
                let indexes: Vec<_> = (0..open.len()).collect();
                let (id, check) = open.swap_remove(dice.pick(&indexes));
                let usages = [used(dice.up_to(400)), RequestUsage::Unknown, RequestUsage::Nothing];
                settle(engine, &check, &id, dice.pick(&usages)).await;
            }
            _ if open.len() < 10 => {
                number += 1;
                let id = format!("request-{number}");
                if reserve(engine, &check, &id, 1 + dice.up_to(400)).await {
                    open.push((id, check));
                }
            }
            // A request that is never settled.
            _ => drop(open.remove(0)),
        }
    }
}

#[tokio::test]
async fn replays_decide_every_reserve_as_recorded() {
    for (estimate, keys) in [
        ("max_tokens", RecordedKeys::Clear),
        ("learn", RecordedKeys::Hashed),
        ("150 tokens", RecordedKeys::Hashed),
    ] {
        let (engine, mut dice) = (engine_of(estimate), Dice::new(seed()));
        let options = RecordingOptions { keys, duration: Nanos::from_secs(3_600), ..OPTIONS };
        let recording = engine.start_recording(options).unwrap();
        random_calls(&engine, &mut dice, Nanos::from_secs(3_000)).await;
        let bytes = stopped(&engine, recording).await;
        let old = Config::clone(&engine.config().unwrap());
        let replayed = compare(&*bytes, ReplayLimits { old, new: None }).unwrap();
        assert_eq!(replayed.recorded.equal, replayed.recorded.known, "{estimate}");
        let (denied, all) = (replayed.old_denied, replayed.checks);
        assert!(all / 10 < denied && denied < all, "{estimate}: {denied} of {all}");
    }
}

#[tokio::test]
async fn a_hashed_id_is_the_same_in_all_calls_of_a_request() {
    let engine = engine_of("max_tokens");
    let options = RecordingOptions { keys: RecordedKeys::Hashed, ..OPTIONS };
    let recording = engine.start_recording(options).unwrap();
    let check = check_of(vec![of_org("acme", "m")]);
    for id in ["request-1", "request-2"] {
        reserve(&engine, &check, id, 10).await;
        settle(&engine, &check, id, used(10)).await;
    }
    let recorded = read(&stopped(&engine, recording).await).unwrap();
    let id_of = |at: usize| match &recorded.checks[at].budgets {
        RecordedBudgets::Reserve(reserve) => reserve.id.clone(),
        RecordedBudgets::Settle(id, _) => id.clone(),
        other => panic!("{other:?}"),
    };
    assert!(id_of(0).starts_with('~') && id_of(0).len() == 17, "{}", id_of(0));
    assert_eq!((id_of(0), id_of(2)), (id_of(1), id_of(3)));
    assert_ne!(id_of(0), id_of(2));
}

#[tokio::test]
async fn a_sampled_first_entry_has_all_its_reserves_and_settles() {
    let engine = engine();
    publish(&engine, "", &BUDGETS.replace("per_unit: 2", "per_unit: 3"));
    let sample = Percent::parse("20%").unwrap();
    let recording = engine.start_recording(RecordingOptions { sample, ..OPTIONS }).unwrap();
    let orgs: Vec<_> = (0..300).map(|org| org.to_string()).collect();
    for (number, model) in ["m", "n", "o"].into_iter().enumerate() {
        for org in &orgs {
            let check = check_of(vec![of_org(org, model), descriptor(&[("path", org)])]);
            let id = format!("request-{number}-{org}");
            assert!(reserve(&engine, &check, &id, 10).await);
            settle(&engine, &check, &id, used(10)).await;
        }
        advance_clock(&engine, Nanos::SECOND);
    }
    let bytes = stopped(&engine, recording).await;
    let (mut calls, mut paths) = (HashMap::<_, [u32; 2]>::new(), HashMap::<_, u32>::new());
    for one in read(&bytes).unwrap().checks {
        let entries = || one.descriptors.iter().map(|(entries, ..)| &entries[0]);
        let org = entries().find(|(key, _)| key == "org").map(|(_, org)| org.clone());
        let kind = match &one.budgets {
            RecordedBudgets::Reserve(reserve) => {
                assert_eq!(reserve.covered, [0]);
                Some(0)
            }
            RecordedBudgets::Settle(..) => Some(1),
            _ => None,
        };
        if let Some(kind) = kind {
            calls.entry(org.unwrap()).or_default()[kind] += 1;
        }
        for (_, path) in entries().filter(|(key, _)| key == "path") {
            *paths.entry(path.clone()).or_default() += 1;
        }
    }
    assert!(calls.values().all(|counts| *counts == [3, 3]), "{calls:?}");
    assert!(paths.values().all(|count| *count == 3), "{paths:?}");
    // 60 of each with a standard deviation of 7.
    assert!((20..=100).contains(&calls.len()) && (20..=100).contains(&paths.len()));
}

#[tokio::test]
async fn a_denial_outside_the_sample_changes_no_sampled_counter() {
    let engine = engine_of("max_tokens");
    let sample = Percent::parse("50%").unwrap();
    let recording = engine.start_recording(RecordingOptions { sample, ..OPTIONS }).unwrap();
    let values: Vec<_> = (0..40).map(|value| value.to_string()).collect();
    for (number, org) in values.iter().enumerate() {
        for path in &values {
            let check = check_of(vec![of_org(org, "m"), descriptor(&[("path", path)])]);
            reserve(&engine, &check, &format!("request-{number}-{path}"), 150).await;
        }
    }
    let bytes = stopped(&engine, recording).await;
    let old = Config::clone(&engine.config().unwrap());
    let replayed = compare(&*bytes, ReplayLimits { old, new: None }).unwrap();
    assert_eq!(replayed.recorded.equal, replayed.recorded.known);
    assert!(0 < replayed.old_denied && replayed.old_denied < replayed.checks);
}

#[tokio::test]
async fn checks_of_a_replica_without_budgets_charge_new_budgets() {
    let engine = engine();
    let recording = engine.start_recording(OPTIONS).unwrap();
    for _ in 0..5 {
        engine.decide(&check(&[("org", "acme")], Cost::Charge(Hits(300)))).await.unwrap();
    }
    let bytes = stopped(&engine, recording).await;
    let old = Config::clone(&engine.config().unwrap());
    publish(&engine, "", BUDGETS);
    let new = Some(Config::clone(&engine.config().unwrap()));
    let replayed = compare(&*bytes, ReplayLimits { old, new }).unwrap();
    // The fourth check finds 100 of 1,000 tokens free, and the fifth none.
    assert_eq!((replayed.old_denied, replayed.new.unwrap().newly_denied), (0, 1));
}

#[tokio::test]
async fn reserves_of_a_replica_without_budgets_hold_in_new_budgets() {
    let engine = engine();
    let recording = engine.start_recording(OPTIONS).unwrap();
    let check = check_of(vec![of_org("acme", "m")]);
    for number in 0..20 {
        let id = format!("request-{number}");
        assert!(reserve(&engine, &check, &id, 100).await);
        settle(&engine, &check, &id, used(50)).await;
    }
    let bytes = stopped(&engine, recording).await;
    let old = Config::clone(&engine.config().unwrap());
    publish(&engine, "", BUDGETS);
    let new = Some(Config::clone(&engine.config().unwrap()));
    let replayed = compare(&*bytes, ReplayLimits { old, new }).unwrap();
    // 50 k + 100 is at most the 600 of the model for the first 11 requests.
    assert_eq!((replayed.old_denied, replayed.new.unwrap().newly_denied), (0, 9));
}
