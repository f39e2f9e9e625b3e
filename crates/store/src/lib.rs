//! The stores that keep the counters: in this process, in a file, in Redis or in PostgreSQL.
//!
//! Guarantees:
//! - A store returns one outcome for each charge of a check, in the order of the charges.
//! - If a store does not reply in time, the outcome is [`ChargeOutcome::Failed`].

pub mod audit;
mod backoff;
mod breaker;
pub mod budgets;
pub mod file;
pub mod fleet_start;
pub mod memory;
pub mod postgres;
pub mod redis;

pub use sluicegate_concurrency::store::{FleetStore, SharedStore, fleet, heartbeat, permits};
pub use sluicegate_lease::store::{
    Charge, ChargeMode, ChargeOutcome, Charges, CounterHits, CounterStore, Outcomes, Placement,
    StoreFailure, StoreReply, lease, stats,
};

use sluicegate_kernel as kernel;
use sluicegate_telemetry::{self as telemetry, pem};

use crate::kernel::decision::{Verdict, VoteGroup, combine};
use crate::kernel::units::Nanos;
use audit::{AuditRecord, StoredAuditRecord};
pub use budgets::BudgetStore;

/// A store of the audit log. The default methods serve a store without one.
pub trait AuditStore: Send + Sync {
    /// Returns `true` if this store has an audit log that survives a restart of the process.
    fn has_audit_log(&self) -> bool {
        false
    }

    /// Appends a record to the audit log at the instant `now`; a shared store uses its own clock.
    /// Removes the oldest records above the maximum. A record with the id of another one replaces it.
    /// Fails if the store does not reply or has no audit log.
    fn append_audit<'a>(
        &'a self,
        _now: Nanos,
        _record: &'a AuditRecord,
    ) -> StoreReply<'a, Result<(), StoreFailure>> {
        StoreReply::Ready(Err(StoreFailure::Other))
    }

    /// Returns all records of the audit log, in any order. Fails as [`Self::append_audit`].
    fn read_audit(
        &self,
        _now: Nanos,
    ) -> StoreReply<'_, Result<Vec<StoredAuditRecord>, StoreFailure>> {
        StoreReply::Ready(Err(StoreFailure::Other))
    }
}

/// A store of all that the engine needs: counters, budgets, the fleet's state and the audit log.
pub trait Store: SharedStore + AuditStore + BudgetStore {}

impl<S: SharedStore + AuditStore + BudgetStore> Store for S {}

/// Decides an all-or-nothing check from the previewed outcomes of its charges.
fn is_allowed(
    charges: &[Charge],
    previews: &[ChargeOutcome],
    quota_for_all: bool,
    quota_cannot_deny: bool,
) -> bool {
    let votes = charges.iter().zip(previews).map(|(charge, outcome)| {
        (charge.standing.group, charge.standing.enforced_verdict(outcome.is_denial()))
    });
    let quota_vote = quota_cannot_deny.then_some((VoteGroup::Quota, Verdict::Allow));
    combine(votes.chain(quota_vote), quota_for_all) == Verdict::Allow
}
