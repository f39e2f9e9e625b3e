//! Counts the releases that reached another replica and were forwarded to the permit's owner.
//!
//! Guarantees:
//! - Each step of a forwarded release is counted once.
//! - A rejected batch of releases is counted once, because its content is not read.

use super::metrics::{METRICS, Metrics};

/// An event of a number of forwarded releases.
#[derive(Clone, Copy, Debug)]
pub struct ForwardingCount {
    /// The event.
    pub event: ForwardingEvent,
    /// The number of releases.
    pub releases: u64,
}

/// A step of a forwarded release, on the sending or on the receiving replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardingEvent {
    /// Another replica accepted the release.
    Delivered,
    /// Another replica forwarded the release to this replica.
    Received,
    /// Another replica forwarded the release to this replica, which does not know the request id.
    Unknown,
    /// The release named no owner, so all replicas were queried.
    Searched,
    /// No replica knew the request id, so the release is remembered as an early release.
    NotFound,
    /// The batch of releases was not authentic, not from a live replica, or a repetition.
    Rejected,
    /// The batch of releases was addressed to another replica or an earlier incarnation.
    WrongReplica,
    /// The release or its batch could not be decoded.
    Malformed,
    /// The release was dropped because the queue of releases to forward was full.
    Dropped,
    /// The owner did not accept the release in time, or is not live.
    TimedOut,
    /// The owner's address is outside the setting `peer_networks`.
    AddressNotAllowed,
}

impl ForwardingEvent {
    /// All events.
    pub const ALL: [Self; 11] = [
        Self::Delivered,
        Self::Received,
        Self::Unknown,
        Self::Searched,
        Self::NotFound,
        Self::Rejected,
        Self::WrongReplica,
        Self::Malformed,
        Self::Dropped,
        Self::TimedOut,
        Self::AddressNotAllowed,
    ];

    /// Returns the value of the metric label `event`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Delivered => "passed_on",
            Self::Received => "received",
            Self::Unknown => "unknown",
            Self::Searched => "searched",
            Self::NotFound => "known_nowhere",
            Self::Rejected => "refused",
            Self::WrongReplica => "misdirected",
            Self::Malformed => "malformed",
            Self::Dropped => "dropped",
            Self::TimedOut => "late",
            Self::AddressNotAllowed => "foreign",
        }
    }

    /// Counts this event for one release in the metrics of the process.
    pub fn emit(self) {
        ForwardingCount { event: self, releases: 1 }.emit();
    }
}

impl ForwardingCount {
    /// Counts this event for all its releases in the metrics of the process.
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this event for all its releases in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.count_forwarding(self);
    }
}
