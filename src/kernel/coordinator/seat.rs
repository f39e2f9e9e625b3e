//! The coordinator's record of one incarnation of a replica.
//!
//! Guarantees:
//! - [`Seat::exposure`] bounds the permits that the replica may use without another grant.
//!
//! Not covered:
//! - The fair share; see [`super::split`].

use super::aggregate::Ratio;
use super::terms::Terms;
use crate::kernel::units::{Generation, Incarnation, MemberId, Nanos, Share};

/// The number and the size of a grant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Granted {
    /// The number of the grant.
    pub generation: Generation,
    /// The share in permits.
    pub share: Share,
}

/// The share state of one incarnation of a replica.
///
/// At most two grants can be in use: the replica's grant when it sent the newest
/// heartbeat, and the reply to that heartbeat. Sending it voided all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seat {
    /// The replica.
    pub member: MemberId,
    /// The replica's incarnation.
    pub life: Incarnation,
    /// The number of the newest heartbeat.
    pub number: u64,
    /// The replica's grant when it sent that heartbeat.
    pub held: Granted,
    /// The grant in the reply.
    pub granted: Granted,
    /// The whole limit in the reply.
    pub told: Share,
    /// The requests in flight in that heartbeat.
    pub in_flight: Share,
    /// The permits that the replica would use.
    pub wanted: Share,
    /// The replica's vote, removed when it is counted.
    pub vote: Option<Ratio>,
    /// The share expiry on the store's clock.
    ///
    /// It never moves back, because the replica uses an older share until it has the newest reply.
    pub until: Nanos,
    /// The end of all requests admitted before the last
    /// heartbeat, or later under an older configuration.
    pub rests: Nanos,
    /// The longest duration of later requests: the `max_duration` at the last heartbeat.
    pub lasts: Nanos,
    /// The instant at which the share last became zero or positive.
    pub since: Nanos,
}

impl Seat {
    /// The most permits that the replica may use, now or later, without another grant.
    #[must_use]
    pub fn exposure(&self) -> Share {
        self.held.share.max(self.granted.share).max(self.in_flight)
    }

    /// Returns `true` if nothing is in use: the share expired, and all admitted requests ended.
    ///
    /// The end of the reported requests is not enough. After its report
    /// the replica may have admitted requests up to its exposure, and
    /// these continue in the proxy even if the replica is down.
    #[must_use]
    pub fn is_over(&self, now: Nanos, terms: &Terms) -> bool {
        let end = if self.exposure() == Share(0) { self.until } else { self.rests_at(terms) };
        end <= now
    }

    /// The instant after which nothing is in use.
    ///
    /// `terms` are the current ones. The replica may have received their longer
    /// `max_duration`, admitted requests under it, and crashed before its next heartbeat.
    #[must_use]
    pub fn rests_at(&self, terms: &Terms) -> Nanos {
        self.rests.max(self.until.plus(self.lasts.max(terms.max_duration)))
    }

    /// The end of all requests under the previous
    /// configuration, once a heartbeat arrives under `terms`.
    ///
    /// If `max_duration` becomes shorter, the old one applies until the share
    /// expires: a queued request keeps the duration that was valid on its arrival.
    #[must_use]
    pub fn admitted_rests(&self, now: Nanos, terms: &Terms) -> Nanos {
        let last = if terms.max_duration < self.lasts { now.max(self.until) } else { now };
        self.rests.max(last.plus(self.lasts))
    }

    /// The sort key of share states.
    #[must_use]
    pub const fn name(&self) -> (MemberId, Incarnation) {
        (self.member, self.life)
    }
}
