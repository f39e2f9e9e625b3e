//! Invalid counters, rejected writes and missing rights.

use sluicegate::store::redis::reference;
use sluicegate::store::{ChargeMode, ChargeOutcome, CounterStore as _, StoreFailure};

use super::{
    ALL, DAY, charge, charge_all, charges, connected, now, stored_count, verdict_and_remaining,
};
use crate::support::waiting::until;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_counters_fail_alone_and_counters_at_the_integer_maximum_deny() {
    let at = connected(reference::CompatOptions::default());
    let now = now();
    let start = now.0 / DAY.0 * 86_400;
    let put = |name: &str, words: &[&str]| {
        let key = format!("d_k_{name}_{start}");
        at.main.command(&[&[words[0], &key], &words[1..]].concat());
    };
    put("text", &["SET", "text"]);
    put("list", &["RPUSH", "1"]);
    put("less", &["SET", "-5"]);
    put("full", &["SET", "9223372036854775807"]);
    let names = ["text", "list", "less", "full", "good"];
    for rule in [ChargeMode::Each, ALL, ChargeMode::Preview] {
        let asked = charges(names.map(|name| charge(name, 10, 1)), rule);
        let outcomes = charge_all(&at.stores, now, &asked).await;
        for outcome in &outcomes[..3] {
            assert_eq!(*outcome, ChargeOutcome::Failed(StoreFailure::WrongType), "{rule:?}");
        }
        assert_eq!(verdict_and_remaining(outcomes[3]), (true, Some(0)), "{rule:?}");
        assert!(!outcomes[4].is_denial(), "{rule:?}");
    }
    assert_eq!(stored_count(&at.main, "good", now), Some(1), "charged under `each` alone");
    assert_eq!(stored_count(&at.main, "full", now), Some(9_223_372_036_854_775_807));
    let text = at.main.command(&["GET", &format!("d_k_text_{start}")]);
    assert_eq!(text.text(), "text");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_rejecting_writes_is_marked_down() {
    let at = connected(reference::CompatOptions::default());
    let known = |wanted: Option<StoreFailure>| {
        let is_known = || match at.stores.current_failure() {
            trouble if trouble == wanted => Ok(()),
            trouble => Err(format!("{trouble:?}")),
        };
        until("it is known", is_known).unwrap();
    };
    // `ChargeMode::Each` uses a pipeline, and `ALL` uses a script.
    for rule in [ChargeMode::Each, ALL] {
        let asked = charges([charge("k", 10, 1)], rule);
        at.main.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
        let outcome = charge_all(&at.stores, now(), &asked).await[0];
        assert_eq!(outcome, ChargeOutcome::Failed(StoreFailure::Other), "{rule:?}");
        known(Some(StoreFailure::Other));
        at.main.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
        known(None);
        assert!(!charge_all(&at.stores, now(), &asked).await[0].is_denial(), "{rule:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_right_for_expire_is_reported_while_counting_continues() {
    let at = connected(reference::CompatOptions::default());
    let (now, one) = (now(), charges([charge("a", 10, 1)], ChargeMode::Each));
    at.main.command(&["ACL", "SETUSER", "default", "-expire"]);
    assert_eq!(verdict_and_remaining(charge_all(&at.stores, now, &one).await[0]), (false, Some(9)));
    until("it is told", || match at.stores.current_failure() {
        Some(StoreFailure::NotPermitted) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
    for left in (0..9).rev() {
        assert_eq!(
            verdict_and_remaining(charge_all(&at.stores, now, &one).await[0]),
            (false, Some(left))
        );
    }
    assert_eq!(stored_count(&at.main, "a", now), Some(10));
    assert_eq!(at.stores.current_failure(), Some(StoreFailure::NotPermitted));
    at.main.command(&["ACL", "SETUSER", "default", "+expire"]);
    let another = charges([charge("b", 10, 1)], ChargeMode::Each);
    assert_eq!(
        verdict_and_remaining(charge_all(&at.stores, now, &another).await[0]),
        (false, Some(9))
    );
    until("all is well", || match at.stores.current_failure() {
        None => Ok(()),
        Some(other) => Err(other.as_str().to_owned()),
    })
    .unwrap();
}
