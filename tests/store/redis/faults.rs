//! Outages and misconfiguration of Redis. Each test prints a row of a table;
//! `benches/RESULTS.md` has some of them.
//!
//! All limits are fixed windows of a day, because GCRA would free hits during a test.

mod rejected_writes;

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::fault_watch::{FaultWatch, print_row};
use super::{
    RULES, check, check_all, failures, failures_of_any_kind, limits, metric, ready, serve,
    wait_until_ready,
};
use crate::support::http1;
use crate::support::redis::Redis;
use crate::support::resp::Value;
use crate::support::service::Service;
use crate::support::waiting::{for_a_day_with_a_minute_left, now, until};

/// The service's store timeout in tests that silence Redis.
pub(super) const DEADLINE: Duration = Duration::from_millis(400);

pub(crate) const FLAGS: [&str; 2] = ["--store-timeout", "400ms"];

pub(crate) const LIMIT: u32 = 10;

const EVERY_RULE: &str = "every rule holds, then Redis counts";

/// Asserts the decisions of every fallback, for a descriptor value that no local share has counted
/// before.
fn assert_each_fallback(service: &Service, value: &str) {
    assert_eq!(check(service, "error", value), 400, "{}", service.log());
    assert_eq!(check(service, "allow", value), 200);
    assert_eq!(check(service, "deny", value), 429);
    let local = |_| check(service, "local", value);
    let answers: Vec<_> = (0..LIMIT + 2).map(local).collect();
    let part = LIMIT as usize;
    assert!(answers[..part].iter().all(|&status| status == 200), "{answers:?}");
    assert!(answers[part..].iter().all(|&status| status == 429), "{answers:?}");
}

/// Asserts that Redis enforces the limits and that no decision uses a fallback.
pub(super) fn assert_limit_enforced(service: &Service, value: &str) {
    assert_eq!(count_failures_of_limit(service, value), 0, "{}", service.log());
}

/// As [`assert_limit_enforced`], for a service with the short timeout [`DEADLINE`]: if calls of
/// healthy Redis exceed it, checks with another value follow.
pub(super) fn wait_until_limit_enforced(service: &Service, value: &str) {
    let mut attempt = 0;
    until("redis decides in time", || {
        attempt += 1;
        match count_failures_of_limit(service, &format!("{value}, attempt {attempt}")) {
            0 => Ok(()),
            failed => Err(format!("{failed} failed: {}", service.log())),
        }
    })
    .unwrap();
}

/// Checks each limit until it denies. Returns the number of failed store calls. Without any,
/// asserts that the limits are enforced.
fn count_failures_of_limit(service: &Service, value: &str) -> u64 {
    let before = failures_of_any_kind(service);
    let answers = RULES.map(|rule| {
        let answers: Vec<_> = (0..LIMIT + 2).map(|_| check(service, rule, value)).collect();
        (rule, answers)
    });
    let failed = failures_of_any_kind(service) - before;
    for (rule, answers) in answers.iter().filter(|_| failed == 0) {
        let count = |status: u16| answers.iter().filter(|&&found| found == status).count();
        let expected = (LIMIT as usize, 2);
        assert_eq!((count(200), count(429)), expected, "{rule}: {answers:?}\n{}", service.log());
    }
    failed
}

#[test]
fn starting_without_redis_uses_fallbacks_until_it_appears() {
    for_a_day_with_a_minute_left();
    let (mut store, limits) = (Redis::absent(), limits(LIMIT));
    let service = serve(limits.path(), &store.url(), &[]);
    let mut watch = FaultWatch::start(&service, "no Redis at the start, then one", EVERY_RULE);
    watch.check_times(50, "absent");
    assert_each_fallback(&service, "absent");
    let readiness = ready(&service);
    assert_eq!(readiness.status, 200);
    assert!(readiness.text().contains("is unavailable (unreachable)"), "{}", readiness.text());
    assert_eq!(http1::get(service.http, "/livez", &[]).unwrap().status, 200);
    assert!(failures(&service, "unreachable") > 0);
    for reason in ["allowed", "denied", "local"] {
        let series = format!(
            "sluicegate_descriptors_decided_total{{reason=\"store_unavailable_{reason}\"}}"
        );
        assert!(metric(&service, &series) > 0, "{reason}");
    }
    assert_eq!(metric(&service, "sluicegate_store_up"), 0);
    let began = now();
    store.launch(&["--port", "0"]);
    wait_until_ready(&service);
    watch.finish(began.elapsed());
    assert_eq!(metric(&service, "sluicegate_store_up"), 1);
    assert_limit_enforced(&service, "present");
}

#[test]
fn fallbacks_apply_until_a_killed_redis_restarts() {
    for_a_day_with_a_minute_left();
    let (mut store, limits) = (Redis::start(), limits(LIMIT));
    let service = serve(limits.path(), &store.url(), &[]);
    wait_until_ready(&service);
    assert_limit_enforced(&service, "before");
    let mut watch = FaultWatch::start(&service, "`kill -9`, then a restart", EVERY_RULE);
    store.kill();
    watch.check_times(50, "killed");
    assert_each_fallback(&service, "killed");
    let began = now();
    store.launch(&["--port", "0"]);
    wait_until_ready(&service);
    watch.finish(began.elapsed());
    assert_limit_enforced(&service, "after");
}

#[test]
fn stopped_redis_delays_no_decision_beyond_the_timeout() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Redis::start(), limits(LIMIT));
    let service = serve(limits.path(), &store.url(), &FLAGS);
    wait_until_ready(&service);
    wait_until_limit_enforced(&service, "before");
    let promised = "no answer waits longer than the deadline";
    let mut watch = FaultWatch::start(&service, "SIGSTOP, then SIGCONT", promised);
    store.signal("STOP");
    watch.check_times(200, "stopped");
    // Five store calls time out. Then the circuit breaker opens, and later checks do not wait for
    // Redis.
    assert_eq!(watch.late_calls(), 5, "{}", service.log());
    assert!(ready(&service).text().contains("is unavailable"));
    assert_each_fallback(&service, "stopped");
    let began = now();
    store.signal("CONT");
    wait_until_ready(&service);
    watch.finish_silent(began.elapsed());
    wait_until_limit_enforced(&service, "after");
}

#[test]
fn script_flush_loses_no_checks_or_hits() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Redis::start(), limits(500));
    let service = serve(limits.path(), &store.url(), &["--store-timeout", "20s"]);
    wait_until_ready(&service);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                store.command(&["SCRIPT", "FLUSH"]);
            }
        });
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let service = &service;
                scope.spawn(move || {
                    (0..200).filter(|_| check(service, "error", "flushed") == 200).count()
                })
            })
            .collect();
        let joined: Vec<_> = clients.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Relaxed);
        let passed: usize = joined.into_iter().map(Result::unwrap).sum();
        let what = "`SCRIPT FLUSH` without pause under load";
        let promised = "no question fails, every hit is counted once";
        let (late, wrong) = (failures(&service, "timed_out"), passed.abs_diff(500) as u64);
        print_row(what, promised, None, &[late, wrong], None);
        assert_eq!(passed, 500, "each admitted hit is counted once");
    });
    assert_eq!(failures_of_any_kind(&service), 0, "{}", service.log());
}

#[test]
fn flushall_restarts_counting_from_zero() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Redis::start(), limits(LIMIT));
    let service = serve(limits.path(), &store.url(), &[]);
    wait_until_ready(&service);
    assert_limit_enforced(&service, "same");
    let mut watch = FaultWatch::start(&service, "`FLUSHALL`", "counts anew from nothing");
    let began = now();
    store.command(&["FLUSHALL"]);
    for number in 0..LIMIT + 2 {
        watch.check("error", "same", if number < LIMIT { &[200] } else { &[429] });
    }
    watch.finish(began.elapsed());
    store.command(&["FLUSHALL"]);
    assert_limit_enforced(&service, "same");
}

#[test]
fn counter_key_of_wrong_redis_type_fails_alone_and_stays_unchanged() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Redis::start(), limits(LIMIT));
    let service = serve(limits.path(), &store.url(), &[]);
    wait_until_ready(&service);
    assert_eq!(check(&service, "allow", "odd"), 200);
    let Value::Array(keys) = store.command(&["KEYS", "*odd*"]) else { panic!() };
    let [Value::Text(key)] = &keys[..] else { panic!("{keys:?}") };
    let mut client = crate::support::resp::Client::connect(&store.socket()).unwrap();
    client.call(&[b"DEL".as_slice(), key]);
    client.call(&[b"HSET".as_slice(), key, b"field", b"value"]);
    let promised = "fails alone, is not overwritten";
    let mut watch = FaultWatch::start(&service, "a key of another type", promised);
    watch.check("error", "another", &[200]);
    let both = [("allow", "odd"), ("error", "even")];
    let answers: Vec<_> = (0..LIMIT + 2).map(|_| check_all(&service, &both).status).collect();
    let passed = answers.iter().filter(|&&status| status == 200).count();
    assert_eq!(passed, LIMIT as usize, "the other key of the question counts: {answers:?}");
    assert_eq!(failures(&service, "wrong_type"), u64::from(LIMIT) + 2);
    let Value::Text(kind) = client.call(&[b"TYPE".as_slice(), key]) else { panic!() };
    assert_eq!(kind, b"hash");
    let began = now();
    client.call(&[b"DEL".as_slice(), key]);
    until("the key counts again", || match check(&service, "allow", "odd") {
        429 => Ok(()),
        status => Err(status.to_string()),
    })
    .unwrap();
    watch.finish(began.elapsed());
    assert_eq!(failures(&service, "wrong_type"), u64::from(LIMIT) + 2);
}

#[test]
fn fallbacks_apply_while_redis_loads_its_data() {
    for_a_day_with_a_minute_left();
    let (mut store, limits) = (Redis::absent(), limits(LIMIT));
    let hidden =
        ["--enable-debug-command", "yes", "--loading-process-events-interval-bytes", "1024"];
    store.launch(&[&["--port", "0"], &hidden[..]].concat());
    let service = serve(limits.path(), &store.url(), &[]);
    wait_until_ready(&service);
    assert_limit_enforced(&service, "kept");
    store.command(&["DEBUG", "POPULATE", "200000", "filler", "100"]);
    store.command(&["SAVE"]);
    store.kill();
    // Redis loads each key in a millisecond, so loading takes minutes. The test ends it earlier.
    let slow = ["--port", "0", "--key-load-delay", "1000"];
    store.launch(&[&slow, &hidden[..]].concat());
    let loading = store.command(&["GET", "filler:1"]);
    assert!(matches!(&loading, Value::Error(said) if said.starts_with("LOADING")), "{loading:?}");
    let promised = "every rule holds, then what was saved counts on";
    let mut watch = FaultWatch::start(&service, "`LOADING` data", promised);
    watch.check_times(20, "loading");
    assert_each_fallback(&service, "loading");
    let began = now();
    store.command(&["CONFIG", "SET", "key-load-delay", "0"]);
    wait_until_ready(&service);
    watch.finish(began.elapsed());
    for rule in RULES {
        assert_eq!(check(&service, rule, "kept"), 429, "what it saved is not forgotten");
    }
    assert_limit_enforced(&service, "loaded");
}
