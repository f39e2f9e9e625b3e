//! Releases that reach a replica other than the permit's owner: real processes over one Redis.

mod drain;
mod faults;
mod log_lines;
mod replies;
mod search;
mod trust;

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};

use envoy_types::pb::envoy::config::core::v3::Metadata;
use envoy_types::pb::envoy::data::accesslog::v3::{
    AccessLogCommon, AccessLogType, HttpAccessLogEntry, HttpRequestProperties,
};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::accesslog::v3::StreamAccessLogsMessage;
use envoy_types::pb::envoy::service::accesslog::v3::access_log_service_client::AccessLogServiceClient;
use envoy_types::pb::envoy::service::accesslog::v3::stream_access_logs_message::{
    HttpAccessLogEntries, LogEntries,
};
use envoy_types::pb::envoy::service::auth::v3::attribute_context::{HttpRequest, Request};
use envoy_types::pb::envoy::service::auth::v3::authorization_client::AuthorizationClient;
use envoy_types::pb::envoy::service::auth::v3::check_response::HttpResponse;
use envoy_types::pb::envoy::service::auth::v3::{AttributeContext, CheckRequest, CheckResponse};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::Struct;
use envoy_types::pb::google::protobuf::value::Kind;
use sluicegate::edge::grpc::permits::api::permits_client::PermitsClient;
use sluicegate::edge::grpc::permits::api::{
    AcquireRequest, Descriptor, Entry as Own, Outcome, ReleaseRequest, RenewRequest,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tonic::transport::Channel;

use super::membership::fleet_page;
use super::{metric, serve};
use crate::support::http1;
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::until;

const HOOKS: &str = r#"[{"name": "edge", "domain": "edge", "descriptors": [
    [{"generic_key": {"descriptor_key": "upstream", "descriptor_value": "all"}}]]}]"#;

const OWNER: &str = "x-sluicegate-owner";

/// Replicas over one store, each with a local concurrency limit.
struct PeerFleet {
    store: Redis,
    limits: TempDir,
    runtime: Runtime,
    fleet: Vec<Service>,
}

const NODES: [&str; 3] = ["a", "b", "c"];

impl PeerFleet {
    fn of(replicas: usize) -> Self {
        Self::with(replicas, &[])
    }

    fn with(replicas: usize, flags: &[&str]) -> Self {
        Self::each(&vec![flags.to_vec(); replicas])
    }

    fn each(flags: &[Vec<&str>]) -> Self {
        let limits = tempfile::tempdir().unwrap();
        // No wait ends because a permit expires.
        let ceiling = "concurrency: {limit: 1000, mode: local, max_duration: 10m}";
        let text =
            format!("domain: edge\ndescriptors:\n- key: upstream\n  value: all\n  {ceiling}\n");
        std::fs::write(limits.path().join("edge.yaml"), text).unwrap();
        let (store, runtime) = (Redis::start(), Runtime::new().unwrap());
        let mut scene = Self { store, limits, runtime, fleet: Vec::new() };
        scene.fleet = (0..flags.len()).map(|at| scene.serve(NODES[at], &flags[at])).collect();
        scene.wait_until_peers_known();
        scene
    }

    fn serve(&self, node: &str, flags: &[&str]) -> Service {
        let mut all = vec!["--fleet-replica-name", node, "--hooks", HOOKS];
        all.extend(["--listen-syslog-port", "0", "--listen-drain-delay", "0s"].iter().chain(flags));
        serve(self.limits.path(), &self.store.url(), &all)
    }

    /// Waits until each replica knows the current peer address of all others.
    fn wait_until_peers_known(&self) {
        let own = |service: &Service| {
            service
                .said
                .lines()
                .find_map(|line| line.strip_prefix("peer listening on ").map(str::to_owned))
        };
        let wanted: Vec<_> = self.fleet.iter().map(own).collect();
        for service in &self.fleet {
            until("all replicas are seen", || {
                let seen = fleet_page(service);
                let members = seen["live_replicas"].as_array().unwrap();
                let peers: Vec<_> =
                    members.iter().map(|m| m["peer"].as_str().map(str::to_owned)).collect();
                if peers == wanted { Ok(()) } else { Err(format!("{seen} {}", service.log())) }
            })
            .unwrap();
        }
    }

    fn channel(&self, replica: usize) -> Channel {
        let _inside = self.runtime.enter();
        self.fleet[replica].door().connect_lazy()
    }

    fn in_flight(&self, replica: usize) -> u64 {
        metric(&self.fleet[replica], "sluicegate_requests_in_flight")
    }

    fn early_releases(&self) -> Vec<u64> {
        self.fleet.iter().map(|one| metric(one, "sluicegate_early_releases")).collect()
    }

    /// Asserts that no release was taken for an early one, except after searches of `replica` that
    /// ended before the owner replied.
    fn assert_early_releases_only_after_slow_searches(&self, replica: usize) {
        let not_found = peer_events(&self.fleet[replica], "not_found");
        let (early, all) = (self.early_releases(), self.fleet.len() as u64);
        assert!(early.iter().sum::<u64>() <= not_found * all, "{early:?} after {not_found}");
    }

    fn wait_until_idle(&self, replica: usize) {
        until("nothing is in flight", || match self.in_flight(replica) {
            0 => Ok(()),
            some => Err(format!("{some}: {}", self.fleet[replica].log())),
        })
        .unwrap();
    }

    /// Acquires a permit and returns the owner that the reply names.
    fn acquire(&self, protocol: Protocol, replica: usize, id: &str) -> String {
        match protocol {
            Protocol::Rls => {
                let reply =
                    self.rls(replica, &[(&[("upstream", "all"), ("sluicegate.acquire", id)], 1)]);
                let headers = reply.response_headers_to_add.iter();
                let named = headers.filter(|header| header.key == OWNER).map(|h| h.value.clone());
                let named = named.collect::<Vec<_>>().concat();
                assert_eq!(owner_in(reply.dynamic_metadata.as_ref()), named, "header and metadata");
                named
            }
            Protocol::ExtAuthz => self.acquire_by_ext_authz(replica, id),
            Protocol::Nginx => {
                let headers = [
                    ("x-original-uri", "/"),
                    ("x-original-method", "GET"),
                    ("x-real-ip", "192.0.2.1"),
                    ("x-sluicegate-id", id),
                ];
                let reply = http1::get(self.fleet[replica].http, "/check", &headers).unwrap();
                assert_eq!(reply.status, 200);
                reply.header(OWNER).unwrap().to_owned()
            }
            Protocol::Permits => {
                let entries = vec![Own { key: "upstream".into(), value: "all".into() }];
                let descriptors = vec![Descriptor { entries, hits: None }];
                let (id, domain) = (id.to_owned(), "edge".to_owned());
                let asked = AcquireRequest { id, domain, descriptors, max_wait_us: None };
                let mut client = PermitsClient::new(self.channel(replica));
                self.runtime.block_on(client.acquire(asked)).unwrap().into_inner().owner
            }
        }
    }

    fn denial_headers(&self, replica: usize, id: &str) -> Vec<String> {
        match self.ext_authz(replica, id).http_response {
            Some(HttpResponse::DeniedResponse(denied)) => {
                denied.headers.into_iter().filter_map(|one| Some(one.header?.key)).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    fn acquire_by_ext_authz(&self, replica: usize, id: &str) -> String {
        let reply = self.ext_authz(replica, id);
        let Some(HttpResponse::OkResponse(ok)) = reply.http_response else { panic!("{reply:?}") };
        let headers = ok.response_headers_to_add.into_iter().filter_map(|one| one.header);
        let named: String = headers.filter(|h| h.key == OWNER).map(|h| h.value).collect();
        assert_eq!(owner_in(reply.dynamic_metadata.as_ref()), named, "header and metadata");
        named
    }

    fn ext_authz(&self, at: usize, id: &str) -> CheckResponse {
        let headers = std::iter::once(("x-sluicegate-id".to_owned(), id.to_owned())).collect();
        let http = HttpRequest { headers, ..HttpRequest::default() };
        let request = Some(Request { http: Some(http), ..Request::default() });
        let attributes = Some(AttributeContext { request, ..AttributeContext::default() });
        let mut client = AuthorizationClient::new(self.channel(at));
        let asked = client.check(CheckRequest { attributes });
        self.runtime.block_on(asked).unwrap().into_inner()
    }

    /// Sends a release. An empty `owner` is omitted.
    fn release(&self, protocol: Protocol, at: usize, id: &str, owner: &str) {
        match protocol {
            Protocol::Rls => {
                let release = [("sluicegate.release", id)];
                let named = [("sluicegate.owner", owner)];
                let both: [(&[(&str, &str)], u64); 2] = [(&release, 7), (&named, 1)];
                let sent = if owner.is_empty() { &both[..1] } else { &both };
                self.rls(at, sent);
            }
            Protocol::ExtAuthz => self.log_entry(at, id, owner, AccessLogType::DownstreamEnd),
            Protocol::Nginx => {
                let text = format!(
                    "<190>Nov 20 15:55:25 sluicegate: id={id} status=200 done=OK owner={owner} rtt=0.001"
                );
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                socket.send_to(text.as_bytes(), self.fleet[at].syslog().unwrap()).unwrap();
            }
            Protocol::Permits => {
                self.release_by_api(at, id, owner);
            }
        }
    }

    /// Sends a release by the permits API. Returns `true` if the permit was in use, and the owner
    /// replied in time. A busy owner replies late.
    fn release_by_api(&self, at: usize, id: &str, owner: &str) -> bool {
        let (outcome, owner) = (Outcome::Success.into(), owner.to_owned());
        let asked =
            ReleaseRequest { id: id.to_owned(), outcome, owner, ..ReleaseRequest::default() };
        let mut client = PermitsClient::new(self.channel(at));
        self.runtime.block_on(client.release(asked)).unwrap().into_inner().had_permits
    }

    fn renew(&self, at: usize, id: &str, owner: &str) -> bool {
        let asked = RenewRequest { id: id.to_owned(), owner: owner.to_owned() };
        let mut client = PermitsClient::new(self.channel(at));
        self.runtime.block_on(client.renew(asked)).unwrap().into_inner().renewed
    }

    fn rls(&self, at: usize, descriptors: &[(&[(&str, &str)], u64)]) -> RateLimitResponse {
        let entry = |&(key, value): &(&str, &str)| Entry { key: key.into(), value: value.into() };
        let descriptor = |&(entries, hits): &(&[(&str, &str)], u64)| RateLimitDescriptor {
            entries: entries.iter().map(entry).collect(),
            hits_addend: Some(envoy_types::pb::google::protobuf::UInt64Value { value: hits }),
            ..RateLimitDescriptor::default()
        };
        let descriptors = descriptors.iter().map(descriptor).collect();
        let asked = RateLimitRequest { domain: "edge".into(), descriptors, hits_addend: 0 };
        let mut client = RateLimitServiceClient::new(self.channel(at));
        self.runtime.block_on(client.should_rate_limit(asked)).unwrap().into_inner()
    }

    fn log_entry(&self, at: usize, id: &str, owner: &str, kind: AccessLogType) {
        let value = Kind::StringValue(owner.to_owned());
        let value = envoy_types::pb::google::protobuf::Value { kind: Some(value) };
        let said = Struct { fields: std::iter::once((OWNER.to_owned(), value)).collect() };
        let filter = ("envoy.filters.http.ext_authz".to_owned(), said);
        let filter_metadata = (!owner.is_empty()).then_some(filter).into_iter().collect();
        let metadata = Some(Metadata { filter_metadata, ..Metadata::default() });
        let common_properties =
            Some(AccessLogCommon { access_log_type: kind.into(), metadata, ..Default::default() });
        let request_headers = std::iter::once(("x-sluicegate-id".into(), id.to_owned())).collect();
        let request = Some(HttpRequestProperties { request_headers, ..Default::default() });
        let entry = HttpAccessLogEntry { common_properties, request, ..Default::default() };
        let entries = HttpAccessLogEntries { log_entry: vec![entry] };
        let log_entries = Some(LogEntries::HttpLogs(entries));
        let message = StreamAccessLogsMessage { identifier: None, log_entries };
        let mut client = AccessLogServiceClient::new(self.channel(at));
        let sent = client.stream_access_logs(tokio_stream::iter([message]));
        self.runtime.block_on(sent).unwrap();
    }

    fn peer_address(&self, at: usize) -> SocketAddr {
        let mut lines = self.fleet[at].said.lines();
        lines.find_map(|line| line.strip_prefix("peer listening on ")).unwrap().parse().unwrap()
    }
}

/// The protocol of an acquire and its release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Rls,
    ExtAuthz,
    Nginx,
    Permits,
}

const ALL: [Protocol; 4] = [Protocol::Rls, Protocol::ExtAuthz, Protocol::Nginx, Protocol::Permits];

fn owner_in(metadata: Option<&Struct>) -> String {
    match metadata.and_then(|said| said.fields.get(OWNER)?.kind.clone()) {
        Some(Kind::StringValue(text)) => text,
        other => panic!("{other:?}"),
    }
}

fn id(number: usize) -> String {
    format!("request-{number:016}")
}

fn peer_events(service: &Service, event: &str) -> u64 {
    metric(service, &format!("sluicegate_forwarded_releases_total{{event=\"{event}\"}}"))
}

fn wait_for_count(service: &Service, event: &str, wanted: u64) {
    until(event, || match peer_events(service, event) {
        found if found == wanted => Ok(()),
        found => Err(format!("{found}, wanted {wanted}: {}", service.log())),
    })
    .unwrap();
}

#[test]
fn a_release_naming_its_owner_is_forwarded() {
    let scene = PeerFleet::of(2);
    for (number, protocol) in ALL.into_iter().enumerate() {
        let id = id(number);
        let owner = scene.acquire(protocol, 0, &id);
        assert_eq!(scene.in_flight(0), 1, "{protocol:?}");
        scene.release(protocol, 1, &id, &owner);
        scene.wait_until_idle(0);
        wait_for_count(&scene.fleet[1], "delivered", u64::try_from(number).unwrap() + 1);
    }
    assert_eq!(peer_events(&scene.fleet[1], "timed_out"), 0);
    assert_eq!(scene.early_releases(), [0, 0], "whoever is named was there before");
    assert_eq!(peer_events(&scene.fleet[1], "searched"), 0);
}

#[test]
fn duplicate_releases_release_one_permit_once() {
    let scene = PeerFleet::of(3);
    let (first, second) = (id(1), id(2));
    let owner = scene.acquire(Protocol::Rls, 0, &first);
    scene.acquire(Protocol::Rls, 0, &second);
    for at in [1, 1, 2, 0, 1] {
        scene.release(Protocol::Rls, at, &first, &owner);
    }
    until("one is left", || match scene.in_flight(0) {
        1 => Ok(()),
        other => Err(other.to_string()),
    })
    .unwrap();
    for at in [1, 2] {
        assert!(!scene.release_by_api(at, &first, &owner), "it is over");
    }
    assert_eq!(scene.early_releases(), [0, 0, 0]);
    assert_eq!(scene.in_flight(0), 1, "the other one is");
}

#[test]
fn without_peering_no_port_opens_and_no_owner_is_named() {
    let scene = PeerFleet::of(0);
    let flags = ["--hooks", HOOKS].map(str::to_owned);
    let alone = Service::start(scene.limits.path(), &flags).unwrap();
    assert!(!alone.said.contains("peer listening"), "{}", alone.said);
    let mut scene = scene;
    scene.fleet.push(alone);
    let asked = [("upstream", "all"), ("sluicegate.acquire", "0123456789abcdef")];
    let reply = scene.rls(0, &[(&asked, 1)]);
    assert_eq!((reply.response_headers_to_add.len(), reply.dynamic_metadata), (0, None));
    let off = scene.serve("off", &["--listen-peer-port", "none"]);
    assert!(!off.said.contains("peer listening"), "{}", off.said);
    let seen: BTreeMap<_, _> =
        [("peer", fleet_page(&off)["live_replicas"][0]["peer"].clone())].into();
    assert_eq!(seen["peer"], serde_json::Value::Null);
}
