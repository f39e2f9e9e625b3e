//! Limits that an operator holds at one answer, by the real command line, at a fleet of real processes.

use std::process::{Command, Output};

use super::fleet::member;
use super::{RULES, Store, ask, ask_all, limits, ready};
use crate::service::Service;
use crate::waiting::{for_a_day_with_a_minute_left, until};

const TOKEN: &str = "open-sesame";

/// `sluicegate ask` of the limit that `service` counts, with these words; its exit code and what it says.
fn typed(service: &Service, more: &[&str]) -> (Option<i32>, String) {
    typed_of(service, "local", more)
}

/// The same of the limit of this key.
fn typed_of(service: &Service, key: &str, more: &[&str]) -> (Option<i32>, String) {
    let (address, admin) = (service.grpc.to_string(), format!("http://{}", service.admin));
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    let descriptor = format!("{key}=v");
    command.args(["ask", "--address", &address, "--domain", "d", "--descriptor", &descriptor]);
    if more.iter().any(|word| ["--freeze", "--thaw", "--grant", "--reset"].contains(word)) {
        command.args(["--server", &admin]);
    }
    let out = command.args(more).env("SLUICEGATE_ADMIN_TOKEN", TOKEN).output().unwrap();
    let Output { status, stdout, stderr } = out;
    (status.code(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

/// Waits until a question is answered so there.
fn answers(service: &Service, wanted: u16) {
    until("the answer", || match ask(service, "local", "v") {
        found if found == wanted => Ok(()),
        found => Err(format!("{found}: {}", service.log())),
    })
    .unwrap();
}

fn replica(files: &std::path::Path, store: &Store, node: &str) -> Service {
    member(files, store, node, &["--admin-token", TOKEN])
}

fn sees_with_token(service: &Service, wanted: usize) {
    until("the fleet is seen", || {
        let headers = [("authorization", &*format!("Bearer {TOKEN}"))];
        let text = crate::http1::get(service.admin, "/fleet", &headers).unwrap().text();
        let shown: serde_json::Value = serde_json::from_str(&text).unwrap();
        let found = shown["members"].as_array().map_or(0, Vec::len);
        if found == wanted { Ok(()) } else { Err(text) }
    })
    .unwrap();
}

#[test]
fn what_is_held_at_one_replica_is_held_at_all_and_let_go_by_any() {
    let (store, files) = (Store::running(), limits(1_000_000));
    let [a, b] = ["a", "b"].map(|node| replica(files.path(), &store, node));
    for service in [&a, &b] {
        sees_with_token(service, 2);
    }
    assert_eq!(
        typed(&a, &["--freeze", "deny", "--for", "10m"]),
        (
            Some(0),
            "d.local denies everybody for 10m, at all 2 replicas within two seconds\n".into()
        )
    );
    for service in [&a, &b] {
        answers(service, 429);
    }
    let (code, said) = typed(&b, &["--peek"]);
    assert!(code == Some(1) && said.ends_with("may not pass\n"), "{said}");
    // Who starts later hears of it, and so does who forgot.
    let c = replica(files.path(), &store, "c");
    answers(&c, 429);
    drop(a);
    let a = replica(files.path(), &store, "a");
    answers(&a, 429);
    assert!(b.log().contains("another replica was told how a limit answers"), "{}", b.log());
    let (code, said) = typed(&c, &["--thaw"]);
    assert!(code == Some(0) && said.starts_with("d.local counts again, at all "), "{said}");
    for service in [&a, &b, &c] {
        answers(service, 200);
    }
    assert_eq!(typed(&c, &["--freeze", "allow", "--for", "10m"]).0, Some(0));
    let (code, said) = typed(&c, &["--hits", "2000000"]);
    assert!(
        code == Some(0) && said.starts_with("local=v: within") && said.ends_with("may pass\n"),
        "{said}"
    );
}

#[test]
fn without_the_store_one_replica_obeys_and_says_so_and_the_others_hear_of_it_once_it_is_back() {
    let (mut store, files) = (Store::running(), limits(1_000_000));
    let [a, b] = ["a", "b"].map(|node| replica(files.path(), &store, node));
    for service in [&a, &b] {
        sees_with_token(service, 2);
    }
    store.kill();
    until("the loss is noticed", || match ready(&a).text() {
        text if text.contains("does not answer") => Ok(()),
        text => Err(text),
    })
    .unwrap();
    let (code, said) = typed(&a, &["--freeze", "deny", "--for", "10m"]);
    let alone =
        "d.local denies everybody for 10m, at this replica alone: the store does not answer (";
    assert!(code == Some(0) && said.starts_with(alone), "{said}");
    assert!(said.ends_with("), and the others hear of it once it does\n"), "{said}");
    assert_eq!([ask(&a, "local", "v"), ask(&b, "local", "v")], [429, 200]);
    // A limit that says error speaks where the question is not denied without it.
    let both = |service| ask_all(service, &[("error", "v"), ("local", "v")]).status;
    assert_eq!([both(&a), both(&b)], [429, 400]);
    store.start(&["--port", "0"]);
    answers(&b, 429);
}

#[test]
fn a_counter_out_of_reach_is_not_said_to_be_changed_and_the_log_has_no_line_of_it() {
    let (mut store, files) = (Store::running(), limits(10));
    let limits = files.path().join("d.yaml");
    let leased = "- key: leased\n  rate_limit: {unit: day, requests_per_unit: 10, mode: leased, \
                  max_overshoot: 0}\n";
    let text = std::fs::read_to_string(&limits).unwrap() + leased;
    std::fs::write(&limits, text).unwrap();
    let one = replica(files.path(), &store, "one");
    sees_with_token(&one, 1);
    store.kill();
    for key in RULES.into_iter().chain(["leased"]) {
        for words in [&["--grant", "--hits", "5"][..], &["--reset"]] {
            let (code, said) = typed_of(&one, key, words);
            let is_told = said.contains(": 503 ") && said.contains("the store of counters d");
            assert!(code == Some(2) && is_told, "{key} {words:?}: {code:?} {said}");
        }
    }
    let (code, said) = typed_of(&one, "unknown", &["--reset"]);
    assert!(code == Some(2) && said.contains("no limit counts this descriptor"), "{said}");
    store.start(&["--port", "0"]);
    until("the counter is reset", || match typed(&one, &["--reset"]) {
        (Some(0), said) if said == "1 counter is empty\n" => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
    let changed = || one.log().matches("admin changed a counter").count();
    until("the change is logged", || if changed() == 0 { Err(one.log()) } else { Ok(()) }).unwrap();
    assert_eq!(changed(), 1, "{}", one.log());
}

#[test]
fn what_the_command_line_says_of_one_counter_and_of_one_replica_is_for_people() {
    for_a_day_with_a_minute_left();
    let (store, files) = (Store::running(), limits(10));
    let one = replica(files.path(), &store, "one");
    sees_with_token(&one, 1);
    assert_eq!(typed(&one, &["--hits", "10"]).0, Some(0));
    let (code, said) = typed(&one, &["--grant", "--hits", "4"]);
    assert!(
        code == Some(0) && said.starts_with("local=v: 4 of 10 left, whole again in "),
        "{said}"
    );
    assert_eq!(typed(&one, &["--reset"]), (Some(0), "1 counter is empty\n".into()));
    let (code, said) = typed(&one, &["--peek"]);
    assert!(
        code == Some(0) && said.starts_with("local=v: within, 10 of 10 per day left"),
        "{said}"
    );
    assert_eq!(
        typed(&one, &["--freeze", "deny", "--for", "1h"]),
        (Some(0), "d.local denies everybody for 1h\n".into())
    );
    assert_eq!(typed(&one, &["--thaw"]), (Some(0), "d.local counts again\n".into()));
    for (words, why) in [
        (&["--thaw"][..], "this limit is not held"),
        (&["--freeze", "deny", "--for", "25h"], "a limit is held for 1s to 24h"),
        (&["--freeze", "shut", "--for", "1m"], "neither deny nor allow"),
        (&["--freeze", "deny"], "--for"),
    ] {
        let (code, said) = typed(&one, words);
        assert!(code == Some(2) && said.contains(why), "{words:?}: {code:?} {said}");
    }
}
