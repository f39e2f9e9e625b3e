//! A check reserves hits in one store until a second store has replied.
//!
//! Guarantees:
//! - Other checks see reserved hits as used.
//! - Hits that a cancelled check or a killed replica reserved become free again.
//! - Reserving and committing together take at most one store timeout.

use std::time::Duration;

use sluicegate::clock::Clock;
use sluicegate::engine::{Decision, Engine};
use sluicegate::kernel::decision::Verdict;
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::redis::{Address, RedisStore, RedisTopology, StoreGroup};
use sluicegate::store::{
    Charge, ChargeMode, ChargeOutcome, Charges, CounterStore as _, StoreFailure,
};
use tokio::task::JoinHandle;

use super::fallback::{engine_over, new_check, redis_at};
use super::reference::{
    ALL, charge_all, charges, native_charge, now as today, verdict_and_remaining,
};
use super::{serve, wait_until_ready};
use crate::support::http1;
use crate::support::proxy::{Flow, Proxy, Upstream, Way};
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::{PATIENCE, for_a_day_with_a_minute_left, now, soon, until};

struct TwoStores {
    main: Redis,
    second: Redis,
    proxy: Proxy,
}

impl TwoStores {
    fn new() -> Self {
        let (main, second) = (Redis::start(), Redis::start());
        let proxy = Proxy::before(Upstream::Unix(second.socket()));
        Self { main, second, proxy }
    }

    /// Starts the stores on another thread: the proxy starts its own tokio runtime, which an async
    /// test may not do.
    fn new_in_async_test() -> Self {
        std::thread::spawn(Self::new).join().unwrap()
    }

    fn connected(&self, deadline: Duration) -> (StoreGroup, [JoinHandle<()>; 2]) {
        let address = self.proxy.address();
        let second = Address { host: address.ip().to_string(), port: address.port() };
        let redis = |place| {
            let (redis, connection) = RedisStore::new(redis_at(place, deadline));
            (redis, tokio::spawn(connection))
        };
        let (main, first) = redis(RedisTopology::Unix(self.main.socket()));
        let (second, other) = redis(RedisTopology::Tcp(second));
        let stores = StoreGroup::new(main).with_per_second(second);
        let answers =
            || stores.current_failure().map_or(Ok(()), |cause| Err(cause.as_str().to_owned()));
        until("both are connected", answers).unwrap();
        (stores, [first, other])
    }

    fn serve(&self, limits: &std::path::Path, deadline: Duration) -> Service {
        let second = format!("redis://{}", self.proxy.address());
        let deadline = format!("{}s", deadline.as_secs());
        let flags = ["--compat-store-per-second-url", &second, "--store-timeout", &deadline];
        let service = serve(limits, &self.main.url(), &flags);
        wait_until_ready(&service);
        service
    }

    fn keys(&self) -> i64 {
        self.main.command(&["DBSIZE"]).int()
    }
}

/// One limit of ten hits per day for each strategy, and one of 1,000 per second in the second
/// store.
const LIMITS: &str = "domain: d
charge: all_or_nothing
descriptors:
- {key: fixed_window, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: gcra, rate_limit: {unit: day, requests_per_unit: 10, strategy: gcra}}
- {key: sliding_window, rate_limit: {unit: day, requests_per_unit: 10, strategy: sliding_window}}
- {key: sliding_log, rate_limit: {unit: day, requests_per_unit: 10, strategy: sliding_log}}
- {key: second, rate_limit: {unit: second, requests_per_unit: 1000}}
";

const KEYS: [&str; 4] = ["fixed_window", "gcra", "sliding_window", "sliding_log"];

fn check_both_stores(service: &Service, keys: &[&str], hits: u64) -> Option<u16> {
    check_main_store(service, &[keys, &["second"]].concat(), hits)
}

fn check_main_store(service: &Service, keys: &[&str], hits: u64) -> Option<u16> {
    let entry = |key: &&str| format!(r#"{{"entries":[{{"key":"{key}","value":"v"}}]}}"#);
    let list = keys.iter().map(entry).collect::<Vec<_>>().join(",");
    let body = format!(r#"{{"domain":"d","descriptors":[{list}],"hitsAddend":{hits}}}"#);
    let reply = http1::call(service.http, "POST", "/json", &[], Some(body.as_bytes()));
    reply.ok().map(|reply| reply.status)
}

#[test]
fn reservations_of_a_killed_replica_expire() {
    assert_returned_after_kill(check_both_stores);
}

/// Reason: a check with all counters in one store looks for expired reservations only if it is
/// denied.
#[test]
fn expired_reservations_are_also_free_for_single_store_checks() {
    assert_returned_after_kill(check_main_store);
}

/// On a busy machine, the reservations may expire before the checks. Then longer reservations
/// follow.
fn assert_returned_after_kill(check: fn(&Service, &[&str], u64) -> Option<u16>) {
    let deadlines = [2, 4, 8, 16].map(Duration::from_secs);
    assert!(deadlines.into_iter().any(|deadline| is_returned_after_kill(check, deadline)));
}

/// Returns `false` if a reservation may have expired before all checks.
#[expect(clippy::print_stdout, reason = "what was seen is what a test of a fault is for")]
fn is_returned_after_kill(
    check: fn(&Service, &[&str], u64) -> Option<u16>,
    deadline: Duration,
) -> bool {
    for_a_day_with_a_minute_left();
    let (two, dir) = (TwoStores::new(), tempfile::tempdir().unwrap());
    std::fs::write(dir.path().join("d.yaml"), LIMITS).unwrap();
    let (first, next) = (two.serve(dir.path(), deadline), two.serve(dir.path(), deadline));
    let (before, began) = (two.keys(), now());
    // The second store reserves the hits, but the proxy blocks its reply.
    two.proxy.set(Way::FromStore, Flow::Hold);
    std::thread::scope(|scope| {
        scope.spawn(|| check_both_stores(&first, &KEYS, 4));
        let held = || match two.keys() - before {
            keys if keys == 2 * i64::try_from(KEYS.len()).unwrap() => Ok(()),
            keys => Err(keys.to_string()),
        };
        until("all is held in the first store", held).unwrap();
        first.signal("KILL");
    });
    let died = now();
    // The check itself cancels its reservations after half of the timeout. Without that, they
    // expire after twice the timeout.
    let was_cancelled = deadline / 2 <= began.elapsed();
    two.proxy.pass();
    wait_until_ready(&next);
    for key in KEYS {
        let status = check(&next, &[key], 7);
        if was_cancelled || deadline * 2 <= began.elapsed() {
            return false;
        }
        assert_eq!(status, Some(429), "{key}: 4 of 10 are still held");
    }
    for key in KEYS {
        until("what was held is given back", || match check(&next, &[key], 10) {
            Some(200) => Ok(()),
            other => Err(format!("{key}: {other:?}")),
        })
        .unwrap();
        assert_eq!(check(&next, &[key], 1), Some(429), "{key}: ten passed");
    }
    let (later, term) = (died.elapsed(), deadline * 2);
    println!("observed: killed between two steps: given back {later:?} later, of {term:?}");
    true
}

const CACHED: &str = "domain: d
charge: all_or_nothing
descriptors:
- {key: cached, rate_limit: {unit: day, requests_per_unit: 10, mode: cached_deny}}
- {key: second, rate_limit: {unit: second, requests_per_unit: 1000}}
";

fn replica(stores: StoreGroup) -> Engine {
    engine_over(stores, Clock::manual(Nanos::from_secs(1_000_000_000)), CACHED, 1)
}

async fn check_cached(replica: &Engine, hits: u64) -> Decision {
    replica.decide(&new_check(&["cached"], hits)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cached_denial_caused_by_a_reservation_expires_with_the_reservation() {
    for_a_day_with_a_minute_left();
    let two = TwoStores::new_in_async_test();
    let [(asks, _asking), (holds, _holding)] = [two.connected(PATIENCE), two.connected(PATIENCE)];
    let (asks, holds) = (replica(asks), replica(holds));
    assert_eq!(check_cached(&asks, 9).await.verdict, Verdict::Allow);
    two.proxy.set(Way::FromStore, Flow::Hold);
    let before = two.keys();
    let both = new_check(&["cached", "second"], 1);
    let mut holding = Box::pin(holds.decide(&both));
    let held = async {
        while two.keys() == before {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        answer = &mut holding => panic!("{answer:?}"),
        () = held => {}
    }
    assert_eq!(
        check_cached(&asks, 1).await.verdict,
        Verdict::Deny,
        "nine are used, and one is held"
    );
    drop(holding);
    two.proxy.pass();
    let given_back = async {
        while check_cached(&asks, 0).await.statuses[0].decision.headroom.remaining != Hits(1) {
            tokio::task::yield_now().await;
        }
    };
    soon("what it held is given back", given_back).await;
    let Clock::Manual(clock) = asks.clock() else { panic!() };
    let term = Nanos::from_secs(2 * PATIENCE.as_secs());
    clock.advance(Nanos(term.0 - 1));
    assert_eq!(check_cached(&asks, 1).await.verdict, Verdict::Deny, "remembered");
    clock.advance(Nanos(1));
    assert_eq!(check_cached(&asks, 1).await.verdict, Verdict::Allow, "one was left all the while");
}

fn second_charge(hits: u64) -> Charge {
    Charge { per_second: true, ..native_charge("in the second", 1_000, hits) }
}

fn charges_in_both(hits: u64) -> Charges {
    charges([native_charge("main", 10, hits), second_charge(hits)], ALL)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_cancelled_before_its_commit_frees_its_reservation() {
    let two = TwoStores::new_in_async_test();
    let (stores, _tasks) = two.connected(PATIENCE * 2);
    two.proxy.set(Way::FromStore, Flow::Hold);
    let (now, asked) = (today(), charges_in_both(4));
    let question = charge_all(&stores, now, &asked);
    let held = async {
        while two.keys() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        outcomes = question => panic!("{outcomes:?}"),
        () = held => {}
    }
    two.proxy.pass();
    let given_back = async {
        loop {
            let left = charge_all(
                &stores,
                now,
                &charges([native_charge("main", 10, 0)], ChargeMode::Each),
            )
            .await;
            if verdict_and_remaining(left[0]).1 == Some(10) {
                break;
            }
            tokio::task::yield_now().await;
        }
    };
    soon("what it held is given back", given_back).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reserve_and_commit_share_one_store_timeout() {
    let two = TwoStores::new_in_async_test();
    // On a busy machine, a reply may arrive after its half of a short timeout.
    let mut decided = None;
    for deadline in [3, 9, 27].map(Duration::from_secs) {
        let (stores, _tasks) = two.connected(deadline);
        // Reserve and commit each have half of the store timeout, so a delay of a third is in time.
        two.proxy.set(Way::FromStore, Flow::Delay(deadline / 3));
        let began = now();
        let outcomes = charge_all(&stores, today(), &charges_in_both(1)).await;
        two.proxy.pass();
        if outcomes.iter().all(|outcome| matches!(outcome, ChargeOutcome::Decided(_))) {
            assert!(deadline / 3 * 2 <= began.elapsed(), "two round trips");
            decided = Some(outcomes);
            break;
        }
    }
    let outcomes = decided.expect("both steps are in time");
    assert!(outcomes.iter().all(|outcome| !outcome.is_denial()), "{outcomes:?}");
}

/// A call to one store has the whole timeout, so it is the yardstick.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_second_store_takes_less_than_one_store_timeout() {
    let two = TwoStores::new_in_async_test();
    let (stores, _tasks) = two.connected(Duration::from_secs(3));
    two.proxy.set(Way::FromStore, Flow::Hold);
    let (in_both, in_second) = (charges_in_both(1), charges([second_charge(1)], ALL));
    let timed = async |charges: &Charges| {
        let outcomes = charge_all(&stores, today(), charges).await;
        (outcomes, now())
    };
    let ((outcomes, ended), (alone, alone_ended)) =
        tokio::join!(timed(&in_both), timed(&in_second));
    assert_eq!(alone[0], ChargeOutcome::Failed(StoreFailure::TimedOut));
    assert_eq!(outcomes[1], ChargeOutcome::Failed(StoreFailure::TimedOut));
    assert!(matches!(outcomes[0], ChargeOutcome::Decided(_)), "the other counts: {outcomes:?}");
    assert!(ended < alone_ended, "{:?} later than one timeout", ended - alone_ended);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reserve_times_out_after_half_of_the_store_timeout() {
    let deadline = Duration::from_secs(2);
    let two = TwoStores::new_in_async_test();
    let (stores, _tasks) = two.connected(deadline);
    two.proxy.set(Way::FromStore, Flow::Delay(deadline / 10 * 9));
    let outcomes = charge_all(&stores, today(), &charges_in_both(1)).await;
    assert_eq!(outcomes[1], ChargeOutcome::Failed(StoreFailure::TimedOut));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_reservation_is_not_reported_as_charged() {
    let two = TwoStores::new_in_async_test();
    let (stores, _tasks) = two.connected(PATIENCE * 2);
    two.proxy.set(Way::FromStore, Flow::Hold);
    let before = two.keys();
    let (today, asked) = (today(), charges_in_both(4));
    let forgets = async {
        while two.keys() == before {
            tokio::task::yield_now().await;
        }
        two.main.command(&["FLUSHALL"]);
        two.proxy.pass();
    };
    let both = async { tokio::join!(charge_all(&stores, today, &asked), forgets) };
    let (outcomes, ()) = tokio::time::timeout(3 * PATIENCE, both).await.expect("both steps");
    assert_eq!(outcomes[0], ChargeOutcome::Failed(StoreFailure::TimedOut));
    assert!(matches!(outcomes[1], ChargeOutcome::Decided(_)), "{outcomes:?}");
}

/// A cancelled check does not report an unresponsive store. The call that cancels its reservation
/// does, but only after the expiry of the reservation. The store must be known as unavailable long
/// before that, apart from the time by which the machine is late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unresponsive_store_is_detected_although_all_checks_are_cancelled() {
    let (hurry, term) = (Duration::from_millis(5), Duration::from_secs(1));
    let two = TwoStores::new_in_async_test();
    let mut took = Vec::new();
    for _ in 0..30 {
        let (stores, _tasks) = two.connected(hurry * 4);
        two.proxy.set(Way::FromStore, Flow::Hold);
        let (began, mut late, mut all_gave_up) = (now(), Duration::ZERO, true);
        while stores.current_failure().is_none() {
            let asked = now();
            let given_up =
                tokio::time::timeout(hurry, charge_all(&stores, today(), &charges_in_both(1)))
                    .await;
            late += asked.elapsed().saturating_sub(hurry);
            all_gave_up &= given_up.is_err() || stores.current_failure().is_some();
            assert!(began.elapsed() < PATIENCE, "nobody knows");
        }
        let elapsed = began.elapsed();
        took.push((elapsed, late, all_gave_up));
        two.proxy.pass();
        if all_gave_up && elapsed.saturating_sub(late) < term {
            return;
        }
    }
    panic!("known only when a hold's term was over: {took:?}");
}

/// A store call cancels the reservation before its expiry, even if no reply confirmed the
/// reservation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reservation_without_a_reply_is_canceled_before_its_expiry() {
    let two = TwoStores::new_in_async_test();
    let (stores, _tasks) = two.connected(Duration::from_secs(1));
    let calls = || {
        let said = two.second.command(&["INFO", "commandstats"]).text();
        let line = said.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        line.map_or(0, |calls| calls.split(',').next().unwrap().parse::<u64>().unwrap())
    };
    // Loads the script into Redis before the measured check.
    charge_all(&stores, today(), &charges_in_both(1)).await;
    let before = calls();
    two.proxy.set(Way::FromStore, Flow::Lose);
    let outcomes = charge_all(&stores, today(), &charges_in_both(4)).await;
    assert_eq!(outcomes[1], ChargeOutcome::Failed(StoreFailure::TimedOut));
    let has_returned = || match calls() - before {
        2.. => Ok(()),
        other => Err(format!("{other} calls")),
    };
    until("it is told to hold, and to give back", has_returned).unwrap();
}
