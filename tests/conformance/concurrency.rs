//! Many at once on one key.

use std::sync::Arc;

use sluicegate::backend::{Backend, Outcomes, Reply};
use sluicegate::kernel::rate::Strategy;

use super::{NEW_YEAR, RUNTIME, Stores, admits, calendar, charge, each, strategies};

const TASKS: usize = 64;
const LIMIT: u32 = 40;
/// Per strategy; a store that waits takes longer for each.
const ROUNDS: [usize; 4] = [1_000, 50, 50, 5];
const LEASED_ROUNDS: usize = 50;

#[test]
fn sixty_four_tasks_on_one_key_are_admitted_exactly_to_the_limit() {
    let stores = Stores::start();
    for strategy in strategies(LIMIT).into_iter().chain([calendar(LIMIT)]) {
        for (backend, rounds) in stores.stores().into_iter().zip(ROUNDS) {
            are_admitted_exactly(&backend.into(), strategy, rounds);
        }
        for leasing in stores.leasing().map(Arc::new) {
            let backend: Arc<dyn Backend> = leasing.clone();
            are_admitted_exactly(&backend, strategy, LEASED_ROUNDS);
            leasing.has_answered_from_balances(strategy);
        }
    }
}

fn are_admitted_exactly(backend: &Arc<dyn Backend>, strategy: Strategy, rounds: usize) {
    for round in 0..rounds {
        let ask = |_| {
            let asked = each([charge(&round.to_string(), strategy, 1)]);
            let backend = Arc::clone(backend);
            RUNTIME.spawn(async move { wait(backend.charge(NEW_YEAR, &asked)).await })
        };
        // Answered before the others come, so that they find what is lent with it.
        let first = RUNTIME.block_on(ask(0)).unwrap()[0];
        let tasks: Vec<_> = (1..TASKS).map(ask).collect();
        let others = tasks.into_iter().map(|task| RUNTIME.block_on(task).unwrap()[0]);
        let admitted = others.chain([first]).filter(|&outcome| admits(outcome)).count();
        assert_eq!(admitted, LIMIT as usize, "round {round} of {backend:?}, {strategy:?}");
    }
}

async fn wait(reply: Reply<'_, Outcomes>) -> Outcomes {
    match reply {
        Reply::Now(outcomes) => outcomes,
        Reply::Later(reply) => reply.await,
    }
}
