//! `sluicegate doctor` and the look that a service takes at its start, at real servers.

use std::ffi::OsString;

use sluicegate::cli::{self, Outcome, Terminal};

use super::{Store, limits, serve, wait_until_whole};
use crate::support::cluster::Cluster;
use crate::support::resp::Value;
use crate::support::sentinel::Watched;
use crate::waiting::until;

/// The outcome, standard output and standard error of `doctor` with these flags.
fn doctor(store: &Store, more: &[&str]) -> (Outcome, String, String) {
    doctor_at(&store.url(), more)
}

pub(super) fn doctor_at(url: &str, more: &[&str]) -> (Outcome, String, String) {
    // A crowded machine is no far Redis.
    let line = ["sluicegate", "doctor", "--backend", url, "--backend-deadline", "10s"];
    let argv = line.iter().chain(more).map(OsString::from).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let outcome = cli::run(argv, [], &mut Terminal { out: &mut out, err: &mut err });
    (outcome, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

/// The codes that `doctor --format json` tells, with `!` for an error.
fn codes(store: &Store) -> Vec<String> {
    let (_, out, err) = doctor(store, &["--format", "json"]);
    let told: serde_json::Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{err}"));
    let code = |it: &serde_json::Value| {
        let mark = if it["severity"] == "error" { "!" } else { "" };
        format!("{mark}{}", it["code"].as_str().unwrap())
    };
    told["findings"].as_array().unwrap().iter().map(code).collect()
}

fn running(flags: &[&str]) -> Store {
    let mut store = Store::absent();
    store.start(&[&["--port", "0"], flags].concat());
    store
}

#[test]
fn a_fit_store_is_said_to_be_and_one_that_forgets_at_a_restart_is_warned_of() {
    let store = running(&["--appendonly", "yes"]);
    let (outcome, out, err) = doctor(&store, &[]);
    assert_eq!((outcome, err.as_str()), (Outcome::Yes, ""), "{out}");
    assert!(out.ends_with("findings: 0 errors, 0 warnings\n"), "{out}");
    assert_eq!(store.tell(&["DBSIZE"]), Value::Int(0), "nothing is left behind");
    store.tell(&["CONFIG", "SET", "appendonly", "no"]);
    let (outcome, out, _) = doctor(&store, &[]);
    assert_eq!(outcome, Outcome::Yes, "a warning makes no store unfit: {out}");
    let path = store.socket();
    let told = format!("warning[persistence]: {}: nothing is kept over a restart;", path.display());
    assert!(out.starts_with(&told), "{out}");
    assert_eq!(doctor(&store, &["--warnings-as-errors"]).0, Outcome::No);
}

#[test]
fn what_makes_a_store_unfit_is_told_with_its_cure() {
    let store = running(&["--appendonly", "yes", "--maxmemory-policy", "allkeys-lru"]);
    let (outcome, out, _) = doctor(&store, &[]);
    assert_eq!(outcome, Outcome::No);
    assert!(out.contains("error[eviction]") && out.contains("set `maxmemory-policy noeviction`"));
    store.tell(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    assert!(codes(&store).is_empty());
    store.tell(&["ACL", "SETUSER", "default", "-eval"]);
    assert_eq!(codes(&store), ["!scripts"]);
    store.tell(&["ACL", "SETUSER", "default", "+eval"]);
    for command in ["evalsha", "script|load"] {
        store.tell(&["ACL", "SETUSER", "default", &format!("-{command}")]);
        assert_eq!(codes(&store), ["!scripts"], "{command}");
        store.tell(&["ACL", "SETUSER", "default", &format!("+{command}")]);
    }
    store.tell(&["ACL", "SETUSER", "default", "-setrange", "-zadd"]);
    let (_, out, _) = doctor(&store, &[]);
    assert!(out.contains("error[scripts]") && out.contains("(setrange, zadd: "), "{out}");
    store.tell(&["ACL", "SETUSER", "default", "+setrange", "+zadd", "-expire"]);
    assert!(codes(&store).is_empty(), "the reference's keys alone need it");
    let (_, out, _) = doctor(&store, &["--counter-keys", "envoyproxy"]);
    assert!(out.contains("(expire: "), "{out}");
    store.tell(&["ACL", "SETUSER", "default", "+expire"]);
    assert_eq!(store.tell(&["DBSIZE"]), Value::Int(0), "nothing is left behind");
    store.tell(&["ACL", "SETUSER", "default", "-info"]);
    assert_eq!(codes(&store), ["run_id"]);
    store.tell(&["ACL", "SETUSER", "default", "+info"]);
    store.tell(&["CONFIG", "SET", "maxmemory", "1mb"]);
    assert!(codes(&store).contains(&"memory".to_owned()));
    store.tell(&["CONFIG", "SET", "maxmemory", "1"]);
    let (_, out, _) = doctor(&store, &[]);
    let scripts = out.lines().find(|line| line.starts_with("error[scripts]")).expect(&out);
    assert!(scripts.contains("; raise `maxmemory`") && !scripts.contains("EVAL"), "{out}");
    store.tell(&["CONFIG", "SET", "maxmemory", "0"]);
    store.tell(&["REPLICAOF", "127.0.0.1", "1"]);
    assert_eq!(codes(&store), ["!replica"]);
}

#[test]
fn a_cluster_without_its_slots_is_unfit() {
    let store = running(&["--appendonly", "yes", "--cluster-enabled", "yes", "--port", "0"]);
    assert!(codes(&store).contains(&"!slots".to_owned()), "{:?}", codes(&store));
}

#[test]
fn every_primary_of_a_cluster_is_looked_at_and_takes_the_scripts() {
    let cluster = Cluster::start();
    let (outcome, out, err) = doctor_at(&cluster.url(), &[]);
    assert_eq!((outcome, err.as_str()), (Outcome::Yes, ""), "{out}");
    assert_eq!(out.matches(": looked at").count(), 3, "{out}");
    cluster.primaries[1].order(&["ACL", "SETUSER", "default", "-eval"]);
    let (outcome, out, _) = doctor_at(&cluster.url(), &[]);
    assert_eq!(outcome, Outcome::No);
    let said = format!("error[scripts]: {}", cluster.primaries[1].address());
    assert!(out.contains(&said) && out.matches("error[").count() == 1, "{out}");
}

/// One that lives on out of its sentinels' sight grants ceilings beside the one they choose.
#[test]
fn a_primary_of_sentinels_that_writes_without_a_replica_is_warned_of() {
    let watched = Watched::start();
    let looks = || doctor_at(&watched.url("redis+sentinel://"), &[]);
    let warns = || looks().1.contains("warning[two_primaries]");
    let (outcome, out, _) = looks();
    assert_eq!(outcome, Outcome::Yes, "{out}");
    assert!(warns() && out.contains("set `min-replicas-to-write 1`"), "{out}");
    watched.primary.order(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    assert!(!warns());
    watched.primary.order(&["CONFIG", "SET", "min-replicas-max-lag", "0"]);
    assert!(warns(), "it counts no replica then");
    watched.primary.order(&["ACL", "SETUSER", "default", "-info"]);
    assert!(!warns(), "nobody knows");
}

#[test]
fn what_cannot_be_looked_at_is_said_without_the_password() {
    let absent = Store::absent();
    let (outcome, out, err) = doctor(&absent, &[]);
    assert_eq!((outcome, out.as_str()), (Outcome::CouldNotSay, ""));
    assert!(err.starts_with("error: ") && err.contains("redis.sock"), "{err}");
    // The operating system's sentence, not the structure around it, and a cure.
    assert!(err.contains(": No such file or directory") && !err.contains("Os {"), "{err}");
    assert!(err.contains("--backend"), "{err}");
    let (outcome, _, err) = doctor(&absent, &["--no-such-flag"]);
    assert_eq!(outcome, Outcome::CouldNotSay, "{err}");
    let memory = ["sluicegate", "doctor"].map(OsString::from).to_vec();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let outcome = cli::run(memory, [], &mut Terminal { out: &mut out, err: &mut err });
    assert_eq!(outcome, Outcome::CouldNotSay);
    assert!(String::from_utf8(err).unwrap().contains("name one with --backend"));
}

#[test]
fn a_service_tells_what_is_amiss_once_it_has_its_redis_and_serves_all_the_same() {
    let (mut store, limits) = (Store::absent(), limits(10));
    let service = serve(limits.path(), &store.url(), &[]);
    assert!(!service.log().contains("evicts"));
    store.start(&["--port", "0", "--maxmemory-policy", "allkeys-lfu"]);
    wait_until_whole(&service);
    let log = until("it is told", || match service.log() {
        log if log.contains("maxmemory-policy allkeys-lfu evicts counters") => Ok(log),
        log => Err(log),
    });
    assert!(log.unwrap().contains("set `maxmemory-policy noeviction`"));
}
