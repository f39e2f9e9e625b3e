//! Replicas that lease one key of a real store: the hits that they allow and the calls that they
//! make.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use futures_util::FutureExt as _;
use sluicegate::clock::Clock;
use sluicegate::engine::lease::{LeaseManager, LeaseOptions, LeasedCounter};
use sluicegate::kernel::decision::{Cost, Enforcement};
use sluicegate::kernel::key::{CounterKey, KeyStrategy};
use sluicegate::kernel::lease::sizer::LeaseSizing;
use sluicegate::kernel::lease::{LeaseTerms, Overshoot};
use sluicegate::kernel::rate::fixed_window::{FixedWindow, Windows};
use sluicegate::kernel::rate::gcra::Gcra;
use sluicegate::kernel::rate::sliding_log::SlidingLog;
use sluicegate::kernel::rate::sliding_window::SlidingWindow;
use sluicegate::kernel::rate::{CounterDecision, Strategy};
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::redis::{self, RedisStore};
use sluicegate::store::{Charge, ChargeOutcome, CounterStore as _, Outcomes, Placement};
use tokio::time::timeout;

use crate::support::redis::Redis;
use crate::support::resp::Client;
use crate::support::waiting::{PATIENCE, for_a_day_with_a_minute_left, until};

const DAY: Nanos = Nanos::from_secs(86_400);

const LIMIT: u32 = 10_000;

const MEMBERS: usize = 3;

const TASKS: usize = 8;

fn member(store: &Redis) -> Arc<LeaseManager> {
    let options = redis::RedisOptions {
        call_timeout: PATIENCE,
        ..redis::RedisOptions::new(redis::RedisTopology::Unix(store.socket()))
    };
    let (redis, connection) = RedisStore::new(options);
    tokio::spawn(connection);
    let answers = || redis.current_failure().map_or(Ok(()), |cause| Err(cause.as_str().to_owned()));
    until("redis is connected", answers).unwrap();
    LeaseManager::new(Arc::new(Clock::system()), Arc::new(redis), LeaseOptions::default())
}

#[derive(Clone)]
struct Counter(Charge, LeaseTerms);

impl Counter {
    fn leased(&self) -> LeasedCounter<'_> {
        LeasedCounter { charge: &self.0, terms: self.1 }
    }

    async fn check(&self, member: &Arc<LeaseManager>) -> ChargeOutcome {
        let mut spent = Outcomes::new();
        match member.try_spend(Clock::system().now(), self.leased(), Hits(1), &mut spent) {
            Some(()) => spent[0],
            None => member.charge_leased(self.leased(), Hits(1)).await,
        }
    }
}

fn leased(strategy: Strategy, key_strategy: KeyStrategy, overshoot: Overshoot) -> Counter {
    let charge = Charge {
        key: CounterKey::unique("d", [("k", "v")].into_iter(), key_strategy),
        placement: Placement::default(),
        strategy,
        cost: Cost::Charge(Hits(1)),
        standing: Enforcement::default(),
        per_second: false,
    };
    Counter(
        charge,
        LeaseTerms { overshoot, duration: Nanos::from_secs(20), sizing: LeaseSizing::Learned },
    )
}

fn fixed_window(overshoot: Overshoot) -> Counter {
    let limit = FixedWindow::new(LIMIT, Windows::Every(DAY)).unwrap();
    leased(Strategy::FixedWindow(limit), KeyStrategy::FixedWindow(DAY), overshoot)
}

fn all_strategies(overshoot: Overshoot) -> [Counter; 4] {
    let gcra = Strategy::Gcra(Gcra::new(LIMIT, DAY, LIMIT).unwrap());
    let window = Strategy::SlidingWindow(SlidingWindow::new(LIMIT, DAY).unwrap());
    let log = Strategy::SlidingLog(SlidingLog::new(LIMIT, DAY).unwrap());
    [
        fixed_window(overshoot),
        leased(gcra, KeyStrategy::Gcra, overshoot),
        leased(window, KeyStrategy::SlidingWindow(DAY), overshoot),
        leased(log, KeyStrategy::SlidingLog, overshoot),
    ]
}

/// Sends checks of one hit from concurrent tasks. Returns the number of allowed checks.
async fn count_allowed(members: &[Arc<LeaseManager>], leased: &Counter, checks: u64) -> u64 {
    let (admitted, left) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(checks)));
    let tasks: Vec<_> = (0..TASKS * members.len())
        .map(|task| {
            let (member, leased) = (Arc::clone(&members[task % members.len()]), leased.clone());
            let (admitted, left) = (Arc::clone(&admitted), Arc::clone(&left));
            tokio::spawn(async move {
                while left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_ok() {
                    let outcome = leased.check(&member).await;
                    let ChargeOutcome::Decided(step) = outcome else { panic!("{outcome:?}") };
                    admitted
                        .fetch_add(u64::from(matches!(step, CounterDecision::Allow(_))), Relaxed);
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    admitted.load(Relaxed)
}

fn script_calls(store: &Redis) -> u64 {
    let stats = Client::connect(&store.socket()).unwrap().call(&["INFO", "commandstats"]).text();
    let of = |name: &str| {
        let rest = stats.split(&format!("cmdstat_{name}:calls=")).nth(1)?;
        rest.split(',').next()?.parse::<u64>().ok()
    };
    of("evalsha").unwrap_or(0) + of("eval").unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fixed_window_leases_stay_within_the_limit_and_waste_few_hits() {
    for_a_day_with_a_minute_left();
    let store = Redis::start();
    let members: Vec<_> = (0..MEMBERS).map(|_| member(&store)).collect();
    let leased = fixed_window(Overshoot::InWindow);
    let admitted = count_allowed(&members, &leased, 4 * u64::from(LIMIT)).await;
    let held: u64 = members.iter().map(|leases| leases.balance(&leased.0.key).0).sum();
    assert!(admitted + held <= u64::from(LIMIT), "{admitted} admitted, {held} held");
    assert!(u64::from(LIMIT) * 95 / 100 <= admitted, "{admitted} admitted, {held} held");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_stay_within_max_overshoot_with_few_store_calls() {
    for_a_day_with_a_minute_left();
    for leased in all_strategies(Overshoot::AtMost(Hits(u64::from(LIMIT) / 10))) {
        let store = Redis::start();
        let members: Vec<_> = (0..MEMBERS).map(|_| member(&store)).collect();
        let before = script_calls(&store);
        let half = u64::from(LIMIT) / 2;
        assert_eq!(
            count_allowed(&members, &leased, half).await,
            half,
            "none is denied that passes"
        );
        let asked_for_half = script_calls(&store) - before;
        assert!(asked_for_half < half / 5, "{asked_for_half} calls: {:?}", leased.0.strategy);
        let rest = count_allowed(&members, &leased, 3 * u64::from(LIMIT)).await;
        // GCRA frees one hit every 8.64 s, so some more hits may be allowed during the test.
        let most = u64::from(LIMIT) + u64::from(LIMIT) / 10 + 10;
        assert!(half + rest <= most, "{} admitted: {:?}", half + rest, leased.0.strategy);
        assert!(u64::from(LIMIT) * 9 / 10 <= half + rest, "{}", half + rest);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn returned_hits_are_usable_by_another_replica() {
    for_a_day_with_a_minute_left();
    for leased in all_strategies(Overshoot::AtMost(Hits(u64::from(LIMIT)))) {
        let store = Redis::start();
        let (one, other) = (member(&store), member(&store));
        let admitted = count_allowed(&[Arc::clone(&one)], &leased, 2_000).await;
        let held = one.balance(&leased.0.key).0;
        assert!(0 < held, "{:?}", leased.0.strategy);
        one.return_all().await;
        assert_eq!(one.balance(&leased.0.key), Hits(0));
        let rest = count_allowed(&[Arc::clone(&other)], &leased, u64::from(LIMIT)).await;
        let left = other.balance(&leased.0.key).0;
        let all = admitted + rest + left;
        // Only hits of the newest lease can be returned; the hits of older leases expired with
        // their window.
        assert!(all <= u64::from(LIMIT) + 10, "{all}: {:?}", leased.0.strategy);
        assert!(u64::from(LIMIT) - held <= all, "{all}: {:?}", leased.0.strategy);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_lease_call_does_not_block_waiting_checks() {
    for_a_day_with_a_minute_left();
    let store = Redis::start();
    let (member, leased) = (member(&store), fixed_window(Overshoot::InWindow));
    // Redis is stopped, so no reply can arrive before the check is cancelled.
    store.signal("STOP");
    let mut first = Box::pin(member.charge_leased(leased.leased(), Hits(1)));
    assert!((&mut first).now_or_never().is_none(), "the answer was here before it was asked for");
    let mut second = Box::pin(member.charge_leased(leased.leased(), Hits(1)));
    assert!((&mut second).now_or_never().is_none());
    drop(first);
    store.signal("CONT");
    assert!(is_admitted(timeout(PATIENCE, second).await.unwrap()));
    for _ in 0..3 {
        assert!(is_admitted(
            timeout(PATIENCE, member.charge_leased(leased.leased(), Hits(1))).await.unwrap()
        ));
    }
}

fn is_admitted(outcome: ChargeOutcome) -> bool {
    matches!(outcome, ChargeOutcome::Decided(CounterDecision::Allow(_)))
}
