//! Outages of PostgreSQL.
//!
//! All limits are fixed windows of a day, because GCRA would free hits during a test.

use super::{FLAGS, LIMIT, are_decided, assert_limit_enforced, enough_checks};
use crate::store::redis::faults;
use crate::store::redis::network::{FAULTS, watch_faults};
use crate::store::redis::{check, failures, limits, ready, serve, wait_until_ready};
use crate::support::postgres::Postgres;
use crate::support::proxy::{Proxy, Upstream};
use crate::support::service::Service;
use crate::support::waiting::{for_a_day_with_a_minute_left, until};

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
    // Calls to a silent server must time out, so the timeout is short.
    let service = serve(limits.path(), &url, &["--store-timeout", "400ms"]);
    wait_until_ready(&service);
    proxy.go_silent();
    let opened = || {
        check(&service, "allow", "silent");
        if 0 < failures(&service, "breaker_open") { Ok(()) } else { Err("closed".to_owned()) }
    };
    until("the breaker opens", opened).unwrap();
    assert_fallbacks(&service);
    proxy.pass();
    assert_decides_again(&service);
}

#[test]
fn network_faults_delay_no_decision_beyond_the_timeout() {
    for_a_day_with_a_minute_left();
    let (server, limits) = (Postgres::start(), limits(LIMIT));
    let proxy = Proxy::before(Upstream::Unix(server.socket()));
    let url = format!("postgres://postgres@{}/postgres", proxy.address());
    let service = serve(limits.path(), &url, &faults::FLAGS);
    watch_faults(&service, &proxy, &FAULTS);
}

/// Asserts that the limit of a new counter is enforced exactly, once no check of it times out.
fn assert_decides_again(service: &Service) {
    let (mut counters, mut answers) = (0.., Vec::new());
    until("the store decides all checks of a counter", || {
        answers = enough_checks(service, &counters.next().unwrap().to_string());
        if are_decided(&answers) { Ok(()) } else { Err(format!("{answers:?}")) }
    })
    .unwrap();
    let allowed = answers.iter().filter(|&&status| status == 200).count();
    assert_eq!(allowed, LIMIT as usize, "{answers:?}\n{}", service.log());
}

#[test]
fn a_replica_paused_in_a_transaction_does_not_block_the_others() {
    for_a_day_with_a_minute_left();
    let (server, limits) = (Postgres::start(), limits(LIMIT));
    let fleet = [(); 2].map(|()| serve(limits.path(), &server.url(), &FLAGS));
    fleet.iter().for_each(wait_until_ready);
    // A locked table stops the first replica's transaction after it locked its counter.
    let mut session = server.session();
    let has_one = |condition: &str| {
        let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'sluicegate'";
        let count =
            server.sql(&format!("{count} AND query LIKE '%clock_timestamp%' AND {condition}"));
        if count == "0" { Err(condition.to_owned()) } else { Ok(()) }
    };
    let paused = &fleet[0];
    std::thread::scope(|scope| {
        // The server ends the wait after three seconds and the idle transaction after two. A busy
        // machine may be too late to see them, so this is repeated.
        let pause_in_transaction = || {
            wait_until_ready(paused);
            session.run(
                "BEGIN; LOCK TABLE sluicegate_state IN ACCESS EXCLUSIVE MODE; SELECT 'locked';",
            );
            scope.spawn(move || check(paused, "error", "paused"));
            let waits = look(|| has_one("wait_event = 'relation'"));
            paused.signal("STOP");
            session.run("COMMIT; SELECT 'released';");
            let is_idle = waits.and_then(|()| look(|| has_one("state = 'idle in transaction'")));
            is_idle.inspect_err(|_| paused.signal("CONT"))
        };
        until("the replica is paused in its transaction", pause_in_transaction).unwrap();
        // The other replica also waits for at most three seconds, so it may need more attempts.
        let decided = until("the other replica decides", || {
            let status = check(&fleet[1], "error", "paused");
            if status == 200 { Ok(()) } else { Err(format!("{status}: {}", fleet[1].log())) }
        });
        paused.signal("CONT");
        decided.unwrap();
    });
}

/// Checks a condition up to 100 times.
fn look(condition: impl Fn() -> Result<(), String>) -> Result<(), String> {
    let mut last = condition();
    for _ in 1..100 {
        if last.is_ok() {
            break;
        }
        last = condition();
    }
    last
}
