//! The reservations of one check, until its decision.
//!
//! Guarantees:
//! - Each reservation is committed or canceled once.
//! - Reservations of a dropped check, or with an unknown result, are canceled.
//! - A reservation without a commit or cancellation expires in the store.
//! - The charges of one slot share a call, up to [`MOST`].
//!
//! Not covered:
//! - The decision ([`super::steps`]).
//! - Expired reservations of an idle counter: the next
//!   reservation or recheck returns them ([`super::overdue`]).

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

/// The shortest lifetime of a reservation, which exceeds every caller's
/// deadline. A commit after it fails, and its result is unknown.
const SHORTEST_TERM: Duration = Duration::from_secs(1);

/// The most charges in one call. This many block Redis for a few milliseconds.
const MOST: usize = 64;

#[derive(Clone, Copy, Debug)]
enum Does {
    Hold,
    Keep,
    GiveBack,
}

/// One Redis, and the identity of this process in reservations.
#[derive(Clone, Debug)]
pub(super) struct Holder {
    route: Route,
    key_prefix: Arc<str>,
    process: u64,
    term: Duration,
}

#[derive(Debug, Default)]
pub(super) struct Holding {
    open: SmallVec<[Open; 2]>,
}

/// A reservation, confirmed or not.
#[derive(Debug)]
struct Open {
    /// The index of the charge in the check.
    place: usize,
    holder: Arc<Holder>,
    id: Id,
    charge: Charge,
    /// The outcome of the reservation, once known.
    held: Option<Outcome>,
}

impl Holder {
    pub(super) fn new(route: Route, key_prefix: &str, process: u64, deadline: Duration) -> Self {
        let term = SHORTEST_TERM.max(deadline.saturating_mul(2));
        Self { route, key_prefix: key_prefix.into(), process, term }
    }

    /// The lifetime of a reservation in the store.
    pub(super) fn term(&self) -> Nanos {
        Nanos(u64::try_from(self.term.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl Holding {
    pub(super) fn add(&mut self, holder: &Arc<Holder>, place: usize, charge: &Charge) {
        // Unique in this process, across all stores.
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let id = Id(holder.process, NUMBER.fetch_add(1, Relaxed));
        let (holder, charge) = (Arc::clone(holder), charge.clone());
        self.open.push(Open { place, holder, id, charge, held: None });
    }

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

    pub(super) async fn keep(&mut self, patience: Duration, outcomes: &mut Outcomes) {
        let (held, unknown) = take(&mut self.open).into_iter().partition(Open::is_held);
        self.open = unknown;
        let held: SmallVec<[Open; 2]> = held;
        let kept = put(held.iter(), Does::Keep, patience).await;
        for (open, kept) in held.iter().zip(kept) {
            outcomes[open.place] = match (kept, open.held) {
                (Ok(Held::Kept), Some(held)) => held,
                // The reservation expired before the commit.
                (Ok(_), _) => Outcome::Failed(Cause::Late),
                (Err(cause), _) => Outcome::Failed(cause),
            };
        }
    }

    /// Cancels the reservations. After a timeout, the store cancels them later or lets them expire.
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
        // Without a runtime the process is ending, and the reservations expire in the store.
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

    /// Returns `true` if the store may have made the reservation.
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

/// One call for several charges of a slot.
struct Together<'o> {
    holder: &'o Holder,
    slot: u16,
    /// Each reservation, with its position among all of the caller's.
    of: Vec<(usize, &'o Open)>,
    packed: Vec<Packed>,
}

/// Does this to all reservations before the timeout. Returns the results in the same order.
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

    async fn ask(&self, patience: Duration) -> Result<Vec<Said>, Cause> {
        let route = &self.holder.route;
        let live = route.live(self.slot)?;
        let reply = route.within(patience, self.slot, live.hold(call(&self.packed))).await?;
        let said = share_out(&reply, self.of.len());
        said.map_err(|refused: codec::NotUnderstood| not_understood(&refused))
    }
}
