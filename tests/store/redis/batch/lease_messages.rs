//! Batches of lease messages.

use std::task::{Context, Waker};

use futures_util::future::join_all;
use sluicegate::kernel::units::Hits;
use sluicegate::store::CounterStore;
use sluicegate::store::lease::{LeaseMessage, LeaseOutcome};
use sluicegate::store::redis::{Batching, StoreGroup};

use super::{
    Connected, LIMIT, borrow, borrow_all_at_once, calls, connected, message, remaining,
    test_runtime,
};
use crate::support::redis::Redis;

#[test]
fn lease_messages_for_many_keys_share_a_call() {
    let store = Redis::start();
    let redis = connected(&store, Batching::On);
    let messages: Vec<_> = (0..60).map(|key| message(&key.to_string(), 1)).collect();
    assert_eq!(borrow_all_at_once(&store, &redis, &messages), 60);
    assert_eq!(calls(&store), 2);
    assert!((0..60).all(|key| remaining(&redis, &key.to_string()) == u64::from(LIMIT) - 10));
}

/// Starts all messages in one `batch_calls` block. Returns the number of granted leases.
fn borrow_together(redis: &dyn CounterStore, messages: &[LeaseMessage]) -> usize {
    test_runtime().block_on(async {
        let mut all =
            std::pin::pin!(join_all(messages.iter().map(|message| borrow(redis, message))));
        redis.batch_calls(&mut || {
            assert!(all.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        });
        let is_granted =
            |its: &&LeaseOutcome| matches!(its, LeaseOutcome::Applied(answer) if answer.granted != Hits(0));
        all.await.iter().filter(is_granted).count()
    })
}

#[test]
fn lease_messages_started_together_fill_each_call() {
    let store = Redis::start();
    let redis = connected(&store, Batching::On);
    for (round, (many, takes)) in [(60, 1), (1, 1), (120, 2), (60, 1)].into_iter().enumerate() {
        let messages: Vec<_> = (0..many).map(|key| message(&format!("{round} {key}"), 1)).collect();
        let before = calls(&store);
        assert_eq!(borrow_together(&*redis, &messages), many);
        assert_eq!(calls(&store) - before, takes, "{many}");
    }
    // A message outside of `batch_calls` is sent immediately.
    let (lone, before) = (message("lone", 1), calls(&store));
    assert!(matches!(test_runtime().block_on(borrow(&*redis, &lone)), LeaseOutcome::Applied(_)));
    assert_eq!(calls(&store) - before, 1);
}

#[test]
fn lease_messages_started_together_send_one_call_per_store() {
    let both = [Redis::start(), Redis::start()];
    let [main, seconds] = both.each_ref().map(|store| connected(store, Batching::On));
    let Connected { redis: main, _connection: its } = main;
    let Connected { redis: seconds, _connection: theirs } = seconds;
    let stores = StoreGroup::new(main).with_per_second(seconds);
    let messages: Vec<_> = (0..60)
        .map(|key| LeaseMessage { per_second: key % 2 == 0, ..message(&key.to_string(), 1) })
        .collect();
    assert_eq!(borrow_together(&stores, &messages), 60);
    assert_eq!(both.each_ref().map(calls), [1, 1]);
    drop((its, theirs));
}

#[test]
fn cancelled_lease_message_does_not_block_others() {
    let store = Redis::start();
    let redis = connected(&store, Batching::On);
    let messages = ["a", "b"].map(|key| message(key, 1));
    test_runtime().block_on(async {
        let mut kept_message = borrow(&*redis, &messages[1]);
        redis.batch_calls(&mut || {
            let mut cancelled_message = borrow(&*redis, &messages[0]);
            let context = &mut Context::from_waker(Waker::noop());
            assert!(cancelled_message.as_mut().poll(context).is_pending());
            redis.batch_calls(&mut || assert!(kept_message.as_mut().poll(context).is_pending()));
            assert_eq!(calls(&store), 0, "not before all have begun");
        });
        assert!(matches!(kept_message.await, LeaseOutcome::Applied(_)));
    });
    assert_eq!(calls(&store), 1);
    assert_eq!(remaining(&redis, "a"), u64::from(LIMIT));
}

#[test]
fn lease_messages_for_keys_with_many_replicas_use_separate_calls() {
    let store = Redis::start();
    let redis = connected(&store, Batching::On);
    let (keys, members) = (["a", "b", "c"], 1_100);
    for key in keys {
        let all: Vec<_> = (0..members).map(|member| message(key, member)).collect();
        assert_eq!(borrow_all_at_once(&store, &redis, &all), all.len());
    }
    let before = calls(&store);
    let messages: Vec<_> = ["d"].iter().chain(&keys).map(|key| message(key, members)).collect();
    assert_eq!(borrow_all_at_once(&store, &redis, &messages), 4);
    assert_eq!(calls(&store) - before, 4, "the first went alone, and each of the others after it");
}
