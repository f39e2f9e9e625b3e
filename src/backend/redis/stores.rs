//! One question over several places: a second Redis for limits per second, and the reference's keys
//! beside ours.
//!
//! Guarantees: one answer per charge, in the question's order; parts are asked at the same time,
//! each with its own deadline and breaker; a part that fails leaves the others as they are.
//! What all parts must decide together is asked first and charged then ([`super::steps`]): only a
//! question within one part is atomic. Of one that is denied only when it is charged, hits under the
//! reference's keys are given back: these keys name their window, so that they get back to where they were taken.
//! All other hits stay charged, for a late refund could open the next window above its limit.
//! Leaves out: counting, which is for [`Redis`] and [`Reference`].

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::reference::{self, Decided, Reference};
use super::steps::{Spared, Together};
use super::{Cause, Redis};
use crate::backend::fleet::{Beat, Fleet};
use crate::backend::heartbeat::{Heard, Round};
use crate::backend::lease::{Lent, Message};
use crate::backend::{Backend, Charge, Charges, Outcome, Outcomes, Reply, Rule};
use crate::kernel::decision::Cost;
use crate::kernel::rate::Step;
use crate::kernel::units::{Hits, Nanos};

/// All places where the counters of one process live.
#[derive(Debug)]
pub struct Stores {
    main: Redis,
    per_second: Option<Redis>,
    reference: Option<Reference>,
}

/// Some charges of a question, of one store and one kind of keys.
struct Part {
    place: Place,
    /// Where its charges stand in the question.
    at: SmallVec<[usize; 2]>,
    charges: Charges,
}

type Parts = SmallVec<[Part; 2]>;

/// A store and a kind of keys.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    per_second: bool,
    reference: bool,
}

impl Stores {
    /// Counters in `main`.
    #[must_use]
    pub const fn new(main: Redis) -> Self {
        Self { main, per_second: None, reference: None }
    }

    /// The same, but limits per second are counted in `store`.
    #[must_use]
    pub fn with_per_second(self, store: Redis) -> Self {
        Self { per_second: Some(store), ..self }
    }

    /// The same, but keys of the reference's spelling are counted as the reference does.
    #[must_use]
    pub fn with_reference(self, options: reference::Options) -> Self {
        Self { reference: Some(Reference::new(options)), ..self }
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

    /// The parts that have one of `all`, each of which stands beside its place in the question.
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
        let (mut bound, free) = self.split(parts, charges.rule);
        let places: SmallVec<[usize; 2]> = bound.iter().flat_map(|part| part.at.clone()).collect();
        for part in &mut bound {
            part.charges.rule = Rule::Ask;
        }
        let first: Parts = bound.into_iter().chain(free).collect();
        self.ask(now, &first, Decided::Here, &mut outcomes).await;
        if !places.is_empty() {
            self.charge_together(now, charges, &places, &mut outcomes).await;
        }
        outcomes
    }

    /// Parts that must decide together and cannot do so in one step, and the others.
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

    /// Whether these charges of one place need no second step here, whatever their rule.
    fn is_whole(&self, place: Place, charges: &Charges) -> bool {
        !place.reference || charges.list.len() == 1 || !self.store(place).route.is_clustered()
    }

    /// The second step for those at `places`, now that all of them were asked.
    async fn charge_together(
        &self,
        now: Nanos,
        charges: &Charges,
        places: &[usize],
        outcomes: &mut Outcomes,
    ) {
        let stopping = || Together {
            quota_for_all: self.reference.as_ref().is_some_and(Reference::quota_for_all),
            rescued: false,
            spared: Spared::Others,
        };
        let together = Together::of(charges.rule).unwrap_or_else(stopping);
        let asked = outcomes.clone();
        let second = together.second(&charges.list, places, &asked);
        let parts = self.parts(second.iter().map(|(at, charge)| (*at, charge)), Rule::Each);
        self.ask(now, &parts, Decided::Before, outcomes).await;
        if together.spared == Spared::All && together.deny(&charges.list, places, outcomes) {
            self.give_back(now, &second, &asked, outcomes).await;
        }
    }

    /// Gives back what was `charged` under the reference's keys, as if only asked.
    async fn give_back(
        &self,
        now: Nanos,
        charged: &[(usize, Charge)],
        asked: &Outcomes,
        outcomes: &mut Outcomes,
    ) {
        let taken = charged.iter().filter_map(|(at, charge)| {
            // What denied was perhaps not charged: it is not asked when it is known to be over.
            let is_taken = matches!(
                outcomes[*at],
                Outcome::Stepped(Step::Admit(_)) | Outcome::Counted(Step::Admit(_), _)
            );
            let Cost::Charge(hits @ Hits(1..)) = charge.cost else { return None };
            let is_ours = !self.place(charge).reference;
            let cost = Cost::Refund(hits);
            (is_taken && !is_ours).then(|| (*at, Charge { cost, ..charge.clone() }))
        });
        let taken: SmallVec<[(usize, Charge); 2]> = taken.collect();
        let parts = self.parts(taken.iter().map(|(at, charge)| (*at, charge)), Rule::Each);
        let mut given = outcomes.clone();
        self.ask(now, &parts, Decided::Before, &mut given).await;
        for (at, _) in taken {
            if let Outcome::Refunded(_) = given[at] {
                outcomes[at] = asked[at];
            }
        }
    }

    /// Asks all of `parts` at the same time and puts the answers where they belong.
    async fn ask(&self, now: Nanos, parts: &[Part], decided: Decided, outcomes: &mut Outcomes) {
        let asked = join_all(parts.iter().map(|part| self.charge_part(now, part, decided))).await;
        for (part, answered) in parts.iter().zip(asked) {
            for (&at, outcome) in part.at.iter().zip(answered) {
                outcomes[at] = outcome;
            }
        }
    }

    async fn charge_part(&self, now: Nanos, part: &Part, decided: Decided) -> Outcomes {
        let store = self.store(part.place);
        match &self.reference {
            Some(reference) if part.place.reference => {
                reference.charge(store, now, &part.charges, decided).await
            }
            _ => match store.charge(now, &part.charges) {
                Reply::Now(outcomes) => outcomes,
                Reply::Later(reply) => reply.await,
            },
        }
    }
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
                Reply::Later(Box::pin(reference.charge(store, now, charges, Decided::Here)))
            }
            _ => self.store(place).charge(now, charges),
        }
    }

    /// Keys of the reference's spelling are never leased.
    fn borrow<'a>(&'a self, now: Nanos, message: &'a Message) -> Reply<'a, Lent> {
        let place =
            Place { per_second: message.per_second && self.per_second.is_some(), reference: false };
        self.store(place).borrow(now, message)
    }

    fn beat<'a>(&'a self, beat: &'a Beat) -> Reply<'a, Result<Fleet, Cause>> {
        self.main.beat(beat)
    }

    fn heartbeat<'a>(&'a self, now: Nanos, round: &'a Round) -> Reply<'a, Result<Heard, Cause>> {
        self.main.heartbeat(now, round)
    }

    fn trouble(&self) -> Option<Cause> {
        self.main.trouble().or_else(|| self.per_second.as_ref()?.trouble())
    }
}
