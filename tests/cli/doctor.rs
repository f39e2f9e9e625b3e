//! `sluicegate doctor` and the store inspection at service start, against real servers.

use std::ffi::OsString;

use sluicegate::cli::{self, CommandOutcome, Terminal};

use crate::store::redis::{check, limits, serve, wait_until_ready};
use crate::support::cluster::Cluster;
use crate::support::redis::Redis;
use crate::support::resp::Value;
use crate::support::sentinel::Watched;
use crate::support::waiting::until;

/// The outcome, the standard output and the standard error of `doctor`.
type Report = (CommandOutcome, String, String);

/// Runs `doctor` until its report is as expected. Each Redis command of `doctor` fails after a
/// second, and a busy machine may need longer.
#[track_caller]
fn doctor(url: &str, more: &[&str], is_expected: impl Fn(&Report) -> bool) {
    until("the expected report", || {
        let report = doctor_at(url, more);
        if is_expected(&report) { Ok(()) } else { Err(format!("{report:?}")) }
    })
    .unwrap();
}

pub fn doctor_at(url: &str, more: &[&str]) -> Report {
    // A long store timeout, so that a loaded machine is not reported as a distant Redis.
    let line = ["sluicegate", "doctor", "--store-url", url, "--store-timeout", "10s"];
    let argv = line.iter().chain(more).map(OsString::from).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let outcome = cli::run(argv, [], &mut Terminal { out: &mut out, err: &mut err });
    (outcome, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

/// The codes of the findings of `sluicegate doctor --format json`. An `!` marks an error; the others
/// are warnings.
fn codes((_, out, _): &Report) -> Vec<String> {
    let report = serde_json::from_str(out).unwrap_or(serde_json::Value::Null);
    let code = |it: &serde_json::Value| {
        let mark = if it["severity"] == "error" { "!" } else { "" };
        format!("{mark}{}", it["code"].as_str().unwrap())
    };
    // Without a report, `doctor` could not connect.
    report["findings"]
        .as_array()
        .map_or(vec!["!no report".to_owned()], |findings| findings.iter().map(code).collect())
}

#[track_caller]
fn assert_codes(store: &Redis, expected: &[&str]) {
    doctor(&store.url(), &["--format", "json"], |report| codes(report) == expected);
}

#[track_caller]
fn assert_code(store: &Redis, expected: &str) {
    let has_code = |report: &Report| codes(report).iter().any(|code| code == expected);
    doctor(&store.url(), &["--format", "json"], has_code);
}

/// Runs `doctor` until its output contains all `texts`.
#[track_caller]
fn assert_reported(store: &Redis, more: &[&str], texts: &[&str]) {
    doctor(&store.url(), more, |(_, out, _)| texts.iter().all(|text| out.contains(text)));
}

fn running(flags: &[&str]) -> Redis {
    let mut store = Redis::absent();
    store.launch(&[&["--port", "0"], flags].concat());
    store
}

#[test]
fn missing_persistence_is_only_a_warning() {
    let store = running(&["--appendonly", "yes"]);
    doctor(&store.url(), &[], |(outcome, out, err)| {
        (*outcome, err.as_str()) == (CommandOutcome::Success, "")
            && out.ends_with("findings: 0 errors, 0 warnings\n")
    });
    assert_eq!(store.command(&["DBSIZE"]), Value::Int(0), "nothing is left behind");
    store.command(&["CONFIG", "SET", "appendonly", "no"]);
    let path = store.socket();
    let warning = format!(
        "warning[persistence]: {}: persistence is off, so a Redis restart loses all counters;",
        path.display()
    );
    // A warning makes no store unfit.
    for (more, wanted) in
        [(&[][..], CommandOutcome::Success), (&["--warnings-as-errors"], CommandOutcome::Negative)]
    {
        doctor(&store.url(), more, |(outcome, out, _)| {
            *outcome == wanted && out.starts_with(&warning)
        });
    }
}

#[test]
fn each_problem_of_a_store_is_reported() {
    let store = running(&["--appendonly", "yes", "--maxmemory-policy", "allkeys-lru"]);
    doctor(&store.url(), &[], |(outcome, out, _)| {
        *outcome == CommandOutcome::Negative
            && out.contains("error[eviction]")
            && out.contains("set `maxmemory-policy noeviction`")
    });
    store.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    assert_codes(&store, &[]);
    store.command(&["ACL", "SETUSER", "default", "-eval"]);
    assert_codes(&store, &["!scripts"]);
    store.command(&["ACL", "SETUSER", "default", "+eval"]);
    store.command(&["ACL", "SETUSER", "default", "-evalsha"]);
    assert_codes(&store, &["!scripts"]);
    // Without `SCRIPT LOAD`, a script's text is sent with its first call.
    store.command(&["ACL", "SETUSER", "default", "+evalsha", "-script|load"]);
    assert_codes(&store, &[]);
    store.command(&["ACL", "SETUSER", "default", "+script|load"]);
    store.command(&["ACL", "SETUSER", "default", "-setrange", "-zadd"]);
    assert_reported(&store, &[], &["error[scripts]", "(setrange, zadd: "]);
    store.command(&["ACL", "SETUSER", "default", "+setrange", "+zadd", "-expire"]);
    // Only the keys of envoyproxy/ratelimit need the command.
    assert_codes(&store, &[]);
    assert_reported(&store, &["--compat-store-key-format", "compat"], &["(expire: "]);
    store.command(&["ACL", "SETUSER", "default", "+expire"]);
    assert_eq!(store.command(&["DBSIZE"]), Value::Int(0), "nothing is left behind");
    store.command(&["ACL", "SETUSER", "default", "-info"]);
    assert_codes(&store, &["run_id"]);
    store.command(&["ACL", "SETUSER", "default", "+info"]);
    store.command(&["CONFIG", "SET", "maxmemory", "1mb"]);
    assert_code(&store, "memory");
    store.command(&["CONFIG", "SET", "maxmemory", "1"]);
    doctor(&store.url(), &[], |(_, out, _)| {
        let scripts = out.lines().find(|line| line.starts_with("error[scripts]"));
        scripts.is_some_and(|line| line.contains("; raise `maxmemory`") && !line.contains("EVAL"))
    });
    store.command(&["CONFIG", "SET", "maxmemory", "0"]);
    store.command(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_codes(&store, &["!replica"]);
}

#[test]
fn a_cluster_without_slots_is_an_error() {
    let store = running(&["--appendonly", "yes", "--cluster-enabled", "yes", "--port", "0"]);
    assert_code(&store, "!slots");
}

#[test]
fn every_cluster_primary_is_examined() {
    let cluster = Cluster::start();
    doctor(&cluster.url(), &[], |(outcome, out, err)| {
        (*outcome, err.as_str()) == (CommandOutcome::Success, "")
            && out.matches(": examined").count() == 3
    });
    cluster.primaries[1].call_ok(&["ACL", "SETUSER", "default", "-eval"]);
    let expected = format!("error[scripts]: {}", cluster.primaries[1].address());
    doctor(&cluster.url(), &[], |(outcome, out, _)| {
        *outcome == CommandOutcome::Negative
            && out.contains(&expected)
            && out.matches("error[").count() == 1
    });
}

/// Reason for the warning: an isolated old primary would grant permits in parallel with the primary
/// that the sentinels elected.
#[test]
fn sentinel_primary_that_accepts_writes_without_replicas_is_a_warning() {
    let watched = Watched::start();
    let url = watched.url("redis+sentinel://");
    let warns = |out: &str| out.contains("warning[two_primaries]");
    doctor(&url, &[], |(outcome, out, _)| {
        *outcome == CommandOutcome::Success
            && warns(out)
            && out.contains("set `min-replicas-to-write 1`")
    });
    watched.primary.call_ok(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    doctor(&url, &[], |(outcome, out, _)| *outcome == CommandOutcome::Success && !warns(out));
    // Redis then counts no replica.
    watched.primary.call_ok(&["CONFIG", "SET", "min-replicas-max-lag", "0"]);
    doctor(&url, &[], |(_, out, _)| warns(out));
    // The number of replicas is then unknown.
    watched.primary.call_ok(&["ACL", "SETUSER", "default", "-info"]);
    doctor(&url, &[], |(_, out, _)| !warns(out));
}

#[test]
fn an_unreachable_store_is_a_clear_error() {
    let absent = Redis::absent();
    let (outcome, out, err) = doctor_at(&absent.url(), &[]);
    assert_eq!((outcome, out.as_str()), (CommandOutcome::Failed, ""));
    assert!(err.starts_with("error: ") && err.contains("redis.sock"), "{err}");
    // The error contains the message of the operating system and a fix, but no Rust debug output.
    assert!(err.contains(": No such file or directory") && !err.contains("Os {"), "{err}");
    assert!(err.contains("--store-url"), "{err}");
    let (outcome, _, err) = doctor_at(&absent.url(), &["--no-such-flag"]);
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
        let expected = format!("lacks commands that Sluicegate needs: {command}; set `store.url`");
        doctor(&store.url(), &[], |(outcome, out, _)| {
            *outcome == CommandOutcome::Negative
                && out.starts_with("error[commands]: ")
                && out.contains(&expected)
        });
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
    assert!(log.contains("evalsha") && log.contains("allow EVAL, EVALSHA and the"), "{log}");
}

/// Source: the blocked commands of Memorystore for Redis, of which `ElastiCache` blocks some.
#[test]
fn commands_that_managed_services_block_are_not_needed() {
    let blocked = ["ACL", "CLIENT", "CLUSTER", "COMMAND", "CONFIG", "DEBUG", "MONITOR", "OBJECT"];
    let flags = blocked.iter().flat_map(|command| ["--rename-command", command, ""]);
    let store = running(&flags.chain(["--appendonly", "yes"]).collect::<Vec<_>>());
    let flags = ["--warnings-as-errors"];
    doctor(&store.url(), &flags, |(outcome, ..)| *outcome == CommandOutcome::Success);
    let limits = limits(10);
    let service = serve(limits.path(), &store.url(), &["--store-timeout", "9s"]);
    wait_until_ready(&service);
    assert_eq!(check(&service, "deny", "k"), 200, "a store failure would deny");
}
