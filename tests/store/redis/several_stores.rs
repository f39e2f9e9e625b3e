//! Checks with counters in two Redis servers: the main one, and one for limits per second.

use std::time::Duration;

use sluicegate::clock::Clock;
use sluicegate::kernel::decision::Verdict;
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::redis::{Address, RedisStore, RedisTopology, StoreGroup, reference};
use sluicegate::store::{
    Charge, ChargeMode, ChargeOutcome, Charges, CounterStore as _, StoreFailure,
};
use tokio::task::JoinHandle;

use super::fallback::{engine_over, new_check, redis_at};
use super::reference::{DAY, charge, charge_all, charges, now, stored_count};
use crate::support::proxy::{Flow, Proxy, Upstream, Way};
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::{PATIENCE, for_a_day_with_a_minute_left, until};

struct TwoStores {
    main: Redis,
    second: Redis,
    proxy: Proxy,
}

impl TwoStores {
    /// Starts the stores on another thread: the proxy starts its own tokio runtime, which an async
    /// test may not do.
    fn start() -> Self {
        let start = || {
            let (main, second) = (Redis::start(), Redis::start());
            let proxy = Proxy::before(Upstream::Unix(second.socket()));
            Self { main, second, proxy }
        };
        for_a_day_with_a_minute_left();
        std::thread::spawn(start).join().unwrap()
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
}

/// Connects with `compat.store.stop_when_over`.
fn stopping(two: &TwoStores, deadline: Duration) -> (StoreGroup, [JoinHandle<()>; 2]) {
    let (stores, tasks) = two.connected(deadline);
    let options =
        reference::CompatOptions { stop_when_over: true, ..reference::CompatOptions::default() };
    (stores.with_reference(options), tasks)
}

fn charges_in_both(hits: u64) -> Charges {
    let second = Charge { per_second: true, ..charge("second", 10, hits) };
    charges([charge("main", 10, hits), second], ChargeMode::Each)
}

fn counts(two: &TwoStores, now: Nanos) -> [Option<u64>; 2] {
    [(&two.main, "main"), (&two.second, "second")]
        .map(|(store, name)| stored_count(store, name, now))
}

/// A store that does not reply to the peek is not charged. The others are charged if they allow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stop_when_over_peeks_at_both_stores_within_one_deadline() {
    let (two, now) = (TwoStores::start(), now());
    let (stores, _tasks) = stopping(&two, Duration::from_secs(2));
    let both = charges_in_both(1);
    let outcomes = charge_all(&stores, now, &both).await;
    assert!(outcomes.iter().all(|outcome| matches!(outcome, ChargeOutcome::Decided(_))));
    two.proxy.set(Way::FromStore, Flow::Hold);
    let outcomes = tokio::time::timeout(PATIENCE, charge_all(&stores, now, &both)).await.unwrap();
    assert!(matches!(outcomes[0], ChargeOutcome::Decided(_)), "{outcomes:?}");
    assert_eq!(outcomes[1], ChargeOutcome::Failed(StoreFailure::TimedOut));
    assert_eq!(counts(&two, now), [Some(2), Some(1)]);
}

/// As in envoyproxy/ratelimit: nothing happens at once in two stores.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_that_is_over_only_after_the_peek_denies_alone() {
    let (two, now) = (TwoStores::start(), now());
    let (stores, _tasks) = stopping(&two, PATIENCE * 3);
    two.proxy.set(Way::FromStore, Flow::Hold);
    let between = async {
        let peeked = "cmdstat_get:calls=1,";
        until("the second store is peeked at", || {
            let stats = two.second.command(&["INFO", "commandstats"]).text();
            if stats.contains(peeked) { Ok(()) } else { Err(stats) }
        })
        .unwrap();
        two.second.command(&["INCRBY", &format!("d_k_second_{}", now.0 / DAY.0 * 86_400), "5"]);
        two.proxy.pass();
    };
    let both = charges_in_both(7);
    let (outcomes, ()) = tokio::join!(charge_all(&stores, now, &both), between);
    assert_eq!(outcomes.iter().map(ChargeOutcome::is_denial).collect::<Vec<_>>(), [false, true]);
    assert_eq!(counts(&two, now), [Some(7), Some(12)]);
}

/// A calendar limit that must be planned again does not repeat the charges in the other store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_window_in_one_store_charges_the_other_once() {
    const RULES: &str = "domain: d
charge: all_or_nothing
descriptors:
- {key: month, rate_limit: {unit: month, requests_per_unit: 100, on_store_failure: deny, calendar: {time_zone: Europe/Berlin}}}
- {key: second, rate_limit: {unit: second, requests_per_unit: 10, strategy: gcra, burst: 100}}
";
    let two = TwoStores::start();
    let (stores, _tasks) = two.connected(PATIENCE);
    // The window that this clock plans ended long ago by the clock of Redis.
    let engine = engine_over(stores, Clock::manual(Nanos::from_secs(1_000_000_000)), RULES, 1);
    let check = async |keys: &[&str], hits| {
        let decision = engine.decide(&new_check(keys, hits)).await.unwrap();
        let room = |status: &sluicegate::engine::LimitStatus| status.decision.headroom.remaining;
        (decision.verdict, decision.statuses.iter().map(room).collect::<Vec<_>>())
    };
    let (verdict, left) = check(&["month", "second"], 30).await;
    assert_eq!((verdict, left[1]), (Verdict::Deny, Hits(70)), "charged once");
    assert_eq!(check(&["month"], 1).await, (Verdict::Allow, vec![Hits(99)]), "alone");
}

#[test]
fn all_or_nothing_needs_one_redis_and_one_key_format() {
    let (store, limits) = (Redis::absent(), tempfile::tempdir().unwrap());
    let per_second = ["--compat-store-per-second-url", "redis://127.0.0.1:1"];
    let compat = ["--compat-store-key-format", "compat"];
    let (single, cluster) = (store.url(), "redis+cluster://127.0.0.1:1".to_owned());
    let refusal = |charge: &str, rules: &[&str], url: &str, flags: &[&str]| {
        let rules = rules.iter().enumerate().map(|(key, rule)| {
            format!("- {{key: k{key}, rate_limit: {{requests_per_unit: 9, {rule}}}}}\n")
        });
        let text =
            format!("domain: d\ncharge: {charge}\ndescriptors:\n{}", rules.collect::<String>());
        std::fs::write(limits.path().join("d.yaml"), text).unwrap();
        let flags: Vec<_> =
            ["--store-url", url].iter().chain(flags).map(|flag| (*flag).to_owned()).collect();
        Service::start(limits.path(), &flags).err()
    };
    let both = ["unit: day", "unit: second"];
    let mixed = ["unit: day", "unit: day, strategy: gcra"];
    for (rules, url, flags, place) in [
        (
            &both[..],
            &single,
            &per_second,
            "`d.k1` has `charge: all_or_nothing`, but `compat.store.per_second_url`",
        ),
        (
            &mixed,
            &single,
            &compat,
            "`d.k0` has `charge: all_or_nothing`, but `compat.store.key_format: compat`",
        ),
        (
            &both[..1],
            &cluster,
            &compat,
            "`d.k0` has `charge: all_or_nothing`, but `compat.store.key_format: compat`",
        ),
    ] {
        let refused = refusal("all_or_nothing", rules, url, flags).expect(place);
        assert!(refused.contains("E32") && refused.contains(place), "{refused}");
        assert!(refused.contains("or write `charge: each`"), "{refused}");
        assert_eq!(refusal("each", rules, url, flags), None);
    }
    for (rules, url, flags) in [
        (&both[..], &single, &compat[..]),
        (&both[..1], &single, &per_second),
        (&both[1..], &single, &per_second),
        (&mixed[1..], &cluster, &compat),
        (&mixed, &cluster, &[]),
    ] {
        assert_eq!(refusal("all_or_nothing", rules, url, flags), None, "{rules:?} {url} {flags:?}");
    }
}
