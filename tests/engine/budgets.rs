//! Budgets: what a check reserves, settles and charges.
//!
//! Each row shows a deliberate fault in the code, and a test that failed with it.
//!
//! | fault | failed test |
//! |---|---|
//! | a denial by a rate limit keeps the holds | `a_rate_limit_that_denies_cancels_the_holds` |
//! | a call is sent again if its reply is late | `a_store_that_replies_later_gets_each_call_once` |
//! | a failed call is not repeated | `lost_replies_leave_no_hold_and_lose_no_settle` |
//! | only the last rule of a descriptor counts | `a_descriptor_reserves_in_the_budgets_of_all_its_entries` |

mod met;

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use futures_util::FutureExt as _;
use sluicegate::clock::Clock;
use sluicegate::config::prices::TokenCounts;
use sluicegate::config::tables::{Loading, RawRow, Table, TableSpec};
use sluicegate::engine::budgets::{BudgetStatus, BudgetUse, RequestUsage, Reserve};
use sluicegate::engine::{
    AdmissionOutcome, CheckError, DecisionPolicy, Engine, PermitLifetime, Rejection, RequestStart,
};
use sluicegate::kernel::budget::{Amount, Ended};
use sluicegate::kernel::decision::{Check, Cost, Descriptor, Reason, Verdict};
use sluicegate::kernel::key::CounterKey;
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::budgets::{BudgetCall, BudgetReply};
use sluicegate::store::lease::{LeaseMessage, LeaseOutcome};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::store::{
    AuditStore, BudgetStore, Charges, CounterStore, FleetStore, Outcomes, Store, StoreFailure,
    StoreReply,
};

use crate::support::engine::{advance_clock, block_on, publish};
use crate::support::waiting::soon;

const TOKENS: &str = "\
- key: org
  budget: {amount: 1k tokens, unit: hour}
  descriptors:
  - {key: model, budget: {amount: 600 tokens, unit: minute}}
- {key: path, rate_limit: {unit: hour, requests_per_unit: 1}}
";

/// A store that applies a call at once, and replies later, as the file store does.
#[derive(Debug)]
struct Late {
    memory: MemoryStore,
    /// The number of next calls whose replies are lost.
    lost: AtomicU32,
    /// The number of next calls that are not made.
    refused: AtomicU32,
}

impl CounterStore for Late {
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> StoreReply<'a, Outcomes> {
        self.memory.charge(now, charges)
    }

    fn exchange_lease_message<'a>(
        &'a self,
        now: Nanos,
        message: &'a LeaseMessage,
    ) -> StoreReply<'a, LeaseOutcome> {
        self.memory.exchange_lease_message(now, message)
    }
}

impl FleetStore for Late {}

impl AuditStore for Late {}

impl BudgetStore for Late {
    fn call_budgets<'a>(
        &'a self,
        now: Nanos,
        call: &'a BudgetCall,
    ) -> StoreReply<'a, Result<BudgetReply, StoreFailure>> {
        let less = |left: u32| left.checked_sub(1);
        if self.refused.fetch_update(Relaxed, Relaxed, less).is_ok() {
            return StoreReply::Ready(Err(StoreFailure::Loading));
        }
        let StoreReply::Ready(reply) = self.memory.call_budgets(now, call) else {
            panic!("not ready")
        };
        let is_lost = self.lost.fetch_update(Relaxed, Relaxed, less).is_ok();
        StoreReply::Pending(Box::pin(async move {
            tokio::task::yield_now().await;
            if is_lost { Err(StoreFailure::TimedOut) } else { reply }
        }))
    }
}

fn late() -> Arc<Late> {
    Arc::new(Late { memory: memory(), lost: AtomicU32::new(0), refused: AtomicU32::new(0) })
}

fn memory() -> MemoryStore {
    MemoryStore::new(1_000, WhenFull::Deny, [0; 16])
}

fn engine_at(usage: &str, descriptors: &str, is_shadow: bool) -> Engine {
    engine_with(Arc::new(memory()), usage, descriptors, is_shadow)
}

fn engine_with(store: Arc<dyn Store>, usage: &str, descriptors: &str, is_shadow: bool) -> Engine {
    let policy = DecisionPolicy { is_shadow, ..DecisionPolicy::default() };
    let engine = Engine::new(Clock::manual(Nanos::from_secs(36_000)), store, policy);
    publish(&engine, &format!("usage: {{{usage}}}\n"), descriptors);
    engine
}

fn engine(usage: &str) -> Engine {
    engine_at(usage, TOKENS, false)
}

fn descriptor<'a>(entries: &[(&'a str, &'a str)], hits: u64) -> Descriptor<'a> {
    let entries = entries.iter().copied().collect();
    Descriptor { entries, cost: Cost::Charge(Hits(hits)), limit: None }
}

fn check_of(descriptors: Vec<Descriptor<'_>>) -> Check<'_> {
    Check { domain: "d", descriptors: descriptors.into_iter().collect() }
}

fn acme() -> Check<'static> {
    check_of(vec![descriptor(&[("org", "acme"), ("model", "m")], 1)])
}

fn start(
    engine: &Engine,
    check: &Check<'static>,
    budgets: BudgetUse<'_, 'static>,
) -> Result<AdmissionOutcome, CheckError> {
    let covered = &check_of(Vec::new());
    let start = RequestStart { covered, budgets };
    block_on(engine.admit_request(start, check, None, PermitLifetime::UntilReleased))
}

fn reserve(
    engine: &Engine,
    check: &Check<'static>,
    id: &str,
    tokens: u64,
) -> Result<AdmissionOutcome, CheckError> {
    let reserve = Reserve { id, covered: check, tokens: Some(tokens) };
    start(engine, check, BudgetUse::Reserve(reserve))
}

fn is_allowed(outcome: &AdmissionOutcome) -> bool {
    matches!(outcome, AdmissionOutcome::Decided(it, _) if it.verdict == Verdict::Allow)
}

fn rejection(outcome: Result<AdmissionOutcome, CheckError>) -> Rejection {
    match outcome {
        Ok(AdmissionOutcome::Rejected(rejection)) => rejection,
        other => panic!("{other:?}"),
    }
}

fn used(any: u64) -> RequestUsage {
    RequestUsage::Tokens(TokenCounts { any, ..TokenCounts::default() })
}

/// The settled and the held amount of each budget.
fn amounts(engine: &Engine, check: &Check<'_>) -> Vec<(u64, u64)> {
    let read = block_on(engine.read_budgets(check, None)).unwrap();
    let amounts = |it: &BudgetStatus| (it.view.usage.settled.0, it.view.held.0);
    read.iter().map(amounts).collect()
}

#[test]
fn a_descriptor_reserves_in_the_budgets_of_all_its_entries() {
    let engine = engine("estimate: max_tokens");
    assert!(is_allowed(&reserve(&engine, &acme(), "request-1", 400).unwrap()));
    assert_eq!(amounts(&engine, &acme()), [(0, 400), (0, 400)]);
    let denied = rejection(reserve(&engine, &acme(), "request-2", 300));
    assert_eq!((denied.reason, &*denied.path), (Reason::BudgetHeld, "d.org.model"));
    assert_eq!((denied.reject.status, denied.reject.retry_after), (429, Some(Nanos::SECOND)));
    assert_eq!(amounts(&engine, &acme()), [(0, 400), (0, 400)], "a denial changes nothing");
    block_on(engine.settle(&acme(), "request-1", used(500), None)).unwrap();
    assert_eq!(amounts(&engine, &acme()), [(500, 0), (500, 0)]);
    // Another model has a budget of its own. A descriptor with an unknown entry meets that of its org.
    let other = check_of(vec![descriptor(&[("org", "acme"), ("model", "other")], 1)]);
    assert!(is_allowed(&reserve(&engine, &other, "request-3", 300).unwrap()));
    let team = check_of(vec![descriptor(&[("org", "acme"), ("team", "t")], 1)]);
    let denied = rejection(reserve(&engine, &team, "request-4", 300));
    assert_eq!((denied.reason, &*denied.path), (Reason::BudgetHeld, "d.org"));
    advance_clock(&engine, Nanos::from_secs(3_600));
    assert!(is_allowed(&reserve(&engine, &team, "request-5", 1_000).unwrap()));
    let denied = rejection(reserve(&engine, &team, "request-6", 1_001));
    assert_eq!(denied.reason, Reason::LargerThanBudget);
}

#[tokio::test]
async fn a_store_that_replies_later_gets_each_call_once() {
    let engine = engine_with(late(), "estimate: max_tokens", TOKENS, false);
    let (check, covered) = (acme(), &check_of(Vec::new()));
    let reserve = Reserve { id: "request-1", covered: &check, tokens: Some(100) };
    let start = RequestStart { covered, budgets: BudgetUse::Reserve(reserve) };
    let lifetime = PermitLifetime::UntilReleased;
    let admitted = engine.admit_request(start, &check, None, lifetime).await.unwrap();
    assert!(is_allowed(&admitted));
    // A dropped reserve leaves no hold: it ends in the background.
    let dropped = Reserve { id: "request-2", ..reserve };
    let start = RequestStart { covered, budgets: BudgetUse::Reserve(dropped) };
    assert!(engine.admit_request(start, &check, None, lifetime).now_or_never().is_none());
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    let settled = engine.settle(&check, "request-1", used(70), None).await.unwrap();
    assert_eq!(settled[0].ended.unwrap().ended, Ended::Now);
    let read = engine.read_budgets(&check, None).await.unwrap();
    assert_eq!((read[0].view.usage.settled, read[0].view.held), (Amount(70), Amount(0)));
}

async fn wait_until(is_true: impl AsyncFn() -> bool) {
    let wait = async {
        while !is_true().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon("a repeated call", wait).await;
}

#[tokio::test]
async fn lost_replies_leave_no_hold_and_lose_no_settle() {
    let store = late();
    let engine = engine_with(store.clone(), "estimate: max_tokens", TOKENS, false);
    let (check, covered) = (acme(), &check_of(Vec::new()));
    let start = |id: &'static str| {
        let reserve = Reserve { id, covered: &check, tokens: Some(100) };
        let start = RequestStart { covered, budgets: BudgetUse::Reserve(reserve) };
        engine.admit_request(start, &check, None, PermitLifetime::UntilReleased)
    };
    let amounts = async || {
        let read = engine.read_budgets(&check, None).await.unwrap();
        (read[0].view.usage.settled.0, read[0].view.held.0)
    };
    store.lost.store(1, Relaxed);
    let refused = start("request-1").await;
    assert!(matches!(refused, Err(CheckError::StoreUnavailable(_))), "{refused:?}");
    assert_eq!(amounts().await, (0, 100), "the reserve without a reply made a hold");
    wait_until(async || amounts().await == (0, 0)).await;
    assert!(is_allowed(&start("request-2").await.unwrap()));
    store.lost.store(2, Relaxed);
    let settled = engine.settle(&check, "request-2", used(70), None).await;
    assert!(matches!(settled, Err(CheckError::StoreUnavailable(_))), "{settled:?}");
    // The second lost reply is that of the repeated call.
    wait_until(async || store.lost.load(Relaxed) == 0).await;
    assert_eq!(amounts().await, (70, 0), "a repeated settle charges once");
}

#[tokio::test]
async fn charges_that_the_store_did_not_make_are_repeated() {
    let store = late();
    let engine = engine_with(store.clone(), "estimate: max_tokens", TOKENS, false);
    let (check, covered) = (check_of(vec![descriptor(&[("org", "acme")], 40)]), &check_of(vec![]));
    let charge = async || {
        let start = RequestStart { covered, budgets: BudgetUse::Charge };
        let lifetime = PermitLifetime::UntilReleased;
        engine.admit_request(start, &check, None, lifetime).await.unwrap_err()
    };
    let settled = async || engine.read_budgets(&check, None).await.unwrap()[0].view.usage.settled.0;
    // The first repeat fails, too. The reply to the second one is lost, which ends the repeats.
    store.refused.store(2, Relaxed);
    charge().await;
    wait_until(async || store.refused.load(Relaxed) == 0).await;
    store.lost.store(1, Relaxed);
    wait_until(async || store.lost.load(Relaxed) == 0).await;
    assert_eq!(settled().await, 40);
}

#[test]
fn a_missing_price_affects_only_budgets_of_money() {
    let descriptors = "- {key: org, budget: {amount: 1k tokens, unit: month}}\n\
                       - {key: team, budget: {amount: 1 usd, unit: month}, shadow_mode: true}\n";
    let engine = engine_at("prices: models", descriptors, false);
    let check =
        || check_of(vec![descriptor(&[("org", "acme")], 1), descriptor(&[("team", "t")], 1)]);
    // The budget of money is in shadow mode, so it does not deny.
    assert!(is_allowed(&reserve(&engine, &check(), "request-1", 40).unwrap()));
    assert_eq!(amounts(&engine, &check()), [(0, 40), (0, 0)]);
    block_on(engine.settle(&check(), "request-1", used(30), None)).unwrap();
    assert_eq!(amounts(&engine, &check()), [(30, 0), (0, 0)]);
}

#[test]
fn a_spent_budget_names_the_time_of_its_next_period() {
    let engine = engine("estimate: max_tokens");
    assert!(is_allowed(&reserve(&engine, &acme(), "request-1", 600).unwrap()));
    block_on(engine.settle(&acme(), "request-1", used(600), None)).unwrap();
    advance_clock(&engine, Nanos::from_secs(20));
    for tokens in [0, 1] {
        let denied = rejection(reserve(&engine, &acme(), "request-2", tokens));
        assert_eq!(denied.reason, Reason::BudgetSpent, "{tokens}");
        assert_eq!(denied.reject.retry_after, Some(Nanos::from_secs(40)));
    }
}

#[test]
fn a_rate_limit_that_denies_cancels_the_holds() {
    let engine = engine("estimate: max_tokens");
    let limited = || {
        let mut check = acme();
        check.descriptors.push(descriptor(&[("path", "/")], 1));
        check
    };
    assert!(is_allowed(&reserve(&engine, &limited(), "request-1", 100).unwrap()));
    assert!(!is_allowed(&reserve(&engine, &limited(), "request-2", 100).unwrap()));
    assert_eq!(amounts(&engine, &acme()), [(0, 100), (0, 100)]);
    // The proxy settles every request, also a denied one, whose usage is unknown.
    block_on(engine.settle(&acme(), "request-2", RequestUsage::Unknown, None)).unwrap();
    assert_eq!(amounts(&engine, &acme()), [(0, 100), (0, 100)]);
}

#[test]
fn a_full_store_says_that_it_is_full() {
    let full = || Arc::new(MemoryStore::new(1, WhenFull::Deny, [0; 16]));
    let engine = engine_with(full(), "estimate: max_tokens", TOKENS, false);
    let error = reserve(&engine, &acme(), "request-1", 100).unwrap_err().to_string();
    assert!(error.starts_with("the store is full (out_of_memory)"), "{error}");
    let denies = TOKENS.replace("unit: hour}", "unit: hour, on_store_failure: deny}");
    let store = full();
    let engine = engine_with(store.clone(), "estimate: max_tokens", &denies, false);
    assert_eq!(rejection(reserve(&engine, &acme(), "request-1", 100)).reason, Reason::StoreFull);
    assert_eq!(store.times_full(), 1);
}

#[test]
fn another_unit_is_another_budget() {
    let engine = engine("estimate: max_tokens");
    assert!(is_allowed(&reserve(&engine, &acme(), "request-1", 100).unwrap()));
    block_on(engine.settle(&acme(), "request-1", used(70), None)).unwrap();
    let reload =
        |descriptors: &str| publish(&engine, "usage: {estimate: max_tokens}\n", descriptors);
    reload(&TOKENS.replace("tokens", "input_tokens"));
    assert_eq!(amounts(&engine, &acme()), [(0, 0), (0, 0)]);
    reload(&TOKENS.replace("1k tokens", "2k tokens"));
    assert_eq!(amounts(&engine, &acme()), [(70, 0), (70, 0)], "another amount keeps the charges");
}

#[test]
fn an_id_is_for_one_request() {
    let engine = engine("estimate: max_tokens");
    assert!(is_allowed(&reserve(&engine, &acme(), "request-1", 100).unwrap()));
    let again = rejection(reserve(&engine, &acme(), "request-1", 100));
    assert_eq!(again.reason, Reason::RepeatedId);
    block_on(engine.settle(&acme(), "request-1", used(70), None)).unwrap();
    block_on(engine.settle(&acme(), "request-1", used(70), None)).unwrap();
    let again = rejection(reserve(&engine, &acme(), "request-1", 100));
    assert_eq!(again.reason, Reason::RepeatedId);
    assert_eq!(amounts(&engine, &acme()), [(70, 0), (70, 0)]);
}

#[test]
fn unknown_usage_charges_the_estimate_and_failed_requests_nothing() {
    let engine = engine("estimate: 50 tokens, on_expiry: charge, time_limit: 10s");
    for (id, usage, settled) in [
        ("request-1", RequestUsage::Unknown, 50),
        ("request-2", RequestUsage::Nothing, 50),
        ("request-3", used(7), 57),
    ] {
        assert!(is_allowed(&reserve(&engine, &acme(), id, 1).unwrap()));
        block_on(engine.settle(&acme(), id, usage, None)).unwrap();
        assert_eq!(amounts(&engine, &acme()), [(settled, 0); 2], "{id}");
    }
    assert!(is_allowed(&reserve(&engine, &acme(), "request-4", 1).unwrap()));
    advance_clock(&engine, Nanos::from_secs(9));
    assert!(block_on(engine.renew_budgets(&acme(), "request-4", None)).unwrap());
    advance_clock(&engine, Nanos::from_secs(9));
    assert_eq!(amounts(&engine, &acme()), [(57, 50); 2], "renewed");
    advance_clock(&engine, Nanos::from_secs(1));
    assert_eq!(amounts(&engine, &acme()), [(107, 0); 2], "expired");
    block_on(engine.settle(&acme(), "request-4", used(3), None)).unwrap();
    assert_eq!(amounts(&engine, &acme()), [(60, 0); 2], "a late settle corrects the expiry");
}

#[test]
fn a_learned_estimate_replaces_the_largest_one() {
    let engine = engine("estimate: learn, at_most: 500 tokens");
    let ask = |number: u64, tokens| reserve(&engine, &acme(), &format!("request-{number}"), tokens);
    for number in 0..30 {
        advance_clock(&engine, Nanos::from_secs(3_600));
        assert!(is_allowed(&ask(number, 9_999).unwrap()));
        assert_eq!(amounts(&engine, &acme()), [(0, 500); 2]);
        block_on(engine.settle(&acme(), &format!("request-{number}"), used(20), None)).unwrap();
    }
    assert!(is_allowed(&ask(30, 9_999).unwrap()));
    let [(20, held), (20, _)] = amounts(&engine, &acme())[..] else { panic!("not settled") };
    assert!((20..25).contains(&held), "{held}");
    assert!(is_allowed(&ask(31, 5).unwrap()), "the caller knows a smaller bound");
    assert_eq!(amounts(&engine, &acme()), [(20, held + 5); 2]);
}

#[test]
fn shadow_mode_holds_and_never_denies() {
    let descriptors = TOKENS.replace("- key: org", "- key: org\n  shadow_mode: true");
    let in_file = engine_at("estimate: max_tokens", &descriptors, false);
    let org = check_of(vec![descriptor(&[("org", "acme")], 1)]);
    let everywhere = engine_at("estimate: max_tokens", TOKENS, true);
    for engine in [in_file, everywhere] {
        for number in 0..3 {
            let id = format!("request-{number}");
            assert!(is_allowed(&reserve(&engine, &org, &id, 900).unwrap()));
        }
        assert_eq!(amounts(&engine, &org), [(0, 2_700)]);
    }
}

/// For proxies without ids, which check first and count the tokens afterwards.
#[test]
fn a_check_without_an_id_charges_its_hits() {
    let engine = engine("estimate: max_tokens");
    let charge = |hits| {
        let check = check_of(vec![descriptor(&[("org", "acme")], hits)]);
        start(&engine, &check, BudgetUse::Charge)
    };
    assert!(is_allowed(&charge(0).unwrap()));
    assert!(is_allowed(&charge(1_200).unwrap()));
    for hits in [0, 30] {
        assert_eq!(rejection(charge(hits)).reason, Reason::BudgetSpent);
    }
    let org = check_of(vec![descriptor(&[("org", "acme")], 1)]);
    assert_eq!(amounts(&engine, &org), [(1_230, 0)], "no token is lost");
}

fn prices(rows: &[&str]) -> Arc<[Arc<Table>]> {
    let spec = Arc::new(TableSpec::new("models", [].into(), 100).unwrap());
    let mut loading = Loading::new(spec, None);
    for row in rows {
        loading.add(Ok(RawRow::from_json(row).unwrap()), &|_, _| Ok(())).unwrap();
    }
    Arc::from([Arc::new(loading.finish().unwrap().0)])
}

#[test]
fn money_is_charged_by_the_prices_of_the_model() {
    let descriptors = "- {key: org, budget: {amount: 1 usd, unit: month}}\n- key: model\n";
    let engine = engine_at("prices: models, at_most: 10k tokens", descriptors, false);
    let of_model = |model: &'static str| {
        check_of(vec![descriptor(&[("org", "acme")], 1), descriptor(&[("model", model)], 1)])
    };
    engine.publish_tables(prices(&[
        r#"{"id": "large", "input": 2500, "cached_input": 1250, "output": 10000}"#,
    ]));
    let unknown = rejection(reserve(&engine, &of_model("other"), "request-1", 1));
    assert_eq!(unknown.reason, Reason::NoPrice);
    // 10,000 tokens, each as dear as an output token.
    assert!(is_allowed(&reserve(&engine, &of_model("large"), "request-2", 99_999).unwrap()));
    assert_eq!(amounts(&engine, &of_model("large")), [(0, 100_000)]);
    let tokens = TokenCounts { input: 1_000, cached_input: 2_000, output: 100, any: 0 };
    let usage = RequestUsage::Tokens(tokens);
    block_on(engine.settle(&of_model("large"), "request-2", usage, None)).unwrap();
    assert_eq!(amounts(&engine, &of_model("large")), [(2_500 + 2_500 + 1_000, 0)]);
}
