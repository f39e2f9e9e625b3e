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
use super::super::fleet::{LiveReplica, MembershipHeartbeat, MembershipReply, REPLICA_TIMEOUT};
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

/// One record in the row of the membership.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct MemberRecord {
    node: Box<str>,
    reported_at: Nanos,
    record: Box<str>,
}

/// A heartbeat for the list of live replicas.
pub(super) struct MembershipOperation {
    heartbeat: MembershipHeartbeat,
    keys: [RowKey; 1],
}

impl MembershipOperation {
    pub(super) fn new(heartbeat: &MembershipHeartbeat, prefix: &str) -> Self {
        let keys = [row_key(prefix, RowKind::Membership, b"")];
        Self { heartbeat: heartbeat.clone(), keys }
    }
}

impl StoreOperation for MembershipOperation {
    type Reply = MembershipReply;

    fn keys(&self) -> &[RowKey] {
        &self.keys
    }

    fn apply(&self, rows: &mut Rows) -> Result<MembershipReply, StoreFailure> {
        let (now, key) = (rows.now(), &self.keys[0]);
        let MembershipHeartbeat { node, record } = &self.heartbeat;
        let mut members: Vec<MemberRecord> = rows.read(key)?.unwrap_or_default();
        members.retain(|member| now <= member.reported_at.plus(REPLICA_TIMEOUT));
        for member in &mut members {
            // An instant in the future is from before a step back of the clock.
            member.reported_at = member.reported_at.min(now);
        }
        let own = members.iter().position(|member| member.node == *node);
        let previous_record = own.map(|own| members.remove(own).record);
        members.extend(record.clone().map(|record| MemberRecord {
            node: node.clone(),
            reported_at: now,
            record,
        }));
        rows.write(key, &members, now.plus(REPLICA_TIMEOUT))?;
        let whole_millis = |time: Nanos| Nanos(time.0.saturating_sub(time.0 % Nanos::MILLI.0));
        let live = |member: MemberRecord| LiveReplica {
            node: member.node,
            silent_for: whole_millis(now.since(member.reported_at)),
            record: member.record,
        };
        Ok(MembershipReply { replicas: members.into_iter().map(live).collect(), previous_record })
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
