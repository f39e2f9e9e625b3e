//! The audit log in Redis: a list of records in one hash, by the script of the membership.
//!
//! Guarantees:
//! - A reply that the script cannot have sent is an error.
//! - A call that appends a record removes at most [`MAX_REMOVED`] old ones.
//!
//! Not covered:
//! - Atomic removal: while several replicas append, the log may be longer by a few records.

use tokio::time::timeout;

use super::membership::MIN_MEMBERSHIP_TIMEOUT;
use super::membership::{self, MEMBERSHIP_SCRIPT};
use super::{RedisStore, StoreFailure};
use crate::StoreReply;
use crate::audit::{AUDIT_RETENTION, AuditRecord, MAX_AUDIT_RECORDS, StoredAuditRecord};
use crate::fleet::LiveReplica;

/// The most old records that one call removes.
const MAX_REMOVED: usize = 10;

/// No record has this name, so removing it only returns all records.
const NO_RECORD: &str = "none";

pub(super) fn audit_key(prefix: &str) -> String {
    format!("{prefix}sg:{{fleet}}:audit")
}

impl RedisStore {
    pub(super) fn append_audit_record<'a>(
        &'a self,
        record: &'a AuditRecord,
    ) -> StoreReply<'a, Result<(), StoreFailure>> {
        StoreReply::Pending(Box::pin(async move {
            let records = self.call_audit(&record.id, &record.text).await?;
            for old in oldest(records) {
                self.call_audit(&old, "").await?;
            }
            Ok(())
        }))
    }

    pub(super) fn read_audit_records(
        &self,
    ) -> StoreReply<'_, Result<Vec<StoredAuditRecord>, StoreFailure>> {
        StoreReply::Pending(Box::pin(async move {
            let records = self.call_audit(NO_RECORD, "").await?;
            let record = |LiveReplica { node, silent_for, record }| StoredAuditRecord {
                record: AuditRecord { id: node, text: record },
                age: silent_for,
            };
            Ok(records.into_iter().map(record).collect())
        }))
    }

    /// Stores a record, or removes it if `text` is empty. Returns all records.
    async fn call_audit(&self, id: &str, text: &str) -> Result<Vec<LiveReplica>, StoreFailure> {
        let key = audit_key(&self.key_prefix);
        let live = self.route.connection(self.route.slot_of(key.as_bytes()))?;
        let args = membership::script_args(id, text, AUDIT_RETENTION);
        let call = live.eval_rare_script(MEMBERSHIP_SCRIPT, key, args);
        let reply = timeout(self.call_timeout.max(MIN_MEMBERSHIP_TIMEOUT), call).await;
        let reply = reply.unwrap_or(Err(StoreFailure::TimedOut))?;
        Ok(membership::decode_fleet(reply)?.replicas)
    }
}

/// Returns the ids of the oldest records above the maximum, at most [`MAX_REMOVED`].
fn oldest(mut records: Vec<LiveReplica>) -> Vec<Box<str>> {
    records.sort_by_key(|record| std::cmp::Reverse(record.silent_for));
    let excess = records.len().saturating_sub(MAX_AUDIT_RECORDS);
    records.into_iter().take(excess.min(MAX_REMOVED)).map(|record| record.node).collect()
}
