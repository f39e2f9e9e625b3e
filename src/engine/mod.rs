//! The one path from a question to an answer, wired.
//!
//! Guarantees: every question is answered under exactly one configuration and one instant; what
//! cannot be asked is refused before any counter moves.
//! Leaves out: protocols ([`crate::edge`]) and where counters live ([`crate::backend`]).

pub mod admit;
mod again;
pub mod ceilings;
mod decide;
mod decisions;
mod degrade;
pub mod freezer;
mod ids;
pub mod leases;
mod leasing;
mod ledgers;
mod local;
pub mod membership;
mod owed;
pub mod parts;
pub mod peers;
mod plan;
mod retry;
mod tally;

use std::sync::Arc;

use smallvec::SmallVec;

use crate::kernel::decision::{Cause, Finding, Group, Reason, Verdict};
use crate::kernel::units::{Nanos, Revision};

pub use ceilings::{Admitted, Permits, Rejection};
pub use decide::{Deciding, Engine, Policy};
pub use ids::check_id;
pub use local::Local;
pub use membership::Membership;
pub use plan::{CounterKeys, Overrides, Planning};

/// The answer to one question.
#[derive(Debug)]
pub struct Answer {
    /// The verdict of the whole question, global shadow mode applied.
    pub verdict: Verdict,
    /// One per descriptor, in the question's order.
    pub statuses: Statuses,
    /// The status that headers describe.
    pub binding: Option<usize>,
    /// On a denial: the wait after which the whole question would pass if nobody else came. `None`
    /// when no wait helps.
    pub retry_after: Option<Nanos>,
    /// Whether global shadow mode turned a denial into an admission.
    pub shadowed: bool,
    /// The configuration that decided.
    pub revision: Revision,
    /// The instant that decided.
    pub now: Nanos,
}

impl Answer {
    /// Admits, and says nothing of any descriptor yet.
    #[must_use]
    pub fn to_nothing(revision: Revision, now: Nanos) -> Self {
        let (verdict, statuses) = (Verdict::Admit, Statuses::new());
        let (binding, retry_after, shadowed) = (None, None, false);
        Self { verdict, statuses, binding, retry_after, shadowed, revision, now }
    }
}

/// One per descriptor.
pub type Statuses = SmallVec<[Status; 2]>;

/// What was decided for one descriptor.
#[derive(Debug)]
pub struct Status {
    /// The decision.
    pub finding: Finding,
    /// The rule's metadata.
    pub metadata: Option<Arc<serde_json::Map<String, serde_json::Value>>>,
}

impl Status {
    /// That of a descriptor without a limit.
    // A constant: it is copied whole, while what a function puts together piece by piece is slow to move.
    const UNLIMITED: Self =
        Self { finding: Finding::settled(Reason::NoLimit, Group::Enforced), metadata: None };
}

/// Why a question cannot be answered. No counter has moved, except where a store did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// As the reference: an error that clients know.
    #[error("the domain must not be empty")]
    EmptyDomain,
    /// As the reference.
    #[error("the list of descriptors must not be empty")]
    NoDescriptors,
    /// As the reference.
    #[error("no limits are loaded; see the log or /config for what is wrong with them")]
    NoConfig,
    /// More descriptors than one question may hold.
    #[error(
        "{got} descriptors in one question; at most {most} are answered: ask the rest in another"
    )]
    TooManyDescriptors {
        /// How many came.
        got: usize,
        /// How many may come.
        most: usize,
    },
    /// More entries than the descriptors of one question may hold together.
    #[error("{got} entries in one question; at most {most} are answered: ask the rest in another")]
    TooManyEntries {
        /// How many came.
        got: usize,
        /// How many may come.
        most: usize,
    },
    /// A key or value too long to be meant.
    #[error(
        "descriptor {descriptor}: an entry of {got} bytes; a key or value has less than {most}"
    )]
    EntryTooLong {
        /// Which descriptor, from 0.
        descriptor: usize,
        /// Its length in bytes.
        got: usize,
        /// The first length that is refused.
        most: usize,
    },
    /// `hits_addend` of 2^63 and more.
    #[error("descriptor {descriptor}: hits_addend {got} is 2^63 or more")]
    HitsTooLarge {
        /// Which descriptor, from 0.
        descriptor: usize,
        /// What came.
        got: u64,
    },
    /// An override whose unit is not one.
    #[error(
        "descriptor {descriptor}: {got} is not a unit for a limit in a request; \
         1 SECOND, 2 MINUTE, 3 HOUR, 4 DAY, 5 MONTH, 6 YEAR and 7 (week) are"
    )]
    UnknownUnit {
        /// Which descriptor, from 0.
        descriptor: usize,
        /// What came.
        got: i32,
    },
    /// `is_negative_hits` while refunds are off.
    #[error(
        "descriptor {descriptor}: is_negative_hits is refused unless the setting negative_hits is on"
    )]
    RefundsAreOff {
        /// Which descriptor, from 0.
        descriptor: usize,
    },
    /// A reserved word with an id that is none, or that is used otherwise than it can be.
    #[error("descriptor {descriptor}: {why}")]
    BadId {
        /// Which descriptor, from 0.
        descriptor: usize,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The store of counters did not answer, and a limit says `on_backend_failure: error`. The
    /// charge may be made all the same where the store was late.
    #[error(
        "the store of counters did not answer ({}), and the limit's on_backend_failure is error",
        .0.as_str()
    )]
    BackendDown(Cause),
}
