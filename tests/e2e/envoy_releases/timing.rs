//! The time until a permit is free after a request or its Envoy ended.
//!
//! Guarantees:
//! - Documented times are judged on a machine without other load, by `scripts/long.sh`.
//! - The output is a table; `docs/guides/limit-requests-in-flight.md` has some of its rows.

use std::time::{Duration, Instant};

use super::envoy_failures::{
    DETECTION_TIME, kill, limit_for, lose_network, scene_with_proxy, stop, terminate,
};
use super::{ENDINGS, HOOKS, LIMIT, name, with_endings};
use crate::e2e::envoy::Shipped;
use crate::e2e::in_flight::{EnvoyScene, limit_all_requests};
use crate::e2e::release_time::{self, Ending, check_ending, instant_before};
use crate::support::proxy::Proxy;
use crate::support::scheduling_delays::retry_disturbed;
use crate::support::waiting::now;

/// Documented time until a broken `ext_proc` stream frees its permits.
const AT_ONCE: Duration = Duration::from_millis(3);

/// Longest time until `max_duration` frees a permit: 2 s, and 1 s in which the service finds
/// expired permits. It applies when an exiting Envoy loses releases that are not stream ends.
const DEADLINE: Duration = Duration::from_secs(2 + 1);

#[test]
fn permits_are_released_within_documented_times() {
    for (column, hook) in HOOKS.into_iter().enumerate() {
        let scene = EnvoyScene::changed(hook, &limit_all_requests(LIMIT), with_endings);
        for (what, promised, end) in ENDINGS {
            let ending = Ending { what, promised: promised[column], end };
            check_ending(name(hook), scene.service.metrics, &scene, &ending);
        }
    }
}

/// Makes an Envoy with two requests in flight fail. `at_once` is the documented time for
/// `ext_proc`, whose stream breaks. `fail` returns the start of the measurement.
fn check_failure(what: &str, at_once: Duration, fail: fn(&mut EnvoyScene, &Proxy) -> Instant) {
    for hook in HOOKS {
        retry_disturbed(|| {
            let (mut scene, proxy) = scene_with_proxy(hook, limit_for(hook));
            let _clients = [scene.connect(), scene.connect()];
            let _visits = [scene.upstream.next(), scene.upstream.next()];
            scene.expect_in_flight(2);
            let promised = if let Shipped::ExtProc = hook { at_once } else { DEADLINE };
            let metrics = scene.service.metrics;
            release_time::check_failure(name(hook), what, promised, metrics, || {
                fail(&mut scene, &proxy)
            })
        });
    }
}

#[test]
fn envoy_sigterm_frees_permits_within_documented_time() {
    check_failure("SIGTERM to Envoy", AT_ONCE, |scene, proxy| {
        instant_before(|| terminate(scene, proxy))
    });
}

#[test]
fn envoy_sigkill_frees_permits_within_documented_time() {
    // The measurement starts after the kill, whose duration is not part of the documented time.
    check_failure("SIGKILL to Envoy", AT_ONCE, |scene, proxy| {
        kill(scene, proxy);
        now()
    });
}

#[test]
fn envoy_sigstop_frees_permits_within_documented_time() {
    check_failure("SIGSTOP to Envoy", DETECTION_TIME, |scene, proxy| {
        instant_before(|| stop(scene, proxy))
    });
}

#[test]
fn network_loss_frees_permits_within_documented_time() {
    check_failure("no network between Envoy and the service", DETECTION_TIME, |scene, proxy| {
        instant_before(|| lose_network(scene, proxy))
    });
}
