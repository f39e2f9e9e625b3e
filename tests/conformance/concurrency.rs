//! Tests that concurrent checks on one key use exactly the limit.

use std::sync::Arc;

use sluicegate::kernel::rate::Strategy;
use sluicegate::store::{CounterStore, Outcomes, StoreReply};

use super::{NEW_YEAR, RUNTIME, Stores, calendar, charge, each, is_allowed, strategies};

const TASKS: usize = 64;
const LIMIT: u32 = 40;
/// Rounds per strategy for each store; slower stores run fewer.
const ROUNDS: [usize; 7] = [1_000, 1_000, 5, 50, 50, 5, 50];
const LEASED_ROUNDS: usize = 50;

#[test]
fn sixty_four_tasks_get_exactly_the_limit() {
    let stores = Stores::start();
    for strategy in strategies(LIMIT).into_iter().chain([calendar(LIMIT)]) {
        for (backend, rounds) in stores.stores().into_iter().zip(ROUNDS) {
            assert_exact_limit(&backend.into(), strategy, rounds);
        }
        for leasing in stores.leasing().map(Arc::new) {
            let backend: Arc<dyn CounterStore> = leasing.clone();
            assert_exact_limit(&backend, strategy, LEASED_ROUNDS);
            leasing.assert_used_balances(strategy);
        }
    }
}

fn assert_exact_limit(store: &Arc<dyn CounterStore>, strategy: Strategy, rounds: usize) {
    for round in 0..rounds {
        let spawn_charge = |_| {
            let charges = each([charge(&round.to_string(), strategy, 1)]);
            let backend = Arc::clone(store);
            RUNTIME.spawn(async move { resolve(backend.charge(NEW_YEAR, &charges)).await })
        };
        // The first check finishes before the others start, so that they find its lease.
        let first = RUNTIME.block_on(spawn_charge(0)).unwrap()[0];
        let tasks: Vec<_> = (1..TASKS).map(spawn_charge).collect();
        let others = tasks.into_iter().map(|task| RUNTIME.block_on(task).unwrap()[0]);
        let allowed = others.chain([first]).filter(|&outcome| is_allowed(outcome)).count();
        assert_eq!(allowed, LIMIT as usize, "round {round} of {store:?}, {strategy:?}");
    }
}

async fn resolve(reply: StoreReply<'_, Outcomes>) -> Outcomes {
    match reply {
        StoreReply::Ready(outcomes) => outcomes,
        StoreReply::Pending(reply) => reply.await,
    }
}
