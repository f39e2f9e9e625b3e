//! The time until a permit is free after a request or its NGINX ended.
//!
//! Guarantees:
//! - Documented times are judged on a machine without other load, by `scripts/long.sh`.

use std::time::Duration;

use super::{ENDINGS, LONG_READ, TIMEOUT, name, scene};
use crate::e2e::nginx_in_flight::{INTEGRATIONS, NginxScene};
use crate::e2e::release_time::{self, Ending, check_ending, instant_before};
use crate::support::scheduling_delays::retry_disturbed;

/// Documented time until a broken connection of Lua frees its permit.
const AT_ONCE: Duration = Duration::from_millis(3);

/// Longest time until `max_duration` frees a permit: 1 s, and 1 s in which the service finds
/// expired permits.
const DEADLINE: Duration = Duration::from_secs(1 + 1);

#[test]
fn permits_are_released_within_documented_times() {
    for (column, by) in INTEGRATIONS.into_iter().enumerate() {
        let (late, read_timeout) = TIMEOUT;
        for (endings, read_timeout) in [(&ENDINGS[..], LONG_READ), (&[late][..], read_timeout)] {
            let scene = scene(by, read_timeout);
            for &(what, promised, end) in endings {
                let ending = Ending { what, promised: promised[column], end };
                check_ending(name(by), scene.service.metrics, &scene, &ending);
            }
        }
    }
}

/// Sends a signal to an NGINX with two requests in flight, and asserts the time until none is in
/// flight.
fn check_failure(signal: &str, promised: [Duration; 2]) {
    let what = format!("SIG{signal} to NGINX");
    for (column, by) in INTEGRATIONS.into_iter().enumerate() {
        retry_disturbed(|| {
            let scene = NginxScene::with_limit(by, "limit: 9, max_duration: 1s");
            let _clients = [scene.connect(), scene.connect()];
            let _visits = [scene.upstream.next(), scene.upstream.next()];
            let (metrics, nginx) = (scene.service.metrics, scene.nginx.processes());
            let fail = || instant_before(|| nginx.signal(signal));
            release_time::check_failure(name(by), &what, promised[column], metrics, fail)
        });
    }
}

#[test]
fn nginx_exit_frees_permits_immediately_or_by_max_duration() {
    check_failure("TERM", [DEADLINE, AT_ONCE]);
    check_failure("KILL", [DEADLINE, AT_ONCE]);
}

#[test]
fn max_duration_frees_permits_of_a_stopped_nginx() {
    check_failure("STOP", [DEADLINE; 2]);
}
