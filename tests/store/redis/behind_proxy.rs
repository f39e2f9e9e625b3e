//! Redis behind twemproxy, which forwards no `SCRIPT` and routes each call by its first key.

use std::time::Duration;

use sluicegate::cli::CommandOutcome;
use sluicegate::kernel::budget::{Amount, BudgetPeriod, BudgetTerms, HoldId, OnExpiry};
use sluicegate::kernel::key::CounterKey;
use sluicegate::kernel::rate::fixed_window::Windows;
use sluicegate::kernel::units::Nanos;
use sluicegate::store::budgets::{BudgetAction, BudgetCall, BudgetPart};
use sluicegate::store::redis::{RedisOptions, RedisStore, RedisTopology};
use sluicegate::store::{BudgetStore as _, CounterStore as _, Placement, StoreFailure};

use super::exact_limit::assert_exact_limit;
use super::{check, check_all, limits, serve, wait_until_ready};
use crate::cli::doctor::doctor_at;
use crate::support::http1;
use crate::support::redis::Redis;
use crate::support::resp::Value;
use crate::support::service::Service;
use crate::support::twemproxy::Twemproxy;
use crate::support::waiting::{for_a_day_with_a_minute_left, until};

const SERVERS: usize = 3;

fn behind_proxy() -> ([Redis; SERVERS], Twemproxy) {
    let servers = [(); SERVERS].map(|()| Redis::start());
    let proxy = Twemproxy::start(&servers);
    (servers, proxy)
}

/// The names of the counters in a server.
fn counters(server: &Redis) -> Vec<String> {
    let keys = server.command(&["KEYS", "*"]);
    let names = keys.array().iter().map(Value::text);
    names.filter(|name| !name.contains("{fleet}")).collect()
}

#[test]
fn four_processes_behind_twemproxy_allow_exactly_the_limit() {
    let (_servers, proxy) = behind_proxy();
    assert_exact_limit(&proxy.url(), &[]);
}

/// One check has counters on several servers. Two processes send checks at the same time, so that
/// a batch of calls would mix their counters.
#[test]
fn each_counter_is_on_one_server_and_exact() {
    const LIMIT: u32 = 20;
    for_a_day_with_a_minute_left();
    let ((servers, proxy), limits) = (behind_proxy(), limits(LIMIT));
    let fleet = [(); 2].map(|()| serve(limits.path(), &proxy.url(), &[]));
    fleet.iter().for_each(wait_until_ready);
    let values: Vec<String> = (0..12).map(|number| format!("v{number}")).collect();
    let pair = |at: usize| [("deny", &*values[at]), ("error", &*values[(at + 1) % values.len()])];
    let allowed: usize = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..values.len())
            .map(|at| {
                let (service, entries) = (&fleet[at % 2], pair(at));
                scope.spawn(move || {
                    let sent = (0..2 * LIMIT).map(|_| check_all(service, &entries).status);
                    sent.filter(|status| *status == 200).count()
                })
            })
            .collect();
        callers.into_iter().map(|caller| caller.join().unwrap()).sum()
    });
    // Each counter belongs to one caller, and both counters of a check have the same limit.
    assert_eq!(allowed, values.len() * LIMIT as usize);
    let mut names: Vec<_> = servers.iter().flat_map(counters).collect();
    let all = names.len();
    names.sort();
    names.dedup();
    assert_eq!(all, names.len(), "a counter is on two servers");
    let used = servers.iter().filter(|server| !counters(server).is_empty()).count();
    assert!(2 <= used, "{used} servers are used");
    let log = fleet[0].log();
    assert_eq!(
        log.matches("redis is behind a proxy that does not forward SCRIPT").count(),
        1,
        "{log}"
    );
}

#[test]
fn doctor_names_the_proxy() {
    let (_servers, proxy) = behind_proxy();
    let report = until("a report", || match doctor_at(&proxy.url(), &[]) {
        report if report.1.contains("findings: 0 errors, 1 warning") => Ok(report),
        report => Err(format!("{report:?}")),
    });
    let (outcome, out, _) = report.unwrap();
    assert_eq!(outcome, CommandOutcome::Success, "{out}");
    assert!(out.contains("a proxy that does not forward SCRIPT"), "{out}");
}

/// The proxy routes a call by its first key, so it would look for the other budgets on a wrong server.
#[tokio::test]
async fn each_budget_call_behind_a_proxy_has_one_budget() {
    let (_servers, proxy) = std::thread::spawn(behind_proxy).join().unwrap();
    let topology = RedisTopology::Unix(proxy.socket().into());
    let (store, connection) = RedisStore::new(RedisOptions {
        call_timeout: Duration::from_secs(20),
        ..RedisOptions::new(topology)
    });
    tokio::spawn(connection);
    while store.current_failure().is_some() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let part = |value| BudgetPart {
        key: CounterKey::budget("llm", [("org", value)].into_iter(), 0),
        placement: Placement::by_domain("llm"),
        terms: BudgetTerms {
            amount: Amount(100),
            period: BudgetPeriod::Each(Windows::Every(Nanos::from_secs(3_600))),
            time_limit: Nanos::from_secs(60),
            on_expiry: OnExpiry::Charge,
            is_enforced: true,
        },
        amount: Amount(30),
    };
    let reserve = async |values: &[&'static str]| {
        let budgets = values.iter().map(|value| part(*value)).collect();
        let call = BudgetCall { id: HoldId(7, 1), action: BudgetAction::Reserve, budgets };
        store.call_budgets(Nanos(0), &call).wait().await.map(|reply| reply.views[0].held)
    };
    assert_eq!(reserve(&["a", "b"]).await, Err(StoreFailure::Other));
    for value in ["a", "b", "c", "d"] {
        assert_eq!(reserve(&[value]).await, Ok(Amount(30)));
    }
}

const FIELD: &str = "tests/field/redis-proxy-without-script/limits";

/// A case from the field: `sluicegate ratelimit`, with a Redis whose user may not run `SCRIPT`, and
/// behind twemproxy.
#[test]
fn limits_of_envoyproxy_ratelimit_need_no_script_command() {
    let store = Redis::start();
    store.command(&["ACL", "SETUSER", "p", "on", ">pw", "~*", "&*", "+@all", "-script"]);
    let (_servers, proxy) = behind_proxy();
    let root = std::fs::canonicalize(FIELD).unwrap();
    let store_socket = store.socket().display().to_string();
    for (socket, auth) in [(&store_socket, "p:pw"), (&proxy.socket(), "")] {
        let service = Service::start_as_ratelimit(&[
            ("RUNTIME_ROOT", root.to_str().unwrap()),
            ("RUNTIME_SUBDIRECTORY", "rl"),
            ("REDIS_SOCKET_TYPE", "unix"),
            ("REDIS_URL", socket),
            ("REDIS_AUTH", auth),
            ("USE_STATSD", "false"),
        ])
        .unwrap();
        let body = br#"{"domain":"app","descriptors":[{"entries":[{"key":"ip","value":"1"}]}]}"#;
        let status = || http1::call(service.http, "POST", "/json", &[], Some(body)).unwrap().status;
        until("a check", || match status() {
            200 => Ok(()),
            other => Err(format!("{other}: {}", service.log())),
        })
        .unwrap();
        assert_eq!([status(), status()], [200, 200]);
    }
}

#[test]
fn a_proxy_by_setting_counts_until_it_stops() {
    for_a_day_with_a_minute_left();
    let ((servers, proxy), limits) = (behind_proxy(), limits(2));
    let service = serve(limits.path(), &proxy.url(), &["--store-redis-proxy", "on"]);
    wait_until_ready(&service);
    assert_eq!([check(&service, "deny", "a"), check(&service, "deny", "a")], [200, 200]);
    drop(proxy);
    assert_eq!(check(&service, "allow", "a"), 200, "without a store");
    assert_eq!(servers.iter().map(|server| counters(server).len()).sum::<usize>(), 1);
}
