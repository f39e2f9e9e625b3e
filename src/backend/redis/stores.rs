//! One question over several places: a second Redis for limits per second, and the reference's keys
//! beside ours.
//!
//! Guarantees: one answer per charge, in the question's order; parts are asked at the same time,
//! each with its own deadline and breaker; a part that fails leaves the others as they are.
//! What all parts must decide together is asked first and charged then: between the two another
//! question may come, so that only a question within one part is atomic.
//! Leaves out: counting, which is for [`Redis`] and [`Reference`].

use smallvec::SmallVec;

use super::reference::{self, Decided, Reference};
use super::{Cause, Redis};
use crate::backend::{Backend, Charge, Charges, Outcome, Outcomes, Reply, Rule};
use crate::kernel::decision::{Cost, Group, Verdict, combine};
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

impl Part {
    /// Its charges, with their places in the question.
    fn all(&self) -> impl Iterator<Item = (usize, Charge)> {
        self.at.iter().copied().zip(self.charges.list.iter().cloned())
    }

    /// The same place with these charges under `rule`.
    fn with(&self, rule: Rule, charges: impl Iterator<Item = (usize, Charge)>) -> Self {
        let (at, list) = charges.unzip();
        Self { place: self.place, at, charges: Charges { list, rule } }
    }
}

/// A store and a kind of keys.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    per_second: bool,
    reference: bool,
}

impl Place {
    const ALL: [Self; 4] = [
        Self { per_second: false, reference: false },
        Self { per_second: false, reference: true },
        Self { per_second: true, reference: false },
        Self { per_second: true, reference: true },
    ];
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

    /// The parts that have a charge.
    fn parts(&self, charges: &Charges) -> Parts {
        let part = |place: Place| {
            let all = charges.list.iter().enumerate();
            let (at, list): (SmallVec<_>, SmallVec<_>) = all
                .filter(|(_, it)| self.place(it) == place)
                .map(|(i, it)| (i, it.clone()))
                .unzip();
            let charges = Charges { list, rule: charges.rule };
            (!at.is_empty()).then_some(Part { place, at, charges })
        };
        Place::ALL.into_iter().filter_map(part).collect()
    }

    async fn divide(&self, now: Nanos, charges: &Charges) -> Outcomes {
        let parts = self.parts(charges);
        let mut outcomes = super::failed(charges, Cause::NotUnderstood);
        let (bound, free) = self.split(parts, charges.rule);
        let asked = bound.iter().map(|part| part.with(Rule::Ask, part.all()));
        let first: SmallVec<[Part; 2]> = asked.chain(free).collect();
        self.ask(now, &first, Decided::Here, &mut outcomes).await;
        if !bound.is_empty() {
            let second = self.second(charges, &bound, &outcomes);
            self.ask(now, &second, Decided::Before, &mut outcomes).await;
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
            [one] if self.is_atomic(one.place, &one.charges) => {
                (Parts::new(), free.into_iter().chain(bound).collect())
            }
            _ => (bound, free),
        }
    }

    /// Whether these charges of one place need no second step, whatever their rule.
    fn is_atomic(&self, place: Place, charges: &Charges) -> bool {
        !place.reference || charges.list.len() == 1 || !self.store(place).is_cluster()
    }

    /// What is charged of `bound` now that every part was asked.
    fn second(&self, charges: &Charges, bound: &[Part], asked: &Outcomes) -> Parts {
        let reference = self.reference.as_ref();
        let (quota_for_all, rescued) = match charges.rule {
            Rule::AllOrNothing { quota_for_all, rescued } => (quota_for_all, rescued),
            Rule::Each | Rule::Ask => (reference.is_some_and(Reference::quota_for_all), false),
        };
        let votes = bound.iter().flat_map(|part| &part.at).map(|&at| {
            let standing = charges.list[at].standing;
            (standing.group, standing.verdict(asked[at].denies()))
        });
        let passed = rescued.then_some((Group::Quota, Verdict::Admit));
        let denied = combine(votes.chain(passed), quota_for_all) == Verdict::Deny;
        let hits = |at: usize, hits: Hits| match charges.rule {
            // Refunds were made, and who did not answer is not asked again.
            _ if matches!(asked[at], Outcome::Failed(_) | Outcome::Refunded(_)) => None,
            _ if !denied => Some(hits),
            Rule::AllOrNothing { .. } => None,
            Rule::Each | Rule::Ask => Some(if asked[at].denies() { hits } else { Hits(0) }),
        };
        let again = bound.iter().map(|part| {
            let left = part.all().filter_map(|(at, charge)| match charge.cost {
                Cost::Charge(its) => {
                    let cost = Cost::Charge(hits(at, its)?);
                    Some((at, Charge { cost, ..charge }))
                }
                Cost::Refund(_) => None,
            });
            part.with(Rule::Each, left)
        });
        again.filter(|part| !part.at.is_empty()).collect()
    }

    /// Asks all of `parts` at the same time and puts the answers where they belong.
    async fn ask(&self, now: Nanos, parts: &[Part], decided: Decided, outcomes: &mut Outcomes) {
        let one = |n: usize| async move {
            match parts.get(n) {
                // Boxed: four of them side by side, of which most are not there.
                Some(part) => Box::pin(self.charge_part(now, part, decided)).await,
                None => Outcomes::new(),
            }
        };
        let (a, b, c, d) = tokio::join!(one(0), one(1), one(2), one(3));
        for (part, answered) in parts.iter().zip([a, b, c, d]) {
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
        let is_whole = is_whole && self.is_atomic(place, charges);
        match &self.reference {
            _ if !is_whole => Reply::Later(Box::pin(self.divide(now, charges))),
            Some(reference) if place.reference => {
                let store = self.store(place);
                Reply::Later(Box::pin(reference.charge(store, now, charges, Decided::Here)))
            }
            _ => self.store(place).charge(now, charges),
        }
    }

    fn trouble(&self) -> Option<Cause> {
        self.main.trouble().or_else(|| self.per_second.as_ref()?.trouble())
    }
}
