//! Hits allowed during a Redis outage are charged to Redis afterwards.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use sluicegate::clock::Clock;
use sluicegate::config::load;
use sluicegate::engine::{DecisionPolicy, Engine, LocalFallback, Membership};
use sluicegate::kernel::decision::{Reason, Verdict};
use sluicegate::kernel::units::{Hits, Nanos, Revision};
use sluicegate::store;
use sluicegate::store::memory::{MemoryStore, WhenFull};
use sluicegate::store::redis::{Address, RedisStore, RedisTopology, StoreGroup};
use tokio::task::JoinSet;

use super::fallback::{new_check, redis_at};
use super::membership::{start_replica, wait_for_members};
use super::{check as check_service, limits, ready, wait_until_ready};
use crate::support::proxy::{Flow, Proxy, Upstream, Way};
use crate::support::redis::Redis;
use crate::support::resp::Value;
use crate::support::service::Service;
use crate::support::waiting::{PATIENCE, for_a_day_with_a_minute_left, now, soon, until};

const DAY: Nanos = Nanos::from_secs(86_400);

const PAUSE: Duration = Duration::from_millis(5);

const RULES: &str = "domain: d
defaults: {on_store_failure: local}
descriptors:
- {key: window, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: month, rate_limit: {unit: month, requests_per_unit: 10, calendar: {time_zone: UTC}}}
- {key: debt, rate_limit: {per: 100d, requests_per_unit: 10, strategy: gcra}}
- {key: two, rate_limit: {per: 100d, requests_per_unit: 10, strategy: sliding_window}}
- {key: log, rate_limit: {per: 100d, requests_per_unit: 10, strategy: sliding_log}}
- {key: tokens, rate_limit: {per: 100d, requests_per_unit: 10, strategy: gcra, on_excess: charge}}
- {key: second, rate_limit: {unit: second, requests_per_unit: 10}}
- {key: other, rate_limit: {unit: day, requests_per_unit: 10, on_store_failure: allow}}
";

const KEYS: [&str; 5] = ["window", "month", "debt", "two", "log"];

struct ManualReplica {
    store: Redis,
    /// The network between the replica and its store.
    proxy: Option<Proxy>,
    engine: Arc<Engine>,
    memory: Arc<MemoryStore>,
    _tasks: JoinSet<()>,
}

/// A replica with a manual clock over a running Redis.
fn replica() -> ManualReplica {
    for_a_day_with_a_minute_left();
    let behind_a_proxy = || {
        let store = Redis::start();
        let proxy = Proxy::before(Upstream::Unix(store.socket()));
        (store, proxy)
    };
    // A separate thread, because the proxy starts its own tokio runtime, which an async test may
    // not do.
    let (store, proxy) = std::thread::spawn(behind_a_proxy).join().unwrap();
    let at = proxy.address();
    let place = RedisTopology::Tcp(Address { host: at.ip().to_string(), port: at.port() });
    let (redis, connection) = RedisStore::new(redis_at(place, PATIENCE));
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    replica_over((store, Some(proxy)), redis, tasks)
}

fn replica_over(
    (store, proxy): (Redis, Option<Proxy>),
    backend: impl store::Store + 'static,
    mut tasks: JoinSet<()>,
) -> ManualReplica {
    let memory = Arc::new(MemoryStore::new(100, WhenFull::Deny, [1; 16]));
    let membership = Arc::new(Membership::new("me", 1, NonZeroU32::MIN));
    let local = LocalFallback::new(Arc::clone(&memory), membership);
    let now = Nanos::from_secs(crate::support::waiting::unix_seconds());
    let engine = Engine::new(Clock::manual(now), Arc::new(backend), DecisionPolicy::default());
    let engine = Arc::new(engine.with_local_fallback(local));
    publish(&engine, RULES);
    let repaying = Arc::clone(&engine);
    tasks.spawn(async move { repaying.repay_forever().await });
    let replica = ManualReplica { store, proxy, engine, memory, _tasks: tasks };
    replica.wait_until_ready();
    replica
}

fn publish(engine: &Engine, rules: &str) {
    let config = load([("d.yaml", rules.as_bytes())], Revision(1), false).unwrap().0;
    engine.publish(Arc::new(config));
}

impl ManualReplica {
    fn wait_until_ready(&self) {
        let answers =
            || self.engine.store_failure().map_or(Ok(()), |cause| Err(cause.as_str().to_owned()));
        until("redis answers", answers).unwrap();
    }

    async fn check(&self, key: &str, hits: u64) -> (Verdict, Reason, Hits) {
        let decision = self.engine.decide(&new_check(&[key], hits)).await.unwrap();
        let finding = &decision.statuses[0].decision;
        (decision.verdict, finding.reason, finding.headroom.remaining)
    }

    fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().unwrap()
    }

    /// Cuts the connection to Redis. Returns once the engine has noticed the outage.
    async fn disconnect(&self) {
        self.proxy().refuse(true);
        self.proxy().cut();
        let noticed = async {
            while self.engine.store_failure().is_none() {
                tokio::time::sleep(PAUSE).await;
            }
        };
        soon("it is noticed", noticed).await;
    }

    fn reconnect(&self) {
        self.proxy().refuse(false);
    }

    /// Polls with checks of no hits until `key` has `left` hits remaining in Redis.
    async fn wait_for_remaining(&self, key: &str, left: u64) {
        let began = now();
        loop {
            let found = self.check(key, 0).await;
            if !found.1.is_fallback() && found.2 == Hits(left) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{key}: {found:?}, wanted {left}");
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Waits until the local counters are empty, which means that all fallback debt is repaid.
    fn wait_until_repaid(&self) {
        until("the outage is over", || match self.memory.live_keys() {
            0 => Ok(()),
            live => Err(live.to_string()),
        })
        .unwrap();
    }

    fn advance(&self, by: Nanos) {
        let Clock::Manual(clock) = self.engine.clock() else { panic!() };
        clock.advance(by);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fallback_debt_is_charged_to_every_strategy() {
    let replica = replica();
    for key in KEYS {
        assert_eq!(replica.check(key, 3).await.2, Hits(7), "{key}");
    }
    replica.disconnect().await;
    for key in KEYS {
        assert_eq!(replica.check(key, 4).await, (Verdict::Allow, Reason::StoreDownLocal, Hits(6)));
        assert_eq!(replica.check(key, 7).await.0, Verdict::Deny, "{key}: it owes no denied hits");
    }
    replica.reconnect();
    for key in KEYS {
        replica.wait_for_remaining(key, 3).await;
    }
    replica.wait_until_repaid();
    replica.disconnect().await;
    for key in KEYS {
        assert_eq!(replica.check(key, 4).await.2, Hits(6), "{key}: counted from a rest");
    }
    replica.reconnect();
    for key in KEYS {
        replica.wait_for_remaining(key, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_hits_are_dropped_from_the_fallback_debt() {
    let replica = replica();
    for key in KEYS {
        assert_eq!(replica.check(key, 3).await.2, Hits(7), "{key}");
    }
    replica.disconnect().await;
    for key in KEYS {
        assert_eq!(replica.check(key, 4).await.2, Hits(6), "{key}");
    }
    // In ten days GCRA frees one hit; the periods of the sliding log and of the 100-day window have
    // not ended.
    replica.advance(Nanos(10 * DAY.0 + 1));
    replica.reconnect();
    replica.wait_for_remaining("debt", 4).await;
    replica.wait_for_remaining("log", 3).await;
    replica.wait_until_repaid();
    replica.wait_for_remaining("window", 7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refunds_reduce_the_fallback_debt() {
    let replica = replica();
    replica.disconnect().await;
    assert_eq!(replica.check("debt", 5).await.2, Hits(5));
    let mut refund = new_check(&["debt"], 2);
    refund.descriptors[0].cost = sluicegate::kernel::decision::Cost::Refund(Hits(2));
    replica.engine.decide(&refund).await.unwrap();
    replica.reconnect();
    replica.wait_for_remaining("debt", 7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn excess_hits_of_an_outage_are_charged_afterwards() {
    let replica = replica();
    for charge in ["each", "all_or_nothing"] {
        publish(&replica.engine, &format!("charge: {charge}\n{RULES}"));
        replica.disconnect().await;
        assert_eq!(replica.check("tokens", 0).await.0, Verdict::Allow, "{charge}");
        assert_eq!(replica.check("tokens", 25).await.0, Verdict::Deny, "{charge}");
        let denied = (Verdict::Deny, Reason::StoreDownLocal, Hits(0));
        assert_eq!(replica.check("tokens", 0).await, denied, "{charge}");
        replica.reconnect();
        replica.wait_for_remaining("tokens", 0).await;
        assert_eq!(replica.check("tokens", 0).await.1, Reason::OverLimit, "{charge}");
        replica.wait_until_repaid();
        let mut refund = new_check(&["tokens"], 0);
        refund.descriptors[0].cost = sluicegate::kernel::decision::Cost::Refund(Hits(24));
        replica.engine.decide(&refund).await.unwrap();
        assert_eq!(replica.check("tokens", 0).await.2, Hits(9), "{charge}: 25 were charged once");
        refund.descriptors[0].cost = sluicegate::kernel::decision::Cost::Refund(Hits(24));
        replica.engine.decide(&refund).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn forced_denials_add_no_fallback_debt() {
    let replica = replica();
    publish(&replica.engine, &format!("charge: all_or_nothing\n{RULES}"));
    replica.disconnect().await;
    assert_eq!(replica.check("window", 4).await.2, Hits(6));
    replica.reconnect();
    replica.wait_for_remaining("window", 6).await;
    let forced_descriptor = ("d", &[("other", "v")][..]);
    crate::support::engine::force(
        &replica.engine,
        forced_descriptor,
        Verdict::Deny,
        Nanos::from_secs(600),
    );
    // The local counter still has the repaid hits. The fallback debt never exceeds this count.
    replica.disconnect().await;
    for _ in 0..5 {
        let answer = replica.engine.decide(&new_check(&["other", "window"], 1)).await.unwrap();
        let found = &answer.statuses[1].decision;
        assert_eq!((answer.verdict, found.verdict), (Verdict::Deny, Verdict::Allow));
        assert_eq!((found.reason, found.headroom.remaining), (Reason::StoreDownLocal, Hits(6)));
    }
    assert_eq!(replica.check("window", 1).await.2, Hits(5));
    replica.reconnect();
    replica.wait_for_remaining("window", 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn hits_counted_before_a_disconnect_are_not_charged_twice() {
    let replica = replica();
    let proxy = replica.proxy();
    proxy.set(Way::FromStore, Flow::Lose);
    let cut = async {
        until("redis counts", || match replica.store.command(&["DBSIZE"]).int() {
            1 => Ok(()),
            other => Err(other.to_string()),
        })
        .unwrap();
        proxy.cut();
    };
    let (answer, ()) = tokio::join!(replica.check("window", 1), cut);
    assert_eq!(answer, (Verdict::Allow, Reason::StoreDownLocal, Hits(9)));
    proxy.pass();
    replica.wait_until_ready();
    replica.wait_until_repaid();
    assert_eq!(replica.check("window", 0).await.2, Hits(9), "one hit");
}

#[tokio::test(flavor = "multi_thread")]
async fn fallback_debt_of_each_store_is_repaid_independently() {
    for_a_day_with_a_minute_left();
    let (main, mut second) = (Redis::start(), Redis::start());
    let mut tasks = JoinSet::new();
    let mut redis = |store: &Redis| {
        let place = RedisTopology::Unix(store.socket());
        let (redis, connection) = RedisStore::new(redis_at(place, PATIENCE));
        tasks.spawn(connection);
        redis
    };
    let stores = StoreGroup::new(redis(&main)).with_per_second(redis(&second));
    let mut replica = replica_over((main, None), stores, tasks);
    replica.store.kill();
    second.kill();
    until("both are lost", || {
        let inside = replica.engine.store_stats();
        match [inside.connections, inside.per_second_connections].map(|seen| seen.unwrap().closed) {
            [1, 1] => Ok(()),
            gone => Err(format!("{gone:?}")),
        }
    })
    .unwrap();
    for key in ["second", "window", "log"] {
        assert_eq!(replica.check(key, 4).await, (Verdict::Allow, Reason::StoreDownLocal, Hits(6)));
    }
    replica.store.launch(&["--port", "0"]);
    for key in ["window", "log"] {
        replica.wait_for_remaining(key, 6).await;
    }
    assert_eq!(replica.check("second", 1).await.1, Reason::StoreDownLocal);
}

fn stored_hits(store: &Redis) -> i64 {
    let Value::Array(keys) = store.command(&["KEYS", "*local*"]) else { panic!() };
    let [Value::Text(key)] = &keys[..] else { return 0 };
    let mut client = crate::support::resp::Client::connect(&store.socket()).unwrap();
    let Value::Text(value) = client.call(&[b"GET".as_slice(), key]) else { panic!() };
    let value: i64 = String::from_utf8(value).unwrap().parse().unwrap();
    value % 86_400_000_000
}

#[test]
fn outage_loses_no_hits_of_a_fleet() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Redis::start(), limits(100));
    // A late reply before or after the outage would make a replica count locally once more.
    let flags = ["--store-timeout", "1s"];
    let fleet = ["a", "b", "c"].map(|node| start_replica(limits.path(), &store, node, &flags));
    for service in &fleet {
        wait_for_members(service, &["a", "b", "c"]);
    }
    let count_allowed = |service: &Service, times: usize| {
        (0..times).filter(|_| check_service(service, "local", "v") == 200).count()
    };
    assert_eq!(fleet.iter().map(|service| count_allowed(service, 10)).sum::<usize>(), 30);
    store.signal("STOP");
    let allowed: usize = std::thread::scope(|scope| {
        let callers =
            fleet.each_ref().map(|service| scope.spawn(move || count_allowed(service, 20)));
        callers.into_iter().map(|caller| caller.join().unwrap()).sum()
    });
    assert_eq!(allowed, 60);
    store.signal("CONT");
    fleet.iter().for_each(wait_until_ready);
    let log = || fleet.iter().map(|s| ready(s).text() + &s.log()).collect::<String>();
    until("all hits are counted", || match stored_hits(&store) {
        90 => Ok(()),
        other => Err(format!("{other} {}", log())),
    })
    .unwrap();
    let after: usize = fleet.iter().map(|service| count_allowed(service, 10)).sum();
    assert_eq!(after, 10, "{}", log());
}
