//! The protocol with one rule left out, each as it has been published or proposed somewhere.

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
