//! Writes and reads the audit log, and restores actions from it after a start.

use super::{AuditEntry, AuditPage, AuditRow, SYNCHRONIZE_INTERVAL, newest_changes, parse_record};
use crate::Engine;
use crate::actions::request::{ActionError, Operator, validate_reason};
use crate::kernel::units::Nanos;
use crate::store::audit::AuditRecord;

impl Engine {
    /// Creates an entry without details for a change by this replica.
    #[must_use]
    pub fn audit_entry(&self, action: &str, domain: &str, operator: Operator<'_>) -> AuditEntry {
        AuditEntry {
            by: operator.name.into(),
            replica: self.own_replica_name().into(),
            action: action.into(),
            domain: domain.into(),
            reason: operator.reason.into(),
            ..AuditEntry::default()
        }
    }

    /// Returns an error unless the operator gave a reason of one line.
    ///
    /// # Errors
    /// [`ActionError::InvalidReason`].
    pub fn validate_operator(&self, operator: Operator<'_>) -> Result<(), ActionError> {
        validate_reason(operator.reason)
    }

    /// Logs a change, and appends it to the audit log. Waits at most the store's timeout.
    pub async fn append_audit(&self, entry: AuditEntry) {
        let json = serde_json::to_string(&entry).unwrap_or_default();
        // Logged as a warning, because common log levels include warnings.
        tracing::warn!(entry = json, "operator action");
        self.audit.add(entry, self.clock().now(), self.store().has_audit_log());
        self.send_audit().await;
    }

    /// Sends the entries that the store has not accepted, and restores the actions after a start.
    /// Called after each heartbeat.
    pub(crate) async fn synchronize_audit(&self) {
        if self.audit.has_unsent() {
            self.send_audit().await;
        }
        self.restore_actions().await;
    }

    /// Sends the entries that the store has not accepted, and restores the actions, every
    /// [`SYNCHRONIZE_INTERVAL`]. For a store without a fleet, which has no heartbeats.
    pub async fn synchronize_audit_forever(&self) {
        loop {
            tokio::time::sleep(SYNCHRONIZE_INTERVAL).await;
            self.synchronize_audit().await;
        }
    }

    /// Continues the actions in the audit log, once after the start. Until the store replies, each
    /// call tries again.
    pub async fn restore_actions(&self) {
        if !self.store().has_audit_log() || self.audit.state.lock().is_restored {
            return;
        }
        let now = self.clock().now();
        let Ok(records) = self.store().read_audit(now).wait().await else { return };
        self.apply_action_changes(&newest_changes(&records));
        self.audit.state.lock().is_restored = true;
    }

    async fn send_audit(&self) {
        while let Some((id, row)) = self.audit.first_unsent() {
            let now = self.clock().now();
            let delay_ms = now.since(row.at).0 / Nanos::MILLI.0;
            let text = serde_json::to_string(&AuditEntry { delay_ms, ..row.entry });
            let record = AuditRecord { id: id.clone(), text: text.unwrap_or_default().into() };
            if self.store().append_audit(now, &record).wait().await.is_err() {
                return;
            }
            self.audit.remove_unsent(&id);
        }
    }

    /// Reads the audit log. If the store does not reply, returns the entries of this process.
    pub async fn read_audit(&self) -> AuditPage {
        let now = self.clock().now();
        if !self.store().has_audit_log() {
            return AuditPage { rows: self.audit.own_rows(), ..AuditPage::default() };
        }
        let survives_restart = true;
        match self.store().read_audit(now).wait().await {
            Ok(records) => {
                let row = |stored| {
                    let (entry, age) = parse_record(stored)?;
                    Some(AuditRow { entry, at: Nanos(now.0.saturating_sub(age.0)) })
                };
                let mut rows: Vec<_> = records.iter().filter_map(row).collect();
                rows.extend(self.audit.unsent_rows());
                rows.sort_by_key(|row| std::cmp::Reverse(row.at));
                AuditPage { rows, survives_restart, store_failure: None }
            }
            Err(failure) => {
                let store_failure = Some(failure);
                AuditPage { rows: self.audit.own_rows(), survives_restart, store_failure }
            }
        }
    }
}
