//! Many at once on one key.

use std::sync::Arc;

use sluicegate::backend::{Backend, Outcomes, Reply};

use super::{NEW_YEAR, RUNTIME, Stores, admits, calendar, charge, each, strategies};

const TASKS: usize = 64;
/// Per strategy; a backend that waits takes longer for each.
const ROUNDS: [usize; 6] = [1_000, 50, 50, 5, 50, 50];

#[test]
fn sixty_four_tasks_on_one_key_are_admitted_exactly_to_the_limit() {
    let (limit, stores) = (40, Stores::start());
    for strategy in strategies(limit).into_iter().chain([calendar(limit)]) {
        for (kind, (backend, rounds)) in stores.backends().into_iter().zip(ROUNDS).enumerate() {
            let backend: Arc<dyn Backend> = backend.into();
            for round in 0..rounds {
                let ask = |_| {
                    let asked = each([charge(&round.to_string(), strategy, 1)]);
                    let backend = Arc::clone(&backend);
                    RUNTIME.spawn(async move { wait(backend.charge(NEW_YEAR, &asked)).await })
                };
                let tasks: Vec<_> = (0..TASKS).map(ask).collect();
                let outcomes = tasks.into_iter().map(|task| RUNTIME.block_on(task).unwrap()[0]);
                let admitted = outcomes.filter(|&outcome| admits(outcome)).count();
                assert_eq!(admitted, limit as usize, "round {round} of store {kind}, {strategy:?}");
            }
        }
    }
}

async fn wait(reply: Reply<'_, Outcomes>) -> Outcomes {
    match reply {
        Reply::Now(outcomes) => outcomes,
        Reply::Later(reply) => reply.await,
    }
}
