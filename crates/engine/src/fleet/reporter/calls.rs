//! Sends the reports of this replica to the store, until it leaves the fleet.

use super::MEMBERSHIP_INTERVAL;
use crate::Engine;
use sluicegate_concurrency::limits::reporter::RoundParts;
use tokio::time::{MissedTickBehavior, interval};

impl Engine {
    /// Sends all reports of this replica to the store, forever. Without a fleet, sends nothing and
    /// never returns.
    pub async fn report_forever(&self) {
        let Some(reporter) = self.concurrency_limits.fleet_reporter() else {
            return std::future::pending().await;
        };
        let mut timer = reporter.timer();
        let mut heartbeats = interval(MEMBERSHIP_INTERVAL);
        heartbeats.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let parts = tokio::select! {
                parts = reporter.next_round(&mut timer) => parts,
                _ = heartbeats.tick() => self.heartbeat_parts(),
                () = self.actions.changed.notified() => self.heartbeat_parts(),
            };
            match reporter.report(&self.clock, self.store(), parts).await {
                Some(Ok(reply)) => {
                    self.apply_membership_reply(reply);
                    self.synchronize_audit().await;
                }
                Some(Err(failure)) => {
                    tracing::debug!(cause = failure.as_str(), "heartbeat failed, retrying");
                }
                None => {}
            }
        }
    }

    fn heartbeat_parts(&self) -> RoundParts {
        RoundParts::with_heartbeat(self.membership_heartbeat())
    }

    /// Sends the share reports and permit reports that are due now, and applies the replies.
    pub async fn report_once(&self) {
        if let Some(reporter) = self.concurrency_limits.fleet_reporter() {
            reporter.report_once(&self.clock, self.store()).await;
        }
    }

    /// Leaves the fleet: returns this replica's shares, removes its records from the store, and
    /// stops its reports. Takes at most two seconds. Ignores a store that is unavailable.
    pub async fn leave(&self) {
        if let Some(reporter) = self.concurrency_limits.fleet_reporter() {
            reporter.leave(&self.clock, self.store()).await;
        }
    }
}
