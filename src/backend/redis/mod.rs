//! Counters in a Redis that replicas share.
//!
//! Guarantees: one script call per question, whatever the number of its charges, and one for all
//! questions that came while another was under way; the script is the
//! kernel's arithmetic, so that every answer is the one a single process would give. Every charge is
//! answered within the deadline, by Redis or with a [`Cause`]; a charge is sent once, and never again after its answer was given up; Redis' own clock rules; a process
//! starts, serves and reconnects for ever while there is no Redis; no text made here has the
//! password in it.
//! In a Cluster that is one call per slot, and each slot has its own; what several slots decide together
//! is asked first and charged then, and each of these two steps has the deadline.
//! Leaves out: what the caller gets for a charge that failed (`engine::degrade`); more than one
//! connection to one process, which Redis' one thread would not answer faster.

mod batch;
pub mod beat;
mod breaker;
pub mod call;
mod client;
mod cluster;
pub mod codec;
mod connection;
mod files;
pub mod inspect;
mod keep;
mod options;
mod pauses;
pub mod reference;
mod route;
mod sentinel;
mod slots;
mod spread;
mod steps;
mod stores;
mod tls;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::time::timeout;

use super::fleet::{Beat, Fleet};
use super::heartbeat::{Heard, Round};
use super::lease::{Lent, Message};
use super::{Backend, Cause, Charges, Outcome, Outcomes, Reply, Rule};
use crate::kernel::units::Nanos;
use batch::Calls;
use call::Share;
use codec::{Answer, NotUnderstood, heartbeat, lending};
use connection::Live;
pub use options::{Address, Batching, Identity, Options, Password, Place, Sentinels, Tls};
use route::Route;
use steps::Together;
pub use stores::Stores;

/// The script that puts the hits of questions to their counters; its protocol stands at its top.
pub const CHARGE: &str = concat!(
    include_str!("lua/head.lua"),
    include_str!("lua/plan.lua"),
    include_str!("lua/gcra.lua"),
    include_str!("lua/fixed_window.lua"),
    include_str!("lua/sliding_window.lua"),
    include_str!("lua/sliding_log.lua"),
    include_str!("lua/charge.lua"),
);

/// The script that takes a member's message about a leased key; its protocol stands in `step.lua`.
/// Apart from [`CHARGE`], so that the one that is run most does not grow.
pub const BORROW: &str = concat!(
    include_str!("lua/head.lua"),
    include_str!("lua/step.lua"),
    include_str!("lua/gcra.lua"),
    include_str!("lua/fixed_window.lua"),
    include_str!("lua/sliding_window.lua"),
    include_str!("lua/sliding_log.lua"),
    include_str!("lua/borrow.lua"),
);

/// The script that hears a round of heartbeats of ceilings; its protocol stands at its top.
pub const HEARTBEAT: &str = include_str!("lua/heartbeat.lua");

/// The shared backend.
#[derive(Debug)]
pub struct Redis {
    route: Route,
    calls: Arc<Calls>,
    key_prefix: String,
    deadline: Duration,
}

impl Redis {
    /// A backend that is not connected yet, and the task that connects it and keeps it so. Without
    /// that task running every charge fails.
    pub fn new(options: Options) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (key_prefix, deadline) = (options.key_prefix.clone(), options.deadline);
        let batching = options.batching;
        let (route, kept) = Route::new(options);
        let calls = Calls::new(route.clone(), deadline, batching);
        (Self { route, calls, key_prefix, deadline }, kept)
    }

    /// The slot of each charge's key; the one slot of all outside a Cluster.
    fn slots(&self, charges: &Charges) -> SmallVec<[u16; 2]> {
        if !self.route.is_clustered() {
            return SmallVec::from_elem(0, 1);
        }
        let prefix = self.key_prefix.as_bytes();
        let key = |charge: &super::Charge| codec::key(&charge.key, charge.home, prefix);
        charges.list.iter().map(|charge| self.route.slot_of(&key(charge))).collect()
    }

    async fn ask(&self, slot: u16, charges: &Charges) -> Outcomes {
        let question = codec::pack(charges, self.key_prefix.as_bytes());
        let answer = self.calls.ask(slot, question).await;
        answer.and_then(|said| outcomes(charges, &said)).unwrap_or_else(|c| failed(charges, c))
    }

    /// Asks each slot for its own charges, all at one time; each slot decides for itself.
    async fn ask_each(&self, charges: &Charges, slots: &[u16]) -> Outcomes {
        let parts = spread::by_slot(charges, slots);
        let asked = parts.iter().map(|part| self.ask(part.slot, &part.charges));
        let mut outcomes = failed(charges, Cause::NotUnderstood);
        for (part, answered) in parts.iter().zip(join_all(asked).await) {
            part.put(answered, &mut outcomes);
        }
        outcomes
    }

    /// Asks all slots, and charges then what they decide together.
    async fn in_two_steps(&self, charges: &Charges, slots: &[u16], together: Together) -> Outcomes {
        let asking = Charges { list: charges.list.clone(), rule: Rule::Ask };
        let mut outcomes = self.ask_each(&asking, slots).await;
        let places: SmallVec<[usize; 2]> = (0..slots.len()).collect();
        let second = together.second(&charges.list, &places, &outcomes);
        let (places, list): (SmallVec<[usize; 2]>, _) = second.into_iter().unzip();
        let slots: SmallVec<[u16; 2]> = places.iter().map(|&place| slots[place]).collect();
        let answered = self.ask_each(&Charges { list, rule: Rule::Each }, &slots).await;
        for (place, outcome) in places.into_iter().zip(answered) {
            outcomes[place] = outcome;
        }
        outcomes
    }

    /// What a call for a slot's keys comes to within the deadline, the breaker being told.
    async fn within<T>(
        &self,
        slot: u16,
        called: impl Future<Output = Result<T, Cause>>,
    ) -> Result<T, Cause> {
        let answer = tokio::time::timeout(self.deadline, called).await;
        let answer = answer.unwrap_or(Err(Cause::Late));
        self.route.saw(slot, answer.as_ref().err().copied());
        answer
    }
}

impl Redis {
    /// Sends a message, once, and waits for the answer until the deadline.
    async fn lend(
        &self,
        live: Arc<Live>,
        slot: u16,
        message: &Message,
        call: lending::Packed,
    ) -> Lent {
        let answered = timeout(self.deadline, live.borrow(call.keys, call.args));
        let answered = answered.await.unwrap_or(Err(Cause::Late));
        self.route.saw(slot, answered.as_ref().err().copied());
        let lent = answered.and_then(|reply| {
            lending::read(message, &reply).map_err(|refused| not_understood(&refused))
        });
        lent.unwrap_or_else(Lent::Failed)
    }

    /// Sends a round, once, and waits for the answer until the deadline.
    async fn hear(&self, live: Arc<Live>, slot: u16, round: &Round) -> Result<Heard, Cause> {
        let call = heartbeat::pack(round, self.key_prefix.as_bytes(), live.run_id(), None);
        let reply = self.within(slot, live.heartbeat(call.keys, call.args)).await?;
        heartbeat::read(round, &reply).map_err(|refused| not_understood(&refused))
    }

    async fn tell(&self, live: Arc<Live>, beat: &Beat) -> Result<Fleet, Cause> {
        let key = beat::key(&self.key_prefix);
        beat::fleet(live.eval(beat::SCRIPT, key, beat::args(beat)).await?)
    }
}

/// What was `said` of `charges`.
fn outcomes(charges: &Charges, said: &Share) -> Result<Outcomes, Cause> {
    let answers = codec::read(charges, said).map_err(|refused| not_understood(&refused))?;
    let outcome = |answer| match answer {
        Answer::Outcome(outcome) => outcome,
        Answer::Stale(store_now) => Outcome::Stale(store_now),
        Answer::Unreadable => Outcome::Failed(Cause::WrongType),
    };
    Ok(answers.into_iter().map(outcome).collect())
}

fn not_understood(refused: &NotUnderstood) -> Cause {
    tracing::error!(error = %refused, "redis answered what the script does not");
    Cause::NotUnderstood
}

impl Backend for Redis {
    fn charge<'a>(&'a self, _now: Nanos, charges: &'a Charges) -> Reply<'a, Outcomes> {
        if charges.list.is_empty() {
            return Reply::Now(Outcomes::new());
        }
        if call::MOST_CHARGES < charges.list.len() {
            return Reply::Now(failed(charges, Cause::Overloaded));
        }
        let slots = self.slots(charges);
        let first = slots.first().copied().unwrap_or_default();
        if slots.iter().all(|slot| *slot == first) {
            return match self.route.live(first) {
                Ok(_) => Reply::Later(Box::pin(self.ask(first, charges))),
                Err(cause) => Reply::Now(failed(charges, cause)),
            };
        }
        let together = Together::of(charges.rule);
        Reply::Later(Box::pin(async move {
            match together {
                Some(together) => self.in_two_steps(charges, &slots, together).await,
                None => self.ask_each(charges, &slots).await,
            }
        }))
    }

    fn borrow<'a>(&'a self, _now: Nanos, message: &'a Message) -> Reply<'a, Lent> {
        let call = lending::pack(message, self.key_prefix.as_bytes(), None);
        let slot = self.route.slot_of(&call.keys[0]);
        match self.route.live(slot) {
            Ok(live) => Reply::Later(Box::pin(self.lend(live, slot, message, call))),
            Err(cause) => Reply::Now(Lent::Failed(cause)),
        }
    }

    fn beat<'a>(&'a self, beat: &'a Beat) -> Reply<'a, Result<Fleet, Cause>> {
        match self.route.live(self.route.slot_of(beat::key(&self.key_prefix).as_bytes())) {
            Ok(live) => Reply::Later(Box::pin(self.tell(live, beat))),
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

    fn trouble(&self) -> Option<Cause> {
        self.route.trouble()
    }
}

fn failed(charges: &Charges, cause: Cause) -> Outcomes {
    charges.list.iter().map(|_| Outcome::Failed(cause)).collect()
}
