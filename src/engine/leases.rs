//! What this replica holds of shared counters: borrowed, spent, given back.
//!
//! Guarantees: what is spent from a balance takes no call, no wait and no allocation; a question that
//! the store has to be asked for is charged there once, or not known to be; messages are numbered over all
//! keys of this process, which is a member of its own; a message whose future is dropped is given up. At
//! most [`MOST_LEDGERS`] keys are held; a key beyond them is charged like one that is not leased.
//! Leaves out: deadlines, which are the backend's and the caller's; which limits are leased.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};
use smallvec::smallvec;
use tokio::sync::watch;

use crate::backend::lease::{Lent, Message};
use crate::backend::{Backend, Cause, Charge, Charges, Home, Outcome, Reply, Rule};
use crate::clock::Clock;
use crate::kernel::decision::{Cost, Standing};
use crate::kernel::key::CounterKey;
use crate::kernel::lease::ledger::{Ledger, Spend};
use crate::kernel::lease::sizer::Size;
use crate::kernel::lease::{Answer, Borrow, Member, Number, Terms};
use crate::kernel::rate::{Step, Strategy};
use crate::kernel::units::{Hits, Nanos};

const SHARDS: usize = 256;

/// The most keys that are held at one time: 256 in each of 256 shards, some 50 MB.
pub const MOST_LEDGERS: usize = SHARDS * WAYS;

const WAYS: usize = 256;

/// A lease is at most one part in so many of what passes at one instant.
const PARTS: u64 = 10;

/// A key that nobody asked for in so many terms is forgotten.
const IDLE_TERMS: u64 = 2;

/// A counter that is leased, and how.
#[derive(Clone, Debug)]
pub struct Leased {
    /// Which counter.
    pub key: CounterKey,
    /// Where it lives in a store of several nodes.
    pub home: Home,
    /// Whether its unit is a second.
    pub per_second: bool,
    /// How it counts.
    pub strategy: Strategy,
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
    shards: Box<[Mutex<Ledgers>]>,
    places: RandomState,
}

type Ledgers = HashMap<CounterKey, Held>;

/// What is held of one key.
#[derive(Debug)]
struct Held {
    ledger: Ledger,
    of: Leased,
    asked: Nanos,
    /// Tells those who wait that a message was settled or given up.
    settled: watch::Sender<()>,
}

/// What a question that the balance does not answer does.
enum Turn {
    Answered(Outcome),
    Sends(Borrow),
    Waits(watch::Receiver<()>),
    Alone,
}

impl Leases {
    /// A member that holds nothing, with a name of its own.
    #[must_use]
    pub fn new(clock: Arc<Clock>, backend: Arc<dyn Backend>) -> Arc<Self> {
        let places = RandomState::new();
        let member = Member(RandomState::new().hash_one(0_u8));
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Arc::new(Self { clock, backend, member, number: AtomicU64::new(1), shards, places })
    }

    /// Answers a question where that takes no call, and borrows ahead in the background where it is
    /// time to. Nothing where the store has to be asked: [`Leases::ask`].
    ///
    /// Must be called within a runtime.
    pub fn spend(self: &Arc<Self>, leased: &Leased, hits: Hits) -> Option<Outcome> {
        let now = self.clock.now();
        let mut shard = self.shard(&leased.key);
        let held = shard.get_mut(&leased.key).filter(|held| held.is_of(leased))?;
        held.asked = now;
        let spent = outcome(leased, hits, held.ledger.spend(now, hits))?;
        if let Some(borrow) = held.ledger.ahead(now, self.next()) {
            let (all, leased) = (Arc::clone(self), leased.clone());
            tokio::spawn(async move { all.send(&leased, borrow).await });
        }
        Some(spent)
    }

    /// Answers a question that [`Leases::spend`] did not: by the store, which is asked for the question's
    /// own hits and for a lease; or with what a message that is on its way already brings.
    pub async fn ask(self: &Arc<Self>, leased: &Leased, hits: Hits) -> Outcome {
        match self.turn(leased, hits) {
            Turn::Answered(outcome) => outcome,
            Turn::Alone => self.charge(leased, hits).await,
            Turn::Sends(borrow) => match self.send(leased, borrow).await {
                Lent::Answered(answer) => Outcome::Stepped(answer.step),
                Lent::Superseded => self.charge(leased, hits).await,
                Lent::Full(verdict) => Outcome::Full(verdict),
                Lent::Stale(now) => Outcome::Stale(now),
                Lent::Failed(cause) => Outcome::Failed(cause),
            },
            Turn::Waits(mut settled) => {
                // An error says that the ledger is gone, which is as good.
                drop(settled.changed().await);
                match self.look(leased, hits) {
                    Some(outcome) => outcome,
                    None => self.charge(leased, hits).await,
                }
            }
        }
    }

    /// Gives back what will not be asked for, and forgets keys that nobody asks for.
    pub async fn tend(&self) {
        let now = self.clock.now();
        self.part(|held, number| held.ledger.surplus(now, number)).await;
        for shard in &self.shards {
            shard.lock().retain(|_, held| !held.is_idle(now));
        }
    }

    /// Gives everything back: at a drain, and when other limits come into force.
    pub async fn give_back(&self) {
        let now = self.clock.now();
        self.part(|held, number| held.ledger.give_back(now, number)).await;
    }

    /// Hits that this replica may spend of a key without asking.
    #[must_use]
    pub fn balance(&self, key: &CounterKey) -> Hits {
        let now = self.clock.now();
        self.shard(key).get(key).map_or(Hits(0), |held| held.ledger.balance(now))
    }

    /// Sends what `take` takes out of each ledger.
    async fn part(&self, take: impl Fn(&mut Held, Number) -> Option<Borrow>) {
        for shard in &self.shards {
            let mut partings = Vec::new();
            for held in shard.lock().values_mut() {
                partings.extend(take(held, self.next()).map(|parting| (held.of.clone(), parting)));
            }
            for (leased, parting) in partings {
                // What does not arrive is void at the end of its term.
                self.tell(&leased, parting).await;
            }
        }
    }

    fn turn(self: &Arc<Self>, leased: &Leased, hits: Hits) -> Turn {
        let now = self.clock.now();
        let mut shard = self.shard(&leased.key);
        match shard.get(&leased.key) {
            Some(held) if held.is_of(leased) => {}
            None if WAYS <= shard.len() => return Turn::Alone,
            _ => self.begin(&mut shard, leased, now, hits),
        }
        let Some(held) = shard.get_mut(&leased.key) else { return Turn::Alone };
        if let Some(outcome) = outcome(leased, hits, held.ledger.look(now, hits)) {
            return Turn::Answered(outcome);
        }
        match held.ledger.borrow(now, self.next(), hits) {
            Some(borrow) => Turn::Sends(borrow),
            None => Turn::Waits(held.settled.subscribe()),
        }
    }

    /// Begins a ledger. One of the same key under other numbers, such as those of a calendar's last
    /// window, gives back what it holds.
    fn begin(self: &Arc<Self>, shard: &mut Ledgers, leased: &Leased, now: Nanos, hits: Hits) {
        let mut held = Held::new(leased, now);
        // Where there was no ledger the question was not counted yet.
        held.ledger.spend(now, hits);
        let Some(mut before) = shard.insert(leased.key.clone(), held) else { return };
        if let Some(parting) = before.ledger.give_back(now, self.next()) {
            let all = Arc::clone(self);
            tokio::spawn(async move { all.tell(&before.of, parting).await });
        }
    }

    fn look(&self, leased: &Leased, hits: Hits) -> Option<Outcome> {
        let now = self.clock.now();
        let mut shard = self.shard(&leased.key);
        let held = shard.get_mut(&leased.key).filter(|held| held.is_of(leased))?;
        outcome(leased, hits, held.ledger.look(now, hits))
    }

    /// Sends a message and settles its answer.
    async fn send(&self, leased: &Leased, borrow: Borrow) -> Lent {
        let mut flight =
            Flight { leases: self, key: &leased.key, number: borrow.number, answer: None };
        let lent = self.tell(leased, borrow).await;
        if let Lent::Answered(answer) = lent {
            flight.answer = Some(answer);
        }
        lent
    }

    async fn tell(&self, leased: &Leased, borrow: Borrow) -> Lent {
        let Leased { key, home, per_second, strategy, terms } = leased.clone();
        let message =
            Message { key, home, per_second, strategy, terms, member: self.member, borrow };
        match self.backend.borrow(self.clock.now(), &message) {
            Reply::Now(lent) => lent,
            Reply::Later(later) => later.await,
        }
    }

    /// Charges a question as if its limit were not leased.
    async fn charge(&self, leased: &Leased, hits: Hits) -> Outcome {
        let Leased { key, home, per_second, strategy, .. } = leased.clone();
        let (cost, standing) = (Cost::Charge(hits), Standing::default());
        let list = smallvec![Charge { key, home, strategy, cost, standing, per_second }];
        let charges = Charges { list, rule: Rule::Each };
        let outcomes = match self.backend.charge(self.clock.now(), &charges) {
            Reply::Now(outcomes) => outcomes,
            Reply::Later(later) => later.await,
        };
        outcomes.first().copied().unwrap_or(Outcome::Failed(Cause::NotUnderstood))
    }

    fn next(&self) -> Number {
        Number(self.number.fetch_add(1, Relaxed))
    }

    fn shard(&self, key: &CounterKey) -> MutexGuard<'_, Ledgers> {
        let index = usize::try_from(self.places.hash_one(key) % SHARDS as u64).unwrap_or(0);
        self.shards[index].lock()
    }
}

impl Held {
    fn new(of: &Leased, now: Nanos) -> Self {
        let most = Hits((u64::from(of.strategy.most()) / PARTS).max(1));
        let ledger = Ledger::new(Size::Learned, of.terms.term, most);
        Self { ledger, of: of.clone(), asked: now, settled: watch::Sender::default() }
    }

    /// Whether this is held under `leased`'s numbers: others are charged alone until it is given back.
    fn is_of(&self, leased: &Leased) -> bool {
        self.of.strategy == leased.strategy && self.of.terms == leased.terms
    }

    fn is_idle(&self, now: Nanos) -> bool {
        let patience = Nanos(self.of.terms.term.0.saturating_mul(IDLE_TERMS));
        self.ledger.balance(now) == Hits(0) && patience < now.since(self.asked)
    }
}

/// A message on its way; whatever becomes of it, those who wait are told.
struct Flight<'l> {
    leases: &'l Leases,
    key: &'l CounterKey,
    number: Number,
    answer: Option<Answer>,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        let now = self.leases.clock.now();
        let mut shard = self.leases.shard(self.key);
        let Some(held) = shard.get_mut(self.key) else { return };
        match &self.answer {
            Some(answer) => held.ledger.settle(now, answer),
            None => held.ledger.lost(self.number),
        }
        held.settled.send_replace(());
    }
}

/// What a ledger answers, if it does.
fn outcome(leased: &Leased, hits: Hits, spend: Spend) -> Option<Outcome> {
    Some(Outcome::Stepped(match spend {
        Spend::Spent(room) => Step::Admit(room),
        Spend::Denied { room, .. } if u64::from(leased.strategy.most()) < hits.0 => {
            Step::Never(room)
        }
        Spend::Denied { retry_after, room } => Step::Deny { retry_after, room },
        Spend::Ask => return None,
    }))
}
