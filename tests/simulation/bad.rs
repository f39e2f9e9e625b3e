//! The protocol with one rule left out, each as it has been published or proposed somewhere, and what a schedule shows.

use std::fmt;

/// Which rule is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// None.
    No,
    /// Nothing is numbered: any grant is applied as it comes, and a heartbeat that reports a share
    /// of the size last granted acknowledges that grant.
    ByValue,
    /// A grant counts as applied when it is given.
    NoAcknowledgement,
    /// The in-flight count of a heartbeat is older than its generation.
    Torn,
    /// A member's new life takes over the seat of its old one.
    NoMemberIncarnation,
    /// A generation of another life of the coordinator counts as one of this.
    NoCoordinatorIncarnation,
    /// A coordinator that lost its state grants as if nobody held anything.
    NoGrace,
    /// A lost member's seat is reserved its last reported requests in flight.
    InFlightForExposure,
    /// Members stop one tick later.
    ShortMargin,
}

impl Bad {
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

/// What a schedule shows to be wrong.
#[derive(Debug)]
pub enum Wrong {
    /// More is in use, or may be, than the ceiling allows.
    Above(String),
    /// Somebody has to wait, or something is kept, for nobody's sake.
    InVain(String),
}

impl Wrong {
    /// What is above the ceiling. A rule without which all would have to wait does not guard it.
    pub fn above(self) -> Option<String> {
        match self {
            Self::Above(what) => Some(what),
            Self::InVain(_) => None,
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Above(what) | Self::InVain(what)) = self;
        f.write_str(what)
    }
}
