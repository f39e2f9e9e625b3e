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
use super::{RedisStore, StoreFailure, log_invalid_reply};
use crate::store::StoreReply;
use crate::store::permits::{
    LimitPermits, PermitReport, PermitReportReply, PermitTiming, StrictPermitReply,
    StrictPermitRequest,
};

impl RedisStore {
    pub(super) fn acquire_permit<'a>(
        &'a self,
        asked: &'a StrictPermitRequest,
    ) -> StoreReply<'a, Result<StrictPermitReply, StoreFailure>> {
        let place = self.partition_of(&asked.bucket);
        let slot = self.route.slot_of(&place.incarnation_key(self.key_prefix.as_bytes()));
        match self.route.connection(slot) {
            Ok(live) => {
                StoreReply::Pending(Box::pin(self.acquire_in_partition(live, slot, place, asked)))
            }
            Err(cause) => StoreReply::Ready(Err(cause)),
        }
    }

    async fn acquire_in_partition(
        &self,
        live: Arc<LiveConnection>,
        slot: u16,
        place: PermitPartition,
        asked: &StrictPermitRequest,
    ) -> Result<StrictPermitReply, StoreFailure> {
        let call = pack_acquire(asked, self.call_context(place, &live, &asked.permit.timing));
        let reply = self
            .route
            .call_within(self.call_timeout, slot, live.run_acquire(call.keys, call.args))
            .await?;
        let answer = read_acquire(&reply).map_err(|refused| log_invalid_reply(&refused))?;
        answer.ok_or(StoreFailure::WrongType)
    }

    /// Reports the permits in use and the released permits to the partitions that store them.
    pub(super) async fn report_permits(&self, round: &PermitReport) -> PermitReportReply {
        let mut heard = round.failed_reply(StoreFailure::InvalidReply);
        let places: Vec<PermitPartition> =
            round.limits.iter().map(|told| self.partition_of(&told.bucket)).collect();
        let mut to: Vec<PermitPartition> =
            if round.to_all_nodes { self.partitions() } else { places.clone() };
        to.sort_unstable();
        to.dedup();
        let its = |place: PermitPartition| {
            let all = places.iter().enumerate().filter(move |(_, of)| **of == place);
            all.map(|(at, _)| at).collect::<Vec<_>>()
        };
        let asked = to.into_iter().map(|place| async move {
            let its = its(place);
            let told: Vec<&LimitPermits> = its.iter().map(|at| &round.limits[*at]).collect();
            let heard = self.report_to_partition(place, &told, &round.times).await;
            (its, heard.unwrap_or_else(|cause| vec![Err(cause); told.len()]))
        });
        for (its, answers) in join_all(asked).await {
            for (at, answer) in its.into_iter().zip(answers) {
                heard[at] = answer;
            }
        }
        heard
    }

    async fn report_to_partition(
        &self,
        place: PermitPartition,
        told: &[&LimitPermits],
        times: &PermitTiming,
    ) -> Result<PermitReportReply, StoreFailure> {
        let slot = self.route.slot_of(&place.incarnation_key(self.key_prefix.as_bytes()));
        let live = self.route.connection(slot)?;
        let call = pack_report(told.iter().copied(), self.call_context(place, &live, times));
        let reply = self
            .route
            .call_within(self.call_timeout, slot, live.run_permit_report(call.keys, call.args))
            .await?;
        read_report(told.iter().copied(), &reply).map_err(|refused| log_invalid_reply(&refused))
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
