//! The messages of a replica to its fleet, in Redis: membership, shares, permits and the audit log.
//!
//! Guarantees:
//! - A membership heartbeat may take longer than `store.timeout`, because no request waits for it.
//!
//! Not covered:
//! - The calls for permits and for the audit log (see [`super::permits`] and [`super::audit`]).

use std::sync::Arc;

use tokio::time::timeout;

use super::codec::heartbeat;
use super::connection::LiveConnection;
use super::outcome::log_invalid_reply;
use super::script::LoadedScript;
use super::{RedisStore, membership};
use crate::audit::{AuditRecord, StoredAuditRecord};
use crate::fleet::{MembershipHeartbeat, MembershipReply};
use crate::heartbeat::{ShareRound, ShareRoundReply};
use crate::kernel::units::Nanos;
use crate::permits::{PermitReport, PermitReportReply, StrictPermitReply, StrictPermitRequest};
use crate::{AuditStore, FleetStore, StoreFailure, StoreReply};

impl RedisStore {
    async fn send_share_reports(
        &self,
        live: Arc<LiveConnection>,
        slot: u16,
        round: &ShareRound,
    ) -> Result<ShareRoundReply, StoreFailure> {
        let call = heartbeat::pack(round, self.key_prefix.as_bytes(), live.run_id(), None);
        let called = live.run(LoadedScript::Heartbeat, call.keys, call.args);
        let reply = self.route.call_within(self.call_timeout, slot, called).await?;
        heartbeat::read(round, &reply).map_err(|refused| log_invalid_reply(&refused))
    }

    async fn send_membership_heartbeat(
        &self,
        live: Arc<LiveConnection>,
        heartbeat: &MembershipHeartbeat,
    ) -> Result<MembershipReply, StoreFailure> {
        let key = membership::members_key(&self.key_prefix);
        let args = membership::encode_args(heartbeat);
        let call = live.eval_rare_script(membership::MEMBERSHIP_SCRIPT, key, args);
        let reply = timeout(self.call_timeout.max(membership::MIN_MEMBERSHIP_TIMEOUT), call).await;
        membership::decode_fleet(reply.unwrap_or(Err(StoreFailure::TimedOut))?)
    }
}

impl FleetStore for RedisStore {
    fn update_membership<'a>(
        &'a self,
        beat: &'a MembershipHeartbeat,
    ) -> StoreReply<'a, Result<MembershipReply, StoreFailure>> {
        match self
            .route
            .connection(self.route.slot_of(membership::members_key(&self.key_prefix).as_bytes()))
        {
            Ok(live) => StoreReply::Pending(Box::pin(self.send_membership_heartbeat(live, beat))),
            Err(cause) => StoreReply::Ready(Err(cause)),
        }
    }

    fn report_shares<'a>(
        &'a self,
        _now: Nanos,
        round: &'a ShareRound,
    ) -> StoreReply<'a, Result<ShareRoundReply, StoreFailure>> {
        let slot = self.route.slot_of(&heartbeat::incarnation_key(self.key_prefix.as_bytes()));
        match self.route.connection(slot) {
            Ok(live) => StoreReply::Pending(Box::pin(self.send_share_reports(live, slot, round))),
            Err(cause) => StoreReply::Ready(Err(cause)),
        }
    }

    fn acquire_strict_permit<'a>(
        &'a self,
        _now: Nanos,
        asked: &'a StrictPermitRequest,
    ) -> StoreReply<'a, Result<StrictPermitReply, StoreFailure>> {
        self.acquire_permit(asked)
    }

    fn report_strict_permits<'a>(
        &'a self,
        _now: Nanos,
        round: &'a PermitReport,
    ) -> StoreReply<'a, PermitReportReply> {
        StoreReply::Pending(Box::pin(self.report_permits(round)))
    }
}

impl AuditStore for RedisStore {
    fn has_audit_log(&self) -> bool {
        true
    }

    fn append_audit<'a>(
        &'a self,
        _now: Nanos,
        record: &'a AuditRecord,
    ) -> StoreReply<'a, Result<(), StoreFailure>> {
        self.append_audit_record(record)
    }

    fn read_audit(
        &self,
        _now: Nanos,
    ) -> StoreReply<'_, Result<Vec<StoredAuditRecord>, StoreFailure>> {
        self.read_audit_records()
    }
}
