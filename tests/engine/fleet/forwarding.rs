//! Releases that another replica may own: applied here, forwarded, or remembered.

use std::num::NonZeroU32;
use std::sync::Arc;

use sluicegate::clock::Clock;
use sluicegate::engine::fleet::forwarding::{ForwardedRelease, IdState, PermitUpdate};
use sluicegate::engine::fleet::incarnation::incarnation_name;
use sluicegate::engine::{DecisionPolicy, Engine, LocalFallback, Membership};
use sluicegate::kernel::concurrency::RequestOutcome;
use sluicegate::kernel::units::Nanos;
use sluicegate::store::fleet::{LiveReplica, MembershipReply};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use tokio::sync::mpsc::Receiver;

use crate::support::engine::{check_of, publish};

const ID: &str = "0123456789abcdef";

const BORN: u64 = 7;

/// Replica `a` in a fleet with `others`, whose peer addresses it knows, and its queue of forwarded
/// releases.
fn replica(others: &[&str]) -> (Engine, Receiver<ForwardedRelease>) {
    let memory = Arc::new(MemoryStore::new(1_000, WhenFull::Deny, [0; 16]));
    let membership = Arc::new(Membership::new("a", BORN, NonZeroU32::MIN));
    let record =
        |node: &str| format!(r#"{{"incarnation":{BORN},"peer":"192.0.2.1:{}"}}"#, node.len());
    let member = |&node: &&str| LiveReplica {
        node: node.into(),
        silent_for: Nanos(0),
        record: record(node).into(),
    };
    let members = others.iter().chain(&["a"]).map(member).collect();
    membership.apply_reply(
        MembershipReply { replicas: members, previous_record: Some("{}".into()) },
        Nanos(1),
    );
    let engine = Engine::new(Clock::manual(Nanos(1)), memory.clone(), DecisionPolicy::default());
    let (engine, posted) =
        engine.with_local_fallback(LocalFallback::new(memory, membership)).with_forwarding();
    publish(&engine, "", "- key: k\n  concurrency: {limit: 100, mode: local}\n");
    (engine, posted.unwrap())
}

fn release_of(id: &str) -> PermitUpdate<'_> {
    PermitUpdate::release(id, None, RequestOutcome::Success, None)
}

fn remembered(engine: &Engine) -> usize {
    engine.early_releases().0
}

async fn acquire(engine: &Engine) {
    let check = check_of(&[("k", "v")]);
    let _admitted = engine.acquire((ID, 0), &check, &check, None).await.unwrap();
}

/// Returns the owner of the forwarded message, or `None` if none was forwarded.
fn forwarded_owner(posted: &mut Receiver<ForwardedRelease>) -> Option<Box<str>> {
    let post = posted.try_recv().ok()?;
    assert_eq!(&*post.update.id, ID);
    assert!(posted.try_recv().is_err(), "once");
    Some(post.owner.expect("a name"))
}

/// Reason: after a lost reply the caller retries its acquire, and another replica may have granted
/// a permit to the retry.
#[tokio::test]
async fn local_release_is_applied_and_forwarded_to_its_named_owner() {
    let (engine, mut posted) = replica(&["b"]);
    let (own, other) = (incarnation_name("a", BORN), incarnation_name("b", BORN));
    for owner in [None, Some(&*own), Some(&*other), Some("no name")] {
        acquire(&engine).await;
        assert_eq!(engine.concurrency_limits().totals().in_flight, 1);
        engine.apply_or_forward(PermitUpdate::renewal(ID), owner);
        assert_eq!(
            forwarded_owner(&mut posted).as_deref(),
            owner.filter(|owner| *owner == &*other)
        );
        engine.apply_or_forward(release_of(ID), owner);
        assert_eq!(engine.concurrency_limits().totals().in_flight, 0, "{owner:?}");
        assert_eq!(
            forwarded_owner(&mut posted).as_deref(),
            owner.filter(|owner| *owner == &*other)
        );
    }
    acquire(&engine).await;
    assert!(
        engine.apply_or_forward_and_wait(release_of(ID), Some(&other)).await,
        "it was held here"
    );
    assert_eq!(forwarded_owner(&mut posted).as_deref(), Some(&*other));
    // A release from another replica is not forwarded again.
    acquire(&engine).await;
    assert_eq!(engine.apply_forwarded(&release_of(ID)), IdState::HadPermits);
    assert_eq!(forwarded_owner(&mut posted), None);
    assert_eq!(remembered(&engine), 0);
}

#[tokio::test]
async fn release_of_a_locally_denied_id_reaches_its_owner() {
    let (engine, mut posted) = replica(&["b"]);
    publish(&engine, "", "- key: k\n  concurrency: {limit: 1, mode: local}\n");
    let (own, other, check) =
        (incarnation_name("a", BORN), incarnation_name("b", BORN), check_of(&[("k", "v")]));
    let _first = engine.acquire(("fedcba9876543210", 0), &check, &check, None).await.unwrap();
    acquire(&engine).await;
    assert_eq!(engine.concurrency_limits().totals().in_flight, 1, "it was turned away");
    engine.apply_or_forward(release_of(ID), Some(&other));
    assert_eq!(forwarded_owner(&mut posted).as_deref(), Some(&*other));
    acquire(&engine).await;
    engine.apply_or_forward(release_of(ID), Some(&own));
    acquire(&engine).await;
    engine.apply_or_forward(release_of(ID), None);
    assert_eq!(forwarded_owner(&mut posted), None, "nobody else is named");
    // The result comes from the replica that may own the permit.
    for held in [true, false] {
        acquire(&engine).await;
        let answers = async {
            let post = posted.recv().await.unwrap();
            post.result_sender.unwrap().send(held).unwrap();
        };
        let heard = async { engine.apply_or_forward_and_wait(release_of(ID), Some(&other)).await };
        assert_eq!(tokio::join!(heard, answers).0, held);
    }
    assert_eq!(remembered(&engine), 0);
}

#[test]
fn unknown_release_is_forwarded_and_not_remembered() {
    let (engine, mut posted) = replica(&["b", "cc"]);
    let (own, other) = (incarnation_name("a", BORN), incarnation_name("b", BORN));
    assert_eq!(engine.owner(), Some(&*own));
    engine.apply_or_forward(release_of(ID), Some(&other));
    let post = posted.try_recv().unwrap();
    assert_eq!((post.owner.as_deref(), &*post.update.id), (Some(&*other), ID));
    for owner in [None, Some("no name"), Some("")] {
        engine.apply_or_forward(release_of(ID), owner);
        assert_eq!(posted.try_recv().unwrap().owner, None, "{owner:?} is nobody");
    }
    engine.apply_or_forward(PermitUpdate::renewal(ID), Some(&other));
    assert!(posted.try_recv().is_ok());
    // A release that names this replica, and a renewal without an owner, are not forwarded.
    engine.apply_or_forward(release_of(ID), Some(&own));
    engine.apply_or_forward(PermitUpdate::renewal(ID), None);
    assert!(posted.try_recv().is_err());
    assert_eq!(remembered(&engine), 0);
    assert_eq!(engine.apply_forwarded(&release_of(ID)), IdState::Unknown);
    assert_eq!(remembered(&engine), 0, "another replica asked, and may ask others");
    assert_eq!(engine.apply_forwarded(&release_of(ID).into_unknown()), IdState::Unknown);
    assert_eq!(remembered(&engine), 1);
}

#[test]
fn a_lone_replica_remembers_an_unknown_release() {
    let (engine, mut posted) = replica(&[]);
    engine.apply_or_forward(release_of(ID), None);
    assert!(posted.try_recv().is_err());
    assert_eq!(remembered(&engine), 1);
}

#[test]
fn release_that_exceeds_the_forwarding_queue_is_remembered_locally() {
    let (engine, _posted) = replica(&["b"]);
    let other = incarnation_name("b", BORN);
    let id = |number: usize| format!("request-{number:016}");
    (0..16_384).for_each(|number| engine.apply_or_forward(release_of(&id(number)), None));
    assert_eq!(remembered(&engine), 0);
    (0..3).for_each(|number| engine.apply_or_forward(release_of(&id(20_000 + number)), None));
    assert_eq!(remembered(&engine), 3);
    engine.apply_or_forward(release_of(&id(30_000)), Some(&other));
    assert_eq!(remembered(&engine), 3, "its owner is gone for it");
}
