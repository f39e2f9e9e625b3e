//! Tests that events reach another program, with the real binary and a receiver that fails.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use base64::Engine as _;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::support::certificates::Authority;
use crate::support::event_receiver::{EventReceiver, Received, Replies};
use crate::support::http1;
use crate::support::redis::Redis;
use crate::support::service::{Service, refused, sluicegate};
use crate::support::waiting::{unix_seconds, until};

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

const LIMITS: &str = "domain: d\ndescriptors:\n\
- {key: ten, rate_limit: {name: ten-a-year, unit: year, requests_per_unit: 10}}\n\
- {key: none, rate_limit: {unit: year, requests_per_unit: 0}}\n\
- {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 0}}\n";

fn write_files() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("limits")).unwrap();
    std::fs::write(directory.path().join("limits/d.yaml"), LIMITS).unwrap();
    std::fs::write(directory.path().join("secret"), SECRET).unwrap();
    directory
}

fn start(files: &TempDir, receiver: &EventReceiver, flags: &[&str]) -> Service {
    let secret = files.path().join("secret").display().to_string();
    let url = receiver.url();
    let own = ["--events-url", &url, "--events-secret-file", &secret, "--listen-drain-delay", "0"];
    let flags: Vec<_> = own.iter().chain(flags).map(|flag| (*flag).to_owned()).collect();
    Service::start(&files.path().join("limits"), &flags).unwrap()
}

/// Sends a check by `/json`, and returns its HTTP status.
fn check(service: &Service, key: &str, value: &str) -> u16 {
    let body = json!({"domain": "d", "descriptors": [{"entries": [{"key": key, "value": value}]}]});
    let body = body.to_string();
    http1::call(service.http, "POST", "/json", &[], Some(body.as_bytes())).unwrap().status
}

/// HMAC-SHA256 as RFC 2104 defines it, for a key of at most 64 bytes.
fn hmac(key: &[u8], message: &[u8]) -> Vec<u8> {
    let pad = |with: u8| {
        let mut block = [with; 64];
        block.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
        block
    };
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize().to_vec()
}

fn assert_signed(request: &Received) {
    let (id, at) = (request.header("webhook-id"), request.header("webhook-timestamp"));
    assert!(at.parse::<u64>().unwrap().abs_diff(unix_seconds()) < 60, "{at}");
    let message = [id.as_bytes(), b".", at.as_bytes(), b".", &request.body].concat();
    let signature = request.header("webhook-signature");
    let encoded = signature.strip_prefix("v1,").unwrap();
    let signature = base64::engine::general_purpose::STANDARD.decode(encoded).unwrap();
    assert_eq!(signature, hmac(SECRET, &message), "{request:?}");
    assert_eq!(request.header("content-type"), "application/cloudevents+json; charset=utf-8");
    assert_eq!(request.event()["id"], id);
}

fn metric(service: &Service, name: &str) -> u64 {
    let page = http1::get(service.metrics, "/metrics", &[]).unwrap().text();
    let line = page.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().parse().unwrap()
}

fn outcomes(service: &Service, outcome: &str) -> u64 {
    metric(service, &format!("sluicegate_events_total{{outcome=\"{outcome}\"}}"))
}

fn wait_for_delivery(service: &Service) {
    until("the delivery of all events", || {
        let left = metric(service, "sluicegate_events_undelivered");
        if left == 0 { Ok(()) } else { Err(format!("{left} left")) }
    })
    .unwrap();
}

#[test]
fn a_flaky_receiver_gets_each_threshold_once_by_id() {
    let (files, receiver) = (write_files(), EventReceiver::start(Replies::Flaky));
    let service =
        start(&files, &receiver, &["--events-kinds", "near_limit", "--events-kinds", "denied"]);
    for hit in 1..=13 {
        for user in 0..8 {
            let wanted = if hit <= 10 { 200 } else { 429 };
            assert_eq!(check(&service, "ten", &format!("user-{user}")), wanted, "hit {hit}");
        }
    }
    wait_for_delivery(&service);
    receiver.received().iter().for_each(assert_signed);
    let mut events: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for event in receiver.events() {
        let id = event["id"].as_str().unwrap().to_owned();
        events.entry(id).or_default().insert(event.to_string());
    }
    assert!(events.len() < receiver.received().len(), "some were accepted twice");
    let mut sent = BTreeSet::new();
    for versions in events.values() {
        assert_eq!(versions.len(), 1, "a repetition is equal: {versions:?}");
        let event: Value = serde_json::from_str(versions.first().unwrap()).unwrap();
        let data = &event["data"];
        let (kind, used) = (event["type"].as_str().unwrap(), data["remaining"].clone());
        sent.insert((data["descriptor"][0]["value"].as_str().unwrap().to_owned(), kind.to_owned()));
        let is_near = kind == "io.sluicegate.limit.near";
        assert_eq!(used, json!(if is_near { 2 } else { 0 }), "{event}");
        assert_eq!(data["used"], json!(if is_near { 0.8 } else { 1.0 }), "{event}");
        assert_eq!((&event["subject"], &data["limit"]), (&json!("d.ten"), &json!("ten-a-year")));
        assert_eq!((&data["requests"], &data["domain"]), (&json!(10), &json!("d")));
        assert_eq!(event["source"], "sluicegate");
    }
    assert_eq!((events.len(), sent.len()), (16, 16), "two for each user: {sent:?}");
    assert_eq!(outcomes(&service, "sent"), 16);
    assert!(16 <= outcomes(&service, "retried"), "every second request failed");
    assert_eq!((outcomes(&service, "dropped"), outcomes(&service, "expired")), (0, 0));
}

#[test]
fn a_silent_receiver_bounds_the_queue_and_delays_no_check() {
    let (files, receiver) = (write_files(), EventReceiver::start(Replies::Never));
    let mut service = start(&files, &receiver, &[]);
    for user in 0..1_300 {
        assert_eq!(check(&service, "none", &format!("user-{user}")), 429);
    }
    let queued = metric(&service, "sluicegate_events_undelivered");
    let dropped = outcomes(&service, "dropped");
    assert_eq!(queued + dropped, 1_300);
    assert_eq!(queued, 1_000, "events with a running request included");
    assert_eq!(check(&service, "none", "user-0"), 429);
    assert_eq!(outcomes(&service, "dropped"), dropped, "user 0 had its event");
    // To wait for a reply to each event would take longer than the test waits.
    service.terminate();
    assert!(service.ended().unwrap().success());
    assert!(service.log().contains("events dropped at shutdown"), "{}", service.log());
}

#[test]
fn events_are_delivered_after_the_receiver_restarts() {
    let (files, mut receiver) = (write_files(), EventReceiver::start(Replies::Accept));
    std::fs::write(files.path().join("secret"), "the secret before its rotation").unwrap();
    let service = start(&files, &receiver, &[]);
    receiver.close();
    assert_eq!(check(&service, "none", "ann"), 429);
    until("a retry", || match outcomes(&service, "retried") {
        0 | 1 => Err("none".to_owned()),
        _ => Ok(()),
    })
    .unwrap();
    // A rotated secret applies to the next attempt.
    std::fs::write(files.path().join("secret"), SECRET).unwrap();
    receiver.open();
    wait_for_delivery(&service);
    assert_eq!(receiver.received().len(), 1);
    receiver.received().iter().for_each(assert_signed);
    let log = service.log();
    assert!(log.contains("failed to send an event") && log.contains("refused"), "{log}");
}

#[test]
fn the_certificate_of_the_receiver_is_verified() {
    let authority = Authority::new();
    let (files, receiver) =
        (write_files(), EventReceiver::start_with_tls(&authority.sign(&["127.0.0.1"])));
    let trusting = start(&files, &receiver, &["--events-ca-file", &authority.ca()]);
    assert_eq!(check(&trusting, "none", "ann"), 429);
    wait_for_delivery(&trusting);
    assert_eq!(receiver.events().len(), 1);
    // The system's CAs did not sign the certificate.
    let other = start(&files, &receiver, &[]);
    assert_eq!(check(&other, "none", "ann"), 429);
    until("a failed attempt", || match outcomes(&other, "retried") {
        0 => Err(other.log()),
        _ => Ok(()),
    })
    .unwrap();
    assert!(other.log().contains("certificate"), "{}", other.log());
    assert_eq!(receiver.events().len(), 1);
}

#[test]
fn a_refused_event_is_not_retried() {
    let (files, receiver) = (write_files(), EventReceiver::start(Replies::Status(400)));
    let service = start(&files, &receiver, &[]);
    assert_eq!(check(&service, "none", "ann"), 429);
    wait_for_delivery(&service);
    assert_eq!((outcomes(&service, "refused"), receiver.requests()), (1, 1));
    assert!(service.log().contains("400 Bad Request, not retried"), "{}", service.log());
}

#[test]
fn the_longest_retry_after_ends_only_its_event() {
    let longest = Replies::RetryAfter("18446744073709551615");
    let (files, receiver) = (write_files(), EventReceiver::start(longest));
    let service = start(&files, &receiver, &[]);
    assert_eq!(check(&service, "none", "ann"), 429);
    wait_for_delivery(&service);
    assert_eq!((outcomes(&service, "expired"), receiver.requests()), (1, 1));
    receiver.reply(Replies::Accept);
    assert_eq!(check(&service, "none", "bob"), 429);
    wait_for_delivery(&service);
    assert_eq!((outcomes(&service, "sent"), receiver.events().len()), (1, 1));
}

#[test]
fn events_that_wait_for_a_retry_delay_no_other_event() {
    let (files, receiver) = (write_files(), EventReceiver::start(Replies::FailContaining("bad-")));
    let service = start(&files, &receiver, &[]);
    for user in 0..20 {
        assert_eq!(check(&service, "none", &format!("bad-{user}")), 429);
    }
    until("20 failed attempts", || match receiver.requests() {
        0..20 => Err("fewer".to_owned()),
        _ => Ok(()),
    })
    .unwrap();
    assert_eq!(check(&service, "none", "ann"), 429);
    until("the event of ann", || match receiver.events().len() {
        0 => Err(format!("{} requests", receiver.requests())),
        _ => Ok(()),
    })
    .unwrap();
    // The receiver counts a request before the service has its reply.
    until("the reply", || match metric(&service, "sluicegate_events_undelivered") {
        20 => Ok(()),
        other => Err(format!("{other} undelivered")),
    })
    .unwrap();
}

#[test]
fn redacted_values_are_in_no_event() {
    let (files, receiver) = (write_files(), EventReceiver::start(Replies::Accept));
    let flags = ["--telemetry-descriptor-values", "hidden"];
    let service = start(&files, &receiver, &flags);
    assert_eq!(check(&service, "shadow", "secret-value"), 200);
    wait_for_delivery(&service);
    let events = receiver.events();
    assert_eq!(events.len(), 1);
    assert_eq!(events[0]["data"]["descriptor"], json!([{"key": "shadow", "value": "*"}]));
    assert_eq!(events[0]["data"]["shadow"], true);
    assert!(!events[0].to_string().contains("secret-value"));
}

fn types(receiver: &EventReceiver) -> BTreeMap<String, usize> {
    let mut types = BTreeMap::new();
    for event in receiver.events() {
        *types.entry(event["type"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    types
}

#[test]
fn replicas_send_one_id_per_window_and_report_an_outage() {
    let (files, receiver, mut redis) =
        (write_files(), EventReceiver::start(Replies::Accept), Redis::start());
    let url = redis.url();
    let flags = |name| ["--store-url", &url, "--fleet-replica-name", name, "--store-timeout", "9s"];
    let replicas = ["one", "two"].map(|name| start(&files, &receiver, &flags(name)));
    for hit in 1..=14 {
        assert_eq!(check(&replicas[hit % 2], "ten", "ann"), if hit <= 10 { 200 } else { 429 });
    }
    replicas.iter().for_each(wait_for_delivery);
    let ids: BTreeSet<_> = receiver.events().iter().map(|event| event["id"].to_string()).collect();
    assert_eq!(ids.len(), 2, "one for each type");
    assert_eq!(types(&receiver)["io.sluicegate.limit.denied"], 2, "one of each replica");
    redis.kill();
    let (down, up) = ("io.sluicegate.store.unavailable", "io.sluicegate.store.available");
    let wait_for = |kind: &str| {
        until(kind, || {
            for replica in &replicas {
                check(replica, "ten", "bob");
            }
            let types = types(&receiver);
            if types.get(kind) == Some(&2) { Ok(()) } else { Err(format!("{types:?}")) }
        })
        .unwrap();
    };
    wait_for(down);
    redis.launch(&[]);
    wait_for(up);
    let of_outage: Vec<_> =
        receiver.events().into_iter().filter(|event| event["type"] == down).collect();
    let names: BTreeSet<_> =
        of_outage.iter().map(|event| event["data"]["replica"].to_string()).collect();
    assert_eq!(names.len(), 2, "{of_outage:?}");
}

#[test]
fn forced_decisions_are_events() {
    let (files, receiver) = (write_files(), EventReceiver::start(Replies::Accept));
    let service = start(&files, &receiver, &["--admin-token", "open-sesame-please"]);
    let post = |path: &str| {
        let token = [("authorization", "Bearer open-sesame-please")];
        http1::call(service.admin, "POST", path, &token, None).unwrap().status
    };
    let key = "?domain=d&descriptor=ten=ann";
    assert_eq!(post(&format!("/force{key}&as=deny&for=10m&reason=abuse")), 200);
    assert_eq!(check(&service, "ten", "ann"), 429);
    assert_eq!(post(&format!("/unforce{key}&reason=solved")), 200);
    wait_for_delivery(&service);
    let wanted =
        ["io.sluicegate.decision.forced", "io.sluicegate.decision.unforced"].map(str::to_owned);
    assert_eq!(types(&receiver).into_keys().collect::<Vec<_>>(), wanted);
    let events = receiver.events();
    let event = events.iter().find(|event| event["type"] == wanted[0]).unwrap();
    let shown = (&event["subject"], &event["data"]["value"], &event["data"]["reason"]);
    assert_eq!(shown, (&json!("d.ten"), &json!("deny"), &json!("abuse")));
}

#[test]
fn incidents_are_delivered_while_client_events_fill_the_queue() {
    let failing = Replies::FailContaining("io.sluicegate.limit.denied");
    let (files, receiver) = (write_files(), EventReceiver::start(failing));
    let service = start(&files, &receiver, &["--admin-token", "open-sesame-please"]);
    for user in 0..1_100 {
        assert_eq!(check(&service, "none", &format!("user-{user}")), 429);
    }
    assert!(100 <= outcomes(&service, "dropped"), "the queue is full");
    let token = [("authorization", "Bearer open-sesame-please")];
    let path = "/force?domain=d&descriptor=ten=ann&as=deny&for=10m&reason=abuse";
    assert_eq!(http1::call(service.admin, "POST", path, &token, None).unwrap().status, 200);
    until("the event of the forced decision", || match &*receiver.events() {
        [event] if event["type"] == "io.sluicegate.decision.forced" => Ok(()),
        events => Err(format!("{events:?}")),
    })
    .unwrap();
}

#[test]
fn an_unusable_secret_file_ends_the_start() {
    let files = write_files();
    let secret: &Path = &files.path().join("gone");
    let mut command = sluicegate();
    command.arg("serve").arg("--limits-paths").arg(files.path().join("limits"));
    command.arg("--events-url").arg("http://127.0.0.1:9/").arg("--events-secret-file").arg(secret);
    for port in ["grpc", "http", "admin", "metrics"] {
        command.arg(format!("--listen-{port}-port")).arg("0");
    }
    let (code, message) = refused(&mut command);
    assert_eq!(code, Some(2), "{message}");
    assert!(message.contains("(setting events.secret_file)"), "{message}");
    assert!(message.contains(&secret.display().to_string()), "{message}");
}
