//! Releases that another replica may own: applied here, forwarded, or remembered.

use std::num::NonZeroU32;
use std::sync::Arc;

use sluicegate::backend::fleet::{Fleet, Member};
use sluicegate::backend::memory::{Memory, WhenFull};
use sluicegate::clock::Clock;
use sluicegate::engine::peers::{Found, Post, Told, name};
use sluicegate::engine::{Engine, Local, Membership, Policy};
use sluicegate::kernel::concurrency::Outcome;
use sluicegate::kernel::units::Nanos;
use tokio::sync::mpsc::Receiver;

use super::engine::{check_of, publish};

const ID: &str = "0123456789abcdef";
const BORN: u64 = 7;

/// Replica `a`, with `others` as members that have an address.
fn replica(others: &[&str]) -> (Engine, Receiver<Post>) {
    let memory = Arc::new(Memory::new(1_000, WhenFull::Deny, [0; 16]));
    let membership = Arc::new(Membership::new("a", BORN, NonZeroU32::MIN));
    let record =
        |node: &str| format!(r#"{{"incarnation":{BORN},"peer":"192.0.2.1:{}"}}"#, node.len());
    let member =
        |&node: &&str| Member { node: node.into(), silent: Nanos(0), record: record(node).into() };
    let members = others.iter().chain(&["a"]).map(member).collect();
    membership.learn(Fleet { members, before: Some("{}".into()) }, Nanos(1));
    let engine = Engine::new(Clock::manual(Nanos(1)), memory.clone(), Policy::default());
    let (engine, posted) = engine.with_local(Local::new(memory, membership)).with_peers();
    publish(&engine, "- key: k\n  concurrency: {limit: 100, mode: local}\n");
    (engine, posted.unwrap())
}

fn release_of(id: &str) -> Told<'_> {
    Told::ended(id, None, Outcome::Success, None)
}

fn remembered(engine: &Engine) -> usize {
    engine.early_releases().0
}

async fn acquire(engine: &Engine) {
    let check = check_of(&[("k", "v")]);
    let _admitted = engine.acquire((ID, 0), &check, &check, None).await.unwrap();
}

/// Returns the owner of the forwarded message, or `None` if none was forwarded.
fn forwarded_owner(posted: &mut Receiver<Post>) -> Option<Box<str>> {
    let post = posted.try_recv().ok()?;
    assert_eq!(&*post.told.id, ID);
    assert!(posted.try_recv().is_err(), "once");
    Some(post.owner.expect("a name"))
}

/// Reason: after a lost reply, another replica may have admitted the retry.
#[tokio::test]
async fn local_release_is_applied_and_forwarded_to_its_named_owner() {
    let (engine, mut posted) = replica(&["b"]);
    let (own, other) = (name("a", BORN), name("b", BORN));
    for owner in [None, Some(&*own), Some(&*other), Some("no name")] {
        acquire(&engine).await;
        assert_eq!(engine.ceilings().total().in_flight, 1);
        engine.tell(Told::goes_on(ID), owner);
        assert_eq!(
            forwarded_owner(&mut posted).as_deref(),
            owner.filter(|owner| *owner == &*other)
        );
        engine.tell(release_of(ID), owner);
        assert_eq!(engine.ceilings().total().in_flight, 0, "{owner:?}");
        assert_eq!(
            forwarded_owner(&mut posted).as_deref(),
            owner.filter(|owner| *owner == &*other)
        );
    }
    acquire(&engine).await;
    assert!(engine.tell_and_hear(release_of(ID), Some(&other)).await, "it was held here");
    assert_eq!(forwarded_owner(&mut posted).as_deref(), Some(&*other));
    // A release from another replica is not forwarded again.
    acquire(&engine).await;
    assert_eq!(engine.hear(&release_of(ID)), Found::Held);
    assert_eq!(forwarded_owner(&mut posted), None);
    assert_eq!(remembered(&engine), 0);
}

#[tokio::test]
async fn release_of_a_locally_denied_id_reaches_its_owner() {
    let (engine, mut posted) = replica(&["b"]);
    publish(&engine, "- key: k\n  concurrency: {limit: 1, mode: local}\n");
    let (own, other, check) = (name("a", BORN), name("b", BORN), check_of(&[("k", "v")]));
    let _first = engine.acquire(("fedcba9876543210", 0), &check, &check, None).await.unwrap();
    acquire(&engine).await;
    assert_eq!(engine.ceilings().total().in_flight, 1, "it was turned away");
    engine.tell(release_of(ID), Some(&other));
    assert_eq!(forwarded_owner(&mut posted).as_deref(), Some(&*other));
    acquire(&engine).await;
    engine.tell(release_of(ID), Some(&own));
    acquire(&engine).await;
    engine.tell(release_of(ID), None);
    assert_eq!(forwarded_owner(&mut posted), None, "nobody else is named");
    // The result comes from the replica that may own the permit.
    for held in [true, false] {
        acquire(&engine).await;
        let answers = async {
            let post = posted.recv().await.unwrap();
            post.answer.unwrap().send(held).unwrap();
        };
        let heard = async { engine.tell_and_hear(release_of(ID), Some(&other)).await };
        assert_eq!(tokio::join!(heard, answers).0, held);
    }
    assert_eq!(remembered(&engine), 0);
}

#[test]
fn unknown_release_is_forwarded_and_not_remembered() {
    let (engine, mut posted) = replica(&["b", "cc"]);
    let (own, other) = (name("a", BORN), name("b", BORN));
    assert_eq!(engine.owner(), Some(&*own));
    engine.tell(release_of(ID), Some(&other));
    let post = posted.try_recv().unwrap();
    assert_eq!((post.owner.as_deref(), &*post.told.id), (Some(&*other), ID));
    for owner in [None, Some("no name"), Some("")] {
        engine.tell(release_of(ID), owner);
        assert_eq!(posted.try_recv().unwrap().owner, None, "{owner:?} is nobody");
    }
    engine.tell(Told::goes_on(ID), Some(&other));
    assert!(posted.try_recv().is_ok());
    // A release that names this replica, and a renewal without an owner, are not forwarded.
    engine.tell(release_of(ID), Some(&own));
    engine.tell(Told::goes_on(ID), None);
    assert!(posted.try_recv().is_err());
    assert_eq!(remembered(&engine), 0);
    assert_eq!(engine.hear(&release_of(ID)), Found::Unknown);
    assert_eq!(remembered(&engine), 0, "another replica asked, and may ask others");
    assert_eq!(engine.hear(&release_of(ID).unknown_everywhere()), Found::Unknown);
    assert_eq!(remembered(&engine), 1);
}

#[test]
fn a_lone_replica_remembers_an_unknown_release() {
    let (engine, mut posted) = replica(&[]);
    engine.tell(release_of(ID), None);
    assert!(posted.try_recv().is_err());
    assert_eq!(remembered(&engine), 1);
}

#[test]
fn release_beyond_the_forwarding_queue_is_remembered_here() {
    let (engine, _posted) = replica(&["b"]);
    let other = name("b", BORN);
    let id = |number: usize| format!("request-{number:016}");
    (0..16_384).for_each(|number| engine.tell(release_of(&id(number)), None));
    assert_eq!(remembered(&engine), 0);
    (0..3).for_each(|number| engine.tell(release_of(&id(20_000 + number)), None));
    assert_eq!(remembered(&engine), 3);
    engine.tell(release_of(&id(30_000)), Some(&other));
    assert_eq!(remembered(&engine), 3, "its owner is gone for it");
}
