//! The number of log lines during faults of Redis.
//!
//! Guarantees:
//! - Each kind of fault logs at most [`MAX_LINES`] in [`FAULT_TIME`].
//! - No line has the name of the client library.

use std::time::Duration;

use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::{for_a_day_with_a_minute_left, now, until};

use super::{check, limits, serve, wait_until_ready};

const FAULT_TIME: Duration = Duration::from_secs(20);
const MAX_LINES: usize = 20;

/// The Redis user of a deployment without the right to run scripts.
const NO_SCRIPTS: [&str; 6] = ["on", ">pw", "~sluicegate*", "+@read", "+@write", "+ping"];

/// Repeats a fault with checks for [`FAULT_TIME`], and returns the log lines of that time.
fn lines_during(service: &Service, mut fault: impl FnMut()) -> Vec<String> {
    let (began, before) = (now(), service.log().lines().count());
    while now() - began < FAULT_TIME {
        fault();
        check(service, "allow", "k");
        std::thread::sleep(Duration::from_millis(100));
    }
    service.log().lines().skip(before).map(str::to_owned).collect()
}

fn assert_few(lines: &[String]) {
    assert!(lines.len() <= MAX_LINES, "{} lines:\n{}", lines.len(), lines.join("\n"));
    assert!(!lines.iter().any(|line| line.contains("fred")), "{}", lines.join("\n"));
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
    assert_few(&lines);
    let lost = lines.iter().filter(|line| line.contains("redis connection lost")).count();
    assert!(0 < lost, "{}", lines.join("\n"));
}

#[test]
fn an_absent_redis_is_logged_at_begin_and_end() {
    for_a_day_with_a_minute_left();
    let (mut store, limits) = (Redis::absent(), limits(1_000));
    let service = serve(limits.path(), &store.url(), &[]);
    assert_few(&lines_during(&service, || {}));
    store.launch(&["--port", "0"]);
    wait_until_ready(&service);
    let ends = || match service.log().matches("redis is available").count() {
        1 => Ok(()),
        _ => Err(service.log()),
    };
    until("the end of the outage is logged", ends).unwrap();
}

#[test]
fn a_user_without_scripts_gets_one_line_with_the_fix() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Redis::start(), limits(1_000));
    store.command(&[&["ACL", "SETUSER", "rl"][..], &NO_SCRIPTS].concat());
    let socket = store.socket();
    let url = format!("redis+unix://rl:pw@{}", socket.display());
    let service = serve(limits.path(), &url, &[]);
    let log = until("the refusal is logged", || match service.log() {
        log if log.contains("NOPERM") => Ok(log),
        log => Err(log),
    });
    let log = log.unwrap();
    assert!(log.contains("allow EVALSHA and SCRIPT LOAD"), "{log}");
    assert_few(&lines_during(&service, || {}));
    assert_eq!(service.log().matches("redis unavailable").count(), 1, "{}", service.log());
}

#[test]
fn a_refused_info_is_logged_once() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Redis::start(), limits(1_000));
    store.command(&["ACL", "SETUSER", "default", "-info"]);
    let service = serve(limits.path(), &store.url(), &[]);
    wait_until_ready(&service);
    assert_few(&lines_during(&service, || {
        store.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }));
    assert_eq!(service.log().matches("redis rejected INFO").count(), 1, "{}", service.log());
}
