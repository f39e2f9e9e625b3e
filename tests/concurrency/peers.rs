//! Ends that are for other replicas: what is settled here, what is passed on, and what finds no room.

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

use super::engine::{publish, question};

const ID: &str = "0123456789abcdef";
const BORN: u64 = 7;

/// The replica `a`, which sees these others, each at an address.
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

fn ended(id: &str) -> Told<'_> {
    Told::ended(id, None, Outcome::Success, None)
}

fn remembered(engine: &Engine) -> usize {
    engine.early_releases().0
}

async fn acquire(engine: &Engine) {
    let question = question(&[("k", "v")]);
    let _admitted = engine.acquire((ID, 0), &question, &question, None).await.unwrap();
}

/// Whom the one end that was passed on is for; nothing where none was.
fn passed_on(posted: &mut Receiver<Post>) -> Option<Box<str>> {
    let post = posted.try_recv().ok()?;
    assert_eq!(&*post.told.id, ID);
    assert!(posted.try_recv().is_err(), "once");
    Some(post.owner.expect("a name"))
}

/// The answer to the first try may have been lost, and the next have been let in by another.
#[tokio::test]
async fn what_is_known_here_is_settled_here_whoever_is_named_and_another_who_is_named_hears_of_it()
{
    let (engine, mut posted) = replica(&["b"]);
    let (own, other) = (name("a", BORN), name("b", BORN));
    for owner in [None, Some(&*own), Some(&*other), Some("no name")] {
        acquire(&engine).await;
        assert_eq!(engine.ceilings().total().in_flight, 1);
        engine.tell(Told::goes_on(ID), owner);
        assert_eq!(passed_on(&mut posted).as_deref(), owner.filter(|owner| *owner == &*other));
        engine.tell(ended(ID), owner);
        assert_eq!(engine.ceilings().total().in_flight, 0, "{owner:?}");
        assert_eq!(passed_on(&mut posted).as_deref(), owner.filter(|owner| *owner == &*other));
    }
    acquire(&engine).await;
    assert!(engine.tell_and_hear(ended(ID), Some(&other)).await, "it was held here");
    assert_eq!(passed_on(&mut posted).as_deref(), Some(&*other));
    // What comes from another replica goes no further.
    acquire(&engine).await;
    assert_eq!(engine.hear(&ended(ID)), Found::Held);
    assert_eq!(passed_on(&mut posted), None);
    assert_eq!(remembered(&engine), 0);
}

#[tokio::test]
async fn the_end_of_one_that_was_turned_away_here_and_let_in_by_another_reaches_that_one() {
    let (engine, mut posted) = replica(&["b"]);
    publish(&engine, "- key: k\n  concurrency: {limit: 1, mode: local}\n");
    let (own, other, question) = (name("a", BORN), name("b", BORN), question(&[("k", "v")]));
    let _first = engine.acquire(("fedcba9876543210", 0), &question, &question, None).await.unwrap();
    acquire(&engine).await;
    assert_eq!(engine.ceilings().total().in_flight, 1, "it was turned away");
    engine.tell(ended(ID), Some(&other));
    assert_eq!(passed_on(&mut posted).as_deref(), Some(&*other));
    acquire(&engine).await;
    engine.tell(ended(ID), Some(&own));
    acquire(&engine).await;
    engine.tell(ended(ID), None);
    assert_eq!(passed_on(&mut posted), None, "nobody else is named");
    // Whoever wants to know whether anything was held hears it of the one that may have held it.
    for held in [true, false] {
        acquire(&engine).await;
        let answers = async {
            let post = posted.recv().await.unwrap();
            post.answer.unwrap().send(held).unwrap();
        };
        let heard = async { engine.tell_and_hear(ended(ID), Some(&other)).await };
        assert_eq!(tokio::join!(heard, answers).0, held);
    }
    assert_eq!(remembered(&engine), 0);
}

#[test]
fn what_is_not_known_here_goes_to_who_is_named_or_to_all_and_is_not_remembered() {
    let (engine, mut posted) = replica(&["b", "cc"]);
    let (own, other) = (name("a", BORN), name("b", BORN));
    assert_eq!(engine.owner(), Some(&*own));
    engine.tell(ended(ID), Some(&other));
    let post = posted.try_recv().unwrap();
    assert_eq!((post.owner.as_deref(), &*post.told.id), (Some(&*other), ID));
    for owner in [None, Some("no name"), Some("")] {
        engine.tell(ended(ID), owner);
        assert_eq!(posted.try_recv().unwrap().owner, None, "{owner:?} is nobody");
    }
    engine.tell(Told::goes_on(ID), Some(&other));
    assert!(posted.try_recv().is_ok());
    // Whoever was answered here has been here; nobody looks for whom nobody named.
    engine.tell(ended(ID), Some(&own));
    engine.tell(Told::goes_on(ID), None);
    assert!(posted.try_recv().is_err());
    assert_eq!(remembered(&engine), 0);
    assert_eq!(engine.hear(&ended(ID)), Found::Unknown);
    assert_eq!(remembered(&engine), 0, "another replica asked, and may ask others");
    assert_eq!(engine.hear(&ended(ID).unknown_everywhere()), Found::Unknown);
    assert_eq!(remembered(&engine), 1);
}

#[test]
fn who_is_alone_remembers_at_once() {
    let (engine, mut posted) = replica(&[]);
    engine.tell(ended(ID), None);
    assert!(posted.try_recv().is_err());
    assert_eq!(remembered(&engine), 1);
}

#[test]
fn what_finds_no_room_is_remembered_here_where_nobody_else_is_named() {
    let (engine, _posted) = replica(&["b"]);
    let other = name("b", BORN);
    let id = |number: usize| format!("request-{number:016}");
    (0..16_384).for_each(|number| engine.tell(ended(&id(number)), None));
    assert_eq!(remembered(&engine), 0);
    (0..3).for_each(|number| engine.tell(ended(&id(20_000 + number)), None));
    assert_eq!(remembered(&engine), 3);
    engine.tell(ended(&id(30_000)), Some(&other));
    assert_eq!(remembered(&engine), 3, "its owner is gone for it");
}
