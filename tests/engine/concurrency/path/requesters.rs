//! Classes and fair parts: the entries of a check that tell its class and its customer.
//!
//! Each row shows a deliberate fault in the code, and a test that failed with it.
//!
//! | fault | failed test |
//! |---|---|
//! | only the covered descriptor is read | `a_class_is_denied_above_its_part` |
//! | an unlisted class is the first one | the same |
//! | the last entry with the key counts | `the_first_descriptor_tells_the_customer` |
//! | a customer without a row has a part | `invented_customers_have_one_part_together` |
//! | the weight of the table is not read | `a_changed_weight_changes_the_turns` |
//! | waiting requests keep a removed class's part | `a_class_removed_by_a_reload_has_the_last_ones_part` |

use std::pin::Pin;
use std::sync::Arc;

use futures_util::future::poll_immediate;
use sluicegate::config::tables::{Loading, RawRow, Table, TableSpec};
use sluicegate::engine::budgets::BudgetUse;
use sluicegate::engine::{AdmissionOutcome, Engine, PermitLifetime, RequestPermits, RequestStart};
use sluicegate::kernel::concurrency::RequestOutcome;
use sluicegate::kernel::units::Revision;

use super::engine;
use crate::support::engine::{check_of, publish_as};

type Waiting<'e> = Pin<Box<dyn Future<Output = AdmissionOutcome> + 'e>>;

const CLASSES: &str = "- key: up\n  concurrency: {limit: 4, \
                       classes: {by: tier, up_to: {critical: 100%, batch: 50%}}}\n";

const FAIR: &str = "- key: up\n  concurrency: {limit: 1, queue: {size: 20, timeout: 1h}, \
                    fair: {by: customer}}\n";

const WEIGHTED: &str = "- key: up\n  concurrency: {limit: 1, queue: {size: 20, timeout: 1h}, \
                        fair: {by: customer, weight: customers.weight}}\n";

/// Tables with the weights of customers.
fn weights(rows: &[(&str, u32)]) -> Arc<[Arc<Table>]> {
    let spec = Arc::new(TableSpec::new("customers", [].into(), 100).unwrap());
    let mut loading = Loading::new(spec, None);
    for (id, weight) in rows {
        let row = format!("{{\"id\": \"{id}\", \"weight\": {weight}}}");
        loading.add(Ok(RawRow::from_json(&row).unwrap()), &|_, _| Ok(())).unwrap();
    }
    Arc::from([Arc::new(loading.finish().unwrap().0)])
}

/// A request for a permit of `up`, with these further entries, each in a descriptor of its own.
async fn ask(engine: &Engine, entries: &[(&'static str, &'static str)]) -> AdmissionOutcome {
    let entries: Vec<_> = [("up", "x")].iter().chain(entries).copied().collect();
    let (covered, check) = (check_of(&entries[..1]), check_of(&entries));
    let start = RequestStart { covered: &covered, budgets: BudgetUse::Charge };
    engine.admit_request(start, &check, None, PermitLifetime::UntilReleased).await.unwrap()
}

/// As [`ask`]. The request gets a permit at once.
async fn acquire(engine: &Engine, entries: &[(&'static str, &'static str)]) -> RequestPermits {
    match poll_immediate(ask(engine, entries)).await {
        Some(AdmissionOutcome::Decided(_, permits)) if !permits.is_empty() => permits,
        other => panic!("{other:?}"),
    }
}

async fn is_rejected(engine: &Engine, entries: &[(&'static str, &'static str)]) -> bool {
    matches!(poll_immediate(ask(engine, entries)).await, Some(AdmissionOutcome::Rejected(_)))
}

/// As [`ask`]. The request waits.
async fn wait<'e>(engine: &'e Engine, entries: &'e [(&'static str, &'static str)]) -> Waiting<'e> {
    let mut waiting: Waiting<'e> = Box::pin(ask(engine, entries));
    assert!(poll_immediate(&mut waiting).await.is_none(), "it must wait");
    waiting
}

/// Releases `held`, and returns the index of the waiting request that got its permit.
async fn next(waiting: &mut Vec<(usize, Waiting<'_>)>, held: &mut RequestPermits) -> usize {
    std::mem::take(held).release(RequestOutcome::Success, None);
    for at in 0..waiting.len() {
        if let Some(outcome) = poll_immediate(&mut waiting[at].1).await {
            let AdmissionOutcome::Decided(_, permits) = outcome else { panic!("{outcome:?}") };
            *held = permits;
            return waiting.remove(at).0;
        }
    }
    panic!("no waiting request got the permit")
}

/// Lets requests with these entries wait while a request with `first` is in flight. Returns the order
/// of their turns.
async fn turns(
    engine: &Engine,
    first: &[(&'static str, &'static str)],
    all: &[&[(&'static str, &'static str)]],
) -> Vec<usize> {
    let mut held = acquire(engine, first).await;
    let (mut waiting, mut order) = (Vec::new(), Vec::new());
    for (index, entries) in all.iter().enumerate() {
        waiting.push((index, wait(engine, entries).await));
    }
    for _ in all {
        order.push(next(&mut waiting, &mut held).await);
    }
    order
}

#[tokio::test]
async fn a_class_is_denied_above_its_part() {
    let engine = engine(CLASSES);
    let [critical, batch, unlisted] =
        ["critical", "batch", "unlisted"].map(|tier| [("tier", tier)]);
    let held = [acquire(&engine, &batch).await, acquire(&engine, &unlisted).await];
    for entries in [&batch[..], &unlisted, &[]] {
        assert!(is_rejected(&engine, entries).await, "{entries:?}");
    }
    let above = [acquire(&engine, &critical).await, acquire(&engine, &critical).await];
    assert!(is_rejected(&engine, &critical).await);
    drop(held);
    assert!(is_rejected(&engine, &batch).await, "two of another class are in flight");
    drop(above);
    drop(acquire(&engine, &batch).await);
}

/// Two customers with one waiting request each come before the second request of the hog, which
/// waited longer.
#[tokio::test]
async fn a_hog_waits_for_the_turns_of_others() {
    let [hog, a, b] = [&[("customer", "hog")], &[("customer", "a")], &[("customer", "b")]];
    let order = turns(&engine(FAIR), &[], &[hog, hog, hog, hog, a, b]).await;
    assert_eq!(order, [0, 4, 5, 1, 2, 3]);
}

#[tokio::test]
async fn the_first_descriptor_tells_the_customer() {
    let (hog, a) = ([("customer", "hog"), ("customer", "a")], [("customer", "a")]);
    let order = turns(&engine(FAIR), &hog, &[&hog, &a, &hog, &a]).await;
    assert_eq!(order, [1, 0, 3, 2]);
}

/// A hog that invents customers gets one part for all of them.
#[tokio::test]
async fn invented_customers_have_one_part_together() {
    let engine = engine(WEIGHTED);
    engine.publish_tables(weights(&[("a", 1), ("b", 1)]));
    let customers = ["i1", "i2", "i3", "a", "b"].map(|name| [("customer", name)]);
    let customers = customers.each_ref().map(|entries| &entries[..]);
    assert_eq!(turns(&engine, &[], &customers).await, [3, 4, 0, 1, 2]);
}

/// Without the column, nobody knows which customers exist.
#[tokio::test]
async fn customers_have_one_part_together_without_the_column() {
    let engine = engine(&WEIGHTED.replace("customers.weight", "customers.wieght"));
    engine.publish_tables(weights(&[("a", 1), ("b", 1)]));
    let customers = ["i1", "i2", "a"].map(|name| [("customer", name)]);
    let customers = customers.each_ref().map(|entries| &entries[..]);
    assert_eq!(turns(&engine, &[], &customers).await, [0, 1, 2]);
}

/// Of three permits, a customer with weight 2 gets two, and with weight 1 one. With any weight, the other
/// customer keeps one.
#[tokio::test]
async fn a_changed_weight_changes_the_turns() {
    let engine = engine(&WEIGHTED.replace("limit: 1", "limit: 3"));
    let (a, big) = ([("customer", "a")], [("customer", "big")]);
    for (weight, permits) in [(2, 2), (1, 1), (1_000, 2)] {
        engine.publish_tables(weights(&[("a", 1), ("big", weight)]));
        let mut full = Vec::new();
        for _ in 0..3 {
            full.push(acquire(&engine, &[]).await);
        }
        let (mut waiting, mut admitted) = (Vec::new(), Vec::new());
        for entries in [&a, &a, &a, &big, &big, &big] {
            waiting.push((entries, wait(&engine, entries).await));
        }
        drop(full);
        for (entries, waiting) in &mut waiting {
            let outcome = poll_immediate(waiting).await;
            admitted.extend(outcome.map(|outcome| (*entries, outcome)));
        }
        let of_big = admitted.iter().filter(|(entries, _)| **entries == big).count();
        assert_eq!((admitted.len(), of_big), (3, permits), "weight {weight}");
    }
}

#[tokio::test]
async fn a_class_removed_by_a_reload_has_the_last_ones_part() {
    let fields = |classes: &str| {
        format!(
            "- key: up\n  concurrency: {{limit: 4, queue: {{size: 9, timeout: 1h}}, \
             classes: {{by: tier, up_to: {{{classes}}}}}}}\n"
        )
    };
    let engine = engine(&fields("high: 100%, normal: 75%, low: 25%"));
    let (high, low) = ([("tier", "high")], [("tier", "low")]);
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(acquire(&engine, &high).await);
    }
    let mut waiting = wait(&engine, &low).await;
    publish_as(&engine, Revision(2), &fields("high: 100%, low: 50%"));
    drop((held.pop(), held.pop()));
    assert!(poll_immediate(&mut waiting).await.is_none(), "two are in flight");
    drop(held.pop());
    assert!(poll_immediate(&mut waiting).await.is_some());
}
