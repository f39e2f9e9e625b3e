//! The calls of one check to one store, and the outcomes of their replies.
//!
//! Guarantees:
//! - A counter in the deny cache causes no store call.
//! - Charges of one slot share a call; calls to several slots run concurrently.
//!
//! Not covered:
//! - The transport ([`super::send`]).

use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::denied::{Look, Over};
use super::send::Reply;
use super::{Counter, Decided, Reference};
use crate::backend::redis::Redis;
use crate::backend::{Charge, Charges, Held, Outcome, Outcomes, Rule};
use crate::kernel::decision::{Group, Verdict, combine};
use crate::kernel::rate::Step;
use crate::kernel::units::{Hits, Nanos};

pub(super) struct Question<'q> {
    pub(super) reference: &'q Reference,
    pub(super) redis: &'q Redis,
    pub(super) now: Nanos,
    pub(super) charges: &'q Charges,
    pub(super) counters: &'q [Counter],
    pub(super) decided: Decided,
    pub(super) patience: Duration,
}

/// Indices of charges in the check.
pub(super) type Places = SmallVec<[usize; 2]>;

pub(super) type Replies = SmallVec<[Reply; 2]>;

type Looks = SmallVec<[Look; 2]>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// Charge in a pipeline, as envoyproxy/ratelimit does.
    Each,
    /// The same with zero hits: the deny cache already denies the check.
    Stopped,
    /// Read in a pipeline.
    Ask,
    /// Decide in the script, in this mode.
    Together(&'static str),
}

impl Question<'_> {
    pub(super) async fn answer(&self) -> Outcomes {
        let _heeded = Heeded::begin(self);
        let looks: Looks = self.counters.iter().map(|it| self.look(it)).collect();
        let known: SmallVec<[bool; 2]> = looks.iter().map(|look| look.is_over).collect();
        let places: Places = (0..known.len()).filter(|&place| !known[place]).collect();
        let mut outcomes: Outcomes = self.counters.iter().map(|it| it.over(self.now)).collect();
        if places.is_empty() {
            return outcomes;
        }
        let way = self.way(&known);
        let parts = self.by_slot(&places);
        let put = parts.iter().map(|(slot, places)| self.put(*slot, places, way));
        for ((_, places), replies) in parts.iter().zip(join_all(put).await) {
            for (&place, reply) in places.iter().zip(replies) {
                outcomes[place] = self.outcome(place, reply, looks[place]);
            }
        }
        outcomes
    }

    /// Groups indices by the slot of their keys. Outside a Cluster there is one group.
    fn by_slot(&self, places: &[usize]) -> SmallVec<[(u16, Places); 1]> {
        let mut parts: SmallVec<[(u16, Places); 1]> = SmallVec::new();
        for &place in places {
            let slot = self.redis.route.slot_of(&self.counters[place].key);
            match parts.iter_mut().find(|(of, _)| *of == slot) {
                Some((_, places)) => places.push(place),
                None => parts.push((slot, SmallVec::from_elem(place, 1))),
            }
        }
        parts
    }

    fn look(&self, counter: &Counter) -> Look {
        if counter.is_refund {
            return Look::default();
        }
        self.reference.denied.look(&counter.key, self.reference.known_for(counter), self.now)
    }

    fn forget(&self) {
        for counter in self.counters.iter().filter(|counter| counter.is_refund) {
            self.reference.denied.forget(&counter.key);
        }
    }

    /// Chooses how to send the charges that the deny cache does not decide.
    fn way(&self, known: &[bool]) -> Way {
        let stops = self.reference.options.stop_when_over;
        let is_denied = known.contains(&true) && self.is_denied_by(known);
        match self.charges.rule {
            Rule::Ask => Way::Ask,
            Rule::Each if !stops || self.decided == Decided::Before => Way::Each,
            Rule::Each if is_denied => Way::Stopped,
            // A single charge has no others to skip.
            Rule::Each if self.charges.list.len() == 1 => Way::Each,
            Rule::AllOrNothing { .. } if is_denied => Way::Ask,
            Rule::Each | Rule::AllOrNothing { .. } => Way::Together(self.letters(known)),
        }
    }

    fn is_denied_by(&self, known: &[bool]) -> bool {
        let votes = self
            .charges
            .list
            .iter()
            .zip(known)
            .map(|(charge, known)| (charge.standing.group, charge.standing.verdict(*known)));
        let (quota_for_all, rescued) = self.quota();
        let passed = rescued.then_some((Group::Quota, Verdict::Admit));
        combine(votes.chain(passed), quota_for_all) == Verdict::Deny
    }

    const fn quota(&self) -> (bool, bool) {
        match self.charges.rule {
            Rule::AllOrNothing { quota_for_all, rescued } => (quota_for_all, rescued),
            Rule::Each | Rule::Ask => (self.reference.options.quota_for_all, false),
        }
    }

    /// Returns the mode in the script's notation.
    fn letters(&self, known: &[bool]) -> &'static str {
        let (quota_for_all, rescued) = self.quota();
        // The script does not receive cached charges. In
        // shadow mode they keep the quota group from denying.
        let passes = |(charge, known): (&Charge, &bool)| {
            let in_group = quota_for_all || charge.standing.group == Group::Quota;
            *known && in_group && charge.standing.shadow
        };
        let rescued = rescued || self.charges.list.iter().zip(known).any(passes);
        match (self.charges.rule, quota_for_all, rescued) {
            (Rule::AllOrNothing { .. }, false, false) => "a",
            (Rule::AllOrNothing { .. }, false, true) => "ar",
            (Rule::AllOrNothing { .. }, true, false) => "aq",
            (Rule::AllOrNothing { .. }, true, true) => "aqr",
            (Rule::Each | Rule::Ask, false, false) => "s",
            (Rule::Each | Rule::Ask, false, true) => "sr",
            (Rule::Each | Rule::Ask, true, false) => "sq",
            (Rule::Each | Rule::Ask, true, true) => "sqr",
        }
    }

    fn outcome(&self, place: usize, reply: Reply, before: Look) -> Outcome {
        let (counter, now) = (&self.counters[place], self.now);
        if let Reply::Charged(held) | Reply::Spared(held) | Reply::Over(held) = reply
            && u64::from(counter.window.limit()) < held
        {
            let over =
                Over { limit: self.reference.known_for(counter), end: self.is_over_until(counter) };
            self.reference.denied.remember(&counter.key, over, now, before);
        }
        let asked = |held| Held { held, is_remembered: false };
        match reply {
            Reply::Charged(held) => Outcome::Counted(counter.counted(held, now), asked(held)),
            Reply::Spared(held) => Outcome::Counted(counter.step(held, now, Hits(0)), asked(held)),
            Reply::Over(held) => {
                let together = self.together(place);
                Outcome::Counted(
                    counter.step(held, now, together),
                    asked(held.saturating_add(together.0)),
                )
            }
            Reply::GivenBack(held) => Outcome::Refunded(Step::Admit(counter.room(held, now))),
            Reply::Failed(cause) => Outcome::Failed(cause),
        }
    }

    /// Returns the instant until which a counter is certainly over its
    /// limit. A check that several calls decide may return its hits.
    fn is_over_until(&self, counter: &Counter) -> Nanos {
        let is_for_itself = matches!(self.charges.rule, Rule::Each);
        if is_for_itself && self.decided == Decided::Here {
            return counter.end;
        }
        counter.end.min(self.now.plus(self.redis.holder.term()))
    }

    /// Returns the hits of a charge and of all earlier charges to the same counter.
    pub(super) fn together(&self, place: usize) -> Hits {
        let own = &self.counters[place];
        let earlier = self.counters.iter().take(place);
        let same = earlier.filter(|it| it.key == own.key && !it.is_refund);
        same.fold(own.hits, |sum, it| sum.plus(it.hits))
    }
}

/// A guard that drops refunded counters from the deny cache when the check begins and when it ends.
///
/// A denial from before the refund may arrive in between. The drop
/// also covers a canceled check, whose refund may already be made.
struct Heeded<'q>(&'q Question<'q>);

impl<'q> Heeded<'q> {
    fn begin(question: &'q Question<'q>) -> Self {
        question.forget();
        Self(question)
    }
}

impl Drop for Heeded<'_> {
    fn drop(&mut self) {
        self.0.forget();
    }
}
