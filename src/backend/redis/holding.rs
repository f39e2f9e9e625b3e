//! The hits that one question holds in several places until it is decided.
//!
//! Guarantees: each hold is kept or given back once; what was not kept is given back, also what was not
//! answered and what a dropped question held; a store that does not hear of it gives it back itself when
//! the term is over.
//! Leaves out: deciding ([`super::steps`]); what is given back while nobody holds any more of that
//! counter, which waits for the next that does.

use std::mem::take;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::codec::holding::{Act, Held, pack, read};
use super::route::Route;
use super::{Cause, codec, not_understood, outcome};
use crate::backend::{Charge, Outcome, Outcomes};
use crate::kernel::decision::Cost;
use crate::kernel::lease::hold::Id;
use crate::kernel::rate::Step;
use crate::kernel::units::Hits;

/// The shortest term of a hold. Longer than any question waits: who decides too late finds that the
/// hold is gone, and must say that it does not know.
const SHORTEST_TERM: Duration = Duration::from_secs(1);

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
        let asked = self.open.iter().map(|open| open.put(Act::Hold(open.holder.term), patience));
        let answers = join_all(asked).await;
        for (open, answered) in self.open.iter_mut().zip(answers) {
            let answered = answered.map_or_else(Outcome::Failed, |held| match held {
                Held::Answered(answer) => outcome(answer),
                Held::Kept | Held::Refused => Outcome::Failed(Cause::Overloaded),
            });
            outcomes[open.place] = answered;
            open.held = Some(answered);
        }
        self.open.retain(|open| open.may_be_held());
    }

    /// Leaves charged what is held, within `patience`.
    pub(super) async fn keep(&mut self, patience: Duration, outcomes: &mut Outcomes) {
        let (held, unknown) = take(&mut self.open).into_iter().partition(Open::is_held);
        self.open = unknown;
        let held: SmallVec<[Open; 2]> = held;
        let kept = join_all(held.iter().map(|open| open.put(Act::Keep, patience))).await;
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
        let given = join_all(held().map(|open| open.put(Act::GiveBack, patience))).await;
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
                join_all(open.iter().map(|open| open.put(Act::GiveBack, open.holder.term))).await;
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

    /// One call, given up after `patience`.
    async fn put(&self, act: Act, patience: Duration) -> Result<Held, Cause> {
        let Holder { route, key_prefix, .. } = &*self.holder;
        let packed = pack(&self.charge, self.id, act, key_prefix.as_bytes(), None);
        let slot = route.slot_of(&packed.keys[0]);
        let live = route.live(slot)?;
        let reply = route.within(patience, slot, live.hold(packed.keys, packed.args)).await?;
        let answer = read(&self.charge, act, &reply);
        answer.map_err(|refused: codec::NotUnderstood| not_understood(&refused))
    }
}
