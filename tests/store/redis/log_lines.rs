//! The number of log lines during faults of Redis.
//!
//! Guarantees:
//! - Each kind of fault logs few lines.
//! - No line has the name of the client library.

use crate::support::log_lines::{assert_line_count, count, few_lines_during};
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::{for_a_day_with_a_minute_left, now, until};

use super::{check, limits, serve, wait_until_ready};

/// The Redis user of a deployment without the right to run scripts.
const NO_SCRIPTS: [&str; 6] = ["on", ">pw", "~sluicegate*", "+@read", "+@write", "+ping"];

/// Repeats a fault with checks, and returns the log lines of that time.
fn lines_during(service: &Service, mut fault: impl FnMut()) -> Vec<String> {
    let lines = few_lines_during(service, || {
        fault();
        check(service, "allow", "k");
    });
    assert!(!lines.iter().any(|line| line.contains("fred")), "{}", lines.join("\n"));
    lines
}

#[test]
fn lost_connections_are_logged_a_few_times_a_minute() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Redis::start(), limits(1_000));
    let service = serve(limits.path(), &store.url(), &[]);
    wait_until_ready(&service);
    let lines = lines_during(&service, || {
        store.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    });
    assert!(0 < count(&lines, "redis connection lost"), "{}", lines.join("\n"));
}

#[test]
fn an_absent_redis_is_logged_at_begin_and_end() {
    for_a_day_with_a_minute_left();
    let (mut store, limits) = (Redis::absent(), limits(1_000));
    let service = serve(limits.path(), &store.url(), &[]);
    lines_during(&service, || {});
    store.launch(&["--port", "0"]);
    wait_until_ready(&service);
    let ends = || match service.log().matches("redis is available").count() {
        0 => Err(service.log()),
        lines => Ok(lines),
    };
    assert_eq!(until("the end of the outage is logged", ends), Ok(1));
}

#[test]
fn a_user_without_scripts_gets_one_line_with_the_fix() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Redis::start(), limits(1_000));
    store.command(&[&["ACL", "SETUSER", "rl"][..], &NO_SCRIPTS].concat());
    let socket = store.socket();
    let url = format!("redis+unix://rl:pw@{}", socket.display());
    let began = now();
    let service = serve(limits.path(), &url, &[]);
    let log = until("the refusal is logged", || match service.log() {
        log if log.contains("NOPERM") => Ok(log),
        log => Err(log),
    });
    let log = log.unwrap();
    assert!(log.contains("allow EVAL and EVALSHA"), "{log}");
    lines_during(&service, || {});
    let log = service.log();
    assert_line_count(log.matches("redis unavailable").count(), 1, began, &log);
}

#[test]
fn a_refused_info_is_logged_once() {
    for_a_day_with_a_minute_left();
    let (store, limits, began) = (Redis::start(), limits(1_000), now());
    store.command(&["ACL", "SETUSER", "default", "-info"]);
    // On a busy machine, two closed connections in a row would look like a proxy.
    let flags = ["--store-timeout", "9s", "--store-redis-proxy", "off"];
    let service = serve(limits.path(), &store.url(), &flags);
    wait_until_ready(&service);
    lines_during(&service, || {
        store.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    });
    let log = service.log();
    assert_line_count(log.matches("redis rejected INFO").count(), 1, began, &log);
}
