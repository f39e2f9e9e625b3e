//! The interface of a store of fleet-wide concurrency limits, and of the list of live replicas.

pub mod fleet;
pub mod heartbeat;
pub mod permits;

use std::pin::Pin;

use futures_util::future::join3;
pub use sluicegate_lease::store::{CounterStore, StoreFailure, StoreReply};

use crate::kernel::units::Nanos;
use fleet::{FleetReply, FleetReport, MembershipHeartbeat, MembershipReply};
use heartbeat::{ShareRound, ShareRoundReply};
use permits::{PermitReportReply, StrictPermitReply, StrictPermitRequest};

/// A store of the fleet's membership, shares of concurrency limits, and strict permits. The default
/// methods call the wrapped store, or serve a single replica without a shared store.
pub trait FleetStore: Send + Sync + std::fmt::Debug {
    /// The store that this one wraps, if any.
    fn wrapped_fleet_store(&self) -> Option<&dyn FleetStore> {
        None
    }

    /// Applies all parts of a replica's report at the instant `now`, each part by itself.
    ///
    /// The calls of all parts start together, so on one connection they share a round trip. The
    /// future completes within the store's timeout.
    fn report<'a>(
        &'a self,
        now: Nanos,
        report: &'a FleetReport,
    ) -> Pin<Box<dyn Future<Output = FleetReply> + Send + 'a>> {
        let membership = report.membership.as_ref().map(|part| self.update_membership(part));
        let shares = report.shares.as_ref().map(|part| self.report_shares(now, part));
        let permits = report.permits.as_ref().map(|part| self.report_strict_permits(now, part));
        Box::pin(async move {
            let (membership, shares, permits) =
                join3(reply_of(membership), reply_of(shares), reply_of(permits)).await;
            FleetReply { membership, shares, permits }
        })
    }

    /// Reports that this replica is alive or shuts down, and returns the live replicas.
    ///
    /// The store did not reply.
    fn update_membership<'a>(
        &'a self,
        heartbeat: &'a MembershipHeartbeat,
    ) -> StoreReply<'a, Result<MembershipReply, StoreFailure>> {
        match self.wrapped_fleet_store() {
            Some(store) => store.update_membership(heartbeat),
            None => StoreReply::Ready(Ok(heartbeat.reply_without_store())),
        }
    }

    /// Applies a share round of one replica atomically at the instant `now`. Fails if the store
    /// does not reply or does not compute shares.
    fn report_shares<'a>(
        &'a self,
        now: Nanos,
        round: &'a ShareRound,
    ) -> StoreReply<'a, Result<ShareRoundReply, StoreFailure>> {
        match self.wrapped_fleet_store() {
            Some(store) => store.report_shares(now, round),
            None => StoreReply::Ready(Err(StoreFailure::Other)),
        }
    }

    /// Acquires one permit of a strict concurrency limit at the instant `now`. Fails if the store
    /// does not reply or does not count permits. An error in [`StoreReply::Ready`] means that no
    /// store call was made.
    fn acquire_strict_permit<'a>(
        &'a self,
        now: Nanos,
        request: &'a StrictPermitRequest,
    ) -> StoreReply<'a, Result<StrictPermitReply, StoreFailure>> {
        match self.wrapped_fleet_store() {
            Some(store) => store.acquire_strict_permit(now, request),
            None => StoreReply::Ready(Err(StoreFailure::Other)),
        }
    }

    /// Reports the used and the released permits of several strict concurrency limits.
    fn report_strict_permits<'a>(
        &'a self,
        now: Nanos,
        report: &'a permits::PermitReport,
    ) -> StoreReply<'a, PermitReportReply> {
        match self.wrapped_fleet_store() {
            Some(store) => store.report_strict_permits(now, report),
            None => StoreReply::Ready(report.failed_reply(StoreFailure::Other)),
        }
    }
}

/// A store of counters and of the fleet's state.
pub trait SharedStore: CounterStore + FleetStore {}

impl<S: CounterStore + FleetStore + ?Sized> SharedStore for S {}

async fn reply_of<T>(call: Option<StoreReply<'_, T>>) -> Option<T> {
    Some(call?.wait().await)
}
