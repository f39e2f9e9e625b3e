//! Sluicegate ends and starts again while Envoys have requests in flight.
//!
//! Guarantees:
//! - Requests in flight end with 200 during the outage.
//! - The limit decides in the outage, not the filter's `failure`.
//! - After the outage, all Envoys share the limit again.

use super::{Fleet, FleetTimes, SHARED, STRICT, settle};

const LIMIT: usize = 2;

/// Starts two Envoys and one replica.
fn start(times: FleetTimes, fields: &str) -> Fleet {
    Fleet::start(times, &format!("limit: {LIMIT}, max_duration: 1s, {fields}"), (1, 2))
}

/// Requires that the limit decided all requests of Envoys.
fn expect_no_fallback(fleet: &Fleet, before: u64) {
    assert_eq!(fallbacks(fleet), before, "{}", fleet.envoys[0].log());
}

/// The number of requests that the failure rule decided. Sends a request to each Envoy.
fn fallbacks(fleet: &Fleet) -> u64 {
    let count = |envoy: &crate::e2e::envoy::Envoy| {
        settle(envoy);
        envoy.counter("dynamicmodulescustom.fallback_denied")
            + envoy.counter("dynamicmodulescustom.fallback_allowed")
    };
    fleet.envoys.iter().map(count).sum()
}

#[test]
fn an_outage_rejects_requests_after_the_share_expiry_with_deny() {
    check_deny(SHARED, "shared");
}

#[test]
fn an_outage_rejects_requests_of_a_strict_limit_with_deny() {
    check_deny(STRICT, "strict");
}

fn check_deny(times: FleetTimes, mode: &str) {
    let mut fleet = start(times, &format!("mode: {mode}, on_store_failure: deny"));
    let before = fallbacks(&fleet);
    std::thread::scope(|scope| {
        let held = scope.spawn(|| fleet.get_held_until_allowed(0));
        fleet.upstream.wait_for_in_flight(1);
        fleet.services[0].signal("KILL");
        (0..2).for_each(|envoy| fleet.wait_for_rejection(envoy));
        (0..5).for_each(|_| fleet.expect_rejections());
        fleet.upstream.release(1);
        held.join().unwrap();
        fleet.upstream.wait_for_in_flight(0);
        // The share of the first Envoy may expire a heartbeat later than that of the second.
        fleet.wait_for_rejection(0);
        fleet.expect_rejections();
    });
    expect_no_fallback(&fleet, before);
    fleet.services[0].kill();
    fleet.restart_service(0);
    (0..2).for_each(|envoy| fleet.fill_and_empty(LIMIT, &[envoy]));
    assert_eq!(fleet.upstream.most_in_flight(), LIMIT, "{mode}");
    fleet.wait_until_idle(2);
}

#[test]
fn an_outage_gives_each_envoy_the_whole_limit_with_allow() {
    let mut fleet = start(SHARED, "on_store_failure: allow");
    let before = fallbacks(&fleet);
    let fill = |fleet: &Fleet, envoy: usize| {
        std::thread::scope(|scope| {
            (0..LIMIT).for_each(|_| {
                scope.spawn(|| fleet.get_held_until_allowed(envoy));
            });
        });
    };
    std::thread::scope(|scope| {
        scope.spawn(|| fill(&fleet, 0));
        fleet.upstream.wait_for_in_flight(LIMIT);
        fleet.expect_rejections();
        fleet.services[0].signal("KILL");
        scope.spawn(|| fill(&fleet, 1));
        fleet.upstream.wait_for_in_flight(2 * LIMIT);
        fleet.expect_rejections();
        fleet.upstream.release(2 * LIMIT);
    });
    fleet.upstream.wait_for_in_flight(0);
    expect_no_fallback(&fleet, before);
    fleet.services[0].kill();
    fleet.restart_service(0);
    std::thread::scope(|scope| {
        scope.spawn(|| fill(&fleet, 0));
        fleet.upstream.wait_for_in_flight(LIMIT);
        fleet.wait_for_rejection(1);
        (0..5).for_each(|_| fleet.expect_rejections());
        fleet.upstream.release(LIMIT);
    });
    (0..2).for_each(|envoy| fleet.fill_and_empty(LIMIT, &[envoy]));
    fleet.wait_until_idle(2);
}
