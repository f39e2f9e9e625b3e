//! Reports this replica to the store: its membership heartbeat, its shares of concurrency limits,
//! and its permits of strict limits.
//!
//! Guarantees:
//! - One loop sends all reports.
//! - The parts of a report that are due at the same time share a store call.
//!
//! Not covered:
//! - Shares and permits (see [`sluicegate_concurrency::limits::reporter`]).
//! - The heartbeat (see [`super::membership`]).

use std::num::NonZeroU32;
use std::time::Duration;

use sluicegate_concurrency::host::{ConcurrencyEvent, Host, PermitEvent, ShareChange};
pub use sluicegate_concurrency::limits::reporter::*;
use tokio::time::{MissedTickBehavior, interval};

use super::membership::Membership;
use crate::Engine;
use crate::store::fleet::MembershipHeartbeat;
use crate::telemetry::event::{Event as _, ShareEvent, ShareFenced, StrictPermitEvent};

/// The interval of membership heartbeats.
const MEMBERSHIP_INTERVAL: Duration = Duration::from_secs(1);

impl Host for Membership {
    fn name(&self) -> &str {
        self.replica_name()
    }

    fn replicas(&self) -> NonZeroU32 {
        Self::replicas(self)
    }

    fn metric_part(&self, bucket: &[u8], limit: u32) -> u32 {
        Self::metric_part(self, bucket, limit)
    }

    fn departure(&self) -> Option<MembershipHeartbeat> {
        Some(Self::departure(self))
    }

    fn count(&self, event: ConcurrencyEvent<'_>) {
        match event {
            ConcurrencyEvent::Share(change) => share_event(change).emit(),
            ConcurrencyEvent::ShareExpired(limit) => ShareFenced { limit }.emit(),
            ConcurrencyEvent::Permits(event, permits) => permit_event(event).emit(permits),
        }
    }
}

const fn share_event(change: ShareChange) -> ShareEvent {
    match change {
        ShareChange::Grown => ShareEvent::Grown,
        ShareChange::HandedOver => ShareEvent::HandedOver,
        ShareChange::Shrunk => ShareEvent::Shrunk,
        ShareChange::Outage => ShareEvent::Outage,
    }
}

const fn permit_event(event: PermitEvent) -> StrictPermitEvent {
    match event {
        PermitEvent::Granted => StrictPermitEvent::Granted,
        PermitEvent::LimitReached => StrictPermitEvent::LimitReached,
        PermitEvent::GrantsPaused => StrictPermitEvent::GrantsPaused,
        PermitEvent::NoReply => StrictPermitEvent::NoReply,
        PermitEvent::Renewed => StrictPermitEvent::Renewed,
        PermitEvent::Restored => StrictPermitEvent::Restored,
        PermitEvent::Released => StrictPermitEvent::Released,
    }
}

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
