//! Tests that another rate limit service changes and delays no reply.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use serde_json::{Value, json};
use sluicegate::config::hooks::Hooks;
use sluicegate::config::settings::Percentage;
use sluicegate::edge::ReplyOptions;
use sluicegate::edge::body_memory::BodyLimits;
use sluicegate::edge::grpc::incoming::GrpcListener;
use sluicegate::edge::grpc::{GrpcPort, serve};
use sluicegate::edge::health::{Health, Readiness};
use sluicegate::edge::mirror::{Mirror, MirrorOptions, MirrorReport};
use sluicegate::kernel::units::Revision;
use sluicegate::source::xds::{XdsServer, connect_lazily};
use tokio::runtime::Runtime;
use tonic::transport::Endpoint;

use crate::support::certificates::Authority;
use crate::support::rate_limit_server::RateLimitServer;
use crate::support::service::Service;
use crate::support::waiting::{PATIENCE, until};
use crate::support::{http1, ports};

const LIMITS: &str = "domain: d\ndescriptors:\n\
- {key: k, rate_limit: {unit: year, requests_per_unit: 100}}\n";

fn start(to: &str, sample: &str) -> Service {
    let limits = tempfile::tempdir().unwrap();
    std::fs::write(limits.path().join("d.yaml"), LIMITS).unwrap();
    let flags = ["--mirror-to", to, "--mirror-sample", sample].map(str::to_owned);
    Service::start(limits.path(), &flags).unwrap()
}

/// Serves [`LIMITS`] with a mirror whose calls may take an hour. Returns the endpoint and the
/// results.
async fn serve_patiently(mirror: &RateLimitServer, sample: &str) -> (Endpoint, Arc<MirrorReport>) {
    let (host, port) = (mirror.address.ip().to_string(), mirror.address.port());
    let options = MirrorOptions {
        to: mirror.address.to_string(),
        sample: Percentage::new(sample).unwrap(),
        channel: connect_lazily(&XdsServer { host, port, tls: None }).unwrap(),
        call_timeout: Duration::from_secs(3_600),
    };
    let text = [("d.yaml", LIMITS.as_bytes())];
    let engine = super::engine(sluicegate::config::load(text, Revision(1), false).unwrap().0);
    let (mirror, worker) = Mirror::new(options, Arc::clone(&engine));
    let report = mirror.report();
    tokio::spawn(worker.run());
    let grpc = GrpcPort {
        engine,
        reporting: ReplyOptions::default(),
        health: Health::new(Readiness::Ready),
        hooks: Arc::new(Hooks::default()),
        reflection: false,
        tls: None,
        max_connections: 100,
        connection_age: None,
        mirror: Some(mirror),
        proxies: sluicegate::config::settings::ProxyAccess::Auto,
        bodies: BodyLimits::default(),
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(serve(GrpcListener::Tcp(listener), grpc, std::future::pending()));
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    (endpoint.timeout(PATIENCE), report)
}

fn request(value: &str) -> RateLimitRequest {
    let entry = Entry { key: "k".to_owned(), value: value.to_owned() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    RateLimitRequest { domain: "d".to_owned(), descriptors: vec![descriptor], hits_addend: 0 }
}

fn reply(code: Code) -> RateLimitResponse {
    RateLimitResponse { overall_code: code.into(), ..RateLimitResponse::default() }
}

/// Sends a check for each value, one after the other. Returns the number of allowed ones.
async fn send_to(endpoint: &Endpoint, values: impl IntoIterator<Item = String>) -> usize {
    let mut client = RateLimitServiceClient::connect(endpoint.clone()).await.unwrap();
    let mut allowed = 0;
    for value in values {
        let reply = client.should_rate_limit(request(&value)).await.unwrap().into_inner();
        allowed += usize::from(reply.overall_code() == Code::Ok);
    }
    allowed
}

fn send(service: &Service, values: impl IntoIterator<Item = String>) -> usize {
    Runtime::new().unwrap().block_on(send_to(&service.door(), values))
}

/// The checks of one user.
fn checks_of(user: &str, count: usize) -> impl Iterator<Item = String> {
    std::iter::repeat_n(user.to_owned(), count)
}

fn page(service: &Service) -> Value {
    let reply = http1::get(service.admin, "/mirror", &[]).unwrap();
    serde_json::from_slice(&reply.body).unwrap()
}

/// The counts of a page `/mirror`: equal, different, failed and dropped checks.
fn counts(page: &Value) -> [u64; 4] {
    let count = |outcome| page["checks"][outcome].as_u64().unwrap();
    ["equal", "different", "failed", "dropped"].map(count)
}

fn metric(service: &Service, result: &str) -> u64 {
    let page = http1::get(service.metrics, "/metrics", &[]).unwrap().text();
    let name = format!("sluicegate_mirror_checks_total{{result=\"{result}\"}} ");
    page.lines().find_map(|line| line.strip_prefix(&*name)).unwrap().parse().unwrap()
}

#[test]
fn a_silent_mirror_delays_no_reply_and_bounds_its_queue() {
    let silent = RateLimitServer::start(Box::new(|_| None));
    let runtime = Runtime::new().unwrap();
    let (endpoint, report) = runtime.block_on(serve_patiently(&silent, "100%"));
    let allowed = runtime.block_on(send_to(&endpoint, checks_of("ann", 500)));
    assert_eq!(allowed, 100, "the limit decides as without a mirror");
    // All replies came although no call of the mirror ended. The queue of one key has 64 checks.
    let [equal, different, failed, dropped] = counts(&report.to_json());
    assert_eq!([equal, different, failed], [0; 3]);
    assert!((500 - 65..=500 - 64).contains(&dropped), "{dropped} dropped");
}

#[test]
fn a_mirror_that_replies_again_is_compared_again() {
    let silent = RateLimitServer::start(Box::new(|_| None));
    let service = start(&silent.address.to_string(), "100%");
    send(&service, checks_of("ann", 1));
    until("a failed call", || match metric(&service, "failed") {
        0 => Err(page(&service).to_string()),
        _ => Ok(()),
    })
    .unwrap();
    silent.choose(Box::new(|_| Some(reply(Code::OverLimit))));
    until("a comparison", || {
        send(&service, checks_of("ann", 1));
        let page = page(&service);
        if page["checks"]["different"].as_u64() == Some(0) { Err(page.to_string()) } else { Ok(()) }
    })
    .unwrap();
    assert!(service.log().contains("a mirrored check failed"), "{}", service.log());
}

#[test]
fn a_dead_mirror_changes_no_reply() {
    let service = start(&ports::free().to_string(), "100%");
    let allowed = send(&service, checks_of("ann", 500));
    assert_eq!(allowed, 100, "the limit decides as without a mirror");
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
        Some(reply(Code::Ok))
    }));
    let runtime = Runtime::new().unwrap();
    let (endpoint, report) = runtime.block_on(serve_patiently(&mirror, "20%"));
    for _ in 0..3 {
        let users = (0..200).map(|user| user.to_string());
        assert_eq!(runtime.block_on(send_to(&endpoint, users)), 200);
    }
    let mut by_user = std::collections::BTreeMap::new();
    until("all comparisons", || {
        for user in mirrored.try_iter() {
            *by_user.entry(user).or_insert(0_u64) += 1;
        }
        let [equal, different, ..] = counts(&report.to_json());
        let seen: u64 = by_user.values().sum();
        if equal + different == seen && by_user.values().all(|count| *count == 3) && seen != 0 {
            Ok(())
        } else {
            Err(format!("{by_user:?}"))
        }
    })
    .unwrap();
    let [.., failed, dropped] = counts(&report.to_json());
    assert_eq!([failed, dropped], [0, 0]);
    // Binomial with n = 200 and p = 0.2: the standard deviation is 5.7 keys.
    let seen = by_user.len();
    assert!((15..=65).contains(&seen), "{seen} of 200 keys");
}

/// Two services with equal limits, of which the second mirrors its checks to the first over TLS.
fn start_over_tls(authority: &Authority) -> (Service, Service) {
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
    (other, service)
}

/// Sends `checks` of the user, and waits until the mirror has ended all of them. Returns the counts
/// of these checks.
fn mirror(service: &Service, user: &str, checks: usize) -> [u64; 4] {
    let before = counts(&page(service));
    send(service, checks_of(user, checks));
    until("all comparisons", || {
        let after = counts(&page(service));
        let grown: [u64; 4] = std::array::from_fn(|outcome| after[outcome] - before[outcome]);
        let all = grown.iter().sum::<u64>() == checks as u64;
        if all { Ok(grown) } else { Err(format!("{grown:?}")) }
    })
    .unwrap()
}

/// A call fails after 200 ms. Then the services have counted different checks, so the test begins
/// again with new services.
#[test]
fn a_mirror_over_tls_with_equal_limits_decides_alike() {
    const ATTEMPTS: usize = 20;
    let authority = Authority::new();
    for _ in 0..ATTEMPTS {
        let (_other, service) = start_over_tls(&authority);
        // The first call also connects.
        until("a connection", || match mirror(&service, "bob", 1) {
            [1, 0, 0, 0] => Ok(()),
            counts => Err(format!("{counts:?}: {}", service.log())),
        })
        .unwrap();
        // Fewer checks than the queue of one key has room for.
        let rounds = [(); 3].map(|()| mirror(&service, "ann", 40));
        if rounds.iter().all(|[_, _, failed, _]| *failed == 0) {
            assert_eq!(rounds, [[40, 0, 0, 0]; 3]);
            assert_eq!(page(&service)["rules"], json!([]));
            return;
        }
    }
    panic!("each attempt had a call of more than 200 ms");
}

#[test]
fn the_page_names_the_setting_without_a_mirror() {
    let limits = tempfile::tempdir().unwrap();
    std::fs::write(limits.path().join("d.yaml"), LIMITS).unwrap();
    let service = Service::start(limits.path(), &[]).unwrap();
    let reply = http1::get(service.admin, "/mirror", &[]).unwrap();
    assert_eq!((reply.status, &*reply.text()), (404, "there is no mirror: set mirror.to\n"));
}
