//! Forced decisions and counter changes by the real command line, in a fleet of real processes.

use std::process::{Command, Output};

use super::{RULES, check, check_all, limits, ready, serve};
use crate::support::redis::Redis;
use crate::support::resp::Value;
use crate::support::service::Service;
use crate::support::waiting::{for_a_day_with_a_minute_left, until};

const TOKEN: &str = "open-sesame-please";

/// Runs `sluicegate ask` for the limit of `local`. Returns the exit code and the output.
fn run_ask(service: &Service, more: &[&str]) -> (Option<i32>, String) {
    run_ask_for(service, "local", more)
}

fn run_ask_for(service: &Service, key: &str, more: &[&str]) -> (Option<i32>, String) {
    let (address, admin) = (service.grpc.to_string(), format!("http://{}", service.admin));
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    let descriptor = format!("{key}=v");
    command.args(["ask", "--address", &address, "--domain", "d", "--descriptor", &descriptor]);
    let changes = ["--force", "--unforce", "--refund", "--reset", "--boost", "--unboost"];
    if more.iter().any(|word| changes.contains(word)) {
        command.args(["--server", &admin, "--reason", "ticket 7"]);
    }
    let out = command.args(more).env("SLUICEGATE_ADMIN_TOKEN", TOKEN).output().unwrap();
    let Output { status, stdout, stderr } = out;
    (status.code(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

fn wait_for_status(service: &Service, wanted: u16) {
    until("the answer", || match check(service, "local", "v") {
        found if found == wanted => Ok(()),
        found => Err(format!("{found}: {}", service.log())),
    })
    .unwrap();
}

fn replica(files: &std::path::Path, store: &Redis, node: &str) -> Service {
    replica_of(files, &store.url(), node)
}

fn replica_of(files: &std::path::Path, url: &str, node: &str) -> Service {
    let flags = ["--fleet-replica-name", node, "--listen-drain-delay", "0s"];
    serve(files, url, &[&flags[..], &["--admin-token", TOKEN]].concat())
}

/// Repeats an action until it prints `expected`: a late heartbeat changes the text.
fn wait_for_output(service: &Service, key: &str, words: &[&str], expected: &str) {
    until("the output", || match run_ask_for(service, key, words) {
        (Some(0), output) if output == expected => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
}

fn wait_for_members(service: &Service, wanted: usize) {
    until("the fleet is seen", || {
        let headers = [("authorization", &*format!("Bearer {TOKEN}"))];
        let text = crate::support::http1::get(service.admin, "/fleet", &headers).unwrap().text();
        let shown: serde_json::Value = serde_json::from_str(&text).unwrap();
        let found = shown["live_replicas"].as_array().map_or(0, Vec::len);
        if found == wanted { Ok(()) } else { Err(text) }
    })
    .unwrap();
}

#[test]
fn forced_decision_applies_to_the_whole_fleet() {
    let store = Redis::start();
    assert_forced_decisions(&store.url());
}

/// Asserts that all replicas over the store at `url` apply a forced decision until it ends.
pub fn assert_forced_decisions(url: &str) {
    let files = limits(1_000_000);
    let [a, b] = ["a", "b"].map(|node| replica_of(files.path(), url, node));
    for service in [&a, &b] {
        wait_for_members(service, 2);
    }
    let forced = "d.local denies everything for 10m, at all 2 replicas within two seconds\n";
    wait_for_output(&a, "local", &["--force", "deny", "--for", "10m"], forced);
    for service in [&a, &b] {
        wait_for_status(service, 429);
    }
    let (code, output) = run_ask(&b, &["--peek"]);
    assert!(code == Some(1) && output.ends_with("deny\n"), "{output}");
    // A new replica learns the forced decision, and so does a restarted one.
    let c = replica_of(files.path(), url, "c");
    wait_for_status(&c, 429);
    drop(a);
    let a = replica_of(files.path(), url, "a");
    wait_for_status(&a, 429);
    assert!(b.log().contains("another replica changed an action"), "{}", b.log());
    let (code, output) = run_ask(&c, &["--unforce"]);
    assert!(code == Some(0) && output.starts_with("d.local is enforced again, at "), "{output}");
    for service in [&a, &b, &c] {
        wait_for_status(service, 200);
    }
    assert_eq!(run_ask(&c, &["--force", "allow", "--for", "10m"]).0, Some(0));
    let (code, output) = run_ask(&c, &["--hits", "2000000"]);
    assert!(
        code == Some(0) && output.starts_with("local=v: within") && output.ends_with("allow\n"),
        "{output}"
    );
}

#[test]
fn forced_decision_reaches_other_replicas_once_the_store_returns() {
    let (mut store, files) = (Redis::start(), limits(1_000_000));
    let [a, b] = ["a", "b"].map(|node| replica(files.path(), &store, node));
    for service in [&a, &b] {
        wait_for_members(service, 2);
    }
    store.kill();
    until("the loss is noticed", || match ready(&a).text() {
        text if text.contains("is unavailable") => Ok(()),
        text => Err(text),
    })
    .unwrap();
    let (code, output) = run_ask(&a, &["--force", "deny", "--for", "10m"]);
    let alone =
        "d.local denies everything for 10m, at this replica only: the store is unavailable (";
    assert!(code == Some(0) && output.starts_with(alone), "{output}");
    assert!(output.ends_with("); other replicas follow once the store is available\n"), "{output}");
    assert_eq!([check(&a, "local", "v"), check(&b, "local", "v")], [429, 200]);
    // An `error` fallback applies only if no other limit denies the check.
    let both = |service| check_all(service, &[("error", "v"), ("local", "v")]).status;
    assert_eq!([both(&a), both(&b)], [429, 400]);
    store.launch(&["--port", "0"]);
    wait_for_status(&b, 429);
}

#[test]
fn unreachable_counter_is_never_reported_as_changed() {
    let (mut store, files) = (Redis::start(), limits(10));
    let limits = files.path().join("d.yaml");
    let leased = "- key: leased\n  rate_limit: {unit: day, requests_per_unit: 10, mode: leased, \
                  max_overshoot: 0}\n";
    let text = std::fs::read_to_string(&limits).unwrap() + leased;
    std::fs::write(&limits, text).unwrap();
    let one = replica(files.path(), &store, "one");
    wait_for_members(&one, 1);
    store.kill();
    for key in RULES.into_iter().chain(["leased"]) {
        for words in [&["--refund", "--hits", "5"][..], &["--reset"]] {
            let (code, output) = run_ask_for(&one, key, words);
            let is_refused =
                output.contains(": 503 ") && output.contains("the store is unavailable");
            assert!(code == Some(2) && is_refused, "{key} {words:?}: {code:?} {output}");
        }
    }
    let (code, output) = run_ask_for(&one, "unknown", &["--reset"]);
    assert!(code == Some(2) && output.contains("no limit counts this descriptor"), "{output}");
    store.launch(&["--port", "0"]);
    until("the counter is reset", || match run_ask(&one, &["--reset"]) {
        (Some(0), output) if output == "1 counter reset\n" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
    let is_confirmed =
        |line: &&str| line.contains("operator action") && !line.contains("unconfirmed");
    let changed = || one.log().lines().filter(is_confirmed).count();
    until("the change is logged", || if changed() == 0 { Err(one.log()) } else { Ok(()) }).unwrap();
    assert_eq!(changed(), 1, "{}", one.log());
}

#[test]
fn the_ask_command_prints_readable_results() {
    let store = Redis::start();
    assert_counter_changes(&store.url());
}

/// Asserts the results of `ask` over the store at `url`: refund, reset, peek and forced decisions.
pub fn assert_counter_changes(url: &str) {
    for_a_day_with_a_minute_left();
    let files = limits(10);
    let one = replica_of(files.path(), url, "one");
    wait_for_members(&one, 1);
    assert_eq!(run_ask(&one, &["--hits", "10"]).0, Some(0));
    let (code, output) = run_ask(&one, &["--refund", "--hits", "4"]);
    assert!(
        code == Some(0)
            && output.starts_with("local=v: 6 of 10 used, 4 of 10 remaining, resets in "),
        "{output}"
    );
    assert_eq!(run_ask(&one, &["--reset"]), (Some(0), "1 counter reset\n".into()));
    let (code, output) = run_ask(&one, &["--peek"]);
    assert!(
        code == Some(0) && output.starts_with("local=v: within, 10 of 10 per day remaining"),
        "{output}"
    );
    let forced = "d.local denies everything for 1h\n";
    wait_for_output(&one, "local", &["--force", "deny", "--for", "1h"], forced);
    assert_eq!(run_ask(&one, &["--unforce"]), (Some(0), "d.local is enforced again\n".into()));
    for (words, why) in [
        (&["--unforce"][..], "no action of this kind applies"),
        (&["--force", "deny", "--for", "25h"], "`for` must be 1s to 24h"),
        (&["--force", "shut", "--for", "1m"], "`as` must be deny or allow, got `shut`"),
        (&["--force", "deny"], "--for"),
    ] {
        let (code, output) = run_ask(&one, words);
        assert!(code == Some(2) && output.contains(why), "{words:?}: {code:?} {output}");
    }
}

/// Returns the entries of `/audit`: action, detail and operator, newest first.
fn audit_entries(service: &Service) -> Vec<[String; 3]> {
    let headers = [("authorization", &*format!("Bearer {TOKEN}"))];
    let text = crate::support::http1::get(service.admin, "/audit", &headers).unwrap().text();
    let page: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(page["survives_restart"], true, "{text}");
    let field = |entry: &serde_json::Value, name: &str| entry[name].as_str().unwrap().to_owned();
    let entry = |entry| ["action", "detail", "by"].map(|name| field(entry, name));
    page["entries"].as_array().unwrap().iter().map(entry).collect()
}

/// Asserts over the store at `url` that a boosted key and a forced key differ from other keys, and
/// that actions and the audit log survive a restart of the last replica.
pub fn assert_key_actions(url: &str) {
    for_a_day_with_a_minute_left();
    let files = limits(5);
    let a = replica_of(files.path(), url, "a");
    wait_for_members(&a, 1);
    assert_eq!(
        run_ask(&a, &["--boost", "x2", "--for", "1h"]),
        (Some(0), "local=v has 2 times its limit for 1h\n".into())
    );
    let deny_key = ["--force", "deny", "--for", "1h", "--scope", "key"];
    assert_eq!(
        run_ask_for(&a, "error", &deny_key),
        (Some(0), "error=v denies everything for 1h\n".into())
    );
    drop(a);
    let b = replica_of(files.path(), url, "b");
    let wanted = [["force", "deny for 1h", "admin"], ["boost", "x2 for 1h", "admin"]];
    let is_known = || match audit_entries(&b) {
        entries if entries == wanted => Ok(()),
        entries => Err(format!("{entries:?}")),
    };
    until("the audit log is read", is_known).unwrap();
    wait_for_members(&b, 1);
    let is_boosted = || match run_ask(&b, &["--peek"]).1 {
        output if output.contains(" of 10 per day") => Ok(()),
        output => Err(output),
    };
    until("the boost is read", is_boosted).unwrap();
    assert_eq!(run_ask(&b, &["--hits", "10"]).0, Some(0), "the boost continues: {}", b.log());
    assert_eq!(run_ask(&b, &[]).0, Some(1));
    assert_eq!(check(&b, "error", "v"), 429);
    assert_eq!(check(&b, "error", "other"), 200);
    assert_eq!(
        run_ask(&b, &["--unboost"]),
        (Some(0), "local=v has its configured limit again\n".into())
    );
    drop(b);
    let c = replica_of(files.path(), url, "c");
    wait_for_members(&c, 1);
    assert_eq!(audit_entries(&c)[0], ["unboost", "", "admin"]);
    // Before C has read the log, a heartbeat of B from before the end can boost the key.
    let is_ended = || match run_ask(&c, &["--peek"]).1 {
        output if output.contains(" of 5 per day") => Ok(()),
        output => Err(output),
    };
    until("the end of the boost is read", is_ended).unwrap();
}

#[test]
fn actions_on_keys_survive_a_restart_of_all_replicas() {
    let store = Redis::start();
    assert_key_actions(&store.url());
}

#[test]
fn an_action_during_an_outage_reaches_the_audit_log_later() {
    let (mut store, files) = (Redis::start(), limits(10));
    let a = replica(files.path(), &store, "a");
    wait_for_members(&a, 1);
    store.kill();
    until("the loss is noticed", || match ready(&a).text() {
        text if text.contains("is unavailable") => Ok(()),
        text => Err(text),
    })
    .unwrap();
    assert_eq!(run_ask(&a, &["--force", "deny", "--for", "1h"]).0, Some(0));
    store.launch(&["--port", "0"]);
    until("the store has the entry", || {
        let count = store.command(&["HLEN", "sluicegatesg:{fleet}:audit"]);
        if count == Value::Int(1) { Ok(()) } else { Err(format!("{count:?} {}", a.log())) }
    })
    .unwrap();
}
