//! Bans in a fleet of real processes: they reach all replicas, and so do lifts by `sluicegate ban`.
//!
//! Each row shows a deliberate fault in the code, and a test that failed with it.
//!
//! | fault | failed test |
//! |---|---|
//! | a heartbeat has no bans | `a_ban_and_its_lift_reach_all_replicas` |
//! | the second counter of a penalty is not read | `a_ban_continues_after_a_restart_with_the_next_denial` |
//! | a received duration is not bounded by `for` | `a_hostile_row_bans_only_keys_of_penalties` |

use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{check, serve};
use crate::support::http1;
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::until;

pub const TOKEN: &str = "open-sesame-please";

/// No hit is allowed, so each check is a denial. `free` has no penalty.
const LIMITS: &str = "domain: d\ndescriptors:\n\
- {key: k, rate_limit: {unit: day, requests_per_unit: 0, penalty: {after: 4, within: 1h, for: 1h}}}\n\
- {key: free, rate_limit: {unit: day, requests_per_unit: 1000}}\n";

pub fn limits() -> TempDir {
    let files = tempfile::tempdir().unwrap();
    std::fs::write(files.path().join("d.yaml"), LIMITS).unwrap();
    files
}

fn replica(files: &Path, url: &str, node: &str) -> Service {
    let flags = ["--fleet-replica-name", node, "--listen-drain-delay", "0s"];
    serve(files, url, &[&flags[..], &["--admin-token", TOKEN]].concat())
}

/// Runs `sluicegate ban`. Returns the exit code and the output.
pub fn run_ban(service: &Service, words: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    command.arg("ban").args(words).args(["--server", &format!("http://{}", service.admin)]);
    let out = command.env("SLUICEGATE_ADMIN_TOKEN", TOKEN).output().unwrap();
    let Output { status, stdout, stderr } = out;
    (status.code(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

pub fn lift(service: &Service, descriptor: &str) -> (Option<i32>, String) {
    run_ban(service, &["lift", descriptor, "--domain", "d", "--reason", "ticket 7"])
}

fn page(service: &Service, path: &str) -> Value {
    let headers = [("authorization", &*format!("Bearer {TOKEN}"))];
    serde_json::from_slice(&http1::get(service.admin, path, &headers).unwrap().body).unwrap()
}

/// Waits until the replica lists these keys as banned.
pub fn wait_for_bans(service: &Service, wanted: &[&str]) {
    until("the bans", || {
        let shown = page(service, "/bans");
        let mut keys: Vec<_> = shown["bans"].as_array().unwrap().iter().collect();
        keys.sort_by_key(|ban| ban["descriptor"].to_string());
        let keys: Vec<_> = keys.iter().map(|ban| ban["descriptor"].as_str().unwrap()).collect();
        if keys == wanted { Ok(()) } else { Err(format!("{shown} {}", service.log())) }
    })
    .unwrap();
}

/// Returns the reason of the decision of the next check.
fn reason(service: &Service, descriptor: &str) -> String {
    let state = page(service, &format!("/counter?domain=d&descriptor={descriptor}"));
    state["reason"].as_str().unwrap().to_owned()
}

/// Sends denied checks, each to the next replica.
fn deny(fleet: &[&Service], value: &str, count: usize) {
    for service in fleet.iter().cycle().take(count) {
        assert_eq!(check(service, "k", value), 429);
    }
}

/// Asserts that strikes of all replicas over the store at `url` count together, and that all know a
/// ban and its lift.
pub fn assert_bans(url: &str) {
    let files = limits();
    let [a, b] = ["a", "b"].map(|node| replica(files.path(), url, node));
    for service in [&a, &b] {
        let is_seen = || match page(service, "/fleet")["live_replicas"].as_array().map(Vec::len) {
            Some(2) => Ok(()),
            other => Err(format!("{other:?}")),
        };
        until("the fleet is seen", is_seen).unwrap();
    }
    deny(&[&a, &b], "mild", 3);
    deny(&[&a, &b], "wild", 4);
    for service in [&a, &b] {
        wait_for_bans(service, &["k=wild"]);
        assert_eq!(
            [reason(service, "k=wild"), reason(service, "k=mild")],
            ["banned", "over_limit"]
        );
    }
    let (code, text) = run_ban(&b, &["list", "--domain", "d"]);
    assert!(code == Some(0) && text.starts_with("d k=wild until 2"), "{text}");
    assert!(text.ends_with(", by d.k\n"), "{text}");
    // A new replica learns the ban from the others.
    let c = replica(files.path(), url, "c");
    wait_for_bans(&c, &["k=wild"]);
    drop((a, b, c));
    // A restart of all replicas does not end the ban.
    let [a, b] = ["a", "b"].map(|node| replica(files.path(), url, node));
    deny(&[&a], "wild", 1);
    for service in [&a, &b] {
        wait_for_bans(service, &["k=wild"]);
    }
    let (code, text) = lift(&b, "k=mild");
    assert!(code == Some(1) && text.contains("no ban of this descriptor applies"), "{text}");
    let (code, text) = lift(&b, "k=wild");
    assert!(code == Some(0) && text.starts_with("k=wild is not banned any more"), "{text}");
    for service in [&a, &b] {
        wait_for_bans(service, &[]);
        assert_eq!(reason(service, "k=wild"), "over_limit");
    }
    // The lift removed the strikes, also the one after the restart.
    deny(&[&a, &b], "wild", 3);
    deny(&[&a, &b], "mild", 1);
    for service in [&a, &b] {
        wait_for_bans(service, &["k=mild"]);
        assert_eq!(reason(service, "k=wild"), "over_limit");
    }
    let entry = &page(&b, "/audit")["entries"][0];
    assert_eq!([&entry["action"], &entry["descriptor"]], ["lift", "k=wild"], "{entry}");
}

#[test]
fn a_ban_and_its_lift_reach_all_replicas() {
    let store = Redis::start();
    assert_bans(&store.url());
}

#[test]
fn a_hostile_row_bans_only_keys_of_penalties() {
    let (store, files) = (Redis::start(), limits());
    let url = store.url();
    let one = replica(files.path(), &url, "one");
    let ban = |descriptor: &str, domain: &str| json!({"domain": domain, "descriptor": descriptor, "left_ms": u64::MAX, "known_ms": u64::MAX, "number": 7});
    let mut bans = vec![
        ban("free=x", "d"),
        ban("unknown=x", "d"),
        ban("k=x", "other"),
        ban("not an entry", "d"),
        ban("", ""),
        ban(&format!("k={}", "y".repeat(100_000)), "d"),
        ban("k=x", "d"),
    ];
    bans.extend((0..10_000).map(|number| ban(&format!("free={number}"), "d")));
    let time = match store.command(&["TIME"]) {
        crate::support::resp::Value::Array(parts) => parts[0].text().parse::<u64>().unwrap(),
        other => panic!("{other:?}"),
    };
    let stamp = (time + 3_600) * 1_000_000;
    for (name, record) in [
        ("evil", json!({"bans": bans}).to_string()),
        ("broken", json!({"bans": [{"domain": 7, "left_ms": -1}]}).to_string()),
        ("cut", "{\"bans\": [{\"domain".to_owned()),
    ] {
        let row = format!("{stamp}:{record}");
        store.command(&["HSET", "sluicegatesg:{fleet}:members", name, &row]);
    }
    wait_for_bans(&one, &["k=x"]);
    let left = page(&one, "/counter?domain=d&descriptor=k=x")["reset_after_nanoseconds"].as_u64();
    assert!(left.unwrap() <= 3_600_000_000_000, "at most `for`: {left:?}");
    assert_eq!(check(&one, "free", "x"), 200);
    assert_eq!(lift(&one, "k=x").0, Some(0));
}
