//! Leased limits in real processes: the return of balances at shutdown, rejected settings, and a
//! store with high latency.

use std::time::Duration;

use super::{check, metric, serve, timed_check, wait_until_ready};
use crate::support::proxy::{Flow, Proxy, Upstream};
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::for_a_day_with_a_minute_left;

/// A leased limit of 1,000 hits per day, without overshoot.
fn limits() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let text = "domain: d\ndescriptors:\n\
         - key: k\n  rate_limit: {unit: day, requests_per_unit: 1000, mode: leased, max_overshoot: 0}\n";
    std::fs::write(dir.path().join("d.yaml"), text).unwrap();
    dir
}

const LONG_TIMEOUT: [&str; 4] = ["--store-timeout", "20s", "--listen-drain-delay", "0s"];

fn lease_balance(service: &Service) -> u64 {
    metric(service, "sluicegate_lease_balance_hits")
}

fn lease_calls(service: &Service) -> u64 {
    metric(service, "sluicegate_lease_calls_total")
}

#[test]
fn a_terminated_replica_returns_its_lease_balance() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Redis::start(), limits());
    let mut first = serve(limits.path(), &store.url(), &LONG_TIMEOUT);
    wait_until_ready(&first);
    for _ in 0..200 {
        assert_eq!(check(&first, "k", "v"), 200);
    }
    let (held, calls) = (lease_balance(&first), lease_calls(&first));
    assert!(0 < held && calls < 60, "{held} held after {calls} calls");
    first.terminate();
    first.ended().unwrap();
    let second = serve(limits.path(), &store.url(), &LONG_TIMEOUT);
    wait_until_ready(&second);
    let admitted = (0..820).filter(|_| check(&second, "k", "v") == 200).count();
    assert_eq!(admitted, 800, "{held} were held");
}

#[test]
fn leasing_processes_together_stay_within_the_limit() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Redis::start(), limits());
    let fleet: Vec<_> = (0..3).map(|_| serve(limits.path(), &store.url(), &LONG_TIMEOUT)).collect();
    fleet.iter().for_each(wait_until_ready);
    let admitted = (0..1_500).filter(|turn| check(&fleet[turn % 3], "k", "v") == 200).count();
    let held: usize =
        fleet.iter().map(|service| usize::try_from(lease_balance(service)).unwrap()).sum();
    assert!(admitted + held <= 1_000, "{admitted} and {held} held");
    assert!(900 <= admitted, "{admitted} and {held} held");
}

#[test]
fn compatible_counter_keys_reject_leased_limits() {
    let store = Redis::absent();
    let flags = |limits: &tempfile::TempDir| {
        let flags = ["--store-url", &store.url(), "--compat-store-key-format", "compat"];
        Service::start(limits.path(), &flags.map(str::to_owned))
    };
    let refused = flags(&limits()).err().unwrap();
    assert!(refused.contains("E32") && refused.contains("compat.store.key_format"), "{refused}");
    let dir = limits();
    let text = std::fs::read_to_string(dir.path().join("d.yaml")).unwrap();
    std::fs::write(dir.path().join("d.yaml"), text.replacen("unit: day", "per: 1d", 1)).unwrap();
    assert!(flags(&dir).is_ok(), "windows of our own words have keys of our own");
}

#[test]
fn many_warnings_do_not_hide_the_lease_error() {
    let (store, dir) = (Redis::absent(), limits());
    // Two hundred warnings, the most that are shown for one file.
    let path = dir.path().join("d.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    let warned = (0..200).map(|number| format!("- {{key: k{number}, quota_mode: true}}\n"));
    std::fs::write(&path, text + &warned.collect::<String>()).unwrap();
    let flags = ["--store-url", &store.url(), "--compat-store-key-format", "compat"];
    let refused = Service::start(dir.path(), &flags.map(str::to_owned)).err().unwrap();
    assert!(refused.contains("E32") && refused.contains("`d.k` has `mode: leased`"), "{refused}");
    assert!(refused.contains("d.yaml:3:"), "{refused}");
}

#[test]
fn store_latency_does_not_slow_a_hot_leased_key() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Redis::start(), hot_limits());
    let proxy = Proxy::before(Upstream::Unix(store.socket()));
    proxy.both(Flow::Delay(Duration::from_millis(40)));
    let near = serve(limits.path(), &store.url(), &LONG_TIMEOUT);
    let far = serve(limits.path(), &format!("redis://{}", proxy.address()), &LONG_TIMEOUT);
    let (mut took, mut asked) = ([Vec::new(), Vec::new()], 0);
    for service in [&near, &far] {
        wait_until_ready(service);
    }
    // Alternates between the two services, so that load on the machine affects both equally.
    while asked < 1_000 {
        for (service, took) in [&near, &far].into_iter().zip(&mut took) {
            let (status, time) = timed_check(service, "k", "v");
            assert_eq!(status, 200);
            took.push(time);
        }
        asked += 1;
    }
    let [near, far] = took.map(|mut times| {
        times.drain(..500);
        times.sort_unstable();
        times[times.len() / 2]
    });
    let ratio = far.as_secs_f64() / near.as_secs_f64();
    println!(
        "p50 of a hot key: {near:?} near, {far:?} with the store 80 ms away, ratio {ratio:.2}"
    );
    let rounding = Duration::from_millis(1);
    assert!(far <= near * 6 / 5 + rounding, "{far:?} against {near:?}");
}

/// A limit so large that a balance lasts for several round trips.
fn hot_limits() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let text = "domain: d\ndescriptors:\n\
         - key: k\n  rate_limit: {unit: day, requests_per_unit: 1000000, strategy: gcra, mode: leased, max_overshoot: 10%}\n";
    std::fs::write(dir.path().join("d.yaml"), text).unwrap();
    dir
}
