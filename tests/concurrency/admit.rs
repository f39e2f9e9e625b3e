//! Buckets behind locks: what is held comes back, whoever walks away.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

use sluicegate::clock::Clock;
use sluicegate::engine::admit::{Admission, Ask, Denied, Held, Load};
use sluicegate::kernel::concurrency::Outcome;
use sluicegate::kernel::concurrency::limiter::{Rules, Waiting};
use sluicegate::kernel::units::{Nanos, Revision};
use tokio::runtime::Runtime;

const START: Nanos = Nanos::from_secs(1_000);
const LONG: Nanos = Nanos::from_secs(60);

const fn queued(limit: u32, size: u32) -> Rules {
    Rules { waiting: Some(Waiting { size, timeout: LONG }), ..Rules::fixed(limit) }
}

const fn ask(rules: &Rules) -> Ask<'_> {
    let revision = Revision(1);
    let (keep, shared) = (None, None);
    Ask { bucket: b"shop", revision, rules, keep, patience: LONG, answer: LONG, shared }
}

/// The same by the configuration of that number.
const fn ask_by(revision: u64, rules: &Rules) -> Ask<'_> {
    Ask { revision: Revision(revision), ..ask(rules) }
}

fn manual() -> (Arc<Clock>, Admission) {
    let clock = Arc::new(Clock::manual(START));
    (Arc::clone(&clock), Admission::new(clock, 4, 0))
}

fn pass(clock: &Clock, by: Nanos) {
    let Clock::Manual(manual) = clock else { panic!() };
    manual.advance(by);
}

fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// What is answered without waiting.
fn at_once(admission: &Admission, ask: Ask<'_>) -> Result<Held, Denied> {
    match poll(pin!(admission.acquire(ask))) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("it waits"),
    }
}

fn load(admission: &Admission) -> Load {
    admission.load(b"shop").unwrap()
}

/// Timers need a runtime to be made in.
fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap()
}

#[test]
fn sixty_four_tasks_on_one_bucket_all_pass_and_never_more_than_the_ceiling_at_once() {
    const CEILING: u32 = 5;
    let runtime = runtime();
    let admission = Arc::new(Admission::new(Arc::new(Clock::system()), 4, 0));
    let (within, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let task = |_| {
        let (admission, within, most) = (admission.clone(), within.clone(), most.clone());
        runtime.spawn(async move {
            for _ in 0..200 {
                let held = admission.acquire(ask(&queued(CEILING, 64))).await.unwrap();
                most.fetch_max(within.fetch_add(1, SeqCst) + 1, SeqCst);
                tokio::task::yield_now().await;
                within.fetch_sub(1, SeqCst);
                assert!(held.release(Outcome::Success, None));
            }
        })
    };
    let tasks: Vec<_> = (0..64).map(task).collect();
    for task in tasks {
        runtime.block_on(task).unwrap();
    }
    assert_eq!(most.load(SeqCst), CEILING, "exactly: all of it was used");
    assert_eq!(load(&admission), Load { in_flight: 0, waiting: 0, limit: CEILING });
}

#[test]
fn a_dropped_permit_leaves() {
    let (_, admission) = manual();
    let rules = Rules::fixed(1);
    let held = at_once(&admission, ask(&rules)).unwrap();
    assert_eq!(at_once(&admission, ask(&rules)).unwrap_err(), Denied::Full);
    drop(held);
    assert!(at_once(&admission, ask(&rules)).is_ok());
}

#[test]
fn a_dropped_future_leaves_the_queue() {
    let (_, admission) = manual();
    let (runtime, rules) = (runtime(), queued(1, 1));
    let _inside = runtime.enter();
    let held = at_once(&admission, ask(&rules)).unwrap();
    {
        let mut waits = pin!(admission.acquire(ask(&rules)));
        assert!(poll(waits.as_mut()).is_pending());
        assert_eq!(at_once(&admission, ask(&rules)).unwrap_err(), Denied::QueueFull);
    }
    assert_eq!(load(&admission).waiting, 0);
    drop(held);
    assert_eq!(load(&admission).in_flight, 0, "no permit went to the one that left");
}

#[test]
fn a_future_dropped_with_its_permit_on_the_way_gives_it_to_the_next() {
    let (_, admission) = manual();
    let (runtime, rules) = (runtime(), queued(1, 2));
    let _inside = runtime.enter();
    let held = at_once(&admission, ask(&rules)).unwrap();
    let mut next = pin!(admission.acquire(ask(&rules)));
    {
        let mut first = Box::pin(admission.acquire(ask(&rules)));
        assert!(poll(first.as_mut()).is_pending());
        assert!(poll(next.as_mut()).is_pending());
        drop(held);
        assert_eq!(load(&admission), Load { in_flight: 1, waiting: 1, limit: 1 });
    }
    let Poll::Ready(Ok(passed)) = poll(next.as_mut()) else { panic!("the permit was lost") };
    drop(passed);
    assert_eq!(load(&admission).in_flight, 0);
}

#[test]
fn a_deadline_takes_back_what_is_not_renewed() {
    let (clock, admission) = manual();
    let rules = Rules::fixed(2);
    let keep = Ask { keep: Some(LONG), ..ask(&rules) };
    let (lost, alive) = (at_once(&admission, keep).unwrap(), at_once(&admission, keep).unwrap());
    pass(&clock, Nanos::from_secs(40));
    assert!(alive.renew());
    pass(&clock, Nanos::from_secs(20));
    admission.sweep();
    assert_eq!(load(&admission).in_flight, 1);
    assert!(!lost.release(Outcome::Success, None), "it was taken back before");
    assert!(alive.release(Outcome::Success, None));
    assert_eq!(load(&admission).in_flight, 0);
}

#[test]
fn a_waiter_is_told_when_the_queues_timeout_is_over() {
    let (clock, admission) = manual();
    let (runtime, rules) = (runtime(), queued(1, 1));
    let _inside = runtime.enter();
    let _held = at_once(&admission, ask(&rules)).unwrap();
    let mut waits = pin!(admission.acquire(ask(&rules)));
    assert!(poll(waits.as_mut()).is_pending());
    pass(&clock, LONG);
    admission.sweep();
    assert!(matches!(poll(waits.as_mut()), Poll::Ready(Err(Denied::Late))));
    assert_eq!(load(&admission).waiting, 0);
}

/// One whose waking takes a second.
struct Slow(Arc<Clock>);

impl Wake for Slow {
    fn wake(self: Arc<Self>) {
        pass(&self.0, Nanos::SECOND);
    }
}

#[test]
fn a_sweep_comes_to_each_bucket_at_an_instant_of_its_own() {
    let (clock, admission) = manual();
    let (runtime, rules) = (runtime(), queued(1, 1));
    let _inside = runtime.enter();
    let names: [&[u8]; 2] = [b"a", b"b"];
    let keep = Some(LONG.plus(Nanos::SECOND));
    let of = |bucket: &'static [u8]| Ask { bucket, keep, ..ask(&rules) };
    let _held = names.map(|name| at_once(&admission, of(name)).unwrap());
    let waker = Waker::from(Arc::new(Slow(Arc::clone(&clock))));
    let mut waits = names.map(|name| Box::pin(admission.acquire(of(name))));
    for waits in &mut waits {
        assert!(waits.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    pass(&clock, LONG);
    admission.sweep();
    // Who waited in the bucket that was swept first took until the other's permit was over.
    assert_eq!(admission.total().in_flight, 1);
}

#[test]
fn a_raised_limit_and_a_raised_share_wake_those_that_wait() {
    let (_, admission) = manual();
    let (runtime, rules) = (runtime(), queued(1, 2));
    let _inside = runtime.enter();
    let _held = at_once(&admission, ask(&rules)).unwrap();
    let mut waits = pin!(admission.acquire(ask(&rules)));
    assert!(poll(waits.as_mut()).is_pending());
    admission.share(b"shop", 1);
    admission.reload_all(Revision(1), |_| Some((queued(2, 2), None)));
    assert!(poll(waits.as_mut()).is_pending(), "the share is still one");
    admission.share(b"shop", 2);
    assert!(matches!(poll(waits.as_mut()), Poll::Ready(Ok(_))));
}

#[test]
fn who_asks_by_an_older_configuration_puts_nothing_of_it_back() {
    let (_, admission) = manual();
    let (old, new) = (Rules::fixed(3), Rules::fixed(1));
    let _held = at_once(&admission, ask_by(2, &new)).unwrap();
    assert_eq!(at_once(&admission, ask_by(1, &old)).unwrap_err(), Denied::Full);
    admission.reload_all(Revision(1), |_| Some((old, None)));
    assert_eq!(load(&admission).limit, 1);
    let _second = at_once(&admission, ask_by(3, &old)).unwrap();
    assert_eq!(load(&admission).limit, 3);
}

#[test]
fn buckets_are_bounded_and_those_that_are_idle_for_long_are_dropped() {
    let (clock, admission) = manual();
    let rules = Rules::fixed(1);
    let names: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
    let mut held: Vec<_> =
        names.map(|name| at_once(&admission, ask_of(name, &rules)).unwrap()).into();
    assert_eq!(at_once(&admission, ask_of(b"e", &rules)).unwrap_err(), Denied::TooManyBuckets);
    held.truncate(1);
    pass(&clock, Nanos::from_secs(599));
    admission.sweep();
    assert_eq!(admission.buckets(), 4, "idle, but not for long");
    pass(&clock, Nanos::from_secs(1));
    admission.sweep();
    assert_eq!(admission.buckets(), 1, "the one in use stays");
    assert!(at_once(&admission, ask_of(b"e", &rules)).is_ok());
}

fn ask_of<'a>(bucket: &'a [u8], rules: &'a Rules) -> Ask<'a> {
    Ask { bucket, ..ask(rules) }
}

#[test]
fn a_newcomer_takes_the_place_of_the_bucket_that_is_idle_for_longest() {
    let (clock, admission) = manual();
    let rules = Rules::fixed(1);
    let names: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
    let [a, b, c, _d] = names.map(|name| at_once(&admission, ask_of(name, &rules)).unwrap());
    for held in [b, c, a] {
        pass(&clock, Nanos::SECOND);
        drop(held);
    }
    let orders: [(&[u8], &[u8]); 3] = [(b"e", b"b"), (b"f", b"c"), (b"g", b"a")];
    let mut held = Vec::new();
    for (comes, goes) in orders {
        assert!(admission.load(goes).is_some());
        held.push(at_once(&admission, ask_of(comes, &rules)).unwrap());
        assert_eq!((admission.load(goes), admission.buckets()), (None, 4));
    }
    assert_eq!(at_once(&admission, ask_of(b"h", &rules)).unwrap_err(), Denied::TooManyBuckets);
    assert_eq!(admission.load(b"d").unwrap().in_flight, 1, "it was in use all the time");
    assert_eq!(admission.total().in_flight, 4);
}

#[test]
fn a_bucket_in_which_somebody_waits_makes_no_room() {
    let (_, admission) = manual();
    let (runtime, rules) = (runtime(), queued(1, 1));
    let _inside = runtime.enter();
    let names: [&[u8]; 4] = [b"shop", b"b", b"c", b"d"];
    let mut held = names.map(|name| Some(at_once(&admission, ask_of(name, &rules)).unwrap()));
    admission.share(b"shop", 0);
    held[0] = None;
    let mut waits = pin!(admission.acquire(ask(&rules)));
    assert!(poll(waits.as_mut()).is_pending());
    assert_eq!(load(&admission), Load { in_flight: 0, waiting: 1, limit: 0 });
    assert_eq!(at_once(&admission, ask_of(b"e", &rules)).unwrap_err(), Denied::TooManyBuckets);
    admission.share(b"shop", 1);
    assert!(matches!(poll(waits.as_mut()), Poll::Ready(Ok(_))));
}

#[test]
fn the_one_bucket_of_a_thousand_that_is_idle_is_found_by_who_asks_as_often() {
    const MOST: usize = 1_000;
    let admission = Admission::new(Arc::new(Clock::manual(START)), MOST, 0);
    let rules = Rules::fixed(1);
    let name = |number: usize| number.to_le_bytes();
    let holds = |number| at_once(&admission, ask_of(&name(number), &rules));
    let mut held: Vec<_> = (0..MOST).map(|number| holds(number).unwrap()).collect();
    for idle in [0, 500, 998] {
        drop(held.swap_remove(idle));
        let found = (0..MOST).find_map(|turn| holds((idle + 1) * MOST + turn).ok());
        held.push(found.expect("it was never found"));
        assert_eq!(admission.total().in_flight, 1_000);
        assert_eq!(holds(usize::MAX).unwrap_err(), Denied::TooManyBuckets);
    }
}

#[test]
fn names_take_no_more_memory_than_so_much_for_each_bucket() {
    const MIB: usize = 1 << 20;
    let (clock, rules) = (Arc::new(Clock::manual(START)), Rules::fixed(1));
    for (most, bytes) in [(100, MIB), (4_096, 2 * MIB)] {
        let admission = Admission::new(Arc::clone(&clock), most, 0);
        let holds = |first: u8, len: usize| {
            let name: Vec<u8> = [first].into_iter().cycle().take(len).collect();
            at_once(&admission, ask_of(&name, &rules))
        };
        let sixteenth = bytes / 16;
        let mut held: Vec<_> = (0..16).map(|first| holds(first, sixteenth).unwrap()).collect();
        assert_eq!(holds(99, 1).unwrap_err(), Denied::TooManyBuckets);
        held.truncate(15);
        // The idle one goes, and its room is as large as it was.
        held.push(holds(16, sixteenth - 1).unwrap());
        held.push(holds(99, 1).unwrap());
        assert_eq!(holds(98, 1).unwrap_err(), Denied::TooManyBuckets);
        assert_eq!(admission.buckets(), 17);
        drop(held);
        assert_eq!(holds(97, bytes + 1).unwrap_err(), Denied::TooManyBuckets);
        assert_eq!(admission.buckets(), 17, "for what finds no room in any case nobody goes");
        let all_of_it = (0..17).find_map(|_| holds(97, bytes).ok());
        assert!(all_of_it.is_some(), "who asks as often has had all looked at");
        assert_eq!(admission.buckets(), 1);
    }
}
