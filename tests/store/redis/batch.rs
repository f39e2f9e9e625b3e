//! Batching of checks and lease messages, measured by the script calls that Redis counts.
//!
//! The tests stop Redis (SIGSTOP) while they start checks, so all checks but the first wait for the
//! running store call.

mod lease_messages;

use std::future::poll_fn;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::future::join_all;
use sluicegate::kernel::decision::{Cost, Enforcement};
use sluicegate::kernel::key::{CounterKey, KeyStrategy};
use sluicegate::kernel::lease::sizer::LeaseSizing;
use sluicegate::kernel::lease::{
    BorrowRequest, LeaseTerms, MessageNumber, Overshoot, ReplicaIncarnation,
};
use sluicegate::kernel::rate::fixed_window::{FixedWindow, Windows};
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::rate::sliding_log::SlidingLog;
use sluicegate::kernel::rate::{CounterDecision, Strategy};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::lease::{LeaseMessage, LeaseOutcome};
use sluicegate::store::redis::{Address, Batching, RedisOptions, RedisStore, RedisTopology};
use sluicegate::store::{
    Charge, ChargeMode, ChargeOutcome, Charges, CounterStore, Outcomes, Placement, StoreFailure,
    StoreReply,
};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinSet;

use super::fallback::redis_at;
use crate::support::proxy::{Proxy, Upstream};
use crate::support::redis::Redis;
use crate::support::waiting::{for_a_day_with_a_minute_left, now, until};

const DAY: Nanos = Nanos::from_secs(86_400);

pub(super) const LIMIT: u32 = 1_000_000;

/// A separate runtime for the Redis connections, because a test blocks its own thread.
static CONNECTION_RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap());

pub(super) type PendingCharge<'r> = Pin<Box<dyn Future<Output = Outcomes> + Send + 'r>>;

fn test_runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

pub(super) struct Connected {
    redis: RedisStore,
    _connection: JoinSet<()>,
}

impl Deref for Connected {
    type Target = RedisStore;

    fn deref(&self) -> &RedisStore {
        &self.redis
    }
}

pub(super) fn connected(store: &Redis, batching: Batching) -> Connected {
    connected_at(RedisTopology::Unix(store.socket()), Duration::from_secs(60), batching)
}

fn connected_at(topology: RedisTopology, deadline: Duration, batching: Batching) -> Connected {
    for_a_day_with_a_minute_left();
    let options = redis_at(topology, deadline);
    let (redis, connection) = RedisStore::new(RedisOptions { batching, ..options });
    let mut kept = JoinSet::new();
    kept.spawn_on(connection, CONNECTION_RUNTIME.handle());
    let answers = || redis.current_failure().map_or(Ok(()), |cause| Err(cause.as_str().to_owned()));
    until("redis is connected", answers).unwrap();
    Connected { redis, _connection: kept }
}

pub(super) fn window() -> Strategy {
    Strategy::FixedWindow(FixedWindow::new(LIMIT, Windows::Every(DAY)).unwrap())
}

pub(super) fn charges(name: &str, strategy: Strategy, mode: ChargeMode) -> Charges {
    let key_strategy = match strategy {
        Strategy::SlidingLog(_) => KeyStrategy::SlidingLog,
        Strategy::Gcra(_) => KeyStrategy::Gcra,
        _ => KeyStrategy::FixedWindow(DAY),
    };
    let key = CounterKey::unique("d", [("k", name)].into_iter(), key_strategy);
    let cost = Cost::Charge(Hits(1));
    let (home, standing) = (Placement::ByKey, Enforcement::default());
    let charge = Charge { key, placement: home, strategy, cost, standing, per_second: false };
    Charges { list: [charge].into_iter().collect(), mode }
}

pub(super) fn charge<'r>(redis: &'r RedisStore, charges: &'r Charges) -> PendingCharge<'r> {
    match redis.charge(Nanos(0), charges) {
        StoreReply::Pending(reply) => reply,
        StoreReply::Ready(outcomes) => Box::pin(std::future::ready(outcomes)),
    }
}

fn poll_once(charge: &mut PendingCharge<'_>) {
    assert!(charge.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

/// Starts all charges while Redis is stopped (SIGSTOP), then resumes Redis and awaits the outcomes.
pub(super) fn charge_all_during_stop(
    store: &Redis,
    charges: Vec<PendingCharge<'_>>,
) -> Vec<ChargeOutcome> {
    test_runtime().block_on(async {
        store.signal("STOP");
        let mut open: Vec<(PendingCharge<'_>, Option<ChargeOutcome>)> =
            charges.into_iter().map(|asked| (asked, None)).collect();
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

fn poll_all(open: &mut [(PendingCharge<'_>, Option<ChargeOutcome>)], context: &mut Context<'_>) {
    for (asked, outcome) in open.iter_mut().filter(|(_, outcome)| outcome.is_none()) {
        if let Poll::Ready(outcomes) = asked.as_mut().poll(context) {
            *outcome = Some(outcomes[0]);
        }
    }
}

pub(super) fn calls(store: &Redis) -> u64 {
    let stats = store.command(&["INFO", "commandstats"]).text();
    let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// Returns the remaining hits of counter `name`, before the one hit that this function charges.
pub(super) fn remaining(redis: &RedisStore, name: &str) -> u64 {
    let charges = charges(name, window(), ChargeMode::Each);
    match test_runtime().block_on(charge(redis, &charges))[0] {
        ChargeOutcome::Decided(CounterDecision::Allow(room)) => room.remaining.0 + 1,
        other => panic!("{other:?}"),
    }
}

fn is_allowed(outcome: ChargeOutcome) -> bool {
    matches!(outcome, ChargeOutcome::Decided(CounterDecision::Allow(_)))
}

#[test]
fn a_single_check_is_sent_without_delay() {
    let store = Redis::start();
    let stores = [Batching::On, Batching::Off].map(|batching| connected(&store, batching));
    let (test_runtime, charges) = (test_runtime(), charges("lone", window(), ChargeMode::Each));
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..200 {
        for (redis, times) in stores.iter().zip(&mut times) {
            let began = now();
            assert!(is_allowed(test_runtime.block_on(charge(redis, &charges))[0]));
            times.push(began.elapsed());
        }
    }
    assert_eq!(calls(&store), 2 * 200);
    // A batching delay would take at least one millisecond, the resolution of the timers.
    let [on, off] = times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2]
    });
    let rounding = Duration::from_micros(300);
    assert!(on <= off * 3 / 2 + rounding, "{on:?} with batching, {off:?} without");
}

#[test]
fn checks_during_a_call_share_the_next_call() {
    let store = Redis::start();
    let redis = connected(&store, Batching::On);
    let all_or_nothing =
        ChargeMode::AllOrNothing { quota_for_all: false, quota_cannot_deny: false };
    let questions: Vec<_> = (0..60)
        .map(|number| {
            let rule = if number % 3 == 0 { all_or_nothing } else { ChargeMode::Each };
            charges(["a", "b"][number % 2], window(), rule)
        })
        .collect();
    let outcomes =
        charge_all_during_stop(&store, questions.iter().map(|its| charge(&redis, its)).collect());
    assert!(outcomes.into_iter().all(is_allowed));
    assert_eq!(calls(&store), 2);
    assert_eq!([remaining(&redis, "a"), remaining(&redis, "b")], [u64::from(LIMIT) - 30; 2]);
}

/// A lease message that charges one hit and borrows nine more for the balance.
fn message(name: &str, member: u64) -> LeaseMessage {
    let charge = charges(name, window(), ChargeMode::Each).list.remove(0);
    let terms = LeaseTerms {
        overshoot: Overshoot::AtMost(Hits(100_000)),
        duration: Nanos::from_secs(600),
        sizing: LeaseSizing::Learned,
    };
    let (number, none) = (MessageNumber(1), Hits(0));
    let borrow = BorrowRequest {
        number,
        hits: Hits(1),
        wanted: Hits(9),
        demand: Hits(1),
        balance: none,
        returned: none,
        last_lease: MessageNumber(0),
    };
    let (key, home, strategy) = (charge.key, charge.placement, charge.strategy);
    LeaseMessage {
        key,
        placement: home,
        per_second: false,
        strategy,
        terms,
        sender: ReplicaIncarnation(member),
        borrow,
    }
}

fn borrow<'r>(
    redis: &'r dyn CounterStore,
    message: &'r LeaseMessage,
) -> Pin<Box<dyn Future<Output = LeaseOutcome> + Send + 'r>> {
    match redis.exchange_lease_message(Nanos(0), message) {
        StoreReply::Pending(reply) => reply,
        StoreReply::Ready(lent) => Box::pin(std::future::ready(lent)),
    }
}

/// Sends all messages while Redis is stopped. Returns the number of granted leases.
fn borrow_all_at_once(store: &Redis, redis: &RedisStore, messages: &[LeaseMessage]) -> usize {
    test_runtime().block_on(async {
        store.signal("STOP");
        let all = join_all(messages.iter().map(|message| borrow(redis, message)));
        let mut all = std::pin::pin!(all);
        assert!(all.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        store.signal("CONT");
        let is_granted =
            |its: &&LeaseOutcome| matches!(its, LeaseOutcome::Applied(answer) if answer.granted != Hits(0));
        all.await.iter().filter(is_granted).count()
    })
}

/// Three lease messages share a batch, but each needs its own store call. The reply to the last of
/// these calls is lost.
#[test]
fn timed_out_store_call_keeps_earlier_replies_of_its_batch() {
    let store = Redis::start();
    let (near, keys, members) = (connected(&store, Batching::On), ["a", "b", "c"], 1_100);
    for key in keys {
        let all: Vec<_> = (0..members).map(|member| message(key, member)).collect();
        assert_eq!(borrow_all_at_once(&store, &near, &all), all.len());
    }
    let proxy = Proxy::before(Upstream::Unix(store.socket()));
    let address = proxy.address();
    let address = Address { host: address.ip().to_string(), port: address.port() };
    let redis = connected_at(RedisTopology::Tcp(address), Duration::from_secs(3), Batching::On);
    proxy.hold_after(3);
    let messages: Vec<_> = ["d"].iter().chain(&keys).map(|key| message(key, members)).collect();
    let outcomes =
        test_runtime().block_on(join_all(messages.iter().map(|one| borrow(&*redis, one))));
    let applied = outcomes.iter().map(|one| matches!(one, LeaseOutcome::Applied(_)));
    assert_eq!(applied.collect::<Vec<_>>(), [true, true, true, false], "{outcomes:?}");
    assert!(matches!(outcomes[3], LeaseOutcome::Failed(StoreFailure::TimedOut)));
}

#[test]
fn without_batching_each_check_is_one_call() {
    let store = Redis::start();
    let redis = connected(&store, Batching::Off);
    let charges = charges("a", window(), ChargeMode::Each);
    let outcomes =
        charge_all_during_stop(&store, (0..60).map(|_| charge(&redis, &charges)).collect());
    assert!(outcomes.into_iter().all(is_allowed));
    assert_eq!(calls(&store), 60);
}

#[test]
fn checks_cancelled_before_sending_are_not_charged() {
    let store = Redis::start();
    let redis = connected(&store, Batching::On);
    let charges = charges("a", window(), ChargeMode::Each);
    test_runtime().block_on(async {
        store.signal("STOP");
        let mut asked: Vec<_> = (0..10).map(|_| charge(&redis, &charges)).collect();
        asked.iter_mut().for_each(poll_once);
        // The first check is in flight, and the others wait for the next call. Every second check
        // is cancelled.
        let (kept, cancelled): (Vec<_>, Vec<_>) =
            asked.into_iter().enumerate().partition(|(number, _)| number % 2 == 0);
        drop(cancelled);
        store.signal("CONT");
        for (_, asked) in kept {
            assert!(is_allowed(asked.await[0]));
        }
    });
    assert_eq!(remaining(&redis, "a"), u64::from(LIMIT) - 5);
}

#[test]
fn cancelling_the_first_check_leaves_the_others_answered() {
    let store = Redis::start();
    let redis = connected(&store, Batching::On);
    let charges = charges("a", window(), ChargeMode::Each);
    test_runtime().block_on(async {
        store.signal("STOP");
        let mut asked: Vec<_> = (0..10).map(|_| charge(&redis, &charges)).collect();
        asked.iter_mut().for_each(poll_once);
        drop(asked.remove(0));
        store.signal("CONT");
        for asked in asked {
            assert!(is_allowed(asked.await[0]));
        }
        assert!(is_allowed(charge(&redis, &charges).await[0]));
    });
}

#[test]
fn batch_size_depends_on_the_script_time_per_check() {
    let store = Redis::start();
    let redis = connected(&store, Batching::On);
    let gcra = Strategy::Gcra(Gcra::new(LIMIT, DAY, LIMIT).unwrap());
    let log = Strategy::SlidingLog(SlidingLog::new(LIMIT, DAY).unwrap());
    let both = ChargeMode::AllOrNothing { quota_for_all: false, quota_cannot_deny: false };
    // The first check is sent alone. A full batch has 250 GCRA checks, 83 all-or-nothing checks or
    // 41 checks of a sliding log.
    for (strategy, rule, wanted) in
        [(gcra, ChargeMode::Each, 1 + 4), (gcra, both, 1 + 13), (log, ChargeMode::Each, 1 + 25)]
    {
        let before = calls(&store);
        let charges = charges("a", strategy, rule);
        let outcomes =
            charge_all_during_stop(&store, (0..1_000).map(|_| charge(&redis, &charges)).collect());
        assert!(outcomes.into_iter().all(is_allowed));
        assert_eq!(calls(&store) - before, wanted, "{strategy:?} {rule:?}");
    }
}

#[test]
fn checks_above_the_queue_maximum_fail_as_overloaded() {
    let store = Redis::start();
    let redis = connected(&store, Batching::On);
    let charges = charges("a", window(), ChargeMode::Each);
    // Accepted: 1 check sent alone, 31 full batches in flight, 64 full batches in the queue, and 1
    // check with which the queue exceeds its maximum.
    let accepted = 1 + 31 * 250 + 64 * 250 + 1;
    let asked = (0..accepted + 100).map(|_| charge(&redis, &charges)).collect();
    let outcomes = charge_all_during_stop(&store, asked);
    let refused =
        |outcome: &&ChargeOutcome| **outcome == ChargeOutcome::Failed(StoreFailure::Overloaded);
    assert_eq!(outcomes.iter().filter(refused).count(), 100);
    assert_eq!(outcomes.iter().filter(|outcome| is_allowed(**outcome)).count(), accepted);
    assert_eq!(remaining(&redis, "a"), u64::from(LIMIT) - accepted as u64);
}

#[test]
fn a_failed_call_fails_all_its_checks() {
    let store = Redis::start();
    let redis = connected(&store, Batching::On);
    store.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let charges = charges("a", window(), ChargeMode::Each);
    let outcomes =
        charge_all_during_stop(&store, (0..10).map(|_| charge(&redis, &charges)).collect());
    assert_eq!(outcomes, [ChargeOutcome::Failed(StoreFailure::OutOfMemory); 10]);
    store.command(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(remaining(&redis, "a"), u64::from(LIMIT));
}
