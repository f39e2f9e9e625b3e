//! What this replica holds of shared counters: borrowed, spent, given back.
//!
//! Guarantees: what is spent from a balance takes no call, no wait and no allocation; a question that
//! the store has to be asked for is charged there once, or not known to be; one that is charged by itself and waits for another's
//! message asks at most twice more, the second time only with what came meanwhile, and waits at most once more; all of it is within one deadline of the backend's; messages
//! are numbered over all keys of this process, which is a
//! member of its own; a message goes on though who asked gives up, and what it brings is held; what went with one that surely
//! never left is held as before. At most [`MOST_LEDGERS`] keys of at most
//! [`MOST_BYTES`] are held: where a new one finds no room, those that nobody asked for longest give back and go.
//! Leaves out: the deadline of one call, which is the backend's; the caller's; which limits are leased.

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

/// The most keys that are held at one time: 256 in each of 256 shards, some 50 MB beside the keys.
pub const MOST_LEDGERS: usize = SHARDS * shard::WAYS;

/// The most bytes of their keys, 32 MiB: as much in each shard.
pub const MOST_BYTES: usize = SHARDS * shard::MOST_BYTES;

/// A small part of the longest lease.
const TENDED_EVERY: Duration = Duration::from_secs(1);

/// The most messages on their way at one time that borrow at leisure, which with the one that they travel with is what goes
/// in one call: behind thousands, whoever asks the store meanwhile would be late. The others are found at the next look.
pub const MOST_AT_LEISURE: usize = MOST_PARTINGS - 1;

/// Messages that give back, on their way at one time: what goes in one call.
const MOST_PARTINGS: usize = 62;

/// A counter that is leased, and how. What the charge costs is said apart from it.
#[derive(Clone, Copy, Debug)]
pub struct Leased<'c> {
    /// Which counter, and how it counts.
    pub charge: &'c Charge,
    /// What leases of it are granted under.
    pub terms: Terms,
}

/// All that this replica holds.
#[derive(Debug)]
pub struct Leases {
    clock: Arc<Clock>,
    backend: Arc<dyn Backend>,
    member: Member,
    number: AtomicU64,
    /// When all ledgers may be looked at again, in nanoseconds.
    next_look: AtomicU64,
    /// Turns to borrow at leisure.
    leisure: Arc<Semaphore>,
    shards: Box<[Guarded]>,
    /// Secret per process, so that nobody can aim keys at one shard.
    secret: SipHasher13,
    /// Whether the limits in force have any that is leased.
    are_asked_for: AtomicBool,
    /// All is given back for good: nothing is borrowed but for questions.
    is_leaving: AtomicBool,
    /// Other leased limits came into force.
    changed: Notify,
    /// A message was settled that what is to be given back had to wait for.
    awaited: Notify,
}

/// A shard and its lock, on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Guarded(Mutex<Ledgers>);

/// What is held of all keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Keys that a ledger is kept of.
    pub keys: usize,
    /// Hits that may be spent without asking.
    pub hits: Hits,
}

/// What a question that the balance does not answer does.
enum Turn {
    Answered(Outcome),
    Sends(Borrow),
    Waits(watch::Receiver<Option<Cause>>),
    Alone,
}

impl Leases {
    /// A member that holds nothing, with a name of its own.
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

    /// Answers a question where that takes no call, and borrows ahead in the background where it is
    /// time to: its outcome comes to `outcomes`. Nothing where the store has to be asked, and then nothing is counted:
    /// [`Leases::ask`].
    ///
    /// Must be called within a runtime.
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

    /// Answers a question: from the balance; by the store, which is asked for the question's own hits
    /// and for a lease; or with what a message that is on its way already brings.
    pub async fn ask(self: &Arc<Self>, leased: Leased<'_>, hits: Hits) -> Outcome {
        let end = self.end();
        // The backend sees to the deadline of a first call, and learns from it.
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

    /// Waits for another's message, and asks for what it does not bring.
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
            // The ledger is gone, which is as good as an answer.
            Some(Err(_)) => None,
        };
        match (self.look(leased, hits), failed) {
            (Some(outcome), _) => outcome,
            // The store did not answer one question, and another is not made to wait for it.
            (None, Some(cause)) => Outcome::Failed(unsent(cause)),
            (None, None) => self.ask_again(leased, hits, end).await,
        }
    }

    /// What the answer to a question's own message comes to.
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

    /// Asks for what another's message did not bring.
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

    /// What `act` comes to, if it does before `end`, which is by the steady clock.
    async fn within<T>(&self, end: Option<Nanos>, act: impl Future<Output = T>) -> Option<T> {
        let Some(end) = end else { return Some(act.await) };
        let left = Duration::from_nanos(end.since(self.clock.steady()).0);
        timeout(left, act).await.ok()
    }

    /// When a question that comes now has to be answered, by the steady clock.
    fn end(&self) -> Option<Nanos> {
        self.backend.deadline().map(|deadline| self.clock.steady().plus(deadline))
    }

    fn is_over(&self, end: Option<Nanos>) -> bool {
        end.is_some_and(|end| end <= self.clock.steady())
    }

    /// Takes other limits into force: where leased ones are not as `before`, all is given back soon.
    pub fn follow(&self, before: Option<&Config>, config: &Config) {
        let leased = leased_rules(config);
        self.are_asked_for.store(!leased.is_empty(), Relaxed);
        if before.is_some_and(|before| leased_rules(before) != leased) {
            self.changed.notify_one();
        }
    }

    /// Whether any limit in force is leased.
    #[must_use]
    pub fn are_asked_for(&self) -> bool {
        self.are_asked_for.load(Relaxed)
    }

    /// Tends what is held, once a second, and gives all back when leased limits changed; for ever.
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

    /// Borrows what will soon be asked for, gives back what will not be, and forgets keys that nobody asks for.
    pub async fn tend(self: &Arc<Self>) {
        let now = self.clock.now();
        self.borrow_at_leisure(now, None).await;
        self.part(Held::surplus).await;
        for shard in &self.shards {
            shard.0.lock().retain(|held| !held.is_idle(now));
        }
    }

    /// Gives everything back: at a drain. Where an answer is awaited, once it is there or lost; in the background no other
    /// is asked for any more, which would be ignored.
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

    /// Hits that this replica may spend of a key without asking.
    #[must_use]
    pub fn balance(&self, key: &CounterKey) -> Hits {
        let (now, place) = (self.clock.now(), self.place(key));
        self.shard(place).get(&place).map_or(Hits(0), |held| held.balance(now))
    }

    /// What is held. Cost: O(keys), a shard at a time.
    #[must_use]
    pub fn sum(&self) -> Sum {
        let now = self.clock.now();
        self.shards.iter().fold(Sum::default(), |sum, shard| {
            let shard = shard.0.lock();
            let hits = shard.values().map(|held| held.balance(now)).fold(sum.hits, Hits::plus);
            Sum { keys: sum.keys + shard.len(), hits }
        })
    }

    /// Sends what `take` takes out of each ledger, many at one time.
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

    /// What does not arrive is void at the end of its term.
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
            // One message: the store takes no older one after it.
            Some(borrow) => Turn::Sends(match before {
                Some((_, parting)) => borrow.with_returned(&parting),
                None => borrow,
            }),
            None => Turn::Waits(held.wait()),
        }
    }

    /// Begins a ledger, where there is room for one; with the message that gives back what one of the same key
    /// under other numbers holds, such as those of the limit before a reload. That one awaits no answer.
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

    /// What a ledger that is gone gives back.
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

    /// Sends a message for a question. It goes on without who asked: given up before its own deadline, what it
    /// brings would be charged and spent by nobody.
    fn sending(self: &Arc<Self>, leased: Leased<'_>, borrow: Borrow) -> Sending {
        let (all, message) = (Arc::clone(self), self.message(leased, borrow));
        Sending::new(async move { all.send(&message).await })
    }

    /// The same, of which who asked hears until `end`.
    async fn send_within(
        self: &Arc<Self>,
        end: Option<Nanos>,
        leased: Leased<'_>,
        borrow: Borrow,
    ) -> Lent {
        let lent = self.within(end, self.sending(leased, borrow)).await;
        lent.unwrap_or(Lent::Failed(Cause::Late))
    }

    /// Sends a message and settles its answer.
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

    /// A message never left: what went with it is held as before.
    fn take_back(&self, key: &CounterKey, number: Number) {
        let (now, place) = (self.clock.now(), self.place(key));
        if let Some(held) = self.shard(place).get_mut(&place) {
            held.unsent(now, number);
        }
    }

    /// Charges a question as if its limit were not leased, in what is left of its time.
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

    /// What a question that was charged alone comes to. One that is denied because what is left is held here, or
    /// on its way here, is answered with that, or asked again together with it, in what is left of its time.
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
        // A window that counts what it denies has nothing left now.
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

    /// What a question that was counted does now: answered or a message in one step, because a message takes all that
    /// is held back with it, of which another's answer may have brought enough since the last look.
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

    /// The store's answer to a charge, and what is held beside it: at most what was so `before`. What was lent meanwhile may
    /// be left by the store's answer as well.
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

/// Whether the key's ledger is that of another limit, and awaits an answer: what that brings would be given back by nobody,
/// were it superseded on its way.
fn awaits_another(shard: &Ledgers, place: Place, leased: Leased<'_>) -> bool {
    shard.get(&place).is_some_and(|held| !held.is_of(leased) && held.awaits())
}

/// The store's answer to a question, as the balance's would be: of the key, with what is held here.
fn answered(leased: Leased<'_>, answer: &Answer) -> Outcome {
    Outcome::Stepped(answer.step_here(most(leased)))
}

/// What the key has left at rest.
fn most(leased: Leased<'_>) -> Hits {
    Hits(leased.charge.strategy.most().into())
}

/// Whether a message waited to be sent and surely never was. One without a connection may have been written to the one
/// before.
const fn waited_in_vain(lent: Lent) -> bool {
    matches!(lent, Lent::Failed(Cause::Overloaded | Cause::BreakerOpen))
}

/// What a message failed for, to those who waited for it: their own hits did not go with it.
const fn unsent(cause: Cause) -> Cause {
    match cause {
        Cause::Cut | Cause::Late | Cause::NotUnderstood => Cause::Unsent,
        cause => cause,
    }
}

/// The rules whose limits are leased, by path.
fn leased_rules(config: &Config) -> Vec<(&str, &Limit)> {
    let rules = config.domains.values().flat_map(|domain| domain.tree.rules());
    let leased = rules.filter_map(|rule| Some((&*rule.path, rule.limit.as_ref()?)));
    let mut leased: Vec<_> =
        leased.filter(|(_, limit)| matches!(limit.mode, Mode::Leased(_))).collect();
    leased.sort_by_key(|(path, _)| *path);
    leased
}
