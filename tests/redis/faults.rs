//! Outages and misconfiguration of Redis. Each test prints a row for `docs/reliability.md`.
//!
//! All limits are fixed windows of a day, because GCRA would free hits during a test.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use sluicegate::store::redis::Batching;
use sluicegate::store::{ChargeMode, ChargeOutcome, CounterStore as _, StoreFailure};
use tokio::runtime::Runtime;

use super::observed::{FaultWatch, print_row};
use super::{
    RULES, Store, batch, check, check_all, failures, failures_of_any_kind, limits, metric, ready,
    serve, wait_until_ready,
};
use crate::http1;
use crate::service::Service;
use crate::support::proxy::{Proxy, Upstream};
use crate::support::resp::Value;
use crate::waiting::{for_a_day_with_a_minute_left, now, until};

/// The service's store timeout, longer than the delays of a healthy Redis on a loaded machine.
pub(super) const DEADLINE: Duration = Duration::from_millis(400);
pub(super) const FLAGS: [&str; 2] = ["--backend-deadline", "400ms"];

pub(super) const LIMIT: u32 = 10;
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
    let before = failures_of_any_kind(service);
    for rule in RULES {
        let answers: Vec<_> = (0..LIMIT + 2).map(|_| check(service, rule, value)).collect();
        let passed = answers.iter().filter(|&&status| status == 200).count();
        assert_eq!(passed, LIMIT as usize, "{rule}: {answers:?}\n{}", service.log());
        assert_eq!(answers.iter().filter(|&&status| status == 429).count(), 2, "{answers:?}");
    }
    assert_eq!(failures_of_any_kind(service), before, "{}", service.log());
}

#[test]
fn starting_without_redis_uses_fallbacks_until_it_appears() {
    for_a_day_with_a_minute_left();
    let (mut store, limits) = (Store::absent(), limits(LIMIT));
    let service = serve(limits.path(), &store.url(), &FLAGS);
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
    store.start(&["--port", "0"]);
    wait_until_ready(&service);
    watch.finish(began.elapsed());
    assert_eq!(metric(&service, "sluicegate_store_up"), 1);
    assert_limit_enforced(&service, "present");
}

#[test]
fn fallbacks_apply_until_a_killed_redis_restarts() {
    for_a_day_with_a_minute_left();
    let (mut store, limits) = (Store::running(), limits(LIMIT));
    let service = serve(limits.path(), &store.url(), &FLAGS);
    wait_until_ready(&service);
    assert_limit_enforced(&service, "before");
    let mut watch = FaultWatch::start(&service, "`kill -9`, then a restart", EVERY_RULE);
    store.kill();
    watch.check_times(50, "killed");
    assert_each_fallback(&service, "killed");
    let began = now();
    store.start(&["--port", "0"]);
    wait_until_ready(&service);
    watch.finish(began.elapsed());
    assert_limit_enforced(&service, "after");
}

#[test]
fn stopped_redis_delays_no_decision_beyond_the_timeout() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Store::running(), limits(LIMIT));
    let service = serve(limits.path(), &store.url(), &FLAGS);
    wait_until_ready(&service);
    assert_limit_enforced(&service, "before");
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
    watch.finish(began.elapsed());
    assert_limit_enforced(&service, "after");
}

#[test]
fn script_flush_loses_no_checks_or_hits() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Store::running(), limits(500));
    let service = serve(limits.path(), &store.url(), &["--backend-deadline", "20s"]);
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
    let (store, limits) = (Store::running(), limits(LIMIT));
    let service = serve(limits.path(), &store.url(), &FLAGS);
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
    let (store, limits) = (Store::running(), limits(LIMIT));
    let service = serve(limits.path(), &store.url(), &FLAGS);
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
fn fallbacks_apply_while_redis_is_read_only() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Store::running(), limits(LIMIT));
    let service = serve(limits.path(), &store.url(), &FLAGS);
    wait_until_ready(&service);
    let mut watch = FaultWatch::start(&service, "Redis made a replica, then a primary", EVERY_RULE);
    store.command(&["REPLICAOF", "127.0.0.1", "1"]);
    until("it is a replica", || match check(&service, "error", "replica") {
        400 => Ok(()),
        status => Err(status.to_string()),
    })
    .unwrap();
    assert!(0 < failures(&service, "read_only") + failures(&service, "loading"));
    watch.check_times(50, "meanwhile");
    assert_each_fallback(&service, "while");
    let began = now();
    store.command(&["REPLICAOF", "NO", "ONE"]);
    until("it counts again", || match check(&service, "error", "after") {
        200 => Ok(()),
        status => Err(format!("{status} {}", service.log())),
    })
    .unwrap();
    watch.finish(began.elapsed());
}

#[test]
fn read_only_redis_is_logged_once_per_outage() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Store::running(), limits(LIMIT));
    let proxy = Proxy::before(Upstream::Unix(store.socket()));
    let service = serve(limits.path(), &format!("redis://{}", proxy.address()), &FLAGS);
    let log_lines = |what: &str| service.log().lines().filter(|line| line.contains(what)).count();
    // Counts only this line, because a stall of the machine may be logged with another reason.
    let lost = || log_lines("redis is read-only or not ready");
    let answers = |times| match log_lines("redis is available") {
        answers if answers == times => Ok(()),
        _ => Err(service.log()),
    };
    until("it is said to answer", || answers(1)).unwrap();
    for outage in 1..=2 {
        store.command(&["REPLICAOF", "127.0.0.1", "1"]);
        let before = proxy.accepted();
        until("it was connected to many times", || {
            check(&service, "many", "replica");
            match proxy.accepted() - before {
                8.. => Ok(()),
                times => Err(times.to_string()),
            }
        })
        .unwrap();
        until("it is known to be of no use before it is asked", || match ready(&service).text() {
            text if text.contains("is unavailable (read_only)") => Ok(()),
            text => {
                if text == "ready\n" {
                    check(&service, "many", "replica");
                }
                Err(text)
            }
        })
        .unwrap();
        assert_eq!(
            (lost(), log_lines("redis is available")),
            (outage, outage),
            "{}",
            service.log()
        );
        store.command(&["REPLICAOF", "NO", "ONE"]);
        until("it is said to answer again", || {
            check(&service, "many", "primary");
            answers(outage + 1)
        })
        .unwrap();
        wait_until_ready(&service);
        assert_eq!(lost(), outage, "{}", service.log());
    }
}

#[test]
fn redis_out_of_memory_is_logged_once_per_outage() {
    let full = ["CONFIG", "SET", "maxmemory", "1"];
    let wide = ["CONFIG", "SET", "maxmemory", "0"];
    assert_rejected_writes_are_reported(
        [&full, &wide],
        StoreFailure::OutOfMemory,
        "redis is out of memory",
    );
}

#[test]
fn redis_lacking_replicas_is_logged_once_per_outage() {
    let lonely = ["CONFIG", "SET", "min-replicas-to-write", "1"];
    let content = ["CONFIG", "SET", "min-replicas-to-write", "0"];
    let logged = "redis rejected a command, using on_store_failure error=NOREPLICAS ";
    assert_rejected_writes_are_reported([&lonely, &content], StoreFailure::Other, logged);
}

/// Asserts that each outage logs `line` once. After the commands `refuse`, Redis rejects writes
/// with `cause`; after the commands `take`, it accepts them.
fn assert_rejected_writes_are_reported(
    [refuse, take]: [&[&str]; 2],
    cause: StoreFailure,
    line: &str,
) {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Store::running(), limits(LIMIT));
    let service = serve(limits.path(), &store.url(), &FLAGS);
    wait_until_ready(&service);
    let answer = format!("is unavailable ({})", cause.as_str());
    let log_lines = |what: &str| service.log().lines().filter(|line| line.contains(what)).count();
    let is_reported = || match (ready(&service).text(), metric(&service, "sluicegate_store_up")) {
        (text, 0) if text.contains(&answer) => Ok(()),
        logged => Err(format!("{logged:?} {}", service.log())),
    };
    // Heartbeats, one per second, detect the outage without any check.
    let heartbeats = || -> u64 {
        let stats = store.command(&["INFO", "commandstats"]).text();
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_eval:calls="));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    };
    for outage in 1..=2 {
        store.command(refuse);
        let before = heartbeats();
        until("it is told before it is asked", is_reported).unwrap();
        let answered = log_lines("redis is available");
        assert_each_fallback(&service, &format!("meanwhile {outage}"));
        assert!(0 < failures(&service, cause.as_str()));
        until("it lasts", || match heartbeats() - before {
            5.. => Ok(()),
            times => Err(times.to_string()),
        })
        .unwrap();
        until("it is told still", is_reported).unwrap();
        let logged = (log_lines(line), log_lines("redis is available"));
        assert_eq!(logged, (outage, answered), "{}", service.log());
        store.command(take);
        wait_until_ready(&service);
        assert_eq!(metric(&service, "sluicegate_store_up"), 1);
        until("it is said to answer again", || match log_lines("redis is available") {
            answers if answered < answers => Ok(()),
            _ => Err(service.log()),
        })
        .unwrap();
        assert_limit_enforced(&service, &format!("after {outage}"));
    }
}

/// Reason: a missing ACL right for a command of the charge script affects every counter, but a key
/// of a wrong Redis type affects only its own counter.
#[test]
fn missing_acl_rights_mark_redis_unavailable_but_bad_keys_do_not() {
    let store = Store::running();
    let redis = batch::connected(&store, Batching::Off);
    let runtime = Runtime::new().unwrap();
    let charge_one = |name: &str| {
        let charges = batch::charges(name, batch::window(), ChargeMode::Each);
        runtime.block_on(batch::charge(&redis, &charges))[0]
    };
    charge_one("odd");
    let Value::Array(keys) = store.command(&["KEYS", "*odd*"]) else { panic!() };
    let [Value::Text(key)] = &keys[..] else { panic!("{keys:?}") };
    let mut client = crate::support::resp::Client::connect(&store.socket()).unwrap();
    client.call(&[b"DEL".as_slice(), key]);
    client.call(&[b"HSET".as_slice(), key, b"field", b"value"]);
    for round in 0..50 {
        assert_eq!(charge_one("odd"), ChargeOutcome::Failed(StoreFailure::WrongType));
        assert!(matches!(charge_one("even"), ChargeOutcome::Decided(_)), "{round}");
        assert_eq!(redis.current_failure(), None, "{round}");
    }
    store.command(&["ACL", "SETUSER", "default", "-set"]);
    until("it is known", || match (charge_one("new"), redis.current_failure()) {
        (ChargeOutcome::Failed(StoreFailure::Other), Some(StoreFailure::Other)) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
    store.command(&["ACL", "SETUSER", "default", "+set"]);
    until("it is known to count again", || match (charge_one("new"), redis.current_failure()) {
        (ChargeOutcome::Decided(_), None) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
}

#[test]
fn many_read_only_errors_cause_one_reconnect() {
    let store = Store::running();
    let redis = batch::connected(&store, Batching::Off);
    let made = || redis.stats().connections.unwrap().opened;
    assert_eq!(made(), 1);
    store.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let asked = batch::charges("many", batch::window(), ChargeMode::Each);
    let asked = (0..16).map(|_| batch::charge(&redis, &asked)).collect();
    let outcomes = batch::charge_all_during_stop(&store, asked);
    assert!(outcomes.contains(&ChargeOutcome::Failed(StoreFailure::ReadOnly)), "{outcomes:?}");
    store.command(&["REPLICAOF", "NO", "ONE"]);
    until("it is connected anew", || match redis.current_failure() {
        None if 1 < made() => Ok(()),
        trouble => Err(format!("{trouble:?}, {} made", made())),
    })
    .unwrap();
    let left = batch::remaining(&redis, "many");
    assert_eq!(left, u64::from(batch::LIMIT), "what may not be written counts nothing");
    assert_eq!(made(), 2, "one outage is one connection");
}

#[test]
fn lease_calls_also_reconnect_if_redis_is_read_only() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Store::running(), tempfile::tempdir().unwrap());
    let leased = "domain: d\ndescriptors:\n- key: error\n  rate_limit: {unit: day, requests_per_unit: 1000, \
                  mode: leased, max_overshoot: 0}\n";
    std::fs::write(limits.path().join("d.yaml"), leased).unwrap();
    let service = serve(limits.path(), &store.url(), &FLAGS);
    let mut asked = 0;
    // A new descriptor value for each check, because a lease balance would decide without the
    // store.
    let mut check_new_value = || {
        asked += 1;
        check(&service, "error", &asked.to_string())
    };
    until("it counts", || if check_new_value() == 200 { Ok(()) } else { Err(service.log()) })
        .unwrap();
    let connected = || {
        let all = store.command(&["CLIENT", "LIST"]).text().clone();
        // All Redis clients except the connection of the test itself.
        let others = all.lines().filter(|line| !line.contains(" cmd=client"));
        others.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect::<Vec<_>>()
    };
    let before = connected();
    assert!(!before.is_empty());
    store.command(&["REPLICAOF", "127.0.0.1", "1"]);
    until("it is connected anew", || {
        check_new_value();
        let now = connected();
        if before.iter().any(|one| now.contains(one)) { Err(format!("{now:?}")) } else { Ok(()) }
    })
    .unwrap();
}

#[test]
fn fallbacks_apply_while_redis_loads_its_data() {
    for_a_day_with_a_minute_left();
    let (mut store, limits) = (Store::absent(), limits(LIMIT));
    let hidden =
        ["--enable-debug-command", "yes", "--loading-process-events-interval-bytes", "1024"];
    store.start(&[&["--port", "0"], &hidden[..]].concat());
    let service = serve(limits.path(), &store.url(), &FLAGS);
    wait_until_ready(&service);
    assert_limit_enforced(&service, "kept");
    store.command(&["DEBUG", "POPULATE", "2000", "filler", "100"]);
    store.command(&["SAVE"]);
    store.kill();
    // Redis loads each key in half a millisecond, so loading takes one second.
    let slow = ["--port", "0", "--key-load-delay", "500"];
    store.start(&[&slow, &hidden[..]].concat());
    let loading = store.command(&["GET", "filler:1"]);
    assert!(matches!(&loading, Value::Error(said) if said.starts_with("LOADING")), "{loading:?}");
    let promised = "every rule holds, then what was saved counts on";
    let mut watch = FaultWatch::start(&service, "`LOADING` a second of data", promised);
    watch.check_times(20, "loading");
    assert_each_fallback(&service, "loading");
    let began = now();
    wait_until_ready(&service);
    watch.finish(began.elapsed());
    for rule in RULES {
        assert_eq!(check(&service, rule, "kept"), 429, "what it saved is not forgotten");
    }
    assert_limit_enforced(&service, "loaded");
}
