//! Serves proxies that lease hits and decide requests themselves.
//!
//! A proxy is one more replica in the lease tables of the store. It names a counter by domain,
//! entries and limit; each message is planned again with the configuration in force.
//!
//! Guarantees:
//! - A proxy charges only counters of limits in force.
//! - A message for a limit that has another strategy by now changes no counter.
//! - A change of the limits is announced once it is in force.
//!
//! Not covered:
//! - The messages of the protocol (see `edge::grpc::leases`).
//! - Permits of concurrency limits.

pub mod registry;
pub mod rule;
pub mod usage;

use crate::config::Config;
use crate::engine::Engine;
use crate::engine::active_config::ActiveConfig;
use crate::engine::decide::plan::{CheckPlan, LimitPlan, PlanInstants};
use crate::kernel::decision::{Check, Cost, Descriptor, StoreFailure};
use crate::kernel::lease::{BorrowRequest, LeaseTerms, ReplicaIncarnation};
use crate::kernel::rate::Strategy;
use crate::kernel::units::{Hits, Nanos};
pub use crate::store::ChargeOutcome;
use crate::store::lease::LeaseMessage;
pub use crate::store::lease::LeaseOutcome;
use crate::store::{Charge, ChargeMode, Charges};
use smallvec::smallvec;
use tokio::sync::watch;

/// The keys and values of a descriptor.
pub type Entries<'e> = &'e [(&'e str, &'e str)];

/// The counter of a leased limit, as a proxy names it.
#[derive(Clone, Copy, Debug)]
pub struct ProxyCounter<'c> {
    /// The domain.
    pub domain: &'c str,
    /// The entries of the counter's key.
    pub entries: Entries<'c>,
    /// The name of the limit in a list `rate_limits`; empty for `rate_limit`.
    pub limit: &'c str,
    /// The strategy with which the proxy borrowed hits.
    pub strategy: Strategy,
}

/// The reason why no message was sent to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyRefusal {
    /// No configuration is loaded.
    NoConfig,
    /// The configuration has no such leased limit, or it has another strategy.
    LimitChanged,
}

/// Announces each change of the limits in force.
#[derive(Debug)]
pub(in crate::engine) struct LimitsNumber(watch::Sender<u64>);

impl Default for LimitsNumber {
    fn default() -> Self {
        Self(watch::Sender::new(1))
    }
}

impl LimitsNumber {
    /// Announces that the limits have changed.
    pub(in crate::engine) fn advance(&self) {
        self.0.send_modify(|number| *number = number.wrapping_add(1));
    }

    pub(in crate::engine) fn current(&self) -> u64 {
        *self.0.borrow()
    }
}

impl Engine {
    /// Returns a receiver of the number of the limits in force, which rises with each change.
    #[must_use]
    pub fn watch_limits(&self) -> watch::Receiver<u64> {
        self.limits_number.0.subscribe()
    }

    /// Applies the lease message of a proxy.
    ///
    /// # Errors
    /// The configuration has no such limit. Nothing was charged.
    pub async fn exchange_for_proxy(
        &self,
        counter: &ProxyCounter<'_>,
        sender: ReplicaIncarnation,
        borrow: BorrowRequest,
    ) -> Result<LeaseOutcome, ProxyRefusal> {
        let (charge, terms) = self.leased_charge(counter, Hits(0))?;
        let Charge { key, placement, strategy, per_second, .. } = charge;
        let message = LeaseMessage { key, placement, per_second, strategy, terms, sender, borrow };
        Ok(self.store().exchange_lease_message(self.clock.now(), &message).wait().await)
    }

    /// Charges a counter for a proxy, without a lease.
    ///
    /// # Errors
    /// As [`Engine::exchange_for_proxy`].
    pub async fn charge_for_proxy(
        &self,
        counter: &ProxyCounter<'_>,
        hits: Hits,
    ) -> Result<ChargeOutcome, ProxyRefusal> {
        let (charge, _) = self.leased_charge(counter, hits)?;
        let charges = Charges { list: smallvec![charge], mode: ChargeMode::Each };
        let outcomes = self.store().charge(self.clock.now(), &charges).wait().await;
        let failed = ChargeOutcome::Failed(StoreFailure::InvalidReply);
        Ok(outcomes.first().copied().unwrap_or(failed))
    }

    /// Returns the charge of a leased limit and its lease terms, by the configuration in force.
    fn leased_charge(
        &self,
        counter: &ProxyCounter<'_>,
        hits: Hits,
    ) -> Result<(Charge, LeaseTerms), ProxyRefusal> {
        let active = self.active.load();
        let config = active.as_deref().ok_or(ProxyRefusal::NoConfig)?;
        let check = check_of(counter.domain, counter.entries, hits);
        let plan = self.plan_for_proxy(config, &check);
        let names = plan.limits.iter().filter_map(|limit| match limit {
            LimitPlan::Charged(_, limit) => Some(limit.name.as_deref().unwrap_or_default()),
            _ => None,
        });
        let mut charged = names.zip(&plan.charges.list).zip(plan.lease_terms());
        let ((_, charge), terms) = charged
            .find(|((name, _), _)| *name == counter.limit)
            .ok_or(ProxyRefusal::LimitChanged)?;
        let terms = *terms.ok_or(ProxyRefusal::LimitChanged)?;
        if charge.strategy != counter.strategy {
            return Err(ProxyRefusal::LimitChanged);
        }
        Ok((charge.clone(), terms))
    }

    fn plan_for_proxy<'c>(&self, config: &'c ActiveConfig, check: &Check<'_>) -> CheckPlan<'c> {
        let (config, now): (&Config, Nanos) = (config, self.clock.now());
        let mut plan = CheckPlan::default();
        let instants = PlanInstants { forced_at: now, windows_at: now };
        plan.fill_at(config, check, self.policy.planning, instants);
        plan
    }
}

/// Returns a check of one descriptor.
fn check_of<'e>(domain: &'e str, entries: Entries<'e>, hits: Hits) -> Check<'e> {
    let cost = Cost::Charge(hits);
    let descriptor = Descriptor { entries: entries.iter().copied().collect(), cost, limit: None };
    Check { domain, descriptors: smallvec![descriptor] }
}
