//! Live counts of two real processes: the admin pages of one count the checks of both.

use serde_json::{Value as Json, json};

use super::membership::{start_replica, wait_for_members};
use super::{check, limits};
use crate::support::http1;
use crate::support::redis::Redis;
use crate::support::resp::Value;
use crate::support::service::{Service, sluicegate};
use crate::support::waiting::until;

fn page(service: &Service, path: &str) -> Json {
    let reply = http1::get(service.admin, path, &[]).unwrap();
    serde_json::from_slice(&reply.body).unwrap_or_else(|_| panic!("{path}: {}", reply.text()))
}

/// Reads the page until it counts the whole fleet.
fn fleet_page(service: &Service, path: &str) -> Json {
    until(path, || {
        let page = page(service, path);
        if page["scope"] == "fleet" { Ok(page) } else { Err(page.to_string()) }
    })
    .unwrap()
}

fn record(store: &Redis, replica: &str) -> String {
    match store.command(&["HGET", "sluicegatesg:{fleet}:members", replica]) {
        value @ Value::Text(_) => value.text(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn pages_of_one_replica_count_the_checks_of_both() {
    let (store, limits) = (Redis::start(), limits(3));
    let a = start_replica(limits.path(), &store, "a", &[]);
    let b = start_replica(limits.path(), &store, "b", &[]);
    wait_for_members(&a, &["a", "b"]);
    // Nobody looks, so nobody reports.
    assert!(!record(&store, "b").contains("\"live\""));
    for service in [&a, &b, &b, &b, &b] {
        check(service, "error", "x");
    }
    check(&b, "error", "only <b>");

    let top = fleet_page(&a, "/top?window=hour");
    let row = |descriptor: &str, hits: u64| {
        json!({
            "domain": "d", "path": "d.error", "descriptor": descriptor, "hits": hits, "error": 0,
        })
    };
    assert_eq!((&top["replicas"], &top["live_replicas"]), (&json!(2), &json!(2)));
    assert_eq!(top["all"], json!([row("error=x", 5), row("error=only <b>", 1)]));
    assert_eq!(top["denied"], json!([row("error=x", 2)]));
    assert_eq!((&top["all_total"], &top["denied_total"]), (&json!(6), &json!(2)));

    let counts = json!({
        "allow": 4, "deny": 2, "shadow_deny": 0, "fallback_allow": 0, "fallback_deny": 0,
    });
    let rule = fleet_page(&a, "/rule?domain=d&path=d.error");
    assert_eq!(rule["counts"], counts);
    assert_eq!(rule["used"], 1.0);
    assert_eq!(rule["replicas"], json!(["a", "b"]));
    assert_eq!(
        rule["top"]["hour"]["all"][0],
        json!({"descriptor": "error=x", "hits": 5, "error": 0})
    );
    let rules = fleet_page(&a, "/rules");
    assert_eq!(rules["rules"][0]["counts"], counts);
    assert_eq!(rules["replicas"], json!(["a", "b"]));

    let overview = fleet_page(&a, "/overview");
    let checks = json!({"allow": 4, "deny": 2, "shadow_deny": 0, "error": 0});
    assert_eq!(overview["checks"], checks);
    assert_eq!(overview["replicas"][1]["replica"], "b");
    let checks = json!({"allow": 3, "deny": 2, "shadow_deny": 0, "error": 0});
    assert_eq!(overview["replicas"][1]["checks"], checks);
    assert_eq!(overview["store"]["kind"], "redis");
}

#[test]
fn the_top_key_of_a_fleet_is_second_at_one_replica() {
    let (store, limits) = (Redis::start(), limits(100));
    let fleet = ["a", "b", "c"].map(|node| start_replica(limits.path(), &store, node, &[]));
    wait_for_members(&fleet[0], &["a", "b", "c"]);
    for (service, checks) in
        fleet.iter().zip([[("A", 10), ("B", 1)], [("B", 9), ("A", 1)], [("B", 9), ("C", 1)]])
    {
        for (value, count) in checks {
            (0..count).for_each(|_| assert_eq!(check(service, "error", value), 200));
        }
    }
    let top = fleet_page(&fleet[0], "/top?window=hour&limit=1");
    let row = json!({
        "domain": "d", "path": "d.error", "descriptor": "error=B", "hits": 19, "error": 0,
    });
    assert_eq!((&top["all"], &top["all_total"]), (&json!([row]), &json!(31)));
}

#[test]
fn reports_end_when_nobody_looks() {
    let (store, limits) = (Redis::start(), limits(3));
    let a = start_replica(limits.path(), &store, "a", &[]);
    let _b = start_replica(limits.path(), &store, "b", &[]);
    wait_for_members(&a, &["a", "b"]);
    until("a report", || {
        fleet_page(&a, "/rules");
        match record(&store, "b") {
            record if record.contains("\"live\"") => Ok(()),
            record => Err(record),
        }
    })
    .unwrap();
    until("no more reports", || {
        let (a, b) = (record(&store, "a"), record(&store, "b"));
        if a.contains("\"watch\"") || b.contains("\"live\"") { Err(a + &b) } else { Ok(()) }
    })
    .unwrap();
}

#[test]
fn the_command_top_prints_the_fleet_once() {
    let (store, limits) = (Redis::start(), limits(3));
    let a = start_replica(limits.path(), &store, "a", &[]);
    let b = start_replica(limits.path(), &store, "b", &[]);
    wait_for_members(&a, &["a", "b"]);
    for service in [&a, &b, &b, &b] {
        check(service, "error", "x");
    }
    let server = format!("http://{}", a.admin);
    let run = |more: &[&str]| {
        let mut command = sluicegate();
        let ended = command.args(["top", "--server", &server]).args(more).output().unwrap();
        let err = String::from_utf8(ended.stderr).unwrap();
        (ended.status.code(), String::from_utf8(ended.stdout).unwrap(), err)
    };
    let table = "\
last hour, 2 of 2 replicas: 4 hits, 1 denied
    DENIED       HITS   SHARE  RULE     DESCRIPTOR
         1          4  100.0%  d.error  error=x
";
    let expected = (Some(0), table.to_owned(), String::new());
    // The command waits for the reports of the others for seconds only.
    until("the whole fleet reports", || match run(&["--window", "hour", "--rule", "d.error"]) {
        found if found == expected => Ok(()),
        found => Err(format!("{found:?}")),
    })
    .unwrap();
    until("the whole fleet reports", || {
        let (code, out, _) = run(&["--window", "hour", "--format", "json"]);
        let json: Json = serde_json::from_str(&out).map_err(|error| error.to_string())?;
        let is_whole = code == Some(0) && json["all"][0]["hits"] == 4;
        if is_whole { Ok(()) } else { Err(out) }
    })
    .unwrap();

    drop(a);
    let (code, out, err) = run(&[]);
    assert_eq!((code, &*out), (Some(2), ""));
    assert!(err.contains(&server) && err.contains("refused"), "{err}");
}
