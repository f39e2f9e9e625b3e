//! Questions that travel together, seen from the store: it counts its script calls.
//!
//! The store is stopped while questions are asked, so that all but the first come while a call is under
//! way.

use std::future::poll_fn;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::join_all;
use sluicegate::backend::lease::{Lent, Message};
use sluicegate::backend::redis::{Address, Batching, Options, Place, Redis, Stores};
use sluicegate::backend::{Backend, Cause, Charge, Charges, Home, Outcome, Outcomes, Reply, Rule};
use sluicegate::kernel::decision::{Cost, Standing};
use sluicegate::kernel::key::{CounterKey, Counting};
use sluicegate::kernel::lease::sizer::Size;
use sluicegate::kernel::lease::{Borrow, Member, Number, Overshoot, Terms};
use sluicegate::kernel::rate::fixed_window::{FixedWindow, Windows};
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::rate::sliding_log::SlidingLog;
use sluicegate::kernel::rate::{Step, Strategy};
use sluicegate::kernel::units::{Hits, Nanos};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use super::Store;
use super::degrade::redis_at;
use crate::support::proxy::{Flow, Proxy, Upstream, Way};
use crate::waiting::{for_a_day_with_a_minute_left, now, until};

const DAY: Nanos = Nanos::from_secs(86_400);
pub(super) const LIMIT: u32 = 1_000_000;

/// Where the connections live.
static ELSEWHERE: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap());

pub(super) type Asked<'r> = Pin<Box<dyn Future<Output = Outcomes> + Send + 'r>>;

fn here() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// One that is connected as long as this lives.
pub(super) struct Connected {
    redis: Redis,
    _connection: JoinSet<()>,
}

impl Deref for Connected {
    type Target = Redis;

    fn deref(&self) -> &Redis {
        &self.redis
    }
}

pub(super) fn connected(store: &Store, batching: Batching) -> Connected {
    connected_at(Place::Unix(store.socket()), Duration::from_secs(60), batching)
}

fn connected_at(place: Place, deadline: Duration, batching: Batching) -> Connected {
    for_a_day_with_a_minute_left();
    let options = redis_at(place, deadline);
    let (redis, connection) = Redis::new(Options { batching, ..options });
    let mut kept = JoinSet::new();
    kept.spawn_on(connection, ELSEWHERE.handle());
    let answers = || redis.trouble().map_or(Ok(()), |cause| Err(cause.as_str().to_owned()));
    until("redis is connected", answers).unwrap();
    Connected { redis, _connection: kept }
}

pub(super) fn window() -> Strategy {
    Strategy::FixedWindow(FixedWindow::new(LIMIT, Windows::Every(DAY)).unwrap())
}

pub(super) fn charges(name: &str, strategy: Strategy, rule: Rule) -> Charges {
    let counting = match strategy {
        Strategy::SlidingLog(_) => Counting::SlidingLog,
        Strategy::Gcra(_) => Counting::Gcra,
        _ => Counting::FixedWindow(DAY),
    };
    let key = CounterKey::injective("d", [("k", name)].into_iter(), counting);
    let cost = Cost::Charge(Hits(1));
    let (home, standing) = (Home::Itself, Standing::default());
    let charge = Charge { key, home, strategy, cost, standing, per_second: false };
    Charges { list: [charge].into_iter().collect(), rule }
}

pub(super) fn ask<'r>(redis: &'r Redis, charges: &'r Charges) -> Asked<'r> {
    match redis.charge(Nanos(0), charges) {
        Reply::Later(reply) => reply,
        Reply::Now(outcomes) => Box::pin(std::future::ready(outcomes)),
    }
}

/// Begins to ask, and no more.
fn begin(asked: &mut Asked<'_>) {
    assert!(asked.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

/// Asks all while the store is stopped, and waits for all.
pub(super) fn all_at_once(store: &Store, asked: Vec<Asked<'_>>) -> Vec<Outcome> {
    here().block_on(async {
        store.signal("STOP");
        let mut open: Vec<(Asked<'_>, Option<Outcome>)> =
            asked.into_iter().map(|asked| (asked, None)).collect();
        poll_all(&mut open, &mut Context::from_waker(Waker::noop()));
        store.signal("CONT");
        poll_fn(|context| {
            poll_all(&mut open, context);
            let is_done = open.iter().all(|(_, outcome)| outcome.is_some());
            if is_done { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        open.into_iter().filter_map(|(_, outcome)| outcome).collect()
    })
}

fn poll_all(open: &mut [(Asked<'_>, Option<Outcome>)], context: &mut Context<'_>) {
    for (asked, outcome) in open.iter_mut().filter(|(_, outcome)| outcome.is_none()) {
        if let Poll::Ready(outcomes) = asked.as_mut().poll(context) {
            *outcome = Some(outcomes[0]);
        }
    }
}

/// Script calls since the store began.
fn calls(store: &Store) -> u64 {
    let stats = store.tell(&["INFO", "commandstats"]).text();
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// What is left of the window of `name`, which the question that asks is charged to.
pub(super) fn left(redis: &Redis, name: &str) -> u64 {
    let charges = charges(name, window(), Rule::Each);
    match here().block_on(ask(redis, &charges))[0] {
        Outcome::Stepped(Step::Admit(room)) => room.remaining.0 + 1,
        other => panic!("{other:?}"),
    }
}

fn admits(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Stepped(Step::Admit(_)))
}

#[test]
fn a_lone_question_goes_at_once_and_in_a_call_of_its_own() {
    let store = Store::running();
    let redis = connected(&store, Batching::On);
    let (here, charges) = (here(), charges("lone", window(), Rule::Each));
    let took = (0..200).map(|_| {
        let began = now();
        assert!(admits(here.block_on(ask(&redis, &charges))[0]));
        began.elapsed()
    });
    // No timer here is finer than a millisecond: one that held questions back would hold them this long.
    assert!(took.min() < Some(Duration::from_millis(1)));
    assert_eq!(calls(&store), 200);
}

#[test]
fn what_comes_while_a_call_is_under_way_travels_together_in_the_next() {
    let store = Store::running();
    let redis = connected(&store, Batching::On);
    let all_or_nothing = Rule::AllOrNothing { quota_for_all: false, rescued: false };
    let questions: Vec<_> = (0..60)
        .map(|number| {
            let rule = if number % 3 == 0 { all_or_nothing } else { Rule::Each };
            charges(["a", "b"][number % 2], window(), rule)
        })
        .collect();
    let outcomes = all_at_once(&store, questions.iter().map(|its| ask(&redis, its)).collect());
    assert!(outcomes.into_iter().all(admits));
    assert_eq!(calls(&store), 2);
    assert_eq!([left(&redis, "a"), left(&redis, "b")], [u64::from(LIMIT) - 30; 2]);
}

/// A message of this member about the counter of `name`, for a hit and nine more.
fn message(name: &str, member: u64) -> Message {
    let charge = charges(name, window(), Rule::Each).list.remove(0);
    let terms = Terms {
        overshoot: Overshoot::AtMost(Hits(100_000)),
        term: Nanos::from_secs(600),
        size: Size::Learned,
    };
    let (number, none) = (Number(1), Hits(0));
    let borrow = Borrow {
        number,
        hits: Hits(1),
        want: Hits(9),
        demand: Hits(1),
        held: none,
        returned: none,
        lease: Number(0),
    };
    let (key, home, strategy) = (charge.key, charge.home, charge.strategy);
    Message { key, home, per_second: false, strategy, terms, member: Member(member), borrow }
}

fn lend<'r>(
    redis: &'r dyn Backend,
    message: &'r Message,
) -> Pin<Box<dyn Future<Output = Lent> + Send + 'r>> {
    match redis.borrow(Nanos(0), message) {
        Reply::Later(reply) => reply,
        Reply::Now(lent) => Box::pin(std::future::ready(lent)),
    }
}

/// Sends all while the store is stopped; to how many anything was lent.
fn lend_all_at_once(store: &Store, redis: &Redis, messages: &[Message]) -> usize {
    here().block_on(async {
        store.signal("STOP");
        let all = join_all(messages.iter().map(|message| lend(redis, message)));
        let mut all = std::pin::pin!(all);
        assert!(all.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        store.signal("CONT");
        let is_lent =
            |its: &&Lent| matches!(its, Lent::Answered(answer) if answer.granted != Hits(0));
        all.await.iter().filter(is_lent).count()
    })
}

#[test]
fn messages_about_many_keys_travel_together() {
    let store = Store::running();
    let redis = connected(&store, Batching::On);
    let messages: Vec<_> = (0..60).map(|key| message(&key.to_string(), 1)).collect();
    assert_eq!(lend_all_at_once(&store, &redis, &messages), 60);
    assert_eq!(calls(&store), 2);
    assert!((0..60).all(|key| left(&redis, &key.to_string()) == u64::from(LIMIT) - 10));
}

/// Sends all, which are begun together; to how many anything was lent.
fn lend_together(redis: &dyn Backend, messages: &[Message]) -> usize {
    here().block_on(async {
        let mut all = std::pin::pin!(join_all(messages.iter().map(|message| lend(redis, message))));
        redis.together(&mut || {
            assert!(all.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        });
        let is_lent =
            |its: &&Lent| matches!(its, Lent::Answered(answer) if answer.granted != Hits(0));
        all.await.iter().filter(is_lent).count()
    })
}

#[test]
fn messages_that_are_begun_together_go_in_one_call_and_more_than_fill_it_in_two() {
    let store = Store::running();
    let redis = connected(&store, Batching::On);
    for (round, (many, takes)) in [(60, 1), (1, 1), (120, 2), (60, 1)].into_iter().enumerate() {
        let messages: Vec<_> = (0..many).map(|key| message(&format!("{round} {key}"), 1)).collect();
        let before = calls(&store);
        assert_eq!(lend_together(&*redis, &messages), many);
        assert_eq!(calls(&store) - before, takes, "{many}");
    }
    // Who comes then goes at once.
    let (lone, before) = (message("lone", 1), calls(&store));
    assert!(matches!(here().block_on(lend(&*redis, &lone)), Lent::Answered(_)));
    assert_eq!(calls(&store) - before, 1);
}

#[test]
fn messages_that_are_begun_together_go_in_one_call_to_each_of_two_stores() {
    let both = [Store::running(), Store::running()];
    let [main, seconds] = both.each_ref().map(|store| connected(store, Batching::On));
    let Connected { redis: main, _connection: its } = main;
    let Connected { redis: seconds, _connection: theirs } = seconds;
    let stores = Stores::new(main).with_per_second(seconds);
    let messages: Vec<_> = (0..60)
        .map(|key| Message { per_second: key % 2 == 0, ..message(&key.to_string(), 1) })
        .collect();
    assert_eq!(lend_together(&stores, &messages), 60);
    assert_eq!(both.each_ref().map(calls), [1, 1]);
    drop((its, theirs));
}

/// What was begun and given up is not sent, and what came meanwhile is.
#[test]
fn what_is_begun_together_and_given_up_keeps_nobody_waiting() {
    let store = Store::running();
    let redis = connected(&store, Batching::On);
    let messages = ["a", "b"].map(|key| message(key, 1));
    here().block_on(async {
        let mut stays = lend(&*redis, &messages[1]);
        redis.together(&mut || {
            let mut begun = lend(&*redis, &messages[0]);
            let context = &mut Context::from_waker(Waker::noop());
            assert!(begun.as_mut().poll(context).is_pending());
            redis.together(&mut || assert!(stays.as_mut().poll(context).is_pending()));
            assert_eq!(calls(&store), 0, "not before all have begun");
        });
        assert!(matches!(stays.await, Lent::Answered(_)));
    });
    assert_eq!(calls(&store), 1);
    assert_eq!(left(&redis, "a"), u64::from(LIMIT));
}

#[test]
fn messages_about_keys_that_many_hold_are_answered_in_as_many_calls_as_keep_each_short() {
    let store = Store::running();
    let redis = connected(&store, Batching::On);
    let (keys, members) = (["a", "b", "c"], 1_100);
    for key in keys {
        let all: Vec<_> = (0..members).map(|member| message(key, member)).collect();
        assert_eq!(lend_all_at_once(&store, &redis, &all), all.len());
    }
    let before = calls(&store);
    let messages: Vec<_> = ["d"].iter().chain(&keys).map(|key| message(key, members)).collect();
    assert_eq!(lend_all_at_once(&store, &redis, &messages), 4);
    assert_eq!(calls(&store) - before, 4, "the first went alone, and each of the others after it");
}

/// Three of them travel together and take a call each, of which the third is too late.
#[test]
fn what_was_answered_stays_answered_where_the_rest_of_a_batch_is_late() {
    let store = Store::running();
    let (near, keys, members) = (connected(&store, Batching::On), ["a", "b", "c"], 1_100);
    for key in keys {
        let all: Vec<_> = (0..members).map(|member| message(key, member)).collect();
        assert_eq!(lend_all_at_once(&store, &near, &all), all.len());
    }
    let proxy = Proxy::before(Upstream::Unix(store.socket()));
    let address = proxy.address();
    let address = Address { host: address.ip().to_string(), port: address.port() };
    let redis = connected_at(Place::Tcp(address), Duration::from_secs(2), Batching::On);
    proxy.set(Way::FromStore, Flow::Delay(Duration::from_millis(700)));
    let messages: Vec<_> = ["d"].iter().chain(&keys).map(|key| message(key, members)).collect();
    let lent = here().block_on(join_all(messages.iter().map(|one| lend(&*redis, one))));
    let said = lent.iter().map(|one| matches!(one, Lent::Answered(_)));
    assert_eq!(said.collect::<Vec<_>>(), [true, true, true, false], "{lent:?}");
    assert!(matches!(lent[3], Lent::Failed(Cause::Late)));
}

#[test]
fn without_batching_every_question_has_its_own_call() {
    let store = Store::running();
    let redis = connected(&store, Batching::Off);
    let charges = charges("a", window(), Rule::Each);
    let outcomes = all_at_once(&store, (0..60).map(|_| ask(&redis, &charges)).collect());
    assert!(outcomes.into_iter().all(admits));
    assert_eq!(calls(&store), 60);
}

#[test]
fn what_was_given_up_before_it_was_sent_is_not_charged() {
    let store = Store::running();
    let redis = connected(&store, Batching::On);
    let charges = charges("a", window(), Rule::Each);
    here().block_on(async {
        store.signal("STOP");
        let mut asked: Vec<_> = (0..10).map(|_| ask(&redis, &charges)).collect();
        asked.iter_mut().for_each(begin);
        // The first is under way; of those who wait, every other one goes away.
        let (stay, go): (Vec<_>, Vec<_>) =
            asked.into_iter().enumerate().partition(|(number, _)| number % 2 == 0);
        drop(go);
        store.signal("CONT");
        for (_, asked) in stay {
            assert!(admits(asked.await[0]));
        }
    });
    assert_eq!(left(&redis, "a"), u64::from(LIMIT) - 5);
}

#[test]
fn who_waits_is_answered_although_the_caller_that_was_sent_first_went_away() {
    let store = Store::running();
    let redis = connected(&store, Batching::On);
    let charges = charges("a", window(), Rule::Each);
    here().block_on(async {
        store.signal("STOP");
        let mut asked: Vec<_> = (0..10).map(|_| ask(&redis, &charges)).collect();
        asked.iter_mut().for_each(begin);
        drop(asked.remove(0));
        store.signal("CONT");
        for asked in asked {
            assert!(admits(asked.await[0]));
        }
        // And so is who comes later.
        assert!(admits(ask(&redis, &charges).await[0]));
    });
}

#[test]
fn a_call_carries_what_a_script_does_in_a_millisecond_and_full_ones_go_side_by_side() {
    let store = Store::running();
    let redis = connected(&store, Batching::On);
    let gcra = Strategy::Gcra(Gcra::new(LIMIT, DAY, LIMIT).unwrap());
    let log = Strategy::SlidingLog(SlidingLog::new(LIMIT, DAY).unwrap());
    let both = Rule::AllOrNothing { quota_for_all: false, rescued: false };
    // The first goes alone. Then 250 steps a call; 83 of all or nothing; 41 of a log.
    for (strategy, rule, wanted) in
        [(gcra, Rule::Each, 1 + 4), (gcra, both, 1 + 13), (log, Rule::Each, 1 + 25)]
    {
        let before = calls(&store);
        let charges = charges("a", strategy, rule);
        let outcomes = all_at_once(&store, (0..1_000).map(|_| ask(&redis, &charges)).collect());
        assert!(outcomes.into_iter().all(admits));
        assert_eq!(calls(&store) - before, wanted, "{strategy:?} {rule:?}");
    }
}

#[test]
fn more_than_may_wait_is_refused_and_the_rest_is_answered() {
    let store = Store::running();
    let redis = connected(&store, Batching::On);
    let charges = charges("a", window(), Rule::Each);
    // One alone and 31 full calls under way, and 64 calls' worth that waits, the last above it.
    let places = 1 + 31 * 250 + 64 * 250 + 1;
    let asked = (0..places + 100).map(|_| ask(&redis, &charges)).collect();
    let outcomes = all_at_once(&store, asked);
    let refused = |outcome: &&Outcome| **outcome == Outcome::Failed(Cause::Overloaded);
    assert_eq!(outcomes.iter().filter(refused).count(), 100);
    assert_eq!(outcomes.iter().filter(|outcome| admits(**outcome)).count(), places);
    assert_eq!(left(&redis, "a"), u64::from(LIMIT) - places as u64);
}

#[test]
fn one_failure_of_a_call_fails_all_its_questions() {
    let store = Store::running();
    let redis = connected(&store, Batching::On);
    store.tell(&["CONFIG", "SET", "maxmemory", "1"]);
    let charges = charges("a", window(), Rule::Each);
    let outcomes = all_at_once(&store, (0..10).map(|_| ask(&redis, &charges)).collect());
    assert_eq!(outcomes, [Outcome::Failed(Cause::OutOfMemory); 10]);
    store.tell(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(left(&redis, "a"), u64::from(LIMIT));
}
