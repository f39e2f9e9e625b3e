//! Outages of PostgreSQL.
//!
//! All limits are fixed windows of a day, because GCRA would free hits during a test.

use super::{LIMIT, assert_limit_enforced};
use crate::store::redis::{check, failures, limits, ready, serve, wait_until_ready};
use crate::support::postgres::Postgres;
use crate::support::proxy::{Proxy, Upstream};
use crate::support::service::Service;
use crate::support::waiting::{for_a_day_with_a_minute_left, until};

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
fn a_replica_paused_in_a_transaction_does_not_block_the_others() {
    for_a_day_with_a_minute_left();
    let (server, limits) = (Postgres::start(), limits(LIMIT));
    let fleet = [(); 2].map(|()| serve(limits.path(), &server.url(), &["--store-deadline", "10s"]));
    fleet.iter().for_each(wait_until_ready);
    // A locked table stops the first replica's transaction after it locked its counter.
    let mut session = server.session();
    session.run("BEGIN; LOCK TABLE sluicegate_state IN ACCESS EXCLUSIVE MODE; SELECT 'locked';");
    let has_one = |condition: &str| {
        let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'sluicegate'";
        let count =
            server.sql(&format!("{count} AND query LIKE '%clock_timestamp%' AND {condition}"));
        if count == "0" { Err(condition.to_owned()) } else { Ok(()) }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| check(&fleet[0], "error", "paused"));
        until("it waits", || has_one("wait_event = 'relation'")).unwrap();
        fleet[0].signal("STOP");
        session.run("COMMIT; SELECT 'released';");
        until("it is idle", || has_one("state = 'idle in transaction'")).unwrap();
        let status = check(&fleet[1], "error", "paused");
        fleet[0].signal("CONT");
        assert_eq!(status, 200, "{}", fleet[1].log());
    });
}
