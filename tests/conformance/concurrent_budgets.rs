//! Tests that replicas with one store never spend more than the amounts of their budgets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

use fastrand::Rng;
use sluicegate::kernel::budget::{
    Amount, BudgetPeriod, BudgetTerms, Ended, HoldId, OnExpiry, Reserved,
};
use sluicegate::kernel::key::CounterKey;
use sluicegate::kernel::rate::fixed_window::Windows;
use sluicegate::kernel::units::Nanos;
use sluicegate::store::budgets::{
    BudgetAction, BudgetCall, BudgetOutcome, BudgetPart, BudgetReply,
};
use sluicegate::store::{BudgetStore, Placement};

use super::{NEW_YEAR, RUNTIME, Stores};

const AMOUNTS: [u64; 2] = [4_000, 2_500];

/// The largest estimate. The requests in flight can hold more than both amounts.
const MAX_ESTIMATE: u64 = 300;

const REPLICAS: usize = 2;
const CLIENTS_PER_REPLICA: u64 = 12;
const REQUESTS_PER_CLIENT: u64 = 12;

fn part(index: usize, amount: u64) -> BudgetPart {
    // One period contains the time of every clock.
    let starts = [0, 1, 60_000, 90_000].map(|days| Nanos::from_secs(days * 86_400));
    let terms = BudgetTerms {
        amount: Amount(AMOUNTS[index]),
        period: BudgetPeriod::Each(Windows::Calendar { starts }),
        time_limit: Nanos::from_secs(600),
        on_expiry: OnExpiry::Charge,
        is_enforced: true,
    };
    let key = CounterKey::budget("llm", [("budget", &*index.to_string())].into_iter(), 0);
    BudgetPart { key, placement: Placement::by_domain("llm"), terms, amount: Amount(amount) }
}

/// The settled amounts of both budgets, and the numbers of granted and denied requests.
#[derive(Debug, Default)]
struct Ledger {
    settled: [AtomicU64; 2],
    held: AtomicUsize,
    denied: AtomicUsize,
}

/// Makes a call, and asserts that no budget of the reply exceeds its amount.
async fn send(store: &dyn BudgetStore, call: &BudgetCall) -> BudgetReply {
    let reply = store.call_budgets(NEW_YEAR, call).wait().await.unwrap();
    for (part, view) in call.budgets.iter().zip(&reply.views) {
        let used = view.usage.settled.0 + view.held.0;
        assert!(used <= part.terms.amount.0, "{view:?}");
    }
    reply
}

/// Sends one request: reserves the estimates, and settles or cancels them.
async fn request(store: &dyn BudgetStore, rng: &mut Rng, id: HoldId, ledger: &Ledger) {
    let order: &[usize] = [&[0, 1][..], &[1, 0], &[0], &[1]][rng.usize(..4)];
    let mut call = BudgetCall {
        id,
        action: BudgetAction::Reserve,
        budgets: order.iter().map(|index| part(*index, rng.u64(1..=MAX_ESTIMATE))).collect(),
    };
    match send(store, &call).await.outcome {
        BudgetOutcome::Reserved(Reserved::Held) => ledger.held.fetch_add(1, SeqCst),
        BudgetOutcome::Reserved(Reserved::Denied(_)) => {
            ledger.denied.fetch_add(1, SeqCst);
            return;
        }
        other => panic!("{other:?}"),
    };
    let is_settled = rng.u8(..4) != 0;
    call.action = if is_settled { BudgetAction::Settle } else { BudgetAction::Cancel };
    for (index, part) in order.iter().zip(&mut call.budgets) {
        // The estimate is an upper bound.
        part.amount = Amount(if is_settled { rng.u64(..=part.amount.0) } else { 0 });
        ledger.settled[*index].fetch_add(part.amount.0, SeqCst);
    }
    match send(store, &call).await.outcome {
        BudgetOutcome::Ended(ended) => {
            assert!(ended.iter().all(|hold| hold.ended == Ended::Now), "{id:?}: {ended:?}");
        }
        other => panic!("{other:?}"),
    }
}

/// Sends requests to all replicas at the same time, and compares the budgets with the ledger.
fn assert_never_overspent(replicas: [Arc<dyn BudgetStore>; REPLICAS], seed: u64) {
    let ledger = Arc::new(Ledger::default());
    let mut clients = Vec::new();
    for (replica, store) in replicas.iter().enumerate() {
        for client in 0..CLIENTS_PER_REPLICA {
            let (store, ledger) = (Arc::clone(store), Arc::clone(&ledger));
            let client = client * REPLICAS as u64 + replica as u64;
            clients.push(RUNTIME.spawn(async move {
                let mut rng = Rng::with_seed(seed * 1_000 + client);
                for number in 0..REQUESTS_PER_CLIENT {
                    request(&*store, &mut rng, HoldId(client, number), &ledger).await;
                }
            }));
        }
    }
    for client in clients {
        RUNTIME.block_on(client).unwrap();
    }
    let budgets = [0, 1].map(|index| part(index, 0)).into_iter().collect();
    let read = BudgetCall { id: HoldId(0, 0), action: BudgetAction::Read, budgets };
    for store in replicas {
        let views = RUNTIME.block_on(send(&*store, &read)).views;
        let settled = ledger.settled.each_ref().map(|settled| Amount(settled.load(SeqCst)));
        assert_eq!([0, 1].map(|index| views[index].usage.settled), settled);
        assert_eq!([0, 1].map(|index| views[index].held), [Amount(0); 2]);
    }
    assert!(ledger.held.load(SeqCst) > 20 && ledger.denied.load(SeqCst) > 20, "{ledger:?}");
}

#[test]
fn replicas_with_one_store_never_overspend_a_budget() {
    let stores = Stores::start();
    for seed in 0..3 {
        let prefix = stores.next_prefix();
        let replica = || Arc::new(stores.postgres_at(prefix.clone()));
        assert_never_overspent([replica(), replica()], seed);
        let file = Arc::new(stores.file(super::SyncMode::Always));
        assert_never_overspent([file.clone(), file], seed);
    }
}
