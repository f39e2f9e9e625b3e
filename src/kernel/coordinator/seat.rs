//! What the coordinator assumes of one life of one member.
//!
//! Guarantees: [`Seat::exposure`] is the most that life may use from now on without another grant.
//! Leaves out: what it should use; that is [`super::split`].

use super::aggregate::Ratio;
use super::terms::Terms;
use crate::kernel::units::{Generation, Incarnation, MemberId, Nanos, Share};

/// A grant as remembered: its number and its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Granted {
    /// The number.
    pub generation: Generation,
    /// The size.
    pub share: Share,
}

/// One life of one member.
///
/// Two grants are all that can be in use: the one the member held when it sent the newest
/// heartbeat, and the answer to that heartbeat. Sending it voided every other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seat {
    /// Who.
    pub member: MemberId,
    /// In which life.
    pub life: Incarnation,
    /// The newest heartbeat heard.
    pub number: u64,
    /// What the member held when it sent that.
    pub held: Granted,
    /// What it was answered.
    pub granted: Granted,
    /// The ceiling that answer was a part of.
    pub told: Share,
    /// Its requests in flight then.
    pub in_flight: Share,
    /// Permits it would use.
    pub wanted: Share,
    /// What it infers; taken away when it is counted.
    pub vote: Option<Ratio>,
    /// When its term ends, on the store's clock: no sooner than that of a heartbeat before, whose share it uses until it
    /// has the answer to the newest.
    pub until: Nanos,
    /// When all that it had admitted when it last spoke has ended, and all that it admits since by an earlier law.
    pub rests: Nanos,
    /// For how long what it admits from then on may go on: the `max_duration` that it spoke under.
    pub lasts: Nanos,
    /// Since when its share has been zero, or has not been.
    pub since: Nanos,
}

impl Seat {
    /// The most it may be using, now or later, if it is granted nothing more.
    #[must_use]
    pub fn exposure(&self) -> Share {
        self.held.share.max(self.granted.share).max(self.in_flight)
    }

    /// Whether nothing of it can be left: its term is over, and all that it may have admitted.
    ///
    /// Not once its reported requests are over: it may have admitted up to its exposure after the
    /// report was sent, and those go on in the proxy although the member is gone.
    #[must_use]
    pub fn is_over(&self, now: Nanos, terms: &Terms) -> bool {
        let end = if self.exposure() == Share(0) { self.until } else { self.rests_at(terms) };
        end <= now
    }

    /// When nothing of it can be left, whatever it had. By `terms` as well, which are those of now: it may have
    /// been told the longer `max_duration` of them, admitted under it, and been lost before it spoke of it.
    #[must_use]
    pub fn rests_at(&self, terms: &Terms) -> Nanos {
        self.rests.max(self.until.plus(self.lasts.max(terms.max_duration)))
    }

    /// When all has ended that it admits by the law of before, now that it is heard again and speaks under `terms`.
    ///
    /// Where requests may take less time from now on, that is until its term ends: one that waited in its queue goes on for
    /// as long as it might when it came.
    #[must_use]
    pub fn admitted_rests(&self, now: Nanos, terms: &Terms) -> Nanos {
        let last = if terms.max_duration < self.lasts { now.max(self.until) } else { now };
        self.rests.max(last.plus(self.lasts))
    }

    /// What this seat and others are ordered by.
    #[must_use]
    pub const fn name(&self) -> (MemberId, Incarnation) {
        (self.member, self.life)
    }
}
