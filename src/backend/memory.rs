//! Counters in this process: the default store.
//!
//! Guarantees:
//! - Each charge runs under the lock of its shard, so concurrent checks count exactly.
//! - At most `max_keys` counters exist; [`WhenFull`] decides further new keys.
//! - Sweeps drop empty counters, one shard at a time.
//! - A key's leases are listed beside its counter, under the same lock.
//! - A lease list uses one of the `max_keys` places; without one nothing is lent.
//!
//! Not covered:
//! - Restarts, which lose all counters.
//! - Limits shared with other replicas.
//!
//! Memory: 32 bytes for a GCRA counter and 40 bytes for a window counter. The hash tables are
//! 53 % to 80 % full. A log also stores its arrivals (see [`crate::kernel::rate::sliding_log`]).

mod books;
pub mod coordinators;
mod counters;
pub mod permits;
mod shapes;
mod shard;
mod table;

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};
use siphasher::sip128::SipHasher13;
use smallvec::SmallVec;

use super::heartbeat::{Heard, Round};
use super::lease::{Lent, Message};
use super::permits::{Acquire, AllHeard, Answer as Permitted, Round as Telling};
use super::{Backend, Cause, Charge, Charges, Outcome, Outcomes, Reply, Rule};
use crate::kernel::decision::{Cost, Group, Verdict, combine};
use crate::kernel::key::CounterKey;
use crate::kernel::lease::Answer;
use crate::kernel::rate::{Step, Strategy};
use crate::kernel::units::{Hits, Nanos};
use crate::telemetry::event::StoreFull;
use coordinators::Coordinators;
use counters::{Counters, Places, Reserved};
use permits::Strict;
use shard::{Shard, makes_one};
use table::KeyHash;

/// The number of shards. A sweep locks one shard, so it stays short with millions of keys.
const SHARDS: usize = 1024;

/// The verdict for a new key when the store is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// Deny the check, because its hits cannot be counted.
    #[default]
    Deny,
    /// Allow the check without counting it.
    Allow,
}

impl WhenFull {
    const fn verdict(self) -> Verdict {
        match self {
            Self::Deny => Verdict::Deny,
            Self::Allow => Verdict::Admit,
        }
    }
}

/// The store in this process.
#[derive(Debug)]
pub struct Memory {
    shards: Box<[Guarded]>,
    /// Keyed with a secret of the process: a client
    /// cannot aim keys at one shard or make keys collide.
    hasher: SipHasher13,
    counters: Counters,
    when_full: WhenFull,
    next_to_sweep: AtomicUsize,
    refused: AtomicU64,
    /// Coordinators of the concurrency limits that replicas in this process share.
    coordinators: Mutex<Coordinators>,
    /// Permits of the strict concurrency limits of replicas in this process.
    strict: Mutex<Strict>,
}

// Two shards on one cache line would slow down threads that use different
// shards. The alignment is two lines, because processors fetch lines in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Guarded(Mutex<Shard>);

impl Memory {
    /// Creates an empty store for at most `max_keys` counters.
    #[must_use]
    pub fn new(max_keys: usize, when_full: WhenFull, secret: [u8; 16]) -> Self {
        Self {
            shards: (0..SHARDS).map(|_| Guarded::default()).collect(),
            hasher: SipHasher13::new_with_key(&secret),
            counters: Counters::new(max_keys),
            when_full,
            next_to_sweep: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            coordinators: Mutex::new(Coordinators::settled()),
            strict: Mutex::new(Strict::settled()),
        }
    }

    /// Returns the number of counters.
    pub fn live_keys(&self) -> usize {
        self.counters.live()
    }

    /// Returns the maximum number of counters.
    pub fn max_keys(&self) -> usize {
        self.counters.most()
    }

    /// Returns how many times a new key found the store full.
    pub fn times_full(&self) -> u64 {
        self.refused.load(Relaxed)
    }

    /// Drops the empty counters of the next shard. `Memory::SHARDS` calls
    /// visit every shard. Cost: O(counters in that shard), under its lock.
    pub fn sweep_next(&self, now: Nanos) {
        let index = self.next_to_sweep.fetch_add(1, Relaxed) % SHARDS;
        if let Some(shard) = self.shards.get(index) {
            shard.0.lock().sweep(now, &self.counters);
        }
    }

    /// Drops every counter, one shard at a time.
    pub fn clear(&self) {
        for shard in &self.shards {
            shard.0.lock().clear(&self.counters);
        }
    }

    /// The number of [`Memory::sweep_next`] calls that visit every shard.
    pub const SHARDS: usize = SHARDS;

    fn hash(&self, key: &CounterKey) -> KeyHash {
        let hash = self.hasher.hash(key.as_bytes());
        let rest = NonZeroU64::new(hash.h2).unwrap_or(NonZeroU64::MIN);
        KeyHash { place: hash.h1, rest }
    }

    fn shard_of(hash: KeyHash) -> usize {
        usize::try_from(hash.place % SHARDS as u64).unwrap_or(0)
    }

    fn lock(&self, index: usize) -> MutexGuard<'_, Shard> {
        self.shards[index].0.lock()
    }

    fn each(&self, now: Nanos, charges: &[Charge]) -> Reply<'_, Outcomes> {
        // Fill the reply in place, because a finished list is slow to move.
        let mut reply = Reply::Now(Outcomes::new());
        let Reply::Now(outcomes) = &mut reply else { return reply };
        for charge in charges {
            let hash = self.hash(&charge.key);
            let mut shard = self.lock(Self::shard_of(hash));
            shard.sweep_if_full(now, &self.counters);
            outcomes.push(self.put(&mut shard, hash, now, charge, &self.counters));
        }
        reply
    }

    fn put(
        &self,
        shard: &mut Shard,
        hash: KeyHash,
        now: Nanos,
        charge: &Charge,
        places: &impl Places,
    ) -> Outcome {
        let step = shard.charge(hash, now, &charge.strategy, charge.cost, places);
        match (step, charge.cost) {
            (Ok(step), Cost::Charge(_)) => Outcome::Stepped(step),
            (Ok(step), Cost::Refund(_)) => Outcome::Refunded(step),
            (Err(_full), _) => self.full(),
        }
    }

    #[cold]
    fn full(&self) -> Outcome {
        Outcome::Full(self.refuse())
    }

    fn refuse(&self) -> Verdict {
        let verdict = self.when_full.verdict();
        self.refused.fetch_add(1, Relaxed);
        StoreFull { verdict }.emit();
        verdict
    }

    fn lend(&self, now: Nanos, message: &Message) -> Lent {
        let hash = self.hash(&message.key);
        let lent = self.lock(Self::shard_of(hash)).borrow(hash, now, message, &self.counters);
        match lent {
            Ok(Some(Answer { step: Step::Stale, .. })) => Lent::Stale(now),
            Ok(Some(answer)) => Lent::Answered(answer),
            Ok(None) => Lent::Superseded,
            Err(_full) => Lent::Full(self.refuse()),
        }
    }

    /// Makes all charges if `admits` accepts their trial
    /// outcomes, else none. Makes refunds in any case.
    fn together(
        &self,
        now: Nanos,
        charges: &[Charge],
        admits: impl FnOnce(&Outcomes) -> bool,
    ) -> Outcomes {
        let hashes: SmallVec<[KeyHash; 2]> = charges.iter().map(|c| self.hash(&c.key)).collect();
        let mut locked = Locked::all(self, &hashes);
        locked.sweep_if_full(now, &self.counters);
        let (places, rooms) = self.rooms(&mut locked, charges, &hashes);
        let asked: Outcomes = (0..charges.len())
            .map(|i| self.ask(locked.of(hashes[i]), now, (charges, &hashes), i, rooms[i]))
            .collect();
        let admitted = admits(&asked);
        let settle = |(i, charge): (usize, &Charge)| {
            let shard = locked.of(hashes[i]);
            match charge.cost {
                Cost::Charge(_) if !admitted => {
                    self.spared(shard, hashes[i], now, charge, asked[i])
                }
                Cost::Charge(_) | Cost::Refund(_) => {
                    self.put(shard, hashes[i], now, charge, &places)
                }
            }
        };
        charges.iter().enumerate().map(settle).collect()
    }

    /// Reserves places for the new counters of `charges`. The list
    /// is false for each charge whose new counter has no place.
    fn rooms(
        &self,
        locked: &mut Locked<'_>,
        charges: &[Charge],
        hashes: &[KeyHash],
    ) -> (Reserved<'_>, SmallVec<[bool; 2]>) {
        let mut new: SmallVec<[KeyHash; 2]> = SmallVec::new();
        for (charge, &hash) in charges.iter().zip(hashes) {
            if makes_one(charge.cost) && !locked.of(hash).knows(hash) && !new.contains(&hash) {
                new.push(hash);
            }
        }
        let places = self.counters.reserve(new.len());
        let without = &new[places.left()..];
        let has_room = |(charge, hash): (&Charge, &KeyHash)| {
            !makes_one(charge.cost) || !without.contains(hash)
        };
        let rooms = charges.iter().zip(hashes).map(has_room).collect();
        (places, rooms)
    }

    /// Computes the outcome of charge `i` after all charges before it. A refund always succeeds.
    fn ask(
        &self,
        shard: &Shard,
        now: Nanos,
        (charges, hashes): (&[Charge], &[KeyHash]),
        i: usize,
        has_room: bool,
    ) -> Outcome {
        let Cost::Charge(hits) = charges[i].cost else {
            return Outcome::Refunded(shard.ask(hashes[i], now, &charges[i].strategy, Hits(0)));
        };
        if !has_room {
            let alone = shard.ask(hashes[i], now, &charges[i].strategy, hits);
            return if makes_a_counter(&charges[i].strategy, alone) {
                Outcome::Full(self.when_full.verdict())
            } else {
                Outcome::Stepped(alone)
            };
        }
        let earlier =
            (0..i).filter(|&j| hashes[j] == hashes[i]).filter_map(|j| match charges[j].cost {
                Cost::Charge(hits) => Some(hits),
                Cost::Refund(_) => None,
            });
        let together = earlier.fold(hits, Hits::plus);
        Outcome::Stepped(shard.ask(hashes[i], now, &charges[i].strategy, together))
    }

    /// Returns the outcome of a skipped charge: its own denial, or the hits that remain without it.
    fn spared(
        &self,
        shard: &Shard,
        hash: KeyHash,
        now: Nanos,
        charge: &Charge,
        asked: Outcome,
    ) -> Outcome {
        match asked {
            Outcome::Full(_) => self.full(),
            asked if asked.denies() => asked,
            _ => Outcome::Stepped(shard.ask(hash, now, &charge.strategy, Hits(0))),
        }
    }
}

/// Returns true if `step` leaves a counter to store. Without one, the charge needs no place.
const fn makes_a_counter(strategy: &Strategy, step: Step) -> bool {
    match step {
        Step::Admit(_) | Step::Deny { .. } => true,
        // Fixed windows also count denied hits.
        Step::Never(_) => matches!(strategy, Strategy::FixedWindow(_)),
        Step::Stale => false,
    }
}

/// Decides an all-or-nothing check from the trial outcomes of its charges.
fn admits(charges: &[Charge], asked: &[Outcome], quota_for_all: bool, rescued: bool) -> bool {
    let votes = charges.iter().zip(asked).map(|(charge, outcome)| {
        (charge.standing.group, charge.standing.verdict(outcome.denies()))
    });
    let passed = rescued.then_some((Group::Quota, Verdict::Admit));
    combine(votes.chain(passed), quota_for_all) == Verdict::Admit
}

impl Backend for Memory {
    fn is_at_hand(&self) -> bool {
        true
    }

    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> Reply<'a, Outcomes> {
        let list = &charges.list;
        match charges.rule {
            Rule::AllOrNothing { quota_for_all, rescued } => {
                Reply::Now(
                    self.together(now, list, |asked| admits(list, asked, quota_for_all, rescued)),
                )
            }
            Rule::Each => self.each(now, list),
            Rule::Ask => Reply::Now(self.together(now, list, |_asked| false)),
        }
    }

    fn borrow<'a>(&'a self, now: Nanos, message: &'a Message) -> Reply<'a, Lent> {
        Reply::Now(self.lend(now, message))
    }

    fn heartbeat<'a>(&'a self, now: Nanos, round: &'a Round) -> Reply<'a, Result<Heard, Cause>> {
        Reply::Now(Ok(self.coordinators.lock().hear(now, "", round)))
    }

    fn acquire<'a>(
        &'a self,
        now: Nanos,
        asked: &'a Acquire,
    ) -> Reply<'a, Result<Permitted, Cause>> {
        Reply::Now(Ok(self.strict.lock().acquire(now, "", asked)))
    }

    fn tell<'a>(&'a self, now: Nanos, round: &'a Telling) -> Reply<'a, AllHeard> {
        Reply::Now(self.strict.lock().tell(now, "", round).into_iter().map(Ok).collect())
    }
}

struct Locked<'m>(SmallVec<[(usize, MutexGuard<'m, Shard>); 2]>);

impl<'m> Locked<'m> {
    /// Locks the shards in ascending order, so that two checks cannot deadlock.
    fn all(memory: &'m Memory, hashes: &[KeyHash]) -> Self {
        let mut indices: SmallVec<[usize; 2]> =
            hashes.iter().map(|&hash| Memory::shard_of(hash)).collect();
        indices.sort_unstable();
        indices.dedup();
        Self(indices.into_iter().map(|index| (index, memory.lock(index))).collect())
    }

    fn sweep_if_full(&mut self, now: Nanos, counters: &Counters) {
        self.0.iter_mut().for_each(|(_, shard)| shard.sweep_if_full(now, counters));
    }

    fn of(&mut self, hash: KeyHash) -> &mut Shard {
        let index = Memory::shard_of(hash);
        let at = self.0.partition_point(|(locked, _)| *locked < index);
        &mut self.0[at].1
    }
}
