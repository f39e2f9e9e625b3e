//! The concurrency limits of this process, which is one more replica of each limit.
//!
//! Guarantees:
//! - A request of a shared limit needs no call while the process has a share.
//! - A request without a permit is rejected, or waits in the queue until its timeout.
//! - Without reports, a share ends with its lifetime.
//! - A descriptor whose bucket name is above [`MAX_BUCKET_BYTES`] is rejected.
//!
//! Not covered:
//! - A changed `fleet.heartbeat` or `fleet.share_expiry`: it applies after a restart.
//! - Waiting requests after a reload: their new limit applies with the next request.

mod host;
mod usage;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sluicegate_concurrency::limits::reporter::FleetReporter;
use sluicegate_concurrency::limits::{
    AcquireError, ConcurrencyLimits, PermitGuard, PermitRequest, SharedLimit, rules_at_process,
};
use sluicegate_lease::clock::Clock;
use tokio::runtime::Handle;

use crate::answer::Answer;
use crate::connection::Connection;
use crate::found_rule::FoundRule;
use crate::kernel::concurrency::{ConcurrencyMode, Requester};
use crate::kernel::decision::{Reason, RuleVerdict};
use crate::kernel::proxy_rule::{ConcurrencyRule, CustomerWeight};
use crate::kernel::units::Nanos;
use crate::limits_version::LimitsVersion;
use crate::permits::Permits;
use crate::service_store::ServiceStore;
use crate::settings::WaitSettings;
use crate::wire::api::ConcurrencyUsage;
use crate::wire::concurrency::MAX_BUCKET_BYTES;
use host::ProxyHost;
use usage::PermitUsage;

/// The longest wait of the first request of a limit for its share. It ends before the wait for the
/// report. The deadline of the request may be shorter.
const FIRST_SHARE_WAIT: Duration = Duration::from_millis(50);

/// The concurrency limits of this process.
#[derive(Debug)]
pub(crate) struct Concurrency {
    clock: Arc<Clock>,
    connection: Arc<Connection>,
    store: Arc<ServiceStore>,
    runtime: Handle,
    /// Created for the first rule with a concurrency limit, which arrives after the welcome.
    limits: OnceLock<Arc<ConcurrencyLimits>>,
    usage: PermitUsage,
    max_buckets: usize,
}

/// The permits of a request that no limit rejects.
#[derive(Debug, Default)]
pub(crate) struct AcquiredPermits {
    pub(crate) permits: Permits,
    /// `true` if a limit got no reply before the deadline, so that the failure rule decides for it.
    pub(crate) is_incomplete: bool,
}

/// The result of one limit that does not reject the request.
enum Acquired {
    Permit(PermitGuard),
    /// Shadow mode allows the request.
    Shadow,
    NoReply,
}

impl Concurrency {
    /// Creates limits of at most `max_buckets` buckets. Their tasks run on `runtime`.
    pub(crate) fn new(
        (clock, runtime): (Arc<Clock>, Handle),
        connection: Arc<Connection>,
        store: Arc<ServiceStore>,
        max_buckets: usize,
    ) -> Self {
        let (limits, usage) = (OnceLock::new(), PermitUsage::new(max_buckets));
        Self { clock, connection, store, runtime, limits, usage, max_buckets }
    }

    /// Acquires the permits of all rules. Safe to cancel.
    ///
    /// # Errors
    /// The answer of the limit that rejects the request.
    pub(crate) async fn acquire(
        &self,
        rules: &[FoundRule],
        wait: WaitSettings,
    ) -> Result<AcquiredPermits, Box<Answer>> {
        let mut acquired = AcquiredPermits::default();
        // All processes acquire in the same order, so that no two requests wait for each other.
        let limited = rules.iter().map(|rule| (rule.version, rule.reply.concurrency.as_deref()));
        let mut limited: Vec<_> =
            limited.filter_map(|(version, limit)| Some((version, limit?))).collect();
        limited.sort_by(|(_, a), (_, b)| a.bucket.cmp(&b.bucket));
        limited.dedup_by(|(_, a), (_, b)| a.bucket == b.bucket);
        for (version, limit) in limited {
            if MAX_BUCKET_BYTES < limit.bucket.len() {
                return Err(Box::new(Answer::rejected(limit, Reason::TooManyBuckets)));
            }
            let by = requester(self.limits(), limit, rules);
            let result = self.acquire_one((limit, by), version, wait).await;
            match self.apply_result(limit, result)? {
                Acquired::Permit(permit) => acquired.permits.add(permit),
                Acquired::Shadow => {}
                Acquired::NoReply => acquired.is_incomplete = true,
            }
        }
        Ok(acquired)
    }

    /// Returns the use of the buckets since the last call, at most 1,000.
    pub(crate) fn take_usage(&self) -> Vec<ConcurrencyUsage> {
        let buckets = self.limits.get().map(|limits| limits.snapshots());
        self.usage.take(buckets.unwrap_or_default())
    }

    async fn acquire_one(
        &self,
        (limit, by): (&ConcurrencyRule, Requester),
        version: LimitsVersion,
        wait: WaitSettings,
    ) -> Result<PermitGuard, AcquireError> {
        let limits = self.limits();
        let reporter = limits.fleet_reporter();
        let shared = (limit.mode == ConcurrencyMode::Shared).then(|| shared_limit(limit));
        let strict = reporter.filter(|_| limit.mode == ConcurrencyMode::Strict).map(|reporter| {
            reporter.expect_strict(true);
            reporter.strict_limit(&limit.rules, limit.max_duration, limit.on_failure)
        });
        if let Some(reporter) = reporter {
            reporter.expect_shared(shared.into_iter());
        }
        let waits = !limit.is_shadow;
        let deadline = Nanos(u64::try_from(wait.deadline.as_nanos()).unwrap_or(u64::MAX));
        let request = PermitRequest {
            bucket: &limit.bucket,
            limit_path: &limit.path,
            revision: version.revision(),
            by,
            rules: &rules_at_process(&limit.rules, shared.as_ref(), strict.as_ref()),
            // The proxy reports the end of each request.
            permit_lifetime: None,
            queue_timeout: if waits { Nanos(u64::MAX) } else { Nanos(0) },
            store_timeout: if waits || strict.is_some() { deadline } else { Nanos(0) },
            shared,
        };
        match strict {
            Some(strict) => limits.acquire_strict(request, strict, &*self.store).await,
            None => limits.acquire(request).await,
        }
    }

    /// Counts the result of an acquire. A limit in shadow mode rejects nothing.
    fn apply_result(
        &self,
        limit: &ConcurrencyRule,
        acquired: Result<PermitGuard, AcquireError>,
    ) -> Result<Acquired, Box<Answer>> {
        let (verdict, result) = match acquired {
            Ok(permit) => ((RuleVerdict::Allow, Reason::WithinLimit), Ok(Acquired::Permit(permit))),
            Err(error) if limit.is_shadow => {
                ((RuleVerdict::ShadowDeny, error.reason()), Ok(Acquired::Shadow))
            }
            Err(AcquireError::NoShare) => return Ok(Acquired::NoReply),
            // Without a queue, only the wait for the store can time out.
            Err(AcquireError::QueueTimeout) if limit.rules.queue.is_none() => {
                return Ok(Acquired::NoReply);
            }
            Err(error) => {
                let reason = error.reason();
                ((RuleVerdict::Deny, reason), Err(Box::new(Answer::rejected(limit, reason))))
            }
        };
        self.usage.count(&limit.bucket, verdict);
        result
    }

    fn limits(&self) -> &Arc<ConcurrencyLimits> {
        self.limits.get_or_init(|| self.start())
    }

    /// Creates the limits, and starts their reports.
    fn start(&self) -> Arc<ConcurrencyLimits> {
        let (clock, connection) = (Arc::clone(&self.clock), Arc::clone(&self.connection));
        let pace = connection.fleet_info().pace;
        let host = Arc::new(ProxyHost::new(connection));
        let reporter = FleetReporter::new(host, clock.now(), pace, FIRST_SHARE_WAIT);
        let jitter = RandomState::new().hash_one(0_u8);
        let limits = ConcurrencyLimits::new(clock, self.max_buckets, jitter);
        let limits = Arc::new(limits.with_fleet(Arc::new(reporter)));
        let swept = Arc::clone(&limits);
        self.runtime.spawn(async move { swept.sweep_forever().await });
        let (clock, store) = (Arc::clone(&self.clock), Arc::clone(&self.store));
        self.runtime.spawn(report_forever(Arc::clone(&limits), clock, store));
        limits
    }
}

async fn report_forever(
    limits: Arc<ConcurrencyLimits>,
    clock: Arc<Clock>,
    store: Arc<ServiceStore>,
) {
    let Some(reporter) = limits.fleet_reporter() else { return };
    let mut timer = reporter.timer();
    loop {
        let parts = reporter.next_round(&mut timer).await;
        // The reply to a heartbeat: a proxy sends none.
        let _none = reporter.report(&clock, &*store, parts).await;
    }
}

/// Returns the class and the customer of a request with these rules, one for each of its descriptors.
fn requester(
    limits: &ConcurrencyLimits,
    limit: &ConcurrencyRule,
    rules: &[FoundRule],
) -> Requester {
    let Some(told) = &limit.requesters else { return Requester::ANY };
    let entry = |key: &str| {
        rules.iter().find_map(|rule| {
            let mut entries = rule.descriptor().entries.iter();
            entries.find(|(name, _)| **name == *key).map(|(_, value)| (rule, &**value))
        })
    };
    let weight_of = |_: &str| {
        let Some(column) = &told.weight_column else { return Some(1) };
        let (key, (rule, _)) = (&told.keys.customer, entry(told.keys.customer.as_deref()?)?);
        let is_it = |weight: &&CustomerWeight| {
            weight.column == *column && Some(&weight.key) == key.as_ref()
        };
        rule.reply.weights.iter().find(is_it)?.weight
    };
    limits.requester(&told.keys, |key| entry(key).map(|(_, value)| value), weight_of)
}

fn shared_limit(limit: &ConcurrencyRule) -> SharedLimit {
    SharedLimit::new(&limit.rules, limit.aggregate, limit.max_duration, limit.on_failure)
}
