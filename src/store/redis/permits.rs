//! Acquires, renews and releases permits of strict concurrency limits in Redis.
//!
//! Guarantees:
//! - Each acquisition is one store call, sent at most once.
//! - Renewals and releases are one call per partition; all partitions are called concurrently.
//! - Each call has the timeout of the store (`call_timeout`).
//!
//! Not covered:
//! - Arguments and replies of the scripts ([`super::codec::permits`]).

use std::sync::Arc;

use futures_util::future::join_all;

use super::codec::permits::{
    PermitCallContext, PermitPartition, pack_acquire, pack_report, read_acquire, read_report,
};
use super::connection::LiveConnection;
use super::outcome::log_invalid_reply;
use super::script::LoadedScript;
use super::{RedisStore, StoreFailure};
use crate::store::StoreReply;
use crate::store::permits::{
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
        place: PermitPartition,
        request: &StrictPermitRequest,
    ) -> Result<StrictPermitReply, StoreFailure> {
        let call = pack_acquire(request, self.call_context(place, &live, &request.permit.timing));
        let reply = self
            .route
            .call_within(
                self.call_timeout,
                slot,
                live.run(LoadedScript::Acquire, call.keys, call.args),
            )
            .await?;
        let permit_reply = read_acquire(&reply).map_err(|refused| log_invalid_reply(&refused))?;
        permit_reply.ok_or(StoreFailure::WrongType)
    }

    /// Reports the permits in use and the released permits to the partitions that store them.
    pub(super) async fn report_permits(&self, round: &PermitReport) -> PermitReportReply {
        let mut reply = round.failed_reply(StoreFailure::InvalidReply);
        let partitions: Vec<PermitPartition> =
            round.limits.iter().map(|told| self.partition_of(&told.bucket)).collect();
        let mut to: Vec<PermitPartition> =
            if round.to_all_nodes { self.partitions() } else { partitions.clone() };
        to.sort_unstable();
        to.dedup();
        let limit_indexes_of = |place: PermitPartition| {
            let all = partitions.iter().enumerate().filter(move |(_, of)| **of == place);
            all.map(|(at, _)| at).collect::<Vec<_>>()
        };
        let calls = to.into_iter().map(|place| async move {
            let limit_indexes = limit_indexes_of(place);
            let limits: Vec<&LimitPermits> =
                limit_indexes.iter().map(|at| &round.limits[*at]).collect();
            let replies = self.report_to_partition(place, &limits, &round.times).await;
            (limit_indexes, replies.unwrap_or_else(|cause| vec![Err(cause); limits.len()]))
        });
        for (its, answers) in join_all(calls).await {
            for (at, answer) in its.into_iter().zip(answers) {
                reply[at] = answer;
            }
        }
        reply
    }

    async fn report_to_partition(
        &self,
        place: PermitPartition,
        limits: &[&LimitPermits],
        times: &PermitTiming,
    ) -> Result<PermitReportReply, StoreFailure> {
        let slot = self.route.slot_of(&place.incarnation_key(self.key_prefix.as_bytes()));
        let live = self.route.connection(slot)?;
        let call = pack_report(limits.iter().copied(), self.call_context(place, &live, times));
        let reply = self
            .route
            .call_within(
                self.call_timeout,
                slot,
                live.run(LoadedScript::PermitReport, call.keys, call.args),
            )
            .await?;
        read_report(limits.iter().copied(), &reply).map_err(|refused| log_invalid_reply(&refused))
    }

    fn call_context<'a>(
        &'a self,
        place: PermitPartition,
        live: &'a LiveConnection,
        times: &'a PermitTiming,
    ) -> PermitCallContext<'a> {
        let (prefix, store) = (self.key_prefix.as_bytes(), live.run_id());
        PermitCallContext { prefix, partition: place, run_id: store, times, at: None }
    }

    fn partition_of(&self, bucket: &[u8]) -> PermitPartition {
        if self.route.is_clustered() {
            PermitPartition::for_bucket(bucket)
        } else {
            PermitPartition::Only
        }
    }

    fn partitions(&self) -> Vec<PermitPartition> {
        if self.route.is_clustered() {
            PermitPartition::all().collect()
        } else {
            vec![PermitPartition::Only]
        }
    }
}
