//! Network faults between the service and its store: delays, silence, closed and half-closed
//! connections. The tests of PostgreSQL and of network namespaces use them, too.
//!
//! The first test prints a table; `benches/RESULTS.md` has some of its rows.

use std::time::Duration;

use futures_util::future::join_all;
use sluicegate::store::redis::{Address, RedisStore, RedisTopology};
use sluicegate::store::{ChargeMode, ChargeOutcome, CounterStore as _};

use super::batch::calls;
use super::fallback::redis_at;
use super::fault_watch::FaultWatch;
use super::faults::{DEADLINE, FLAGS, LIMIT, wait_until_limit_enforced};
use super::reference::{charge_all, charges, native_charge, now as today};
use super::{check, failures_of_any_kind, limits, serve, wait_until_ready};
use crate::support::proxy::{Flow, Proxy, Upstream, Way};
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::{PATIENCE, for_a_day_with_a_minute_left, now, until};

/// A network between the service and its store.
pub(crate) trait Network {
    /// Ends a fault.
    fn heal(&self);
}

impl Network for Proxy {
    fn heal(&self) {
        self.pass();
        self.refuse(false);
    }
}

/// A fault of a network of the type `N`.
pub(crate) struct NetworkFault<N> {
    pub(crate) what: &'static str,
    pub(crate) promised: &'static str,
    pub(crate) strike: fn(&N),
    /// `true` if the fault makes some store calls fail.
    pub(crate) fails: bool,
}

const LONG_DELAY: Duration = Duration::from_millis(600);

pub(crate) const FAULTS: [NetworkFault<Proxy>; 7] = [
    NetworkFault {
        what: "answers 100 ms later",
        promised: "the store counts",
        strike: |proxy| proxy.set(Way::FromStore, Flow::Delay(DEADLINE / 4)),
        fails: false,
    },
    NetworkFault {
        what: "answers 600 ms later",
        promised: "no answer waits longer than the deadline",
        strike: |proxy| proxy.set(Way::FromStore, Flow::Delay(LONG_DELAY)),
        fails: true,
    },
    NetworkFault {
        what: "silence both ways",
        promised: "the same",
        strike: Proxy::go_silent,
        fails: true,
    },
    NetworkFault {
        what: "answers are lost",
        promised: "the same; charged hits stay",
        strike: |proxy| proxy.set(Way::FromStore, Flow::Lose),
        fails: true,
    },
    NetworkFault {
        what: "cut, and refused for a while",
        promised: "every rule holds",
        strike: |proxy| {
            proxy.refuse(true);
            proxy.cut();
        },
        fails: true,
    },
    NetworkFault {
        what: "half closed from the store",
        promised: "every rule holds; a new connection",
        strike: |proxy| proxy.half_close(Way::FromStore),
        fails: false,
    },
    NetworkFault {
        what: "half closed to the store",
        promised: "the same",
        strike: |proxy| proxy.half_close(Way::ToStore),
        fails: false,
    },
];

fn check_during_fault<N>(watch: &mut FaultWatch<'_>, fault: &NetworkFault<N>) {
    let mut passed = 0;
    for number in 0..60 {
        let key = if number % 2 == 0 { "allow" } else { "error" };
        let expected = if key == "allow" { &[200, 429][..] } else { &[200, 429, 400] };
        let status = watch.check(key, fault.what, expected);
        passed += u32::from(key == "error" && status == 200);
    }
    assert!(passed <= LIMIT, "{}: {passed} passed", fault.what);
}

fn wait_until_counting(service: &Service) {
    let counts = || match check(service, "error", "again") {
        200 | 429 => Ok(()),
        status => Err(format!("{status}: {}", service.log())),
    };
    until("it counts again", counts).unwrap();
    wait_until_ready(service);
}

/// Runs the faults one after the other, and prints a row for each. The service has the flags [`FLAGS`].
#[expect(clippy::print_stdout, reason = "what was seen is what a test of a fault is for")]
pub(crate) fn watch_faults<N: Network>(service: &Service, network: &N, faults: &[NetworkFault<N>]) {
    wait_until_ready(service);
    println!(
        "| what happened | promised | slowest answer | late answers | wrong answers | normal after |"
    );
    for fault in faults {
        watch_fault(service, network, fault);
    }
}

fn watch_fault<N: Network>(service: &Service, network: &N, fault: &NetworkFault<N>) {
    wait_until_limit_enforced(service, &format!("before {}", fault.what));
    let before = failures_of_any_kind(service);
    let mut watch = FaultWatch::start(service, fault.what, fault.promised);
    (fault.strike)(network);
    check_during_fault(&mut watch, fault);
    let late = watch.late_calls();
    let failed = failures_of_any_kind(service) - before;
    assert!(!fault.fails || 0 < failed, "{}: nothing failed", fault.what);
    // Five late calls open the circuit breaker. Replies that are only late close it again.
    let is_silent = fault.fails && !fault.what.contains("later");
    assert!(!is_silent || late <= 5, "{}: {late} late", fault.what);
    let began = now();
    network.heal();
    wait_until_counting(service);
    watch.finish_silent(began.elapsed());
    wait_until_limit_enforced(service, &format!("after {}", fault.what));
}

#[test]
fn network_faults_delay_no_decision_beyond_the_timeout() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Redis::start(), limits(LIMIT));
    let proxy = Proxy::before(Upstream::Unix(store.socket()));
    let service = serve(limits.path(), &format!("redis://{}", proxy.address()), &FLAGS);
    watch_faults(&service, &proxy, &FAULTS);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_checks_share_round_trips_to_a_distant_store() {
    for_a_day_with_a_minute_left();
    let (store, proxy) = std::thread::spawn(|| {
        let store = Redis::start();
        let proxy = Proxy::before(Upstream::Unix(store.socket()));
        (store, proxy)
    })
    .join()
    .unwrap();
    proxy.both(Flow::Delay(Duration::from_millis(40)));
    let address = proxy.address();
    let place =
        RedisTopology::Tcp(Address { host: address.ip().to_string(), port: address.port() });
    let (redis, connection) = RedisStore::new(redis_at(place, PATIENCE));
    let _kept = tokio::spawn(connection);
    let answers = || redis.current_failure().map_or(Ok(()), |cause| Err(cause.as_str().to_owned()));
    until("redis is connected", answers).unwrap();
    let (today, asked) = (today(), charges([native_charge("far", 1_000, 1)], ChargeMode::Each));
    let (before, began) = (calls(&store), now());
    let outcomes = join_all((0..3_000).map(|_| charge_all(&redis, today, &asked))).await;
    let took = began.elapsed();
    let stepped = outcomes.iter().filter(|its| matches!(its[0], ChargeOutcome::Decided(_))).count();
    assert_eq!(stepped, 3_000, "every question is answered by the store");
    assert_eq!(outcomes.iter().filter(|its| !its[0].is_denial()).count(), 1_000);
    // Full batches make 13 calls; a machine that starts the checks slowly makes smaller batches.
    let calls = calls(&store) - before;
    assert!(calls <= 300, "{calls} calls");
    println!("observed: 3,000 questions at once to a store 80 ms away: {took:?}, {calls} calls");
}
