//! Variants of the simulation with one rule omitted. A law must find each.

/// The omitted rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// No rule is omitted.
    No,
    /// A replica uses its last share after its expiry.
    ExpiredShareKept,
    /// A replica credits the grant of a reply that arrives twice.
    ReplyAppliedTwice,
    /// After a failover, the coordinator grants at once as if no share were in use.
    NoGrace,
}

impl Flaw {
    pub const ALL: [Self; 3] = [Self::ExpiredShareKept, Self::ReplyAppliedTwice, Self::NoGrace];
}
