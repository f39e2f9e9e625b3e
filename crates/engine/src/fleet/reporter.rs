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

mod calls;

use std::num::NonZeroU32;
use std::time::Duration;

use sluicegate_concurrency::host::{ConcurrencyEvent, Host, PermitEvent, ShareChange};
pub use sluicegate_concurrency::limits::reporter::*;

use super::membership::Membership;
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
