//! Leased limits in real processes: what goes back at the end, what is refused, and a store far away.

use std::time::Duration;

use super::{Store, ask, metric, serve, timed, wait_until_whole};
use crate::service::Service;
use crate::support::proxy::{Flow, Proxy, Upstream};
use crate::waiting::for_a_day_with_a_minute_left;

/// A thousand a day, of which none pass above the window.
fn limits() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let text = "domain: d\ndescriptors:\n\
         - key: k\n  rate_limit: {unit: day, requests_per_unit: 1000, mode: leased, max_overshoot: 0}\n\
         - key: all\n  rate_limit: {unit: day, requests_per_unit: 1000}\n";
    std::fs::write(dir.path().join("d.yaml"), text).unwrap();
    dir
}

const PATIENT: [&str; 2] = ["--backend-deadline", "20s"];

fn held(service: &Service) -> u64 {
    metric(service, "sluicegate_lease_balance_hits")
}

fn calls(service: &Service) -> u64 {
    metric(service, "sluicegate_lease_calls_total")
}

#[test]
fn a_replica_that_is_told_to_stop_gives_back_what_it_holds() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Store::running(), limits());
    let mut first = serve(limits.path(), &store.url(), &PATIENT);
    wait_until_whole(&first);
    for _ in 0..200 {
        assert_eq!(ask(&first, "k", "v"), 200);
    }
    let (held, calls) = (held(&first), calls(&first));
    assert!(0 < held && calls < 60, "{held} held after {calls} calls");
    first.terminate();
    first.ended().unwrap();
    let second = serve(limits.path(), &store.url(), &PATIENT);
    wait_until_whole(&second);
    let admitted = (0..820).filter(|_| ask(&second, "k", "v") == 200).count();
    assert_eq!(admitted, 800, "{held} were held");
}

#[test]
fn the_processes_of_a_fleet_admit_the_limit_of_a_window_between_them() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Store::running(), limits());
    let fleet: Vec<_> = (0..3).map(|_| serve(limits.path(), &store.url(), &PATIENT)).collect();
    fleet.iter().for_each(wait_until_whole);
    let admitted = (0..1_500).filter(|turn| ask(&fleet[turn % 3], "k", "v") == 200).count();
    let held: usize = fleet.iter().map(|service| usize::try_from(held(service)).unwrap()).sum();
    assert!(admitted + held <= 1_000, "{admitted} and {held} held");
    assert!(900 <= admitted, "{admitted} and {held} held");
}

#[test]
fn a_counter_that_the_reference_shares_is_not_leased() {
    let store = Store::absent();
    let flags = |limits: &tempfile::TempDir| {
        let flags = ["--backend", &store.url(), "--counter-keys", "envoyproxy"];
        Service::start(limits.path(), &flags.map(str::to_owned))
    };
    let refused = flags(&limits()).err().unwrap();
    assert!(refused.contains("E32") && refused.contains("counter_keys"), "{refused}");
    let dir = limits();
    let text = std::fs::read_to_string(dir.path().join("d.yaml")).unwrap();
    std::fs::write(dir.path().join("d.yaml"), text.replacen("unit: day", "per: 1d", 1)).unwrap();
    assert!(flags(&dir).is_ok(), "windows of our own words have keys of our own");
}

#[test]
fn a_counter_that_the_reference_shares_is_not_leased_whatever_else_is_said_of_its_file() {
    let (store, dir) = (Store::absent(), limits());
    // Two hundred warnings: as many findings as are shown of a file.
    let path = dir.path().join("d.yaml");
    let text = std::fs::read_to_string(&path).unwrap();
    let warned = (0..200).map(|number| format!("- {{key: k{number}, quota_mode: true}}\n"));
    std::fs::write(&path, text + &warned.collect::<String>()).unwrap();
    let flags = ["--backend", &store.url(), "--counter-keys", "envoyproxy"];
    let refused = Service::start(dir.path(), &flags.map(str::to_owned)).err().unwrap();
    assert!(refused.contains("E32") && refused.contains("`d.k` has `mode: leased`"), "{refused}");
    assert!(refused.contains("d.yaml:3:"), "{refused}");
}

#[test]
fn a_hot_key_costs_its_caller_no_more_where_the_store_is_80_ms_away() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Store::running(), hot());
    let proxy = Proxy::before(Upstream::Unix(store.socket()));
    proxy.both(Flow::Delay(Duration::from_millis(40)));
    let near = serve(limits.path(), &store.url(), &PATIENT);
    let far = serve(limits.path(), &format!("redis://{}", proxy.address()), &PATIENT);
    let (mut took, mut asked) = ([Vec::new(), Vec::new()], 0);
    for service in [&near, &far] {
        wait_until_whole(service);
    }
    // In turns, so that whatever else the machine does falls on both alike.
    while asked < 1_500 {
        for (service, took) in [&near, &far].into_iter().zip(&mut took) {
            let (status, time) = timed(service, "k", "v");
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
    assert!(ratio <= 1.2, "{far:?} against {near:?}");
}

/// So much that a balance lasts for some round trips.
fn hot() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let text = "domain: d\ndescriptors:\n\
         - key: k\n  rate_limit: {unit: day, requests_per_unit: 1000000, strategy: gcra, mode: leased, max_overshoot: 10%}\n";
    std::fs::write(dir.path().join("d.yaml"), text).unwrap();
    dir
}

#[test]
fn what_is_held_is_answered_at_once_however_far_away_the_store_is() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Store::running(), limits());
    let proxy = Proxy::before(Upstream::Unix(store.socket()));
    let far = Duration::from_millis(40);
    proxy.both(Flow::Delay(far));
    let service = serve(limits.path(), &format!("redis://{}", proxy.address()), &PATIENT);
    wait_until_whole(&service);
    let (_, strict) = timed(&service, "all", "v");
    assert!(2 * far <= strict, "{strict:?}");
    for _ in 0..50 {
        assert_eq!(ask(&service, "k", "v"), 200);
    }
    let mut times: Vec<_> = (0..200).map(|_| timed(&service, "k", "v").1).collect();
    times.sort_unstable();
    assert!(times[100] < far, "half of all took {:?} and more", times[100]);
}
