//! Sends the messages of a replica to its fleet, and calls to budgets, to the main store.

use super::StoreGroup;
use crate::audit::{AuditRecord, StoredAuditRecord};
use crate::budgets::{BudgetCall, BudgetReply};
use crate::kernel::units::Nanos;
use crate::{AuditStore, BudgetStore, FleetStore, StoreFailure, StoreReply};

impl FleetStore for StoreGroup {
    fn wrapped_fleet_store(&self) -> Option<&dyn FleetStore> {
        Some(&self.main)
    }
}

impl BudgetStore for StoreGroup {
    fn call_budgets<'a>(
        &'a self,
        now: Nanos,
        call: &'a BudgetCall,
    ) -> StoreReply<'a, Result<BudgetReply, StoreFailure>> {
        self.main.call_budgets(now, call)
    }
}

impl AuditStore for StoreGroup {
    fn has_audit_log(&self) -> bool {
        self.main.has_audit_log()
    }

    fn append_audit<'a>(
        &'a self,
        now: Nanos,
        record: &'a AuditRecord,
    ) -> StoreReply<'a, Result<(), StoreFailure>> {
        self.main.append_audit(now, record)
    }

    fn read_audit(
        &self,
        now: Nanos,
    ) -> StoreReply<'_, Result<Vec<StoredAuditRecord>, StoreFailure>> {
        self.main.read_audit(now)
    }
}
