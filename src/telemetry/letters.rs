//! What becomes of the letters between replicas: ends of requests that reached the wrong one.
//!
//! Guarantees: one count for each letter at each of its stations; labels are bounded.
//! Leaves out: who wrote to whom.

use super::metrics::{METRICS, Metrics};

/// Letters met this.
#[derive(Clone, Copy, Debug)]
pub struct Letters {
    /// What.
    pub event: LetterEvent,
    /// How many of them.
    pub letters: u64,
}

/// What a letter can meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetterEvent {
    /// Another replica has it.
    PassedOn,
    /// It came from another replica.
    Received,
    /// It came from another replica, and its request is not known here.
    Unknown,
    /// It named no owner, and all replicas were asked.
    Searched,
    /// The same, and none of them knew it: it is remembered.
    KnownNowhere,
    /// Its parcel came from nobody who is trusted, or came before.
    Refused,
    /// Its parcel was for another replica, or for one that is no more.
    Misdirected,
    /// It, or its parcel, could not be read.
    Malformed,
    /// There was no room for it.
    Dropped,
    /// Its owner did not take it in time, or is gone.
    Late,
    /// Its owner is at an address that may not be called.
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

    /// The event as metrics spell it.
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

    /// Counts one letter in the process's metrics.
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
