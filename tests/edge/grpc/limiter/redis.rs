//! Concurrency limits that a proxy and a replica share in a real Redis.

use std::time::Duration;

use sluicegate::edge::grpc::permits::api;
use sluicegate::edge::grpc::permits::api::acquire_response::Verdict as PermitVerdict;
use sluicegate::edge::grpc::permits::api::permits_client::PermitsClient;
use sluicegate::kernel::decision::RuleVerdict;
use tempfile::TempDir;
use tonic::transport::Channel;

use super::concurrency::{admit, admitted, limit, release};
use super::limiter;
use crate::support::redis::Redis;
use crate::support::service::Service;
use crate::support::waiting::{now, soon};

/// A real process with a new Redis. Redis grants nothing for the time of a share and `max_duration`.
fn service(limits: &str, [heartbeat, share_expiry]: [&str; 2]) -> (Redis, TempDir, Service) {
    let (redis, dir) = (Redis::start(), tempfile::tempdir().unwrap());
    let text = format!("domain: d\ndescriptors:\n{limits}");
    std::fs::write(dir.path().join("d.yaml"), text).unwrap();
    let url = redis.url();
    let times = ["--fleet-heartbeat", heartbeat, "--fleet-share-expiry", share_expiry];
    let flags = [&["--store-url", &url, "--store-timeout", "20s"][..], &times].concat();
    let flags: Vec<String> = flags.into_iter().map(str::to_owned).collect();
    let service = Service::start(dir.path(), &flags).unwrap();
    (redis, dir, service)
}

/// Returns `true` if the replica itself admits the request `id`.
async fn replica_admits(client: &mut PermitsClient<Channel>, id: &str) -> bool {
    let entry = api::Entry { key: "user".into(), value: "a".into() };
    let descriptors = vec![api::Descriptor { entries: vec![entry], hits: None }];
    let request =
        api::AcquireRequest { id: id.into(), domain: "d".into(), descriptors, max_wait_us: None };
    client.acquire(request).await.unwrap().into_inner().verdict() == PermitVerdict::Allow
}

/// Returns the id of a request that the replica itself admits. The share follows the demand.
async fn admitted_by_replica(client: &mut PermitsClient<Channel>, ids: &mut u64) -> String {
    soon("a permit of the replica", async {
        loop {
            let id = next_id(ids);
            if replica_admits(client, &id).await {
                return id;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await
}

fn next_id(ids: &mut u64) -> String {
    *ids += 1;
    format!("{ids:0>20}")
}

/// The permits expire after `max_duration`. An attempt that takes longer proves nothing.
async fn a_proxy_and_a_replica_share(mode: &str, times: [&str; 2]) {
    const MAX_DURATION: Duration = Duration::from_secs(3);
    let limits = limit(&format!("limit: 4, max_duration: 3s, mode: {mode}"));
    let (_redis, _limits, service) = service(&limits, times);
    let proxy = limiter(service.grpc).await;
    let mut replica = PermitsClient::new(service.door().connect().await.unwrap());
    let mut ids = 0;
    for _ in 0..50 {
        let began = now();
        let held = [admitted(&proxy).await, admitted(&proxy).await];
        let held_by_replica = [
            admitted_by_replica(&mut replica, &mut ids).await,
            admitted_by_replica(&mut replica, &mut ids).await,
        ];
        let fifth = admit(&proxy).await.answer.verdict;
        let sixth = next_id(&mut ids);
        let is_sixth_admitted = replica_admits(&mut replica, &sixth).await;
        if began.elapsed() < MAX_DURATION {
            assert_eq!((fifth, is_sixth_admitted), (RuleVerdict::Deny, false), "{mode}");
            return;
        }
        // The shares stay where the demand was, so the next attempt is shorter.
        held.into_iter().for_each(release);
        let last = is_sixth_admitted.then_some(sixth);
        for id in held_by_replica.into_iter().chain(last) {
            let outcome = api::Outcome::Success.into();
            let request = api::ReleaseRequest { id, outcome, ..Default::default() };
            replica.release(request).await.unwrap();
        }
    }
    panic!("each attempt took longer than {MAX_DURATION:?}");
}

#[tokio::test]
async fn a_proxy_and_a_replica_share_one_limit_in_redis() {
    a_proxy_and_a_replica_share("shared", ["200ms", "2s"]).await;
}

#[tokio::test]
async fn a_proxy_and_a_replica_share_one_strict_limit_in_redis() {
    // The store frees a permit that three heartbeats do not report.
    a_proxy_and_a_replica_share("strict", ["500ms", "2s"]).await;
}
