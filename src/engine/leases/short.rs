//! Charges that the store denied under `all_or_nothing` though there may be enough left for them: held here, on its way,
//! or at the store once what is held goes back.
//!
//! Guarantees: nothing goes back before all that the question takes was seen to do; what others have on its way is taken for
//! neither held nor left before it is there; nothing is waited for past the question's end, nor for more than [`LOOKS`]
//! messages each time; a denial beside which nothing is held and nothing is on its way costs nothing more.
//! Leaves out: charging ([`question`](super::question)); what is charged by itself, which thinks again in
//! [`Leases::ask`].

use std::sync::Arc;

use smallvec::SmallVec;

use super::held::{Coming, Seen};
use super::question::{leased, put_to};
use super::{Leased, Leases};
use crate::backend::lease::Lent;
use crate::backend::{Charges, Outcome, Outcomes, Rule};
use crate::engine::again;
use crate::kernel::lease::{Overshoot, Terms};
use crate::kernel::rate::{Room, Step, Strategy};
use crate::kernel::units::{Hits, Nanos};

/// So many times a denied question looks for what may do, and as often before it is charged: where others send one message
/// after another it would cost a call for each.
const LOOKS: usize = 4;

/// The charges of one question that alone deny it.
pub(super) type AllShort = SmallVec<[Short; 2]>;

/// A charge that was denied.
#[derive(Clone, Copy)]
pub(super) struct Short {
    /// Where it stands in its question.
    at: usize,
    /// What the store had left; nothing where it does not say.
    left: Option<Hits>,
    /// What was on its way back to the store, or may have gone back meanwhile.
    back: Hits,
    /// Up to which of the ledger's messages it is known that what is left does with what is held.
    known_at: Option<u64>,
}

/// What hits are to be taken from.
#[derive(Clone, Copy)]
enum Source {
    Held,
    /// The store, where what is held goes back.
    Store,
}

impl Leases {
    /// Charge `at`, of which the store said `outcome`, where there may be enough left for its `hits` though that is a denial;
    /// `before` is what was held, and on its way, when it was asked.
    pub(super) fn short(
        &self,
        at: usize,
        leased: Leased<'_>,
        hits: Hits,
        before: Seen,
        outcome: Outcome,
    ) -> Option<Short> {
        let Outcome::Stepped(Step::Deny { room, .. }) = outcome else { return None };
        let (seen, left) = (self.seen(leased), (!counts_denied(leased)).then_some(room.remaining));
        let Coming { lent, back } = seen.coming.unwrap_or_default();
        // What was going back may have come to the store after the question, and settled before its denial.
        let back = back.max(before.coming.unwrap_or_default().back);
        let most = before.held.max(seen.held);
        let may_do = left.is_none_or(|left| hits <= left.plus(most).plus(lent.max(back)));
        let is_here =
            seen.coming.is_some() || back != Hits(0) || most != Hits(0) && comes_back(leased);
        let is_of_use = hits != Hits(0) && (hits <= seen.held || is_here && may_do);
        let is_known = seen.coming.is_none()
            && seen.messages == before.messages
            && left.is_some_and(|left| hits <= left.plus(seen.held));
        let known_at = is_known.then_some(seen.messages);
        let back = back.max(before.held.less(seen.held));
        is_of_use.then_some(Short { at, left, back, known_at })
    }

    /// Sees to it that what is held here, or what the store has left, does for as many of `short`, of which `outcomes` came,
    /// as the question needs to pass; whether it may then. What is waited for least comes first.
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
        let passes = |short: &[Short]| passes_with(charges, outcomes, short);
        let does =
            |one: &Short| part(one.at).is_some_and(|(leased, hits)| hits <= self.seen(leased).held);
        let (mut found, mut open): (AllShort, AllShort) = short.iter().copied().partition(does);
        let mut sources: SmallVec<[Source; 2]> = found.iter().map(|_| Source::Held).collect();
        while !passes(&found) {
            let Some(one) = open.pop() else { return false };
            let Some((leased, hits)) = part(one.at) else { return false };
            if let Some(source) = self.source(leased, hits, one, end).await {
                found.push(one);
                sources.push(source);
            } else if !passes(&found.iter().chain(&open).copied().collect::<AllShort>()) {
                return false;
            }
        }
        for (one, source) in found.into_iter().zip(sources) {
            let Some((leased, hits)) = part(one.at) else { return false };
            if !self.is_there(leased, hits, source, end).await {
                return false;
            }
        }
        !self.is_over(end)
    }

    /// What does for `hits` once nothing more is on its way, if anything. Who waited for a message that failed does not ask
    /// the store again.
    async fn source(
        &self,
        leased: Leased<'_>,
        hits: Hits,
        short: Short,
        end: Option<Nanos>,
    ) -> Option<Source> {
        // Of what went back and what was lent since one is of the other, or both are beside what was left.
        let mut here = short.back;
        for _ in 0..LOOKS {
            let (back, has_failed) = self.landed(leased, end).await?;
            let seen = self.seen(leased);
            if hits <= seen.held {
                return Some(Source::Held);
            }
            if has_failed || self.is_over(end) || seen.held != Hits(0) && !comes_back(leased) {
                return None;
            }
            here = here.max(seen.held).max(back);
            // Whoever waited for the same message may have written the next.
            if seen.coming.is_some() {
                continue;
            }
            let may_do = short.left.map_or(here != Hits(0), |left| hits <= left.plus(here));
            let is_known = short.known_at == Some(seen.messages)
                && short.left.is_some_and(|left| hits <= left.plus(seen.held));
            if may_do && (is_known || self.has_left(leased, hits.less(seen.held), end).await?) {
                return Some(Source::Store);
            }
            // What was on its way when the store was asked was neither held nor left.
            if self.seen(leased).messages == seen.messages {
                return None;
            }
        }
        None
    }

    /// Whether `hits` may be charged now; where they are the store's, with nothing held any more, nor on its way back to it.
    async fn is_there(
        self: &Arc<Self>,
        leased: Leased<'_>,
        hits: Hits,
        source: Source,
        end: Option<Nanos>,
    ) -> bool {
        for _ in 0..LOOKS {
            let (now, Seen { held, coming, .. }) = (self.clock.now(), self.seen(leased));
            if hits <= held {
                return true;
            }
            match source {
                Source::Held => return false,
                Source::Store if held == Hits(0) && (coming.is_none() || !comes_back(leased)) => {
                    return true;
                }
                Source::Store if self.is_over(end) || !comes_back(leased) => return false,
                Source::Store => {}
            }
            if let Some(all) = self.with(leased, |held| held.hand_back(now, self.next())).flatten()
            {
                return matches!(self.send_within(end, leased, all).await, Lent::Answered(_));
            }
            // Another question's message is on its way, and may be one that hands it back. One that failed may not have
            // been, and the store said that it has enough.
            if !matches!(self.landed(leased, end).await, Some((_, false))) {
                return self.seen(leased).held == Hits(0);
            }
        }
        false
    }

    /// Waits for the message on its way, if there is one: what it gives back, and whether it failed. None where there is no
    /// ledger, or no time left.
    async fn landed(&self, leased: Leased<'_>, end: Option<Nanos>) -> Option<(Hits, bool)> {
        let (before, awaited) =
            self.with(leased, |held| (held.seen(self.clock.now()), held.awaited_now()))?;
        let Some(mut settled) = awaited else { return Some((Hits(0), false)) };
        let told = self.within(end, settled.changed()).await?;
        let has_failed = told.is_ok() && settled.borrow().is_some();
        Some((before.coming.unwrap_or_default().back, has_failed))
    }

    /// Whether the store has so many hits left; it is only asked. None where it does not say.
    async fn has_left(&self, leased: Leased<'_>, hits: Hits, end: Option<Nanos>) -> Option<bool> {
        let asked = self.within(end, self.charge_one(leased, hits, Rule::Ask)).await?;
        let Outcome::Stepped(step) = asked else { return None };
        Some(matches!(step, Step::Admit(_)))
    }

    /// What is held of a key, and what is on its way.
    pub(super) fn seen(&self, leased: Leased<'_>) -> Seen {
        let now = self.clock.now();
        self.with(leased, |held| held.seen(now)).unwrap_or_default()
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
