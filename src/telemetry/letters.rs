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
pub struct Letters {
    /// The event.
    pub event: LetterEvent,
    /// The number of releases.
    pub letters: u64,
}

/// A step of a forwarded release, on the sending or on the receiving replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetterEvent {
    /// Another replica accepted it.
    PassedOn,
    /// Another replica sent it to this one.
    Received,
    /// Another replica sent it, but this replica does not know the request.
    Unknown,
    /// It named no owner, so all replicas were queried.
    Searched,
    /// No queried replica knew the request, so it is remembered as an early release.
    KnownNowhere,
    /// Its batch was not authentic, not from a live replica, or a repetition.
    Refused,
    /// Its batch was addressed to another replica or to an earlier incarnation.
    Misdirected,
    /// It or its batch could not be decoded.
    Malformed,
    /// The queue was full.
    Dropped,
    /// Its owner did not accept it in time, or is no longer live.
    Late,
    /// The address of its owner is outside `peer_networks`.
    Foreign,
}

impl LetterEvent {
    /// Every event, in the order of their discriminants.
    pub const ALL: [Self; 11] = [
        Self::PassedOn,
        Self::Received,
        Self::Unknown,
        Self::Searched,
        Self::KnownNowhere,
        Self::Refused,
        Self::Misdirected,
        Self::Malformed,
        Self::Dropped,
        Self::Late,
        Self::Foreign,
    ];

    /// The value of the metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::PassedOn => "passed_on",
            Self::Received => "received",
            Self::Unknown => "unknown",
            Self::Searched => "searched",
            Self::KnownNowhere => "known_nowhere",
            Self::Refused => "refused",
            Self::Misdirected => "misdirected",
            Self::Malformed => "malformed",
            Self::Dropped => "dropped",
            Self::Late => "late",
            Self::Foreign => "foreign",
        }
    }

    /// Counts one release in the process's metrics.
    pub fn emit(self) {
        Letters { event: self, letters: 1 }.emit();
    }
}

impl Letters {
    /// Counts these in the process's metrics.
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts these in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.letters(self);
    }
}
