//! Counts releases that reached the wrong replica and were forwarded to the owner of the permit.
//!
//! Guarantees:
//! - Each step of a forwarded release is counted once.
//! - A rejected batch of releases is counted once, because its content is not read.
//!
//! Not covered:
//! - Sender and receiver: no label names a replica.

use super::metrics::{METRICS, Metrics};

/// An event with the number of affected releases.
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
    /// Another replica accepted it.
    Delivered,
    /// Another replica sent it to this one.
    Received,
    /// Another replica sent it, but this replica does not know the request.
    Unknown,
    /// It named no owner, so all replicas were queried.
    Searched,
    /// No queried replica knew the request, so it is remembered as an early release.
    NotFound,
    /// Its batch was not authentic, not from a live replica, or a repetition.
    Rejected,
    /// Its batch was addressed to another replica or to an earlier incarnation.
    WrongReplica,
    /// It or its batch could not be decoded.
    Malformed,
    /// The queue was full.
    Dropped,
    /// Its owner did not accept it in time, or is no longer live.
    TimedOut,
    /// The address of its owner is outside `peer_networks`.
    AddressNotAllowed,
}

impl ForwardingEvent {
    /// Every event, in the order of their discriminants.
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

    /// The value of the metric's label.
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

    /// Counts one release in the process's metrics.
    pub fn emit(self) {
        ForwardingCount { event: self, releases: 1 }.emit();
    }
}

impl ForwardingCount {
    /// Counts these in the process's metrics.
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts these in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.count_forwarding(self);
    }
}
