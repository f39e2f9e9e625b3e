//! Concurrency limits of proxies. A proxy is one more replica: it has a share of each limit, and
//! reports to the store through this replica.
//!
//! Guarantees:
//! - Shares and permits of proxies count in the same limits as those of replicas.
//! - Reported rejections count in the same metrics as those of this replica.
//!
//! Not covered:
//! - Requests that this replica admits itself under the stores `memory` and `file`: there they have
//!   a limit of their own.

use std::num::NonZeroU32;

use crate::Engine;
use crate::active_config::ActiveConfig;
use crate::concurrency::bucket_name::{bucket_of, limit_from_table, limit_of_bucket};
use crate::config::concurrency::{ConcurrencyLimit, ConcurrencyMode, RequesterRule};
use crate::config::{Config, Domain};
use crate::fleet::membership::Membership;
use crate::fleet::reporter::{FleetReporter, SharePace};
use crate::kernel::decision::{Reason, RuleVerdict, Verdict};
use crate::kernel::proxy_rule::{ConcurrencyRule, CustomerWeight, ProxyRequesters, TableRow};
use crate::kernel::units::Nanos;
use crate::telemetry::event::{ConcurrencyLimitExceeded, Event as _, ProxyDecisions};

/// The decisions of a proxy about the permits of one bucket, since its last report.
#[derive(Clone, Copy, Debug)]
pub struct ProxyPermitUsage<'a> {
    /// The name of the bucket.
    pub bucket: &'a [u8],
    /// The requests that got a permit.
    pub allowed: u64,
    /// The rejected requests by reason.
    pub rejected: [(Reason, u64); 4],
    /// The requests that shadow mode allowed without a permit.
    pub shadow_rejected: u64,
}

impl Engine {
    /// Returns the concurrency limit of a descriptor, in shadow mode if this replica is.
    pub(super) fn proxy_concurrency_limit(
        &self,
        (config, domain): (&Config, &Domain),
        entries: &[(&str, &str)],
    ) -> Option<Box<ConcurrencyRule>> {
        let found = domain.tree.lookup_concurrency_limit(entries.iter().copied())?;
        let bucket = bucket_of(&domain.name, entries.iter().copied(), &found);
        let limit = limit_from_table(config, found.limit, entries, self.clock().now())?;
        Some(Box::new(ConcurrencyRule {
            path: (*limit.path).into(),
            bucket: bucket.as_bytes().into(),
            mode: limit.mode.unwrap_or(ConcurrencyMode::Shared),
            rules: limit.rules,
            aggregate: limit.aggregate,
            max_duration: limit.max_duration,
            on_failure: limit.on_store_failure,
            reject: limit.reject.clone(),
            is_shadow: limit.shadow || self.is_shadow(),
            requesters: limit.requesters.as_deref().map(|rule| Box::new(proxy_requesters(rule))),
        }))
    }

    /// Returns the timing of the reports of proxies.
    #[must_use]
    pub fn proxy_share_pace(&self) -> SharePace {
        self.concurrency_limits
            .fleet_reporter()
            .map_or_else(SharePace::default, FleetReporter::pace)
    }

    /// Estimates the number of replicas and proxies that share a limit: each replica serves as many
    /// proxies as this one.
    #[must_use]
    pub fn sharing_processes(&self) -> NonZeroU32 {
        let proxies = u32::try_from(self.proxies().count()).unwrap_or(u32::MAX);
        let replicas = self.membership().map_or(NonZeroU32::MIN, Membership::replicas);
        replicas.saturating_mul(NonZeroU32::MIN.saturating_add(proxies))
    }

    /// Counts decisions of a proxy as if this replica had made them.
    pub fn count_proxy_permits(&self, usage: &ProxyPermitUsage<'_>) {
        let active = self.active.load();
        let Some(config) = active.as_deref() else { return };
        let Some(limit) = limit_of_bucket(config, usage.bucket, self.clock().now()) else { return };
        // The decision of a rate limit counts instead, as in `PermitCollector::add_verdict`.
        if !limit.has_rate_limit {
            config.counters.count_many(limit.number, RuleVerdict::Allow, usage.allowed);
            config.counters.count_many(
                limit.number,
                RuleVerdict::ShadowDeny,
                usage.shadow_rejected,
            );
        }
        for (reason, count) in usage.rejected {
            count_rejections(config, limit, reason, count);
        }
        let shadow = usage.shadow_rejected;
        if 0 < shadow {
            let reason = Reason::ConcurrencyLimitReached;
            let (path, is_enforced) = (&*limit.path, false);
            let (class, count) = (None, shadow);
            ConcurrencyLimitExceeded { limit: path, class, reason, is_enforced, count }.emit();
        }
    }
}

fn proxy_requesters(rule: &RequesterRule) -> ProxyRequesters {
    let weight_column = rule.weight.as_ref().map(|column| column.to_string().into());
    ProxyRequesters { keys: rule.keys.clone(), weight_column }
}

/// Returns the weights of the customers that a descriptor names, each with its row.
pub(super) fn customer_weights(
    config: &Config,
    domain: &Domain,
    entries: &[(&str, &str)],
    now: Nanos,
) -> (Vec<CustomerWeight>, Vec<TableRow>) {
    let (mut weights, mut rows) = (Vec::<CustomerWeight>::new(), Vec::new());
    for rule in domain.tree.concurrency_limits().filter_map(|limit| limit.requesters.as_deref()) {
        let (Some(column), Some(key)) = (&rule.weight, &rule.keys.customer) else { continue };
        let Some((_, id)) = entries.iter().find(|(name, _)| **name == **key) else { continue };
        let name = column.to_string();
        if weights.iter().any(|known| known.key == *key && *known.column == *name) {
            continue;
        }
        let weight = config.tables.weight(column, id, now);
        weights.push(CustomerWeight { key: key.clone(), column: name.into(), weight });
        rows.push(TableRow::new(&column.table, id));
    }
    (weights, rows)
}

fn count_rejections(config: &ActiveConfig, limit: &ConcurrencyLimit, reason: Reason, count: u64) {
    if count == 0 {
        return;
    }
    config.counters.count_many(limit.number, RuleVerdict::Deny, count);
    let (path, is_enforced) = (&*limit.path, true);
    ConcurrencyLimitExceeded { limit: path, class: None, reason, is_enforced, count }.emit();
    ProxyDecisions { count, verdict: Verdict::Deny, is_shadowed: false, reason }.emit();
}
