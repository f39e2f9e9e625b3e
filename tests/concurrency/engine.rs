//! Questions under ceilings: what is held with what is counted.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::future::poll_immediate;
use sluicegate::backend::lease::{Lent, Message};
use sluicegate::backend::memory::{Memory, WhenFull};
use sluicegate::backend::{self, Backend, Cause, Charges, Outcomes, Reply};
use sluicegate::clock::Clock;
use sluicegate::config;
use sluicegate::engine::{Admitted, Engine, Permits, Policy, Refusal, Rejection};
use sluicegate::kernel::concurrency::Outcome;
use sluicegate::kernel::concurrency::register::Bounds;
use sluicegate::kernel::decision::{Cost, Descriptor, Question, Reason, Verdict};
use sluicegate::kernel::units::{Hits, Nanos, Revision};

/// An engine with these descriptors in domain `d`; of policy `shadow`, and with so many buckets.
fn engine_of(descriptors: &str, shadow: bool, most: usize) -> Engine {
    let memory = Arc::new(Memory::new(1_000, WhenFull::Deny, [0; 16]));
    let policy = Policy { shadow, ..Policy::default() };
    let engine = Engine::new(Clock::manual(Nanos::from_secs(1)), memory, policy);
    let engine = engine.with_buckets(most, 0);
    publish(&engine, descriptors);
    engine
}

pub(super) fn publish(engine: &Engine, descriptors: &str) {
    publish_as(engine, Revision(1), descriptors);
}

fn publish_as(engine: &Engine, revision: Revision, descriptors: &str) {
    let text = format!("domain: d\ndescriptors:\n{descriptors}");
    let (config, _) = config::load([("a.yaml", text.as_bytes())], revision, false).unwrap();
    engine.publish(Arc::new(config));
}

pub(super) fn engine(descriptors: &str) -> Engine {
    engine_of(descriptors, false, 100)
}

fn descriptor<'a>(entries: &[(&'a str, &'a str)], hits: u64) -> Descriptor<'a> {
    let entries = entries.iter().copied().collect();
    Descriptor { entries, cost: Cost::Charge(Hits(hits)), limit: None }
}

pub(super) fn question<'a>(entries: &[(&'a str, &'a str)]) -> Question<'a> {
    let descriptors = entries.iter().map(|&entry| descriptor(&[entry], 1)).collect();
    Question { domain: "d", descriptors }
}

pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

fn is_pending(future: Pin<&mut impl Future>) -> bool {
    future.poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

fn ask(engine: &Engine, question: &Question<'_>) -> Admitted {
    block_on(engine.admit(question, None)).unwrap()
}

fn passes(engine: &Engine, question: &Question<'_>) -> Permits {
    match ask(engine, question) {
        Admitted::Decided(answer, permits) if answer.verdict == Verdict::Admit => permits,
        other => panic!("{other:?}"),
    }
}

fn turned_away(engine: &Engine, question: &Question<'_>) -> Rejection {
    match ask(engine, question) {
        Admitted::Rejected(rejection) => rejection,
        Admitted::Decided(answer, _) => panic!("{answer:?}"),
    }
}

fn in_flight(engine: &Engine) -> u64 {
    engine.ceilings().total().in_flight
}

/// How many may be in flight.
fn may_be(engine: &Engine) -> u64 {
    engine.ceilings_in_use().values().map(|ceiling| ceiling.limit).sum()
}

#[test]
fn a_ceiling_is_reached_and_its_answer_is_the_file_s() {
    let engine = engine("- key: k\n  concurrency: {limit: 2, reject: {status: 429, body: busy}}\n");
    let asked = question(&[("k", "v")]);
    let (first, second) = (passes(&engine, &asked), passes(&engine, &asked));
    let rejection = turned_away(&engine, &asked);
    assert_eq!((rejection.reject.status, &*rejection.reject.body), (429, "busy"));
    assert_eq!((rejection.reason, &*rejection.path), (Reason::CeilingReached, "d.k"));
    first.finish(Outcome::Success, None);
    let third = passes(&engine, &asked);
    drop((second, third));
    assert_eq!(in_flight(&engine), 0);
}

#[test]
fn values_of_a_bare_key_have_buckets_of_their_own_and_those_of_a_shared_pattern_one() {
    let engine = engine(
        "- key: own\n  concurrency: {limit: 1}\n\
         - key: one\n  value: a*\n  share_threshold: true\n  concurrency: {limit: 1}\n",
    );
    let _held =
        [("own", "a"), ("own", "b"), ("one", "a1")].map(|e| passes(&engine, &question(&[e])));
    turned_away(&engine, &question(&[("own", "a")]));
    turned_away(&engine, &question(&[("one", "a2")]));
    assert_eq!(engine.ceilings().total().buckets, 3);
}

#[test]
fn all_of_a_question_s_ceilings_or_none_in_whatever_order_they_are_asked() {
    let engine =
        engine("- key: a\n  concurrency: {limit: 1}\n- key: b\n  concurrency: {limit: 1}\n");
    for order in [[("a", "x"), ("b", "x")], [("b", "x"), ("a", "x")]] {
        for full in order {
            let held = passes(&engine, &question(&[full]));
            turned_away(&engine, &question(&order));
            assert_eq!(in_flight(&engine), 1, "what was taken before came back");
            drop(held);
        }
    }
    let both = passes(&engine, &question(&[("a", "x"), ("b", "x")]));
    assert_eq!(in_flight(&engine), 2);
    both.finish(Outcome::Success, None);
}

#[test]
fn a_bucket_that_a_question_names_twice_is_asked_once() {
    let engine = engine("- key: a\n  concurrency: {limit: 1}\n");
    let held = passes(&engine, &question(&[("a", "x"), ("a", "x")]));
    assert_eq!(in_flight(&engine), 1);
    drop(held);
}

const BOTH: &str = "- key: k\n  concurrency: {limit: 1}\n  \
                    rate_limit: {unit: day, requests_per_unit: 2}\n";

#[test]
fn a_ceiling_s_denial_charges_no_rate_limit() {
    let engine = engine(BOTH);
    let asked = question(&[("k", "v")]);
    let held = passes(&engine, &asked);
    for _ in 0..10 {
        turned_away(&engine, &asked);
    }
    drop(held);
    drop(passes(&engine, &asked));
}

#[test]
fn a_rate_limit_s_denial_gives_the_permits_back() {
    let engine = engine(BOTH);
    let asked = question(&[("k", "v")]);
    for _ in 0..2 {
        drop(passes(&engine, &asked));
    }
    let Admitted::Decided(answer, permits) = ask(&engine, &asked) else { panic!() };
    assert_eq!(answer.verdict, Verdict::Deny);
    assert!(permits.is_empty());
    assert_eq!(in_flight(&engine), 0);
}

#[test]
fn a_question_without_an_end_meets_no_ceiling() {
    let engine = engine("- key: k\n  concurrency: {limit: 1}\n");
    let asked = question(&[("k", "v")]);
    let _held = passes(&engine, &asked);
    let answer = block_on(engine.decide(&asked)).unwrap();
    assert_eq!(answer.verdict, Verdict::Admit);
    assert_eq!(answer.statuses[0].finding.reason, Reason::NoLimit);
    assert_eq!(in_flight(&engine), 1);
}

#[test]
fn what_only_looks_is_not_in_flight() {
    let engine = engine("- key: k\n  concurrency: {limit: 1}\n");
    let descriptors = [descriptor(&[("k", "v")], 0)].into_iter().collect();
    let permits = passes(&engine, &Question { domain: "d", descriptors });
    assert!(permits.is_empty());
}

#[test]
fn shadow_mode_turns_nobody_away_and_makes_nobody_wait() {
    let words = "concurrency: {limit: 1, queue: {size: 9, timeout: 1h}}\n";
    let marked = engine(&format!("- key: k\n  shadow_mode: true\n  {words}"));
    let global = engine_of(&format!("- key: k\n  {words}"), true, 100);
    for engine in [marked, global] {
        let asked = question(&[("k", "v")]);
        let held = passes(&engine, &asked);
        assert!(!held.is_empty());
        assert!(passes(&engine, &asked).is_empty(), "it passes without a permit");
        assert_eq!(in_flight(&engine), 1);
    }
}

#[test]
fn there_are_never_more_buckets_than_may_be() {
    let engine = engine_of("- key: k\n  concurrency: {limit: 1}\n", false, 2);
    let _held = ["a", "b"].map(|value| passes(&engine, &question(&[("k", value)])));
    let rejection = turned_away(&engine, &question(&[("k", "c")]));
    assert_eq!(rejection.reason, Reason::TooManyBuckets);
}

#[test]
fn a_reloaded_ceiling_is_in_force_for_the_next_question() {
    let engine = engine("- key: k\n  concurrency: {limit: 1}\n");
    let asked = question(&[("k", "v")]);
    let _held = passes(&engine, &asked);
    turned_away(&engine, &asked);
    publish(&engine, "- key: k\n  concurrency: {limit: 2}\n");
    let _second = passes(&engine, &asked);
    turned_away(&engine, &asked);
}

/// Ceilings over `a` and `b` of so many, with room to wait.
fn two_ceilings([a, b]: [u32; 2]) -> String {
    let of = |key, limit| {
        format!(
            "- key: {key}\n  concurrency: {{limit: {limit}, queue: {{size: 50, timeout: 1h}}}}\n"
        )
    };
    of("a", a) + &of("b", b)
}

async fn held(engine: &Engine, question: &Question<'_>) -> Permits {
    match engine.admit(question, None).await {
        Ok(Admitted::Decided(_, permits)) => permits,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_waited_for_another_ceiling_tells_the_first_nothing_of_that_wait() {
    let engine = engine(&two_ceilings([30, 1]));
    let (b, both) = (question(&[("b", "x")]), question(&[("a", "x"), ("b", "x")]));
    block_on(async {
        let first = held(&engine, &b).await;
        let mut waits = Box::pin(engine.admit(&both, None));
        assert!(is_pending(waits.as_mut()));
        pass(&engine, 2_000);
        drop(first);
        let Ok(Admitted::Decided(_, permits)) = waits.await else { panic!() };
        pass(&engine, 10);
        permits.finish(Outcome::Success, None);
    });
    let times = engine.ceilings().looks().into_iter().map(|(_, look)| look.rtt);
    assert_eq!(times.collect::<Vec<_>>(), [Some(Nanos(10_000_000)); 2]);
}

#[test]
fn a_ceiling_that_a_reload_took_away_adds_nothing_to_what_may_be_in_flight() {
    let engine = engine("- key: k\n  concurrency: {limit: 5}\n");
    let held = passes(&engine, &question(&[("k", "v")]));
    assert_eq!(may_be(&engine), 5);
    publish_as(&engine, Revision(2), "- key: other\n  concurrency: {limit: 7}\n");
    assert_eq!((in_flight(&engine), may_be(&engine)), (1, 0));
    let looks = engine.ceilings().looks();
    assert!(looks.iter().all(|(_, look)| look.load.limit().is_none()));
    drop(held);
}

#[test]
fn a_question_that_began_before_a_reload_does_not_undo_it() {
    let engine = engine(&two_ceilings([1, 30]));
    let [a, b] = ["a", "b"].map(|key| question(&[(key, "x")]));
    let both = question(&[("a", "x"), ("b", "x")]);
    block_on(async {
        let first = held(&engine, &a).await;
        let mut old = Box::pin(engine.admit(&both, None));
        assert!(is_pending(old.as_mut()));
        publish_as(&engine, Revision(2), &two_ceilings([1, 2]));
        let _two = [held(&engine, &b).await, held(&engine, &b).await];
        let mut waits: Vec<_> = (0..20).map(|_| Box::pin(engine.admit(&b, None))).collect();
        assert!(waits.iter_mut().all(|waits| is_pending(waits.as_mut())));
        first.finish(Outcome::Success, None);
        assert!(is_pending(old.as_mut()), "it waits under the new ceiling as all others do");
        assert!(waits.iter_mut().all(|waits| is_pending(waits.as_mut())));
        assert_eq!((in_flight(&engine), engine.ceilings().total().waiting), (3, 21));
    });
}

#[test]
fn a_question_that_began_before_a_reload_finds_the_new_ceiling_where_nobody_was_yet() {
    let engine = engine(&two_ceilings([1, 30]));
    let (a, both) = (question(&[("a", "x")]), question(&[("a", "x"), ("b", "x")]));
    block_on(async {
        let _first = held(&engine, &a).await;
        let mut old = [(); 3].map(|()| Box::pin(engine.admit(&both, None)));
        assert!(old.iter_mut().all(|old| is_pending(old.as_mut())));
        publish_as(&engine, Revision(2), &two_ceilings([9, 1]));
        let mut passed = Vec::new();
        for old in &mut old {
            passed.extend(poll_immediate(old).await);
        }
        assert_eq!(passed.len(), 1);
        let total = engine.ceilings().total();
        assert_eq!((total.in_flight, total.waiting, may_be(&engine)), (5, 2, 10));
    });
}

#[test]
fn one_that_waits_passes_when_a_place_is_free_and_leaves_no_trace_when_it_goes() {
    let engine =
        Arc::new(engine("- key: k\n  concurrency: {limit: 1, queue: {size: 2, timeout: 1h}}\n"));
    let asked = question(&[("k", "v")]);
    assert_eq!(engine.longest_wait(&asked), Nanos::from_secs(3600));
    block_on(async {
        let Ok(Admitted::Decided(_, held)) = engine.admit(&asked, None).await else { panic!() };
        let mut gone = Box::pin(engine.admit(&asked, None));
        let mut waits = Box::pin(engine.admit(&asked, None));
        assert!(is_pending(gone.as_mut()));
        assert!(is_pending(waits.as_mut()));
        assert_eq!(engine.ceilings().total().waiting, 2);
        drop(gone);
        assert_eq!(engine.ceilings().total().waiting, 1);
        held.finish(Outcome::Success, None);
        let Ok(Admitted::Decided(_, held)) = waits.await else { panic!() };
        assert!(!held.is_empty());
    });
    assert_eq!((in_flight(&engine), engine.ceilings().total().waiting), (0, 0));
}

const ID: &str = "0123456789abcdef";
const OTHER: &str = "fedcba9876543210";

fn acquire(engine: &Engine, id: &str) -> Result<Admitted, Refusal> {
    let asked = question(&[("k", "v")]);
    block_on(engine.acquire((id, 0), &asked, &asked, None))
}

#[test]
fn an_id_holds_until_it_is_released_and_is_for_one_request() {
    let engine = engine("- key: k\n  concurrency: {limit: 2}\n");
    assert!(matches!(acquire(&engine, ID), Ok(Admitted::Decided(..))));
    assert_eq!(in_flight(&engine), 1);
    assert!(matches!(acquire(&engine, ID), Err(Refusal::BadId { descriptor: 0, .. })));
    assert_eq!(in_flight(&engine), 1);
    engine.release(ID, None, Outcome::Success, None);
    assert_eq!(in_flight(&engine), 0);
    engine.release(ID, None, Outcome::Success, None);
    assert_eq!(in_flight(&engine), 0);
}

/// Whether the id is refused, because it is in flight.
fn is_refused(asked: &Result<Admitted, Refusal>) -> bool {
    matches!(asked, Err(Refusal::BadId { descriptor: 0, .. }))
}

/// Whether the answer is that it may pass.
fn is_admitted(asked: &Result<Admitted, Refusal>) -> bool {
    matches!(asked, Ok(Admitted::Decided(answer, _)) if answer.verdict == Verdict::Admit)
}

#[test]
fn who_is_refused_for_the_id_has_charged_no_rate_limit() {
    let engine = engine(
        "- key: k\n  concurrency: {limit: 9}\n  \
         rate_limit: {unit: day, requests_per_unit: 2}\n",
    );
    assert!(is_admitted(&acquire(&engine, ID)));
    for _ in 0..5 {
        assert!(is_refused(&acquire(&engine, ID)));
    }
    assert!(is_admitted(&acquire(&engine, OTHER)), "the second of two");
    assert!(!is_admitted(&acquire(&engine, "one-more-01234567")));
    assert_eq!(in_flight(&engine), 2);
}

#[test]
fn an_id_that_holds_permits_is_refused_whatever_its_next_question_meets() {
    let engine = engine("- key: k\n  concurrency: {limit: 1}\n");
    assert!(is_admitted(&acquire(&engine, ID)));
    assert!(is_refused(&acquire(&engine, ID)), "before the ceiling turns it away");
    let elsewhere = question(&[("nothing", "v")]);
    let again = || block_on(engine.acquire((ID, 0), &elsewhere, &elsewhere, None));
    assert!(is_refused(&again()));
    assert!(engine.release(ID, None, Outcome::Success, None));
    assert!(is_admitted(&again()));
    assert!(is_admitted(&acquire(&engine, ID)), "what held nothing may ask again");
}

const QUEUED: &str = "- key: k\n  concurrency: {limit: 1, queue: {size: 9, timeout: 1h}}\n";

#[test]
fn an_id_that_waits_is_refused_until_it_waits_no_more() {
    let engine = engine(QUEUED);
    let asked = question(&[("k", "v")]);
    block_on(async {
        let ask = |id| Box::pin(engine.acquire((id, 0), &asked, &asked, None));
        assert!(is_admitted(&ask(OTHER).await));
        let mut first = ask(ID);
        assert!(is_pending(first.as_mut()));
        let second = poll_immediate(ask(ID)).await;
        assert!(is_refused(&second.expect("it does not wait")));
        assert_eq!(engine.ceilings().total().waiting, 1);
        drop(first);
        let mut again = ask(ID);
        assert!(is_pending(again.as_mut()));
        assert!(engine.release(OTHER, None, Outcome::Success, None));
        assert!(is_admitted(&again.await));
        assert!(engine.release(ID, None, Outcome::Success, None));
    });
    assert_eq!((in_flight(&engine), engine.ceilings().total().waiting), (0, 0));
}

#[test]
fn the_release_of_one_that_waits_comes_before_what_it_takes() {
    let engine = engine(QUEUED);
    let asked = question(&[("k", "v")]);
    block_on(async {
        let ask = |id| Box::pin(engine.acquire((id, 0), &asked, &asked, None));
        assert!(is_admitted(&ask(OTHER).await));
        let mut waits = ask(ID);
        assert!(is_pending(waits.as_mut()));
        assert!(!engine.release(ID, None, Outcome::Ignored, None));
        // Longer than early releases are remembered: that of one that still waits is all the same.
        pass(&engine, 25_000);
        assert!(engine.release(OTHER, None, Outcome::Success, None));
        assert!(is_admitted(&waits.await));
    });
    assert_eq!(in_flight(&engine), 0);
    assert_eq!(engine.early_releases().0, 0);
}

#[test]
fn an_id_whose_time_is_over_may_ask_anew_before_anybody_has_swept() {
    let engine = engine("- key: k\n  concurrency: {limit: 1, max_duration: 3s}\n");
    assert!(is_admitted(&acquire(&engine, ID)));
    let Clock::Manual(clock) = engine.clock() else { panic!() };
    clock.advance(Nanos(Nanos::from_secs(3).0 - 1));
    assert!(is_refused(&acquire(&engine, ID)));
    clock.advance(Nanos(1));
    assert!(!engine.renew(ID));
    assert!(is_admitted(&acquire(&engine, ID)));
    assert_eq!(in_flight(&engine), 1);
    assert!(engine.renew(ID));
    assert!(engine.release(ID, None, Outcome::Success, None));
}

/// Ceilings over `a` and `b` whose places are kept for 1 s and for 60 s, and a question of both.
fn of_a_second_and_a_minute() -> (Engine, Question<'static>) {
    let queue = "queue: {size: 9, timeout: 1h}";
    let of = |key, secs| {
        format!("- key: {key}\n  concurrency: {{limit: 1, max_duration: {secs}s, {queue}}}\n")
    };
    (engine(&(of("a", 1) + &of("b", 60))), question(&[("a", "x"), ("b", "x")]))
}

#[test]
fn under_two_ceilings_all_is_to_be_renewed_within_the_shorter_time() {
    let (engine, both) = of_a_second_and_a_minute();
    let ask = || block_on(engine.acquire((ID, 0), &both, &both, Some(Nanos::SECOND)));
    assert!(is_admitted(&ask()));
    assert_eq!(engine.held_by(ID), Some(Nanos::SECOND));
    for _ in 0..3 {
        pass(&engine, 900);
        assert!(engine.renew(ID));
        assert_eq!(in_flight(&engine), 2);
    }
    pass(&engine, 1_000);
    assert!(!engine.renew(ID), "a part is gone");
    assert_eq!(in_flight(&engine), 1, "the other is kept for its own time");
    pass(&engine, 59_000);
    assert!(!engine.renew(ID), "a part is gone still");
    pass(&engine, 59_000);
    assert_eq!(in_flight(&engine), 1, "and yet it was seen alive");
    assert!(is_admitted(&ask()), "it may ask anew, and what was left is given back before");
    assert_eq!(in_flight(&engine), 2);
    assert!(engine.renew(ID));
}

#[test]
fn the_time_of_what_is_held_begins_when_all_of_it_is() {
    let (engine, both) = of_a_second_and_a_minute();
    let b = question(&[("b", "x")]);
    block_on(async {
        let first = held(&engine, &b).await;
        let mut waits = Box::pin(engine.acquire((ID, 0), &both, &both, None));
        assert!(is_pending(waits.as_mut()));
        pass(&engine, 900);
        first.finish(Outcome::Success, None);
        assert!(is_admitted(&waits.await));
    });
    pass(&engine, 999);
    assert!(engine.renew(ID));
    assert_eq!(in_flight(&engine), 2);
}

#[test]
fn a_question_that_lost_a_place_while_it_waited_for_another_begins_anew() {
    let (engine, both) = of_a_second_and_a_minute();
    let [a, b] = ["a", "b"].map(|key| question(&[(key, "x")]));
    block_on(async {
        let first = held(&engine, &b).await;
        let mut waits = Box::pin(engine.acquire((ID, 0), &both, &both, None));
        assert!(is_pending(waits.as_mut()));
        pass(&engine, 1_000);
        let other = held(&engine, &a).await;
        first.finish(Outcome::Success, None);
        assert!(is_pending(waits.as_mut()), "the place under a is another's now");
        assert_eq!(in_flight(&engine), 1, "and what it had under b is given back");
        other.finish(Outcome::Success, None);
        assert!(is_admitted(&waits.await));
        assert_eq!(in_flight(&engine), 2);
        assert!(engine.renew(ID));
        assert!(is_refused(&engine.acquire((ID, 0), &both, &both, None).await));
    });
}

/// A ceiling over `b` whose places are kept for 60 s, and that may be waited for much longer.
const FOR_A_MINUTE: &str = "- key: b\n  concurrency: {limit: 1, max_duration: 60s, \
                            queue: {size: 9, timeout: 1h}}\n";

#[test]
fn a_question_that_lost_a_place_when_it_may_wait_no_longer_is_turned_away() {
    let a = "- key: a\n  concurrency: {limit: 1, max_duration: 1s}\n";
    let (engine, both) = (engine(&[a, FOR_A_MINUTE].concat()), question(&[("a", "x"), ("b", "x")]));
    block_on(async {
        let first = held(&engine, &question(&[("b", "x")])).await;
        let mut waits = Box::pin(engine.acquire((ID, 0), &both, &both, None));
        assert!(is_pending(waits.as_mut()));
        pass(&engine, 3_599_999);
        first.finish(Outcome::Success, None);
        pass(&engine, 1);
        let Ok(Admitted::Rejected(rejection)) = waits.await else { panic!("it was late") };
        assert_eq!((rejection.reason, &*rejection.path), (Reason::QueueTimeout, "d.b"));
    });
    assert_eq!(in_flight(&engine), 0);
}

#[test]
fn a_place_in_shadow_that_was_lost_while_another_was_waited_for_is_missed_by_nobody() {
    let a = "- key: a\n  shadow_mode: true\n  concurrency: {limit: 1, max_duration: 1s}\n";
    let (engine, both) = (engine(&[a, FOR_A_MINUTE].concat()), question(&[("a", "x"), ("b", "x")]));
    block_on(async {
        let first = held(&engine, &question(&[("b", "x")])).await;
        let mut waits = Box::pin(engine.acquire((ID, 0), &both, &both, None));
        assert!(is_pending(waits.as_mut()));
        pass(&engine, 1_000);
        first.finish(Outcome::Success, None);
        assert!(is_admitted(&waits.await));
    });
    assert_eq!(in_flight(&engine), 1);
    assert!(engine.renew(ID));
}

#[test]
fn a_release_that_overtakes_its_acquire_leaves_nothing_behind() {
    let engine = engine("- key: k\n  concurrency: {limit: 1}\n");
    engine.release(ID, None, Outcome::Ignored, None);
    assert!(matches!(acquire(&engine, ID), Ok(Admitted::Decided(..))));
    assert_eq!(in_flight(&engine), 0);
}

#[test]
fn without_room_for_early_releases_an_overtaken_acquire_keeps_its_place() {
    let bounds = Bounds { per_source: 0, total: 0, keep: Nanos::SECOND };
    let engine = engine("- key: k\n  concurrency: {limit: 1}\n").with_early_releases(bounds);
    engine.release(ID, None, Outcome::Ignored, None);
    assert!(acquire(&engine, ID).is_ok());
    assert_eq!(in_flight(&engine), 1);
}

#[test]
fn an_id_tells_how_long_it_has_been_in_flight() {
    let engine = engine("- key: k\n  concurrency: {limit: 1}\n");
    assert_eq!(engine.held_for(ID), None);
    assert!(acquire(&engine, ID).is_ok());
    let Clock::Manual(clock) = engine.clock() else { panic!() };
    clock.advance(Nanos(7));
    assert_eq!(engine.held_for(ID), Some(Nanos(7)));
    engine.release(ID, None, Outcome::Success, None);
    assert_eq!(engine.held_for(ID), None);
}

#[test]
fn a_place_whose_release_never_comes_is_free_after_max_duration() {
    let engine = engine("- key: k\n  concurrency: {limit: 1, max_duration: 3s}\n");
    assert!(matches!(acquire(&engine, ID), Ok(Admitted::Decided(..))));
    let Clock::Manual(clock) = engine.clock() else { panic!() };
    clock.advance(Nanos(Nanos::from_secs(3).0 - 1));
    engine.ceilings().sweep();
    assert_eq!(in_flight(&engine), 1);
    clock.advance(Nanos(1));
    engine.ceilings().sweep();
    assert_eq!(in_flight(&engine), 0);
    engine.release(ID, None, Outcome::Success, None);
    assert_eq!(in_flight(&engine), 0, "given back once");
}

#[test]
fn a_wall_clock_that_is_set_forward_ends_no_request() {
    let engine = engine("- key: k\n  concurrency: {limit: 1, max_duration: 3s}\n");
    assert!(is_admitted(&acquire(&engine, ID)));
    let Clock::Manual(clock) = engine.clock() else { panic!() };
    clock.step(Nanos::from_secs(3_600));
    engine.ceilings().sweep();
    assert_eq!(in_flight(&engine), 1);
    assert_eq!(engine.held_for(ID), Some(Nanos(0)));
    assert!(is_refused(&acquire(&engine, ID)), "it holds its place");
    clock.advance(Nanos(Nanos::from_secs(3).0 - 1));
    assert!(engine.renew(ID));
    clock.advance(Nanos::from_secs(3));
    engine.ceilings().sweep();
    assert_eq!(in_flight(&engine), 0, "what has passed does end it");
}

#[test]
fn a_place_that_is_renewed_is_kept_for_max_duration_from_then() {
    let engine = engine("- key: k\n  concurrency: {limit: 1, max_duration: 3s}\n");
    assert!(!engine.renew(ID), "nothing is held");
    assert!(matches!(acquire(&engine, ID), Ok(Admitted::Decided(..))));
    for _ in 0..5 {
        pass(&engine, 2_000);
        assert!(engine.renew(ID));
        assert_eq!(in_flight(&engine), 1);
    }
    pass(&engine, 3_000);
    assert!(!engine.renew(ID), "its deadline was before");
    assert_eq!(in_flight(&engine), 0);
}

fn pass(engine: &Engine, ms: u64) {
    let Clock::Manual(clock) = engine.clock() else { panic!() };
    clock.advance(Nanos(ms * Nanos::MILLI.0));
    engine.ceilings().sweep();
}

#[test]
fn the_release_of_one_that_was_turned_away_is_expected_and_remembered_no_longer() {
    let engine = engine("- key: k\n  concurrency: {limit: 1}\n");
    let other = "fedcba9876543210";
    assert!(matches!(acquire(&engine, ID), Ok(Admitted::Decided(..))));
    for _ in 0..2 {
        assert!(matches!(acquire(&engine, other), Ok(Admitted::Rejected(..))));
    }
    assert!(!engine.release(other, None, Outcome::Ignored, None));
    assert_eq!(engine.early_releases().0, 0);
    assert!(matches!(acquire(&engine, other), Ok(Admitted::Rejected(..))));
    assert!(engine.release(ID, None, Outcome::Success, None));
    assert!(matches!(acquire(&engine, other), Ok(Admitted::Decided(..))), "it may ask again");
    assert_eq!(in_flight(&engine), 1);
    assert!(engine.release(other, None, Outcome::Success, None));
}

/// A store that does not answer.
#[derive(Debug)]
struct Away;

impl Backend for Away {
    fn charge<'a>(&'a self, _: Nanos, charges: &'a Charges) -> Reply<'a, Outcomes> {
        let away = |_| backend::Outcome::Failed(Cause::Unreachable);
        Reply::Now(charges.list.iter().map(away).collect())
    }

    fn borrow<'a>(&'a self, _: Nanos, _: &'a Message) -> Reply<'a, Lent> {
        Reply::Now(Lent::Failed(Cause::Unreachable))
    }
}

#[test]
fn the_release_of_one_that_could_not_be_answered_is_expected_and_takes_no_early_one_s_place() {
    let clock = Clock::manual(Nanos::from_secs(1));
    let engine = Engine::new(clock, Arc::new(Away), Policy::default());
    publish(&engine, BOTH);
    assert!(matches!(acquire(&engine, ID), Err(Refusal::BackendDown(_))));
    assert_eq!(in_flight(&engine), 0);
    assert!(!engine.release(ID, None, Outcome::Ignored, None));
    assert_eq!(engine.early_releases().0, 0);
    assert!(matches!(acquire(&engine, ID), Err(Refusal::BackendDown(_))), "it may ask again");
}

#[test]
fn the_release_of_one_that_left_the_queue_is_expected_and_takes_no_early_one_s_place() {
    let engine = engine("- key: k\n  concurrency: {limit: 1, queue: {size: 2, timeout: 1h}}\n");
    let asked = question(&[("k", "v")]);
    let asks = |id| Box::pin(engine.acquire((id, 0), &asked, &asked, None));
    block_on(async {
        assert!(is_admitted(&asks(ID).await));
        let (mut leaves, mut told) = (asks(OTHER), asks("its-release-is-before"));
        assert!(is_pending(leaves.as_mut()) && is_pending(told.as_mut()));
        engine.release("its-release-is-before", None, Outcome::Ignored, None);
        assert_eq!(engine.early_releases().0, 1);
        drop(told);
        assert_eq!(engine.early_releases().0, 0, "what it was remembered for is over");
        drop(leaves);
        assert!(!engine.release(OTHER, None, Outcome::Ignored, None));
        assert_eq!(engine.early_releases().0, 0);
    });
    assert!(engine.release(ID, None, Outcome::Success, None));
}

#[test]
fn the_release_of_one_that_asks_again_and_waits_comes_before_what_it_takes() {
    let engine = engine("- key: k\n  concurrency: {limit: 1, queue: {size: 1, timeout: 1h}}\n");
    let asked = question(&[("k", "v")]);
    let asks = |id, patience| Box::pin(engine.acquire((id, 0), &asked, &asked, patience));
    block_on(async {
        assert!(is_admitted(&asks(ID, None).await));
        assert!(matches!(asks(OTHER, Some(Nanos(0))).await, Ok(Admitted::Rejected(..))));
        let mut waits = asks(OTHER, None);
        assert!(is_pending(waits.as_mut()));
        engine.release(OTHER, None, Outcome::Ignored, None);
        assert_eq!(engine.early_releases().0, 1);
        assert!(engine.release(ID, None, Outcome::Success, None));
        assert!(is_admitted(&waits.await));
    });
    assert_eq!((in_flight(&engine), engine.early_releases().0), (0, 0));
}

#[test]
fn the_bounds_of_early_releases_are_those_that_the_engine_was_given() {
    let bounds = Bounds { per_source: 3, total: 5, keep: Nanos::SECOND };
    let engine = engine("- key: k\n  concurrency: {limit: 1, max_duration: 3s}\n");
    let engine = engine.with_early_releases(bounds);
    assert_eq!(engine.early_releases(), (0, 5));
    let other = "fedcba9876543210";
    assert!(matches!(acquire(&engine, ID), Ok(Admitted::Decided(..))));
    assert!(matches!(acquire(&engine, other), Ok(Admitted::Rejected(..))));
    pass(&engine, 3_000);
    forgets(&engine, ID);
    // That it holds nothing was noted for a second, so that its release is of nobody known here.
    engine.release(other, None, Outcome::Ignored, None);
    assert_eq!(engine.early_releases(), (1, 5));
}

/// Lets the engine forget what is over by now, until it has forgotten `id`, which holds something.
fn forgets(engine: &Engine, id: &str) {
    let forgotten = async {
        while engine.held_by(id).is_some() {
            tokio::task::yield_now().await;
        }
    };
    let either = async {
        tokio::select! {
            () = engine.expire_on() => panic!("it ended"),
            () = forgotten => {}
        }
    };
    let patience = Duration::from_secs(60);
    block_on(async { tokio::time::timeout(patience, either).await }).expect("it is known still");
}

#[test]
fn early_releases_are_bounded_for_each_source_and_the_first_are_never_forgotten_for_the_last() {
    const MOST: usize = 50_000;
    let engine = engine("- key: k\n  concurrency: {limit: 9}\n");
    let source = |last| Some(std::net::IpAddr::from([192, 0, 2, last]));
    let early = |id: String, from| {
        engine.release(&id, source(from), Outcome::Ignored, None);
        engine.early_releases().0
    };
    for number in 0..MOST {
        assert_eq!(early(format!("release-{number:016}"), 1), number + 1);
    }
    assert_eq!(early("one-more-of-the-same".into(), 1), MOST, "refused");
    assert_eq!(early(ID.into(), 2), MOST + 1, "another's are remembered");
    for id in ["release-0000000000000000", ID] {
        assert!(matches!(acquire(&engine, id), Ok(Admitted::Decided(..))));
        assert_eq!(in_flight(&engine), 0, "{id} was over");
    }
    assert!(matches!(acquire(&engine, "one-more-of-the-same"), Ok(Admitted::Decided(..))));
    assert_eq!(in_flight(&engine), 1, "forgotten, and max_duration frees it");
}

#[test]
fn a_hundred_thousand_places_that_nobody_gives_back_are_bounded_by_their_ceiling_and_end() {
    let engine = engine("- key: k\n  concurrency: {limit: 100000, max_duration: 30s}\n");
    let asked = question(&[("k", "v")]);
    let held = block_on(async {
        let mut held = 0;
        for number in 0..101_000 {
            let id = format!("never-given-back-{number}");
            let admitted = engine.acquire((&id, 0), &asked, &asked, None).await;
            held += usize::from(matches!(admitted, Ok(Admitted::Decided(..))));
        }
        held
    });
    assert_eq!((held, in_flight(&engine)), (100_000, 100_000));
    pass(&engine, 30_000);
    assert_eq!(in_flight(&engine), 0);
}

#[test]
fn what_cannot_be_asked_holds_nothing() {
    let engine = engine("- key: k\n  concurrency: {limit: 1}\n");
    let refused = |question| block_on(engine.admit(&question, None)).unwrap_err();
    assert_eq!(refused(question(&[])), Refusal::NoDescriptors);
    assert_eq!(refused(Question { domain: "", ..question(&[("k", "v")]) }), Refusal::EmptyDomain);
    assert_eq!(in_flight(&engine), 0);
}
