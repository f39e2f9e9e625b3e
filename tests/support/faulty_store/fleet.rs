//! Calls of the fleet: share rounds, and permits of strict limits.

use std::sync::atomic::Ordering::Relaxed;

use sluicegate::kernel::units::Nanos;
use sluicegate::store::heartbeat::{ShareRound, ShareRoundReply};
use sluicegate::store::memory::coordinators::Coordinators;
use sluicegate::store::memory::permits::StrictLimits;
use sluicegate::store::permits::{
    PermitReport, PermitReportReply, StrictPermitReply, StrictPermitRequest,
};
use sluicegate::store::{AuditStore, BudgetStore, FleetStore, StoreFailure, StoreReply};

use super::{FaultyStore, immediate};

impl FaultyStore {
    /// Loses the shares of an unsettled store.
    pub fn lose_shares(&self) {
        *self.unsettled.as_ref().unwrap().lock() = Coordinators::default();
    }

    pub fn lose_strict_permits(&self) {
        *self.strict.lock() = StrictLimits::default();
    }

    fn apply_round(&self, now: Nanos, round: &ShareRound) -> Result<ShareRoundReply, StoreFailure> {
        match &self.unsettled {
            Some(coordinators) => {
                let name = if self.is_another.load(Relaxed) { "another" } else { "one" };
                Ok(coordinators.lock().apply_round(now, name, round))
            }
            None => immediate(self.memory.report_shares(now, round)),
        }
    }
}

impl AuditStore for FaultyStore {}

impl BudgetStore for FaultyStore {}

impl FleetStore for FaultyStore {
    fn report_shares<'a>(
        &'a self,
        now: Nanos,
        round: &'a ShareRound,
    ) -> StoreReply<'a, Result<ShareRoundReply, StoreFailure>> {
        self.share_calls.fetch_add(1, Relaxed);
        self.largest_round.fetch_max(round.reports.len(), Relaxed);
        let names = round.reports.iter().map(|report| report.bucket.clone()).collect();
        self.reported.lock().push(names);
        *self.last_config.lock() = round.reports.last().map(|report| report.law);
        if self.is_unavailable.load(Relaxed) {
            return StoreReply::Ready(Err(StoreFailure::Unreachable));
        }
        if self.is_silent.load(Relaxed) {
            return StoreReply::Pending(Box::pin(std::future::pending()));
        }
        let reply = self.apply_round(now, round);
        if !self.is_slow.load(Relaxed) {
            return StoreReply::Ready(reply);
        }
        StoreReply::Pending(Box::pin(async {
            tokio::task::yield_now().await;
            reply
        }))
    }

    fn acquire_strict_permit<'a>(
        &'a self,
        now: Nanos,
        request: &'a StrictPermitRequest,
    ) -> StoreReply<'a, Result<StrictPermitReply, StoreFailure>> {
        self.acquire_calls.fetch_add(1, Relaxed);
        if self.is_unavailable.load(Relaxed) {
            return StoreReply::Ready(Err(StoreFailure::Unreachable));
        }
        let reply = self.strict.lock().acquire(now, "", request);
        *self.last_acquire.lock() = Some(request.clone());
        let is_lost = self.loses_replies.load(Relaxed);
        let reply = if is_lost { Err(StoreFailure::TimedOut) } else { Ok(reply) };
        if self.is_silent.load(Relaxed) {
            return StoreReply::Pending(Box::pin(std::future::pending()));
        }
        let is_slow = self.is_slow.load(Relaxed);
        StoreReply::Pending(Box::pin(async move {
            if is_slow {
                tokio::task::yield_now().await;
            }
            reply
        }))
    }

    fn report_strict_permits<'a>(
        &'a self,
        now: Nanos,
        report: &'a PermitReport,
    ) -> StoreReply<'a, PermitReportReply> {
        self.permit_report_calls.fetch_add(1, Relaxed);
        if self.is_silent.load(Relaxed) {
            return StoreReply::Pending(Box::pin(std::future::pending()));
        }
        if self.is_unavailable.load(Relaxed) {
            return StoreReply::Ready(report.failed_reply(StoreFailure::Unreachable));
        }
        let reply = self.strict.lock().apply_report(now, "", report).into_iter().map(Ok).collect();
        StoreReply::Ready(if self.loses_replies.load(Relaxed) {
            report.failed_reply(StoreFailure::TimedOut)
        } else {
            reply
        })
    }
}
