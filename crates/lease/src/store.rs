//! The interface of a store of counters, and the charges that it makes.
//!
//! Guarantees:
//! - A store returns one outcome for each charge of a check, in the order of the charges.
//! - If a store does not reply in time, the outcome is [`ChargeOutcome::Failed`].

pub mod lease;
mod placement;
pub mod stats;

use std::pin::Pin;

use smallvec::SmallVec;

pub use crate::kernel::decision::StoreFailure;
use crate::kernel::decision::{Cost, Enforcement, Verdict};
use crate::kernel::key::CounterKey;
use crate::kernel::rate::{CounterDecision, Strategy};
use crate::kernel::units::Nanos;
use lease::{LeaseMessage, LeaseOutcome};
pub use placement::Placement;
use stats::StoreStats;

/// A store of counters.
pub trait CounterStore: Send + Sync + std::fmt::Debug {
    /// Makes the charges of one check at the instant `now`; a shared store uses its own clock.
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> StoreReply<'a, Outcomes>;

    /// Applies one lease message atomically: its report, its returned hits, its charge and its
    /// grant. A failure in [`StoreReply::Ready`] means that the message was not sent.
    fn exchange_lease_message<'a>(
        &'a self,
        now: Nanos,
        message: &'a LeaseMessage,
    ) -> StoreReply<'a, LeaseOutcome>;

    /// Runs `begin`, which starts several lease calls, and sends their messages after it returns,
    /// in one store call where possible.
    fn batch_calls(&self, begin: &mut dyn FnMut()) {
        begin();
    }

    /// Returns the number of the node that decides `charge` at `now`, so that a caller can skip
    /// further charges to a node that did not reply.
    fn node_of(&self, _now: Nanos, _charge: &Charge) -> u32 {
        0
    }

    /// Returns true if every charge returns [`StoreReply::Ready`], so that no check waits.
    fn is_synchronous(&self) -> bool {
        false
    }

    /// Returns true if replicas can lease hits from this store.
    fn has_leases(&self) -> bool {
        !self.is_synchronous()
    }

    /// Returns the longest time that a check waits for this store, in all its calls together;
    /// `None` if a check never waits.
    fn max_wait(&self) -> Option<Nanos> {
        None
    }

    /// Returns the cause for which charges fail at present; `None` if they succeed.
    fn current_failure(&self) -> Option<StoreFailure> {
        None
    }

    /// Returns the statistics of this store since its creation.
    fn stats(&self) -> StoreStats {
        StoreStats::default()
    }
}

/// A reply that is ready or pending. A store in this process is always ready, without an allocation
/// or a poll.
pub enum StoreReply<'a, T> {
    /// The reply is known.
    Ready(T),
    /// The reply is still to come.
    Pending(Pin<Box<dyn Future<Output = T> + Send + 'a>>),
}

impl<T> StoreReply<'_, T> {
    /// Waits until the reply is known.
    pub async fn wait(self) -> T {
        match self {
            Self::Ready(reply) => reply,
            Self::Pending(reply) => reply.await,
        }
    }
}

/// The charges of one check.
#[derive(Clone, Debug, Default)]
pub struct Charges {
    /// The charges; several may name the same counter.
    pub list: SmallVec<[Charge; 2]>,
    /// The charge mode.
    pub mode: ChargeMode,
}

/// A charge or a refund of hits to one counter.
#[derive(Clone, Debug)]
pub struct Charge {
    /// The counter's key.
    pub key: CounterKey,
    /// The placement of the counter: the choice of its Redis Cluster slot.
    pub placement: Placement,
    /// The limit's strategy.
    pub strategy: Strategy,
    /// The hits to charge or to refund.
    pub cost: Cost,
    /// The vote group of the limit, and its shadow mode.
    pub standing: Enforcement,
    /// True if the limit's unit is a second: its counter is in the Redis for limits per second, if
    /// one is configured.
    pub per_second: bool,
}

/// The charge mode of a check.
#[derive(Clone, Copy, Debug, Default)]
pub enum ChargeMode {
    /// Every charge is decided independently of the others.
    #[default]
    Each,
    /// All charges are made if the check is allowed, else none, if all counters are in one slot and
    /// store. Refunds are always made. The engine
    /// charges limits with `on_excess: charge` before, with [`ChargeMode::Each`].
    AllOrNothing {
        /// Every limit is in the quota group.
        quota_for_all: bool,
        /// A descriptor without a counter keeps the quota group from denying.
        quota_cannot_deny: bool,
    },
    /// No charge is made. Each outcome tells whether its limit would allow the charge. Refunds are
    /// made nevertheless.
    Preview,
}

/// The outcome of each charge, in order.
pub type Outcomes = SmallVec<[ChargeOutcome; 2]>;

/// The outcome of one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChargeOutcome {
    /// The counter decided.
    Decided(CounterDecision),
    /// The counter decided, and the number of hits in it is known.
    Counted(CounterDecision, CounterHits),
    /// The hits were refunded.
    Refunded(CounterDecision),
    /// The key is new and the store is full; `when_full` chose this verdict.
    StoreFull(Verdict),
    /// Nothing was charged: at this instant of the store's clock, no planned calendar window is
    /// open. The engine plans and sends the check again for this instant.
    Stale(Nanos),
    /// The store did not reply.
    Failed(StoreFailure),
}

/// The hits in a counter under a key of envoyproxy/ratelimit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterHits {
    /// The hits in the counter, including those of this charge if it was made.
    pub hits: u64,
    /// True if the deny cache decided, without a store call.
    pub is_cached_denial: bool,
}

impl ChargeOutcome {
    /// Returns true if the limit of this charge denies the hits, regardless of shadow mode and
    /// quota.
    #[must_use]
    pub const fn is_denial(&self) -> bool {
        match self {
            Self::Decided(decision) | Self::Counted(decision, _) => {
                !matches!(decision, CounterDecision::Allow(_))
            }
            Self::Refunded(_) | Self::Failed(_) => false,
            Self::Stale(_) => true,
            Self::StoreFull(verdict) => matches!(verdict, Verdict::Deny),
        }
    }
}
