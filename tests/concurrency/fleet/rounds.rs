//! When a replica speaks of what it shares: how long a round may take, who comes first in it, for how long it may be silent, and
//! what is said no more.

use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::FutureExt as _;
use futures_util::future::{join_all, poll_immediate};
use sluicegate::kernel::decision::Question;
use sluicegate::kernel::units::{Nanos, Share};

use super::{
    DOUBT, HALF, Replica, Store, block_on, name_of, passes, question_about, spoke_first_of,
};

/// How long the store takes for each call, where it is slow.
const CALL: Nanos = Nanos(50 * Nanos::MILLI.0);

/// The share of one of its ceilings.
fn share_of(replica: &Replica, value: &str) -> Share {
    let all = replica.engine.ceilings().fleet().unwrap().shown(replica.engine.clock(), 1_000);
    let of_it = all.into_iter().find(|(name, _)| **name == *name_of(value).as_bytes());
    of_it.unwrap().1.share
}

#[test]
fn a_round_ends_though_somebody_new_comes_with_every_call_and_a_share_from_before_does_not_run_out()
{
    let store = Store::new();
    let mut many = Replica::patient(&store, "a", "limit: 4, on_backend_failure: deny");
    assert!(many.asks());
    store.is_slow.store(true, Relaxed);
    let values: Vec<String> = (0..200).map(|value| format!("{value}")).collect();
    let questions: Vec<Question> = values.iter().map(|value| question_about(value)).collect();
    let mut newcomers = questions.iter();
    // None of them is asked again: each waits for its share until the end.
    let mut asked = Vec::new();
    let mut comes = || {
        let Some(newcomer) = newcomers.next() else { return false };
        many.passes(CALL);
        let mut newcomer = Box::pin(many.engine.admit(newcomer, None));
        assert!((&mut newcomer).now_or_never().is_none(), "cold");
        asked.push(newcomer);
        true
    };
    block_on(async {
        while comes() {
            let mut speaks = pin!(many.engine.speak_once());
            for calls in 0.. {
                assert!(calls <= 10, "the round has lasted for half a heartbeat");
                if poll_immediate(&mut speaks).await.is_some() {
                    break;
                }
                comes();
            }
            assert_eq!(share_of(&many, "v"), Share(4));
        }
    });
}

#[test]
fn of_many_shares_that_are_to_be_renewed_the_one_that_ends_first_is_spoken_of_first() {
    let store = Store::new();
    let many = Replica::patient(&store, "a", "limit: 4");
    let values: Vec<String> = (0..100).map(|value| format!("{value}")).collect();
    let questions: Vec<Question> = values.iter().map(|value| question_about(value)).collect();
    let oldest = question_about("oldest");
    let held = block_on(async {
        let oldest = tokio::join!(many.engine.admit(&oldest, None), many.engine.speak_once()).0;
        many.passes(HALF);
        let all = join_all(questions.iter().map(|question| many.engine.admit(question, None)));
        (oldest, tokio::join!(all, many.engine.speak_once()).0)
    });
    // More than half a term of all.
    many.passes(Nanos::from_secs(3));
    store.spoken.lock().unwrap().clear();
    many.beats();
    assert!(spoke_first_of(&store, 0, "oldest"));
    let spoken_of: usize = store.spoken.lock().unwrap().iter().map(Vec::len).sum();
    assert_eq!((spoken_of, held.1.len()), (101, 100));
}

/// One waits for what the other holds: both always want more, and the other's requests go on.
fn waits(fleet: &mut [Replica; 2], by: Nanos) {
    for _ in 0..by.0 / CALL.0 {
        let [holder, waiter] = &mut *fleet;
        passes(&[holder, waiter], &[holder, waiter], CALL);
        for replica in &mut *fleet {
            replica.asks();
        }
    }
}

#[test]
fn who_waits_for_what_another_holds_has_its_part_two_heartbeats_after_that_has_ended_however_long_it_has_waited()
 {
    for later in 0..13 {
        let store = Store::new();
        let mut fleet = ["a", "b"].map(|name| Replica::new(&store, name, "limit: 20"));
        assert_eq!((fleet[0].fills(), fleet[1].fills()), (20, 0));
        // Its own pauses have become longer than half a term by then.
        waits(&mut fleet, Nanos(14 * Nanos::SECOND.0 + later * 200 * Nanos::MILLI.0));
        assert_eq!(fleet[1].held.len(), 0);
        fleet[0].ends(20);
        waits(&mut fleet, Nanos::from_secs(2));
        let share = fleet[1].shown().share;
        assert!(Share(10) <= share, "{share}, {later}");
    }
}

#[test]
fn a_ceiling_that_a_replica_holds_alone_from_now_on_is_spoken_of_until_what_it_admitted_before_is_over()
 {
    let store = Store::forgetful();
    let ceiling = "limit: 4, max_duration: 10s";
    let mut fleet = ["a", "b"].map(|name| Replica::new(&store, name, ceiling));
    let [alone, other] = &mut fleet;
    passes(&[alone, other], &[alone, other], Nanos::from_secs(17));
    assert_eq!(alone.fills(), 4);
    alone.publish("limit: 4, mode: local, max_duration: 10s");
    // One ends each second and another comes, so that it is never idle.
    for second in 0..17 {
        passes(&[alone, other], &[alone, other], Nanos::SECOND);
        alone.ends(1);
        assert_eq!(alone.fills(), 1, "{second}");
    }
    assert_eq!(other.fills(), 4, "nothing of it counts for the fleet");
    store.spoken.lock().unwrap().clear();
    for _ in 0..5 {
        passes(&[alone], &[alone], Nanos::SECOND);
        alone.ends(1);
        alone.fills();
    }
    let spoken = store.spoken.lock().unwrap().concat();
    assert!(spoken.is_empty(), "fleet_term and max_duration are over: {spoken:?}");
}

#[test]
fn what_a_replica_holds_alone_keeps_a_store_that_begins_anew_in_doubt_no_longer_than_what_it_admitted_before()
 {
    let store = Store::forgetful();
    let [mut alone, mut other] = ["a", "b"].map(|name| Replica::new(&store, name, "limit: 4"));
    passes(&[&alone, &other], &[&alone, &other], DOUBT.plus(Nanos::from_secs(2)));
    assert_eq!(alone.fills(), 4);
    alone.publish("limit: 4, mode: local");
    // What comes is this replica's own, and what was before has ended, though the store cannot hear of it.
    store.is_cut.store(true, Relaxed);
    alone.passes(Nanos::SECOND);
    alone.ends(4);
    assert_eq!(alone.fills(), 4);
    store.is_another.store(true, Relaxed);
    store.is_cut.store(false, Relaxed);
    assert!(!other.asks(), "its own word is missing");
    passes(&[&alone, &other], &[&alone, &other], Nanos::from_secs(3));
    assert_eq!(other.fills(), 4);
}

#[test]
fn a_permit_that_replicas_hold_in_turns_lies_idle_for_a_heartbeat_at_most() {
    let store = Store::new();
    let mut fleet = ["a", "b", "c"].map(|name| Replica::new(&store, name, "limit: 1"));
    let (mut idle, mut longest, mut turns, mut holder) = (Nanos(0), Nanos(0), 0, None);
    for step in 0..Nanos::from_secs(90).0 / CALL.0 {
        let [a, b, c] = &mut fleet;
        passes(&[a, b, c], &[a, b, c], CALL);
        for replica in &mut fleet {
            replica.ends(replica.held.len());
            replica.asks();
        }
        let holds = fleet.iter().position(|replica| replica.shown().share != Share(0));
        turns += u32::from(holds.is_some() && holds != holder);
        holder = holds.or(holder);
        idle = if holds.is_some() { Nanos(0) } else { idle.plus(CALL) };
        // The first heartbeats are those of newcomers.
        longest = longest.max(if step < 100 { Nanos(0) } else { idle });
    }
    assert!(6 <= turns, "{turns} turns");
    assert!(longest <= Nanos::SECOND, "{longest}");
}
