//! Ceilings for which every request asks the store: the engine's part, over one store in this process and a
//! clock set by hand.

use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::poll_immediate;
use parking_lot::Mutex;
use sluicegate::backend::fleet::{Fleet as Lives, Member};
use sluicegate::backend::lease::{Lent, Message};
use sluicegate::backend::memory::permits::Strict;
use sluicegate::backend::memory::{Memory, WhenFull};
use sluicegate::backend::permits::{Acquire, Acquired, AllHeard, Answer, Ask, Id, Round, Times};
use sluicegate::backend::{Backend, Cause, Charges, Outcomes, Reply};
use sluicegate::clock::Clock;
use sluicegate::config;
use sluicegate::engine::admit::fleet::{Fleet, Pace};
use sluicegate::engine::{Admitted, Engine, Membership, Permits, Policy};
use sluicegate::kernel::concurrency::Outcome;
use sluicegate::kernel::decision::{Cost, Descriptor, Question, Reason, Verdict};
use sluicegate::kernel::key::CounterKey;
use sluicegate::kernel::units::{Hits, Nanos, Revision, Share};

const START: Nanos = Nanos::from_secs(1_000);
const BEAT: Nanos = Nanos::SECOND;
const BEATS: Nanos = Nanos::from_secs(3);
const GRACE: Nanos = Nanos::from_secs(4);

/// A store that can be cut off, be slow to answer, or forget; and counts its calls.
#[derive(Debug)]
struct Store {
    memory: Memory,
    strict: Mutex<Strict>,
    is_cut: AtomicBool,
    /// It takes what it is asked, and the answer is lost.
    is_mute: AtomicBool,
    /// Its answers are on their way for a while.
    is_slow: AtomicBool,
    /// It takes what it is asked, and never answers.
    is_silent: AtomicBool,
    asked: AtomicUsize,
    told: AtomicUsize,
    last: Mutex<Option<Acquire>>,
}

impl Store {
    fn new() -> Arc<Self> {
        let memory = Memory::new(1_000, WhenFull::Deny, [0; 16]);
        let strict = Mutex::new(Strict::settled());
        let (is_cut, is_mute, is_slow, is_silent, asked, told, last) = Default::default();
        Arc::new(Self { memory, strict, is_cut, is_mute, is_slow, is_silent, asked, told, last })
    }

    fn forgets(&self) {
        *self.strict.lock() = Strict::default();
    }

    /// How many are held, as somebody new is told.
    fn held(&self, now: Nanos) -> u64 {
        let bucket = CounterKey::ceiling("d", [("k", "v")].into_iter()).as_bytes().into();
        let times = Times { grace: GRACE, silence: Nanos(u64::MAX), longest: Nanos::from_secs(60) };
        let ask = Ask { id: Id(0, 0), limit: Share(0), keep: BEATS, times };
        self.strict.lock().acquire(now, "", &Acquire { bucket, ask }).held.0
    }
}

impl Backend for Store {
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> Reply<'a, Outcomes> {
        self.memory.charge(now, charges)
    }

    fn borrow<'a>(&'a self, now: Nanos, message: &'a Message) -> Reply<'a, Lent> {
        self.memory.borrow(now, message)
    }

    fn acquire<'a>(&'a self, now: Nanos, asked: &'a Acquire) -> Reply<'a, Result<Answer, Cause>> {
        self.asked.fetch_add(1, Relaxed);
        if self.is_cut.load(Relaxed) {
            return Reply::Now(Err(Cause::Unreachable));
        }
        let answer = self.strict.lock().acquire(now, "", asked);
        *self.last.lock() = Some(asked.clone());
        let answer = if self.is_mute.load(Relaxed) { Err(Cause::Late) } else { Ok(answer) };
        if self.is_silent.load(Relaxed) {
            return Reply::Later(Box::pin(std::future::pending()));
        }
        let is_slow = self.is_slow.load(Relaxed);
        Reply::Later(Box::pin(async move {
            if is_slow {
                tokio::task::yield_now().await;
            }
            answer
        }))
    }

    fn tell<'a>(&'a self, now: Nanos, round: &'a Round) -> Reply<'a, AllHeard> {
        self.told.fetch_add(1, Relaxed);
        if self.is_silent.load(Relaxed) {
            return Reply::Later(Box::pin(std::future::pending()));
        }
        if self.is_cut.load(Relaxed) {
            return Reply::Now(round.unheard(Cause::Unreachable));
        }
        let heard = self.strict.lock().tell(now, "", round).into_iter().map(Ok).collect();
        Reply::Now(if self.is_mute.load(Relaxed) { round.unheard(Cause::Late) } else { heard })
    }
}

/// A replica, with what it holds.
struct Replica {
    engine: Engine,
    membership: Arc<Membership>,
    held: Vec<Permits>,
}

impl Replica {
    fn new(store: &Arc<Store>, name: &str, ceiling: &str) -> Self {
        Self::of_buckets(store, name, ceiling, 100)
    }

    fn of_buckets(store: &Arc<Store>, name: &str, ceiling: &str, most: usize) -> Self {
        let clock = Clock::manual(START);
        let membership = Arc::new(Membership::new(name, 1, NonZeroU32::new(4).unwrap()));
        let pace = Pace { heartbeat: BEAT, term: Nanos::from_secs(5) };
        let fleet =
            Fleet::new(Arc::clone(&membership), clock.now(), pace, Duration::from_millis(1));
        let engine = Engine::new(clock, store.clone(), Policy::default());
        let engine = engine.with_buckets(most, 0).with_fleet(Arc::new(fleet));
        let replica = Self { engine, membership, held: Vec::new() };
        replica.publish(ceiling);
        replica
    }

    fn publish(&self, ceiling: &str) {
        let text = format!("domain: d\ndescriptors: [{{key: k, concurrency: {{{ceiling}}}}}]\n");
        let (config, _) = config::load([("a.yaml", text.as_bytes())], Revision(1), false).unwrap();
        self.engine.publish(Arc::new(config));
    }

    /// Asks for a stream's place.
    fn asks(&mut self) -> bool {
        let passed = passed(block_on(self.engine.admit(&question(), None)).unwrap());
        self.keeps(passed)
    }

    /// Asks for the place of an id.
    fn asks_by_id(&mut self) -> bool {
        let admitted = block_on(self.engine.admit_with_deadline(&question(), None)).unwrap();
        self.keeps(passed(admitted))
    }

    fn keeps(&mut self, permits: Option<Permits>) -> bool {
        let is_some = permits.is_some();
        self.held.extend(permits);
        is_some
    }

    fn fills(&mut self) -> usize {
        let before = self.held.len();
        while self.asks() {}
        self.held.len() - before
    }

    fn ends(&mut self, count: usize) {
        for permits in self.held.drain(..count) {
            permits.finish(Outcome::Success, None);
        }
    }

    /// Sees these live.
    fn sees(&self, nodes: &[&str]) {
        let (silent, record) = (Nanos(0), "{}");
        let member = |node: &&str| Member { node: (*node).into(), silent, record: record.into() };
        let members = nodes.iter().map(member).collect();
        self.membership.learn(Lives { members, before: None }, self.now());
    }

    /// How many may be in flight, as its metrics say.
    fn shows(&self) -> u64 {
        self.engine.ceilings_in_use().values().map(|ceiling| ceiling.limit).sum()
    }

    fn tells(&self) {
        block_on(self.engine.speak_once());
    }

    fn passes(&self, by: Nanos) {
        let Clock::Manual(clock) = self.engine.clock() else { panic!() };
        clock.advance(by);
    }

    /// Passes the time as one that lives does: it speaks once a beat.
    fn lives_on(&self, by: Nanos) {
        let mut left = by;
        while Nanos(0) < left {
            let step = left.min(BEAT);
            self.passes(step);
            self.tells();
            left = left.since(step);
        }
    }

    fn now(&self) -> Nanos {
        self.engine.clock().now()
    }
}

fn question() -> Question<'static> {
    question_of("v")
}

fn question_of(value: &str) -> Question<'_> {
    let entries = [("k", value)].into_iter().collect();
    let descriptor = Descriptor { entries, cost: Cost::Charge(Hits(1)), limit: None };
    Question { domain: "d", descriptors: [descriptor].into_iter().collect() }
}

fn passed(admitted: Admitted) -> Option<Permits> {
    match admitted {
        Admitted::Decided(answer, permits) if answer.verdict == Verdict::Admit => Some(permits),
        _ => None,
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// All of them a while later, each having told.
fn later(fleet: &[&Replica], by: Nanos) {
    for replica in fleet {
        replica.passes(by);
    }
    for replica in fleet {
        replica.tells();
    }
}

fn two(store: &Arc<Store>, ceiling: &str) -> [Replica; 2] {
    ["a", "b"].map(|name| Replica::new(store, name, ceiling))
}

#[test]
fn two_replicas_together_have_as_many_in_flight_as_may_be_with_a_call_for_each() {
    let store = Store::new();
    let [mut a, mut b] = two(&store, "limit: 3, mode: strict");
    assert!(a.asks() && b.asks() && a.asks());
    assert!(!b.asks() && !a.asks());
    assert_eq!(store.asked.load(Relaxed), 5);
    a.ends(1);
    a.tells();
    assert_eq!((b.fills(), b.held.len()), (1, 2));
    assert_eq!(store.held(b.now()), 3);
}

#[test]
fn a_bucket_in_whose_line_somebody_waits_or_of_which_the_store_is_to_be_told_makes_no_room() {
    let store = Store::new();
    let ceiling = "limit: 1, mode: strict, queue: {size: 1, timeout: 1h}";
    let [mut a, b] = ["a", "b"].map(|name| Replica::of_buckets(&store, name, ceiling, 1));
    let others = |replica: &Replica| match block_on(replica.engine.admit(&question_of("w"), None))
        .unwrap()
    {
        Admitted::Rejected(rejection) => Err(rejection.reason),
        Admitted::Decided(..) => Ok(()),
    };
    assert!(a.asks());
    assert_eq!(others(&a), Err(Reason::TooManyBuckets), "in flight");
    block_on(async {
        let waits = question();
        let mut waits = Box::pin(b.engine.admit(&waits, None));
        assert!(poll_immediate(&mut waits).await.is_none(), "in line");
        b.engine.speak_once().await;
        let taken = b.engine.admit(&question_of("w"), None).await.unwrap();
        let Admitted::Rejected(rejection) = taken else { panic!("it took the place") };
        assert_eq!(rejection.reason, Reason::TooManyBuckets);
    });
    b.tells();
    assert_eq!(others(&b), Ok(()), "who waited has left");
    b.tells();
    a.ends(1);
    assert_eq!(others(&a), Err(Reason::TooManyBuckets), "to be told over");
    a.tells();
    assert_eq!(others(&a), Ok(()));
}

/// Whoever adds up what replicas show must come to the ceiling, and each has all of it in force.
#[test]
fn what_replicas_show_that_may_be_in_flight_is_the_ceiling_together() {
    let names = ["a", "b", "c", "d", "e"];
    for (limit, count) in [(10, 2), (10, 5), (3, 2), (3, 5), (1, 1), (1, 5), (7, 1)] {
        let store = Store::new();
        let ceiling = format!("limit: {limit}, mode: strict");
        let fleet = names[..count].iter().map(|name| {
            let mut replica = Replica::new(&store, name, &ceiling);
            replica.sees(&names[..count]);
            replica.asks();
            replica
        });
        let fleet: Vec<_> = fleet.collect();
        let shown: Vec<_> = fleet.iter().map(Replica::shows).collect();
        assert_eq!(shown.iter().sum::<u64>(), u64::from(limit), "{shown:?}");
        let looks = fleet.iter().flat_map(|replica| replica.engine.ceilings().looks());
        assert!(looks.into_iter().all(|(_, look)| look.load.limit() == Some(limit)));
    }
}

#[test]
fn a_replica_that_has_seen_nobody_shows_the_part_of_the_fewest_there_may_be() {
    let mut alone = Replica::new(&Store::new(), "a", "limit: 10, mode: strict");
    assert!(alone.asks());
    assert_eq!(alone.shows(), 10 / 4);
}

#[test]
fn of_a_ceiling_that_no_store_counts_all_is_shown() {
    let mut alone = Replica::new(&Store::new(), "a", "limit: 10, mode: strict");
    assert!(alone.asks());
    alone.publish("limit: 10, mode: local");
    assert_eq!(alone.shows(), 10);
}

#[test]
fn where_one_replica_has_all_of_them_it_asks_nobody() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 2, mode: strict");
    assert_eq!(alone.fills(), 2);
    assert_eq!(store.asked.load(Relaxed), 2);
}

#[test]
fn what_is_held_is_told_once_a_beat_in_one_call_and_outlives_its_deadline() {
    let store = Store::new();
    let [mut a, mut b] = two(&store, "limit: 2, mode: strict");
    assert_eq!(a.fills(), 2);
    for _ in 0..10 {
        later(&[&a], Nanos(BEAT.0 / 4));
        b.passes(Nanos(BEAT.0 / 4));
    }
    let calls = store.told.load(Relaxed);
    for _ in 0..40 {
        later(&[&a], Nanos(BEAT.0 / 4));
        b.passes(Nanos(BEAT.0 / 4));
        assert_eq!(b.fills(), 0);
    }
    let calls = store.told.load(Relaxed) - calls;
    assert!((9..=11).contains(&calls), "{calls} calls in ten beats");
}

#[test]
fn a_stream_whose_replica_is_gone_is_free_after_three_beats() {
    let store = Store::new();
    let [mut a, mut b] = two(&store, "limit: 2, mode: strict");
    assert_eq!(a.fills(), 2);
    later(&[&a, &b], BEAT);
    b.lives_on(Nanos(BEATS.0 - 1));
    assert_eq!(b.fills(), 0);
    b.lives_on(Nanos(1));
    assert_eq!(b.fills(), 2);
}

#[test]
fn an_id_whose_replica_is_gone_is_free_a_beat_after_its_max_duration_and_no_sooner() {
    for told in [false, true] {
        let store = Store::new();
        let [mut a, mut b] = two(&store, "limit: 1, mode: strict, max_duration: 20s");
        assert!(a.asks_by_id());
        if told {
            later(&[&a, &b], BEAT);
            b.lives_on(Nanos::from_secs(19).plus(BEAT).since(Nanos(1)));
        } else {
            b.lives_on(Nanos::from_secs(20).plus(BEAT).since(Nanos(1)));
        }
        assert_eq!(b.fills(), 0);
        b.lives_on(Nanos(1));
        assert_eq!(b.fills(), 1);
    }
}

#[test]
fn an_id_that_is_renewed_at_the_last_moment_is_nobody_elses_meanwhile() {
    let store = Store::new();
    let [mut a, mut b] = two(&store, "limit: 1, mode: strict, max_duration: 20s");
    assert!(a.asks_by_id());
    for _ in 0..19 {
        later(&[&a, &b], Nanos::from_secs(1));
    }
    a.passes(Nanos(900_000_000));
    assert!(a.held[0].renew());
    b.passes(Nanos(1_500_000_000));
    assert_eq!(b.fills(), 0);
}

#[test]
fn an_id_that_is_never_released_is_over_at_its_max_duration() {
    let store = Store::new();
    let [mut a, mut b] = two(&store, "limit: 1, mode: strict, max_duration: 5s");
    assert!(a.asks_by_id());
    for _ in 0..4 {
        later(&[&a, &b], BEAT);
        assert_eq!(b.fills(), 0);
    }
    later(&[&a, &b], BEAT);
    assert_eq!(b.fills(), 1);
    assert_eq!(a.engine.ceilings().total().in_flight, 0);
}

#[test]
fn one_that_is_dropped_while_the_store_is_asked_leaks_nothing() {
    let store = Store::new();
    let alone = Replica::new(&store, "a", "limit: 1, mode: strict");
    store.is_slow.store(true, Relaxed);
    block_on(async {
        let question = question();
        let mut asked = pin!(alone.engine.admit(&question, None));
        assert!(poll_immediate(&mut asked).await.is_none(), "it is under way");
        assert_eq!(store.held(START), 1);
        // What was not granted is not told as held, however long it takes.
        alone.passes(BEATS);
        alone.engine.speak_once().await;
        assert_eq!(store.held(alone.now()), 0);
        // It arrives once more, and is dropped.
        let asked = store.last.lock().take().unwrap();
        store.strict.lock().acquire(alone.now(), "", &asked);
    });
    assert_eq!(store.held(alone.now()), 1);
    block_on(alone.engine.speak_once());
    assert_eq!(store.held(alone.now()), 0);
    assert_eq!(alone.engine.ceilings().total().in_flight, 0);
}

#[test]
fn who_asks_waits_for_the_store_no_longer_than_it_has_time_and_leaks_nothing() {
    let queue = "limit: 1, mode: strict, queue: {size: 9, timeout: 1h}";
    for shadow in [false, true] {
        let store = Store::new();
        let shadowed =
            || format!("{queue}}}, shadow_mode: true}}, {{key: o, concurrency: {{limit: 1");
        let alone = if shadow { shadowed() } else { queue.to_owned() };
        let alone = Replica::new(&store, "a", &alone);
        store.is_silent.store(true, Relaxed);
        block_on(async {
            let question = question();
            let asked = alone.engine.admit(&question, Some(Nanos(10 * Nanos::MILLI.0)));
            let asked = tokio::time::timeout(Duration::from_secs(10), asked).await;
            let held = passed(asked.expect("it waits still").unwrap());
            assert_eq!(held.is_some_and(|held| held.is_empty()), shadow);
            assert_eq!(store.held(START), 1, "it has taken what nobody heard of");
            store.is_silent.store(false, Relaxed);
            alone.engine.speak_once().await;
            assert_eq!(store.held(START), 0);
        });
    }
}

#[test]
fn what_is_not_enforced_is_asked_of_the_store_all_the_same() {
    let store = Store::new();
    let shadow = "limit: 1, mode: strict}, shadow_mode: true}, {key: o, concurrency: {limit: 1";
    let [a, b] = two(&store, shadow);
    let held = |replica: &Replica| {
        passed(block_on(replica.engine.admit(&question(), None)).unwrap()).unwrap()
    };
    let first = held(&a);
    assert!(!first.is_empty());
    assert!(held(&b).is_empty(), "counted, and let pass");
}

#[test]
fn one_whose_answer_is_lost_is_given_back_and_again_for_three_beats() {
    let store = Store::new();
    let alone = "limit: 1, mode: strict, on_backend_failure: deny, max_duration: 60s";
    let mut alone = Replica::new(&store, "a", alone);
    store.is_mute.store(true, Relaxed);
    assert!(!alone.asks_by_id());
    assert_eq!(store.held(alone.now()), 1);
    store.is_mute.store(false, Relaxed);
    alone.tells();
    assert_eq!(store.held(alone.now()), 0);
    // The call itself was long under way and comes now.
    let asked = store.last.lock().take().unwrap();
    store.strict.lock().acquire(alone.now(), "", &asked);
    assert_eq!(store.held(alone.now()), 1);
    later(&[&alone], BEAT);
    assert_eq!(store.held(alone.now()), 0);
    alone.lives_on(BEATS);
    store.strict.lock().acquire(alone.now(), "", &asked);
    alone.lives_on(BEAT);
    assert_eq!(store.held(alone.now()), 1, "by then no call is under way any more");
}

#[test]
fn a_release_that_the_store_did_not_hear_is_told_again() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 1, mode: strict");
    assert!(alone.asks_by_id());
    store.is_cut.store(true, Relaxed);
    alone.ends(1);
    for _ in 0..10 {
        later(&[&alone], BEAT);
    }
    assert_eq!(store.held(alone.now()), 1);
    store.is_cut.store(false, Relaxed);
    later(&[&alone], BEAT);
    assert_eq!(store.held(alone.now()), 0);
}

#[test]
fn a_release_is_told_at_once_beside_those_that_wait_to_be_told_again() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 2, mode: strict");
    assert_eq!(alone.fills(), 2);
    store.is_cut.store(true, Relaxed);
    alone.ends(1);
    alone.tells();
    store.is_cut.store(false, Relaxed);
    alone.ends(1);
    alone.tells();
    assert_eq!(store.held(alone.now()), 1);
    later(&[&alone], BEAT);
    assert_eq!(store.held(alone.now()), 0);
}

#[test]
fn a_telling_moves_nothing_of_what_waits_to_be_told_again() {
    const KEPT: usize = 5_000;
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", &format!("limit: {KEPT}, mode: strict"));
    block_on(async {
        for _ in 0..KEPT {
            let admitted = alone.engine.admit(&question(), None).await.unwrap();
            alone.held.extend(passed(admitted));
        }
    });
    assert_eq!(alone.held.len(), KEPT);
    alone.tells();
    let idle = allocation_counter::measure(|| alone.tells());
    store.is_cut.store(true, Relaxed);
    alone.ends(KEPT);
    alone.tells();
    let waiting = allocation_counter::measure(|| alone.tells());
    // An entry that is moved takes its own size, and that is more than the two numbers of its id.
    let moved = u64::try_from(KEPT * size_of::<Id>()).unwrap();
    assert!(waiting.bytes_total < idle.bytes_total + moved / 2, "{waiting:?} for {idle:?}");
    store.is_cut.store(false, Relaxed);
    later(&[&alone], BEAT);
    assert_eq!(store.held(alone.now()), 0, "it was all there to be told again");
}

#[test]
fn a_store_that_forgot_admits_nobody_until_what_is_held_was_told_again() {
    let store = Store::new();
    let [mut a, mut b] = two(&store, "limit: 3, mode: strict");
    assert!(a.asks() && a.asks());
    later(&[&a, &b], BEAT);
    store.forgets();
    assert_eq!(b.fills(), 0);
    later(&[&a, &b], BEAT);
    assert_eq!((store.held(a.now()), b.fills()), (2, 0));
    for _ in 0..2 {
        later(&[&a, &b], BEAT);
        assert_eq!(b.fills(), 0);
    }
    later(&[&a, &b], BEAT);
    assert_eq!(b.fills(), 1, "and then all but what is held");
}

#[test]
fn a_store_that_stood_still_admits_nobody_for_what_ended_unseen() {
    let store = Store::new();
    let [mut a, mut b] = two(&store, "limit: 2, mode: strict");
    assert_eq!(a.fills(), 2);
    later(&[&a, &b], BEAT);
    // Nobody reaches it, and the permits' deadlines come.
    store.is_cut.store(true, Relaxed);
    later(&[&a, &b], BEATS);
    store.is_cut.store(false, Relaxed);
    assert_eq!(b.fills(), 0, "before anybody has told it anything");
    for _ in 0..5 {
        later(&[&b, &a], BEAT);
        assert_eq!(b.fills(), 0);
    }
    assert_eq!(store.held(a.now()), 2);
}

#[test]
fn a_fleet_with_strict_ceilings_has_a_new_store_open_before_anybody_asks() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 1, mode: strict");
    store.forgets();
    alone.tells();
    alone.lives_on(GRACE);
    assert_eq!(alone.fills(), 1);
}

#[test]
fn while_the_store_does_not_answer_each_ceiling_says_what_one_may_have_in_flight() {
    for (word, wanted) in [("deny", 0), ("local", 2), ("allow", 9)] {
        for (is_cut, is_mute) in [(true, false), (false, true)] {
            let store = Store::new();
            let ceiling = format!("limit: 9, mode: strict, on_backend_failure: {word}");
            let [mut a, mut b] = two(&store, &ceiling);
            store.is_cut.store(is_cut, Relaxed);
            store.is_mute.store(is_mute, Relaxed);
            assert_eq!(a.fills(), wanted, "{word}");
            assert_eq!(a.engine.ceilings().total().in_flight, wanted as u64);
            store.is_cut.store(false, Relaxed);
            store.is_mute.store(false, Relaxed);
            later(&[&a, &b], BEAT);
            assert_eq!(b.fills(), 9 - wanted, "{word}: what was let pass is told");
        }
    }
}

#[test]
fn who_waits_is_let_pass_when_one_of_this_replica_leaves_and_in_the_order_of_coming() {
    let store = Store::new();
    let ceiling = "limit: 1, mode: strict, queue: {size: 2, timeout: 1h}";
    let mut alone = Replica::new(&store, "a", ceiling);
    assert!(alone.asks());
    block_on(async {
        let questions = [question(), question(), question()];
        let admit = |at: usize| alone.engine.admit(&questions[at], None);
        let (mut first, mut second) = (pin!(admit(0)), pin!(admit(1)));
        assert!(poll_immediate(&mut first).await.is_none());
        assert!(poll_immediate(&mut second).await.is_none());
        assert_eq!(alone.engine.ceilings().total().waiting, 2);
        assert!(passed(admit(2).await.unwrap()).is_none(), "the line is full");
        for permits in alone.held.drain(..) {
            permits.finish(Outcome::Success, None);
        }
        alone.engine.speak_once().await;
        assert!(poll_immediate(&mut second).await.is_none(), "overtaken");
        let woken = poll_immediate(&mut first).await;
        let permits = passed(woken.expect("woken, not left to ask again").unwrap()).unwrap();
        assert_eq!(alone.engine.ceilings().total().waiting, 1);
        permits.finish(Outcome::Success, None);
        alone.engine.speak_once().await;
        assert!(passed(second.await.unwrap()).is_some());
        assert_eq!(alone.engine.ceilings().total().waiting, 0);
    });
}

#[test]
fn who_waits_asks_again_for_what_another_replica_gave_back() {
    let store = Store::new();
    let ceiling = "limit: 1, mode: strict, queue: {size: 2, timeout: 1h}";
    let [mut a, b] = two(&store, ceiling);
    assert!(a.asks());
    block_on(async {
        let question = question();
        let mut waits = pin!(b.engine.admit(&question, None));
        assert!(poll_immediate(&mut waits).await.is_none());
        a.ends(1);
        a.engine.speak_once().await;
        assert!(passed(waits.await.unwrap()).is_some());
    });
}

#[test]
fn who_comes_later_does_not_overtake_those_in_line() {
    let store = Store::new();
    let ceiling = "limit: 1, mode: strict, queue: {size: 1, timeout: 1h}";
    let [a, mut b] = two(&store, ceiling);
    assert!(b.asks());
    block_on(async {
        let (first, second) = (question(), question());
        let mut waits = pin!(a.engine.admit(&first, None));
        assert!(poll_immediate(&mut waits).await.is_none());
        b.ends(1);
        b.engine.speak_once().await;
        assert!(passed(a.engine.admit(&second, None).await.unwrap()).is_none());
        assert!(passed(waits.await.unwrap()).is_some());
    });
}

#[test]
fn one_that_waits_no_longer_holds_nothing_and_its_place_in_line_is_free() {
    let store = Store::new();
    let ceiling = "limit: 1, mode: strict, queue: {size: 1, timeout: 30ms}";
    let mut alone = Replica::new(&store, "a", ceiling);
    assert!(alone.asks());
    assert!(!alone.asks(), "its time is over");
    assert_eq!(alone.engine.ceilings().total().waiting, 0);
    block_on(async {
        let question = question();
        let mut waits = Box::pin(alone.engine.admit(&question, None));
        assert!(poll_immediate(&mut waits).await.is_none());
        drop(waits);
    });
    assert_eq!(alone.engine.ceilings().total().waiting, 0);
    assert_eq!(alone.engine.ceilings().total().in_flight, 1);
}

#[test]
fn a_reload_moves_the_ceiling_for_those_who_wait_and_the_mode_for_those_who_come() {
    let store = Store::new();
    let queue = "queue: {size: 2, timeout: 1h}";
    let mut alone = Replica::new(&store, "a", &format!("limit: 1, mode: strict, {queue}"));
    assert!(alone.asks());
    let permits = block_on(async {
        let question = question();
        let mut waits = pin!(alone.engine.admit(&question, None));
        assert!(poll_immediate(&mut waits).await.is_none());
        alone.publish(&format!("limit: 2, mode: strict, {queue}"));
        passed(waits.await.unwrap())
    });
    assert!(alone.keeps(permits));
    alone.publish("limit: 3, mode: local");
    assert_eq!(alone.fills(), 1);
    assert_eq!(store.held(alone.now()), 2);
    alone.ends(3);
    alone.tells();
    assert_eq!(store.held(alone.now()), 0);
    alone.publish("limit: 3, mode: strict");
    assert_eq!((alone.fills(), store.held(alone.now())), (3, 3));
}

#[test]
fn an_answer_that_took_a_beat_admits_nobody_because_what_it_granted_may_be_over() {
    let store = Store::new();
    let alone = Replica::new(&store, "a", "limit: 1, mode: strict");
    store.is_slow.store(true, Relaxed);
    let admitted = block_on(async {
        let question = question();
        let mut asked = pin!(alone.engine.admit(&question, None));
        assert!(poll_immediate(&mut asked).await.is_none());
        alone.passes(BEAT);
        asked.await.unwrap()
    });
    assert!(passed(admitted).is_none());
    alone.tells();
    assert_eq!(store.held(alone.now()), 0);
}

#[test]
fn a_replica_that_leaves_gives_back_what_has_ended() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 2, mode: strict");
    assert_eq!(alone.fills(), 2);
    alone.ends(2);
    block_on(alone.engine.ceilings().leave_fleet(&*store));
    assert_eq!(store.held(alone.now()), 0);
}

/// Its drain may have been cut short: nobody has said of these streams that their requests go on.
#[test]
fn what_goes_on_when_a_replica_leaves_is_kept_for_as_long_as_it_may_take() {
    let store = Store::new();
    let [mut a, mut b] = two(&store, "limit: 2, mode: strict, max_duration: 20s");
    assert_eq!(a.fills(), 2);
    later(&[&a, &b], BEAT);
    block_on(a.engine.ceilings().leave_fleet(&*store));
    b.lives_on(Nanos::from_secs(20).since(Nanos(1)));
    assert_eq!(b.fills(), 0);
    b.lives_on(BEAT.plus(Nanos(1)));
    assert_eq!(b.fills(), 2);
}

#[test]
fn a_replica_that_leaves_while_it_tells_a_store_that_has_ceased_to_answer_does_not_wait_for_ever() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 1, mode: strict");
    assert!(alone.asks());
    store.is_silent.store(true, Relaxed);
    block_on(async {
        let mut tells = pin!(alone.engine.speak_once());
        assert!(poll_immediate(&mut tells).await.is_none(), "it is under way");
        let leaves = alone.engine.ceilings().leave_fleet(&*store);
        let left = tokio::time::timeout(Duration::from_secs(10), leaves).await;
        assert!(left.is_ok(), "it waits still");
    });
}

#[test]
fn what_is_held_is_seen() {
    let store = Store::new();
    let [mut a, mut b] = two(&store, "limit: 3, mode: strict");
    assert!(a.asks() && a.asks() && b.asks());
    let seen = a.engine.ceilings().fleet().unwrap().seen(9);
    let [(_, seen)] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((seen.limit, seen.here, seen.held), (3, 2, Some(Share(2))));
    later(&[&a, &b], BEAT);
    let seen = a.engine.ceilings().fleet().unwrap().seen(9)[0].1;
    assert_eq!((seen.here, seen.held, seen.outage), (2, Some(Share(3)), false));
    a.ends(2);
    later(&[&a, &b], BEAT);
    assert!(a.engine.ceilings().fleet().unwrap().seen(9).is_empty());
}

#[test]
fn without_a_fleet_a_strict_ceiling_is_one_replicas_own_and_as_exact() {
    let memory = Arc::new(Memory::new(10, WhenFull::Deny, [0; 16]));
    let engine = Engine::new(Clock::manual(START), memory, Policy::default());
    let membership = Arc::new(Membership::new("a", 1, NonZeroU32::new(4).unwrap()));
    let mut alone = Replica { engine, membership, held: Vec::new() };
    alone.publish("limit: 3, mode: strict");
    assert_eq!((alone.fills(), alone.shows()), (3, 3));
}

#[test]
fn the_store_in_memory_counts_for_all_who_share_it() {
    let memory = Memory::new(10, WhenFull::Deny, [0; 16]);
    let times = Times { grace: GRACE, silence: BEAT, longest: BEATS };
    let asked = |number| Acquire {
        bucket: b"c".as_slice().into(),
        ask: Ask { id: Id(number, 0), limit: Share(1), keep: BEATS, times },
    };
    let acquired = |number| match memory.acquire(START, &asked(number)) {
        Reply::Now(Ok(answer)) => answer.acquired,
        _ => panic!("it waits"),
    };
    assert_eq!((acquired(1), acquired(2)), (Acquired::Held, Acquired::Full));
}
