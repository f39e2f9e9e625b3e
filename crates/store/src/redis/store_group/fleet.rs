//! Sends the messages of a replica to its fleet to the main store.

use super::StoreGroup;
use crate::audit::{AuditRecord, StoredAuditRecord};
use crate::fleet::{MembershipHeartbeat, MembershipReply};
use crate::heartbeat::{ShareRound, ShareRoundReply};
use crate::kernel::units::Nanos;
use crate::permits::{PermitReport, PermitReportReply, StrictPermitReply, StrictPermitRequest};
use crate::{AuditStore, FleetStore, StoreFailure, StoreReply};

impl FleetStore for StoreGroup {
    fn update_membership<'a>(
        &'a self,
        heartbeat: &'a MembershipHeartbeat,
    ) -> StoreReply<'a, Result<MembershipReply, StoreFailure>> {
        self.main.update_membership(heartbeat)
    }

    fn report_shares<'a>(
        &'a self,
        now: Nanos,
        round: &'a ShareRound,
    ) -> StoreReply<'a, Result<ShareRoundReply, StoreFailure>> {
        self.main.report_shares(now, round)
    }

    fn acquire_strict_permit<'a>(
        &'a self,
        now: Nanos,
        request: &'a StrictPermitRequest,
    ) -> StoreReply<'a, Result<StrictPermitReply, StoreFailure>> {
        self.main.acquire_strict_permit(now, request)
    }

    fn report_strict_permits<'a>(
        &'a self,
        now: Nanos,
        report: &'a PermitReport,
    ) -> StoreReply<'a, PermitReportReply> {
        self.main.report_strict_permits(now, report)
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
