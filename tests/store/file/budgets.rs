//! Tests that budgets survive a restart, and that a crash returns them to the last sync.

use fastrand::Rng;
use proptest::prelude::{Just, ProptestConfig, any, prop, prop_assert_eq, prop_oneof, proptest};
use proptest::strategy::Strategy as _;
use sluicegate::kernel::budget::{
    Amount, BudgetPeriod, BudgetTerms, BudgetView, Denial, DenialCause, Ended, EndedHold, HoldId,
    OnExpiry, Reserved,
};
use sluicegate::kernel::decision::StoreFailure;
use sluicegate::kernel::key::CounterKey;
use sluicegate::kernel::rate::fixed_window::Windows;
use sluicegate::kernel::units::Nanos;
use sluicegate::store::budgets::{
    BudgetAction, BudgetCall, BudgetOutcome, BudgetPart, BudgetReply,
};
use sluicegate::store::file::{FileStore, OpenedFileStore};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::store::{BudgetStore, Placement, StoreReply};

use super::always::always;
use super::{NEW_YEAR, open, sync, time};
use crate::conformance::budgets::random_call;
use crate::support::waiting::PATIENCE;

#[derive(Clone, Debug)]
enum Step {
    /// A random call, by its seed.
    Call(u64),
    Wait(Nanos),
    Sweep,
    Sync,
    Restart,
    Crash,
}

fn step() -> impl proptest::strategy::Strategy<Value = Step> {
    prop_oneof![
        12 => any::<u64>().prop_map(Step::Call),
        // Holds expire after 30 ms. All pauses together are shorter than the periods that are kept.
        3 => (1_u64..10).prop_map(|millis| Step::Wait(Nanos(millis * Nanos::MILLI.0))),
        1 => Just(Step::Sweep),
        2 => Just(Step::Sync),
        2 => Just(Step::Restart),
        1 => Just(Step::Crash),
    ]
}

fn execute(store: &dyn BudgetStore, now: Nanos, call: &BudgetCall) -> BudgetReply {
    match store.call_budgets(now, call) {
        StoreReply::Ready(reply) => reply.unwrap(),
        StoreReply::Pending(_) => panic!("a call waits for the disk"),
    }
}

/// Returns a memory store after these calls.
fn replay(calls: &[(Nanos, BudgetCall)]) -> MemoryStore {
    let memory = MemoryStore::new(1_000, WhenFull::Deny, [7; 16]);
    for (now, call) in calls {
        execute(&memory, *now, call);
    }
    memory
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_restart_keeps_all_synced_budgets(steps in prop::collection::vec(step(), 1..60)) {
        let directory = tempfile::tempdir().unwrap();
        let mut now = NEW_YEAR;
        let mut file = open(directory.path(), now);
        let mut memory = replay(&[]);
        let mut calls: Vec<(Nanos, BudgetCall)> = Vec::new();
        let mut synced = 0;
        for step in steps {
            match step {
                Step::Call(seed) => {
                    let call = random_call(&mut Rng::with_seed(seed), "file");
                    let expected = execute(&memory, now, &call);
                    prop_assert_eq!(execute(&file.store, now, &call), expected, "at {:?}", &call);
                    calls.push((now, call));
                }
                Step::Wait(pause) => now = now.plus(pause),
                Step::Sweep => file.store.memory().sweep_next(now),
                Step::Sync => {
                    sync(&mut file, now);
                    synced = calls.len();
                }
                Step::Restart | Step::Crash => {
                    if matches!(step, Step::Restart) {
                        sync(&mut file, now);
                        synced = calls.len();
                    }
                    calls.truncate(synced);
                    memory = replay(&calls);
                    drop(file);
                    file = open(directory.path(), now);
                }
            }
        }
    }
}

const AMOUNT: u64 = 100;

fn terms(period: BudgetPeriod) -> BudgetTerms {
    let time_limit = Nanos::from_secs(600);
    let on_expiry = OnExpiry::Charge;
    BudgetTerms { amount: Amount(AMOUNT), period, time_limit, on_expiry, is_enforced: true }
}

/// A call to a budget of 100 for each day, or to a prepaid one.
fn call(action: BudgetAction, id: u64, name: &str, amount: u64) -> BudgetCall {
    let period = match name {
        "prepaid" => BudgetPeriod::Prepaid,
        _ => BudgetPeriod::Each(Windows::Every(Nanos::from_secs(86_400))),
    };
    let key = CounterKey::budget("llm", [("budget", name)].into_iter(), 0);
    let (placement, terms, amount) = (Placement::ByKey, terms(period), Amount(amount));
    let budgets = [BudgetPart { key, placement, terms, amount }].into_iter().collect();
    BudgetCall { id: HoldId(7, id), action, budgets }
}

fn view(store: &dyn BudgetStore, now: Nanos, name: &str) -> BudgetView {
    execute(store, now, &call(BudgetAction::Read, 0, name, 0)).views[0]
}

/// A store in which request 1 settled 10, request 2 holds 30, and 500 were paid before.
fn create(file: &OpenedFileStore) {
    let calls = [
        call(BudgetAction::Reserve, 1, "daily", 40),
        call(BudgetAction::Reserve, 2, "daily", 30),
        call(BudgetAction::Settle, 1, "daily", 10),
        call(BudgetAction::TopUp, 9, "prepaid", 500),
    ];
    for call in calls {
        execute(&file.store, NEW_YEAR, &call);
    }
}

#[test]
fn a_restart_keeps_spending_holds_known_ids_and_credit() {
    let directory = tempfile::tempdir().unwrap();
    let mut file = open(directory.path(), NEW_YEAR);
    create(&file);
    sync(&mut file, NEW_YEAR);
    drop(file);
    let file = open(directory.path(), NEW_YEAR);
    let daily = view(&file.store, NEW_YEAR, "daily");
    assert_eq!((daily.usage.settled, daily.held), (Amount(10), Amount(30)));
    let send = |call| execute(&file.store, NEW_YEAR, &call).outcome;
    let denied = Reserved::Denied(Denial { index: 0, cause: DenialCause::InFlight });
    let reserved = send(call(BudgetAction::Reserve, 3, "daily", 61));
    assert_eq!(reserved, BudgetOutcome::Reserved(denied));
    for (id, ended, counted) in [(1, Ended::Before, 10), (2, Ended::Now, 30)] {
        let ended = [EndedHold { ended, counted: Amount(counted) }].into_iter().collect();
        assert_eq!(send(call(BudgetAction::Settle, id, "daily", 25)), BudgetOutcome::Ended(ended));
    }
    let repeated = BudgetOutcome::ToppedUp([Some(Amount(500))].into_iter().collect());
    assert_eq!(send(call(BudgetAction::TopUp, 9, "prepaid", 40)), repeated);
    assert_eq!(view(&file.store, NEW_YEAR, "prepaid").credit, Amount(500));
}

#[test]
fn a_hold_that_expires_while_no_process_runs_is_charged() {
    let directory = tempfile::tempdir().unwrap();
    let mut file = open(directory.path(), NEW_YEAR);
    execute(&file.store, NEW_YEAR, &call(BudgetAction::Reserve, 1, "daily", 40));
    sync(&mut file, NEW_YEAR);
    drop(file);
    let later = NEW_YEAR.plus(Nanos::from_secs(3_600));
    let file = open(directory.path(), later);
    assert_eq!(view(&file.store, later, "daily").usage.settled, Amount(40));
}

#[test]
fn cleared_budgets_stay_away_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let mut file = open(directory.path(), NEW_YEAR);
    create(&file);
    sync(&mut file, NEW_YEAR);
    file.store.memory().clear();
    sync(&mut file, NEW_YEAR);
    drop(file);
    let file = open(directory.path(), NEW_YEAR);
    assert_eq!(view(&file.store, NEW_YEAR, "prepaid").credit, Amount(0));
    assert_eq!(view(&file.store, NEW_YEAR, "daily").held, Amount(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answered_reserves_survive_a_crash_with_sync_always() {
    let directory = tempfile::tempdir().unwrap();
    let file = FileStore::open(&always(directory.path(), PATIENCE), NEW_YEAR).unwrap();
    let thread = file.writer.spawn(|| time(NEW_YEAR)).unwrap();
    let store = std::sync::Arc::new(file.store);
    let mut calls = tokio::task::JoinSet::new();
    for id in 0..60 {
        let store = std::sync::Arc::clone(&store);
        calls.spawn(async move {
            let call = call(BudgetAction::Reserve, id, "daily", 1);
            let StoreReply::Pending(reply) = store.call_budgets(NEW_YEAR, &call) else {
                panic!("the reply did not wait for the disk")
            };
            reply.await.unwrap().outcome
        });
    }
    let held = BudgetOutcome::Reserved(Reserved::Held);
    assert!(calls.join_all().await.into_iter().all(|outcome| outcome == held));
    // A copy of the file, as if the machine had stopped here.
    let copy = tempfile::tempdir().unwrap();
    std::fs::copy(directory.path().join("counters.redb"), copy.path().join("counters.redb"))
        .unwrap();
    assert_eq!(view(&open(copy.path(), NEW_YEAR).store, NEW_YEAR, "daily").held, Amount(60));
    thread.close();
}

#[tokio::test]
async fn a_reserve_fails_when_the_disk_takes_too_long() {
    let directory = tempfile::tempdir().unwrap();
    let options = always(directory.path(), std::time::Duration::from_millis(20));
    // No thread writes.
    let file = FileStore::open(&options, NEW_YEAR).unwrap();
    let call = call(BudgetAction::Reserve, 1, "daily", 1);
    let reply = file.store.call_budgets(NEW_YEAR, &call).wait().await;
    assert_eq!(reply, Err(StoreFailure::TimedOut));
}
