//! One check over several stores and key formats: a second Redis
//! for limits per second, and the keys of envoyproxy/ratelimit.
//!
//! Guarantees:
//! - Each charge has one outcome, in the order of the check.
//! - All parts are called at the same time, each with its own deadline and breaker.
//! - A failed part leaves the others unchanged.
//! - A joint decision reserves first and charges second ([`super::steps`]), within one deadline.
//! - A denied all-or-nothing check leaves no hits charged.
//! - A check within one part is atomic; a check over several parts is not.
//!
//! Not covered:
//! - Counting, which [`Redis`] and [`Reference`] do.
//!
//! A denied all-or-nothing check cancels its reservations under our keys
//! ([`super::holding`]). It refunds its hits under the keys of envoyproxy/ratelimit.
//! These keys contain their window, so a refund reaches the window that was charged.

use std::time::Duration;

use futures_util::future::{join, join_all};
use smallvec::SmallVec;
use tokio::time::timeout;

use super::holding::Holding;
use super::reference::{self, Decided, Reference};
use super::steps::{Spared, Together, can_be_held};
use super::{Answered, Cause, Redis, put, uncharged};
use crate::backend::fleet::{Beat, Fleet};
use crate::backend::heartbeat::{Heard, Round};
use crate::backend::inside::Inside;
use crate::backend::lease::{Lent, Message};
use crate::backend::permits::{Acquire, AllHeard, Answer, Round as Telling};
use crate::backend::{Backend, Charge, Charges, Held, Outcome, Outcomes, Reply, Rule};
use crate::kernel::decision::Cost;
use crate::kernel::rate::limit::EXACT;
use crate::kernel::units::{Hits, Nanos};

/// All stores that contain the counters of one process.
#[derive(Debug)]
pub struct Stores {
    main: Redis,
    per_second: Option<Redis>,
    reference: Option<Reference>,
}

/// Some charges of a check that have the same store and key format.
struct Part {
    place: Place,
    /// The positions of the charges in the check.
    at: SmallVec<[usize; 2]>,
    charges: Charges,
}

type Parts = SmallVec<[Part; 2]>;

type Places = SmallVec<[usize; 2]>;

#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    per_second: bool,
    reference: bool,
}

impl Stores {
    /// Keeps all counters in `main`.
    #[must_use]
    pub const fn new(main: Redis) -> Self {
        Self { main, per_second: None, reference: None }
    }

    /// Sends limits per second to `store`.
    #[must_use]
    pub fn with_per_second(self, store: Redis) -> Self {
        let per_second = Some(store.among_others());
        Self { main: self.main.among_others(), per_second, reference: self.reference }
    }

    /// Counts keys in the format of envoyproxy/ratelimit as that service does.
    #[must_use]
    pub fn with_reference(self, options: reference::Options) -> Self {
        let reference = Some(Reference::new(options));
        let per_second = self.per_second.map(Redis::among_others);
        Self { main: self.main.among_others(), per_second, reference }
    }

    fn place(&self, charge: &Charge) -> Place {
        Place {
            per_second: charge.per_second && self.per_second.is_some(),
            reference: self.reference.is_some() && reference::is_reference(charge),
        }
    }

    fn store(&self, place: Place) -> &Redis {
        self.per_second.as_ref().filter(|_| place.per_second).unwrap_or(&self.main)
    }

    /// Groups the charges by store and key format. Each
    /// charge comes with its position in the check.
    fn parts<'c>(&self, all: impl Iterator<Item = (usize, &'c Charge)>, rule: Rule) -> Parts {
        let mut parts = Parts::new();
        for (at, charge) in all {
            let place = self.place(charge);
            let known = parts.iter().position(|part: &Part| part.place == place);
            let number = known.unwrap_or_else(|| {
                let charges = Charges { rule, ..Charges::default() };
                parts.push(Part { place, at: SmallVec::new(), charges });
                parts.len() - 1
            });
            parts[number].at.push(at);
            parts[number].charges.list.push(charge.clone());
        }
        parts
    }

    async fn divide(&self, now: Nanos, charges: &Charges) -> Outcomes {
        let parts = self.parts(charges.list.iter().enumerate(), charges.rule);
        let mut outcomes = super::failed(charges, Cause::NotUnderstood);
        let (bound, free) = self.split(parts, charges.rule);
        let apart = self.ask(now, &free, Decided::Here, None);
        let (apart, bound) = join(apart, self.decide(now, charges, &bound)).await;
        put(apart, &mut outcomes);
        put(bound, &mut outcomes);
        outcomes
    }

    /// Separates the parts that need a joint decision in two steps from the others.
    fn split(&self, parts: Parts, rule: Rule) -> (Parts, Parts) {
        let stops = self.reference.as_ref().is_some_and(Reference::stops);
        let is_bound = |part: &Part| match rule {
            Rule::Ask => false,
            Rule::Each => part.place.reference && stops,
            Rule::AllOrNothing { .. } => true,
        };
        let (bound, free): (Parts, Parts) = parts.into_iter().partition(is_bound);
        match &bound[..] {
            [one] if self.is_whole(one.place, &one.charges) => {
                (Parts::new(), free.into_iter().chain(bound).collect())
            }
            _ => (bound, free),
        }
    }

    /// Returns `true` if one call can decide these charges under any rule.
    fn is_whole(&self, place: Place, charges: &Charges) -> bool {
        !place.reference || charges.list.len() == 1 || !self.store(place).route.is_clustered()
    }

    /// Decides all of `bound` jointly. Reserves a charge where possible, and queries the
    /// others. Then charges the queried ones, and commits unless a limit denied meanwhile.
    async fn decide(&self, now: Nanos, charges: &Charges, bound: &[Part]) -> Answered {
        let places: Places = bound.iter().flat_map(|part| part.at.iter().copied()).collect();
        if places.is_empty() {
            return Answered::new();
        }
        let (list, together) = (&charges.list, self.together(charges.rule));
        let has_reference = bound.iter().any(|part| part.place.reference);
        let (deadline, steps) = (self.main.deadline, if has_reference { 3 } else { 2 });
        let patience = deadline / steps;
        let mut outcomes = super::failed(charges, Cause::Late);
        let (mut holding, tried) = self.to_be_held(list, &places);
        let rest = places.iter().filter(|&at| !tried.contains(at)).map(|&at| (at, &list[at]));
        let rest = self.parts(rest, Rule::Ask);
        let asked = self.ask(now, &rest, Decided::Here, Some(patience));
        let (asked, ()) = join(asked, holding.hold(patience, &mut outcomes)).await;
        put(asked.into_iter().map(|(at, told)| (at, uncharged(told))).collect(), &mut outcomes);
        let asked = outcomes.clone();
        let second = together.second(list, &places, &asked, &tried);
        // The second charge needs its own share of the deadline, before the commit.
        let left = deadline.saturating_sub(patience);
        let patience = if second.is_empty() { left.min(patience) } else { left / 2 };
        let parts = self.parts(second.iter().map(|(at, charge)| (*at, charge)), Rule::Each);
        put(self.ask(now, &parts, Decided::Before, Some(patience)).await, &mut outcomes);
        if together.spared == Spared::All && together.deny(list, &places, &outcomes) {
            let mut left = outcomes.clone();
            let given = self.give_back(now, &second, &outcomes, patience);
            let (given, ()) = join(given, holding.give_back(patience, &mut left)).await;
            outcomes = left;
            for (at, it) in given {
                // A limit that denied keeps its own denial.
                if matches!(it, Outcome::Refunded(_)) && !outcomes[at].denies() {
                    outcomes[at] = asked[at];
                }
            }
        } else {
            holding.keep(patience, &mut outcomes).await;
        }
        places.iter().map(|&at| (at, outcomes[at])).collect()
    }

    fn together(&self, rule: Rule) -> Together {
        let stopping = || Together {
            quota_for_all: self.reference.as_ref().is_some_and(Reference::quota_for_all),
            rescued: false,
            spared: Spared::Others,
        };
        Together::of(rule).unwrap_or_else(stopping)
    }

    /// The reservations for the given positions, and the positions that can be reserved.
    fn to_be_held(&self, list: &[Charge], places: &[usize]) -> (Holding, Places) {
        let mut holding = Holding::default();
        let is_ours = |at: usize| !self.place(&list[at]).reference;
        let can = |&&at: &&usize| is_ours(at) && can_be_held(list, at);
        let tried: Places = places.iter().filter(can).copied().collect();
        for &at in &tried {
            holding.add(&self.store(self.place(&list[at])).holder, at, &list[at]);
        }
        (holding, tried)
    }

    /// Refunds hits that were `charged` under the keys of
    /// envoyproxy/ratelimit, also where the key denied them.
    async fn give_back(
        &self,
        now: Nanos,
        charged: &[(usize, Charge)],
        outcomes: &Outcomes,
        patience: Duration,
    ) -> Answered {
        let taken = charged.iter().filter_map(|(at, charge)| {
            let is_taken = is_taken(outcomes[*at]);
            let Cost::Charge(hits @ Hits(1..)) = charge.cost else { return None };
            let cost = Cost::Refund(hits);
            let is_theirs = self.place(charge).reference;
            (is_taken && is_theirs).then(|| (*at, Charge { cost, ..charge.clone() }))
        });
        let taken: SmallVec<[(usize, Charge); 2]> = taken.collect();
        let parts = self.parts(taken.iter().map(|(at, charge)| (*at, charge)), Rule::Each);
        self.ask(now, &parts, Decided::Before, Some(patience)).await
    }

    async fn ask(
        &self,
        now: Nanos,
        parts: &[Part],
        decided: Decided,
        patience: Option<Duration>,
    ) -> Answered {
        let ask = |part| self.charge_part(now, part, decided, patience);
        let asked = join_all(parts.iter().map(ask)).await;
        let places = parts.iter().flat_map(|part| part.at.iter().copied());
        places.zip(asked.into_iter().flatten()).collect()
    }

    async fn charge_part(
        &self,
        now: Nanos,
        part: &Part,
        decided: Decided,
        patience: Option<Duration>,
    ) -> Outcomes {
        let (store, charges) = (self.store(part.place), &part.charges);
        let patience = patience.unwrap_or(store.deadline);
        match &self.reference {
            Some(reference) if part.place.reference => {
                reference.charge(store, now, charges, decided, patience).await
            }
            _ => match store.charge(now, charges) {
                Reply::Now(outcomes) => outcomes,
                Reply::Later(reply) => {
                    let answered = timeout(patience, reply).await;
                    answered.unwrap_or_else(|_| super::failed(charges, Cause::Late))
                }
            },
        }
    }
}

/// Returns `true` if the key of envoyproxy/ratelimit counted the hits. It also counts denied
/// hits. It does not count a remembered denial, which makes no call, nor hits above its capacity.
const fn is_taken(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Counted(_, Held { held, is_remembered: false }) if held != EXACT)
}

impl Backend for Stores {
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> Reply<'a, Outcomes> {
        let Some(first) = charges.list.first() else { return Reply::Now(Outcomes::new()) };
        let place = self.place(first);
        let is_whole = charges.list[1..].iter().all(|charge| self.place(charge) == place);
        let is_whole = is_whole && self.is_whole(place, charges);
        match &self.reference {
            _ if !is_whole => Reply::Later(Box::pin(self.divide(now, charges))),
            Some(reference) if place.reference => {
                let store = self.store(place);
                let asked = reference.charge(store, now, charges, Decided::Here, store.deadline);
                Reply::Later(Box::pin(asked))
            }
            _ => self.store(place).charge(now, charges),
        }
    }

    /// The other limits of a domain are unknown here. If two stores
    /// or key formats are configured, a domain may use both.
    fn held_for(&self, charge: &Charge) -> Option<Nanos> {
        self.store(self.place(charge)).held_for(charge)
    }

    fn place_of(&self, now: Nanos, charge: &Charge) -> u32 {
        let place = self.place(charge);
        let store = self.store(place);
        let within = match &self.reference {
            Some(reference) if place.reference => reference.slot(store, charge, now).into(),
            _ => store.place_of(now, charge),
        };
        // This bit is above every slot number.
        within | u32::from(place.per_second) << u16::BITS
    }

    /// Keys in the format of envoyproxy/ratelimit are never leased.
    fn borrow<'a>(&'a self, now: Nanos, message: &'a Message) -> Reply<'a, Lent> {
        let place =
            Place { per_second: message.per_second && self.per_second.is_some(), reference: false };
        self.store(place).borrow(now, message)
    }

    fn together(&self, begin: &mut dyn FnMut()) {
        match &self.per_second {
            Some(store) => self.main.together(&mut || store.together(begin)),
            None => self.main.together(begin),
        }
    }

    fn beat<'a>(&'a self, beat: &'a Beat) -> Reply<'a, Result<Fleet, Cause>> {
        self.main.beat(beat)
    }

    fn heartbeat<'a>(&'a self, now: Nanos, round: &'a Round) -> Reply<'a, Result<Heard, Cause>> {
        self.main.heartbeat(now, round)
    }

    fn acquire<'a>(&'a self, now: Nanos, asked: &'a Acquire) -> Reply<'a, Result<Answer, Cause>> {
        self.main.acquire(now, asked)
    }

    fn tell<'a>(&'a self, now: Nanos, round: &'a Telling) -> Reply<'a, AllHeard> {
        self.main.tell(now, round)
    }

    fn deadline(&self) -> Option<Nanos> {
        self.main.deadline()
    }

    fn trouble(&self) -> Option<Cause> {
        self.main.trouble().or_else(|| self.per_second.as_ref()?.trouble())
    }

    fn inside(&self) -> Inside {
        let per_second = self.per_second.as_ref().and_then(|store| store.inside().connections);
        let remembered = self.reference.as_ref().and_then(Reference::remembered);
        Inside { per_second, remembered, ..self.main.inside() }
    }
}
