//! Ceilings that a fleet shares: the engine's part, over one store in this process and a clock set by
//! hand.

mod rounds;

use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::{join_all, poll_immediate};
use sluicegate::backend::heartbeat::{Heard, Round};
use sluicegate::backend::lease::{Lent, Message};
use sluicegate::backend::memory::coordinators::Coordinators;
use sluicegate::backend::memory::{Memory, WhenFull};
use sluicegate::backend::{Backend, Cause, Charges, Outcomes, Reply};
use sluicegate::clock::Clock;
use sluicegate::config;
use sluicegate::engine::admit::Shown;
use sluicegate::engine::admit::fleet::{Fleet, Pace};
use sluicegate::engine::{Admitted, Engine, Membership, Permits, Policy};
use sluicegate::kernel::concurrency::Outcome;
use sluicegate::kernel::decision::{Cost, Descriptor, Question, Reason, Verdict};
use sluicegate::kernel::key::CounterKey;
use sluicegate::kernel::units::{Hits, Nanos, Revision, Share};

/// What is asked of a store that says nothing returns in time, or not at all.
async fn in_time<T>(asked: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), asked).await.expect("it waits still")
}

/// A store that can be cut off, and counts its calls.
#[derive(Debug)]
struct Store {
    memory: Memory,
    /// One that knew nothing when it began.
    forgetful: Option<Mutex<Coordinators>>,
    is_cut: AtomicBool,
    /// It is known that there is none.
    is_away: AtomicBool,
    /// It is not the one it was, and knows the replicas of before.
    is_another: AtomicBool,
    /// Its answers are on their way for a while.
    is_slow: AtomicBool,
    /// It never answers.
    is_silent: AtomicBool,
    calls: AtomicUsize,
    /// The most ceilings that were spoken of in one.
    largest: AtomicUsize,
    /// Which they were, in each.
    spoken: Mutex<Vec<Vec<Box<[u8]>>>>,
}

impl Store {
    fn new() -> Arc<Self> {
        let memory = Memory::new(1_000, WhenFull::Deny, [0; 16]);
        let (forgetful, is_cut, is_away, is_another, is_slow, is_silent) = Default::default();
        let (calls, largest, spoken) = Default::default();
        Arc::new(Self {
            memory,
            forgetful,
            is_cut,
            is_away,
            is_another,
            is_slow,
            is_silent,
            calls,
            largest,
            spoken,
        })
    }

    /// One that may be new or have forgotten.
    fn forgetful() -> Arc<Self> {
        let knows_nothing = Some(Mutex::default());
        Arc::new(Self { forgetful: knows_nothing, ..Arc::into_inner(Self::new()).unwrap() })
    }

    /// Loses all that it was told.
    fn forgets(&self) {
        *self.forgetful.as_ref().unwrap().lock().unwrap() = Coordinators::default();
    }

    fn hears(&self, now: Nanos, round: &Round) -> Result<Heard, Cause> {
        match &self.forgetful {
            Some(coordinators) => {
                let name = if self.is_another.load(Relaxed) { "another" } else { "one" };
                Ok(coordinators.lock().unwrap().hear(now, name, round))
            }
            None => match self.memory.heartbeat(now, round) {
                Reply::Now(heard) => heard,
                Reply::Later(_) => unreachable!("memory answers at once"),
            },
        }
    }
}

impl Backend for Store {
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> Reply<'a, Outcomes> {
        self.memory.charge(now, charges)
    }

    fn borrow<'a>(&'a self, now: Nanos, message: &'a Message) -> Reply<'a, Lent> {
        self.memory.borrow(now, message)
    }

    fn trouble(&self) -> Option<Cause> {
        self.is_away.load(Relaxed).then_some(Cause::Unreachable)
    }

    fn heartbeat<'a>(&'a self, now: Nanos, round: &'a Round) -> Reply<'a, Result<Heard, Cause>> {
        self.calls.fetch_add(1, Relaxed);
        self.largest.fetch_max(round.beats.len(), Relaxed);
        let names = round.beats.iter().map(|beat| beat.bucket.clone()).collect();
        self.spoken.lock().unwrap().push(names);
        if self.is_cut.load(Relaxed) {
            return Reply::Now(Err(Cause::Unreachable));
        }
        if self.is_silent.load(Relaxed) {
            return Reply::Later(Box::pin(std::future::pending()));
        }
        let heard = self.hears(now, round);
        if !self.is_slow.load(Relaxed) {
            return Reply::Now(heard);
        }
        Reply::Later(Box::pin(async {
            tokio::task::yield_now().await;
            heard
        }))
    }
}

/// A replica, with what it holds.
struct Replica {
    engine: Engine,
    held: Vec<Permits>,
}

impl Replica {
    fn new(store: &Arc<Store>, name: &str, ceiling: &str) -> Self {
        Self::of_life(store, name, ceiling, Nanos::from_secs(1_000))
    }

    fn of_life(store: &Arc<Store>, name: &str, ceiling: &str, life: Nanos) -> Self {
        Self::of(store, name, ceiling, (life, Duration::from_millis(1), 100))
    }

    /// One that waits for an answer as long as it takes.
    fn patient(store: &Arc<Store>, name: &str, ceiling: &str) -> Self {
        let life = Nanos::from_secs(1_000);
        Self::of(store, name, ceiling, (life, Duration::from_secs(3_600), 1_000))
    }

    /// One of at most `most` buckets.
    fn of_buckets(
        store: &Arc<Store>,
        name: &str,
        ceiling: &str,
        (life, most): (Nanos, usize),
    ) -> Self {
        Self::of(store, name, ceiling, (life, Duration::from_millis(1), most))
    }

    fn of(
        store: &Arc<Store>,
        name: &str,
        ceiling: &str,
        (life, patience, most): (Nanos, Duration, usize),
    ) -> Self {
        let clock = Clock::manual(Nanos::from_secs(1_000));
        let membership = Arc::new(Membership::new(name, 1, NonZeroU32::new(4).unwrap()));
        let pace = Pace { heartbeat: Nanos::SECOND, term: Nanos::from_secs(5) };
        let fleet = Arc::new(Fleet::new(membership, life, pace, patience));
        let engine = Engine::new(clock, store.clone(), Policy::default()).with_buckets(most, 0);
        let replica = Self { engine: engine.with_fleet(fleet), held: Vec::new() };
        replica.publish(ceiling);
        replica
    }

    fn publish(&self, ceiling: &str) {
        let text = format!("domain: d\ndescriptors: [{{key: k, concurrency: {{{ceiling}}}}}]\n");
        let (config, _) = config::load([("a.yaml", text.as_bytes())], Revision(1), false).unwrap();
        self.engine.publish(Arc::new(config));
    }

    /// Asks once, while the replica speaks if it must.
    fn asks(&mut self) -> bool {
        self.asks_of("k")
    }

    fn asks_of(&mut self, key: &str) -> bool {
        let admitted = self.admits(&question_of(key));
        admitted.map(|permits| self.held.push(permits)).is_some()
    }

    fn admits(&self, question: &Question<'_>) -> Admitted {
        block_on(async {
            let mut asked = pin!(self.engine.admit(question, None));
            tokio::select! {
                biased;
                admitted = &mut asked => admitted.unwrap(),
                () = self.engine.speak_once() => asked.await.unwrap(),
            }
        })
    }

    /// Takes what there is; how much that was.
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

    fn beats(&self) {
        block_on(self.engine.speak_once());
    }

    fn passes(&self, by: Nanos) {
        let Clock::Manual(clock) = self.engine.clock() else { panic!() };
        clock.advance(by);
    }

    fn shown(&self) -> Shown {
        let fleet = self.engine.ceilings().fleet().unwrap();
        fleet.shown(self.engine.clock(), 1).remove(0).1
    }
}

pub(super) fn question() -> Question<'static> {
    question_of("k")
}

fn question_of(key: &str) -> Question<'_> {
    question_with((key, "v"))
}

fn question_with<'a>(entry: (&'a str, &'a str)) -> Question<'a> {
    let entries = [entry].into_iter().collect();
    let descriptor = Descriptor { entries, cost: Cost::Charge(Hits(1)), limit: None };
    Question { domain: "d", descriptors: [descriptor].into_iter().collect() }
}

/// About one of many ceilings.
fn question_about(value: &str) -> Question<'_> {
    let entries = [("k", value)].into_iter().collect();
    let descriptor = Descriptor { entries, cost: Cost::Charge(Hits(1)), limit: None };
    Question { domain: "d", descriptors: [descriptor].into_iter().collect() }
}

trait Passed {
    fn map<T>(self, take: impl FnOnce(Permits) -> T) -> Option<T>;
}

impl Passed for Admitted {
    fn map<T>(self, take: impl FnOnce(Permits) -> T) -> Option<T> {
        match self {
            Self::Decided(answer, permits) if answer.verdict == Verdict::Admit => {
                Some(take(permits))
            }
            _ => None,
        }
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// All of them a while later, each having spoken.
fn later(fleet: &[&Replica], by: Nanos) {
    for replica in fleet {
        replica.passes(by);
    }
    for replica in fleet {
        replica.beats();
    }
}

const HALF: Nanos = Nanos(500 * Nanos::MILLI.0);

#[test]
fn the_first_who_asks_waits_for_the_share_and_passes() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 4");
    assert!(alone.asks());
    assert_eq!(store.calls.load(Relaxed), 1);
    assert_eq!(alone.fills(), 3);
    assert_eq!(store.calls.load(Relaxed), 1, "no call for a request");
}

#[test]
fn who_asks_first_waits_for_the_share_no_longer_than_it_has_time() {
    let alone = Replica::patient(&Store::new(), "a", "limit: 4");
    let question = question();
    block_on(async {
        let hurried = Some(Nanos(10 * Nanos::MILLI.0));
        let asked = in_time(alone.engine.admit(&question, hurried)).await.unwrap();
        assert!(matches!(asked, Admitted::Rejected(_)), "nobody has said a word");
        let ids = in_time(alone.engine.admit_with_deadline(&question, hurried)).await.unwrap();
        assert!(matches!(ids, Admitted::Rejected(_)));
    });
}

#[test]
fn who_would_not_wait_in_a_queue_waits_for_the_share_all_the_same() {
    let alone = Replica::patient(&Store::new(), "a", "limit: 4");
    let question = question();
    let passed = block_on(async {
        let asked = alone.engine.admit(&question, Some(Nanos(0)));
        tokio::join!(asked, alone.engine.speak_once()).0.unwrap().map(|_| ()).is_some()
    });
    assert!(passed);
}

#[test]
fn what_one_waited_for_the_share_is_not_waited_in_the_queue_again() {
    let store = Store::new();
    let queue = "limit: 4, queue: {size: 9, timeout: 1h}";
    let mut other = Replica::new(&store, "b", queue);
    (0..4).for_each(|_| assert!(other.asks()));
    let late = Replica::patient(&store, "a", queue);
    let question = question();
    block_on(async {
        let mut asked = pin!(late.engine.admit(&question, Some(Nanos::SECOND)));
        assert!(poll_immediate(&mut asked).await.is_none(), "cold");
        late.passes(HALF);
        late.engine.speak_once().await;
        assert!(poll_immediate(&mut asked).await.is_none(), "in the queue");
        late.passes(HALF);
        late.engine.ceilings().sweep();
        let asked = poll_immediate(&mut asked).await;
        assert!(matches!(asked, Some(Ok(Admitted::Rejected(_)))), "a second is over");
    });
}

#[test]
fn what_is_not_enforced_has_the_store_asked_for_its_share_and_does_not_wait_for_it() {
    let store = Store::new();
    let shadow = "limit: 1}, shadow_mode: true}, {key: other, concurrency: {limit: 1";
    let alone = Replica::patient(&store, "a", shadow);
    let question = question();
    let held = |admitted| match admitted {
        Some(Ok(Admitted::Decided(_, permits))) => permits,
        other => panic!("{other:?}"),
    };
    block_on(async {
        let first = held(poll_immediate(alone.engine.admit(&question, None)).await);
        assert!(first.is_empty(), "it passes without a place");
        alone.engine.speak_once().await;
        let second = held(poll_immediate(alone.engine.admit(&question, None)).await);
        assert!(!second.is_empty(), "a share is there now");
    });
}

#[test]
fn a_newcomer_keeps_nobody_from_the_store_though_it_was_not_told_how_many_share_a_ceiling() {
    let store = Store::new();
    let alone = Replica::new(&store, "a", "limit: 4");
    let values: Vec<String> = (0..100).map(|value| format!("{value}")).collect();
    block_on(async {
        for value in &values {
            let question = question_about(value);
            assert!(poll_immediate(alone.engine.admit(&question, None)).await.is_none(), "cold");
        }
    });
    alone.beats();
    assert_eq!(store.calls.load(Relaxed), 3);
    // There may be four: ten microseconds and three for each, of a thousand.
    assert_eq!(store.largest.load(Relaxed), 45);
}

fn name_of(value: &str) -> CounterKey {
    CounterKey::ceiling("d", [("k", value)].into_iter())
}

/// Of which ceilings the call of that number spoke, and of which first.
fn spoke_first_of(store: &Store, call: usize, value: &str) -> bool {
    let name = name_of(value);
    let spoken = store.spoken.lock().unwrap();
    spoken[call].first().is_some_and(|first| **first == *name.as_bytes())
}

#[test]
fn who_comes_to_a_ceiling_first_is_spoken_of_with_the_next_call_however_many_others_are_due() {
    let store = Store::new();
    let many = Replica::patient(&store, "a", "limit: 4");
    let values: Vec<String> = (0..100).map(|value| format!("{value}")).collect();
    let questions: Vec<Question> = values.iter().map(|value| question_about(value)).collect();
    let newcomers = ["before", "meanwhile"].map(question_about);
    block_on(async {
        let all = join_all(questions.iter().map(|question| many.engine.admit(question, None)));
        let held = tokio::join!(all, many.engine.speak_once()).0;
        many.passes(Nanos::SECOND);
        store.is_slow.store(true, Relaxed);
        store.spoken.lock().unwrap().clear();
        let [before, meanwhile] = &newcomers;
        let mut before = pin!(many.engine.admit(before, None));
        assert!(poll_immediate(&mut before).await.is_none());
        let mut speaks = pin!(many.engine.speak_once());
        assert!(poll_immediate(&mut speaks).await.is_none(), "the first call is on its way");
        assert!(spoke_first_of(&store, 0, "before"));
        let mut meanwhile = pin!(many.engine.admit(meanwhile, None));
        assert!(poll_immediate(&mut meanwhile).await.is_none());
        speaks.await;
        assert!(spoke_first_of(&store, 1, "meanwhile"));
        for asked in [before.await, meanwhile.await] {
            assert!(asked.unwrap().map(|_| ()).is_some());
        }
        let spoken_of: usize = store.spoken.lock().unwrap().iter().map(Vec::len).sum();
        assert_eq!((spoken_of, held.len()), (102, 100), "each once");
    });
}

#[test]
fn an_answer_that_comes_after_the_term_leaves_no_share_in_force() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 4, on_backend_failure: deny");
    assert_eq!(alone.fills(), 4);
    alone.ends(4);
    alone.passes(Nanos::SECOND);
    store.is_slow.store(true, Relaxed);
    block_on(async {
        let mut speaks = pin!(alone.engine.speak_once());
        let begun = poll_immediate(&mut speaks).await;
        assert!(begun.is_none(), "the heartbeat is on its way");
        alone.passes(Nanos::from_secs(60));
        speaks.await;
    });
    store.is_cut.store(true, Relaxed);
    assert_eq!(alone.shown().share, Share(0));
    assert_eq!(alone.fills(), 0);
}

#[test]
fn a_ceiling_that_this_replica_holds_alone_from_now_on_outlives_the_term_it_had() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 4");
    assert_eq!(alone.fills(), 4);
    store.is_cut.store(true, Relaxed);
    alone.publish("limit: 4, mode: local");
    alone.ends(4);
    alone.passes(Nanos::from_secs(60));
    assert_eq!(alone.fills(), 4);
}

#[test]
fn a_ceiling_that_was_forgotten_while_the_store_was_away_is_spoken_of_no_more() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 4, on_backend_failure: deny");
    store.is_cut.store(true, Relaxed);
    assert!(!alone.asks());
    let spoken_of = |alone: &Replica| {
        alone.engine.ceilings().fleet().unwrap().shown(alone.engine.clock(), 9).len()
    };
    assert_eq!(spoken_of(&alone), 1);
    for _ in 0..2 {
        alone.passes(Nanos::from_secs(700));
        alone.beats();
        alone.engine.ceilings().sweep();
    }
    alone.beats();
    assert_eq!((alone.engine.ceilings().buckets(), spoken_of(&alone)), (0, 0));
}

#[test]
fn a_bucket_that_has_a_seat_makes_no_room_until_it_is_given_up() {
    let (store, life) = (Store::new(), Nanos::from_secs(1_000));
    let mut alone = Replica::of_buckets(&store, "a", "limit: 4", (life, 1));
    assert!(alone.asks());
    alone.ends(1);
    let other = question_with(("k", "w"));
    let Admitted::Rejected(rejection) = alone.admits(&other) else { panic!("it took the place") };
    assert_eq!(rejection.reason, Reason::TooManyBuckets);
    for _ in 0..12 {
        later(&[&alone], Nanos::SECOND);
    }
    assert!(alone.admits(&other).map(drop).is_some(), "ten heartbeats without a request");
    assert_eq!(alone.engine.ceilings().buckets(), 1);
}

/// One of one bucket, whose seat nobody has used for so long that the next word about it is a goodbye.
fn about_to_part(store: &Arc<Store>) -> Replica {
    let mut alone = Replica::of_buckets(store, "a", "limit: 4", (Nanos::from_secs(1_000), 1));
    assert!(alone.asks());
    alone.ends(1);
    (0..9).for_each(|_| later(&[&alone], Nanos::SECOND));
    alone.passes(Nanos::from_secs(2));
    alone
}

/// In a new life it would wait for the seat that it left itself.
#[test]
fn a_bucket_that_makes_room_has_no_seat_left_where_the_store_answers() {
    let store = Store::new();
    let (alone, other) = (about_to_part(&store), question_with(("k", "w")));
    store.is_slow.store(true, Relaxed);
    block_on(async {
        let mut speaks = pin!(alone.engine.speak_once());
        assert!(poll_immediate(&mut speaks).await.is_none(), "the goodbye is under way");
        let asked = in_time(alone.engine.admit(&other, None)).await.unwrap();
        let Admitted::Rejected(rejection) = asked else { panic!("it took the place") };
        assert_eq!(rejection.reason, Reason::TooManyBuckets);
        in_time(speaks).await;
    });
    store.is_slow.store(false, Relaxed);
    assert!(alone.admits(&other).map(drop).is_some(), "it was heard");
}

#[test]
fn a_bucket_whose_goodbye_is_lost_or_refused_makes_room() {
    let other = question_with(("k", "w"));
    let (store, away) = (Store::new(), Store::new());
    let mut younger = Replica::of_life(&store, "a", "limit: 4", Nanos::from_secs(2_000));
    let refused = about_to_part(&store);
    younger.asks();
    let lost = about_to_part(&away);
    away.is_cut.store(true, Relaxed);
    for alone in [refused, lost] {
        alone.beats();
        assert!(alone.admits(&other).map(drop).is_some());
    }
}

/// Both want all of it; the first has it before the second comes.
fn come_to_share(fleet: &mut [Replica; 2], ceiling: usize) {
    assert_eq!((fleet[0].fills(), fleet[1].fills()), (ceiling, 0));
    for _ in 0..40 {
        let [a, b] = fleet;
        a.ends(usize::from(!a.held.is_empty()));
        later(&[a, b], Nanos(50 * Nanos::MILLI.0));
        a.fills();
        b.fills();
        assert!(a.held.len() + b.held.len() <= ceiling, "{} and {}", a.held.len(), b.held.len());
    }
    assert_eq!(fleet.each_ref().map(|replica| replica.held.len()), [ceiling / 2; 2]);
}

#[test]
fn two_replicas_never_have_more_in_flight_than_the_ceiling_and_come_to_share_it() {
    let store = Store::new();
    let mut fleet = ["a", "b"].map(|name| Replica::new(&store, name, "limit: 8"));
    come_to_share(&mut fleet, 8);
    let shown = fleet[1].shown();
    assert!(0 < shown.handoffs);
    // Four requests end, one each 50 ms, and two heartbeats after the drain is the most.
    let (drain, took) = (Nanos(200 * Nanos::MILLI.0), shown.handoff_took.unwrap());
    assert!(took <= drain.plus(Nanos::from_secs(2)), "{took}");
}

#[test]
fn without_an_answer_the_share_ends_before_its_term_and_what_is_in_flight_still_counts() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 4, on_backend_failure: deny");
    assert_eq!(alone.fills(), 4);
    store.is_cut.store(true, Relaxed);
    alone.ends(2);
    alone.passes(Nanos::from_secs(4));
    alone.beats();
    assert_eq!(alone.fills(), 2, "in its term");
    alone.ends(1);
    alone.passes(Nanos::SECOND);
    alone.beats();
    assert_eq!(alone.fills(), 0);
    assert_eq!((alone.shown().share, alone.shown().fences), (Share(0), 1));
    assert_eq!(alone.shown().in_flight, 3);
    store.is_cut.store(false, Relaxed);
    alone.passes(Nanos::SECOND);
    alone.beats();
    assert_eq!(alone.fills(), 1, "back, and never more than the ceiling");
}

/// Lets the ceiling rest at all of `fleet`.
fn rests(fleet: &[&Replica]) {
    for _ in 0..30 {
        later(fleet, HALF);
    }
    for replica in fleet {
        assert_eq!(replica.engine.shares().seats, []);
    }
}

#[test]
fn how_often_shares_ended_and_moved_is_told_of_ceilings_that_rest_as_well() {
    let store = Store::new();
    let mut fleet = ["a", "b"].map(|name| Replica::new(&store, name, "limit: 8"));
    come_to_share(&mut fleet, 8);
    let [mut a, mut b] = fleet;
    let handoffs = b.shown().handoffs;
    store.is_cut.store(true, Relaxed);
    later(&[&a, &b], Nanos::from_secs(6));
    store.is_cut.store(false, Relaxed);
    a.ends(4);
    b.ends(4);
    rests(&[&a, &b]);
    let told = |replica: &Replica| {
        let record = replica.engine.shares();
        (record.fences, record.handoffs)
    };
    assert_eq!((told(&a).0, told(&b)), (1, (1, handoffs)));
    assert!(b.asks());
    assert_eq!(told(&b), (1, handoffs), "it is told once");
    b.publish("limit: 8, mode: local");
    b.ends(1);
    rests(&[&b]);
    assert_eq!(told(&b), (1, handoffs), "it is this replica's alone by now");
}

#[test]
fn a_wall_clock_that_is_set_forward_ends_no_share() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 4");
    assert!(alone.asks());
    let Clock::Manual(clock) = alone.engine.clock() else { panic!() };
    clock.step(Nanos::from_secs(3_600));
    store.is_cut.store(true, Relaxed);
    assert_eq!(alone.fills(), 3);
    assert_eq!((alone.shown().share, alone.shown().fences), (Share(4), 0));
}

#[test]
fn after_an_outage_each_ceiling_says_what_one_may_have_in_flight() {
    for (word, wanted) in [("deny", 0), ("local", 2), ("allow", 4)] {
        let store = Store::new();
        let ceiling = format!("limit: 4, on_backend_failure: {word}");
        let mut fleet = ["a", "b"].map(|name| Replica::new(&store, name, &ceiling));
        come_to_share(&mut fleet, 4);
        store.is_cut.store(true, Relaxed);
        for replica in &mut fleet {
            replica.ends(2);
            replica.passes(Nanos::from_secs(6));
            replica.beats();
            replica.passes(Nanos::SECOND);
            replica.beats();
        }
        let share = Share(u64::try_from(wanted).unwrap());
        for replica in &fleet {
            let shown = replica.shown();
            assert_eq!((shown.share, shown.outage), (share, true), "{word}");
            assert_eq!(replica.engine.shares().share, share.0, "{word}");
        }
        let found = fleet.each_mut().map(Replica::fills);
        assert_eq!(found, [wanted; 2], "{word}");
    }
}

#[test]
fn in_an_outage_nobody_uses_of_its_part_what_another_had_not_let_go_of() {
    let store = Store::new();
    let mut fleet = ["a", "b"].map(|name| Replica::new(&store, name, "limit: 8"));
    assert_eq!((fleet[0].fills(), fleet[1].fills()), (8, 0));
    assert_eq!(fleet[1].shown().grant.unwrap().fair, Share(4));
    store.is_cut.store(true, Relaxed);
    fleet[0].ends(8);
    later(&fleet.each_ref(), Nanos::from_secs(6));
    later(&fleet.each_ref(), Nanos::SECOND);
    assert!(fleet.iter().all(|replica| replica.shown().outage));
    let found: usize = fleet.each_mut().map(Replica::fills).iter().sum();
    assert_eq!(found, 8, "all of the ceiling, and no more");
}

#[test]
fn what_an_outage_leaves_to_one_is_over_when_the_store_answers_though_another_of_its_name_has_its_seat()
 {
    let store = Store::new();
    let mut older = Replica::new(&store, "a", "limit: 4, on_backend_failure: allow");
    assert!(older.asks());
    store.is_cut.store(true, Relaxed);
    older.passes(Nanos::from_secs(6));
    older.beats();
    assert!(older.asks(), "in an outage all is allowed");
    store.is_cut.store(false, Relaxed);
    let life = Nanos::from_secs(1_001);
    let mut younger = Replica::of_life(&store, "a", "limit: 4", life);
    younger.passes(Nanos::from_secs(6));
    younger.asks();
    older.passes(Nanos::SECOND);
    older.beats();
    assert!(!older.asks());
    assert_eq!((older.shown().share, older.shown().in_flight), (Share(0), 2));
}

#[test]
fn who_was_never_told_of_a_share_takes_the_ceiling_by_the_replicas_there_should_be() {
    let store = Store::new();
    store.is_cut.store(true, Relaxed);
    let mut lonely = Replica::new(&store, "a", "limit: 9");
    assert_eq!(lonely.fills(), 9 / 4);
}

#[test]
fn those_who_wait_are_turned_away_when_the_share_ends() {
    let store = Store::new();
    let queue = "limit: 1, on_backend_failure: deny, queue: {size: 5, timeout: 1h}";
    let mut alone = Replica::new(&store, "a", queue);
    assert!(alone.asks());
    store.is_cut.store(true, Relaxed);
    let question = question();
    let turned_away = block_on(async {
        let mut waits = pin!(alone.engine.admit(&question, None));
        tokio::select! {
            biased;
            _ = &mut waits => panic!("nobody left"),
            () = std::future::ready(()) => {}
        }
        alone.passes(Nanos::from_secs(5));
        alone.engine.speak_once().await;
        matches!(waits.await.unwrap(), Admitted::Rejected(_))
    });
    assert!(turned_away);
}

#[test]
fn who_leaves_in_order_frees_its_seat_at_once() {
    let store = Store::new();
    let mut fleet = ["a", "b"].map(|name| Replica::new(&store, name, "limit: 4"));
    assert_eq!((fleet[0].fills(), fleet[1].fills()), (4, 0));
    fleet[0].ends(4);
    block_on(fleet[0].engine.ceilings().leave_fleet(&*store));
    assert_eq!(fleet[0].fills(), 0);
    fleet[1].passes(HALF);
    fleet[1].beats();
    assert_eq!(fleet[1].fills(), 4);
}

/// A replica that has something to say, to a store that takes its time; and how often it has spoken.
fn about_to_speak(store: &Arc<Store>) -> (Replica, usize) {
    let mut alone = Replica::new(store, "a", "limit: 4");
    assert_eq!(alone.fills(), 4);
    alone.ends(4);
    alone.passes(Nanos::SECOND);
    store.is_slow.store(true, Relaxed);
    (alone, store.calls.load(Relaxed))
}

#[test]
fn who_leaves_lets_a_heartbeat_that_is_under_way_end_before_it_gives_its_seats_up() {
    let store = Store::new();
    let (alone, before) = about_to_speak(&store);
    let ceilings = alone.engine.ceilings();
    block_on(async {
        let mut speaks = pin!(alone.engine.speak_once());
        assert!(poll_immediate(&mut speaks).await.is_none(), "a heartbeat is on its way");
        let mut leaves = pin!(ceilings.leave_fleet(&*store));
        assert!(poll_immediate(&mut leaves).await.is_none());
        assert_eq!(store.calls.load(Relaxed), before + 1, "nothing is said beside it");
        tokio::join!(speaks, leaves);
    });
    let spoken_of = ceilings.fleet().unwrap().shown(alone.engine.clock(), 9);
    assert!(spoken_of.is_empty(), "{spoken_of:?}");
    store.is_slow.store(false, Relaxed);
    let mut other = Replica::new(&store, "b", "limit: 4");
    other.passes(Nanos::SECOND);
    assert_eq!(other.fills(), 4);
}

#[test]
fn who_leaves_says_nothing_beside_a_heartbeat_that_does_not_end_and_does_not_wait_for_ever() {
    let store = Store::new();
    let (alone, before) = about_to_speak(&store);
    block_on(async {
        let mut speaks = pin!(alone.engine.speak_once());
        assert!(poll_immediate(&mut speaks).await.is_none(), "a heartbeat is on its way");
        let leaves = alone.engine.ceilings().leave_fleet(&*store);
        let left = tokio::time::timeout(Duration::from_secs(60), leaves).await;
        assert!(left.is_ok(), "it waits still");
    });
    assert_eq!(store.calls.load(Relaxed), before + 1);
}

#[test]
fn who_leaves_a_store_that_has_ceased_to_answer_does_not_wait_for_ever() {
    let store = Store::new();
    let (alone, _) = about_to_speak(&store);
    store.is_silent.store(true, Relaxed);
    block_on(in_time(alone.engine.ceilings().leave_fleet(&*store)));
}

#[test]
fn a_ceiling_that_nobody_uses_costs_no_call_after_ten_heartbeats() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 4");
    assert_eq!(alone.fills(), 4);
    alone.ends(4);
    for _ in 0..30 {
        later(&[&alone], HALF);
    }
    let calls = store.calls.load(Relaxed);
    for _ in 0..30 {
        later(&[&alone], HALF);
    }
    assert_eq!(store.calls.load(Relaxed), calls);
    let mut other = Replica::new(&store, "b", "limit: 4");
    assert_eq!(other.fills(), 4, "nothing is reserved for the idle");
    assert_eq!(alone.fills(), 0);
}

#[test]
fn who_is_asked_before_its_goodbye_was_heard_has_its_share_again_with_the_first_answer() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 4, on_backend_failure: deny");
    assert_eq!(alone.fills(), 4);
    alone.ends(4);
    passes(&[&alone], &[&alone], Nanos::from_secs(9));
    store.is_cut.store(true, Relaxed);
    passes(&[&alone], &[&alone], Nanos::from_secs(2));
    assert!(!alone.asks(), "what it has let go of it does not use");
    store.is_cut.store(false, Relaxed);
    passes(&[&alone], &[&alone], Nanos::SECOND);
    assert_eq!(alone.fills(), 4);
}

#[test]
fn who_comes_while_a_goodbye_is_under_way_waits_for_the_answer_to_the_word_after_it() {
    let store = Store::new();
    let mut alone = Replica::patient(&store, "a", "limit: 4");
    assert!(alone.asks());
    alone.ends(1);
    passes(&[&alone], &[&alone], Nanos::from_secs(9));
    alone.passes(Nanos::SECOND);
    store.is_slow.store(true, Relaxed);
    let question = question();
    let passed = block_on(async {
        let mut speaks = pin!(alone.engine.speak_once());
        assert!(poll_immediate(&mut speaks).await.is_none(), "the goodbye is on its way");
        let mut asked = pin!(alone.engine.admit(&question, None));
        assert!(poll_immediate(&mut asked).await.is_none());
        let speaks_on = async {
            speaks.await;
            alone.engine.speak_once().await;
        };
        let (asked, ()) = tokio::join!(asked, speaks_on);
        asked.unwrap().map(|_| ()).is_some()
    });
    assert!(passed);
}

#[test]
fn a_ceiling_that_is_shared_again_before_its_seat_was_given_up_waits_for_nothing_of_its_own() {
    for heard in [false, true] {
        let store = Store::new();
        let mut alone = Replica::new(&store, "a", "limit: 4");
        assert_eq!(alone.fills(), 4);
        alone.publish("limit: 4, mode: local");
        if heard {
            later(&[&alone], Nanos::SECOND);
        }
        alone.publish("limit: 4");
        assert!(!alone.asks(), "four are in flight");
        alone.ends(4);
        later(&[&alone], Nanos::SECOND);
        assert_eq!(alone.fills(), 4, "heard: {heard}");
    }
}

#[test]
fn a_seat_that_was_given_up_lets_nobody_pass_when_its_replica_has_left() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 4");
    assert_eq!(alone.fills(), 4);
    alone.ends(4);
    passes(&[&alone], &[&alone], Nanos::from_secs(12));
    block_on(alone.engine.ceilings().leave_fleet(&*store));
    assert_eq!(alone.fills(), 0);
}

/// Time passes for all, and those speak twenty times a second who can.
fn passes(all: &[&Replica], speak: &[&Replica], by: Nanos) {
    const TICK: Nanos = Nanos(50 * Nanos::MILLI.0);
    for _ in 0..by.0 / TICK.0 {
        for replica in all {
            replica.passes(TICK);
        }
        for replica in speak {
            replica.beats();
        }
    }
}

/// `fleet_term` and `max_duration` by their defaults, and what the clocks may differ by.
const DOUBT: Nanos = Nanos::from_secs(5 + 60);

#[test]
fn of_a_new_store_it_is_known_that_nothing_is_in_flight_so_long_after_the_first_replica_started() {
    let store = Store::forgetful();
    let mut alone = Replica::new(&store, "a", "limit: 4");
    passes(&[&alone], &[&alone], Nanos::from_secs(5));
    let calls = store.calls.load(Relaxed);
    passes(&[&alone], &[&alone], Nanos::from_secs(55));
    assert_eq!(store.calls.load(Relaxed), calls, "said once is enough");
    assert!(!alone.asks(), "not before");
    passes(&[&alone], &[&alone], Nanos::from_secs(5));
    assert!(!alone.asks(), "who was turned away has a seat, and speaks for it once a second");
    passes(&[&alone], &[&alone], Nanos::SECOND);
    assert_eq!(alone.fills(), 4);
}

#[test]
fn a_new_store_is_told_of_a_replica_as_soon_as_it_can_be_and_of_none_that_shares_nothing() {
    let store = Store::forgetful();
    let lonely = Replica::new(&store, "b", "limit: 4, mode: local");
    passes(&[&lonely], &[&lonely], Nanos::from_secs(5));
    assert_eq!(store.calls.load(Relaxed), 0);
    store.is_cut.store(true, Relaxed);
    store.is_away.store(true, Relaxed);
    let mut alone = Replica::new(&store, "a", "limit: 4, on_backend_failure: deny");
    passes(&[&alone], &[&alone], Nanos::from_secs(9));
    assert_eq!(store.calls.load(Relaxed), 0, "nobody would hear it");
    store.is_away.store(false, Relaxed);
    passes(&[&alone], &[&alone], Nanos::from_secs(9));
    assert!((9..=10).contains(&store.calls.load(Relaxed)), "once a heartbeat");
    store.is_cut.store(false, Relaxed);
    passes(&[&alone], &[&alone], DOUBT.plus(Nanos::from_secs(2)));
    assert_eq!(alone.fills(), 4);
}

#[test]
fn a_store_that_forgets_while_nobody_asks_is_in_doubt_no_later_than_a_minute_after() {
    let store = Store::forgetful();
    let mut alone = Replica::new(&store, "a", "limit: 4");
    passes(&[&alone], &[&alone], Nanos::from_secs(9));
    store.forgets();
    passes(&[&alone], &[&alone], DOUBT.plus(Nanos::from_secs(62)));
    assert_eq!(alone.fills(), 4);
}

#[test]
fn nobody_waits_for_who_has_left_in_order_when_a_store_begins_anew() {
    let store = Store::forgetful();
    let [mut leaves, mut stays] = ["a", "b"].map(|name| Replica::new(&store, name, "limit: 4"));
    passes(&[&leaves, &stays], &[&leaves, &stays], DOUBT.plus(Nanos::from_secs(2)));
    assert_eq!(leaves.fills(), 4);
    leaves.ends(4);
    block_on(leaves.engine.ceilings().leave_fleet(&*store));
    store.is_another.store(true, Relaxed);
    assert!(!stays.asks(), "its own word is missing");
    passes(&[&stays], &[&stays], Nanos::from_secs(3));
    assert_eq!(stays.fills(), 4);
}

#[test]
fn one_that_holds_nothing_does_not_vouch_for_another_to_a_store_that_has_forgotten() {
    let store = Store::forgetful();
    let [mut busy, mut idle] = ["a", "b"].map(|name| Replica::new(&store, name, "limit: 4"));
    passes(&[&busy, &idle], &[&busy, &idle], DOUBT.plus(Nanos::from_secs(2)));
    assert_eq!((busy.fills(), idle.fills()), (4, 0));
    store.is_cut.store(true, Relaxed);
    passes(&[&busy, &idle], &[&busy, &idle], Nanos::from_secs(20));
    store.forgets();
    store.is_cut.store(false, Relaxed);
    // The idle one comes first.
    passes(&[&busy, &idle], &[&idle], HALF);
    assert_eq!(idle.fills(), 0, "beside four that are in flight");
    passes(&[&busy, &idle], &[&busy, &idle], DOUBT.plus(Nanos::from_secs(2)));
    busy.ends(4);
    assert_eq!(idle.fills(), 0);
    passes(&[&busy, &idle], &[&busy, &idle], Nanos::from_secs(2));
    assert_ne!(idle.fills(), 0);
}

#[test]
fn a_ceiling_that_only_others_use_is_doubted_for_as_long_as_its_requests_may_take() {
    let store = Store::forgetful();
    let two = "limit: 4}}, {key: short, concurrency: {limit: 4, max_duration: 1s";
    let [mut silent, mut speaks] = ["a", "b"].map(|name| Replica::new(&store, name, two));
    passes(&[&silent, &speaks], &[&silent, &speaks], DOUBT.plus(Nanos::from_secs(2)));
    assert_eq!(silent.fills(), 4);
    assert!(speaks.asks_of("short"));
    store.forgets();
    passes(&[&silent, &speaks], &[&speaks], Nanos::from_secs(9));
    assert!(!speaks.asks(), "beside four that are in flight where nobody hears of them");
    passes(&[&silent, &speaks], &[&speaks], DOUBT);
    assert_eq!(speaks.fills(), 4);
}

#[test]
fn a_reload_moves_the_ceiling_and_the_mode() {
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 4");
    assert_eq!(alone.fills(), 4);
    alone.publish("limit: 6");
    assert_eq!(alone.fills(), 0, "not before the store has heard of it");
    later(&[&alone], Nanos::SECOND);
    assert_eq!(alone.fills(), 2);
    alone.publish("limit: 7, mode: local");
    assert_eq!(alone.fills(), 1);
    later(&[&alone], Nanos::SECOND);
    let mut other = Replica::new(&store, "b", "limit: 6");
    alone.ends(7);
    for _ in 0..3 {
        later(&[&alone], Nanos::SECOND);
    }
    assert_eq!(other.fills(), 6);
    alone.publish("limit: 6");
    assert_eq!(alone.fills(), 0, "shared again");
}

#[test]
fn a_store_hears_of_a_lower_ceiling_though_nobody_asks_for_it() {
    let store = Store::new();
    let mut idle = Replica::new(&store, "a", "limit: 4");
    assert!(idle.asks());
    idle.publish("limit: 2");
    later(&[&idle], Nanos::SECOND);
    assert_eq!(idle.shown().grant.unwrap().ceiling, Share(2));
}

/// Whether the ceiling is spoken of a second after somebody came and went.
fn speaks_of_one_who_came_and_went(store: &Store, alone: &mut Replica) -> bool {
    assert!(alone.asks());
    alone.ends(1);
    store.largest.store(0, Relaxed);
    later(&[alone], Nanos::SECOND);
    store.largest.load(Relaxed) == 1
}

#[test]
fn how_long_requests_take_from_now_on_is_said_with_the_next_heartbeat_though_nothing_else_changed()
{
    let store = Store::new();
    let mut alone = Replica::new(&store, "a", "limit: 4, max_duration: 10s");
    let speaks = |alone: &mut Replica| speaks_of_one_who_came_and_went(&store, alone);
    let mut twice = || speaks(&mut alone) && !speaks(&mut alone);
    assert!((0..20).any(|_| twice()), "what was said is not said again at once");
    let mut once = || speaks(&mut alone);
    assert!((0..20).any(|_| once()), "but now and then");
    alone.publish("limit: 4, max_duration: 11s");
    assert!(speaks(&mut alone));
}

#[test]
fn the_same_words_without_a_fleet_are_one_replica_s_own() {
    let memory = Arc::new(Memory::new(10, WhenFull::Deny, [0; 16]));
    let engine = Engine::new(Clock::manual(Nanos::SECOND), memory, Policy::default());
    let mut alone = Replica { engine, held: Vec::new() };
    alone.publish("limit: 3, mode: leased, max_duration: 1s");
    assert_eq!(alone.fills(), 3);
}
