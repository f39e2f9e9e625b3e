//! Servers that reject writes: read-only, out of memory, without replicas or rights.

use sluicegate::store::redis::Batching;
use sluicegate::store::{ChargeMode, ChargeOutcome, CounterStore as _, StoreFailure};
use tokio::runtime::Runtime;

use super::{EVERY_RULE, LIMIT, assert_each_fallback, assert_limit_enforced};
use crate::store::redis::fault_watch::FaultWatch;
use crate::store::redis::{batch, check, failures, limits, metric, ready, serve, wait_until_ready};
use crate::support::log_lines::assert_line_count;
use crate::support::proxy::{Proxy, Upstream};
use crate::support::redis::Redis;
use crate::support::resp::Value;
use crate::support::waiting::{for_a_day_with_a_minute_left, now, until};

#[test]
fn fallbacks_apply_while_redis_is_read_only() {
    for_a_day_with_a_minute_left();
    let (store, limits) = (Redis::start(), limits(LIMIT));
    let service = serve(limits.path(), &store.url(), &[]);
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
    let (store, limits) = (Redis::start(), limits(LIMIT));
    let proxy = Proxy::before(Upstream::Unix(store.socket()));
    let began = now();
    let service = serve(limits.path(), &format!("redis://{}", proxy.address()), &[]);
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
        assert_line_count(lost(), outage, began, &service.log());
        assert_eq!(log_lines("redis is available"), outage, "{}", service.log());
        store.command(&["REPLICAOF", "NO", "ONE"]);
        until("it is said to answer again", || {
            check(&service, "many", "primary");
            answers(outage + 1)
        })
        .unwrap();
        wait_until_ready(&service);
        assert_line_count(lost(), outage, began, &service.log());
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
    let (store, limits, began) = (Redis::start(), limits(LIMIT), now());
    let service = serve(limits.path(), &store.url(), &[]);
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
        assert_line_count(log_lines(line), outage, began, &service.log());
        assert_eq!(log_lines("redis is available"), answered, "{}", service.log());
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
    let store = Redis::start();
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
    let store = Redis::start();
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
    let (store, limits) = (Redis::start(), tempfile::tempdir().unwrap());
    let leased = "domain: d\ndescriptors:\n- key: error\n  rate_limit: {unit: day, requests_per_unit: 1000, \
                  mode: leased, max_overshoot: 0}\n";
    std::fs::write(limits.path().join("d.yaml"), leased).unwrap();
    let service = serve(limits.path(), &store.url(), &[]);
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
