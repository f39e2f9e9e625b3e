//! Many at once on one key.

use std::sync::Arc;

use super::{NEW_YEAR, admits, ask, charge, each, memory, strategies};

const TASKS: usize = 64;
const ROUNDS: usize = 1_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixty_four_tasks_on_one_key_are_admitted_exactly_to_the_limit() {
    let limit = 40;
    for strategy in strategies(limit) {
        let backend = Arc::new(memory());
        for round in 0..ROUNDS {
            let name = Arc::new(round.to_string());
            let tasks = (0..TASKS).map(|_| {
                let (backend, name) = (Arc::clone(&backend), Arc::clone(&name));
                tokio::spawn(async move {
                    admits(ask(&*backend, NEW_YEAR, &each([charge(&name, strategy, 1)]))[0])
                })
            });
            let mut admitted = 0;
            for task in tasks.collect::<Vec<_>>() {
                admitted += usize::from(task.await.unwrap());
            }
            assert_eq!(admitted, limit as usize, "round {round} of {strategy:?}");
        }
    }
}
