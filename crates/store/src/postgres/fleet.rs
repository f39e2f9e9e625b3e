//! Membership, shared concurrency limits and strict permits, applied to their rows.
//!
//! Guarantees:
//! - The same code as in the memory store decides.
//! - The start time of the server names the store: after a restart or a failover, a grace period
//!   begins.
//!
//! Not covered:
//! - Concurrent acquires of one strict limit: each locks the row of the limit.

use serde::{Deserialize, Serialize};

use super::super::StoreFailure;
use super::super::audit::{AUDIT_RETENTION, AuditRecord, MAX_AUDIT_RECORDS};
use super::super::fleet::{LiveReplica, MembershipHeartbeat, MembershipReply, REPLICA_TIMEOUT};
use super::super::fleet_start::{FleetState, StartMode};
use super::super::heartbeat::{BucketKey, ShareRound, ShareRoundReply};
use super::super::memory::coordinators::Coordinators;
use super::super::memory::permits::StrictLimits;
use super::super::permits::{
    LimitPermitsReply, PermitReport, PermitTable, StrictPermitReply, StrictPermitRequest,
};
use super::queue::StoreOperation;
use super::rows::{RowKey, RowKind, Rows, row_key};
use crate::kernel::units::Nanos;

/// The time for which rows of the fleet are kept after their last use.
const KEPT_UNUSED: Nanos = Nanos::from_secs(86_400);

/// The time for which a started fleet may wait for its first replica, as in Redis.
const KEPT_STARTED: Nanos = Nanos::from_secs(30 * 86_400);

/// One record in a row with a list of records.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct ListRecord {
    name: Box<str>,
    reported_at: Nanos,
    text: Box<str>,
}

/// Replaces or removes one record in a list of records that expire, and returns the list.
pub(super) struct RecordListOperation {
    name: Box<str>,
    /// `None` removes the record.
    text: Option<Box<str>>,
    kept_for: Nanos,
    max_records: usize,
    keys: [RowKey; 1],
}

impl RecordListOperation {
    /// A heartbeat for the list of live replicas.
    pub(super) fn heartbeat(heartbeat: &MembershipHeartbeat, prefix: &str) -> Self {
        Self {
            name: heartbeat.node.clone(),
            text: heartbeat.record.clone(),
            kept_for: REPLICA_TIMEOUT,
            max_records: usize::MAX,
            keys: [row_key(prefix, RowKind::Membership, b"")],
        }
    }

    /// Appends a record to the audit log, or only reads the log.
    pub(super) fn audit(record: Option<&AuditRecord>, prefix: &str) -> Self {
        Self {
            name: record.map(|record| record.id.clone()).unwrap_or_default(),
            text: record.map(|record| record.text.clone()),
            kept_for: AUDIT_RETENTION,
            max_records: MAX_AUDIT_RECORDS,
            keys: [row_key(prefix, RowKind::Audit, b"")],
        }
    }
}

impl StoreOperation for RecordListOperation {
    type Reply = MembershipReply;

    fn keys(&self) -> &[RowKey] {
        &self.keys
    }

    fn apply(&self, rows: &mut Rows) -> Result<MembershipReply, StoreFailure> {
        let (now, key) = (rows.now(), &self.keys[0]);
        let mut records: Vec<ListRecord> = rows.read(key)?.unwrap_or_default();
        records.retain(|record| now <= record.reported_at.plus(self.kept_for));
        for record in &mut records {
            // An instant in the future is from before a step back of the clock.
            record.reported_at = record.reported_at.min(now);
        }
        let own = records.iter().position(|record| record.name == self.name);
        let previous_record = own.map(|own| records.remove(own).text);
        if self.text.is_some() || own.is_some() {
            let name = self.name.clone();
            let new = |text| ListRecord { name, reported_at: now, text };
            records.extend(self.text.clone().map(new));
            // The oldest records come first, because a new one is appended.
            records.drain(..records.len().saturating_sub(self.max_records));
            rows.write(key, &records, now.plus(self.kept_for))?;
        }
        let whole_millis = |time: Nanos| Nanos(time.0.saturating_sub(time.0 % Nanos::MILLI.0));
        let live = |record: ListRecord| LiveReplica {
            node: record.name,
            silent_for: whole_millis(now.since(record.reported_at)),
            record: record.text,
        };
        Ok(MembershipReply { replicas: records.into_iter().map(live).collect(), previous_record })
    }
}

/// The share reports of one replica. The first key is that of the fleet table.
pub(super) struct ShareOperation {
    round: ShareRound,
    keys: Vec<RowKey>,
}

impl ShareOperation {
    pub(super) fn new(round: &ShareRound, prefix: &str) -> Self {
        let limit = |bucket: &BucketKey| row_key(prefix, RowKind::Shares, bucket);
        let limits = round.reports.iter().map(|report| limit(&report.bucket));
        let keys = std::iter::once(row_key(prefix, RowKind::Fleet, b"")).chain(limits).collect();
        Self { round: round.clone(), keys }
    }
}

impl StoreOperation for ShareOperation {
    type Reply = ShareRoundReply;

    fn keys(&self) -> &[RowKey] {
        &self.keys
    }

    fn apply(&self, rows: &mut Rows) -> Result<ShareRoundReply, StoreFailure> {
        let (now, limits) = (rows.now(), self.round.reports.iter().zip(&self.keys[1..]));
        let mut fleet: Coordinators = rows.read(&self.keys[0])?.unwrap_or_default();
        for (report, key) in limits.clone() {
            if let Some(state) = rows.read(key)? {
                fleet.set_limit(report.bucket.clone(), state);
            }
        }
        let reply = fleet.apply_round(now, rows.server_name(), &self.round);
        for (report, key) in limits {
            if let Some(state) = fleet.limit(&report.bucket) {
                let unused_from = state.unused_from(&report.law).max(now);
                rows.write(key, state, unused_from.plus(KEPT_UNUSED))?;
            }
        }
        rows.write(&self.keys[0], &fleet, now.plus(self.round.longest_use).plus(KEPT_UNUSED))?;
        Ok(reply)
    }
}

/// An acquire of one strict permit. The keys are those of the gate and of the limit.
///
/// The gate is only read, so that acquires of different limits run concurrently. Each report closes
/// it after a silence, so an acquire need not.
pub(super) struct AcquireOperation {
    request: StrictPermitRequest,
    keys: [RowKey; 2],
}

impl AcquireOperation {
    pub(super) fn new(request: &StrictPermitRequest, prefix: &str) -> Self {
        let limit = row_key(prefix, RowKind::Permits, &request.bucket);
        let keys = [row_key(prefix, RowKind::Gate, b""), limit];
        Self { request: request.clone(), keys }
    }
}

impl StoreOperation for AcquireOperation {
    type Reply = StrictPermitReply;

    fn keys(&self) -> &[RowKey] {
        &self.keys
    }

    fn read_only_keys(&self) -> usize {
        1
    }

    fn apply(&self, rows: &mut Rows) -> Result<StrictPermitReply, StoreFailure> {
        let [gate, limit] = &self.keys;
        let mut limits = read_strict(rows, gate, [(&self.request.bucket, limit)])?;
        let reply = limits.acquire(rows.now(), rows.server_name(), &self.request);
        write_limits(rows, [(&self.request.bucket, limit)], &limits)?;
        Ok(reply)
    }
}

/// One replica's report of its strict permits. The first key is that of the gate.
pub(super) struct PermitReportOperation {
    report: PermitReport,
    keys: Vec<RowKey>,
}

impl PermitReportOperation {
    pub(super) fn new(report: &PermitReport, prefix: &str) -> Self {
        let limits =
            report.limits.iter().map(|limit| row_key(prefix, RowKind::Permits, &limit.bucket));
        let keys = std::iter::once(row_key(prefix, RowKind::Gate, b"")).chain(limits).collect();
        Self { report: report.clone(), keys }
    }

    fn limits(&self) -> impl Iterator<Item = (&BucketKey, &RowKey)> {
        self.report.limits.iter().map(|limit| &limit.bucket).zip(&self.keys[1..])
    }
}

impl StoreOperation for PermitReportOperation {
    type Reply = Vec<LimitPermitsReply>;

    fn keys(&self) -> &[RowKey] {
        &self.keys
    }

    fn apply(&self, rows: &mut Rows) -> Result<Vec<LimitPermitsReply>, StoreFailure> {
        let mut limits = read_strict(rows, &self.keys[0], self.limits())?;
        let replies = limits.apply_report(rows.now(), rows.server_name(), &self.report);
        write_limits(rows, self.limits(), &limits)?;
        rows.write(&self.keys[0], &limits, rows.now().plus(KEPT_UNUSED))?;
        Ok(replies)
    }
}

/// A start of the fleet. The keys are those of the fleet table, the gate, and the lists of replicas
/// and of audit records, which a new store does not have.
pub(super) struct StartOperation {
    mode: StartMode,
    keys: Vec<RowKey>,
}

impl StartOperation {
    pub(super) fn new(mode: StartMode, prefix: &str) -> Self {
        let mut kinds = vec![RowKind::Fleet, RowKind::Gate, RowKind::Membership];
        if mode == StartMode::Inspect {
            // The caller appends a record to the audit log before it starts the fleet.
            kinds.push(RowKind::Audit);
        }
        let keys = kinds.into_iter().map(|kind| row_key(prefix, kind, b"")).collect();
        Self { mode, keys }
    }
}

impl StoreOperation for StartOperation {
    type Reply = FleetState;

    fn keys(&self) -> &[RowKey] {
        &self.keys
    }

    fn apply(&self, rows: &mut Rows) -> Result<FleetState, StoreFailure> {
        let [fleet_key, gate_key, lists @ ..] = &self.keys[..] else {
            return Err(StoreFailure::Other);
        };
        let (now, server) = (rows.now(), rows.server_name().to_owned());
        let mut fleet: Coordinators = rows.read(fleet_key)?.unwrap_or_default();
        let mut strict: StrictLimits = rows.read(gate_key)?.unwrap_or_default();
        let mut state = fleet.fleet_state(&server);
        for list in lists {
            let has_records = rows.read::<Vec<ListRecord>>(list)?.is_some();
            if has_records && state == FleetState::New {
                state = FleetState::Unsettled;
            }
        }
        let state = state.with_permits(strict.fleet_state(now, &server));
        if state.is_started_by(self.mode) {
            fleet.start_fleet(now, &server);
            strict.start_fleet(&server);
            rows.write(fleet_key, &fleet, now.plus(KEPT_STARTED))?;
            rows.write(gate_key, &strict, now.plus(KEPT_STARTED))?;
        }
        Ok(state)
    }
}

fn read_strict<'k>(
    rows: &Rows,
    gate: &RowKey,
    limits: impl IntoIterator<Item = (&'k BucketKey, &'k RowKey)>,
) -> Result<StrictLimits, StoreFailure> {
    let mut strict: StrictLimits = rows.read(gate)?.unwrap_or_default();
    for (bucket, key) in limits {
        if let Some(permits) = rows.read(key)? {
            strict.set_limit(bucket.clone(), permits);
        }
    }
    Ok(strict)
}

fn write_limits<'k>(
    rows: &mut Rows,
    limits: impl IntoIterator<Item = (&'k BucketKey, &'k RowKey)>,
    strict: &StrictLimits,
) -> Result<(), StoreFailure> {
    let now = rows.now();
    for (bucket, key) in limits {
        let none = PermitTable::default();
        let permits = strict.limit(bucket).unwrap_or(&none);
        rows.write(key, permits, permits.last_deadline().unwrap_or(now))?;
    }
    Ok(())
}
