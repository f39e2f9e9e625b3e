//! Counters in a Redis that replicas share.
//!
//! Guarantees:
//! - One script call decides a check with any number of charges.
//! - Checks that arrive during a call share the next call.
//! - The script computes the same numbers as the kernel in a single process.
//! - Every charge has an outcome within the deadline: from Redis, or a [`Cause`].
//! - A charge is sent at most once, and never after its caller gave up.
//! - Time is that of Redis' clock.
//! - A process starts and serves without Redis, and keeps reconnecting.
//! - No error and no log line contains the password.
//! - In a Cluster, each slot gets one call.
//! - A joint decision over several slots reserves hits,
//!   then commits or cancels, within one deadline.
//!
//! Not covered:
//! - The fallback for a failed charge (`engine::degrade`).
//! - Several connections to one Redis process: its single thread would reply no faster.

mod batch;
pub mod beat;
mod breaker;
pub mod call;
mod client;
mod cluster;
pub mod codec;
mod connection;
mod files;
mod holding;
pub mod inspect;
mod keep;
mod options;
mod overdue;
mod pauses;
mod permits;
pub mod reference;
mod route;
mod sentinel;
mod slots;
mod spread;
mod steps;
mod stores;
mod tls;

use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use smallvec::SmallVec;
use tokio::time::timeout;

use super::fleet::{Beat, Fleet};
use super::heartbeat::{Heard, Round};
use super::inside::{Counter, Inside};
use super::lease::{Lent, Message};
use super::permits::{Acquire, AllHeard, Answer as Permitted, Round as Telling};
use super::{Backend, Cause, Charge, Charges, Home, Outcome, Outcomes, Reply, Rule};
use crate::kernel::units::Nanos;
use crate::telemetry::event::{Called, LeaseCalled};
use batch::{Asked, Calls, Come};
use call::{Call, Share};
use codec::{Answer, NotUnderstood, heartbeat, lending};
use connection::Live;
use holding::{Holder, Holding};
pub use options::{Address, Batching, Identity, Options, Password, Place, Sentinels, Tls};
use overdue::Overdue;
use route::Route;
use steps::{Together, can_be_held};
pub use stores::Stores;

/// The script that charges the hits of checks. Its protocol is documented in `head.lua`.
pub const CHARGE: &str = concat!(
    include_str!("lua/head.lua"),
    include_str!("lua/plan.lua"),
    include_str!("lua/gcra.lua"),
    include_str!("lua/fixed_window.lua"),
    include_str!("lua/sliding_window.lua"),
    include_str!("lua/sliding_log.lua"),
    include_str!("lua/charge.lua"),
);

/// The script that executes a replica's message about a leased key. Its protocol is documented in
/// `borrow.lua`. It is separate from [`CHARGE`], so that the most frequent script stays small.
pub const BORROW: &str = concat!(
    include_str!("lua/head.lua"),
    include_str!("lua/debt.lua"),
    include_str!("lua/borrow.lua"),
    include_str!("lua/step.lua"),
    include_str!("lua/gcra.lua"),
    include_str!("lua/fixed_window.lua"),
    include_str!("lua/sliding_window.lua"),
    include_str!("lua/sliding_log.lua"),
    include_str!("lua/counter.lua"),
    include_str!("lua/lend.lua"),
);

/// The script that executes a round of share reports.
/// Its protocol is documented in `heartbeat.lua`.
pub const HEARTBEAT: &str = include_str!("lua/heartbeat.lua");
/// The script that acquires a permit of a strict concurrency limit.
/// Its protocol is documented in `permits.lua` and `acquire.lua`.
pub const ACQUIRE: &str = concat!(include_str!("lua/permits.lua"), include_str!("lua/acquire.lua"));

/// The script that renews and releases permits of strict concurrency
/// limits. Its protocol is documented in `permits.lua` and `tell.lua`.
pub const TELL: &str = concat!(include_str!("lua/permits.lua"), include_str!("lua/tell.lua"));

/// The script that reserves hits for a joint decision of several slots or stores,
/// and commits or cancels them. Its protocol is documented in `hold.lua`.
pub const HOLD: &str = concat!(
    include_str!("lua/head.lua"),
    include_str!("lua/debt.lua"),
    include_str!("lua/step.lua"),
    include_str!("lua/gcra.lua"),
    include_str!("lua/fixed_window.lua"),
    include_str!("lua/sliding_window.lua"),
    include_str!("lua/sliding_log.lua"),
    include_str!("lua/counter.lua"),
    include_str!("lua/hold.lua"),
);

/// A [`Backend`] whose counters are in Redis.
#[derive(Debug)]
pub struct Redis {
    route: Route,
    calls: Arc<Calls<codec::Packed>>,
    messages: Arc<Calls<lending::Packed>>,
    holder: Arc<Holder>,
    overdue: Overdue,
    /// All counters of this process are in this Redis, under our own keys.
    is_alone: bool,
    key_prefix: String,
    deadline: Duration,
    connections: Arc<Counter>,
}

impl Redis {
    /// Returns a store that is not connected yet, and the task that
    /// keeps it connected. Every charge fails unless that task runs.
    pub fn new(options: Options) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (key_prefix, deadline) = (options.key_prefix.clone(), options.deadline);
        let (batching, process) = (options.batching, options.jitter);
        let connections = Arc::clone(&options.connections);
        let (route, kept) = Route::new(options);
        let calls = Calls::new(route.clone(), deadline, batching);
        let messages = Calls::new(route.clone(), deadline, batching);
        let holder = Arc::new(Holder::new(route.clone(), &key_prefix, process, deadline));
        let redis = Self {
            route,
            calls,
            messages,
            holder,
            overdue: Overdue::default(),
            is_alone: true,
            key_prefix,
            deadline,
            connections,
        };
        (redis, kept)
    }

    /// Marks that a check may also have charges in another store or under other keys.
    fn among_others(self) -> Self {
        Self { is_alone: false, ..self }
    }

    /// The slot of each charge's key. Outside a Cluster: one 0 for all charges.
    fn slots(&self, charges: &Charges) -> SmallVec<[u16; 2]> {
        if !self.route.is_clustered() {
            return SmallVec::from_elem(0, 1);
        }
        let prefix = self.key_prefix.as_bytes();
        let key = |charge: &Charge| codec::key(&charge.key, charge.home, prefix);
        charges.list.iter().map(|charge| self.route.slot_of(&key(charge))).collect()
    }

    async fn ask(&self, slot: u16, charges: &Charges) -> Outcomes {
        let question = codec::pack(charges, self.key_prefix.as_bytes());
        let answer = self.calls.ask(slot, question).await;
        answer.and_then(|said| outcomes(charges, &said)).unwrap_or_else(|c| failed(charges, c))
    }

    /// Sends each slot its own charges, all at the same time. Each slot decides for itself.
    async fn ask_each(&self, charges: &Charges, slots: &[u16]) -> Outcomes {
        let parts = spread::by_slot(charges, slots);
        let asked = parts.iter().map(|part| self.ask(part.slot, &part.charges));
        let mut outcomes = failed(charges, Cause::NotUnderstood);
        for (part, answered) in parts.iter().zip(join_all(asked).await) {
            part.put(answered, &mut outcomes);
        }
        outcomes
    }

    /// Reserves the charges in all slots. Then commits or cancels them by their joint decision.
    async fn in_two_steps(&self, charges: &Charges, together: Together) -> Outcomes {
        let (list, patience) = (&charges.list, self.deadline / 2);
        let all: SmallVec<[usize; 2]> = (0..list.len()).collect();
        let (tried, rest): (Vec<usize>, Vec<usize>) =
            all.iter().partition(|&&at| can_be_held(list, at));
        let mut holding = Holding::default();
        for &at in &tried {
            holding.add(&self.holder, at, &list[at]);
        }
        let mut outcomes = failed(charges, Cause::Late);
        let rest: Picked = rest.into_iter().map(|at| (at, list[at].clone())).collect();
        let asked = self.ask_some(rest, Rule::Ask, patience);
        let (asked, ()) = join(asked, holding.hold(patience, &mut outcomes)).await;
        put(asked, &mut outcomes);
        let second = together.second(list, &all, &outcomes, &tried);
        if together.deny(list, &all, &outcomes) {
            holding.give_back(patience, &mut outcomes).await;
            return outcomes;
        }
        let rest = self.ask_some(second, Rule::Each, patience);
        let (rest, ()) = join(rest, holding.keep(patience, &mut outcomes)).await;
        put(rest, &mut outcomes);
        outcomes
    }

    async fn ask_some(&self, some: Picked, rule: Rule, patience: Duration) -> Answered {
        let (places, list): (SmallVec<[usize; 2]>, _) = some.into_iter().unzip();
        let is_asked = matches!(rule, Rule::Ask);
        let charges = Charges { list, rule };
        let slots = self.slots(&charges);
        let outcomes = timeout(patience, self.ask_each(&charges, &slots)).await;
        let outcomes = outcomes.unwrap_or_else(|_| failed(&charges, Cause::Late));
        let told = |outcome| if is_asked { uncharged(outcome) } else { outcome };
        places.into_iter().zip(outcomes.into_iter().map(told)).collect()
    }
}

impl Redis {
    async fn lend(&self, slot: u16, message: &Message, packed: lending::Packed) -> Lent {
        let said = self.messages.ask(slot, packed).await;
        let lent = said.and_then(|said| {
            lending::read(message, &said).map_err(|refused| not_understood(&refused))
        });
        lent.unwrap_or_else(Lent::Failed)
    }

    async fn hear(&self, live: Arc<Live>, slot: u16, round: &Round) -> Result<Heard, Cause> {
        let call = heartbeat::pack(round, self.key_prefix.as_bytes(), live.run_id(), None);
        let called = live.heartbeat(call.keys, call.args);
        let reply = self.route.within(self.deadline, slot, called).await?;
        heartbeat::read(round, &reply).map_err(|refused| not_understood(&refused))
    }

    async fn speak(&self, live: Arc<Live>, beat: &Beat) -> Result<Fleet, Cause> {
        let key = beat::key(&self.key_prefix);
        beat::fleet(live.eval(beat::SCRIPT, key, beat::args(beat)).await?)
    }
}

impl Asked for codec::Packed {
    type Share = Share;

    fn micros(&self) -> usize {
        self.micros()
    }

    async fn call(live: &Live, questions: Vec<Self>) -> Result<Come<Self>, Cause> {
        let mut call = Call::of(questions, None);
        Called { questions: call.questions() }.emit();
        let reply = live.call(take(&mut call.keys), take(&mut call.args)).await?;
        let shares = call.share_out(&reply).map_err(|refused| not_understood(&refused))?;
        Ok((shares, Vec::new()))
    }
}

impl Asked for lending::Packed {
    type Share = lending::Said;

    fn micros(&self) -> usize {
        self.micros()
    }

    async fn call(live: &Live, mut messages: Vec<Self>) -> Result<Come<Self>, Cause> {
        LeaseCalled { messages: messages.len() }.emit();
        let (keys, args) = lending::call(&messages);
        let reply = live.borrow(keys, args).await?;
        let said = lending::share_out(&reply, messages.len());
        let said = said.map_err(|refused| not_understood(&refused))?;
        let rest = messages.split_off(said.len());
        Ok((said, rest))
    }
}

fn outcomes(charges: &Charges, said: &Share) -> Result<Outcomes, Cause> {
    let answers = codec::read(charges, said).map_err(|refused| not_understood(&refused))?;
    Ok(answers.into_iter().map(outcome).collect())
}

const fn outcome(answer: Answer) -> Outcome {
    match answer {
        Answer::Outcome(outcome) => outcome,
        Answer::Stale(store_now) => Outcome::Stale(store_now),
        Answer::Unreadable => Outcome::Failed(Cause::WrongType),
    }
}

/// Some charges of a check, each with its position in the check.
type Picked = SmallVec<[(usize, Charge); 2]>;

/// The outcomes of [`Picked`].
type Answered = SmallVec<[(usize, Outcome); 2]>;

/// Converts the outcome of a query or of a reservation. Neither charges anything
/// when the connection is lost, so the cause becomes [`Cause::Unreachable`].
const fn uncharged(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Failed(Cause::Cut) => Outcome::Failed(Cause::Unreachable),
        told => told,
    }
}

fn put(answered: Answered, outcomes: &mut Outcomes) {
    for (place, outcome) in answered {
        outcomes[place] = outcome;
    }
}

fn not_understood(refused: &NotUnderstood) -> Cause {
    tracing::error!(error = %refused, "redis answered what the script does not");
    Cause::NotUnderstood
}

impl Backend for Redis {
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> Reply<'a, Outcomes> {
        if charges.list.is_empty() {
            return Reply::Now(Outcomes::new());
        }
        if call::MOST_CHARGES < charges.list.len() {
            return Reply::Now(failed(charges, Cause::Overloaded));
        }
        let slots = self.slots(charges);
        let first = slots.first().copied().unwrap_or_default();
        let together = Together::of(charges.rule);
        if slots.iter().all(|slot| *slot == first) {
            let may_be_held = || charges.list.iter().any(|charge| self.held_for(charge).is_some());
            return match (self.route.live(first), together) {
                (Err(cause), _) => Reply::Now(failed(charges, cause)),
                (Ok(_), Some(together)) if may_be_held() => {
                    Reply::Later(Box::pin(self.ask_and_look(now, first, charges, together)))
                }
                (Ok(_), _) => Reply::Later(Box::pin(self.ask(first, charges))),
            };
        }
        Reply::Later(Box::pin(async move {
            match together {
                Some(together) => self.in_two_steps(charges, together).await,
                None => self.ask_each(charges, &slots).await,
            }
        }))
    }

    fn held_for(&self, charge: &Charge) -> Option<Nanos> {
        // All counters of `Home::OfAll` are in one slot.
        let is_whole = !self.route.is_clustered() || matches!(charge.home, Home::OfAll(_));
        (!self.is_alone || !is_whole).then(|| self.holder.term())
    }

    fn place_of(&self, _now: Nanos, charge: &Charge) -> u32 {
        if !self.route.is_clustered() {
            return 0;
        }
        let key = codec::key(&charge.key, charge.home, self.key_prefix.as_bytes());
        self.route.slot_of(&key).into()
    }

    fn borrow<'a>(&'a self, _now: Nanos, message: &'a Message) -> Reply<'a, Lent> {
        let packed = lending::pack(message, self.key_prefix.as_bytes(), None);
        let slot = self.route.slot_of(&packed.keys[0]);
        match self.route.live(slot) {
            Ok(_) => Reply::Later(Box::pin(self.lend(slot, message, packed))),
            Err(cause) => Reply::Now(Lent::Failed(cause)),
        }
    }

    fn together(&self, begin: &mut dyn FnMut()) {
        self.messages.together(begin);
    }

    fn beat<'a>(&'a self, beat: &'a Beat) -> Reply<'a, Result<Fleet, Cause>> {
        match self.route.live(self.route.slot_of(beat::key(&self.key_prefix).as_bytes())) {
            Ok(live) => Reply::Later(Box::pin(self.speak(live, beat))),
            Err(cause) => Reply::Now(Err(cause)),
        }
    }

    fn heartbeat<'a>(&'a self, _now: Nanos, round: &'a Round) -> Reply<'a, Result<Heard, Cause>> {
        let slot = self.route.slot_of(&heartbeat::lives(self.key_prefix.as_bytes()));
        match self.route.live(slot) {
            Ok(live) => Reply::Later(Box::pin(self.hear(live, slot, round))),
            Err(cause) => Reply::Now(Err(cause)),
        }
    }

    fn acquire<'a>(
        &'a self,
        _now: Nanos,
        asked: &'a Acquire,
    ) -> Reply<'a, Result<Permitted, Cause>> {
        self.acquire_one(asked)
    }

    fn tell<'a>(&'a self, _now: Nanos, round: &'a Telling) -> Reply<'a, AllHeard> {
        Reply::Later(Box::pin(self.tell_all(round)))
    }

    fn deadline(&self) -> Option<Nanos> {
        u64::try_from(self.deadline.as_nanos()).ok().map(Nanos)
    }

    fn trouble(&self) -> Option<Cause> {
        self.route.trouble()
    }

    fn inside(&self) -> Inside {
        Inside { connections: Some(self.connections.seen()), ..Inside::default() }
    }
}

fn failed(charges: &Charges, cause: Cause) -> Outcomes {
    charges.list.iter().map(|_| Outcome::Failed(cause)).collect()
}
