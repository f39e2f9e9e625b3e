//! The deny cache: remembers denials of shared counters, so that retries need no store call.
//!
//! Guarantees:
//! - Only limits with `mode: cached_deny` are cached.
//! - The store would deny too, unless another replica refunded hits or changed the limit.
//! - A denial ends when its hits would be allowed, counted from the time of sending.
//! - If reserved hits may have caused it, it ends with the longest reservation.
//! - It applies to checks of as many hits or more, never to 0 hits or refunds.
//! - A new configuration ends it, and so does a refund through this replica.
//! - The cache has at most 65,536 counters, about 12 MB: [`SHARDS`] shards of [`WAYS`].
//! - A full shard evicts the denial that ends first.
//!
//! Not covered:
//! - `mode: strict`, which needs no lookup.
//! - Store calls (see [`super::path`]).

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};
use siphasher::sip128::{Hasher128 as _, SipHasher13};
use smallvec::SmallVec;

use super::again::Missing;
use super::degrade::Settled;
use super::plan::{Part, Plan};
use crate::backend::{Cause, Charge, Outcome, Outcomes, Rule};
use crate::config::Mode;
use crate::kernel::decision::{Cost, Group};
use crate::kernel::key::CounterKey;
use crate::kernel::rate::{Room, Step, Strategy};
use crate::kernel::units::{Hits, Nanos, Revision};
use crate::telemetry::event::Remembered;

const SHARDS: usize = 4096;

/// The largest number of counters in a shard, small enough for a linear search.
const WAYS: usize = 16;

/// The cached denials of all counters.
#[derive(Debug)]
pub(super) struct Ledgers {
    shards: Box<[Mutex<Shard>]>,
    /// `true` after the first cached denial. Before that, refunds have nothing to remove.
    in_use: AtomicBool,
    /// Random for each process, so that no client can choose keys that fall into one shard.
    secret: [u8; 16],
}

pub(super) enum Spent {
    All(SmallVec<[Settled; 2]>),
    /// The cached denials, and the charges to send to the store.
    Rest(Box<Rest>),
}

pub(super) struct Rest {
    /// One outcome for each charge; a failure if no denial is cached.
    pub(super) outcomes: Outcomes,
    pub(super) missing: Missing,
}

#[derive(Debug, Default)]
struct Shard {
    ledgers: Vec<Ledger>,
    /// The last refund to a counter of this shard. A denial of a check
    /// that was sent before may predate the refund, so it is not cached.
    refunded: Nanos,
}

#[derive(Debug)]
struct Ledger {
    hash: [u64; 2],
    /// The revision and the strategy that denied.
    under: (Revision, Strategy),
    denial: Denial,
}

/// A denial; all instants are of this process's clock.
#[derive(Clone, Copy, Debug)]
struct Denial {
    hits: Hits,
    /// The earliest instant at which the hits may be allowed. It counts from the
    /// time of sending, and reserved hits may be released. The denial ends here.
    over: Nanos,
    /// The latest instant at which the hits are allowed. Clients
    /// receive this one, so that none retries too early.
    passes: Nanos,
    remaining: Hits,
    rested: Nanos,
}

/// The times of a store call, and the revision of its check.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call {
    pub(super) sent: Nanos,
    pub(super) answered: Nanos,
    pub(super) revision: Revision,
}

impl Ledgers {
    pub(super) fn new() -> Self {
        let random = RandomState::new();
        let mut secret = [0; 16];
        secret[..8].copy_from_slice(&random.hash_one(0_u8).to_le_bytes());
        secret[8..].copy_from_slice(&random.hash_one(1_u8).to_le_bytes());
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, in_use: AtomicBool::new(false), secret }
    }

    /// Returns `true` if the check has a cached limit, or a refund that may end a cached denial.
    pub(super) fn concern(&self, plan: &Plan<'_>) -> bool {
        let refunds = || plan.charges.list.iter().any(|c| matches!(c.cost, Cost::Refund(_)));
        plan.parts.iter().any(is_cached) || self.in_use.load(Relaxed) && refunds()
    }

    /// Looks up the charges of `plan`. A refund ends the cached denial of its counter.
    pub(super) fn spend(&self, plan: &Plan<'_>, revision: Revision, now: Nanos) -> Spent {
        let known: SmallVec<[Option<Outcome>; 2]> =
            charges(plan).map(|(part, charge)| self.known(part, charge, revision, now)).collect();
        let spent = match plan.charges.rule {
            Rule::Each | Rule::Ask => rest(plan, &known),
            Rule::AllOrNothing { quota_for_all, .. } => {
                whole(plan, &known, quota_for_all).unwrap_or_else(|| rest(plan, &[]))
            }
        };
        let denials = spent.denials();
        if denials != 0 {
            Remembered { denials }.emit();
        }
        spent
    }

    /// Caches the denials of a store call. `asked` are the charges that
    /// were sent. `held_for` returns how long another check's reservation
    /// may have caused a denial; with `charge: each` none can.
    pub(super) fn settle(
        &self,
        plan: &Plan<'_>,
        asked: &Missing,
        outcomes: &[Outcome],
        call: Call,
        held_for: impl Fn(&Charge) -> Option<Nanos>,
    ) {
        let is_for_itself = matches!(plan.charges.rule, Rule::Each);
        let held_for = |charge: &Charge| if is_for_itself { None } else { held_for(charge) };
        for (place, (part, charge)) in charges(plan).enumerate() {
            let outcome = outcomes.get(place);
            match (charge.cost, outcome) {
                (Cost::Refund(_), _) => self.forget(&charge.key, call.answered),
                (
                    Cost::Charge(hits),
                    Some(
                        Outcome::Stepped(Step::Deny { retry_after, room })
                        | Outcome::Counted(Step::Deny { retry_after, room }, _),
                    ),
                ) if is_cached(part) && asked.has(place) && hits != Hits(0) => {
                    let denied = together(plan, place, hits);
                    let denial = Denial::new(denied, *retry_after, *room, call);
                    self.remember(charge, denial.held(held_for(charge), call), call);
                }
                _ => {}
            }
        }
    }

    fn known(
        &self,
        part: &Part<'_>,
        charge: &Charge,
        revision: Revision,
        now: Nanos,
    ) -> Option<Outcome> {
        match charge.cost {
            Cost::Refund(_) => {
                self.forget(&charge.key, now);
                None
            }
            Cost::Charge(Hits(0)) => None,
            Cost::Charge(hits) if is_cached(part) => {
                let hash = self.hash(&charge.key);
                let shard = self.shard(hash);
                let ledger = shard.ledgers.iter().find(|ledger| ledger.hash == hash)?;
                ledger.answer((revision, charge.strategy), hits, now).map(Outcome::Stepped)
            }
            Cost::Charge(_) => None,
        }
    }

    fn remember(&self, charge: &Charge, denial: Denial, call: Call) {
        let hash = self.hash(&charge.key);
        let mut shard = self.shard(hash);
        if denial.over <= call.answered || call.sent <= shard.refunded {
            return;
        }
        self.in_use.store(true, Relaxed);
        let under = (call.revision, charge.strategy);
        shard.put(Ledger { hash, under, denial }, call.answered);
    }

    fn forget(&self, key: &CounterKey, now: Nanos) {
        let hash = self.hash(key);
        let mut shard = self.shard(hash);
        shard.ledgers.retain(|ledger| ledger.hash != hash);
        shard.refunded = shard.refunded.max(now);
    }

    fn shard(&self, hash: [u64; 2]) -> MutexGuard<'_, Shard> {
        let index = usize::try_from(hash[0] % SHARDS as u64).unwrap_or(0);
        self.shards[index].lock()
    }

    fn hash(&self, key: &CounterKey) -> [u64; 2] {
        let mut hasher = SipHasher13::new_with_key(&self.secret);
        hasher.write(key.as_bytes());
        let hash = hasher.finish128();
        [hash.h1, hash.h2]
    }
}

impl Spent {
    fn denials(&self) -> u64 {
        let known = |outcome: &Outcome| matches!(outcome, Outcome::Stepped(_));
        let count = match self {
            Self::All(settled) => settled
                .iter()
                .filter(|one| matches!(one, Settled::Answered(outcome) if known(outcome)))
                .count(),
            Self::Rest(rest) => rest.outcomes.iter().filter(|outcome| known(outcome)).count(),
        };
        u64::try_from(count).unwrap_or(u64::MAX)
    }
}

impl Shard {
    /// Inserts `new`. Between two denials of a counter,
    /// the one for fewer hits applies to more checks.
    fn put(&mut self, new: Ledger, now: Nanos) {
        let of_it = |held: &Ledger| held.hash == new.hash;
        if let Some(held) = self.ledgers.iter_mut().find(|held| of_it(held)) {
            let stays = held.under == new.under
                && now < held.denial.over
                && held.denial.hits < new.denial.hits;
            if !stays {
                *held = new;
            }
            return;
        }
        if self.ledgers.len() < WAYS {
            self.ledgers.push(new);
        } else if let Some(first) = self.ledgers.iter_mut().min_by_key(|held| held.denial.over) {
            *first = new;
        }
    }
}

impl Ledger {
    /// Returns the decision for `hits`, if this denial applies.
    fn answer(&self, under: (Revision, Strategy), hits: Hits, now: Nanos) -> Option<Step> {
        if self.under != under || self.denial.over <= now || hits < self.denial.hits {
            return None;
        }
        let Denial { passes, remaining, rested, .. } = self.denial;
        let room = Room { remaining, reset_after: rested.since(now) };
        if u64::from(under.1.most()) < hits.0 {
            return Some(Step::Never(room));
        }
        let longer = under.1.longer(hits.less(self.denial.hits))?;
        Some(Step::Deny { retry_after: passes.since(now).plus(longer), room })
    }
}

impl Denial {
    fn new(hits: Hits, retry_after: Nanos, room: Room, call: Call) -> Self {
        Self {
            hits,
            over: call.sent.plus(retry_after),
            passes: call.answered.plus(retry_after),
            remaining: room.remaining,
            rested: call.answered.plus(room.reset_after),
        }
    }

    /// Limits the denial to `held_for` after sending, because a reservation may have caused it.
    fn held(self, held_for: Option<Nanos>, call: Call) -> Self {
        let over = held_for.map_or(self.over, |held_for| call.sent.plus(held_for).min(self.over));
        Self { over, ..self }
    }
}

fn is_cached(part: &Part<'_>) -> bool {
    part.mode() == Mode::CachedDeny
}

fn charges<'p>(plan: &'p Plan<'_>) -> impl Iterator<Item = (&'p Part<'p>, &'p Charge)> {
    let parts = plan.parts.iter().filter(|part| part.is_charged());
    parts.zip(&plan.charges.list)
}

/// Returns the hits that were denied at `place`. An all-or-nothing check is decided
/// on the sum of its hits for a counter, so earlier hits for the same counter are added.
fn together(plan: &Plan<'_>, place: usize, hits: Hits) -> Hits {
    match plan.charges.rule {
        Rule::Each => return hits,
        Rule::AllOrNothing { .. } | Rule::Ask => {}
    }
    let (earlier, rest) = plan.charges.list.split_at(place.min(plan.charges.list.len()));
    let same = earlier.iter().filter(|charge| rest.first().is_some_and(|c| c.key == charge.key));
    let before = same.filter_map(|charge| match charge.cost {
        Cost::Charge(hits) => Some(hits),
        Cost::Refund(_) => None,
    });
    before.fold(hits, Hits::plus)
}

/// Returns the cached outcomes, and the charges without one.
fn rest(plan: &Plan<'_>, known: &[Option<Outcome>]) -> Spent {
    let of = |place: usize| known.get(place).copied().flatten();
    let unknown = Outcome::Failed(Cause::NotUnderstood);
    let outcomes = (0..plan.charges.list.len()).map(|place| of(place).unwrap_or(unknown));
    let missing = Missing::of(&plan.charges, |place| of(place).is_none(), plan.charges.rule);
    Spent::Rest(Box::new(Rest { outcomes: outcomes.collect(), missing }))
}

/// Denies an all-or-nothing check if the cached denial of one limit is enough for that.
///
/// Otherwise returns `None`:
/// - With a refund, because refunds are made in any case.
/// - If only shadow-mode or quota limits have a cached denial.
fn whole(plan: &Plan<'_>, known: &[Option<Outcome>], quota_for_all: bool) -> Option<Spent> {
    let list = &plan.charges.list;
    let refunds = list.iter().any(|charge| matches!(charge.cost, Cost::Refund(_)));
    let denies = |(charge, outcome): (&Charge, &Option<Outcome>)| {
        outcome.is_some() && charge.standing.group == Group::Enforced && !charge.standing.shadow
    };
    if refunds || quota_for_all || !list.iter().zip(known).any(denies) {
        return None;
    }
    let settled = known.iter().map(|outcome| outcome.map_or(Settled::NotAsked, Settled::Answered));
    Some(Spent::All(settled.collect()))
}

#[cfg(test)]
mod tests;
