//! Acquires, renews and releases permits of strict concurrency limits in Redis.
//!
//! Guarantees:
//! - Each acquisition is one store call, sent at most once.
//! - Renewals and releases are one call per partition; all partitions are called concurrently.
//! - Each call has the timeout of the store (`call_timeout`).

use std::sync::Arc;

use futures_util::future::join_all;

use super::codec::permits::{
    PermitCallContext, PermitPartition, pack_acquire, pack_report, read_acquire, read_report,
};
use super::connection::LiveConnection;
use super::outcome::log_invalid_reply;
use super::script::LoadedScript;
use super::{RedisStore, StoreFailure};
use crate::StoreReply;
use crate::permits::{
    LimitPermits, PermitReport, PermitReportReply, PermitTiming, StrictPermitReply,
    StrictPermitRequest,
};

impl RedisStore {
    pub(super) fn acquire_permit<'a>(
        &'a self,
        request: &'a StrictPermitRequest,
    ) -> StoreReply<'a, Result<StrictPermitReply, StoreFailure>> {
        let partition = self.partition_of(&request.bucket);
        let slot = self.route.slot_of(&partition.incarnation_key(self.key_prefix.as_bytes()));
        match self.route.connection(slot) {
            Ok(live) => StoreReply::Pending(Box::pin(
                self.acquire_in_partition(live, slot, partition, request),
            )),
            Err(cause) => StoreReply::Ready(Err(cause)),
        }
    }

    async fn acquire_in_partition(
        &self,
        live: Arc<LiveConnection>,
        slot: u16,
        partition: PermitPartition,
        request: &StrictPermitRequest,
    ) -> Result<StrictPermitReply, StoreFailure> {
        let context = self.call_context(partition, &live, &request.permit.timing);
        let call = pack_acquire(request, context);
        let called = live.run(LoadedScript::Acquire, call.keys, call.args);
        let reply = self.route.call_within(self.call_timeout, slot, called).await?;
        let permit_reply = read_acquire(&reply).map_err(|invalid| log_invalid_reply(&invalid))?;
        permit_reply.ok_or(StoreFailure::WrongType)
    }

    /// Reports the permits in use and the released permits to the partitions that store them.
    pub(super) async fn report_permits(&self, report: &PermitReport) -> PermitReportReply {
        let mut reply = report.failed_reply(StoreFailure::InvalidReply);
        let partition_by_limit: Vec<PermitPartition> =
            report.limits.iter().map(|limit| self.partition_of(&limit.bucket)).collect();
        let mut targets =
            if report.to_all_nodes { self.partitions() } else { partition_by_limit.clone() };
        targets.sort_unstable();
        targets.dedup();
        let indexes_in = |target: PermitPartition| {
            let all = partition_by_limit.iter().enumerate();
            all.filter(move |(_, partition)| **partition == target).map(|(index, _)| index)
        };
        let calls = targets.into_iter().map(|target| async move {
            let indexes: Vec<usize> = indexes_in(target).collect();
            let limits: Vec<&LimitPermits> =
                indexes.iter().map(|index| &report.limits[*index]).collect();
            let replies = self.report_to_partition(target, &limits, &report.times).await;
            (indexes, replies.unwrap_or_else(|cause| vec![Err(cause); limits.len()]))
        });
        for (indexes, replies) in join_all(calls).await {
            for (index, limit_reply) in indexes.into_iter().zip(replies) {
                reply[index] = limit_reply;
            }
        }
        reply
    }

    async fn report_to_partition(
        &self,
        partition: PermitPartition,
        limits: &[&LimitPermits],
        times: &PermitTiming,
    ) -> Result<PermitReportReply, StoreFailure> {
        let slot = self.route.slot_of(&partition.incarnation_key(self.key_prefix.as_bytes()));
        let live = self.route.connection(slot)?;
        let call = pack_report(limits.iter().copied(), self.call_context(partition, &live, times));
        let called = live.run(LoadedScript::PermitReport, call.keys, call.args);
        let reply = self.route.call_within(self.call_timeout, slot, called).await?;
        read_report(limits.iter().copied(), &reply).map_err(|invalid| log_invalid_reply(&invalid))
    }

    fn call_context<'a>(
        &'a self,
        partition: PermitPartition,
        live: &'a LiveConnection,
        times: &'a PermitTiming,
    ) -> PermitCallContext<'a> {
        let (prefix, run_id) = (self.key_prefix.as_bytes(), live.run_id());
        PermitCallContext { prefix, partition, run_id, times, at: None }
    }

    fn partition_of(&self, bucket: &[u8]) -> PermitPartition {
        if self.route.is_clustered() {
            PermitPartition::for_bucket(bucket)
        } else {
            PermitPartition::Only
        }
    }

    pub(super) fn partitions(&self) -> Vec<PermitPartition> {
        if self.route.is_clustered() {
            PermitPartition::all().collect()
        } else {
            vec![PermitPartition::Only]
        }
    }
}
