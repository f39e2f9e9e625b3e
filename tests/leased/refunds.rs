//! Hits that are given back, and denials that are remembered.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use sluicegate::engine::{Answer, Engine, Refusal};
use sluicegate::kernel::decision::{Cost, Override, Verdict};
use sluicegate::kernel::units::{Hits, Unit};
use tokio::task::JoinHandle;

use super::waiting::{K, asked, standing, turns, verdict};
use super::{Far, admits, question};

/// A thousand an hour, of which none may pass above a window.
const HOUR: &str = "- key: k\n  rate_limit: {unit: hour, requests_per_unit: 1000, mode: leased, max_overshoot: 0}\n";

/// An engine that has spent all of that, and a store whose calls stand from then on.
async fn spent() -> (Arc<Far>, Arc<Engine>) {
    let (store, engine) = standing(HOUR);
    store.stands.store(false, Relaxed);
    assert!(admits(&engine, K, 1000).await);
    store.stands.store(true, Relaxed);
    (store, engine)
}

/// Gives five back in the background.
async fn refunded(
    engine: &Arc<Engine>,
    limit: Option<Override>,
) -> JoinHandle<Result<Answer, Refusal>> {
    let engine = Arc::clone(engine);
    let asking = tokio::spawn(async move {
        let mut back = question(K, Cost::Refund(Hits(5)));
        back.descriptors[0].limit = limit;
        engine.decide(&back).await
    });
    turns().await;
    asking
}

#[tokio::test]
async fn a_denial_that_was_on_its_way_when_hits_came_back_is_not_remembered() {
    let (store, engine) = spent().await;
    let denied = asked(&engine, 1).await;
    store.take(0);
    turns().await;
    store.stands.store(false, Relaxed);
    assert_eq!(verdict(refunded(&engine, None).await).await, Verdict::Admit);
    store.answer(0);
    assert_eq!(verdict(denied).await, Verdict::Deny);
    assert!(
        admits(&engine, K, 1).await,
        "the window counted one that it denied, and five came back"
    );
}

#[tokio::test]
async fn a_denial_of_a_question_that_passed_hits_on_their_way_back_is_not_remembered() {
    for is_answered_first in [false, true] {
        let (store, engine) = spent().await;
        let back = refunded(&engine, None).await;
        let denied = asked(&engine, 1).await;
        assert_eq!(store.calls(), 3, "both are on their way");
        store.take(1);
        turns().await;
        store.take(0);
        for at in if is_answered_first { [0, 1] } else { [1, 0] } {
            store.answer(at);
            turns().await;
        }
        assert_eq!((verdict(back).await, verdict(denied).await), (Verdict::Admit, Verdict::Deny));
        store.stands.store(false, Relaxed);
        assert!(admits(&engine, K, 1).await, "{is_answered_first}");
    }
}

#[tokio::test]
async fn hits_that_come_back_under_a_limit_of_the_question_drop_the_denial_of_their_counter() {
    let (store, engine) = spent().await;
    store.stands.store(false, Relaxed);
    assert!(!admits(&engine, K, 1).await);
    let calls = store.calls();
    assert!(!admits(&engine, K, 1).await);
    assert_eq!(store.calls(), calls, "it is remembered");
    let limit = Override { requests: 1000, unit: Unit::Hour };
    assert_eq!(verdict(refunded(&engine, Some(limit)).await).await, Verdict::Admit);
    assert!(admits(&engine, K, 1).await);
}
