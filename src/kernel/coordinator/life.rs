//! The coordinator's own life: how it learns that it has forgotten, and how long it must doubt.
//!
//! There is one for the whole store, so that a ceiling nobody has asked for yet is known to be
//! held by nobody. A store that finds none, or learns that it is not the store it was, begins one.
//!
//! Guarantees: the grace ends only when nobody can hold a share of an earlier life: every member
//! has said that all it holds is of this one, or the longest time that an old share can be in
//! use has passed.
//! A table that is older than a life is believed to list all, but where all whom it lists may be dead
//! ([`lists_nobody`]), or a member was answered later than it knows of ([`Life::has_lost`]).
//! Assumes: a member has a record in the fleet's table before its first heartbeat; the table
//! keeps each life of a member apart, and each for [`Terms::longest`] after it was last heard,
//! unless it left in order; a heartbeat of a member without a record is not passed on; nothing is settled by one
//! that leaves, and `longest` is that of all terms there may be, not only of those in use.

use super::terms::Terms;
use crate::kernel::units::{Incarnation, MemberId, Nanos};

/// What a store that takes over from another may lack of the last that was said, and by how much lines of members that all
/// live lie apart.
pub const MOMENT: Nanos = Nanos(3 * Nanos::SECOND.0);

/// Whether the members that a table lists can all be dead by now, so that it says nothing about who lives: the store heard
/// one last at `heard`, and `longest` is that of the longest terms.
#[must_use]
pub fn lists_nobody(heard: Option<Nanos>, longest: Nanos, now: Nanos) -> bool {
    heard.is_none_or(|heard| heard.plus(longest) <= now.plus(MOMENT))
}

/// One life of the coordinator. Flat, and kept beside the ceilings' states.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Life {
    /// Its number, never used before.
    pub incarnation: Incarnation,
    /// When it began, on the store's clock.
    pub born: Nanos,
    /// The whole fleet has shown that it holds nothing of an earlier life.
    pub settled: bool,
}

/// One life of one member, as the fleet's table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// Who.
    pub member: MemberId,
    /// In which life.
    pub life: Incarnation,
    /// The life of the coordinator that granted everything it holds, see [`super::Member::under`].
    pub under: Option<Incarnation>,
}

impl Life {
    /// A life that begins now, in doubt.
    #[must_use]
    pub const fn begin(incarnation: Incarnation, now: Nanos) -> Self {
        Self { incarnation, born: now, settled: false }
    }

    /// Looks whether every live record of a fleet's table that exists since `since` is under this
    /// life. `longest` is that of the longest terms in the store. Cost: O(records) until settled.
    ///
    /// Not whether each member has been heard since: a heartbeat that was sent before the loss and
    /// came after it says nothing about now. Only who names this life has heard of it.
    pub fn settle(&mut self, now: Nanos, longest: Nanos, since: Nanos, fleet: &[Record]) {
        // A table that was lost too lists only those who came back first.
        let complete = since.plus(longest) <= now;
        let under = |record: &Record| record.under == Some(self.incarnation);
        self.settled |= complete && fleet.iter().all(under);
    }

    /// Whether a member was answered, last at `answered`, by the store before this life and later than that one is remembered:
    /// up to `knew`. Then others may be missing in its table, too.
    #[must_use]
    pub fn has_lost(&self, knew: Option<Nanos>, answered: Option<Nanos>) -> bool {
        let is_lost = |at| at < self.born && knew.is_none_or(|knew| knew.plus(MOMENT) < at);
        answered.is_some_and(is_lost)
    }

    /// Must it still be assumed that somebody holds a share of an earlier life?
    #[must_use]
    pub fn is_in_grace(&self, now: Nanos, terms: &Terms) -> bool {
        !self.settled && now < self.born.plus(terms.longest())
    }
}
