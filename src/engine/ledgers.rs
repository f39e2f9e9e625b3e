//! What this replica knows of shared counters without asking: denials that are not over yet.
//!
//! Guarantees: an answer given here is one that the store would have given, had nobody given hits
//! back or changed the limit elsewhere meanwhile: a denial is remembered for limits that say
//! `cached_deny`, until the hits it denied would pass, counted from when the question was sent;
//! for at least as many hits; never for none and never for a refund. Where it may be due to hits that
//! another question only holds, it is for no longer than a hold may last. It is forgotten with the
//! configuration that it was given under, and at a refund to its counter through this replica. At
//! most 65,536 counters are known, some 12 MB: in [`SHARDS`] shards of [`WAYS`]; where a new one
//! finds no room, the one of its shard whose denial ends first goes.
//! Leaves out: limits that are `strict`, for which nothing is looked up; asking the store.

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

/// Shards, each with a lock of its own.
const SHARDS: usize = 4096;

/// The most counters of one shard: few enough to look at each.
const WAYS: usize = 16;

/// The ledgers of all counters.
#[derive(Debug)]
pub(super) struct Ledgers {
    shards: Box<[Mutex<Shard>]>,
    /// Whether anything was ever remembered: until then a refund has nothing to drop.
    in_use: AtomicBool,
    /// Secret per process, so that nobody can aim keys at one shard.
    secret: [u8; 16],
}

/// What the ledgers make of a question.
pub(super) enum Spent {
    /// Every charge is settled.
    All(SmallVec<[Settled; 2]>),
    /// What is known, and what is to be asked.
    Rest(Box<Rest>),
}

/// A question that is to be asked, or a part of it.
pub(super) struct Rest {
    /// One per charge; a failure where it is not known.
    pub(super) outcomes: Outcomes,
    /// What is to be asked.
    pub(super) missing: Missing,
}

#[derive(Debug, Default)]
struct Shard {
    ledgers: Vec<Ledger>,
    /// The last refund to a counter of this shard. A denial of a question that was sent before it
    /// may be of before it, and is not remembered.
    refunded: Nanos,
}

/// What is known of one counter.
#[derive(Debug)]
struct Ledger {
    hash: [u64; 2],
    /// The limit that it was asked under.
    under: (Revision, Strategy),
    denial: Denial,
}

/// A denial; instants are this process's own.
#[derive(Clone, Copy, Debug)]
struct Denial {
    /// How many hits were denied.
    hits: Hits,
    /// When they may pass if the store answered at once, or if what is held is given back: always early.
    over: Nanos,
    /// When they pass for certain: callers are told this, so that none comes back too soon.
    passes: Nanos,
    remaining: Hits,
    rested: Nanos,
}

/// When a question was sent, when its answer was there, and the configuration it lives under.
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

    /// Whether `plan` has anything to do with ledgers.
    pub(super) fn concern(&self, plan: &Plan<'_>) -> bool {
        let refunds = || plan.charges.list.iter().any(|c| matches!(c.cost, Cost::Refund(_)));
        plan.parts.iter().any(is_cached) || self.in_use.load(Relaxed) && refunds()
    }

    /// What is known of `plan`'s charges at `now`.
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

    /// Learns from what the store answered to `plan`'s charges; `asked` says which went there, and
    /// `held_for` how long a denial of one that is charged as one may be due to a hold.
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
    /// Puts `new` in; of two denials of one counter the one for fewer hits answers more questions.
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
    /// What the store would answer, if that is known.
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

    /// The same of hits that may be due to a hold, which is over so long after they were asked for.
    fn held(self, held_for: Option<Nanos>, call: Call) -> Self {
        let over = held_for.map_or(self.over, |held_for| call.sent.plus(held_for).min(self.over));
        Self { over, ..self }
    }
}

fn is_cached(part: &Part<'_>) -> bool {
    part.mode() == Mode::CachedDeny
}

/// The charges of `plan`, each with its part.
fn charges<'p>(plan: &'p Plan<'_>) -> impl Iterator<Item = (&'p Part<'p>, &'p Charge)> {
    let parts = plan.parts.iter().filter(|part| part.is_charged());
    parts.zip(&plan.charges.list)
}

/// The hits that were denied at `place`. Where nothing is charged unless all is, or nothing at all, they are
/// asked together with what stands before them for the same counter.
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

/// Each charge that is not known is asked.
fn rest(plan: &Plan<'_>, known: &[Option<Outcome>]) -> Spent {
    let of = |place: usize| known.get(place).copied().flatten();
    let unknown = Outcome::Failed(Cause::NotUnderstood);
    let outcomes = (0..plan.charges.list.len()).map(|place| of(place).unwrap_or(unknown));
    let missing = Missing::of(&plan.charges, |place| of(place).is_none(), plan.charges.rule);
    Spent::Rest(Box::new(Rest { outcomes: outcomes.collect(), missing }))
}

/// A question that is denied as a whole, because one of its limits is known to deny it: nothing is
/// charged, and the others need not be asked. With a refund in it, which is made all the same, or
/// where the denial is not enforced by itself, it is asked.
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
