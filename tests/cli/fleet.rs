//! `sluicegate fleet start` against real stores: which stores it starts, and what replicas grant then.

use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;

use crate::store::redis::serve;
use crate::support::cluster::Cluster;
use crate::support::http1;
use crate::support::postgres::Postgres;
use crate::support::service::{Service, sluicegate};
use crate::support::store_server::{StoreKind, StoreServer};
use crate::support::waiting::until;

const KINDS: [StoreKind; 2] = [StoreKind::Redis, StoreKind::Postgres];

/// With this `max_duration`, the grace period of `shared` is longer than any test. With this
/// heartbeat, that of `strict` is, too.
const LIMITS: &str = "domain: d\ndescriptors:\n\
- {key: shared, concurrency: {limit: 9, mode: shared, max_duration: 1h, on_store_failure: deny}}\n\
- {key: strict, concurrency: {limit: 9, mode: strict, max_duration: 1h, on_store_failure: deny}}\n";

const SLOW_HEARTBEAT: [&str; 4] = ["--fleet-heartbeat", "200s", "--fleet-share-expiry", "600s"];

fn limits() -> TempDir {
    let limits = tempfile::tempdir().unwrap();
    std::fs::write(limits.path().join("d.yaml"), LIMITS).unwrap();
    limits
}

/// Runs `fleet start`. Returns the exit code and the whole output.
fn start_fleet(url: &str, flags: &[&str]) -> (i32, String) {
    let mut command = sluicegate();
    command.args(["fleet", "start", "--store-url", url]).args(flags);
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = [stdout, stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (status.code().unwrap(), text)
}

/// Acquires a permit of the limit `mode`. Returns `true` if it was allowed.
fn acquire(service: &Service, mode: &str, number: u32) -> bool {
    let descriptor = format!("{mode}=all,sluicegate.acquire={mode}-{number:020}");
    let mut ask = sluicegate();
    ask.args(["ask", "--address", &service.grpc.to_string(), "--domain", "d"]);
    let output = ask.args(["--descriptor", &descriptor]).output().unwrap();
    match output.status.code() {
        Some(0) => true,
        Some(1) => false,
        _ => panic!("{output:?}"),
    }
}

/// A new replica grants both kinds of limits at its first request.
#[track_caller]
fn assert_first_requests_are_allowed(url: &str) {
    let limits = limits();
    let service = serve(limits.path(), url, &SLOW_HEARTBEAT);
    for mode in ["shared", "strict"] {
        assert!(acquire(&service, mode, 1), "{mode}: {}", service.log());
    }
    assert!(!service.log().contains("does not know the requests in flight"), "{}", service.log());
}

#[test]
fn the_first_request_after_a_fleet_start_is_allowed() {
    for kind in KINDS {
        let store = StoreServer::start(kind);
        let (code, text) = start_fleet(&store.url(), &[]);
        assert_eq!(code, 0, "{kind:?}: {text}");
        assert!(text.starts_with("started the fleet of "), "{kind:?}: {text}");
        assert_first_requests_are_allowed(&store.url());
        let (code, text) = start_fleet(&store.url(), &["--yes"]);
        assert_eq!((code, text.contains("nothing to start")), (0, true), "{kind:?}: {text}");
    }
}

#[test]
fn a_fleet_start_reaches_every_partition_of_a_cluster() {
    let cluster = Cluster::start();
    let (code, text) = start_fleet(&cluster.url(), &[]);
    assert_eq!(code, 0, "{text}");
    assert_first_requests_are_allowed(&cluster.url());
}

/// Waits until a replica has reported to an empty store, which `fleet start` then leaves alone.
fn wait_until_refused(url: &str) -> String {
    until("a store with a state", || match start_fleet(url, &["--reason", "a new store"]) {
        (1, text) => Ok(text),
        other => Err(format!("{other:?}")),
    })
    .unwrap()
}

#[test]
fn a_store_with_a_state_needs_a_confirmation() {
    for kind in KINDS {
        let (store, limits) = (StoreServer::start(kind), limits());
        let url = store.url();
        let service = serve(limits.path(), &url, &[]);
        assert!(!acquire(&service, "shared", 1), "{kind:?}: the store is new");
        let refusal = wait_until_refused(&url);
        assert!(refusal.contains("repeat with --yes"), "{kind:?}: {refusal}");
        let (code, text) = start_fleet(&url, &["--if-new"]);
        assert_eq!((code, text.contains("nothing started")), (0, true), "{kind:?}: {text}");
        assert!(!acquire(&service, "shared", 2), "{kind:?}: nothing was started");
        let line = "if none is in flight anywhere, run `sluicegate fleet start`";
        assert!(service.log().contains(line), "{kind:?}: {}", service.log());
        let (code, text) = start_fleet(&url, &["--yes", "--reason", "all proxies are down"]);
        assert_eq!((code, text.contains("started the fleet")), (0, true), "{kind:?}: {text}");
        let mut number = 2;
        until("a share", || {
            number += 1;
            if acquire(&service, "shared", number) { Ok(()) } else { Err(service.log()) }
        })
        .unwrap();
        assert_audited(&service);
    }
}

/// The audit log has the confirmed start alone.
#[track_caller]
fn assert_audited(service: &Service) {
    let page = http1::get(service.admin, "/audit", &[]).unwrap().text();
    let page: Value = serde_json::from_str(&page).unwrap();
    let entries = page["entries"].as_array().unwrap();
    let starts: Vec<_> = entries.iter().filter(|entry| entry["action"] == "fleet_start").collect();
    assert_eq!(starts.len(), 1, "{page}");
    assert_eq!(
        (&starts[0]["reason"], &starts[0]["detail"]),
        (&"all proxies are down".into(), &"yes".into())
    );
    assert_ne!(starts[0]["by"], "", "{page}");
}

#[test]
fn lost_data_under_a_running_fleet_is_no_new_store() {
    for kind in KINDS {
        let (store, limits) = (StoreServer::start(kind), limits());
        let url = store.url();
        assert_eq!(start_fleet(&url, &[]).0, 0, "{kind:?}");
        let service = serve(limits.path(), &url, &[]);
        assert!(acquire(&service, "shared", 1), "{kind:?}: {}", service.log());
        store.clear();
        until("a report to the empty store", || {
            let log = service.log();
            if log.contains("the store lost its share state") { Ok(()) } else { Err(log) }
        })
        .unwrap();
        wait_until_refused(&url);
    }
}

#[test]
fn a_fleet_start_without_an_answer_ends_with_two() {
    for (url, words) in [
        ("redis://127.0.0.1:1", "127.0.0.1:1"),
        ("postgres://me@127.0.0.1:1/db", "postgres://me@127.0.0.1:1/db"),
        ("memory", "set --store-url to redis://"),
    ] {
        let (code, text) = start_fleet(url, &[]);
        assert!(code == 2 && text.contains(words) && text.starts_with("error: "), "{url}: {text}");
    }
    let empty = Postgres::start_empty();
    let (code, text) = start_fleet(&empty.url(), &[]);
    assert!(code == 2 && text.contains("run `sluicegate migrate"), "{text}");
    let (code, text) = start_fleet("memory", &["--yes", "--if-new"]);
    assert!(code == 2 && text.contains("cannot be used with"), "{text}");
}
