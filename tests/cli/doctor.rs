//! `sluicegate doctor` and the store inspection at service start, against real servers.

use std::ffi::OsString;

use sluicegate::cli::{self, CommandOutcome, Terminal};

use crate::store::redis::{check, limits, serve, wait_until_ready};
use crate::support::cluster::Cluster;
use crate::support::redis::Redis;
use crate::support::resp::Value;
use crate::support::sentinel::Watched;
use crate::support::waiting::until;

fn doctor(store: &Redis, more: &[&str]) -> (CommandOutcome, String, String) {
    doctor_at(&store.url(), more)
}

pub fn doctor_at(url: &str, more: &[&str]) -> (CommandOutcome, String, String) {
    // A long store timeout, so that a loaded machine is not reported as a distant Redis.
    let line = ["sluicegate", "doctor", "--store-url", url, "--store-deadline", "10s"];
    let argv = line.iter().chain(more).map(OsString::from).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let outcome = cli::run(argv, [], &mut Terminal { out: &mut out, err: &mut err });
    (outcome, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

/// Returns the codes of the findings of `sluicegate doctor --format json`. An `!` marks an error;
/// the others are warnings.
fn codes(store: &Redis) -> Vec<String> {
    let (_, out, err) = doctor(store, &["--format", "json"]);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{err}"));
    let code = |it: &serde_json::Value| {
        let mark = if it["severity"] == "error" { "!" } else { "" };
        format!("{mark}{}", it["code"].as_str().unwrap())
    };
    report["findings"].as_array().unwrap().iter().map(code).collect()
}

fn running(flags: &[&str]) -> Redis {
    let mut store = Redis::absent();
    store.launch(&[&["--port", "0"], flags].concat());
    store
}

#[test]
fn missing_persistence_is_only_a_warning() {
    let store = running(&["--appendonly", "yes"]);
    let (outcome, out, err) = doctor(&store, &[]);
    assert_eq!((outcome, err.as_str()), (CommandOutcome::Success, ""), "{out}");
    assert!(out.ends_with("findings: 0 errors, 0 warnings\n"), "{out}");
    assert_eq!(store.command(&["DBSIZE"]), Value::Int(0), "nothing is left behind");
    store.command(&["CONFIG", "SET", "appendonly", "no"]);
    let (outcome, out, _) = doctor(&store, &[]);
    assert_eq!(outcome, CommandOutcome::Success, "a warning makes no store unfit: {out}");
    let path = store.socket();
    let report = format!(
        "warning[persistence]: {}: persistence is off, so a Redis restart loses all counters;",
        path.display()
    );
    assert!(out.starts_with(&report), "{out}");
    assert_eq!(doctor(&store, &["--warnings-as-errors"]).0, CommandOutcome::Negative);
}

#[test]
fn each_problem_of_a_store_is_reported() {
    let store = running(&["--appendonly", "yes", "--maxmemory-policy", "allkeys-lru"]);
    let (outcome, out, _) = doctor(&store, &[]);
    assert_eq!(outcome, CommandOutcome::Negative);
    assert!(out.contains("error[eviction]") && out.contains("set `maxmemory-policy noeviction`"));
    store.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    assert!(codes(&store).is_empty());
    store.command(&["ACL", "SETUSER", "default", "-eval"]);
    assert_eq!(codes(&store), ["!scripts"]);
    store.command(&["ACL", "SETUSER", "default", "+eval"]);
    for command in ["evalsha", "script|load"] {
        store.command(&["ACL", "SETUSER", "default", &format!("-{command}")]);
        assert_eq!(codes(&store), ["!scripts"], "{command}");
        store.command(&["ACL", "SETUSER", "default", &format!("+{command}")]);
    }
    store.command(&["ACL", "SETUSER", "default", "-setrange", "-zadd"]);
    let (_, out, _) = doctor(&store, &[]);
    assert!(out.contains("error[scripts]") && out.contains("(setrange, zadd: "), "{out}");
    store.command(&["ACL", "SETUSER", "default", "+setrange", "+zadd", "-expire"]);
    assert!(codes(&store).is_empty(), "the reference's keys alone need it");
    let (_, out, _) = doctor(&store, &["--compat-store-key-format", "compat"]);
    assert!(out.contains("(expire: "), "{out}");
    store.command(&["ACL", "SETUSER", "default", "+expire"]);
    assert_eq!(store.command(&["DBSIZE"]), Value::Int(0), "nothing is left behind");
    store.command(&["ACL", "SETUSER", "default", "-info"]);
    assert_eq!(codes(&store), ["run_id"]);
    store.command(&["ACL", "SETUSER", "default", "+info"]);
    store.command(&["CONFIG", "SET", "maxmemory", "1mb"]);
    assert!(codes(&store).contains(&"memory".to_owned()));
    store.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let (_, out, _) = doctor(&store, &[]);
    let scripts = out.lines().find(|line| line.starts_with("error[scripts]")).expect(&out);
    assert!(scripts.contains("; raise `maxmemory`") && !scripts.contains("EVAL"), "{out}");
    store.command(&["CONFIG", "SET", "maxmemory", "0"]);
    store.command(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_eq!(codes(&store), ["!replica"]);
}

#[test]
fn a_cluster_without_slots_is_an_error() {
    let store = running(&["--appendonly", "yes", "--cluster-enabled", "yes", "--port", "0"]);
    assert!(codes(&store).contains(&"!slots".to_owned()), "{:?}", codes(&store));
}

#[test]
fn every_cluster_primary_is_examined() {
    let cluster = Cluster::start();
    let (outcome, out, err) = doctor_at(&cluster.url(), &[]);
    assert_eq!((outcome, err.as_str()), (CommandOutcome::Success, ""), "{out}");
    assert_eq!(out.matches(": examined").count(), 3, "{out}");
    cluster.primaries[1].call_ok(&["ACL", "SETUSER", "default", "-eval"]);
    let (outcome, out, _) = doctor_at(&cluster.url(), &[]);
    assert_eq!(outcome, CommandOutcome::Negative);
    let expected = format!("error[scripts]: {}", cluster.primaries[1].address());
    assert!(out.contains(&expected) && out.matches("error[").count() == 1, "{out}");
}

/// Reason for the warning: an isolated old primary would grant permits in parallel with the primary
/// that the sentinels elected.
#[test]
fn sentinel_primary_that_accepts_writes_without_replicas_is_a_warning() {
    let watched = Watched::start();
    let inspect = || doctor_at(&watched.url("redis+sentinel://"), &[]);
    let warns = || inspect().1.contains("warning[two_primaries]");
    let (outcome, out, _) = inspect();
    assert_eq!(outcome, CommandOutcome::Success, "{out}");
    assert!(warns() && out.contains("set `min-replicas-to-write 1`"), "{out}");
    watched.primary.call_ok(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    assert!(!warns());
    watched.primary.call_ok(&["CONFIG", "SET", "min-replicas-max-lag", "0"]);
    assert!(warns(), "it counts no replica then");
    watched.primary.call_ok(&["ACL", "SETUSER", "default", "-info"]);
    assert!(!warns(), "nobody knows");
}

#[test]
fn an_unreachable_store_is_a_clear_error() {
    let absent = Redis::absent();
    let (outcome, out, err) = doctor(&absent, &[]);
    assert_eq!((outcome, out.as_str()), (CommandOutcome::Failed, ""));
    assert!(err.starts_with("error: ") && err.contains("redis.sock"), "{err}");
    // The error contains the message of the operating system and a fix, but no Rust debug output.
    assert!(err.contains(": No such file or directory") && !err.contains("Os {"), "{err}");
    assert!(err.contains("--store-url"), "{err}");
    let (outcome, _, err) = doctor(&absent, &["--no-such-flag"]);
    assert_eq!(outcome, CommandOutcome::Failed, "{err}");
    let memory = ["sluicegate", "doctor"].map(OsString::from).to_vec();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let outcome = cli::run(memory, [], &mut Terminal { out: &mut out, err: &mut err });
    assert_eq!(outcome, CommandOutcome::Failed);
    assert!(String::from_utf8(err).unwrap().contains(
        "no shared store is configured; set --store-url to the URL of a Redis or PostgreSQL"
    ));
}

#[test]
fn the_service_logs_store_problems_after_connecting() {
    let (mut store, limits) = (Redis::absent(), limits(10));
    let service = serve(limits.path(), &store.url(), &[]);
    assert!(!service.log().contains("evicts"));
    store.launch(&["--port", "0", "--maxmemory-policy", "allkeys-lfu"]);
    wait_until_ready(&service);
    let log = until("it is told", || match service.log() {
        log if log.contains("maxmemory-policy allkeys-lfu evicts counters") => Ok(log),
        log => Err(log),
    });
    assert!(log.unwrap().contains("set `maxmemory-policy noeviction`"));
}

/// Starts the service, and returns its log once it contains `text`.
fn log_with(store: &Redis, text: &str) -> String {
    let limits = limits(10);
    let service = serve(limits.path(), &store.url(), &[]);
    let log = until("it is logged", || match service.log() {
        log if log.contains(text) => Ok(log),
        log => Err(log),
    });
    log.unwrap()
}

/// A command that `rename-command` removed is missing, as in a server that never had it.
#[test]
fn a_missing_command_is_named_by_doctor_and_at_start() {
    for command in ["EVALSHA", "EVAL", "TIME", "ZADD"] {
        let store = running(&["--appendonly", "yes", "--rename-command", command, ""]);
        let (outcome, out, _) = doctor(&store, &[]);
        assert_eq!(outcome, CommandOutcome::Negative, "{out}");
        let expected = format!("lacks commands that Sluicegate needs: {command}; set `store.url`");
        assert!(out.starts_with("error[commands]: ") && out.contains(&expected), "{out}");
        let log = log_with(&store, "lacks commands");
        assert_eq!(log.matches("lacks commands").count(), 1, "{log}");
        assert!(log.contains(command) && log.contains("store.url"), "{log}");
    }
}

#[test]
fn a_forbidden_evalsha_is_logged_at_start_with_the_fix() {
    let store = running(&["--appendonly", "yes"]);
    store.command(&["ACL", "SETUSER", "default", "-evalsha"]);
    let log = log_with(&store, "rejected Sluicegate's scripts");
    assert!(log.contains("evalsha") && log.contains("allow EVAL, EVALSHA, SCRIPT LOAD"), "{log}");
}

/// Source: the blocked commands of Memorystore for Redis, of which `ElastiCache` blocks some.
#[test]
fn commands_that_managed_services_block_are_not_needed() {
    let blocked = ["ACL", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DEBUG", "MONITOR", "OBJECT"];
    let flags = blocked.iter().flat_map(|command| ["--rename-command", command, ""]);
    let store = running(&flags.chain(["--appendonly", "yes"]).collect::<Vec<_>>());
    let (outcome, out, _) = doctor(&store, &["--warnings-as-errors"]);
    assert_eq!(outcome, CommandOutcome::Success, "{out}");
    let limits = limits(10);
    let service = serve(limits.path(), &store.url(), &[]);
    wait_until_ready(&service);
    assert_eq!(check(&service, "deny", "k"), 200, "a store failure would deny");
}
