//! Leased limits: hits that a member borrows from a shared counter and spends without asking.
//!
//! ```text
//!  member                                   store, per key
//!  Ledger::borrow  ── Borrow, numbered ──▶  Book::step: report, give back, charge, grant
//!  Ledger::settle  ◀──────── Answer ──────  what is listed for this member, and for how long
//!  Ledger::spend      no message at all
//! ```
//!
//! **The theorem.** Over any interval, what all members admit is at most what the law admits there
//! and what was out when the interval began; and what is out is never more than `max_overshoot`.
//! Out are hits that were charged and may yet be spent. For windows that `max_overshoot` is 0 for,
//! leases end with their window: nothing is out when a window begins, so no window admits more than
//! the limit.
//!
//! **Why.** Every admitted hit was charged once: a question's own in the call that admitted it, a
//! borrowed one when it was granted. So what is admitted in an interval was charged in it, or was
//! out when it began. What is charged in it and not given back obeys the law, which the strategy
//! holds. What is given back makes room for as much, and was out or was charged there, and is not
//! admitted, because a ledger lets it go before the message leaves. It remains that what the book
//! lists is at least what members may spend:
//!
//! 1. The book lists a grant before the member hears of it, until its end on the store's clock.
//! 2. The member's deadline counts from when it sent the question, and leaves [`early`] for drift:
//!    it comes before the store's, however slow the network and whoever's clock is wrong.
//! 3. A member's messages are numbered and each supersedes those before it. The book takes a
//!    message only if none later was taken; the ledger takes an answer only to its last message.
//!    So what the ledger held when it wrote its report is the most it can hold until the answer, what
//!    undecided questions had in hand and may put back among it,
//!    and a message that comes late, twice or never changes nothing that counts. One that surely never
//!    left is undone as if it had not been written, unless another was written since.
//!
//! Guarantees: the theorem, as long as the store keeps its state, its clock does not leap forward,
//! and clocks run within 1,000 ppm of true. A member that crashes or falls silent costs the others
//! what it held, until its lease ends.
//! Leaves out: sending, retrying and waiting; which member asks for which key.

pub mod book;
pub mod counter;
pub mod hold;
pub mod ledger;
pub mod sizer;

use crate::kernel::rate::{Room, Step};
use crate::kernel::units::{Hits, Nanos};
use book::with;
use counter::room;
use sizer::Size;

/// What leases of one limit are granted under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Terms {
    /// How much may be out.
    pub overshoot: Overshoot,
    /// How long a lease is good for, on the store's clock; whole microseconds.
    pub term: Nanos,
    /// How members find out how much to ask for; nothing to the store.
    pub size: Size,
}

/// How much may be out at once, over all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Overshoot {
    /// At most these hits.
    AtMost(Hits),
    /// Whatever the law has left; every lease ends with its window. Only a fixed window has an end
    /// to go by: with any other strategy nothing is lent.
    InWindow,
}

/// One life of one replica. A replica that starts again is another member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member(pub u64);

/// The number of a message: rises from message to message of one member, over all its keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Number(pub u64);

/// What a member tells and asks the store about one key. Sent again unchanged, it counts once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Borrow {
    /// Supersedes every message of this member with a smaller one.
    pub number: Number,
    /// The hits of the question that the balance could not answer; 0 when there is none.
    pub hits: Hits,
    /// Hits asked for beyond those.
    pub want: Hits,
    /// Hits that this member sees in a term: what is left is divided by it.
    pub demand: Hits,
    /// The most that the member may still spend of what it was granted before.
    pub held: Hits,
    /// Hits given back, no longer in `held`.
    pub returned: Hits,
    /// The last lease that the member settled: the one `returned` is of.
    pub lease: Number,
}

impl Borrow {
    /// The same, of a ledger that holds nothing, with what another one of the same key and member gives back: the
    /// store takes nothing that was numbered before a message that it has taken.
    #[must_use]
    pub const fn with_returned(self, parting: &Self) -> Self {
        Self { returned: parting.returned, lease: parting.lease, ..self }
    }
}

/// What the store answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Answer {
    /// Of the message.
    pub number: Number,
    /// The verdict on the question's own hits, and what the key has left.
    pub step: Step,
    /// Hits lent, at most `want`.
    pub granted: Hits,
    /// How much of `held` the book still lists for this member.
    pub kept: Hits,
    /// Hits that other members hold: some may come back before the law has any.
    pub parked: Hits,
    /// How long what was granted and what was kept are good for, from when the store answered.
    pub good_for: Nanos,
}

impl Answer {
    /// The verdict, and what the key has left for the member that asked: what is listed for it is charged, and no less
    /// its own. At most what a counter at rest has, `most`.
    ///
    /// | store has left | granted | kept | most | left |
    /// |---|---|---|---|---|
    /// | 89 | 10 | 0 | 100 | 99 |
    #[must_use]
    pub fn step_here(&self, most: Hits) -> Step {
        with_here(self.step, self.granted.plus(self.kept), most)
    }
}

/// The store's verdict, and what the key has left where `here` is held beside that; at most `most`.
#[must_use]
pub fn with_here(step: Step, here: Hits, most: Hits) -> Step {
    let Room { remaining, reset_after } = room(step);
    with(step, Room { remaining: remaining.plus(here).min(most), reset_after })
}

/// One part in this many of a lease's length is left unused, for two clocks of which each may run
/// 1,000 ppm wrong.
const DRIFT_PART: u64 = 500;

/// `good_for` as a member may use it, counted from when it sent the question.
///
/// | good for | member uses | because |
/// |---|---|---|
/// | 1 s | 998 ms | (1 + 0.001) / (1 − 0.001) < 1 / 0.998 |
#[must_use]
pub const fn early(good_for: Nanos) -> Nanos {
    Nanos(good_for.0.saturating_sub(good_for.0.div_ceil(DRIFT_PART)))
}
