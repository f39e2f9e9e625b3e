//! The coordinator's own life: how it learns that it has forgotten, and how long it must doubt.
//!
//! There is one for the whole store, so that a ceiling nobody has asked for yet is known to be
//! held by nobody. A store that finds none, or learns that it is not the store it was, begins one.
//!
//! Guarantees: the grace ends only when nobody can hold a share of an earlier life: every member
//! has said that all it holds is of this one, or the longest time that an old share can be in
//! use has passed.
//! A table that a store kept is believed to list all but those of the last [`MOMENT`], unless a member shows that it was
//! answered later than it knows. One that was never answered can show nothing.
//! Assumes: a member has a record in the fleet's table before its first heartbeat; the table
//! keeps each life of a member apart, and each for [`Terms::longest`] after it was last heard,
//! unless it left in order; a heartbeat of a member without a record is not passed on; nothing is settled by one
//! that leaves, and `longest` is that of all terms there may be, not only of those in use.

use super::terms::Terms;
use crate::kernel::units::{Incarnation, MemberId, Nanos};

/// By how much a line may be older than what its replica was answered last before the table is held to have lost others:
/// a store that takes over from one that failed may lack what was said in the last moment.
pub const MOMENT: Nanos = Nanos(3 * Nanos::SECOND.0);

/// Whether a table is not all that it was, by one replica whose last answer was of the instant `answered` and whose line
/// there is of `heard`: then others that joined since may be missing, and it lists all from now on only.
#[must_use]
pub fn lost_lines(heard: Option<Nanos>, answered: Option<Nanos>) -> bool {
    let is_older = |answered| heard.is_none_or(|heard| heard.plus(MOMENT) < answered);
    answered.is_some_and(is_older)
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

    /// Must it still be assumed that somebody holds a share of an earlier life?
    #[must_use]
    pub fn is_in_grace(&self, now: Nanos, terms: &Terms) -> bool {
        !self.settled && now < self.born.plus(terms.longest())
    }
}
