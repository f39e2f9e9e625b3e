//! Leased limits: a replica borrows hits from a shared counter and spends them locally.
//!
//! ```text
//!  replica                          store, per key
//!  borrow  ── numbered message ──▶  report, return, charge, grant
//!  settle  ◀──────── reply ───────  the hits listed for this replica, and their expiry
//!  spend      no store call
//! ```
//!
//! **Bound.** Call hits *outstanding* if a replica borrowed them and may still spend them. In any
//! interval:
//!
//! ```text
//! hits allowed by the fleet  <=  hits the limit allows  +  hits outstanding at the start
//! hits outstanding           <=  max_overshoot
//! ```
//!
//! With `max_overshoot: 0` on a fixed window, leases end with their window. No hits
//! are outstanding when a window begins, so no window allows more than the limit.
//!
//! With `max_overshoot: 0` and another strategy, leases are *occupying*: outstanding hits are not charged
//! when they are leased. They *occupy* the limit, which means that the store decides as if all of
//! them were charged now. They are charged when the replica reports them as spent, or after the
//! lease expired. Then no interval allows more hits than the limit.
//!
//! **Proof**, for leases that are charged when granted. Each allowed hit was charged exactly once:
//! directly, or when it was leased. Thus a hit allowed in an interval was charged in it, or was
//! outstanding at the start. The strategy
//! enforces the limit on the hits that were charged and not returned. A returned hit frees room
//! for one other hit, and was itself outstanding at the start or charged in the interval. It is
//! never spent, because the replica removes it from its balance before it sends the message. It
//! remains to show that the store's lease table lists all hits that replicas may spend:
//!
//! 1. The lease table lists a grant before the replica can spend it, until the expiry on the
//!    store's clock.
//! 2. The replica's expiry counts from the time of sending, minus an allowance for clock drift
//!    ([`safe_duration`]). It is earlier than the store's for any network delay and any clock
//!    offset.
//! 3. Messages of a replica are numbered. The lease table ignores a message older than the last one
//!    it applied. The replica ignores replies to all messages but its last.
//!
//! By rule 3, the balance in a report is the most that the replica can have until the reply
//! arrives. The report includes hits of undecided checks, which may return to the balance. Lost,
//! late and repeated messages therefore change no count. A message that certainly never left the
//! replica is undone, unless the replica wrote a newer one.
//!
//! **Proof for occupying leases.** At every instant the counter allows all outstanding hits at once.
//! - Time only frees hits of the counter. A charge or a grant is allowed beside all outstanding
//!   hits. A report and an expiry move hits from the outstanding ones to the counter, so the sum is
//!   unchanged.
//! - Take an interval. Each hit that was spent in it was charged later in it, or is outstanding at
//!   its end. A later charge counts for longer. So the counter and the outstanding hits at its end
//!   include all of them, and together they are within the limit.
//!
//! Guarantees:
//! - The bound above holds while the store keeps its state, its clock never jumps forward, and
//!   clocks drift by at most 1,000 ppm.
//! - A crashed replica withholds its balance from others only until the lease expires. With occupying
//!   leases, the balance is charged then, and counts for up to the longest reset of the limit more.

pub mod balance;
pub mod counter;
pub mod history;
pub mod sizer;
pub mod table;
mod trust;

use serde::{Deserialize, Serialize};

use crate::rate::{CounterDecision, Headroom};
use crate::units::{CLOCK_DRIFT_PPM, Hits, Nanos};
use counter::{headroom_of, with_headroom};
use sizer::LeaseSizing;

/// The lease settings of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LeaseTerms {
    /// The most hits that may be outstanding.
    pub overshoot: Overshoot,
    /// The duration of a lease on the store's clock, in whole microseconds.
    pub duration: Nanos,
    /// The lease sizing of the replicas; the store ignores it.
    pub sizing: LeaseSizing,
}

/// The most hits that may be outstanding at once, summed over all replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Overshoot {
    /// At most this many hits.
    AtMost(Hits),
    /// As many hits as the limit has left, and every lease ends with its window. Only for fixed
    /// windows: other strategies have no window end, so their counters grant no leases.
    InWindow,
    /// At most this many hits. They occupy the limit, so no hit is allowed above it. Not for fixed
    /// windows: their counters grant no such leases.
    Occupying(Hits),
}

/// One start of a replica. After a restart, the store treats the process as another replica.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct ReplicaIncarnation(pub u64);

/// The number of a message; it rises over all messages of one replica, for all keys.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub struct MessageNumber(pub u64);

/// A replica's message to the store about one key. A repeated message is applied once, unless its
/// number is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BorrowRequest {
    /// Supersedes every message of this replica with a smaller number.
    pub number: MessageNumber,
    /// The hits of the check that the balance could not cover; 0 if there is no check.
    pub hits: Hits,
    /// The hits to borrow, besides `hits`.
    pub wanted: Hits,
    /// The replica's demand in hits per span (see [`sizer`]). The store divides the remaining hits
    /// of the limit among replicas in proportion to it.
    pub demand: Hits,
    /// The most hits of earlier grants that the replica may still spend.
    pub balance: Hits,
    /// The returned hits; `balance` no longer includes them.
    pub returned: Hits,
    /// The number of the last message whose grant the replica settled; `returned` belongs to that
    /// grant.
    pub last_lease: MessageNumber,
}

impl BorrowRequest {
    /// Returns a message that only charges `hits`, beside the outstanding hits of all replicas. Its
    /// number is 0, so it is neither ordered nor applied once.
    #[must_use]
    pub const fn without_lease(hits: Hits) -> Self {
        let number = MessageNumber(0);
        let (wanted, demand, balance, returned) = (Hits(0), Hits(0), Hits(0), Hits(0));
        Self { number, hits, wanted, demand, balance, returned, last_lease: number }
    }

    /// Adds the returned hits of `last_message`, the last message of an earlier balance of the same
    /// key and replica. One message replaces two, because the store ignores a message that is older
    /// than the last one it applied.
    #[must_use]
    pub const fn with_returned(self, last_message: &Self) -> Self {
        Self { returned: last_message.returned, last_lease: last_message.last_lease, ..self }
    }
}

/// The store's reply to a [`BorrowRequest`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BorrowReply {
    /// The number of the message that gets this reply.
    pub number: MessageNumber,
    /// The result for the check's own hits, and the headroom of the counter.
    pub decision: CounterDecision,
    /// The hits granted, at most `wanted`.
    pub granted: Hits,
    /// The part of the balance that the lease table still lists for this replica.
    pub kept: Hits,
    /// The outstanding hits of other replicas. If they are returned, hits are free before the
    /// retry-after.
    pub outstanding_elsewhere: Hits,
    /// The time that `granted` and `kept` remain valid, from the time of the reply.
    pub valid_for: Nanos,
}

impl BorrowReply {
    const fn without_grant(number: MessageNumber, decision: CounterDecision) -> Self {
        let (granted, kept, outstanding_elsewhere) = (Hits(0), Hits(0), Hits(0));
        Self { number, decision, granted, kept, outstanding_elsewhere, valid_for: Nanos(0) }
    }

    /// Returns `decision` with the headroom as this replica sees it. Hits that the lease table
    /// lists for this replica are charged to the counter but still available in this replica. The
    /// sum is at most the hits that an empty counter allows at once.
    ///
    /// | store has left | granted | kept | `max_at_once` | headroom in this replica |
    /// |---|---|---|---|---|
    /// | 89 | 10 | 0 | 100 | 99 |
    #[must_use]
    pub fn local_decision(&self, max_at_once: Hits) -> CounterDecision {
        add_local_hits(self.decision, self.granted.plus(self.kept), max_at_once)
    }
}

/// Adds this replica's balance, `local_hits`, to the remaining hits of a counter's result, up to
/// `max_at_once`: the hits that an empty counter allows at once.
#[must_use]
pub fn add_local_hits(
    result: CounterDecision,
    local_hits: Hits,
    max_at_once: Hits,
) -> CounterDecision {
    let Headroom { remaining, reset_after } = headroom_of(result);
    with_headroom(
        result,
        Headroom { remaining: remaining.plus(local_hits).min(max_at_once), reset_after },
    )
}

/// A replica does not use the last 1/500 of a lease. That is twice [`CLOCK_DRIFT_PPM`], so a lease
/// also ends in time if the rates of both clocks are wrong by that much in opposite directions.
const DRIFT_DIVISOR: u64 = 1_000_000 / (2 * CLOCK_DRIFT_PPM);

/// Returns how long a replica may use a lease, from the time of sending: 1/500 less than its
/// duration.
///
/// | duration of the lease | replica uses | because |
/// |---|---|---|
/// | 1 s | 998 ms | (1 + 0.001) / (1 − 0.001) < 1 / 0.998 |
#[must_use]
pub const fn safe_duration(duration: Nanos) -> Nanos {
    Nanos(duration.0.saturating_sub(duration.0.div_ceil(DRIFT_DIVISOR)))
}
