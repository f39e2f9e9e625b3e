//! The stores: where counters live.
//!
//! Guarantees:
//! - Each charge of a check has one outcome, in order.
//! - A store that does not reply in time yields [`Outcome::Failed`].
//!
//! Not covered:
//! - The choice of limits and the combined decision ([`crate::engine`]).

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

/// A store of counters.
pub trait Backend: Send + Sync + std::fmt::Debug {
    /// Charges the hits of a check at the instant `now`.
    ///
    /// A shared store uses its own clock instead of `now`.
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> Reply<'a, Outcomes>;

    /// Applies a replica's lease message at the instant `now`, in one
    /// step: the report, the returned hits, the charge and the grant.
    ///
    /// A failure in [`Reply::Now`] means that the message was never sent and never will be.
    fn borrow<'a>(&'a self, now: Nanos, message: &'a Message) -> Reply<'a, Lent>;

    /// Runs `begin`, which polls lease calls for the first time. Their messages
    /// share a store call where possible: none is sent before `begin` returns.
    fn together(&self, begin: &mut dyn FnMut()) {
        begin();
    }

    /// Returns how long a denial of `charge` may be due
    /// to hits that another check returns in that time.
    ///
    /// A check over several nodes reserves its hits in each node until
    /// all have replied. The result is `None` if one node decides the
    /// whole domain. A denial then lasts until a check refunds hits.
    fn held_for(&self, _charge: &Charge) -> Option<Nanos> {
        None
    }

    /// Returns the number of the node that decides `charge` at `now`. If
    /// a node does not reply to one charge, expect no reply to the next.
    fn place_of(&self, _now: Nanos, _charge: &Charge) -> u32 {
        0
    }

    /// Returns true if every charge is answered with
    /// [`Reply::Now`]. A check then needs no state to wait with.
    fn is_at_hand(&self) -> bool {
        false
    }

    /// Reports that this replica is alive or leaves, and returns the live replicas.
    ///
    /// The store did not reply.
    fn beat<'a>(&'a self, beat: &'a Beat) -> Reply<'a, Result<Fleet, Cause>> {
        Reply::Now(Ok(beat.alone()))
    }

    /// Applies a replica's share reports in one step at the instant `now`.
    ///
    /// The store did not reply, or has no coordinators.
    fn heartbeat<'a>(&'a self, _now: Nanos, _round: &'a Round) -> Reply<'a, Result<Heard, Cause>> {
        Reply::Now(Err(Cause::Failing))
    }

    /// Acquires one permit of a strict concurrency limit at the instant `now`.
    ///
    /// The store did not reply, or does not count permits. With [`Reply::Now`] no call was made.
    fn acquire<'a>(&'a self, _now: Nanos, _asked: &'a Acquire) -> Reply<'a, Result<Answer, Cause>> {
        Reply::Now(Err(Cause::Failing))
    }

    /// Reports the permits in use and the released permits of some strict concurrency limits.
    fn tell<'a>(&'a self, _now: Nanos, round: &'a permits::Round) -> Reply<'a, AllHeard> {
        Reply::Now(round.unheard(Cause::Failing))
    }

    /// Returns the longest time that a check may wait,
    /// for any number of calls. `None` if it never waits.
    fn deadline(&self) -> Option<Nanos> {
        None
    }

    /// Returns why charges fail at present, if they do.
    fn trouble(&self) -> Option<Cause> {
        None
    }

    /// Returns the statistics so far.
    fn inside(&self) -> Inside {
        Inside::default()
    }
}

/// A reply that is ready or pending. A store in this process
/// is always ready, which costs no allocation and no poll.
pub enum Reply<'a, T> {
    /// Ready.
    Now(T),
    /// Pending.
    Later(Pin<Box<dyn Future<Output = T> + Send + 'a>>),
}

/// The charges of one check.
#[derive(Clone, Debug, Default)]
pub struct Charges {
    /// The charges. Several may name the same counter.
    pub list: SmallVec<[Charge; 2]>,
    /// The charge mode.
    pub rule: Rule,
}

/// A charge or a refund of one counter.
#[derive(Clone, Debug)]
pub struct Charge {
    /// The counter's key.
    pub key: CounterKey,
    /// The counter's place in a store of several nodes.
    pub home: Home,
    /// The limit's strategy.
    pub strategy: Strategy,
    /// The hits to charge or to refund.
    pub cost: Cost,
    /// The group of the limit, and its shadow mode.
    pub standing: Standing,
    /// True if the limit's unit is a second: such counters may have a store of their own.
    pub per_second: bool,
}

/// The place of a counter in a store of several nodes.
///
/// It depends only on the counter's key and on the settings of its domain, so all replicas agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Home {
    /// By its own key: counters spread over all nodes.
    #[default]
    Itself,
    /// On one node with all counters of this number.
    Beside(u64),
    /// As [`Home::Beside`], and all counters of the domain have this number.
    OfAll(u64),
}

impl Home {
    /// Places a counter with those of `domain` that share the descriptor value `value`.
    #[must_use]
    pub fn beside(domain: &str, value: &str) -> Self {
        Self::Beside(Self::number(domain, value))
    }

    /// Places a counter with all others of `domain`.
    #[must_use]
    pub fn of_all(domain: &str) -> Self {
        Self::OfAll(Self::number(domain, ""))
    }

    fn number(domain: &str, value: &str) -> u64 {
        // Without a secret, because every replica must compute the
        // same number. A collision only puts two groups on one node.
        let mut hasher = SipHasher24::new();
        hasher.write(domain.as_bytes());
        // A byte that never occurs in UTF-8 separates the two strings.
        hasher.write(&[0xff]);
        hasher.write(value.as_bytes());
        hasher.finish()
    }
}

/// The charge mode of a check.
#[derive(Clone, Copy, Debug, Default)]
pub enum Rule {
    /// Every charge is made, independent of the others.
    #[default]
    Each,
    /// All charges are made if the check is allowed, else none. Refunds are always made.
    AllOrNothing {
        /// Every limit is in the quota group.
        quota_for_all: bool,
        /// A descriptor without a counter keeps the quota group from denying.
        rescued: bool,
    },
    /// No charge is made. Each outcome is as if another
    /// charge had denied the check. Refunds are always made.
    Ask,
}

/// The outcome of each charge, in order.
pub type Outcomes = SmallVec<[Outcome; 2]>;

/// The outcome of one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The counter decided.
    Stepped(Step),
    /// The counter decided, and its count is known.
    Counted(Step, Held),
    /// The hits were refunded.
    Refunded(Step),
    /// The key is new and the store is full; `when_full` chose this verdict.
    Full(Verdict),
    /// Nothing was charged: no calendar window of the plan is open at this instant of
    /// the store's clock. The check is planned for that instant and sent again, once.
    Stale(Nanos),
    /// The store did not reply.
    Failed(Cause),
}

/// The count of a counter under envoyproxy/ratelimit's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// The hits in the counter, including those of this charge if it was made.
    pub held: u64,
    /// The deny cache decided, without a store call.
    pub is_remembered: bool,
}

impl Outcome {
    /// Returns true if this charge is a denial, before shadow mode and groups apply.
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
