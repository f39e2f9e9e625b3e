//! Redis as it should not be. Each test prints what it observed; `docs/reliability.md` keeps it.
//!
//! GCRA would earn a hit while a test goes on; a fixed window of a day does not.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use sluicegate::backend::redis::Batching;
use sluicegate::backend::{Backend as _, Cause, Outcome, Rule};
use tokio::runtime::Runtime;

use super::observed::{Watch, tell};
use super::{
    RULES, Store, ask, ask_all, batch, failures, failures_of_any_kind, limits, metric, ready,
    serve, wait_until_whole,
};
use crate::http1;
use crate::service::Service;
use crate::support::proxy::{Proxy, Upstream};
use crate::support::resp::Value;
use crate::waiting::{for_a_day_with_a_minute_left, now, until};

/// What the services here are given: above what a crowded machine makes of a healthy Redis.
pub(super) const DEADLINE: Duration = Duration::from_millis(400);
pub(super) const FLAGS: [&str; 2] = ["--backend-deadline", "400ms"];

pub(super) const LIMIT: u32 = 10;
/// What is promised of most of them.
const EVERY_RULE: &str = "every rule holds, then Redis counts";

/// What each rule answers where nothing was counted here before.
fn holds_every_rule(service: &Service, value: &str) {
    assert_eq!(ask(service, "error", value), 400, "{}", service.log());
    assert_eq!(ask(service, "allow", value), 200);
    assert_eq!(ask(service, "deny", value), 429);
    let local = |_| ask(service, "local", value);
    let answers: Vec<_> = (0..LIMIT + 2).map(local).collect();
    let part = LIMIT as usize;
    assert!(answers[..part].iter().all(|&status| status == 200), "{answers:?}");
    assert!(answers[part..].iter().all(|&status| status == 429), "{answers:?}");
}

/// Holds that the store counts, and that nothing it answers is degraded.
pub(super) fn holds_the_limit(service: &Service, value: &str) {
    let before = failures_of_any_kind(service);
    for rule in RULES {
        let answers: Vec<_> = (0..LIMIT + 2).map(|_| ask(service, rule, value)).collect();
        let passed = answers.iter().filter(|&&status| status == 200).count();
        assert_eq!(passed, LIMIT as usize, "{rule}: {answers:?}\n{}", service.log());
        assert_eq!(answers.iter().filter(|&&status| status == 429).count(), 2, "{answers:?}");
    }
    assert_eq!(failures_of_any_kind(service), before, "{}", service.log());
}

#[test]
fn without_a_redis_it_starts_serves_by_each_rule_and_takes_the_redis_that_comes() {
    for_a_day_with_a_minute_left();
    let (mut store, limits) = (Store::absent(), limits(LIMIT));
    let service = serve(limits.path(), &store.url(), &FLAGS);
    let mut watch = Watch::over(&service, "no Redis at the start, then one", EVERY_RULE);
    watch.asks_times(50, "absent");
    holds_every_rule(&service, "absent");
    let said = ready(&service);
    assert_eq!(said.status, 200);
    assert!(said.text().contains("does not answer (unreachable)"), "{}", said.text());
    assert_eq!(http1::get(service.http, "/livez", &[]).unwrap().status, 200);
    assert!(failures(&service, "unreachable") > 0);
    for reason in ["allowed", "denied", "local"] {
        let series =
            format!("sluicegate_descriptors_decided_total{{reason=\"backend_down_{reason}\"}}");
        assert!(metric(&service, &series) > 0, "{reason}");
    }
    assert_eq!(metric(&service, "sluicegate_backend_up"), 0);
    let began = now();
    store.start(&["--port", "0"]);
    wait_until_whole(&service);
    watch.ends(began.elapsed());
    assert_eq!(metric(&service, "sluicegate_backend_up"), 1);
    holds_the_limit(&service, "present");
}

#[test]
fn a_killed_redis_is_answered_for_by_each_rule_and_taken_back_when_it_is_there_again() {
    for_a_day_with_a_minute_left();
    let (mut store, limits) = (Store::running(), limits(LIMIT));
    let service = serve(limits.path(), &store.url(), &FLAGS);
    wait_until_whole(&service);
    holds_the_limit(&service, "before");
    let mut watch = Watch::over(&service, "`kill -9`, then a restart", EVERY_RULE);
    store.kill();
    watch.asks_times(50, "killed");
    holds_every_rule(&service, "killed");
    let began = now();
    store.start(&["--port", "0"]);
    wait_until_whole(&service);
    watch.ends(began.elapsed());
    holds_the_limit(&service, "after");
}

#[test]
fn a_stopped_redis_delays_no_answer_beyond_the_deadline() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Store::running(), limits(LIMIT));
    let service = serve(limits.path(), &store.url(), &FLAGS);
    wait_until_whole(&service);
    holds_the_limit(&service, "before");
    let promised = "no answer waits longer than the deadline";
    let mut watch = Watch::over(&service, "SIGSTOP, then SIGCONT", promised);
    store.signal("STOP");
    watch.asks_times(200, "stopped");
    // The first five are late; then nobody waits any more.
    assert_eq!(watch.late(), 5, "{}", service.log());
    assert!(ready(&service).text().contains("does not answer"));
    holds_every_rule(&service, "stopped");
    let began = now();
    store.signal("CONT");
    wait_until_whole(&service);
    watch.ends(began.elapsed());
    holds_the_limit(&service, "after");
}

#[test]
fn a_flushed_script_cache_costs_no_question_and_no_count() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Store::running(), limits(500));
    let service = serve(limits.path(), &store.url(), &["--backend-deadline", "20s"]);
    wait_until_whole(&service);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                store.tell(&["SCRIPT", "FLUSH"]);
            }
        });
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let service = &service;
                scope.spawn(move || {
                    (0..200).filter(|_| ask(service, "error", "flushed") == 200).count()
                })
            })
            .collect();
        let joined: Vec<_> = clients.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        done.store(true, Relaxed);
        let passed: usize = joined.into_iter().map(Result::unwrap).sum();
        let what = "`SCRIPT FLUSH` without pause under load";
        let promised = "no question fails, every hit is counted once";
        let (late, wrong) = (failures(&service, "late"), passed.abs_diff(500) as u64);
        tell(what, promised, None, &[late, wrong], None);
        assert_eq!(passed, 500, "each admitted hit is counted once");
    });
    assert_eq!(failures_of_any_kind(&service), 0, "{}", service.log());
}

#[test]
fn a_flushed_redis_forgets_and_counts_anew() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Store::running(), limits(LIMIT));
    let service = serve(limits.path(), &store.url(), &FLAGS);
    wait_until_whole(&service);
    holds_the_limit(&service, "same");
    let mut watch = Watch::over(&service, "`FLUSHALL`", "counts anew from nothing");
    let began = now();
    store.tell(&["FLUSHALL"]);
    for number in 0..LIMIT + 2 {
        watch.asks("error", "same", if number < LIMIT { &[200] } else { &[429] });
    }
    watch.ends(began.elapsed());
    store.tell(&["FLUSHALL"]);
    holds_the_limit(&service, "same");
}

#[test]
fn a_key_of_another_type_fails_alone_and_stays_as_it_is() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Store::running(), limits(LIMIT));
    let service = serve(limits.path(), &store.url(), &FLAGS);
    wait_until_whole(&service);
    assert_eq!(ask(&service, "allow", "odd"), 200);
    let Value::Array(keys) = store.tell(&["KEYS", "*odd*"]) else { panic!() };
    let [Value::Text(key)] = &keys[..] else { panic!("{keys:?}") };
    let mut client = crate::support::resp::Client::connect(&store.socket()).unwrap();
    client.call(&[b"DEL".as_slice(), key]);
    client.call(&[b"HSET".as_slice(), key, b"field", b"value"]);
    let promised = "fails alone, is not overwritten";
    let mut watch = Watch::over(&service, "a key of another type", promised);
    watch.asks("error", "another", &[200]);
    let both = [("allow", "odd"), ("error", "even")];
    let answers: Vec<_> = (0..LIMIT + 2).map(|_| ask_all(&service, &both).status).collect();
    let passed = answers.iter().filter(|&&status| status == 200).count();
    assert_eq!(passed, LIMIT as usize, "the other key of the question counts: {answers:?}");
    assert_eq!(failures(&service, "wrong_type"), u64::from(LIMIT) + 2);
    let Value::Text(kind) = client.call(&[b"TYPE".as_slice(), key]) else { panic!() };
    assert_eq!(kind, b"hash");
    let began = now();
    client.call(&[b"DEL".as_slice(), key]);
    until("the key counts again", || match ask(&service, "allow", "odd") {
        429 => Ok(()),
        status => Err(status.to_string()),
    })
    .unwrap();
    watch.ends(began.elapsed());
    assert_eq!(failures(&service, "wrong_type"), u64::from(LIMIT) + 2);
}

#[test]
fn a_redis_that_may_not_write_is_left_and_taken_back_when_it_may() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Store::running(), limits(LIMIT));
    let service = serve(limits.path(), &store.url(), &FLAGS);
    wait_until_whole(&service);
    let mut watch = Watch::over(&service, "Redis made a replica, then a primary", EVERY_RULE);
    store.tell(&["REPLICAOF", "127.0.0.1", "1"]);
    until("it is a replica", || match ask(&service, "error", "replica") {
        400 => Ok(()),
        status => Err(status.to_string()),
    })
    .unwrap();
    assert!(0 < failures(&service, "read_only") + failures(&service, "loading"));
    watch.asks_times(50, "meanwhile");
    holds_every_rule(&service, "while");
    let began = now();
    store.tell(&["REPLICAOF", "NO", "ONE"]);
    until("it counts again", || match ask(&service, "error", "after") {
        200 => Ok(()),
        status => Err(format!("{status} {}", service.log())),
    })
    .unwrap();
    watch.ends(began.elapsed());
}

#[test]
fn a_redis_that_may_not_write_is_said_to_be_lost_once_however_long_that_lasts() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Store::running(), limits(LIMIT));
    let proxy = Proxy::before(Upstream::Unix(store.socket()));
    let service = serve(limits.path(), &format!("redis://{}", proxy.address()), &FLAGS);
    let said = |what: &str| {
        let log = service.log();
        // That it was slow is something else.
        log.lines().filter(|line| line.contains(what) && !line.contains("in time again")).count()
    };
    // A crowded machine may be silent for a second, which is another reason.
    let lost = || said("it may not write, or is not ready");
    let answers = |times| match said("redis answers") {
        answers if answers == times => Ok(()),
        _ => Err(service.log()),
    };
    until("it is said to answer", || answers(1)).unwrap();
    for outage in 1..=2 {
        store.tell(&["REPLICAOF", "127.0.0.1", "1"]);
        let before = proxy.accepted();
        until("it was connected to many times", || {
            ask(&service, "many", "replica");
            match proxy.accepted() - before {
                8.. => Ok(()),
                times => Err(times.to_string()),
            }
        })
        .unwrap();
        until("it is known to be of no use before it is asked", || match ready(&service).text() {
            text if text.contains("does not answer (read_only)") => Ok(()),
            text => {
                if text == "ready\n" {
                    ask(&service, "many", "replica");
                }
                Err(text)
            }
        })
        .unwrap();
        assert_eq!((lost(), said("redis answers")), (outage, outage), "{}", service.log());
        store.tell(&["REPLICAOF", "NO", "ONE"]);
        until("it is said to answer again", || {
            ask(&service, "many", "primary");
            answers(outage + 1)
        })
        .unwrap();
        wait_until_whole(&service);
        assert_eq!(lost(), outage, "{}", service.log());
    }
}

#[test]
fn a_redis_out_of_memory_is_said_to_be_once_for_as_long_as_that_lasts_and_then_counts_again() {
    let full = ["CONFIG", "SET", "maxmemory", "1"];
    let wide = ["CONFIG", "SET", "maxmemory", "0"];
    takes_no_write([&full, &wide], Cause::OutOfMemory, "redis is out of memory");
}

#[test]
fn a_redis_without_replicas_enough_is_said_to_refuse_once_for_as_long_as_that_lasts_and_then_counts_again()
 {
    let lonely = ["CONFIG", "SET", "min-replicas-to-write", "1"];
    let content = ["CONFIG", "SET", "min-replicas-to-write", "0"];
    let told = "redis refuses to count: on_backend_failure answers error=NOREPLICAS ";
    takes_no_write([&lonely, &content], Cause::Failing, told);
}

/// From the first order to the second Redis refuses whatever is written for this cause, and the log has a line of it.
fn takes_no_write([refuse, take]: [&[&str]; 2], cause: Cause, line: &str) {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Store::running(), limits(LIMIT));
    let service = serve(limits.path(), &store.url(), &FLAGS);
    wait_until_whole(&service);
    let answer = format!("does not answer ({})", cause.as_str());
    let said = |what: &str| {
        let log = service.log();
        log.lines().filter(|line| line.contains(what) && !line.contains("in time again")).count()
    };
    let is_told = || match (ready(&service).text(), metric(&service, "sluicegate_backend_up")) {
        (text, 0) if text.contains(&answer) => Ok(()),
        told => Err(format!("{told:?} {}", service.log())),
    };
    // It is asked without one question: the replica speaks once a second.
    let spoken = || -> u64 {
        let stats = store.tell(&["INFO", "commandstats"]).text();
        let line = stats.lines().find_map(|line| line.strip_prefix("cmdstat_eval:calls="));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    };
    for outage in 1..=2 {
        store.tell(refuse);
        let before = spoken();
        until("it is told before it is asked", is_told).unwrap();
        let answered = said("redis answers");
        holds_every_rule(&service, &format!("meanwhile {outage}"));
        assert!(0 < failures(&service, cause.as_str()));
        until("it lasts", || match spoken() - before {
            5.. => Ok(()),
            times => Err(times.to_string()),
        })
        .unwrap();
        until("it is told still", is_told).unwrap();
        let told = (said(line), said("redis answers"));
        assert_eq!(told, (outage, answered), "{}", service.log());
        store.tell(take);
        wait_until_whole(&service);
        assert_eq!(metric(&service, "sluicegate_backend_up"), 1);
        until("it is said to answer again", || match said("redis answers") {
            answers if answered < answers => Ok(()),
            _ => Err(service.log()),
        })
        .unwrap();
        holds_the_limit(&service, &format!("after {outage}"));
    }
}

/// Who may not run a command of the script that counts is refused whatever is counted.
#[test]
fn a_redis_that_lets_nobody_count_is_known_to_be_down_and_one_that_refuses_a_key_is_not() {
    let store = Store::running();
    let redis = batch::connected(&store, Batching::Off);
    let runtime = Runtime::new().unwrap();
    let asks = |name: &str| {
        let charges = batch::charges(name, batch::window(), Rule::Each);
        runtime.block_on(batch::ask(&redis, &charges))[0]
    };
    asks("odd");
    let Value::Array(keys) = store.tell(&["KEYS", "*odd*"]) else { panic!() };
    let [Value::Text(key)] = &keys[..] else { panic!("{keys:?}") };
    let mut client = crate::support::resp::Client::connect(&store.socket()).unwrap();
    client.call(&[b"DEL".as_slice(), key]);
    client.call(&[b"HSET".as_slice(), key, b"field", b"value"]);
    for round in 0..50 {
        assert_eq!(asks("odd"), Outcome::Failed(Cause::WrongType));
        assert!(matches!(asks("even"), Outcome::Stepped(_)), "{round}");
        assert_eq!(redis.trouble(), None, "{round}");
    }
    store.tell(&["ACL", "SETUSER", "default", "-set"]);
    until("it is known", || match (asks("new"), redis.trouble()) {
        (Outcome::Failed(Cause::Failing), Some(Cause::Failing)) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
    store.tell(&["ACL", "SETUSER", "default", "+set"]);
    until("it is known to count again", || match (asks("new"), redis.trouble()) {
        (Outcome::Stepped(_), None) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
}

#[test]
fn many_calls_that_may_not_write_end_their_own_connection_and_not_the_next() {
    let store = Store::running();
    let redis = batch::connected(&store, Batching::Off);
    let made = || redis.inside().connections.unwrap().made;
    assert_eq!(made(), 1);
    store.tell(&["REPLICAOF", "127.0.0.1", "1"]);
    let asked = batch::charges("many", batch::window(), Rule::Each);
    let asked = (0..16).map(|_| batch::ask(&redis, &asked)).collect();
    let outcomes = batch::all_at_once(&store, asked);
    assert!(outcomes.contains(&Outcome::Failed(Cause::ReadOnly)), "{outcomes:?}");
    store.tell(&["REPLICAOF", "NO", "ONE"]);
    until("it is connected anew", || match redis.trouble() {
        None if 1 < made() => Ok(()),
        trouble => Err(format!("{trouble:?}, {} made", made())),
    })
    .unwrap();
    let left = batch::left(&redis, "many");
    assert_eq!(left, u64::from(batch::LIMIT), "what may not be written counts nothing");
    assert_eq!(made(), 2, "one outage is one connection");
}

#[test]
fn a_redis_that_may_not_write_is_left_where_every_limit_is_leased_too() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Store::running(), tempfile::tempdir().unwrap());
    let leased = "domain: d\ndescriptors:\n- key: error\n  rate_limit: {unit: day, requests_per_unit: 1000, \
                  mode: leased, max_overshoot: 0}\n";
    std::fs::write(limits.path().join("d.yaml"), leased).unwrap();
    let service = serve(limits.path(), &store.url(), &FLAGS);
    let mut asked = 0;
    // What is held of one counter says nothing of the store.
    let mut asks = || {
        asked += 1;
        ask(&service, "error", &asked.to_string())
    };
    until("it counts", || if asks() == 200 { Ok(()) } else { Err(service.log()) }).unwrap();
    let connected = || {
        let all = store.tell(&["CLIENT", "LIST"]).text().clone();
        // But the one that this is asked over.
        let others = all.lines().filter(|line| !line.contains(" cmd=client"));
        others.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect::<Vec<_>>()
    };
    let before = connected();
    assert!(!before.is_empty());
    store.tell(&["REPLICAOF", "127.0.0.1", "1"]);
    until("it is connected anew", || {
        asks();
        let now = connected();
        if before.iter().any(|one| now.contains(one)) { Err(format!("{now:?}")) } else { Ok(()) }
    })
    .unwrap();
}

#[test]
fn a_redis_that_loads_is_answered_for_and_goes_on_with_what_it_has() {
    for_a_day_with_a_minute_left();
    let (mut store, limits) = (Store::absent(), limits(LIMIT));
    let hidden =
        ["--enable-debug-command", "yes", "--loading-process-events-interval-bytes", "1024"];
    store.start(&[&["--port", "0"], &hidden[..]].concat());
    let service = serve(limits.path(), &store.url(), &FLAGS);
    wait_until_whole(&service);
    holds_the_limit(&service, "kept");
    store.tell(&["DEBUG", "POPULATE", "2000", "filler", "100"]);
    store.tell(&["SAVE"]);
    store.kill();
    // Half a millisecond a key: a second in all.
    let slow = ["--port", "0", "--key-load-delay", "500"];
    store.start(&[&slow, &hidden[..]].concat());
    let loading = store.tell(&["GET", "filler:1"]);
    assert!(matches!(&loading, Value::Error(said) if said.starts_with("LOADING")), "{loading:?}");
    let promised = "every rule holds, then what was saved counts on";
    let mut watch = Watch::over(&service, "`LOADING` a second of data", promised);
    watch.asks_times(20, "loading");
    holds_every_rule(&service, "loading");
    let began = now();
    wait_until_whole(&service);
    watch.ends(began.elapsed());
    for rule in RULES {
        assert_eq!(ask(&service, rule, "kept"), 429, "what it saved is not forgotten");
    }
    holds_the_limit(&service, "loaded");
}
