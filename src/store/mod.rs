//! The stores: where counters live.
//!
//! Guarantees:
//! - Each charge of a check has one outcome, in order.
//! - A store that does not reply in time yields [`ChargeOutcome::Failed`].
//!
//! Not covered:
//! - The choice of limits and the combined decision ([`crate::engine`]).

pub mod fleet;
pub mod heartbeat;
pub mod lease;
pub mod memory;
pub mod permits;
pub mod redis;
pub mod stats;

use std::hash::Hasher as _;
use std::pin::Pin;

use siphasher::sip::SipHasher24;
use smallvec::SmallVec;

pub use crate::kernel::decision::StoreFailure;
use crate::kernel::decision::{Cost, Enforcement, Verdict};
use crate::kernel::key::CounterKey;
use crate::kernel::rate::{CounterDecision, Strategy};
use crate::kernel::units::Nanos;
use fleet::{MembershipHeartbeat, MembershipReply};
use heartbeat::{ShareRound, ShareRoundReply};
use lease::{LeaseMessage, LeaseOutcome};
use permits::{PermitReportReply, StrictPermitReply, StrictPermitRequest};
use stats::StoreStats;

/// A store of counters.
pub trait CounterStore: Send + Sync + std::fmt::Debug {
    /// Charges the hits of a check at the instant `now`.
    ///
    /// A shared store uses its own clock instead of `now`.
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> StoreReply<'a, Outcomes>;

    /// Applies a replica's lease message at the instant `now`, in one
    /// step: the report, the returned hits, the charge and the grant.
    ///
    /// A failure in [`StoreReply::Ready`] means that the message was never sent and never will be.
    fn exchange_lease_message<'a>(
        &'a self,
        now: Nanos,
        message: &'a LeaseMessage,
    ) -> StoreReply<'a, LeaseOutcome>;

    /// Runs `begin`, which polls lease calls for the first time. Their messages
    /// share a store call where possible: none is sent before `begin` returns.
    fn batch_calls(&self, begin: &mut dyn FnMut()) {
        begin();
    }

    /// Returns how long a denial of `charge` may be due
    /// to hits that another check returns in that time.
    ///
    /// A check over several nodes reserves its hits in each node until
    /// all have replied. The result is `None` if one node decides the
    /// whole domain. A denial then lasts until a check refunds hits.
    fn reserved_for(&self, _charge: &Charge) -> Option<Nanos> {
        None
    }

    /// Returns the number of the node that decides `charge` at `now`. If
    /// a node does not reply to one charge, expect no reply to the next.
    fn node_of(&self, _now: Nanos, _charge: &Charge) -> u32 {
        0
    }

    /// Returns true if every charge is answered with
    /// [`StoreReply::Ready`]. A check then needs no state to wait with.
    fn is_synchronous(&self) -> bool {
        false
    }

    /// Returns the longest time that a check may wait,
    /// for any number of calls. `None` if it never waits.
    fn max_wait(&self) -> Option<Nanos> {
        None
    }

    /// Returns why charges fail at present, if they do.
    fn current_failure(&self) -> Option<StoreFailure> {
        None
    }

    /// Returns the statistics so far.
    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }
}

/// A store of the state that replicas share besides counters: the list of live replicas, the shares
/// of concurrency limits, and strict permits. The defaults are a store without a fleet.
pub trait FleetStore: Send + Sync + std::fmt::Debug {
    /// Reports that this replica is alive or leaves, and returns the live replicas.
    ///
    /// The store did not reply.
    fn update_membership<'a>(
        &'a self,
        beat: &'a MembershipHeartbeat,
    ) -> StoreReply<'a, Result<MembershipReply, StoreFailure>> {
        StoreReply::Ready(Ok(beat.reply_without_store()))
    }

    /// Applies a replica's share reports in one step at the instant `now`.
    ///
    /// The store did not reply, or has no coordinators.
    fn report_shares<'a>(
        &'a self,
        _now: Nanos,
        _round: &'a ShareRound,
    ) -> StoreReply<'a, Result<ShareRoundReply, StoreFailure>> {
        StoreReply::Ready(Err(StoreFailure::Other))
    }

    /// Acquires one permit of a strict concurrency limit at the instant `now`.
    ///
    /// The store did not reply, or does not count permits. With [`StoreReply::Ready`] no call was made.
    fn acquire_strict_permit<'a>(
        &'a self,
        _now: Nanos,
        _asked: &'a StrictPermitRequest,
    ) -> StoreReply<'a, Result<StrictPermitReply, StoreFailure>> {
        StoreReply::Ready(Err(StoreFailure::Other))
    }

    /// Reports the permits in use and the released permits of some strict concurrency limits.
    fn report_strict_permits<'a>(
        &'a self,
        _now: Nanos,
        round: &'a permits::PermitReport,
    ) -> StoreReply<'a, PermitReportReply> {
        StoreReply::Ready(round.failed_reply(StoreFailure::Other))
    }
}

/// A store for an engine.
pub trait Store: CounterStore + FleetStore {}

impl<S: CounterStore + FleetStore> Store for S {}

/// A reply that is ready or pending. A store in this process
/// is always ready, which costs no allocation and no poll.
pub enum StoreReply<'a, T> {
    /// Ready.
    Ready(T),
    /// Pending.
    Pending(Pin<Box<dyn Future<Output = T> + Send + 'a>>),
}

/// The charges of one check.
#[derive(Clone, Debug, Default)]
pub struct Charges {
    /// The charges. Several may name the same counter.
    pub list: SmallVec<[Charge; 2]>,
    /// The charge mode.
    pub mode: ChargeMode,
}

/// A charge or a refund of one counter.
#[derive(Clone, Debug)]
pub struct Charge {
    /// The counter's key.
    pub key: CounterKey,
    /// The counter's place in a store of several nodes.
    pub placement: Placement,
    /// The limit's strategy.
    pub strategy: Strategy,
    /// The hits to charge or to refund.
    pub cost: Cost,
    /// The group of the limit, and its shadow mode.
    pub standing: Enforcement,
    /// True if the limit's unit is a second: such counters may have a store of their own.
    pub per_second: bool,
}

/// The place of a counter in a store of several nodes.
///
/// It depends only on the counter's key and on the settings of its domain, so all replicas agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// By its own key: counters spread over all nodes.
    #[default]
    ByKey,
    /// On one node with all counters of this number.
    Group(u64),
    /// As [`Placement::Group`], and all counters of the domain have this number.
    WholeDomain(u64),
}

impl Placement {
    /// Places a counter with those of `domain` that share the descriptor value `value`.
    #[must_use]
    pub fn by_value(domain: &str, value: &str) -> Self {
        Self::Group(Self::group_number(domain, value))
    }

    /// Places a counter with all others of `domain`.
    #[must_use]
    pub fn by_domain(domain: &str) -> Self {
        Self::WholeDomain(Self::group_number(domain, ""))
    }

    fn group_number(domain: &str, value: &str) -> u64 {
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
pub enum ChargeMode {
    /// Every charge is made, independent of the others.
    #[default]
    Each,
    /// All charges are made if the check is allowed, else none. Refunds are always made.
    AllOrNothing {
        /// Every limit is in the quota group.
        quota_for_all: bool,
        /// A descriptor without a counter keeps the quota group from denying.
        quota_cannot_deny: bool,
    },
    /// No charge is made. Each outcome is as if another
    /// charge had denied the check. Refunds are always made.
    Preview,
}

/// The outcome of each charge, in order.
pub type Outcomes = SmallVec<[ChargeOutcome; 2]>;

/// The outcome of one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeOutcome {
    /// The counter decided.
    Decided(CounterDecision),
    /// The counter decided, and its count is known.
    Counted(CounterDecision, CounterHits),
    /// The hits were refunded.
    Refunded(CounterDecision),
    /// The key is new and the store is full; `when_full` chose this verdict.
    StoreFull(Verdict),
    /// Nothing was charged: no calendar window of the plan is open at this instant of
    /// the store's clock. The check is planned for that instant and sent again, once.
    Stale(Nanos),
    /// The store did not reply.
    Failed(StoreFailure),
}

/// The count of a counter under envoyproxy/ratelimit's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterHits {
    /// The hits in the counter, including those of this charge if it was made.
    pub hits: u64,
    /// The deny cache decided, without a store call.
    pub is_cached_denial: bool,
}

impl ChargeOutcome {
    /// Returns true if this charge is a denial, before shadow mode and groups apply.
    #[must_use]
    pub const fn is_denial(&self) -> bool {
        match self {
            Self::Decided(step) | Self::Counted(step, _) => {
                !matches!(step, CounterDecision::Allow(_))
            }
            Self::Refunded(_) | Self::Failed(_) => false,
            Self::Stale(_) => true,
            Self::StoreFull(verdict) => matches!(verdict, Verdict::Deny),
        }
    }
}
