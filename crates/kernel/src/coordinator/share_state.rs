//! The coordinator's record of one incarnation of a replica.
//!
//! Guarantees:
//! - [`ShareState::exposure`] bounds the permits that the replica may use without another grant.
//!
//! Not covered:
//! - The fair share; see [`super::split`].

use serde::{Deserialize, Serialize};

use super::aggregate::LimitFactor;
use super::config::ShareTiming;
use super::demand_curve::DemandCurve;
use super::message::Heartbeat;
use crate::units::{Generation, Incarnation, Nanos, ReplicaId, Share};

/// The number of a grant and the share that it assigns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GrantRecord {
    /// The number of the grant.
    pub generation: Generation,
    /// The share in permits.
    pub share: Share,
}

/// The coordinator's record of one incarnation of a replica and its share.
///
/// At most two grants can be in use: the replica's grant when it sent the newest heartbeat
/// (`confirmed`), and the grant in the reply (`granted`). Sending that heartbeat voided all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShareState {
    /// The replica.
    pub replica: ReplicaId,
    /// The replica's incarnation.
    pub incarnation: Incarnation,
    /// The number of the newest heartbeat that arrived.
    pub number: u64,
    /// The replica's grant when it sent the newest heartbeat.
    pub confirmed: GrantRecord,
    /// The grant in the reply to the newest heartbeat.
    pub granted: GrantRecord,
    /// The whole limit in the reply to the newest heartbeat.
    pub replied_limit: Share,
    /// The number of requests in flight that the newest heartbeat reported.
    pub in_flight: Share,
    /// The permits that the replica would use without a limit; with a curve, its entitlement.
    pub demand: Share,
    /// The demand of its classes and customers; empty without these.
    pub curve: DemandCurve,
    /// The replica's vote on the limit, removed when it is counted.
    pub vote: Option<LimitFactor>,
    /// The instant at which the share expires, on the store's clock.
    ///
    /// It never moves back, because the replica uses an older share until it has the newest reply.
    pub expires_at: Nanos,
    /// The instant by which these requests have ended: those admitted before the newest heartbeat,
    /// and later ones that still have an older, longer `max_duration`.
    pub earlier_requests_end: Nanos,
    /// The longest duration of later requests: the `max_duration` that came with the newest
    /// heartbeat.
    pub max_duration: Nanos,
    /// The instant at which the share last changed from zero to nonzero or back.
    pub changed_at: Nanos,
}

impl ShareState {
    /// The record of a replica before its first heartbeat is stored.
    ///
    /// Its grant in use counts as granted, too: `is_waiting` of the split reads whether it is zero.
    #[must_use]
    pub const fn new(
        heartbeat: &Heartbeat,
        confirmed: GrantRecord,
        now: Nanos,
        timing: &ShareTiming,
    ) -> Self {
        Self {
            replica: heartbeat.replica,
            incarnation: heartbeat.incarnation,
            number: heartbeat.number,
            confirmed,
            granted: confirmed,
            replied_limit: Share(0),
            in_flight: heartbeat.in_flight,
            demand: heartbeat.demand,
            curve: heartbeat.curve,
            vote: None,
            expires_at: now,
            earlier_requests_end: now,
            max_duration: timing.max_duration,
            changed_at: now,
        }
    }

    /// The most permits that the replica may use, now or later, without another grant.
    #[must_use]
    pub fn exposure(&self) -> Share {
        self.confirmed.share.max(self.granted.share).max(self.in_flight)
    }

    /// Returns `true` if the replica uses no permit: its share expired, and all admitted requests
    /// ended.
    ///
    /// The end of the reported requests is not enough. After its heartbeat the replica may have
    /// admitted requests up to its exposure. These continue in the proxy even if the replica is
    /// down.
    #[must_use]
    pub fn is_unused(&self, now: Nanos, timing: &ShareTiming) -> bool {
        let end =
            if self.exposure() == Share(0) { self.expires_at } else { self.unused_from(timing) };
        end <= now
    }

    /// The instant after which the replica uses no permit.
    ///
    /// `timing` is the current one. The replica may have received its longer `max_duration`,
    /// admitted requests under it, and crashed before its next heartbeat.
    #[must_use]
    pub fn unused_from(&self, timing: &ShareTiming) -> Nanos {
        self.earlier_requests_end
            .max(self.expires_at.plus(self.max_duration.max(timing.max_duration)))
    }

    /// The instant by which all requests under the previous configuration have ended, if a
    /// heartbeat arrives with `timing`.
    ///
    /// If `max_duration` becomes shorter, the previous one applies until the share expires, because
    /// a queued request keeps the duration that was valid on its arrival.
    #[must_use]
    pub fn previous_requests_end(&self, now: Nanos, timing: &ShareTiming) -> Nanos {
        let last =
            if timing.max_duration < self.max_duration { now.max(self.expires_at) } else { now };
        self.earlier_requests_end.max(last.plus(self.max_duration))
    }

    /// The key by which share states are sorted.
    #[must_use]
    pub const fn sort_key(&self) -> (ReplicaId, Incarnation) {
        (self.replica, self.incarnation)
    }
}
