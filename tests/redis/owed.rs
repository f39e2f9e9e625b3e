//! Hits that were admitted while Redis was away are charged to it when it is back.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use sluicegate::backend::Backend;
use sluicegate::backend::memory::{Memory, WhenFull};
use sluicegate::backend::redis::{Address, Place, Redis, Stores};
use sluicegate::clock::Clock;
use sluicegate::config::load;
use sluicegate::engine::{Engine, Local, Membership, Policy};
use sluicegate::kernel::decision::{Reason, Verdict};
use sluicegate::kernel::units::{Hits, Nanos, Revision};
use tokio::task::JoinSet;

use super::degrade::{question, redis_at};
use super::fleet::{member_within, sees};
use super::{Store, ask as ask_service, limits, ready, wait_until_whole};
use crate::service::Service;
use crate::support::proxy::{Flow, Proxy, Upstream, Way};
use crate::support::resp::Value;
use crate::waiting::{for_a_day_with_a_minute_left, soon, until};

const DAY: Nanos = Nanos::from_secs(86_400);

const RULES: &str = "domain: d
defaults: {on_backend_failure: local}
descriptors:
- {key: window, rate_limit: {unit: day, requests_per_unit: 10}}
- {key: month, rate_limit: {unit: month, requests_per_unit: 10, calendar: {time_zone: UTC}}}
- {key: debt, rate_limit: {per: 100d, requests_per_unit: 10, strategy: gcra}}
- {key: two, rate_limit: {per: 100d, requests_per_unit: 10, strategy: sliding_window}}
- {key: log, rate_limit: {per: 100d, requests_per_unit: 10, strategy: sliding_log}}
- {key: second, rate_limit: {unit: second, requests_per_unit: 10}}
- {key: other, rate_limit: {unit: day, requests_per_unit: 10, on_backend_failure: allow}}
";

const KEYS: [&str; 5] = ["window", "month", "debt", "two", "log"];

struct Replica {
    store: Store,
    engine: Arc<Engine>,
    memory: Arc<Memory>,
    _tasks: JoinSet<()>,
}

/// A replica whose clock is set by hand, a day in from the present, over a Redis that answers.
fn replica() -> Replica {
    for_a_day_with_a_minute_left();
    let store = Store::running();
    let place = Place::Unix(store.socket());
    let (redis, connection) = Redis::new(redis_at(place, Duration::from_millis(500)));
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    over(store, redis, tasks)
}

/// The same over `backend`, which `tasks` keep connected to `store`.
fn over(store: Store, backend: impl Backend + 'static, mut tasks: JoinSet<()>) -> Replica {
    let memory = Arc::new(Memory::new(100, WhenFull::Deny, [1; 16]));
    let membership = Arc::new(Membership::new("me", 1, NonZeroU32::MIN));
    let local = Local::new(Arc::clone(&memory), membership);
    let now = Nanos::from_secs(crate::waiting::unix_seconds());
    let engine = Engine::new(Clock::manual(now), Arc::new(backend), Policy::default());
    let engine = Arc::new(engine.with_local(local));
    publish(&engine, RULES);
    let paying = Arc::clone(&engine);
    tasks.spawn(async move { paying.pay_on().await });
    let replica = Replica { store, engine, memory, _tasks: tasks };
    replica.is_whole();
    replica
}

fn publish(engine: &Engine, rules: &str) {
    let config = load([("d.yaml", rules.as_bytes())], Revision(1), false).unwrap().0;
    engine.publish(Arc::new(config));
}

impl Replica {
    fn is_whole(&self) {
        let answers =
            || self.engine.trouble().map_or(Ok(()), |cause| Err(cause.as_str().to_owned()));
        until("redis answers", answers).unwrap();
    }

    async fn ask(&self, key: &str, hits: u64) -> (Verdict, Reason, Hits) {
        let answer = self.engine.decide(&question(&[key], hits)).await.unwrap();
        let finding = &answer.statuses[0].finding;
        (answer.verdict, finding.reason, finding.room.remaining)
    }

    /// Stops Redis; from when this returns nobody asks it.
    async fn stop(&self) {
        self.stop_asking("other", 1).await;
    }

    /// The same by questions of so many hits for `key`.
    async fn stop_asking(&self, key: &str, hits: u64) {
        self.store.signal("STOP");
        let noticed = async {
            while self.engine.trouble().is_none() {
                self.ask(key, hits).await;
            }
        };
        soon("it is noticed", noticed).await;
    }

    /// Redis goes on, and is left alone until `key` has `left` there.
    async fn comes_to(&self, key: &str, left: u64) {
        let mut found = Vec::new();
        for _ in 0..2_000 {
            found = vec![self.ask(key, 0).await];
            if !found[0].1.is_degraded() && found[0].2 == Hits(left) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("{key}: {found:?}, wanted {left}");
    }

    /// Waits until nothing is counted here, which is when all is paid.
    fn has_forgotten(&self) {
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
async fn what_was_admitted_in_an_outage_is_charged_to_every_kind_of_counter_and_forgotten_here() {
    let replica = replica();
    for key in KEYS {
        assert_eq!(replica.ask(key, 3).await.2, Hits(7), "{key}");
    }
    replica.stop().await;
    for key in KEYS {
        assert_eq!(replica.ask(key, 4).await, (Verdict::Admit, Reason::BackendDownLocal, Hits(6)));
        assert_eq!(replica.ask(key, 7).await.0, Verdict::Deny, "{key}: it owes no denied hits");
    }
    replica.store.signal("CONT");
    for key in KEYS {
        replica.comes_to(key, 3).await;
    }
    replica.has_forgotten();
    replica.stop().await;
    for key in KEYS {
        assert_eq!(replica.ask(key, 4).await.2, Hits(6), "{key}: counted from a rest");
    }
    replica.store.signal("CONT");
    for key in KEYS {
        replica.comes_to(key, 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_over_when_redis_is_back_is_owed_no_more() {
    let replica = replica();
    for key in KEYS {
        assert_eq!(replica.ask(key, 3).await.2, Hits(7), "{key}");
    }
    replica.stop().await;
    for key in KEYS {
        assert_eq!(replica.ask(key, 4).await.2, Hits(6), "{key}");
    }
    // One hit of the debt drains in ten days; no other window or log is over.
    replica.advance(Nanos(10 * DAY.0 + 1));
    replica.store.signal("CONT");
    replica.comes_to("debt", 4).await;
    replica.comes_to("log", 3).await;
    replica.has_forgotten();
    replica.comes_to("window", 7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refunds_in_an_outage_lessen_what_is_owed() {
    let replica = replica();
    replica.stop().await;
    assert_eq!(replica.ask("debt", 5).await.2, Hits(5));
    let mut back = question(&["debt"], 2);
    back.descriptors[0].cost = sluicegate::kernel::decision::Cost::Refund(Hits(2));
    replica.engine.decide(&back).await.unwrap();
    replica.store.signal("CONT");
    replica.comes_to("debt", 7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_limit_held_shut_denies_in_an_outage_is_not_owed() {
    let replica = replica();
    publish(&replica.engine, &format!("charge: all_or_nothing\n{RULES}"));
    replica.stop().await;
    assert_eq!(replica.ask("window", 4).await.2, Hits(6));
    replica.store.signal("CONT");
    replica.comes_to("window", 6).await;
    let shut = ("d", &[("other", "v")][..]);
    replica.engine.freeze(shut, Verdict::Deny, Nanos::from_secs(600)).unwrap();
    // Peeks keep what was paid counted here: no more is ever charged than is, whatever is owed.
    replica.stop_asking("window", 0).await;
    for _ in 0..5 {
        let answer = replica.engine.decide(&question(&["other", "window"], 1)).await.unwrap();
        let found = &answer.statuses[1].finding;
        assert_eq!((answer.verdict, found.verdict), (Verdict::Deny, Verdict::Admit));
        assert_eq!((found.reason, found.room.remaining), (Reason::BackendDownLocal, Hits(6)));
    }
    assert_eq!(replica.ask("window", 1).await.2, Hits(5));
    replica.store.signal("CONT");
    replica.comes_to("window", 5).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_redis_counted_before_its_connection_was_cut_is_not_charged_again() {
    for_a_day_with_a_minute_left();
    let behind_a_proxy = || {
        let store = Store::running();
        let proxy = Proxy::before(Upstream::Unix(store.socket()));
        (store, proxy)
    };
    // Elsewhere: the proxy has a runtime of its own.
    let (store, proxy) = std::thread::spawn(behind_a_proxy).join().unwrap();
    let at = proxy.address();
    let place = Place::Tcp(Address { host: at.ip().to_string(), port: at.port() });
    let (redis, connection) = Redis::new(redis_at(place, Duration::from_secs(5)));
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let replica = over(store, redis, tasks);
    proxy.set(Way::FromStore, Flow::Lose);
    let cut = async {
        until("redis counts", || match replica.store.tell(&["DBSIZE"]).int() {
            1 => Ok(()),
            other => Err(other.to_string()),
        })
        .unwrap();
        proxy.cut();
    };
    let (answer, ()) = tokio::join!(replica.ask("window", 1), cut);
    assert_eq!(answer, (Verdict::Admit, Reason::BackendDownLocal, Hits(9)));
    proxy.pass();
    replica.is_whole();
    replica.has_forgotten();
    assert_eq!(replica.ask("window", 0).await.2, Hits(9), "one hit");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_back_is_paid_while_another_is_away() {
    for_a_day_with_a_minute_left();
    let (main, mut second) = (Store::running(), Store::running());
    let mut tasks = JoinSet::new();
    let mut redis = |store: &Store| {
        let place = Place::Unix(store.socket());
        let (redis, connection) = Redis::new(redis_at(place, Duration::from_millis(500)));
        tasks.spawn(connection);
        redis
    };
    let stores = Stores::new(redis(&main)).with_per_second(redis(&second));
    let mut replica = over(main, stores, tasks);
    replica.store.kill();
    second.kill();
    until("both are lost", || {
        let inside = replica.engine.inside();
        match [inside.connections, inside.per_second].map(|seen| seen.unwrap().gone) {
            [1, 1] => Ok(()),
            gone => Err(format!("{gone:?}")),
        }
    })
    .unwrap();
    for key in ["second", "window", "log"] {
        assert_eq!(replica.ask(key, 4).await, (Verdict::Admit, Reason::BackendDownLocal, Hits(6)));
    }
    replica.store.start(&["--port", "0"]);
    for key in ["window", "log"] {
        replica.comes_to(key, 6).await;
    }
    assert_eq!(replica.ask("second", 1).await.1, Reason::BackendDownLocal);
}

/// What the store's one counter of a day holds.
fn counted(store: &Store) -> i64 {
    let Value::Array(keys) = store.tell(&["KEYS", "*local*"]) else { panic!() };
    let [Value::Text(key)] = &keys[..] else { return 0 };
    let mut client = crate::support::resp::Client::connect(&store.socket()).unwrap();
    let Value::Text(value) = client.call(&[b"GET".as_slice(), key]) else { panic!() };
    let value: i64 = String::from_utf8(value).unwrap().parse().unwrap();
    value % 86_400_000_000
}

#[test]
fn after_an_outage_what_remains_is_the_limit_less_the_hits_before_and_in_it() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Store::running(), limits(100));
    // Who is answered late after the outage, on a machine that stands still, counts by itself once more.
    let fleet =
        ["a", "b", "c"].map(|node| member_within("500ms", limits.path(), &store, node, &[]));
    for service in &fleet {
        sees(service, &["a", "b", "c"]);
    }
    let asks = |service: &Service, times: usize| {
        (0..times).filter(|_| ask_service(service, "local", "v") == 200).count()
    };
    assert_eq!(fleet.iter().map(|service| asks(service, 10)).sum::<usize>(), 30);
    store.signal("STOP");
    assert_eq!(fleet.iter().map(|service| asks(service, 20)).sum::<usize>(), 60);
    store.signal("CONT");
    fleet.iter().for_each(wait_until_whole);
    let log = || fleet.iter().map(|s| ready(s).text() + &s.log()).collect::<String>();
    until("all hits are counted", || match counted(&store) {
        90 => Ok(()),
        other => Err(format!("{other} {}", log())),
    })
    .unwrap();
    let after: usize = fleet.iter().map(|service| asks(service, 10)).sum();
    assert_eq!(after, 10, "{}", log());
}
