//! A strict concurrency limit under faults: replica processes, one store, and a test backend that
//! counts requests in flight.
//!
//! Guarantees:
//! - The limit is never exceeded while replicas and the store fail.
//! - At the end, no permit is left in the replicas or in the store.
//!
//! Requests continue after their replica is killed, as behind a proxy. Every third caller cancels
//! its acquire before the reply. `benches/RESULTS.md` has some rows of the
//! printed table.

mod fleet;

use std::time::Duration;

use envoy_types::pb::envoy::service::ext_proc::v3::external_processor_client::ExternalProcessorClient;
use envoy_types::pb::envoy::service::ext_proc::v3::processing_request::Request as Message;
use envoy_types::pb::envoy::service::ext_proc::v3::{HttpHeaders, ProcessingRequest};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tokio::runtime::Runtime;
use tokio_stream::StreamExt as _;
use tonic::transport::Channel;

pub use self::fleet::assert_limit_during_faults;
use super::{metric, serve};
use crate::support::cluster::Cluster;
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::store_server::StoreKind;
use crate::support::waiting::until;

const LIMIT: i64 = 10;

const HEARTBEAT: Duration = Duration::from_millis(500);

/// A `max_duration` that no test reaches.
const ENDLESS: Duration = Duration::from_secs(600);

fn limits(limit: i64, max_duration: Duration, more: &str) -> tempfile::TempDir {
    let limits = tempfile::tempdir().unwrap();
    let text = format!(
        "domain: d\ndescriptors:\n- key: upstream\n  concurrency: {{limit: {limit}, mode: strict, \
         max_duration: {}ms, on_store_failure: deny{more}}}\n",
        max_duration.as_millis()
    );
    std::fs::write(limits.path().join("d.yaml"), text).unwrap();
    limits
}

/// Starts a replica with the heartbeat interval [`HEARTBEAT`].
fn replica(limits: &tempfile::TempDir, url: &str, node: &str, more: &[&str]) -> Service {
    replica_with(limits, url, (node, HEARTBEAT), more)
}

fn replica_with(
    limits: &tempfile::TempDir,
    url: &str,
    (node, heartbeat): (&str, Duration),
    more: &[&str],
) -> Service {
    let [heartbeat, expiry] = [1, 10].map(|times| format!("{}ms", (heartbeat * times).as_millis()));
    let flags = [
        ["--fleet-replica-name", node],
        ["--fleet-heartbeat", &heartbeat],
        ["--fleet-share-expiry", &expiry],
        ["--listen-drain-delay", "0s"],
    ];
    serve(limits.path(), url, &[&flags.concat(), more].concat())
}

pub(super) fn channel(runtime: &Runtime, service: &Service) -> Channel {
    let endpoint = service.door();
    runtime.block_on(async { endpoint.connect_lazy() })
}

pub(super) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

#[test]
fn strict_limit_is_never_exceeded_during_faults() {
    assert_limit_during_faults(StoreKind::Redis);
}

pub(super) fn write_hook_settings(place: &tempfile::TempDir) -> std::path::PathBuf {
    let settings = place.path().join("server.yaml");
    let hooks = "hooks:\n- name: edge\n  domain: d\n  descriptors:\n  \
                 - [{generic_key: {descriptor_key: upstream, descriptor_value: all}}]\n";
    std::fs::write(&settings, hooks).unwrap();
    settings
}

/// Opens a stream that keeps a permit. Returns `None` if the permit was denied.
pub(super) async fn open_stream(channel: Channel) -> Option<impl Sized> {
    let headers = Message::RequestHeaders(HttpHeaders::default());
    let asked = ProcessingRequest { request: Some(headers), ..ProcessingRequest::default() };
    let asks = tokio_stream::iter([asked]).chain(tokio_stream::pending());
    let mut replies = ExternalProcessorClient::new(channel).process(asks).await.ok()?.into_inner();
    let reply = replies.message().await.ok()??;
    let refused = matches!(
        reply.response,
        Some(envoy_types::pb::envoy::service::ext_proc::v3::processing_response::Response::ImmediateResponse(_))
    );
    (!refused).then_some(replies)
}

#[test]
fn streams_of_a_killed_replica_expire_after_three_heartbeats() {
    let (store, limits, runtime) = (Redis::start(), limits(3, ENDLESS, ""), runtime());
    let settings_dir = tempfile::tempdir().unwrap();
    let settings = write_hook_settings(&settings_dir);
    let more = ["--settings", settings.to_str().unwrap()];
    let mut killed = replica(&limits, &store.url(), "killed", &more);
    let stays = replica(&limits, &store.url(), "stays", &more);
    let channels = [&killed, &stays].map(|service| channel(&runtime, service));
    let opens = |at: usize| runtime.block_on(open_stream(channels[at].clone()));
    let mut streams = Vec::new();
    until("the store is open", || {
        streams.extend(opens(0));
        if streams.len() == 3 { Ok(()) } else { Err(format!("{} streams", streams.len())) }
    })
    .unwrap();
    // Heartbeats renew the permits of open streams, each time for three heartbeat intervals.
    for _ in 0..4 {
        let (before, old) = (store_time(&store), first_deadline(&store));
        let renewed = until("the permits are renewed", || match first_deadline(&store) {
            deadline if old < deadline => Ok(deadline),
            deadline => Err(format!("{deadline}: {}", killed.log())),
        })
        .unwrap();
        let lifetime = i64::try_from((HEARTBEAT * 3).as_micros()).unwrap();
        let lifetimes = before + lifetime..=store_time(&store) + lifetime;
        assert!(lifetimes.contains(&renewed), "{old} {renewed} {lifetimes:?}");
        assert!(opens(1).is_none());
    }
    assert_eq!(store.command(&["ZCARD", &permits_key(&store)]).int(), 3);
    let deadline = first_deadline(&store);
    killed.kill();
    until("its places are free", || opens(1).map(drop).ok_or_else(|| stays.log())).unwrap();
    assert!(deadline <= store_time(&store), "the permits are free before their deadline");
}

/// The clock of the store in microseconds.
fn store_time(store: &Redis) -> i64 {
    let time = store.command(&["TIME"]);
    let part = |at: usize| time.array()[at].text().parse::<i64>().unwrap();
    part(0) * 1_000_000 + part(1)
}

fn permits_key(store: &Redis) -> String {
    let keys = store.command(&["KEYS", "*{permits}:c:*"]);
    let [key] = keys.array() else { panic!("{keys:?}") };
    key.text()
}

/// The first deadline of all permits in the store, by its clock.
fn first_deadline(store: &Redis) -> i64 {
    let first = store.command(&["ZRANGE", &permits_key(store), "0", "0", "WITHSCORES"]);
    first.array()[1].text().parse().unwrap()
}

#[test]
fn limit_metrics_of_all_replicas_add_up() {
    let (store, limits, runtime) = (Redis::start(), limits(LIMIT, ENDLESS, ""), runtime());
    let fleet = ["a", "b", "c"].map(|node| replica(&limits, &store.url(), node, &[]));
    for (at, service) in fleet.iter().enumerate() {
        let (channel, mut id) = (channel(&runtime, service), 0);
        until("its place is open", || {
            id += 1;
            let name = format!("replica-{at}-{id:016}");
            let asked = runtime.block_on(acquire(channel.clone(), "all", &name));
            if asked == Some(Code::Ok) { Ok(()) } else { Err(service.log()) }
        })
        .unwrap();
    }
    let limit = u64::try_from(LIMIT).unwrap();
    for series in
        ["sluicegate_concurrency_limits", "sluicegate_concurrency_limit{limit=\"d.upstream\"}"]
    {
        until("each has seen the others", || {
            match fleet.iter().map(|service| metric(service, series)).sum::<u64>() {
                sum if sum == limit => Ok(()),
                sum => Err(format!("{series}: {sum}")),
            }
        })
        .unwrap();
    }
}

#[test]
fn a_cluster_enforces_each_concurrency_limit_exactly() {
    let (cluster, limits, runtime) = (Cluster::start(), limits(2, ENDLESS, ""), runtime());
    let fleet = ["a", "b"].map(|node| replica(&limits, &cluster.url(), node, &[]));
    let channels = fleet.each_ref().map(|service| channel(&runtime, service));
    let acquires = |at: usize, value: &str, id: usize| {
        let channel = channels[at % 2].clone();
        runtime.block_on(acquire(channel, value, &format!("{value}-{id:016}"))) == Some(Code::Ok)
    };
    for number in 0..24 {
        let value = format!("value{number}");
        let mut id = 0;
        for _ in 0..2 {
            until("its place is open", || {
                id += 1;
                if acquires(id, &value, id) { Ok(()) } else { Err(fleet[0].log()) }
            })
            .unwrap();
        }
        let passed = (1..5).filter(|more| acquires(id + more, &value, id + more)).count();
        assert_eq!(passed, 0, "{value}: two have permits");
    }
}

async fn acquire(channel: Channel, value: &str, id: &str) -> Option<Code> {
    super::shared_concurrency::send_check_for(channel, value, "sluicegate.acquire", id).await
}
