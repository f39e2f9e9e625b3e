//! Borrows and charges hits of one counter for a proxy.
//!
//! Guarantees:
//! - A counter is used only while its limit has the strategy that the proxy knows.
//! - Works with every store, also with the memory store.
//! - A call for a calendar window that ended is planned again, once.
//! - At the bounds of its peer, a proxy gets no lease. Its requests are charged one by one.
//!
//! Not covered:
//! - The leases of this replica (see [`crate::lease`]).
//! - The deadline of a call, which the store enforces.

use sluicegate_lease::beside_leases;
use smallvec::smallvec;

use super::ProxyConnection;
use super::history::bucket_hash;
use crate::Engine;
use crate::active_config::ActiveConfig;
use crate::decide::limit_plan::LimitPlan;
use crate::decide::plan::{CheckPlan, PlanInstants};
use crate::kernel::decision::{Check, Cost, Descriptor};
use crate::kernel::lease::{BorrowReply, BorrowRequest, LeaseTerms};
use crate::kernel::rate::Strategy;
use crate::kernel::rate::fixed_window::Windows;
use crate::kernel::units::{Hits, Nanos};
use crate::store::lease::{LeaseMessage, LeaseOutcome};
use crate::store::{Charge, ChargeMode, ChargeOutcome, Charges, StoreFailure, StoreReply};

/// The counter of a leased limit, as a proxy names it.
#[derive(Clone, Copy, Debug)]
pub struct ProxyCounter<'a> {
    /// The domain.
    pub domain: &'a str,
    /// The entries of the counter (see [`ProxyRule::counter`](crate::kernel::proxy_rule::ProxyRule)).
    pub entries: &'a [(&'a str, &'a str)],
    /// The name of the limit in the list `rate_limits`; `None` for `rate_limit`.
    pub limit: Option<&'a str>,
    /// The strategy that the proxy knows.
    pub strategy: Strategy,
}

/// The reason why a call for a proxy was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyCallError {
    /// No configuration is loaded.
    #[error("no limits are loaded")]
    NoConfig,
    /// The configuration has no such leased limit, or with another strategy.
    #[error("the limit changed")]
    LimitChanged,
}

/// Returns a check of one descriptor.
pub(super) fn one_descriptor<'a>(
    domain: &'a str,
    entries: &[(&'a str, &'a str)],
    hits: Hits,
) -> Check<'a> {
    let descriptor = Descriptor { entries: entries.into(), cost: Cost::Charge(hits), limit: None };
    Check { domain, descriptors: smallvec![descriptor] }
}

impl Engine {
    /// Exchanges a lease message of a proxy about one counter. A message that the store
    /// cannot have received fails as [`StoreFailure::Overloaded`].
    ///
    /// # Errors
    /// [`ProxyCallError`]; nothing was sent.
    pub async fn exchange_proxy_message(
        &self,
        counter: &ProxyCounter<'_>,
        borrow: BorrowRequest,
        connection: &ProxyConnection,
    ) -> Result<LeaseOutcome, ProxyCallError> {
        let (now, sender) = (self.clock.now(), connection.incarnation());
        let exchange = async |windows_at| {
            let (charge, terms) = self.plan_proxy_charge(counter, Hits(0), windows_at)?;
            let until = self.clock.steady().plus(terms.duration);
            let counter_hash = bucket_hash(charge.key.as_bytes());
            if !connection.history.lock().add_lease(counter_hash, until) {
                let outcome = self.charge_for_proxy(counter, borrow.hits).await?;
                return Ok(without_lease(outcome, &borrow));
            }
            let Charge { key, placement, strategy, per_second, .. } = charge;
            let message =
                LeaseMessage { key, placement, per_second, strategy, terms, sender, borrow };
            Ok(self.send_proxy_message(&message).await)
        };
        match exchange(now).await? {
            LeaseOutcome::Stale(store_now) => match exchange(store_now).await? {
                LeaseOutcome::Stale(_) => Ok(LeaseOutcome::Failed(StoreFailure::OutsideWindows)),
                outcome => Ok(outcome),
            },
            outcome => Ok(outcome),
        }
    }

    async fn send_proxy_message(&self, message: &LeaseMessage) -> LeaseOutcome {
        match self.store().exchange_lease_message(self.clock.now(), message) {
            StoreReply::Ready(LeaseOutcome::Failed(_)) => {
                LeaseOutcome::Failed(StoreFailure::Overloaded)
            }
            StoreReply::Ready(outcome) => outcome,
            StoreReply::Pending(reply) => reply.await,
        }
    }

    /// Charges `hits` to a counter without a lease.
    ///
    /// # Errors
    /// [`ProxyCallError`]; nothing was charged.
    pub async fn charge_for_proxy(
        &self,
        counter: &ProxyCounter<'_>,
        hits: Hits,
    ) -> Result<ChargeOutcome, ProxyCallError> {
        let charge = async |windows_at| {
            let (charge, terms) = self.plan_proxy_charge(counter, hits, windows_at)?;
            let charges = Charges { list: smallvec![charge], mode: ChargeMode::Each };
            let (store, now, terms) = (self.store(), self.clock.now(), [Some(&terms)]);
            let outcomes = beside_leases::charge(store, now, &charges, &terms).await;
            let missing = ChargeOutcome::Failed(StoreFailure::InvalidReply);
            Ok(outcomes.first().copied().unwrap_or(missing))
        };
        match charge(self.clock.now()).await? {
            ChargeOutcome::Stale(store_now) => match charge(store_now).await? {
                ChargeOutcome::Stale(_) => Ok(ChargeOutcome::Failed(StoreFailure::OutsideWindows)),
                outcome => Ok(outcome),
            },
            outcome => Ok(outcome),
        }
    }

    /// Plans the charge of a leased limit. Calendar windows are those around `windows_at`.
    fn plan_proxy_charge(
        &self,
        counter: &ProxyCounter<'_>,
        hits: Hits,
        windows_at: Nanos,
    ) -> Result<(Charge, LeaseTerms), ProxyCallError> {
        let active = self.active.load();
        let config: &ActiveConfig = active.as_deref().ok_or(ProxyCallError::NoConfig)?;
        let check = one_descriptor(counter.domain, counter.entries, hits);
        let mut plan = CheckPlan::default();
        let at = PlanInstants { forced_at: self.clock.now(), windows_at };
        plan.fill_at(config, &check, self.policy.planning, at);
        find_charge(&plan, counter).ok_or(ProxyCallError::LimitChanged)
    }
}

/// Returns the result of a charge as that of a lease message that lends no hits.
const fn without_lease(outcome: ChargeOutcome, borrow: &BorrowRequest) -> LeaseOutcome {
    match outcome {
        ChargeOutcome::Decided(decision)
        | ChargeOutcome::Counted(decision, _)
        | ChargeOutcome::Refunded(decision) => LeaseOutcome::Applied(BorrowReply {
            number: borrow.number,
            decision,
            granted: Hits(0),
            kept: Hits(0),
            outstanding_elsewhere: Hits(0),
            valid_for: Nanos(0),
        }),
        ChargeOutcome::StoreFull(verdict) => LeaseOutcome::StoreFull(verdict),
        ChargeOutcome::Stale(store_now) => LeaseOutcome::Stale(store_now),
        ChargeOutcome::Failed(cause) => LeaseOutcome::Failed(cause),
    }
}

fn find_charge(plan: &CheckPlan<'_>, counter: &ProxyCounter<'_>) -> Option<(Charge, LeaseTerms)> {
    let limits = plan.limits.iter().filter(|limit| limit.is_charged());
    let mut leased = limits.zip(&plan.charges.list).zip(plan.lease_terms());
    let ((_, charge), terms) = leased.find(|((limit, _), _)| has_name(limit, counter.limit))?;
    let is_same = is_same_strategy(&charge.strategy, &counter.strategy);
    Some((charge.clone(), *terms?)).filter(|_| is_same)
}

fn has_name(plan: &LimitPlan<'_>, name: Option<&str>) -> bool {
    matches!(plan, LimitPlan::Charged(_, limit) if limit.name.as_deref() == name)
}

/// Compares two strategies. Calendar windows are the same if `known`, which may be older or newer
/// by one window, contains the start and the end of the current window of `planned`.
fn is_same_strategy(planned: &Strategy, known: &Strategy) -> bool {
    let (Strategy::FixedWindow(planned_window), Strategy::FixedWindow(known_window)) =
        (planned, known)
    else {
        return planned == known;
    };
    match (planned_window.windows(), known_window.windows()) {
        (
            Windows::Calendar { starts: [_, start, end, _] },
            Windows::Calendar { starts: known_starts },
        ) => {
            known_starts.contains(start)
                && known_starts.contains(end)
                && planned_window.limit() == known_window.limit()
                && planned_window.on_excess() == known_window.on_excess()
        }
        _ => planned == known,
    }
}
