//! Permits of the ceilings for which every request asks the store.
//!
//! Guarantees: one permit is asked for in one step, and so is what is told of one ceiling; the store's clock
//! rules. A ceiling that was not understood is left as it is, and spoils no other's answer.
//! Leaves out: when a replica asks and tells (`engine::admit`), and what the store counts
//! ([`crate::kernel::concurrency::permits`]).

use super::Cause;
use super::heartbeat::Name;
pub use crate::kernel::concurrency::permits::{Acquired, Ask, Found, Id, Life, Permits, Times};
use crate::kernel::units::{Nanos, Share};

/// The most permits that one round tells of: a script must not keep the store from others for long.
pub const MOST_TOLD: usize = 512;

/// One asks for a permit of a ceiling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// Which ceiling.
    pub bucket: Name,
    /// What is asked.
    pub ask: Ask,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What became of it.
    pub acquired: Acquired,
    /// How many are held now.
    pub held: Share,
}

/// What a replica tells at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// What all agree on.
    pub times: Times,
    /// Whether it is told everywhere that ceilings live, so that a place which has forgotten knows as soon
    /// as it can.
    pub everywhere: bool,
    /// Some of its ceilings, at most [`MOST_TOLD`] permits of them.
    pub told: Vec<Told>,
}

/// What it tells of one ceiling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// Which ceiling.
    pub bucket: Name,
    /// The permits that it holds, each for how long still.
    pub held: Vec<(Id, Nanos)>,
    /// Those that it holds no longer.
    pub over: Vec<Id>,
}

/// What was found of one ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// What the telling found.
    pub found: Found,
    /// How many are held now.
    pub held: Share,
}

/// One for each ceiling told of, in order, or why it was not heard.
pub type AllHeard = Vec<Result<Heard, Cause>>;

impl Round {
    /// How many permits it tells of.
    #[must_use]
    pub fn permits(&self) -> usize {
        self.told.iter().map(|told| told.held.len() + told.over.len()).sum()
    }

    /// Nobody heard it, because of `cause`.
    #[must_use]
    pub fn unheard(&self, cause: Cause) -> AllHeard {
        vec![Err(cause); self.told.len()]
    }
}
