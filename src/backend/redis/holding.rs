//! The hits that one question holds in several places until it is decided.
//!
//! Guarantees: each hold is kept or given back once; what was not kept is given back, also what was not
//! answered and what a dropped question held; a store that does not hear of it gives it back itself when
//! the term is over. What lives in one slot is one call, of [`MOST`] at most.
//! Leaves out: deciding ([`super::steps`]); what is given back while nobody holds any more of that
//! counter, which waits for the next that does, or that is denied ([`super::overdue`]).

use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::codec::holding::{Act, Held, Said, pack, read, share_out};
use super::codec::lending::{Packed, call};
use super::route::Route;
use super::{Cause, codec, not_understood, outcome, uncharged};
use crate::backend::{Charge, Outcome, Outcomes};
use crate::kernel::decision::Cost;
use crate::kernel::lease::hold::Id;
use crate::kernel::rate::Step;
use crate::kernel::units::{Hits, Nanos};

/// The shortest term of a hold. Longer than any question waits: who decides too late finds that the
/// hold is gone, and must say that it does not know.
const SHORTEST_TERM: Duration = Duration::from_secs(1);

/// The most that one call is about: so many take the store a few milliseconds, in which it does nothing else.
const MOST: usize = 64;

/// What is done with what is held, or to be.
#[derive(Clone, Copy, Debug)]
enum Does {
    Hold,
    Keep,
    GiveBack,
}

/// One Redis, and how its holds are named.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    route: Route,
    key_prefix: Arc<str>,
    /// This process.
    process: u64,
    term: Duration,
}

/// What one question holds.
#[derive(Debug, Default)]
pub(super) struct Holding {
    open: SmallVec<[Open; 2]>,
}

/// What is held, or may be.
#[derive(Debug)]
struct Open {
    /// Of which charge of the question.
    place: usize,
    holder: Arc<Holder>,
    id: Id,
    charge: Charge,
    /// What came of it, once that is known.
    held: Option<Outcome>,
}

impl Holder {
    pub(super) fn new(route: Route, key_prefix: &str, process: u64, deadline: Duration) -> Self {
        let term = SHORTEST_TERM.max(deadline.saturating_mul(2));
        Self { route, key_prefix: key_prefix.into(), process, term }
    }

    /// After which a hold is over, whatever becomes of its holder.
    pub(super) fn term(&self) -> Nanos {
        Nanos(u64::try_from(self.term.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Holding {
    /// The charge at `place` is to be held.
    pub(super) fn add(&mut self, holder: &Arc<Holder>, place: usize, charge: &Charge) {
        // Of all questions of this process, whatever store they are put to.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let id = Id(holder.process, NUMBER.fetch_add(1, Relaxed));
        let (holder, charge) = (Arc::clone(holder), charge.clone());
        self.open.push(Open { place, holder, id, charge, held: None });
    }

    /// Holds all that was added, within `patience`.
    pub(super) async fn hold(&mut self, patience: Duration, outcomes: &mut Outcomes) {
        let answers = put(self.open.iter(), Does::Hold, patience).await;
        for (open, answered) in self.open.iter_mut().zip(answers) {
            let answered = answered.map_or_else(Outcome::Failed, |held| match held {
                Held::Answered(answer) => outcome(answer),
                Held::Kept | Held::Refused => Outcome::Failed(Cause::Overloaded),
            });
            outcomes[open.place] = uncharged(answered);
            open.held = Some(answered);
        }
        self.open.retain(|open| open.may_be_held());
    }

    /// Leaves charged what is held, within `patience`.
    pub(super) async fn keep(&mut self, patience: Duration, outcomes: &mut Outcomes) {
        let (held, unknown) = take(&mut self.open).into_iter().partition(Open::is_held);
        self.open = unknown;
        let held: SmallVec<[Open; 2]> = held;
        let kept = put(held.iter(), Does::Keep, patience).await;
        for (open, kept) in held.iter().zip(kept) {
            outcomes[open.place] = match (kept, open.held) {
                (Ok(Held::Kept), Some(held)) => held,
                // The store gave it back before it heard of us.
                (Ok(_), _) => Outcome::Failed(Cause::Late),
                (Err(cause), _) => Outcome::Failed(cause),
            };
        }
    }

    /// Gives back what is held, within `patience`; who does not answer in it does so later.
    pub(super) async fn give_back(&mut self, patience: Duration, outcomes: &mut Outcomes) {
        let held = || self.open.iter().filter(|open| open.is_held());
        let given = put(held(), Does::GiveBack, patience).await;
        for (open, given) in held().zip(given) {
            if let Ok(Held::Answered(answer)) = given
                && let left @ Outcome::Stepped(Step::Admit(_)) = outcome(answer)
            {
                outcomes[open.place] = left;
            }
        }
        self.open.retain(|open| !open.is_held());
    }
}

impl Drop for Holding {
    fn drop(&mut self) {
        let open = take(&mut self.open);
        if open.is_empty() {
            return;
        }
        // Without a runtime the process ends: the store gives back when the term is over.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                let patience = open.iter().map(|open| open.holder.term).max().unwrap_or_default();
                put(open.iter(), Does::GiveBack, patience).await;
            });
        }
    }
}

impl Open {
    fn is_held(&self) -> bool {
        let charges = matches!(self.charge.cost, Cost::Charge(Hits(1..)));
        charges && matches!(self.held, Some(Outcome::Stepped(Step::Admit(_))))
    }

    /// Whether the store may hold it.
    fn may_be_held(&self) -> bool {
        self.is_held() || matches!(self.held, None | Some(Outcome::Failed(_)))
    }

    fn act(&self, does: Does) -> Act {
        match does {
            Does::Hold => Act::Hold(self.holder.term),
            Does::Keep => Act::Keep,
            Does::GiveBack => Act::GiveBack,
        }
    }
}

/// What some of a question's charges in one slot are asked with.
struct Together<'o> {
    holder: &'o Holder,
    slot: u16,
    /// With where among all that is asked.
    of: Vec<(usize, &'o Open)>,
    packed: Vec<Packed>,
}

/// Does so with all of `open`, and gives up after `patience`; what came of each, in their order.
async fn put<'o>(
    open: impl Iterator<Item = &'o Open>,
    does: Does,
    patience: Duration,
) -> Vec<Result<Held, Cause>> {
    let mut calls: Vec<Together<'o>> = Vec::new();
    let mut count = 0;
    for (at, open) in open.enumerate() {
        Together::take(&mut calls, (at, open), does);
        count = at + 1;
    }
    let mut all = vec![Err(Cause::Late); count];
    let answers = join_all(calls.iter().map(|call| call.put(does, patience))).await;
    for (at, answer) in answers.into_iter().flatten() {
        all[at] = answer;
    }
    all
}

impl<'o> Together<'o> {
    /// Puts one to those of its slot.
    fn take(calls: &mut Vec<Self>, (at, open): (usize, &'o Open), does: Does) {
        let holder = &*open.holder;
        let packed =
            pack(&open.charge, open.id, open.act(does), holder.key_prefix.as_bytes(), None);
        let slot = holder.route.slot_of(&packed.keys[0]);
        let is_its = |call: &&mut Self| {
            std::ptr::eq(call.holder, holder) && call.slot == slot && call.of.len() < MOST
        };
        match calls.iter_mut().find(is_its) {
            Some(call) => {
                call.of.push((at, open));
                call.packed.push(packed);
            }
            None => calls.push(Self { holder, slot, of: vec![(at, open)], packed: vec![packed] }),
        }
    }

    async fn put(&self, does: Does, patience: Duration) -> Vec<(usize, Result<Held, Cause>)> {
        let said = self.ask(patience).await;
        let each = self.of.iter().enumerate().map(|(place, &(at, open))| {
            let answer = said.as_ref().map_err(|cause| *cause).and_then(|said| {
                let answer = read(&open.charge, open.act(does), &said[place]);
                answer.map_err(|refused: codec::NotUnderstood| not_understood(&refused))
            });
            (at, answer)
        });
        each.collect()
    }

    /// One call.
    async fn ask(&self, patience: Duration) -> Result<Vec<Said>, Cause> {
        let route = &self.holder.route;
        let live = route.live(self.slot)?;
        let reply = route.within(patience, self.slot, live.hold(call(&self.packed))).await?;
        let said = share_out(&reply, self.of.len());
        said.map_err(|refused: codec::NotUnderstood| not_understood(&refused))
    }
}
