//! Reports of proxies about shared and strict concurrency limits: checks them against the
//! configuration and this replica's records, and passes them on to the store.
//!
//! Guarantees:
//! - Limits and durations come from the configuration.
//! - A report about a limit that the configuration does not have reaches no store, except for the
//!   return of a share and the release of permits.
//! - A proxy cannot change the limit of another proxy or replica: see `super::share_history`.
//! - While another proxy of this replica is denied a strict limit, a proxy gets no permits above
//!   an equal part of it.
//!
//! Not covered:
//! - Strict limits between proxies of different replicas: permits go to the first caller.

use super::ProxyConnection;
use super::history::{PermitTimes, bucket_hash};
use crate::Engine;
use crate::active_config::ActiveConfig;
use crate::concurrency::bucket_name::limit_of_bucket;
use crate::concurrency::terms::shared_limit;
use crate::config::concurrency::{ConcurrencyLimit, ConcurrencyMode};
use crate::fleet::reporter::{FleetReporter, SharePace};
use crate::kernel::coordinator::incarnation::IncarnationRecord;
use crate::kernel::coordinator::{Heartbeat, HeartbeatReply};
use crate::kernel::units::{Incarnation, Nanos, ReplicaId, Share};
use crate::store::StoreFailure;
use crate::store::fleet::FleetReport;
use crate::store::heartbeat::{BucketKey, ShareReport, ShareRound, ShareRoundReply};
use crate::store::permits::{
    AcquireOutcome, LimitPermits, PermitId, PermitReport, PermitReportReply, StrictAcquire,
    StrictPermitReply, StrictPermitRequest,
};

/// A report of a proxy, as it arrived.
#[derive(Clone, Debug, Default)]
pub struct ProxyReport {
    /// The coordinator's incarnation that made all grants of the proxy.
    pub coordinator_incarnation: Option<Incarnation>,
    /// True if the proxy leaves.
    pub is_leaving: bool,
    /// The reports about shared limits; `None` if the report has none.
    pub shares: Option<Vec<(BucketKey, Heartbeat)>>,
    /// The permits of strict limits; `None` if the report has none.
    pub permits: Option<Vec<LimitPermits>>,
}

/// The reply to a [`ProxyReport`]: a result for each part.
#[derive(Clone, Debug, Default)]
pub struct ProxyReply {
    /// The reply about shared limits: one for each.
    pub shares: Option<Result<ShareRoundReply, StoreFailure>>,
    /// The replies about strict limits: one for each.
    pub permits: Option<PermitReportReply>,
}

impl ProxyConnection {
    /// Returns the number of this proxy in the ids of its permits.
    #[must_use]
    pub fn process(&self) -> u64 {
        self.history.lock().process
    }

    /// Returns the proxy's id in the coordinator of shared limits.
    #[must_use]
    pub fn replica(&self) -> ReplicaId {
        self.history.lock().replica
    }
}

impl Engine {
    /// Checks the report of a proxy, and sends the valid parts to the store.
    pub async fn report_for_proxy(
        &self,
        connection: &ProxyConnection,
        report: ProxyReport,
    ) -> ProxyReply {
        let now = self.clock().steady();
        let config = self.active.load_full();
        let config = config.as_deref();
        let record = (report.coordinator_incarnation, report.is_leaving);
        let shares = report.shares.map(|shares| self.check_shares(connection, config, shares));
        let permits = report.permits.map(|permits| self.check_permits(connection, config, permits));
        let round = shares
            .as_ref()
            .and_then(|(_, reports)| self.share_round(connection, record, reports.clone()));
        let sent = FleetReport {
            membership: None,
            // A round without reports renews the record of the proxy.
            shares: round,
            permits: permits.map(|limits| PermitReport {
                times: self.proxy_share_pace().permit_timing(Nanos(0)),
                to_all_nodes: false,
                limits,
            }),
        };
        let reply = self.store().report(now, &sent).await;
        let shares = shares.map(|(is_sent, reports)| {
            let reply = reply.shares.unwrap_or(Err(StoreFailure::Overloaded))?;
            Ok(record_replies(connection, &is_sent, &reports, reply))
        });
        ProxyReply { shares, permits: reply.permits }
    }

    /// Returns for each report whether it is sent, and the reports to send.
    fn check_shares(
        &self,
        connection: &ProxyConnection,
        config: Option<&ActiveConfig>,
        shares: Vec<(BucketKey, Heartbeat)>,
    ) -> (Vec<bool>, Vec<ShareReport>) {
        let (mut is_sent, mut reports) = (Vec::new(), Vec::new());
        for (bucket, heartbeat) in shares {
            let report = self.check_share(connection, config, (bucket, heartbeat));
            is_sent.push(report.is_some());
            reports.extend(report);
        }
        (is_sent, reports)
    }

    fn check_share(
        &self,
        connection: &ProxyConnection,
        config: Option<&ActiveConfig>,
        (bucket, claimed): (BucketKey, Heartbeat),
    ) -> Option<ShareReport> {
        let (now, hash) = (self.clock().steady(), bucket_hash(&bucket));
        let mut history = connection.history.lock();
        let shared = config
            .and_then(|config| shared_limit(limit_of_bucket(config, &bucket, self.clock().now())?));
        let configured = shared.map(|shared| {
            let timing = self.proxy_share_pace().timing(shared.max_duration);
            shared.coordinator_config(timing)
        });
        let law = configured.or_else(|| history.law(hash).filter(|_| claimed.is_leaving))?;
        let fair = Share(law.max.0 / u64::from(self.sharing_processes().get())).max(Share(1));
        let mut heartbeat = history.check_share((hash, law), claimed, (now, fair))?;
        drop(history);
        heartbeat.vote = heartbeat.vote.filter(|_| Share(0) < heartbeat.demand);
        if let Some(vote) = heartbeat.vote {
            let vote = (vote, now);
            let folded = self.proxies().votes.lock().fold(
                hash,
                connection.incarnation(),
                vote,
                law.timing.heartbeat,
            );
            heartbeat.vote = folded.filter(|_| !self.concurrency_limits.has_share(&bucket));
        }
        Some(ShareReport { bucket, law, heartbeat })
    }

    /// Returns the round to send; `None` if the peer has too many proxies.
    fn share_round(
        &self,
        connection: &ProxyConnection,
        (coordinator_incarnation, is_leaving): (Option<Incarnation>, bool),
        reports: Vec<ShareReport>,
    ) -> Option<ShareRound> {
        let mut history = connection.history.lock();
        let longest = reports.iter().map(|report| report.law.timing.longest_use()).max();
        let own = self.concurrency_limits.fleet_reporter().map(FleetReporter::longest_use);
        let longest_use = longest.unwrap_or_default().max(own.unwrap_or_default());
        history.join_fleet(self.clock().steady().plus(longest_use)).then_some(())?;
        Some(ShareRound {
            record: IncarnationRecord {
                replica: history.replica,
                incarnation: Incarnation(connection.incarnation().0),
                coordinator_incarnation,
            },
            last_reply_at: history.last_store_time,
            longest_use,
            is_leaving,
            reports,
        })
    }

    fn check_permits(
        &self,
        connection: &ProxyConnection,
        config: Option<&ActiveConfig>,
        permits: Vec<LimitPermits>,
    ) -> Vec<LimitPermits> {
        let (now, mut history) = (self.clock().steady(), connection.history.lock());
        let check = |permits: LimitPermits| {
            let limit = config.and_then(|config| strict_limit(config, &permits.bucket, now));
            let times = limit.map(|limit| permit_times(self.proxy_share_pace(), limit));
            history.check_permits(now, permits, times)
        };
        permits.into_iter().map(check).collect()
    }

    /// Acquires a permit of a strict limit for a proxy.
    ///
    /// # Errors
    /// The store does not reply. [`StoreFailure::Overloaded`]: the configuration has no such limit,
    /// the peer has too many permits, or the number belongs to a permit of another limit.
    pub async fn acquire_for_proxy(
        &self,
        connection: &ProxyConnection,
        (bucket, number): (BucketKey, u64),
    ) -> Result<StrictPermitReply, StoreFailure> {
        let now = self.clock().steady();
        let config = self.active.load_full();
        let limit =
            config.as_deref().and_then(|config| strict_limit(config, &bucket, self.clock().now()));
        let limit = limit.ok_or(StoreFailure::Overloaded)?;
        let (hash, size) = (bucket_hash(&bucket), u64::from(limit.rules.limit));
        let fair = (size / u64::from(self.sharing_processes().get())).max(1);
        let pace = self.proxy_share_pace();
        let times = permit_times(pace, limit);
        let process = {
            let mut history = connection.history.lock();
            let has_part = fair <= u64::from(history.held(hash));
            let me = connection.incarnation();
            if has_part && self.proxies().is_denied_to_others((hash, me), now, pace.heartbeat) {
                return Ok(StrictPermitReply {
                    result: AcquireOutcome::LimitReached,
                    held: Share(size),
                });
            }
            let ends_at = now.plus(times.longest);
            history
                .add_permit(number, hash, ends_at)
                .then_some(())
                .ok_or(StoreFailure::Overloaded)?;
            history.process
        };
        let permit = StrictAcquire {
            id: PermitId(process, number),
            limit: Share(size),
            lifetime: times.lifetime,
            timing: pace.permit_timing(limit.max_duration),
        };
        let request = StrictPermitRequest { bucket, permit };
        let reply = self.store().acquire_strict_permit(now, &request).wait().await;
        let is_acquired = reply.is_ok_and(|reply| reply.result == AcquireOutcome::Acquired);
        let mut history = connection.history.lock();
        // Without a reply, the proxy may allow requests up to its part of the limit.
        let may_be_in_use = reply.is_err() && u64::from(history.held(hash)) <= fair;
        if is_acquired || may_be_in_use {
            history.confirm_permit(number);
        } else {
            history.remove_permit(number);
        }
        drop(history);
        let is_denied = reply.is_ok_and(|reply| reply.result == AcquireOutcome::LimitReached);
        self.proxies().record_acquire((hash, connection.incarnation()), now, is_denied);
        reply
    }
}

/// Records the replies that are passed on. A report that was not sent is refused.
fn record_replies(
    connection: &ProxyConnection,
    is_sent: &[bool],
    reports: &[ShareReport],
    reply: ShareRoundReply,
) -> ShareRoundReply {
    let mut history = connection.history.lock();
    history.last_store_time = history.last_store_time.max(Some(reply.store_time));
    for (report, reply) in reports.iter().zip(&reply.replies) {
        if let (Some(share), Some(HeartbeatReply::Grant(grant))) =
            (history.share(bucket_hash(&report.bucket)), reply)
        {
            share.record_grant(grant);
        }
    }
    let mut sent = reply.replies.into_iter();
    let replies = is_sent.iter().map(|is_sent| {
        if *is_sent { sent.next().flatten() } else { Some(HeartbeatReply::TooManyReplicas) }
    });
    ShareRoundReply { replies: replies.collect(), ..reply }
}

fn strict_limit<'c>(
    config: &'c ActiveConfig,
    bucket: &[u8],
    now: Nanos,
) -> Option<&'c ConcurrencyLimit> {
    limit_of_bucket(config, bucket, now).filter(|limit| limit.mode == Some(ConcurrencyMode::Strict))
}

fn permit_times(pace: SharePace, limit: &ConcurrencyLimit) -> PermitTimes {
    let timing = pace.permit_timing(limit.max_duration);
    PermitTimes { lifetime: pace.permit_lifetime(), longest: timing.max_lifetime }
}
