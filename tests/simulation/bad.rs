//! Variants of the protocol with one rule omitted, and the violations that a schedule finds.
//!
//! Each variant has been published or proposed somewhere.

use std::fmt;

/// The omitted rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// The complete protocol.
    No,
    /// Grants have no numbers. A replica applies any grant, and a report of the size that was last
    /// granted confirms that grant.
    ByValue,
    /// A grant counts as confirmed when it is sent.
    NoAcknowledgement,
    /// The in-flight count of a heartbeat is older than its generation.
    Torn,
    /// A replica's new incarnation takes over the share state of the old one.
    NoMemberIncarnation,
    /// A generation of another incarnation of the coordinator counts as a current one.
    NoCoordinatorIncarnation,
    /// A coordinator without state grants as if no share were in use.
    NoGrace,
    /// For a lost replica, only the last reported requests in flight are reserved.
    InFlightForExposure,
    /// Replicas stop using a share one tick later.
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
    /// More permits are in use, or may be, than the limit allows.
    LimitExceeded(String),
    /// A request waits, or a permit is reserved, without need.
    Starvation(String),
}

impl Violation {
    /// Returns the violation of the limit. Starvation is none, and does not prove that a rule
    /// protects the limit.
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
