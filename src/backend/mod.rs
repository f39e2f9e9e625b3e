//! Where counters live.
//!
//! Guarantees: the charges of one question are answered in order, one outcome each, and in time:
//! a store that does not answer is an outcome, [`Outcome::Failed`], and never waited for.
//! Leaves out: which limit applies and what the outcomes mean together ([`crate::engine`]).

pub mod fleet;
pub mod heartbeat;
pub mod inside;
pub mod lease;
pub mod memory;
pub mod permits;
pub mod redis;

use std::hash::Hasher as _;
use std::pin::Pin;

use siphasher::sip::SipHasher24;
use smallvec::SmallVec;

pub use crate::kernel::decision::Cause;
use crate::kernel::decision::{Cost, Standing, Verdict};
use crate::kernel::key::CounterKey;
use crate::kernel::rate::{Step, Strategy};
use crate::kernel::units::Nanos;
use fleet::{Beat, Fleet};
use heartbeat::{Heard, Round};
use inside::Inside;
use lease::{Lent, Message};
use permits::{Acquire, AllHeard, Answer};

/// A place where counters live.
pub trait Backend: Send + Sync + std::fmt::Debug {
    /// Puts a question's hits to their counters at the instant `now`.
    ///
    /// A store that is shared has a clock of its own, and goes by that.
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> Reply<'a, Outcomes>;

    /// Takes a member's message about a leased key: what it reports and gives back, the hits of a
    /// question, and a grant, in one step at the instant `now`. A failure with [`Reply::Now`] says that the store
    /// was not asked, and that the message never comes there.
    fn borrow<'a>(&'a self, now: Nanos, message: &'a Message) -> Reply<'a, Lent>;

    /// Runs `begin`, which polls answers to messages for the first time: what they say travels together where it can, because
    /// none of it is sent before `begin` is over.
    fn together(&self, begin: &mut dyn FnMut()) {
        begin();
    }

    /// For how long a denial of `charge`, whose domain is charged as one, may be due to hits that are given back then: a
    /// question that several places decide holds its hits in each until all have answered. Nothing where one place
    /// decides all of the domain's: such a denial stands until a question gives hits back.
    fn held_for(&self, _charge: &Charge) -> Option<Nanos> {
        None
    }

    /// A number of the place that would be asked for `charge` at `now`: of one place that does not answer one charge it is not
    /// to be expected that it answers the next.
    fn place_of(&self, _now: Nanos, _charge: &Charge) -> u32 {
        0
    }

    /// Whether every charge is answered with [`Reply::Now`]: then a question needs no state to wait
    /// with.
    fn is_at_hand(&self) -> bool {
        false
    }

    /// Tells the other replicas that this one lives, or that it leaves; answers with those that live.
    ///
    /// # Errors
    /// The store did not answer.
    fn beat<'a>(&'a self, beat: &'a Beat) -> Reply<'a, Result<Fleet, Cause>> {
        Reply::Now(Ok(beat.alone()))
    }

    /// Hears what a replica says of some of its ceilings, in one step at the instant `now`.
    ///
    /// # Errors
    /// The store did not answer, or keeps no ceilings.
    fn heartbeat<'a>(&'a self, _now: Nanos, _round: &'a Round) -> Reply<'a, Result<Heard, Cause>> {
        Reply::Now(Err(Cause::Failing))
    }

    /// Asks for one permit of a ceiling that the store counts, at the instant `now`.
    ///
    /// # Errors
    /// The store did not answer, or counts no ceilings. With [`Reply::Now`] it was not asked.
    fn acquire<'a>(&'a self, _now: Nanos, _asked: &'a Acquire) -> Reply<'a, Result<Answer, Cause>> {
        Reply::Now(Err(Cause::Failing))
    }

    /// Hears which permits of some ceilings are held still, and which are over.
    fn tell<'a>(&'a self, _now: Nanos, round: &'a permits::Round) -> Reply<'a, AllHeard> {
        Reply::Now(round.unheard(Cause::Failing))
    }

    /// How long a question may wait for answers, whatever the number of its calls; nothing where none is waited for.
    fn deadline(&self) -> Option<Nanos> {
        None
    }

    /// Why charges are not answered just now, if they are not.
    fn trouble(&self) -> Option<Cause> {
        None
    }

    /// What it has counted of itself so far.
    fn inside(&self) -> Inside {
        Inside::default()
    }
}

/// An answer at hand, or one to wait for. A backend in this process never waits, so its answers
/// cost no allocation and no poll.
pub enum Reply<'a, T> {
    /// At hand.
    Now(T),
    /// On its way.
    Later(Pin<Box<dyn Future<Output = T> + Send + 'a>>),
}

/// The charges of one question.
#[derive(Clone, Debug, Default)]
pub struct Charges {
    /// Each names one counter; several may name the same.
    pub list: SmallVec<[Charge; 2]>,
    /// Whether one denial spares the others.
    pub rule: Rule,
}

/// What goes to one counter.
#[derive(Clone, Debug)]
pub struct Charge {
    /// Which counter.
    pub key: CounterKey,
    /// Where it lives in a store of several nodes.
    pub home: Home,
    /// How it counts.
    pub strategy: Strategy,
    /// What is put to it or given back.
    pub cost: Cost,
    /// How its denial bears on the question.
    pub standing: Standing,
    /// Whether its period is a second, for which there may be a store of its own.
    pub per_second: bool,
}

/// Where a counter lives in a store of several nodes. It follows from what the counter's key is made of and from how its domain
/// is charged, so that all replicas come to the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Home {
    /// By its own key: counters spread over all nodes.
    #[default]
    Itself,
    /// Beside all that have this number.
    Beside(u64),
    /// The same, and none of its domain lives elsewhere.
    OfAll(u64),
}

impl Home {
    /// Beside the counters of `domain` whose descriptors have `value` too.
    #[must_use]
    pub fn beside(domain: &str, value: &str) -> Self {
        Self::Beside(Self::number(domain, value))
    }

    /// Beside all counters of `domain`.
    #[must_use]
    pub fn of_all(domain: &str) -> Self {
        Self::OfAll(Self::number(domain, ""))
    }

    fn number(domain: &str, value: &str) -> u64 {
        // No secret: every replica must come to the same place. A collision only makes neighbours.
        let mut hasher = SipHasher24::new();
        hasher.write(domain.as_bytes());
        // No byte of UTF-8: where the one ends and the other begins.
        hasher.write(&[0xff]);
        hasher.write(value.as_bytes());
        hasher.finish()
    }
}

/// Whether one denial spares the other counters.
#[derive(Clone, Copy, Debug, Default)]
pub enum Rule {
    /// Every charge is made whatever becomes of the others.
    #[default]
    Each,
    /// No charge is made unless the question is admitted. Refunds are made all the same.
    AllOrNothing {
        /// Every limit is in the quota group.
        quota_for_all: bool,
        /// A descriptor that no counter answers keeps the quota group from denying.
        rescued: bool,
    },
    /// No charge is made: each is answered as if the others had denied the question. Refunds are
    /// made all the same.
    Ask,
}

/// One outcome per charge, in order.
pub type Outcomes = SmallVec<[Outcome; 2]>;

/// What became of one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The counter was asked.
    Stepped(Step),
    /// The counter was asked, and what it holds is known.
    Counted(Step, Held),
    /// Hits were given back.
    Refunded(Step),
    /// The key is new and there is no room for it; this verdict was chosen for that case.
    Full(Verdict),
    /// Nothing was charged: at this instant of the store's clock none of the calendar windows that
    /// the plan brought is open. To be planned for that instant and asked again, once.
    Stale(Nanos),
    /// The store did not answer.
    Failed(Cause),
}

/// What a counter under the reference's keys holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Hits after those of the charge, if these were put to it.
    pub held: u64,
    /// It was known to be over, and nobody was asked.
    pub is_remembered: bool,
}

impl Outcome {
    /// Whether this charge says no, whatever its standing.
    #[must_use]
    pub const fn denies(&self) -> bool {
        match self {
            Self::Stepped(step) | Self::Counted(step, _) => !matches!(step, Step::Admit(_)),
            Self::Refunded(_) | Self::Failed(_) => false,
            Self::Stale(_) => true,
            Self::Full(verdict) => matches!(verdict, Verdict::Deny),
        }
    }
}
