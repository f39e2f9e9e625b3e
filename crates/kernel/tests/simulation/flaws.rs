//! Variants of the share protocol with one rule omitted, and the violations that a simulation
//! finds.
//!
//! Each variant has been published or proposed as a protocol.

use std::fmt;

/// The rule of the share protocol that is omitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// No rule is omitted: the complete share protocol.
    No,
    /// Grants have no generation. A replica applies any grant, and reporting a share of the last
    /// granted size confirms that grant.
    ByValue,
    /// The coordinator takes a grant as confirmed when it sends the grant.
    NoAcknowledgement,
    /// A heartbeat's count of requests in flight is older than the generation that it confirms.
    Torn,
    /// A replica's new incarnation takes over the share state of the old one.
    NoMemberIncarnation,
    /// The coordinator accepts generations of its earlier incarnations as current.
    NoCoordinatorIncarnation,
    /// A coordinator without state has no grace period: it grants as if no share were in use.
    NoGrace,
    /// After a replica's share expires, only its last reported requests in flight are reserved.
    InFlightForExposure,
    /// Replicas stop using a share one tick too late.
    ShortMargin,
}

impl Flaw {
    pub const ALL: [Self; 8] = [
        Self::ByValue,
        Self::NoAcknowledgement,
        Self::Torn,
        Self::NoMemberIncarnation,
        Self::NoCoordinatorIncarnation,
        Self::NoGrace,
        Self::InFlightForExposure,
        Self::ShortMargin,
    ];
}

#[derive(Debug)]
pub enum Violation {
    /// More permits are in use, or may be used by replicas, than the limit allows.
    LimitExceeded(String),
    /// A request waits or a permit is reserved although the limit has room.
    Starvation(String),
}

impl Violation {
    /// Returns the violation if the limit was exceeded. Starvation does not prove that the omitted
    /// rule protects the limit.
    pub fn limit_exceeded(self) -> Option<String> {
        match self {
            Self::LimitExceeded(what) => Some(what),
            Self::Starvation(_) => None,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::LimitExceeded(what) | Self::Starvation(what)) = self;
        f.write_str(what)
    }
}
