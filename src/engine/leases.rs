//! Manages the leases of this replica: borrows, spends and returns hits.
//!
//! Guarantees:
//! - Spending from a balance needs no store call, no wait and no allocation.
//! - A check that needs the store is charged there once, or its outcome is a failure.
//! - A check waits for the calls of other checks at most twice.
//! - After the first wait, it makes at most two calls of its own.
//! - All waits and calls of a check share one store deadline.
//! - Message numbers rise over all keys of this process, which is one replica incarnation.
//! - A lease call continues after its check is canceled, and its grant joins the balance.
//! - Hits in a message that certainly never left return to the balance.
//! - At most [`MOST_LEDGERS`] keys are leased, with at most [`MOST_BYTES`] bytes in total.
//! - New keys evict those without a check for the longest time, and their hits are returned.
//!
//! Not covered:
//! - The lease protocol and its bound (see [`crate::kernel::lease`]).
//! - The deadline of one store call, and the caller's timeout.
//! - The choice of leased limits.

mod ahead;
mod flight;
mod held;
mod question;
mod shard;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::{Mutex, MutexGuard};
use siphasher::sip128::SipHasher13;
use smallvec::smallvec;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{MissedTickBehavior, timeout};

use crate::backend::lease::{Lent, Message};
use crate::backend::{Backend, Cause, Charge, Charges, Outcome, Outcomes, Reply, Rule};
use crate::clock::Clock;
use crate::config::{Config, Limit, Mode};
use crate::kernel::decision::Cost;
use crate::kernel::key::CounterKey;
use crate::kernel::lease::{Answer, Borrow, Member, Number, Terms, with_here};
use crate::kernel::rate::{Step, Strategy};
use crate::kernel::units::{Hits, Nanos};
use crate::telemetry::event::{LeaseEnd, LeasedHits};
use flight::{Flight, Sending, together};
use held::Held;
pub use question::AllTerms;
use shard::{Ledgers, Place};

const SHARDS: usize = 256;

/// The largest number of leased keys: 256 in each of 256 shards, about 50 MB without the keys.
pub const MOST_LEDGERS: usize = SHARDS * shard::WAYS;

/// The largest total size of the keys, in bytes: 32 MiB, split evenly over the shards.
pub const MOST_BYTES: usize = SHARDS * shard::MOST_BYTES;

/// The upkeep interval, short compared with the longest lease (30 s).
const TENDED_EVERY: Duration = Duration::from_secs(1);

/// The largest number of early refills in flight. With the message that they travel with, they
/// fill one store call. More would delay the checks behind them; a later scan finds the rest.
pub const MOST_AT_LEISURE: usize = MOST_PARTINGS - 1;

/// The largest number of returning messages in flight: as many as fit in one store call.
const MOST_PARTINGS: usize = 62;

/// A counter with a leased limit. The `cost` of its charge is not used.
#[derive(Clone, Copy, Debug)]
pub struct Leased<'c> {
    /// The counter and its strategy.
    pub charge: &'c Charge,
    /// The lease settings.
    pub terms: Terms,
}

/// All leases of this replica.
#[derive(Debug)]
pub struct Leases {
    clock: Arc<Clock>,
    backend: Arc<dyn Backend>,
    member: Member,
    number: AtomicU64,
    /// The earliest instant of the next scan for early refills, in nanoseconds.
    next_look: AtomicU64,
    /// Slots for early refills in flight.
    leisure: Arc<Semaphore>,
    shards: Box<[Guarded]>,
    /// Random for each process, so that no client can choose keys that fall into one shard.
    secret: SipHasher13,
    are_asked_for: AtomicBool,
    /// `true` while draining: only checks borrow.
    is_leaving: AtomicBool,
    /// Notified when a new configuration has other leased limits.
    changed: Notify,
    /// Notified when a message is settled that delayed a return.
    awaited: Notify,
}

/// A shard with its lock, on its own cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Guarded(Mutex<Ledgers>);

/// The totals over all keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// The number of keys.
    pub keys: usize,
    /// The hits that can be spent without a store call.
    pub hits: Hits,
}

enum Turn {
    Answered(Outcome),
    Sends(Borrow),
    Waits(watch::Receiver<Option<Cause>>),
    Alone,
}

impl Leases {
    /// Creates a replica incarnation with a random number and no leases.
    #[must_use]
    pub fn new(clock: Arc<Clock>, backend: Arc<dyn Backend>) -> Arc<Self> {
        let random = RandomState::new();
        let member = Member(random.hash_one(0_u8));
        let secret = SipHasher13::new_with_keys(random.hash_one(1_u8), random.hash_one(2_u8));
        Arc::new(Self {
            clock,
            backend,
            member,
            number: AtomicU64::new(1),
            next_look: AtomicU64::new(0),
            leisure: Arc::new(Semaphore::new(MOST_AT_LEISURE)),
            shards: (0..SHARDS).map(|_| Guarded::default()).collect(),
            secret,
            are_asked_for: AtomicBool::new(false),
            is_leaving: AtomicBool::new(false),
            changed: Notify::new(),
            awaited: Notify::new(),
        })
    }

    /// Decides a check without a store call if possible, and appends the
    /// outcome to `outcomes`. Sends a background refill if one is due.
    ///
    /// Returns `None` if only the store can decide. Then the check is not recorded as demand,
    /// and the caller continues with [`Leases::ask`]. Must be called within a Tokio runtime.
    pub fn spend(
        self: &Arc<Self>,
        now: Nanos,
        leased: Leased<'_>,
        hits: Hits,
        outcomes: &mut Outcomes,
    ) -> Option<()> {
        let place = self.place(&leased.charge.key);
        let mut shard = self.shard(place);
        let held = shard.get_mut(&place).filter(|held| held.is_of(leased))?;
        outcomes.push(held.look(now, hits)?);
        held.count(now, hits);
        self.borrow_ahead(held, now);
        Some(())
    }

    /// Decides a check in one of three ways:
    ///
    /// - From the balance.
    /// - With a store call that charges the hits of the check and borrows more.
    /// - After a store call of another check that is already in flight.
    pub async fn ask(self: &Arc<Self>, leased: Leased<'_>, hits: Hits) -> Outcome {
        let end = self.end();
        // The store enforces the deadline of a first call, and counts a timeout for its health.
        match self.turn(leased, hits) {
            Turn::Answered(outcome) => outcome,
            Turn::Alone => {
                let outcome = self.charge_one(leased, hits, Rule::Each).await;
                self.reconsider(leased, hits, outcome, end).await
            }
            Turn::Sends(borrow) => {
                let lent = self.sending(leased, borrow).await;
                self.conclude(leased, hits, lent, end).await
            }
            Turn::Waits(settled) => self.ask_after(settled, leased, hits, end).await,
        }
    }

    /// Waits for another check's message, then charges the hits if the balance does not cover them.
    async fn ask_after(
        self: &Arc<Self>,
        mut settled: watch::Receiver<Option<Cause>>,
        leased: Leased<'_>,
        hits: Hits,
        end: Option<Nanos>,
    ) -> Outcome {
        let told = self.within(end, settled.changed()).await;
        let failed = match told {
            None => Some(Cause::Unsent),
            Some(Ok(())) => *settled.borrow(),
            // The lease was evicted, so there is no reply to wait for.
            Some(Err(_)) => None,
        };
        match (self.look(leased, hits), failed) {
            (Some(outcome), _) => outcome,
            // The store failed to reply once, so this check does not wait for another call.
            (None, Some(cause)) => Outcome::Failed(unsent(cause)),
            (None, None) => self.ask_again(leased, hits, end).await,
        }
    }

    /// Returns the outcome after the reply to the check's own message.
    async fn conclude(
        self: &Arc<Self>,
        leased: Leased<'_>,
        hits: Hits,
        lent: Lent,
        end: Option<Nanos>,
    ) -> Outcome {
        match lent {
            Lent::Answered(answer) => answered(leased, &answer),
            Lent::Superseded => self.charge_alone(leased, hits, end).await,
            Lent::Full(verdict) => Outcome::Full(verdict),
            Lent::Stale(now) => Outcome::Stale(now),
            Lent::Failed(cause) => Outcome::Failed(cause),
        }
    }

    /// Charges a check whose hits another check's message did not cover.
    async fn ask_again(
        self: &Arc<Self>,
        leased: Leased<'_>,
        hits: Hits,
        end: Option<Nanos>,
    ) -> Outcome {
        if self.is_over(end) {
            return Outcome::Failed(Cause::Unsent);
        }
        match self.turn_again(leased, hits) {
            Turn::Answered(outcome) => outcome,
            Turn::Sends(borrow) => {
                let lent = self.send_within(end, leased, borrow).await;
                self.conclude(leased, hits, lent, end).await
            }
            Turn::Waits(_) | Turn::Alone => self.charge_alone(leased, hits, end).await,
        }
    }

    /// Returns the result of `act`, or `None` at `end` on the steady clock.
    async fn within<T>(&self, end: Option<Nanos>, act: impl Future<Output = T>) -> Option<T> {
        let Some(end) = end else { return Some(act.await) };
        let left = Duration::from_nanos(end.since(self.clock.steady()).0);
        timeout(left, act).await.ok()
    }

    /// Returns the deadline of a check that arrives now, on the steady clock.
    fn end(&self) -> Option<Nanos> {
        self.backend.deadline().map(|deadline| self.clock.steady().plus(deadline))
    }

    fn is_over(&self, end: Option<Nanos>) -> bool {
        end.is_some_and(|end| end <= self.clock.steady())
    }

    /// Applies a new configuration. If its leased limits differ
    /// from those of `before`, all hits go back to the store soon.
    pub fn follow(&self, before: Option<&Config>, config: &Config) {
        let leased = leased_rules(config);
        self.are_asked_for.store(!leased.is_empty(), Relaxed);
        if before.is_some_and(|before| leased_rules(before) != leased) {
            self.changed.notify_one();
        }
    }

    /// Returns `true` if the configuration has a leased limit.
    #[must_use]
    pub fn are_asked_for(&self) -> bool {
        self.are_asked_for.load(Relaxed)
    }

    /// Runs the upkeep once a second, forever. Returns all hits
    /// to the store when a configuration has other leased limits.
    pub async fn tend_on(self: Arc<Self>) {
        let mut ticks = tokio::time::interval(TENDED_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = ticks.tick() => self.tend().await,
                () = self.changed.notified() => self.part(Held::leave).await,
                () = self.awaited.notified() => self.part(Held::leave_at_last).await,
            }
        }
    }

    /// Sends early refills, returns surplus hits and drops idle keys.
    pub async fn tend(self: &Arc<Self>) {
        let now = self.clock.now();
        self.borrow_at_leisure(now, None).await;
        self.part(Held::surplus).await;
        for shard in &self.shards {
            shard.0.lock().retain(|held| !held.is_idle(now));
        }
    }

    /// Returns all hits to the store for a drain, after pending replies arrive
    /// or fail. Background refills stop, because their replies would be ignored.
    pub async fn give_back(self: &Arc<Self>) {
        self.is_leaving.store(true, Relaxed);
        let mut awaited = Vec::new();
        self.part(|held, now, number| {
            let Some(settled) = held.last_wait() else {
                return held.give_back(now, number);
            };
            awaited.push(settled);
            None
        })
        .await;
        for mut settled in awaited {
            drop(settled.changed().await);
        }
        self.part(Held::give_back).await;
    }

    /// Returns the hits of `key` that can be spent without a store call.
    #[must_use]
    pub fn balance(&self, key: &CounterKey) -> Hits {
        let (now, place) = (self.clock.now(), self.place(key));
        self.shard(place).get(&place).map_or(Hits(0), |held| held.balance(now))
    }

    /// Returns the totals over all keys. Cost: O(keys); locks one shard at a time.
    #[must_use]
    pub fn sum(&self) -> Sum {
        let now = self.clock.now();
        self.shards.iter().fold(Sum::default(), |sum, shard| {
            let shard = shard.0.lock();
            let hits = shard.values().map(|held| held.balance(now)).fold(sum.hits, Hits::plus);
            Sum { keys: sum.keys + shard.len(), hits }
        })
    }

    /// Sends the messages that `take` returns, in batches.
    async fn part(&self, mut take: impl FnMut(&mut Held, Nanos, Number) -> Option<Borrow>) {
        let now = self.clock.now();
        let mut partings = Vec::new();
        for shard in &self.shards {
            for held in shard.0.lock().values_mut() {
                if let Some(parting) = take(held, now, self.next()) {
                    partings.push(self.message(held.leased(), parting));
                }
            }
            if MOST_PARTINGS <= partings.len() {
                self.tell_all(&mut partings).await;
            }
        }
        self.tell_all(&mut partings).await;
    }

    /// Sends all messages. The hits of a lost one expire with their lease.
    async fn tell_all(&self, partings: &mut Vec<Message>) {
        for some in partings.chunks(MOST_PARTINGS) {
            let tells = join_all(some.iter().map(|parting| self.tell(parting)));
            together(&*self.backend, tells).await;
        }
        partings.clear();
    }

    fn turn(self: &Arc<Self>, leased: Leased<'_>, hits: Hits) -> Turn {
        let (now, place) = (self.clock.now(), self.place(&leased.charge.key));
        let mut shard = self.shard(place);
        let is_held = shard.get(&place).is_some_and(|held| held.is_of(leased));
        if !is_held && hits == Hits(0) || awaits_another(&shard, place, leased) {
            return Turn::Alone;
        }
        let before = if is_held { None } else { self.begin(&mut shard, place, leased, now) };
        let Some(held) = shard.get_mut(&place) else {
            self.tell_later(before);
            return Turn::Alone;
        };
        held.count(now, hits);
        if let Some(outcome) = held.look(now, hits) {
            self.borrow_ahead(held, now);
            return Turn::Answered(outcome);
        }
        if hits == Hits(0) {
            return Turn::Alone;
        }
        match held.borrow(now, self.next(), hits) {
            // One message replaces two, because the store
            // ignores a message older than the last one.
            Some(borrow) => Turn::Sends(match before {
                Some((_, parting)) => borrow.with_returned(&parting),
                None => borrow,
            }),
            None => Turn::Waits(held.wait()),
        }
    }

    /// Creates a lease for the key, if the shard has room.
    ///
    /// It replaces a lease of the same key under other settings, for example from before a reload.
    /// That lease must have no pending reply. Returns it with the message that returns its hits.
    fn begin(
        self: &Arc<Self>,
        shard: &mut Ledgers,
        place: Place,
        leased: Leased<'_>,
        now: Nanos,
    ) -> Option<(Held, Borrow)> {
        let before = shard.remove(&place).and_then(|before| self.dismissed(before, now));
        for gone in shard.insert(place, Held::new(leased, now, self.next())) {
            self.tell_later(self.dismissed(gone, now));
        }
        before
    }

    /// Returns a removed lease with the message that returns its hits, if it has any.
    fn dismissed(&self, mut gone: Held, now: Nanos) -> Option<(Held, Borrow)> {
        let parting = gone.give_back(now, self.next())?;
        Some((gone, parting))
    }

    fn tell_later(self: &Arc<Self>, parting: Option<(Held, Borrow)>) {
        if let Some((gone, parting)) = parting {
            let (all, message) = (Arc::clone(self), self.message(gone.leased(), parting));
            tokio::spawn(async move { all.tell(&message).await });
        }
    }

    fn is_leaving(&self) -> bool {
        self.is_leaving.load(Relaxed)
    }

    fn look(&self, leased: Leased<'_>, hits: Hits) -> Option<Outcome> {
        let (now, place) = (self.clock.now(), self.place(&leased.charge.key));
        let mut shard = self.shard(place);
        shard.get_mut(&place).filter(|held| held.is_of(leased))?.look(now, hits)
    }

    /// Sends the message of a check. The call continues after the check is
    /// canceled, because otherwise its grant would be charged and never spent.
    fn sending(self: &Arc<Self>, leased: Leased<'_>, borrow: Borrow) -> Sending {
        let (all, message) = (Arc::clone(self), self.message(leased, borrow));
        Sending::new(async move { all.send(&message).await })
    }

    /// Sends the message of a check, and waits for the reply until `end`.
    async fn send_within(
        self: &Arc<Self>,
        end: Option<Nanos>,
        leased: Leased<'_>,
        borrow: Borrow,
    ) -> Lent {
        let lent = self.within(end, self.sending(leased, borrow)).await;
        lent.unwrap_or(Lent::Failed(Cause::Late))
    }

    async fn send(&self, message: &Message) -> Lent {
        let mut flight = Flight::of(self, message);
        let lent = self.tell(message).await;
        flight.land(lent);
        lent
    }

    fn message(&self, leased: Leased<'_>, borrow: Borrow) -> Message {
        let (terms, member) = (leased.terms, self.member);
        let Charge { key, home, strategy, per_second, .. } = leased.charge.clone();
        Message { key, home, per_second, strategy, terms, member, borrow }
    }

    async fn tell(&self, message: &Message) -> Lent {
        let (lent, is_unsent) = match self.backend.borrow(self.clock.now(), message) {
            Reply::Now(lent) => (lent, matches!(lent, Lent::Failed(_))),
            Reply::Later(later) => {
                let lent = later.await;
                (lent, waited_in_vain(lent))
            }
        };
        if is_unsent {
            self.take_back(&message.key, message.borrow.number);
            return lent;
        }
        LeasedHits { hits: message.borrow.returned, end: LeaseEnd::GivenBack }.emit();
        if let Lent::Answered(Answer { granted, .. }) = lent {
            LeasedHits { hits: granted, end: LeaseEnd::Borrowed }.emit();
        }
        lent
    }

    fn take_back(&self, key: &CounterKey, number: Number) {
        let (now, place) = (self.clock.now(), self.place(key));
        if let Some(held) = self.shard(place).get_mut(&place) {
            held.unsent(now, number);
        }
    }

    async fn charge_alone(
        self: &Arc<Self>,
        leased: Leased<'_>,
        hits: Hits,
        end: Option<Nanos>,
    ) -> Outcome {
        if self.is_over(end) {
            return Outcome::Failed(Cause::Unsent);
        }
        let outcome = self.within(end, self.charge_one(leased, hits, Rule::Each)).await;
        let outcome = outcome.unwrap_or(Outcome::Failed(Cause::Late));
        self.reconsider(leased, hits, outcome, end).await
    }

    /// Reconsiders a strict denial. The missing hits may be in this replica's balance, or in a
    /// reply on its way. Then the balance decides, or is returned together with a second charge.
    async fn reconsider(
        self: &Arc<Self>,
        leased: Leased<'_>,
        hits: Hits,
        outcome: Outcome,
        end: Option<Nanos>,
    ) -> Outcome {
        if !matches!(outcome, Outcome::Stepped(Step::Deny { .. })) {
            return outcome;
        }
        if let Some(mut settled) = self.awaited(leased)
            && self.within(end, settled.changed()).await.is_none()
        {
            return outcome;
        }
        // A fixed window counts denied hits, so the store has no hits left now.
        let is_worth_it = self.balance(&leased.charge.key) != Hits(0)
            && !self.is_over(end)
            && !matches!(leased.charge.strategy, Strategy::FixedWindow(_));
        let turn = if is_worth_it {
            self.turn_again(leased, hits)
        } else {
            self.look(leased, hits).map_or(Turn::Alone, Turn::Answered)
        };
        match turn {
            Turn::Answered(held @ Outcome::Stepped(Step::Admit(_))) => held,
            Turn::Sends(borrow) => match self.send_within(end, leased, borrow).await {
                Lent::Answered(answer) => answered(leased, &answer),
                _ => outcome,
            },
            Turn::Answered(_) | Turn::Waits(_) | Turn::Alone => outcome,
        }
    }

    /// Returns the next step of a check that is already recorded.
    ///
    /// Checking the balance and writing the message are one step. The message
    /// returns the whole balance, which another reply may have refilled meanwhile.
    fn turn_again(&self, leased: Leased<'_>, hits: Hits) -> Turn {
        let (now, place) = (self.clock.now(), self.place(&leased.charge.key));
        let mut shard = self.shard(place);
        let Some(held) = shard.get_mut(&place).filter(|held| held.is_of(leased)) else {
            return Turn::Alone;
        };
        if let Some(outcome) = held.look(now, hits) {
            return Turn::Answered(outcome);
        }
        held.borrow(now, self.next(), hits).map_or(Turn::Alone, Turn::Sends)
    }

    fn awaited(&self, leased: Leased<'_>) -> Option<watch::Receiver<Option<Cause>>> {
        let place = self.place(&leased.charge.key);
        let shard = self.shard(place);
        shard.get(&place).filter(|held| held.is_of(leased) && held.awaits()).map(Held::wait)
    }

    async fn charge_one(&self, leased: Leased<'_>, hits: Hits, rule: Rule) -> Outcome {
        let charge = Charge { cost: Cost::Charge(hits), ..leased.charge.clone() };
        let charges = Charges { list: smallvec![charge], rule };
        let before = self.held(self.clock.now(), leased);
        let outcomes = self.charge_plainly(self.clock.now(), &charges).await;
        let outcome = outcomes.first().copied().unwrap_or(Outcome::Failed(Cause::NotUnderstood));
        self.with_balance(leased, before, outcome)
    }

    /// Adds the local balance to the headroom in a store outcome. Only hits that were also in
    /// the balance `before` the call are added: the store's headroom may include later grants.
    fn with_balance(&self, leased: Leased<'_>, before: Hits, outcome: Outcome) -> Outcome {
        let Outcome::Stepped(step) = outcome else { return outcome };
        let here = before.min(self.held(self.clock.now(), leased));
        Outcome::Stepped(with_here(step, here, most(leased)))
    }

    async fn charge_plainly(&self, now: Nanos, charges: &Charges) -> Outcomes {
        match self.backend.charge(now, charges) {
            Reply::Now(outcomes) => outcomes,
            Reply::Later(later) => later.await,
        }
    }

    fn next(&self) -> Number {
        Number(self.number.fetch_add(1, Relaxed))
    }

    fn place(&self, key: &CounterKey) -> Place {
        let hash = self.secret.hash(key.as_bytes());
        [hash.h1, hash.h2]
    }

    fn shard(&self, place: Place) -> MutexGuard<'_, Ledgers> {
        let index = usize::try_from(place[0] % SHARDS as u64).unwrap_or(0);
        self.shards[index].0.lock()
    }
}

/// Returns `true` if the key has a lease of another limit with a pending reply. A
/// new message would supersede the pending one, and nobody would return its grant.
fn awaits_another(shard: &Ledgers, place: Place, leased: Leased<'_>) -> bool {
    shard.get(&place).is_some_and(|held| !held.is_of(leased) && held.awaits())
}

/// Returns the outcome after a reply, with the headroom as this replica sees it.
fn answered(leased: Leased<'_>, answer: &Answer) -> Outcome {
    Outcome::Stepped(answer.step_here(most(leased)))
}

fn most(leased: Leased<'_>) -> Hits {
    Hits(leased.charge.strategy.most().into())
}

/// Returns `true` if the message certainly never left. `Unreachable` does
/// not count: the message may have been written to the lost connection.
const fn waited_in_vain(lent: Lent) -> bool {
    matches!(lent, Lent::Failed(Cause::Overloaded | Cause::BreakerOpen))
}

/// Returns the failure for a check that waited for a
/// failed message. Its own hits were not in that message.
const fn unsent(cause: Cause) -> Cause {
    match cause {
        Cause::Cut | Cause::Late | Cause::NotUnderstood => Cause::Unsent,
        cause => cause,
    }
}

/// Returns the leased limits with the paths of their rules, in order.
fn leased_rules(config: &Config) -> Vec<(&str, &Limit)> {
    let rules = config.domains.values().flat_map(|domain| domain.tree.rules());
    let leased = rules.filter_map(|rule| Some((&*rule.path, rule.limit.as_ref()?)));
    let mut leased: Vec<_> =
        leased.filter(|(_, limit)| matches!(limit.mode, Mode::Leased(_))).collect();
    leased.sort_by_key(|(path, _)| *path);
    leased
}
