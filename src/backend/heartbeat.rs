//! Heartbeats of the ceilings that replicas share.
//!
//! Guarantees: one round of one replica is heard in one step; the store's clock rules.
//! Leaves out: when a replica speaks and what it does with the answers, which is `engine::fleet`'s;
//! what a ceiling's coordinator answers, which is [`crate::kernel::coordinator`]'s.

use crate::kernel::coordinator::life::Record;
use crate::kernel::coordinator::{self, Heartbeat, Law};
use crate::kernel::units::{Incarnation, Nanos};

/// The most ceilings in one round, however few members they have: one script must not keep the store from others for long.
pub const MOST_BEATS: usize = 64;

/// Microseconds that a round may take, and what it takes for a ceiling and for each of its members.
const ROUND_MICROS: u64 = 1_000;
const CEILING_MICROS: u64 = 10;
const MEMBER_MICROS: u64 = 3;

/// How many of the first ceilings, each of so many `members`, a round may have, so that it keeps nobody from the store for
/// longer than a millisecond, by what heartbeats cost on a slow machine (`benches/heartbeats.rs`). From 1 to [`MOST_BEATS`]
/// of those that there are.
#[must_use]
pub fn most_beats(members: impl IntoIterator<Item = u64>) -> usize {
    let mut left = ROUND_MICROS;
    let fits = |(at, members): &(usize, u64)| {
        let micros = CEILING_MICROS.saturating_add(MEMBER_MICROS.saturating_mul(*members));
        let fits = *at == 0 || micros <= left;
        left = left.saturating_sub(micros);
        fits
    };
    members.into_iter().take(MOST_BEATS).enumerate().take_while(fits).count()
}

/// The name of a ceiling's bucket: whatever tells two ceilings apart, the same at every replica.
pub type Name = Box<[u8]>;

/// What one life of one replica says at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Its line in the fleet's table.
    pub record: Record,
    /// What the last answer called its instant ([`Heard::at`]), if there was one: a store that remembers less has forgotten
    /// what it knew then.
    pub answered: Option<Nanos>,
    /// For how long from now something of it may be in use, or of another that nobody remembers.
    pub longest: Nanos,
    /// It holds nothing, nothing of it is in flight, and it comes no more: its line is taken out.
    pub leaves: bool,
    /// Some of its ceilings, at most [`most_beats`].
    pub beats: Vec<Beat>,
}

/// One heartbeat at one ceiling.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    /// Which ceiling.
    pub bucket: Name,
    /// By which law it is to be answered.
    pub law: Law,
    /// What is said.
    pub said: Heartbeat,
}

/// What a round is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The life of the store that heard it.
    pub life: Incarnation,
    /// The store's clock when it heard, in whole microseconds. Not to be compared with another clock: all members
    /// know by it which instant the others mean.
    pub at: Nanos,
    /// One per heartbeat, in order; none for a ceiling whose state is not understood, which is left as it is.
    pub replies: Vec<Option<coordinator::Reply>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter::repeat;

    #[test]
    fn a_round_takes_a_millisecond_at_most_by_the_members_of_each_ceiling_in_it() {
        // 70 us each; 13 us each, and no more than there may be.
        assert_eq!(most_beats(repeat(20)), 14);
        assert_eq!(most_beats(repeat(1)), MOST_BEATS);
        assert_eq!(most_beats([]), 0);
        // 910 us and 70; another 70 would be too many.
        assert_eq!(most_beats([300, 20, 20]), 2);
        // 520 us of forty, and six of 70.
        assert_eq!(most_beats([1; 40].into_iter().chain(repeat(20))), 46);
        // One too large for any round is not left unsaid.
        assert_eq!(most_beats([1_000, 1]), 1);
    }
}
