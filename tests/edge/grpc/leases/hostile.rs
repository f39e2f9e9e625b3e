//! A hostile proxy: what it reports changes no limit of others.
//!
//! The law of `docs/operations/protect-the-ports.md`: limits that a peer never asked about do not change. In the other
//! ones, honest callers keep at least the limit, divided by the number of streams.

use std::sync::Arc;

use sluicegate::engine::Engine;
use sluicegate::engine::proxies::{MAX_PEER_RECORDS, MAX_PEER_STREAMS, PeerKey, ProxyIdentity};
use sluicegate::kernel::key::CounterKey;
use sluicegate::kernel::lease::ReplicaIncarnation;
use sluicegate::kernel::units::Nanos;
use sluicegate_lease_protocol::api::lease_message::Message as Reply;
use sluicegate_lease_protocol::api::proxy_message::Message;
use sluicegate_lease_protocol::api::share_reply::{Refusal, Result as Shared};
use sluicegate_lease_protocol::api::{
    self, DemandPoint, FleetReport, GrantInUse, LimitPermits, PermitAcquire, PermitInUse,
    PermitReport, ShareReport, ShareRound, limit_permits_result, permit_acquire_result,
    share_round_result,
};

use super::super::super::empty_engine;
use super::client::{ProxyStream, serve};
use crate::support::engine::{advance_clock, publish};

pub(super) const LIMIT: u64 = 10;

const MAX_DURATION: Nanos = Nanos::from_secs(60);

/// A shared limit, a strict limit, and a shared limit for each value of a key.
pub(super) const LIMITS: &str = "\
- {key: shared, concurrency: {limit: 10, mode: shared, max_duration: 60s}}
- {key: strict, concurrency: {limit: 10, mode: strict, max_duration: 60s}}
- {key: user, concurrency: {limit: 10, mode: shared, max_duration: 60s}}
- {key: fair, concurrency: {limit: 10, mode: shared, max_duration: 60s, queue: {size: 9, timeout: 1s}, fair: {by: c}}}
- {key: grow, concurrency: {limit: 10, adaptive: {max: 500}, mode: shared, max_duration: 60s, queue: {size: 9, timeout: 1s}, fair: {by: c}}}
";

/// A proxy that sends any report.
pub(super) struct Proxy {
    pub(super) stream: ProxyStream,
    number: u64,
    grant: Option<GrantInUse>,
}

impl Proxy {
    pub(super) fn new(stream: ProxyStream) -> Self {
        Self { stream, number: 0, grant: None }
    }

    pub(super) async fn bucket(&mut self, key: &str, value: &str) -> Vec<u8> {
        self.stream.rule("d", &[(key, value)]).await.concurrency.unwrap().bucket
    }

    pub(super) async fn report(&mut self, report: FleetReport) -> api::FleetReportResult {
        match self.stream.ask(Message::Report(report)).await {
            Reply::Report(result) => result,
            other => panic!("{other:?}"),
        }
    }

    pub(super) async fn shares(&mut self, reports: Vec<ShareReport>) -> Vec<Option<Shared>> {
        let shares = Some(ShareRound { reports, ..ShareRound::default() });
        let result = self.report(FleetReport { shares, permits: None }).await;
        match result.shares.unwrap().result.unwrap() {
            share_round_result::Result::Applied(reply) => {
                reply.replies.into_iter().map(|reply| reply.result).collect()
            }
            share_round_result::Result::Failure(failure) => panic!("{failure:?}"),
        }
    }

    /// Sends a correct report about one limit, and returns the grant.
    pub(super) async fn beat(
        &mut self,
        bucket: &[u8],
        demand: u64,
        in_flight: u64,
    ) -> api::ShareGrant {
        let bucket = bucket.to_vec();
        self.send(ShareReport { bucket, in_flight, demand, ..ShareReport::default() }).await
    }

    async fn send(&mut self, report: ShareReport) -> api::ShareGrant {
        self.number += 1;
        let (number, grant_in_use) = (self.number, self.grant);
        let report = ShareReport { incarnation: 1, number, grant_in_use, ..report };
        let reply = self.shares(vec![report]).await.remove(0);
        let Some(Shared::Grant(grant)) = reply else { panic!("{reply:?}") };
        let (coordinator_incarnation, generation) =
            (grant.coordinator_incarnation, grant.generation);
        self.grant = Some(GrantInUse { coordinator_incarnation, generation });
        grant
    }

    /// As [`Proxy::beat`] with much demand, of customers with this curve.
    async fn claim(&mut self, bucket: &[u8], curve: DemandPoint) -> api::ShareGrant {
        self.send(ShareReport {
            bucket: bucket.to_vec(),
            curve: vec![curve],
            demand: LIMIT,
            ..ShareReport::default()
        })
        .await
    }

    async fn acquires(&mut self, bucket: &[u8], number: u64) -> bool {
        let acquire = PermitAcquire { bucket: bucket.to_vec(), number };
        match self.stream.ask(Message::Acquire(acquire)).await {
            Reply::Acquire(result) => matches!(
                result.result,
                Some(permit_acquire_result::Result::Applied(reply)) if reply.acquired
            ),
            other => panic!("{other:?}"),
        }
    }

    /// Reports permits in use, and returns the number of permits that the store then has.
    async fn report_permits(&mut self, bucket: &[u8], numbers: &[u64]) -> u64 {
        let in_use = |number: &u64| PermitInUse { number: *number, time_left_ns: 1 << 50 };
        let limit = LimitPermits {
            bucket: bucket.to_vec(),
            in_use: numbers.iter().map(in_use).collect(),
            released: Vec::new(),
        };
        let permits = Some(PermitReport { limits: vec![limit] });
        let result = self.report(FleetReport { shares: None, permits }).await;
        match result.permits.unwrap().limits.remove(0).result.unwrap() {
            limit_permits_result::Result::Applied(reply) => reply.permits,
            limit_permits_result::Result::Failure(failure) => panic!("{failure:?}"),
        }
    }
}

/// An engine with [`LIMITS`], an honest and a hostile proxy.
async fn start() -> (Arc<Engine>, super::super::Served, Proxy, Proxy) {
    let engine = empty_engine();
    publish(&engine, "", LIMITS);
    let served = serve(&engine).await;
    let honest = Proxy::new(ProxyStream::open(&served, 7).await);
    let hostile = Proxy::new(ProxyStream::open(&served, 8).await);
    (engine, served, honest, hostile)
}

#[tokio::test]
async fn invented_requests_in_flight_do_not_close_a_shared_limit() {
    let (engine, _served, mut honest, mut hostile) = start().await;
    let bucket = honest.bucket("shared", "a").await;
    hostile.beat(&bucket, u64::from(u32::MAX), 0).await;
    let mut share = 0;
    for _ in 0..2 * MAX_DURATION.0 / Nanos::SECOND.0 + 10 {
        advance_clock(&engine, Nanos::SECOND);
        hostile.beat(&bucket, u64::from(u32::MAX), u64::from(u32::MAX)).await;
        share = honest.beat(&bucket, LIMIT, 0).await.share;
    }
    assert!(LIMIT / 2 <= share, "{share}");
}

#[tokio::test]
async fn a_new_proxy_cannot_claim_requests_in_flight() {
    let (engine, _served, mut honest, mut hostile) = start().await;
    let bucket = honest.bucket("shared", "a").await;
    honest.beat(&bucket, LIMIT, 0).await;
    for _ in 0..5 {
        advance_clock(&engine, Nanos::SECOND);
        hostile.beat(&bucket, LIMIT, LIMIT).await;
        let share = honest.beat(&bucket, LIMIT, 0).await.share;
        assert!(LIMIT / 2 <= share, "{share}");
    }
}

#[tokio::test]
async fn an_invented_grant_does_not_restart_the_coordinator() {
    let (engine, _served, mut honest, mut hostile) = start().await;
    let (bucket, other) = (honest.bucket("shared", "a").await, honest.bucket("shared", "b").await);
    let before = honest.beat(&bucket, LIMIT, 0).await;
    hostile.beat(&other, LIMIT, 0).await;
    let coordinator_incarnation = before.coordinator_incarnation;
    hostile.grant = Some(GrantInUse { coordinator_incarnation, generation: (1 << 53) - 1 });
    hostile.beat(&other, LIMIT, 0).await;
    advance_clock(&engine, Nanos::SECOND);
    let after = honest.beat(&bucket, LIMIT, 0).await;
    assert_eq!(after.coordinator_incarnation, before.coordinator_incarnation);
    assert_eq!((after.share, after.is_recovering), (LIMIT, false));
}

#[tokio::test]
async fn reports_about_unknown_limits_are_refused() {
    let (engine, _served, _honest, mut hostile) = start().await;
    let known = hostile.bucket("strict", "a").await;
    let unknown = |at: u8| ShareReport { bucket: vec![at; 9], ..ShareReport::default() };
    let mut reports: Vec<_> = (0..60).map(unknown).collect();
    reports.push(ShareReport { bucket: known.clone(), ..ShareReport::default() });
    let refused = Some(Shared::Refusal(Refusal::TooManyReplicas.into()));
    assert_eq!(hostile.shares(reports).await, vec![refused; 61]);
    assert!(!hostile.acquires(&[1; 9], 1).await);
    let shared = hostile.bucket("shared", "a").await;
    assert!(!hostile.acquires(&shared, 1).await, "not a strict limit");
    assert_eq!(hostile.report_permits(&[1; 9], &[1, 2, 3]).await, 0);
    assert_eq!(engine.proxies().records(), 0);
}

#[tokio::test]
async fn the_buckets_of_a_peer_are_bounded_and_end() {
    let (engine, _served, mut honest, mut hostile) = start().await;
    // Both proxies are one peer here: they have one address.
    let bucket = honest.bucket("shared", "a").await;
    honest.beat(&bucket, LIMIT, 0).await;
    assert_eq!(hostile.bucket("user", "v").await, renamed_bucket("v"));
    let mut granted = 0;
    for round in 0..300_u32 {
        let report = |at: u32| {
            let value = format!("{round:05}{at:05}");
            (value, ShareReport { incarnation: 1, number: 1, demand: 1, ..Default::default() })
        };
        let mut reports = Vec::new();
        for (value, report) in (0..64).map(report) {
            let bucket = renamed_bucket(&value);
            reports.push(ShareReport { bucket, ..report });
        }
        let replies = hostile.shares(reports).await;
        granted += replies.iter().filter(|reply| matches!(reply, Some(Shared::Grant(_)))).count();
    }
    assert_eq!((granted, engine.proxies().records()), (MAX_PEER_RECORDS - 1, MAX_PEER_RECORDS));
    drop((honest, hostile));
    // The share expires, and then the last request under it ends.
    advance_clock(&engine, MAX_DURATION.plus(Nanos::from_secs(10)));
    engine.proxies().sweep(engine.clock().steady());
    assert_eq!(engine.proxies().records(), 0);
}

/// Returns the bucket name of a value of the key `user`.
pub(super) fn renamed_bucket(value: &str) -> Vec<u8> {
    CounterKey::concurrency_bucket("d", [("user", value)].into_iter()).as_bytes().to_vec()
}

#[tokio::test]
async fn a_proxy_cannot_fill_a_limit_with_incarnations() {
    let (_engine, _served, mut honest, mut hostile) = start().await;
    let bucket = honest.bucket("shared", "a").await;
    let mut granted = 0;
    for incarnation in 1..5_000 {
        let report = ShareReport {
            bucket: bucket.clone(),
            incarnation,
            number: 1,
            demand: 1,
            ..Default::default()
        };
        let reply = hostile.shares(vec![report]).await.remove(0);
        granted += usize::from(matches!(reply, Some(Shared::Grant(_))));
    }
    assert!(granted <= 4, "{granted}");
    assert!(0 < honest.beat(&bucket, LIMIT, 0).await.fair_share);
}

/// A customer with a tiny part comes before all others, so a proxy claims very many of these.
#[tokio::test]
async fn invented_customers_get_at_most_half_of_a_limit() {
    let (_engine, _served, mut honest, mut hostile) = start().await;
    for key in ["fair", "grow"] {
        let bucket = honest.bucket(key, "a").await;
        let (mut own, mut theirs) = (api::ShareGrant::default(), api::ShareGrant::default());
        for _ in 0..4 {
            let tiny = DemandPoint { class: 0, level: 1, demand: 1 << 20 };
            theirs = hostile.claim(&bucket, tiny).await;
            own = honest.claim(&bucket, DemandPoint { class: 0, level: 5_120, demand: 80 }).await;
        }
        assert_eq!((own.share, theirs.share), (LIMIT / 2, LIMIT / 2), "{key}");
        (honest.grant, hostile.grant) = (None, None);
    }
}

#[tokio::test]
async fn invented_permits_are_not_added_to_a_strict_limit() {
    let (_engine, _served, mut honest, mut hostile) = start().await;
    let bucket = honest.bucket("strict", "a").await;
    assert_eq!(hostile.report_permits(&bucket, &(0..400).collect::<Vec<_>>()).await, 0);
    assert!(honest.acquires(&bucket, 1).await);
    // A permit of another proxy has another id.
    assert_eq!(hostile.report_permits(&bucket, &[1]).await, 1);
    assert_eq!(honest.report_permits(&bucket, &[1]).await, 1);
}

#[tokio::test]
async fn a_permit_is_renewed_until_its_longest_duration() {
    let (engine, _served, mut hostile, mut honest) = start().await;
    let bucket = honest.bucket("strict", "a").await;
    for number in 0..LIMIT {
        assert!(hostile.acquires(&bucket, number).await);
    }
    assert!(!honest.acquires(&bucket, 1).await);
    for _ in 0..MAX_DURATION.0 / Nanos::SECOND.0 + 5 {
        advance_clock(&engine, Nanos::SECOND);
        hostile.report_permits(&bucket, &(0..LIMIT).collect::<Vec<_>>()).await;
    }
    for number in 2..2 + LIMIT {
        assert!(honest.acquires(&bucket, number).await, "{number}");
    }
}

#[tokio::test]
async fn a_release_under_another_limit_renews_nothing() {
    let (engine, _served, mut hostile, mut honest) = start().await;
    let (bucket, other) = (honest.bucket("strict", "a").await, honest.bucket("strict", "b").await);
    for number in 0..LIMIT {
        assert!(hostile.acquires(&bucket, number).await);
    }
    for _ in 0..MAX_DURATION.0 / Nanos::SECOND.0 + 5 {
        advance_clock(&engine, Nanos::SECOND);
        let released = (0..LIMIT).collect();
        let limit = LimitPermits { bucket: other.clone(), in_use: Vec::new(), released };
        let permits = Some(PermitReport { limits: vec![limit] });
        hostile.report(FleetReport { shares: None, permits }).await;
        hostile.report_permits(&bucket, &(0..LIMIT).collect::<Vec<_>>()).await;
    }
    assert!(honest.acquires(&bucket, 1).await);
}

#[tokio::test]
async fn a_permit_number_belongs_to_one_limit() {
    let (engine, _served, _honest, mut hostile) = start().await;
    let (one, other) = (hostile.bucket("strict", "a").await, hostile.bucket("strict", "b").await);
    assert!(hostile.acquires(&one, 1).await);
    assert!(hostile.acquires(&one, 1).await, "repeated");
    assert!(!hostile.acquires(&other, 1).await);
    assert_eq!(engine.proxies().records(), 1);
}

#[tokio::test]
async fn a_peer_cannot_fill_the_list_of_replicas() {
    let (engine, served, mut honest, _hostile) = start().await;
    let bucket = honest.bucket("shared", "a").await;
    honest.beat(&bucket, LIMIT, 0).await;
    let mut accepted = 1;
    for incarnation in 100..100 + u64::try_from(MAX_PEER_STREAMS).unwrap() {
        let mut invented = Proxy::new(ProxyStream::open(&served, incarnation).await);
        let report = ShareReport { bucket: bucket.clone(), number: 1, ..Default::default() };
        let shares = Some(ShareRound { reports: vec![report], ..ShareRound::default() });
        let result = invented.report(FleetReport { shares, permits: None }).await;
        let result = result.shares.unwrap().result.unwrap();
        accepted += usize::from(matches!(result, share_round_result::Result::Applied(_)));
    }
    assert_eq!(accepted, MAX_PEER_STREAMS);
    advance_clock(&engine, MAX_DURATION.plus(Nanos::from_secs(10)));
    engine.proxies().sweep(engine.clock().steady());
    let mut later = Proxy::new(ProxyStream::open(&served, 99).await);
    later.beat(&bucket, 1, 0).await;
}

#[tokio::test]
async fn a_proxy_with_its_part_waits_while_another_is_denied() {
    let (_engine, _served, mut greedy, mut honest) = start().await;
    let bucket = honest.bucket("strict", "a").await;
    for number in 0..LIMIT {
        assert!(greedy.acquires(&bucket, number).await);
    }
    assert!(!honest.acquires(&bucket, 1).await);
    let released =
        LimitPermits { bucket: bucket.clone(), in_use: Vec::new(), released: vec![0, 1] };
    let permits = Some(PermitReport { limits: vec![released] });
    greedy.report(FleetReport { shares: None, permits }).await;
    assert!(!greedy.acquires(&bucket, 100).await, "it has more than its part");
    assert!(honest.acquires(&bucket, 2).await);
    assert!(greedy.acquires(&bucket, 101).await, "no other proxy is denied any more");
}

#[test]
fn another_peer_cannot_take_an_incarnation() {
    let engine = empty_engine();
    let identity = || ProxyIdentity {
        incarnation: ReplicaIncarnation(7),
        name: "edge".into(),
        software: "test".into(),
        peer: None,
    };
    let slot = |address: &str| {
        engine.proxies().open_stream(PeerKey::of_address(address.parse().unwrap())).unwrap()
    };
    let owner = engine.proxies().connect(identity(), slot("192.0.2.1"), Nanos(0)).unwrap();
    assert!(engine.proxies().connect(identity(), slot("192.0.2.2"), Nanos(0)).is_err());
    assert!(engine.proxies().connect(identity(), slot("192.0.2.1"), Nanos(0)).is_ok());
    drop(owner);
    engine.proxies().sweep(Nanos(0));
    assert!(engine.proxies().connect(identity(), slot("192.0.2.2"), Nanos(0)).is_ok());
}
