//! Budgets: every store replies as the kernel does at the instant of the reply.

use std::collections::HashMap;
use std::time::Duration;

use fastrand::Rng;
use sluicegate::kernel::budget::{
    Amount, Budget, BudgetPeriod, BudgetTerms, HoldId, OnExpiry, Reserved,
};
use sluicegate::kernel::key::CounterKey;
use sluicegate::kernel::rate::fixed_window::Windows;
use sluicegate::kernel::units::Nanos;
use sluicegate::store::budgets::{
    BudgetAction, BudgetCall, BudgetOutcome, BudgetPart, BudgetReply,
};
use sluicegate::store::file::SyncMode;
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::store::redis::{RedisTopology, StoreGroup};
use sluicegate::store::{BudgetStore, Placement, StoreFailure};

use super::{NEW_YEAR, RUNTIME, Stores};
use crate::support::resp::Value;

const ACTIONS: [BudgetAction; 10] = [
    BudgetAction::Reserve,
    BudgetAction::Reserve,
    BudgetAction::Reserve,
    BudgetAction::Settle,
    BudgetAction::SettleHeld,
    BudgetAction::Cancel,
    BudgetAction::Renew,
    BudgetAction::Charge,
    BudgetAction::TopUp,
    BudgetAction::Read,
];

/// The budgets of the test: periods that end during it, a calendar, a prepaid one, and one in
/// shadow mode.
fn terms(index: usize) -> BudgetTerms {
    let starts = [0, 1, 60_000, 90_000].map(|days| Nanos::from_secs(days * 86_400));
    let period = match index {
        0 => BudgetPeriod::Each(Windows::Every(Nanos(Nanos::MILLI.0 * 20))),
        1 => BudgetPeriod::Each(Windows::Calendar { starts }),
        2 => BudgetPeriod::Prepaid,
        _ => BudgetPeriod::Each(Windows::Every(Nanos::from_secs(3_600))),
    };
    let on_expiry = if index == 1 { OnExpiry::Release } else { OnExpiry::Charge };
    let time_limit = Nanos(Nanos::MILLI.0 * 30);
    BudgetTerms { amount: Amount(100), period, time_limit, on_expiry, is_enforced: index != 3 }
}

fn part(name: &str, index: usize, amount: u64) -> BudgetPart {
    let number = index.to_string();
    let entries = [("test", name), ("budget", &*number)];
    let key = CounterKey::budget("llm", entries.into_iter(), 0);
    let placement = Placement::by_value("llm", name);
    BudgetPart { key, placement, terms: terms(index), amount: Amount(amount) }
}

pub(crate) fn random_call(rng: &mut Rng, name: &str) -> BudgetCall {
    let action = ACTIONS[rng.usize(..ACTIONS.len())];
    let first = rng.usize(..4);
    let all = first..first + rng.usize(1..=4 - first);
    // Only one budget is prepaid.
    let all = if action == BudgetAction::TopUp { 2..3 } else { all };
    let budgets = all.map(|index| part(name, index, rng.u64(..60))).collect();
    BudgetCall { id: HoldId(7, rng.u64(..8)), action, budgets }
}

/// Budgets of the kernel, each with the instant from which a store may forget it.
#[derive(Default)]
struct Model(HashMap<CounterKey, (Budget, Option<Nanos>)>);

impl Model {
    /// Applies a call at the instant of the store's reply, and asserts that the replies are equal.
    fn compare(&mut self, call: &BudgetCall, reply: &BudgetReply, context: &str) {
        let now = reply.now;
        let stored = |part: &BudgetPart| self.0.get(&part.key).cloned().unwrap_or_default();
        let stored: Vec<_> = call.budgets.iter().map(stored).collect();
        let mut budgets: Vec<Budget> = stored.iter().map(|(budget, _)| budget.clone()).collect();
        let wanted = call.apply(&mut budgets, now);
        if *reply != wanted {
            let kept = |(budget, until): &(Budget, Option<Nanos>)| {
                let is_kept = until.is_none_or(|until| now < until);
                if is_kept { budget.clone() } else { Budget::default() }
            };
            budgets = stored.iter().map(kept).collect();
            let after_forgetting = call.apply(&mut budgets, now);
            assert_eq!(*reply, after_forgetting, "{context}: {call:?}, or {wanted:?}");
        }
        if call.action != BudgetAction::Read {
            for (part, budget) in call.budgets.iter().zip(budgets) {
                let until = budget.keep_until(&part.terms, now);
                self.0.insert(part.key.clone(), (budget, until));
            }
        }
    }
}

/// Sends random calls, and compares each reply with that of the kernel.
fn compare_with_the_kernel(store: &dyn BudgetStore, name: &str, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut model = Model::default();
    let mut now = NEW_YEAR;
    for step in 0..1_000 {
        now = now.plus(Nanos(Nanos::MILLI.0 * rng.u64(..5)));
        let call = random_call(&mut rng, name);
        let reply = RUNTIME.block_on(store.call_budgets(now, &call).wait()).unwrap();
        model.compare(&call, &reply, &format!("step {step} of seed {seed} at {name}"));
    }
}

/// One empty store of every kind that keeps budgets, with its name.
fn budget_stores(stores: &Stores) -> Vec<(&'static str, Box<dyn BudgetStore>)> {
    let cluster = RedisTopology::Cluster(stores.cluster.addresses());
    vec![
        ("memory", Box::new(MemoryStore::new(1_000, WhenFull::Deny, [7; 16]))),
        ("file", Box::new(stores.file(SyncMode::Every(Duration::from_millis(1))))),
        ("file, sync always", Box::new(stores.file(SyncMode::Always))),
        ("postgres", Box::new(stores.postgres())),
        ("redis", Box::new(stores.redis())),
        ("redis group", Box::new(StoreGroup::new(stores.redis()))),
        ("cluster", Box::new(stores.store_at(cluster))),
    ]
}

#[test]
fn budgets_of_every_store_match_the_kernel() {
    let stores = Stores::start();
    for seed in 0..3 {
        for (name, store) in budget_stores(&stores) {
            compare_with_the_kernel(&*store, name, seed);
        }
    }
}

#[test]
fn budgets_in_several_cluster_slots_fail_unsent() {
    let stores = Stores::start();
    let store = stores.store_at(RedisTopology::Cluster(stores.cluster.addresses()));
    let reserve = |parts: &[BudgetPart]| {
        let budgets = parts.iter().cloned().collect();
        let call = BudgetCall { id: HoldId(7, 1), action: BudgetAction::Reserve, budgets };
        RUNTIME.block_on(store.call_budgets(NEW_YEAR, &call).wait())
    };
    let [first, second] = ["a", "b"].map(|name| part(name, 3, 10));
    assert_eq!(reserve(&[first.clone(), second]), Err(StoreFailure::Other));
    let held = reserve(&[first]).unwrap();
    assert_eq!(held.outcome, BudgetOutcome::Reserved(Reserved::Held));
}

#[test]
fn foreign_value_fails_a_budget_call_and_stays() {
    let stores = Stores::start();
    let store = stores.redis();
    let call = BudgetCall {
        id: HoldId(7, 1),
        action: BudgetAction::Reserve,
        budgets: [part("foreign", 3, 10)].into_iter().collect(),
    };
    let send = || RUNTIME.block_on(store.call_budgets(NEW_YEAR, &call).wait());
    send().unwrap();
    let mut client = stores.redis.connect();
    let keys = client.call(&["KEYS", "*"]);
    for key in keys.array() {
        let Value::Text(key) = key else { panic!("{key:?}") };
        client.call(&[b"SET".as_slice(), key, b"x"]);
    }
    assert_eq!(send(), Err(StoreFailure::WrongType));
    for key in keys.array() {
        let Value::Text(key) = key else { panic!("{key:?}") };
        assert_eq!(client.call(&[b"GET".as_slice(), key]).text(), "x");
    }
}
