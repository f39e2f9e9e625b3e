//! Counts releases that reached the wrong replica and were forwarded to the owner of the permit.
//!
//! Guarantees:
//! - Each step of a forwarded release is counted once.
//! - A rejected batch of releases is counted once, because its content is not read.
//!
//! Not covered:
//! - The sender and the receiver of a release: no metric label names a replica.

use super::metrics::{METRICS, Metrics};

/// An event of forwarded releases, with the number of releases.
#[derive(Clone, Copy, Debug)]
pub struct ForwardingCount {
    /// The event of the releases.
    pub event: ForwardingEvent,
    /// The number of releases.
    pub releases: u64,
}

/// A step of a forwarded release, on the sending or on the receiving replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardingEvent {
    /// Another replica accepted the release.
    Delivered,
    /// Another replica forwarded the release to this one.
    Received,
    /// Another replica forwarded the release to this one, which does not know the request id.
    Unknown,
    /// The release named no owner, so all replicas were queried.
    Searched,
    /// No queried replica knew the request id, so the release is remembered as an early release.
    NotFound,
    /// The batch of the release was not authentic, not from a live replica, or a repetition.
    Rejected,
    /// The batch of the release was addressed to another replica, or to an earlier incarnation of
    /// this one.
    WrongReplica,
    /// The release or its batch could not be decoded.
    Malformed,
    /// The release was dropped, because the queue of releases to forward was full.
    Dropped,
    /// The owner did not accept the release in time, or is no longer live.
    TimedOut,
    /// The address of the owner is outside the setting `fleet.peers.networks`.
    AddressNotAllowed,
}

impl ForwardingEvent {
    /// Every event, in the order of the enum.
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

    /// Returns the name of this event in the metric's label.
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
