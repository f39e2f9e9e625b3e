//! The PostgreSQL store: counters, budgets and the fleet's state in a PostgreSQL that replicas share.
//!
//! The kernel decides in this process, on rows whose last value this replica knows ([`cached`]), or on
//! rows that a transaction has locked ([`transaction`]). So all stores decide with the same code. A
//! PL/pgSQL function for all strategies took ten times the server CPU of a bare statement, in a batch
//! of 64 checks (`benches/postgres.rs`).
//!
//! Guarantees:
//! - A check with `all_or_nothing` and several counters is one transaction, and so is each call to
//!   budgets. Calls that wait together share it.
//! - All instants are those of the server's clock; on known rows, a recent reading of it.
//! - Every call has a result within its timeout, or a [`StoreFailure`].
//! - A call is sent at most once, and never after its caller stopped waiting.
//! - A replica starts and serves without PostgreSQL, and keeps reconnecting.
//!
//! Not covered:
//! - `compat.store.key_format: compat`: envoyproxy/ratelimit has no counters in PostgreSQL.
//! - Hits of a transaction whose commit is lost with its connection: they may be counted.

mod budgets;
mod cached;
mod connect;
mod counter;
mod fleet;
pub mod inspect;
mod options;
mod pooler;
mod queue;
mod row_reader;
mod rows;
mod schema;
mod session;
mod statement;
mod sweep;
#[cfg(test)]
mod tests;
mod transaction;
mod worker;

use std::sync::Arc;
use std::time::Duration;

pub use connect::ConnectError;
pub use options::{PostgresOptions, Preparation};
pub use row_reader::{Listener, RowReader};
pub use schema::{Durability, Migrated, SCHEMA_VERSION, migrate, verify_schema};

use super::audit::{AuditRecord, StoredAuditRecord};
use super::budgets::{BudgetCall, BudgetReply, MAX_BUDGETS};
use super::fleet::{LiveReplica, MembershipHeartbeat, MembershipReply};
use super::fleet_start::{FleetState, StartFleet, StartMode};
use super::heartbeat::{ShareRound, ShareRoundReply};
use super::lease::{LeaseMessage, LeaseOutcome};
use super::permits::{PermitReport, PermitReportReply, StrictPermitReply, StrictPermitRequest};
use super::stats::StoreStats;
use super::{
    AuditStore, BudgetStore, ChargeOutcome, Charges, CounterStore, FleetStore, Outcomes,
    StoreFailure, StoreReply,
};
use crate::kernel::units::Nanos;
use budgets::BudgetOperation;
use counter::{ChargeOperation, LeaseOperation};
use fleet::{
    AcquireOperation, PermitReportOperation, RecordListOperation, ShareOperation, StartOperation,
};
use queue::StoreOperation;
use worker::Shared;

/// The shortest timeout of a membership heartbeat. No request waits for it.
const MIN_MEMBERSHIP_TIMEOUT: Duration = Duration::from_millis(100);

/// The most charges of one check.
const MAX_CHARGES: usize = 1_024;

/// A store whose counters are in PostgreSQL.
#[derive(Debug)]
pub struct PostgresStore {
    shared: Arc<Shared>,
}

impl PostgresStore {
    /// Returns a store that is not connected yet, and the task that keeps it connected. Every call
    /// fails unless that task runs.
    pub fn new(options: PostgresOptions) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let shared = Arc::new(Shared::new(options));
        let store = Self { shared: Arc::clone(&shared) };
        let connections = async move {
            let workers = worker::run_workers(Arc::clone(&shared));
            tokio::join!(workers, sweep::sweep_forever(&shared));
        };
        (store, connections)
    }

    fn prefix(&self) -> &str {
        &self.shared.options.key_prefix
    }

    /// Queues the operation that `new` creates, unless the store is known to fail.
    fn start<'a, O: StoreOperation, T: Send + 'a>(
        &'a self,
        new: impl FnOnce() -> O,
        longest: Duration,
        result: impl FnOnce(Result<O::Reply, StoreFailure>) -> T + Send + 'a,
    ) -> StoreReply<'a, T> {
        if let Some(cause) = self.shared.current_failure() {
            return StoreReply::Ready(result(Err(cause)));
        }
        let operation = new();
        StoreReply::Pending(Box::pin(
            async move { result(self.shared.call(operation, longest).await) },
        ))
    }
}

fn all_failed(charges: &Charges, cause: StoreFailure) -> Outcomes {
    charges.list.iter().map(|_| ChargeOutcome::Failed(cause)).collect()
}

impl CounterStore for PostgresStore {
    fn charge<'a>(&'a self, _now: Nanos, charges: &'a Charges) -> StoreReply<'a, Outcomes> {
        if charges.list.is_empty() {
            return StoreReply::Ready(Outcomes::new());
        }
        if MAX_CHARGES < charges.list.len() {
            return StoreReply::Ready(all_failed(charges, StoreFailure::Overloaded));
        }
        self.start(
            || ChargeOperation::new(charges, self.prefix()),
            self.shared.options.call_timeout,
            |reply| reply.unwrap_or_else(|cause| all_failed(charges, cause)),
        )
    }

    fn exchange_lease_message<'a>(
        &'a self,
        _now: Nanos,
        message: &'a LeaseMessage,
    ) -> StoreReply<'a, LeaseOutcome> {
        self.start(
            || LeaseOperation::new(message, self.prefix()),
            self.shared.options.call_timeout,
            |reply| reply.unwrap_or_else(LeaseOutcome::Failed),
        )
    }

    fn batch_calls(&self, begin: &mut dyn FnMut()) {
        self.shared.start_together(begin);
    }

    fn max_wait(&self) -> Option<Nanos> {
        u64::try_from(self.shared.options.call_timeout.as_nanos()).ok().map(Nanos)
    }

    fn current_failure(&self) -> Option<StoreFailure> {
        self.shared.current_failure()
    }

    fn stats(&self) -> StoreStats {
        let connections = Some(self.shared.options.connection_counter.counts());
        StoreStats { connections, ..StoreStats::default() }
    }
}

impl FleetStore for PostgresStore {
    fn update_membership<'a>(
        &'a self,
        heartbeat: &'a MembershipHeartbeat,
    ) -> StoreReply<'a, Result<MembershipReply, StoreFailure>> {
        let longest = self.shared.options.call_timeout.max(MIN_MEMBERSHIP_TIMEOUT);
        let operation = || RecordListOperation::heartbeat(heartbeat, self.prefix());
        self.start(operation, longest, |reply| reply)
    }

    fn report_shares<'a>(
        &'a self,
        _now: Nanos,
        round: &'a ShareRound,
    ) -> StoreReply<'a, Result<ShareRoundReply, StoreFailure>> {
        let longest = self.shared.options.call_timeout;
        self.start(|| ShareOperation::new(round, self.prefix()), longest, |reply| reply)
    }

    fn acquire_strict_permit<'a>(
        &'a self,
        _now: Nanos,
        request: &'a StrictPermitRequest,
    ) -> StoreReply<'a, Result<StrictPermitReply, StoreFailure>> {
        let longest = self.shared.options.call_timeout;
        self.start(|| AcquireOperation::new(request, self.prefix()), longest, |reply| reply)
    }

    fn report_strict_permits<'a>(
        &'a self,
        _now: Nanos,
        report: &'a PermitReport,
    ) -> StoreReply<'a, PermitReportReply> {
        self.start(
            || PermitReportOperation::new(report, self.prefix()),
            self.shared.options.call_timeout,
            |reply| match reply {
                Ok(replies) => replies.into_iter().map(Ok).collect(),
                Err(cause) => report.failed_reply(cause),
            },
        )
    }
}

impl StartFleet for PostgresStore {
    fn start_fleet(&self, mode: StartMode) -> StoreReply<'_, Result<FleetState, StoreFailure>> {
        let longest = self.shared.options.call_timeout.max(MIN_MEMBERSHIP_TIMEOUT);
        self.start(|| StartOperation::new(mode, self.prefix()), longest, |reply| reply)
    }
}

impl BudgetStore for PostgresStore {
    fn call_budgets<'a>(
        &'a self,
        _now: Nanos,
        call: &'a BudgetCall,
    ) -> StoreReply<'a, Result<BudgetReply, StoreFailure>> {
        if MAX_BUDGETS < call.budgets.len() {
            return StoreReply::Ready(Err(StoreFailure::Overloaded));
        }
        let longest = self.shared.options.call_timeout;
        self.start(|| BudgetOperation::new(call, self.prefix()), longest, |reply| reply)
    }
}

impl AuditStore for PostgresStore {
    fn has_audit_log(&self) -> bool {
        true
    }

    fn append_audit<'a>(
        &'a self,
        _now: Nanos,
        record: &'a AuditRecord,
    ) -> StoreReply<'a, Result<(), StoreFailure>> {
        let longest = self.shared.options.call_timeout.max(MIN_MEMBERSHIP_TIMEOUT);
        let operation = || RecordListOperation::audit(Some(record), self.prefix());
        self.start(operation, longest, |reply| reply.map(drop))
    }

    fn read_audit(
        &self,
        _now: Nanos,
    ) -> StoreReply<'_, Result<Vec<StoredAuditRecord>, StoreFailure>> {
        let longest = self.shared.options.call_timeout.max(MIN_MEMBERSHIP_TIMEOUT);
        let stored = |LiveReplica { node, silent_for, record }| StoredAuditRecord {
            record: AuditRecord { id: node, text: record },
            age: silent_for,
        };
        let operation = || RecordListOperation::audit(None, self.prefix());
        self.start(operation, longest, move |reply| {
            reply.map(|list| list.replicas.into_iter().map(stored).collect())
        })
    }
}
