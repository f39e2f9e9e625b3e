//! Tests that another rate limit service changes and delays no reply.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use serde_json::{Value, json};

use crate::support::certificates::Authority;
use crate::support::rate_limit_server::RateLimitServer;
use crate::support::service::Service;
use crate::support::waiting::{now, until};
use crate::support::{http1, ports};

const LIMITS: &str = "domain: d\ndescriptors:\n\
- {key: k, rate_limit: {unit: year, requests_per_unit: 100}}\n";

fn start(to: &str, sample: &str) -> Service {
    let limits = tempfile::tempdir().unwrap();
    std::fs::write(limits.path().join("d.yaml"), LIMITS).unwrap();
    let flags = ["--mirror-to", to, "--mirror-sample", sample].map(str::to_owned);
    Service::start(limits.path(), &flags).unwrap()
}

fn request(value: &str) -> RateLimitRequest {
    let entry = Entry { key: "k".to_owned(), value: value.to_owned() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    RateLimitRequest { domain: "d".to_owned(), descriptors: vec![descriptor], hits_addend: 0 }
}

/// Sends a check for each value, one after the other. Returns the number of allowed ones.
fn send(service: &Service, values: impl IntoIterator<Item = String>) -> usize {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut client = RateLimitServiceClient::connect(service.door()).await.unwrap();
        let mut allowed = 0;
        for value in values {
            let reply = client.should_rate_limit(request(&value)).await.unwrap().into_inner();
            allowed += usize::from(reply.overall_code() == Code::Ok);
        }
        allowed
    })
}

fn page(service: &Service) -> Value {
    let reply = http1::get(service.admin, "/mirror", &[]).unwrap();
    serde_json::from_slice(&reply.body).unwrap()
}

fn metric(service: &Service, result: &str) -> u64 {
    let page = http1::get(service.metrics, "/metrics", &[]).unwrap().text();
    let name = format!("sluicegate_mirror_checks_total{{result=\"{result}\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&*name)).unwrap().parse().unwrap()
}

/// Sends 500 checks, and asserts that none of them is compared and that no reply waits.
fn assert_replies_do_not_wait(to: &str) -> Service {
    let service = start(to, "100%");
    let began = now();
    let allowed = send(&service, (0..500).map(|_| "ann".to_owned()));
    let took = began.elapsed();
    assert_eq!(allowed, 100, "the limit decides as without a mirror");
    // If the replies waited, they would take 200 ms each: 100 s.
    assert!(took.as_secs() < 10, "{took:?}");
    service
}

#[test]
fn a_silent_mirror_delays_no_reply_and_bounds_its_queue() {
    let silent = RateLimitServer::start(Box::new(|_| None));
    let service = assert_replies_do_not_wait(&silent.address.to_string());
    assert!(400 <= metric(&service, "dropped"), "the queue of one key has 64 checks");
    // Once the other service replies, checks are compared again.
    let ok = || RateLimitResponse { overall_code: Code::OverLimit.into(), ..Default::default() };
    silent.choose(Box::new(move |_| Some(ok())));
    until("a comparison", || {
        send(&service, ["ann".to_owned()]);
        let page = page(&service);
        if page["checks"]["different"].as_u64() == Some(0) { Err(page.to_string()) } else { Ok(()) }
    })
    .unwrap();
    assert!(service.log().contains("a mirrored check failed"), "{}", service.log());
}

#[test]
fn a_dead_mirror_changes_no_reply() {
    let service = assert_replies_do_not_wait(&ports::free().to_string());
    until("failed calls", || {
        let (failed, dropped) = (metric(&service, "failed"), metric(&service, "dropped"));
        if failed + dropped == 500 { Ok(()) } else { Err(format!("{failed} and {dropped}")) }
    })
    .unwrap();
}

#[test]
fn all_checks_of_a_sampled_key_are_mirrored() {
    let (sender, mirrored) = std::sync::mpsc::channel();
    let mirror = RateLimitServer::start(Box::new(move |request| {
        sender.send(request.descriptors[0].entries[0].value.clone()).unwrap();
        Some(RateLimitResponse { overall_code: Code::Ok.into(), ..Default::default() })
    }));
    let service = start(&mirror.address.to_string(), "20%");
    let checks: u64 = 3 * 200;
    for _ in 0..3 {
        assert_eq!(send(&service, (0..200).map(|user| user.to_string())), 200);
    }
    let mut counts = std::collections::BTreeMap::new();
    until("all comparisons", || {
        for user in mirrored.try_iter() {
            *counts.entry(user).or_insert(0_u64) += 1;
        }
        let compared = metric(&service, "different") + metric(&service, "equal");
        let seen: u64 = counts.values().sum();
        if compared == seen && counts.values().all(|count| *count == 3) && seen != 0 {
            Ok(())
        } else {
            Err(format!("{counts:?}"))
        }
    })
    .unwrap();
    // Binomial with n = 200 and p = 0.2: the standard deviation is 5.7 keys.
    let seen: u64 = counts.values().sum();
    assert!((3 * 15..=3 * 65).contains(&seen), "{seen} of {checks}");
}

#[test]
fn a_mirror_over_tls_with_equal_limits_decides_alike() {
    let authority = Authority::new();
    let own = authority.sign(&["127.0.0.1"]);
    let limits = tempfile::tempdir().unwrap();
    std::fs::write(limits.path().join("d.yaml"), LIMITS).unwrap();
    let start = |flags: &[&str]| {
        let flags: Vec<_> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        Service::start(limits.path(), &flags).unwrap()
    };
    let other =
        start(&["--listen-tls-cert-file", &own.certificate, "--listen-tls-key-file", &own.key]);
    let (to, ca) = (other.grpc.to_string(), authority.ca());
    let tls = ["--mirror-use-tls", "--mirror-tls-ca-file", &ca];
    let service = start(&[&["--mirror-to", &to, "--mirror-sample", "100%"], &tls[..]].concat());
    for round in 1..=3 {
        // Fewer checks than the queue of one key has room for.
        assert!(send(&service, (0..40).map(|_| "ann".to_owned())) <= 40);
        until("all comparisons", || {
            let checks = page(&service)["checks"].clone();
            let sum: u64 = checks.as_object().unwrap().values().filter_map(Value::as_u64).sum();
            if sum == 40 * round { Ok(()) } else { Err(checks.to_string()) }
        })
        .unwrap();
    }
    let page = page(&service);
    assert_eq!((&page["checks"]["equal"], &page["rules"]), (&json!(120), &json!([])), "{page}");
}

#[test]
fn the_page_names_the_setting_without_a_mirror() {
    let limits = tempfile::tempdir().unwrap();
    std::fs::write(limits.path().join("d.yaml"), LIMITS).unwrap();
    let service = Service::start(limits.path(), &[]).unwrap();
    let reply = http1::get(service.admin, "/mirror", &[]).unwrap();
    assert_eq!((reply.status, &*reply.text()), (404, "there is no mirror: set mirror.to\n"));
}
