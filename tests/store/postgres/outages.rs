//! Outages of PostgreSQL.
//!
//! All limits are fixed windows of a day, because GCRA would free hits during a test.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use super::{LIMIT, assert_limit_enforced};
use crate::store::redis::{check, failures, limits, ready, serve, wait_until_ready};
use crate::support::http1;
use crate::support::postgres::Postgres;
use crate::support::proxy::{Proxy, Upstream};
use crate::support::service::Service;
use crate::support::waiting::{Ends, for_a_day_with_a_minute_left, until};

const FLAGS: [&str; 2] = ["--store-deadline", "400ms"];

/// Asserts the decisions of three fallbacks.
fn assert_fallbacks(service: &Service) {
    assert_eq!(check(service, "error", "outage"), 400, "{}", service.log());
    assert_eq!(check(service, "allow", "outage"), 200);
    assert_eq!(check(service, "deny", "outage"), 429);
}

#[test]
fn starting_without_postgres_uses_fallbacks_until_it_appears() {
    for_a_day_with_a_minute_left();
    let (mut server, limits) = (Postgres::start(), limits(LIMIT));
    server.kill();
    let service = serve(limits.path(), &server.url(), &FLAGS);
    assert_fallbacks(&service);
    assert!(ready(&service).text().contains("is unavailable (unreachable)"));
    server.launch();
    assert_limit_enforced(&service, "present", 0);
}

#[test]
fn logged_counters_survive_a_crash_of_the_server() {
    for_a_day_with_a_minute_left();
    let (mut server, limits) = (Postgres::start(), limits(LIMIT));
    let service = serve(limits.path(), &server.url(), &FLAGS);
    wait_until_ready(&service);
    for _ in 0..6 {
        assert_eq!(check(&service, "error", "kept"), 200);
    }
    server.kill();
    assert_fallbacks(&service);
    server.launch();
    assert_limit_enforced(&service, "kept", 6);
    assert!(service.log().contains("postgres connection lost"), "{}", service.log());
}

#[test]
fn a_silent_postgres_opens_the_breaker_until_it_replies() {
    for_a_day_with_a_minute_left();
    let (server, limits) = (Postgres::start(), limits(LIMIT));
    let proxy = Proxy::before(Upstream::Unix(server.socket()));
    let url = format!("postgres://postgres@{}/postgres", proxy.address());
    let service = serve(limits.path(), &url, &FLAGS);
    wait_until_ready(&service);
    proxy.go_silent();
    let opened = || {
        check(&service, "allow", "silent");
        if 0 < failures(&service, "breaker_open") { Ok(()) } else { Err("closed".to_owned()) }
    };
    until("the breaker opens", opened).unwrap();
    assert_fallbacks(&service);
    proxy.pass();
    assert_limit_enforced(&service, "replies", 0);
}

#[test]
fn a_paused_replica_does_not_block_the_others() {
    for_a_day_with_a_minute_left();
    let (server, limits) = (Postgres::start(), limits(LIMIT));
    let fleet = [(); 2].map(|()| serve(limits.path(), &server.url(), &["--store-deadline", "10s"]));
    fleet.iter().for_each(wait_until_ready);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&is_over);
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    // The check fails while the replica is paused.
                    let body = br#"{"domain":"d","descriptors":[{"entries":[{"key":"many","value":"x"}]}]}"#;
                    drop(http1::call(fleet[0].http, "POST", "/json", &[], Some(body)));
                }
            });
        }
        // Under load, the pause falls into a transaction most of the time.
        for round in 0..5 {
            fleet[0].signal("STOP");
            let status = check(&fleet[1], "many", "x");
            fleet[0].signal("CONT");
            assert_eq!(status, 200, "round {round}: {}", fleet[1].log());
        }
    });
}
