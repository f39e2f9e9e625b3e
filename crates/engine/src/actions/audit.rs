//! The audit log. An entry says who made a change, its duration and its reason.
//!
//! Guarantees:
//! - Each entry is logged at once, as JSON.
//! - An entry that the store did not accept is sent again after the next heartbeat.
//! - At most [`MAX_AUDIT_RECORDS`] entries are kept here and in the store.
//! - After a restart, actions that have not expired continue.
//!
//! Not covered:
//! - A restart with the memory store, which forgets the audit log.

mod calls;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::replicated::REMEMBER_MARGIN;
use super::{ActionChange, MAX_ACTION_DURATION};
use crate::kernel::units::Nanos;
use crate::store::StoreFailure;
use crate::store::audit::{MAX_AUDIT_RECORDS, StoredAuditRecord};

/// The interval of attempts without a fleet.
const SYNCHRONIZE_INTERVAL: Duration = Duration::from_secs(5);

/// The largest number of entries that wait for the store.
const MAX_UNSENT: usize = 100;

/// One change by an operator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AuditEntry {
    /// The name of the operator.
    pub by: Box<str>,
    /// The replica that made the change; empty without a fleet.
    pub replica: Box<str>,
    /// `force`, `unforce`, `boost`, `unboost`, `reset`, `refund`, `lift`, `record` or `fleet_start`.
    pub action: Box<str>,
    /// The domain; empty for `record` and `fleet_start`.
    pub domain: Box<str>,
    /// The path of the rule, if the change has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<Box<str>>,
    /// The descriptor as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub descriptor: Option<Box<str>>,
    /// The kind of the action, as in [`ActionChange::kind`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Box<str>>,
    /// `deny`, `allow`, `x2`, a number of requests, the keys and the sample of a recording, or the
    /// condition of the start of a fleet.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Box<str>>,
    /// The duration of the action, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
    /// The refunded hits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hits: Option<u64>,
    /// The reason that the operator gave.
    pub reason: Box<str>,
    /// The number of the change to an action.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u64>,
    /// The time between the change and its arrival in the store, in milliseconds.
    #[serde(skip_serializing_if = "is_zero")]
    pub delay_ms: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// An entry and the instant of its change, by this replica's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditRow {
    /// The entry.
    pub entry: AuditEntry,
    /// The instant of the change.
    pub at: Nanos,
}

/// The audit log, as far as it can be read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditPage {
    /// The entries, newest first.
    pub rows: Vec<AuditRow>,
    /// `true` if the log survives a restart of the process.
    pub survives_restart: bool,
    /// The cause for which only the entries of this process are listed.
    pub store_failure: Option<StoreFailure>,
}

#[derive(Debug, Default)]
pub(crate) struct AuditLog {
    state: Mutex<AuditState>,
}

#[derive(Debug, Default)]
struct AuditState {
    /// The entries of this process, oldest first.
    own: VecDeque<AuditRow>,
    /// The entries that the store has not accepted, with their ids.
    unsent: VecDeque<(Box<str>, AuditRow)>,
    next_id: u64,
    /// `true` after the log was read to continue the actions.
    is_restored: bool,
}

impl AuditEntry {
    /// Adds the descriptor as text.
    #[must_use]
    pub fn with_descriptor(self, descriptor: String) -> Self {
        Self { descriptor: Some(descriptor.into()), ..self }
    }

    /// Returns the change to an action that this entry records, `age` after it.
    fn action_change(&self, age: Nanos) -> Option<ActionChange> {
        let left_ms = self.duration_ms.unwrap_or(0).saturating_sub(age.0 / Nanos::MILLI.0);
        let kind = self.kind.clone()?;
        let target = match super::ActionKind::parse(&kind)? {
            super::ActionKind::AllowEverything => Box::default(),
            super::ActionKind::ForceRule => self.limit.clone()?,
            super::ActionKind::ForceKey
            | super::ActionKind::BoostKey
            | super::ActionKind::SetAmount => self.descriptor.clone()?,
        };
        Some(ActionChange {
            domain: self.domain.clone(),
            kind,
            target,
            value: self.value.clone(),
            left_ms,
            known_ms: left_ms + REMEMBER_MARGIN.0 / Nanos::MILLI.0,
            number: self.number?,
            replica: self.replica.clone(),
            by: self.by.clone(),
            reason: self.reason.clone(),
        })
    }
}

/// Returns the newest change to each target that is younger than the longest action. It is remembered
/// longer than the changes that it replaced.
fn newest_changes(records: &[StoredAuditRecord]) -> Vec<ActionChange> {
    let mut entries: Vec<_> = records.iter().filter_map(parse_record).collect();
    entries.retain(|(_, age)| *age <= MAX_ACTION_DURATION);
    entries.sort_by_key(|(_, age)| std::cmp::Reverse(*age));
    let mut newest = BTreeMap::<_, ActionChange>::new();
    for mut change in entries.iter().filter_map(|(entry, age)| entry.action_change(*age)) {
        let target = (change.domain.clone(), change.kind.clone(), change.target.clone());
        // A replica that died may still have the replaced change in its last heartbeat.
        let replaced_ms = newest.get(&target).map_or(0, |replaced| replaced.known_ms);
        change.known_ms = change.known_ms.max(replaced_ms);
        newest.insert(target, change);
    }
    newest.into_values().collect()
}

/// Returns the entry in a record, and the time since its change. `None` if the text is from a later
/// version.
fn parse_record(stored: &StoredAuditRecord) -> Option<(AuditEntry, Nanos)> {
    let entry: AuditEntry = serde_json::from_str(&stored.record.text).ok()?;
    let delay = Nanos(entry.delay_ms.saturating_mul(Nanos::MILLI.0));
    let age = stored.age.plus(delay);
    Some((entry, age))
}

impl AuditLog {
    fn add(&self, entry: AuditEntry, at: Nanos, has_store: bool) {
        let mut state = self.state.lock();
        let row = AuditRow { entry, at };
        if has_store {
            // The instant makes the id unique after a restart of the replica.
            let id = format!("{}-{}-{}", row.entry.replica, at.0, state.next_id);
            state.next_id += 1;
            push_bounded(&mut state.unsent, (id.into(), row.clone()), MAX_UNSENT);
        }
        push_bounded(&mut state.own, row, MAX_AUDIT_RECORDS);
    }

    fn has_unsent(&self) -> bool {
        !self.state.lock().unsent.is_empty()
    }

    fn first_unsent(&self) -> Option<(Box<str>, AuditRow)> {
        self.state.lock().unsent.front().cloned()
    }

    fn remove_unsent(&self, id: &str) {
        self.state.lock().unsent.retain(|(other, _)| **other != *id);
    }

    fn own_rows(&self) -> Vec<AuditRow> {
        self.state.lock().own.iter().rev().cloned().collect()
    }

    fn unsent_rows(&self) -> Vec<AuditRow> {
        self.state.lock().unsent.iter().map(|(_, row)| row.clone()).collect()
    }
}

fn push_bounded<T>(rows: &mut VecDeque<T>, row: T, max: usize) {
    if max <= rows.len() {
        rows.pop_front();
    }
    rows.push_back(row);
}

#[cfg(test)]
mod tests {
    use super::super::replicated::ReplicatedActions;
    use super::*;
    use crate::store::audit::AuditRecord;
    use crate::store::audit::StoredAuditRecord;

    fn boost(action: &str, value: Option<&str>, number: u64) -> AuditEntry {
        AuditEntry {
            action: action.into(),
            domain: "d".into(),
            descriptor: Some("k=v".into()),
            kind: Some("boost_key".into()),
            value: value.map(Into::into),
            duration_ms: value.map(|_| 3_600_000),
            number: Some(number),
            ..AuditEntry::default()
        }
    }

    fn stored(entry: &AuditEntry, age: u64) -> StoredAuditRecord {
        let text = serde_json::to_string(entry).unwrap().into();
        let record = AuditRecord { id: "".into(), text };
        StoredAuditRecord { record, age: Nanos::from_secs(age) }
    }

    #[test]
    fn an_ended_action_does_not_return_from_a_dead_replicas_heartbeat() {
        let (begun, ended) = (boost("boost", Some("x2"), 1), boost("unboost", None, 2));
        let stale = begun.action_change(Nanos::from_secs(20)).unwrap();
        let mut actions = ReplicatedActions::default();
        for change in newest_changes(&[stored(&begun, 20), stored(&ended, 10)]) {
            actions.apply_change(&change, Nanos::from_secs(100));
        }
        for later in [100, 101, 3_600] {
            assert!(!actions.apply_change(&stale, Nanos::from_secs(later)), "{later}");
        }
    }
}
