//! Charges that the store denied under `all_or_nothing` though there may be enough left for them: held here, on its way,
//! or at the store once what is held goes back.
//!
//! Guarantees: nothing goes back before all that the question takes is known to do; nothing is waited for past the
//! question's end; a denial beside which nothing is held and nothing is on its way costs nothing more.
//! Leaves out: charging ([`question`](super::question)); what is charged by itself, which thinks again in
//! [`Leases::ask`].

use std::sync::Arc;

use smallvec::SmallVec;

use super::held::Coming;
use super::question::{leased, put_to};
use super::{Leased, Leases};
use crate::backend::lease::Lent;
use crate::backend::{Charges, Outcome, Outcomes, Rule};
use crate::engine::again;
use crate::kernel::lease::{Overshoot, Terms};
use crate::kernel::rate::{Room, Step, Strategy};
use crate::kernel::units::{Hits, Nanos};

/// The charges of one question that alone deny it.
pub(super) type AllShort = SmallVec<[Short; 2]>;

/// A charge that was denied.
#[derive(Clone, Copy)]
pub(super) struct Short {
    /// Where it stands in its question.
    at: usize,
    /// What the store had left; nothing where it does not say.
    left: Option<Hits>,
    /// Whether that does with what is held, unless more comes or others are sooner.
    is_known: bool,
    /// What was on its way back to the store.
    back: Hits,
}

impl Leases {
    /// Charge `at`, of which the store said `outcome`, where there may be enough left for its `hits` though that is a denial:
    /// so many were held `before` it was asked. What came or went since may be counted twice.
    pub(super) fn short(
        &self,
        at: usize,
        leased: Leased<'_>,
        hits: Hits,
        before: Hits,
        outcome: Outcome,
    ) -> Option<Short> {
        let Outcome::Stepped(Step::Deny { room, .. }) = outcome else { return None };
        let (held, coming) = self.held_and_coming(leased);
        let left = (!counts_denied(leased)).then_some(room.remaining);
        let Coming { lent, back } = coming.unwrap_or_default();
        let most = before.max(held).plus(lent).plus(back);
        let is_here = coming.is_some() || before.max(held) != Hits(0) && comes_back(leased);
        let may_do = left.is_none_or(|left| hits <= left.plus(most));
        let is_of_use = hits != Hits(0) && (hits <= held || is_here && may_do);
        let is_known =
            coming.is_none() && held <= before && left.is_some_and(|left| hits <= left.plus(held));
        is_of_use.then_some(Short { at, left, is_known, back })
    }

    /// Sees to it that what is held here, or what the store has left, does for each of `short`, of which `outcomes` came;
    /// whether the question may pass then.
    pub(super) async fn cover(
        self: &Arc<Self>,
        charges: &Charges,
        terms: &[Option<&Terms>],
        outcomes: &Outcomes,
        short: &[Short],
        end: Option<Nanos>,
    ) -> bool {
        let part = |at: usize| {
            let (leased, _) = leased(charges.list.get(at)?, *terms.get(at)?)?;
            Some((leased, put_to(charges, &leased.charge.key, |_| true)))
        };
        let mut may_pass = AllShort::from(short);
        for one in short {
            let is_coverable = match part(one.at) {
                Some((leased, hits)) => self.is_coverable(leased, hits, *one, end).await,
                None => false,
            };
            if !is_coverable {
                may_pass.retain(|other| other.at != one.at);
                if !passes_with(charges, outcomes, &may_pass) {
                    return false;
                }
            }
        }
        let mut covered = AllShort::new();
        for one in may_pass {
            if let Some((leased, hits)) = part(one.at)
                && self.hand_back(leased, hits, end).await
            {
                covered.push(one);
            }
        }
        !self.is_over(end) && passes_with(charges, outcomes, &covered)
    }

    /// Whether what is held, once nothing more is on its way, does for `hits`, or with what the store has left. Who
    /// waited for a message that failed does not ask the store again.
    async fn is_coverable(
        &self,
        leased: Leased<'_>,
        hits: Hits,
        short: Short,
        end: Option<Nanos>,
    ) -> bool {
        let (_, coming) = self.held_and_coming(leased);
        let mut has_failed = false;
        if let Some(mut settled) = self.awaited(leased) {
            if self.within(end, settled.changed()).await.is_none() {
                return false;
            }
            has_failed = settled.borrow().is_some();
        }
        let held = self.held(self.clock.now(), leased);
        if hits <= held {
            return true;
        }
        if has_failed || held != Hits(0) && !comes_back(leased) {
            return false;
        }
        let back = short.back.plus(coming.unwrap_or_default().back);
        let may_do = short.left.is_none_or(|left| hits <= left.plus(held).plus(back));
        let is_known = short.is_known && coming.is_none();
        may_do && (is_known || self.has_left(leased, hits.less(held), end).await)
    }

    /// Whether `hits` may be charged: held, or with nothing held any more.
    async fn hand_back(
        self: &Arc<Self>,
        leased: Leased<'_>,
        hits: Hits,
        end: Option<Nanos>,
    ) -> bool {
        let now = self.clock.now();
        let held = self.held(now, leased);
        if hits <= held || held == Hits(0) {
            return true;
        }
        if !comes_back(leased) {
            return false;
        }
        match self.with(leased, |held| held.hand_back(now, self.next())).flatten() {
            Some(all) => matches!(self.send_within(end, leased, all).await, Lent::Answered(_)),
            // Another question handed it back.
            None => self.held(now, leased) == Hits(0),
        }
    }

    /// Whether the store has so many hits left; it is only asked.
    async fn has_left(&self, leased: Leased<'_>, hits: Hits, end: Option<Nanos>) -> bool {
        let asked = self.within(end, self.charge_one(leased, hits, Rule::Ask)).await;
        matches!(asked, Some(Outcome::Stepped(Step::Admit(_))))
    }

    /// What is held of a key, and what is on its way, if anything.
    fn held_and_coming(&self, leased: Leased<'_>) -> (Hits, Option<Coming>) {
        let now = self.clock.now();
        self.with(leased, |held| (held.balance(now), held.coming())).unwrap_or_default()
    }
}

/// Whether the question would pass if `short` did, and does not without.
pub(super) fn passes_with(charges: &Charges, outcomes: &Outcomes, short: &[Short]) -> bool {
    let mut passing = outcomes.clone();
    for one in short {
        passing[one.at] = Outcome::Stepped(Step::Admit(Room::default()));
    }
    again::denied(charges, outcomes) && !again::denied(charges, &passing)
}

/// What a window says is left when it denies is what would be left had it counted the hits: nothing.
const fn counts_denied(leased: Leased<'_>) -> bool {
    matches!(leased.charge.strategy, Strategy::FixedWindow(_))
}

/// Whether all that is held may be charged again once it is handed back. A window or a log that moves on takes back only
/// what was lent last, and that only while it counts it; leases that end with their window are of one window.
const fn comes_back(leased: Leased<'_>) -> bool {
    match leased.charge.strategy {
        Strategy::Gcra(_) => true,
        Strategy::FixedWindow(_) => matches!(leased.terms.overshoot, Overshoot::InWindow),
        Strategy::SlidingWindow(_) | Strategy::SlidingLog(_) => false,
    }
}
