//! A backend whose counters are asked for through leases, where the strategy allows `max_overshoot: 0`.

use std::sync::Arc;

use sluicegate::backend::lease::{Lent, Message};
use sluicegate::backend::memory::{Memory, WhenFull};
use sluicegate::backend::{Backend, Charge, Charges, Outcomes, Reply};
use sluicegate::clock::Clock;
use sluicegate::engine::leases::{AllTerms, Leases};
use sluicegate::kernel::lease::sizer::Size;
use sluicegate::kernel::lease::{Overshoot, Terms};
use sluicegate::kernel::rate::Strategy;
use sluicegate::kernel::units::Nanos;

/// One member over a store that nobody else leases from.
#[derive(Debug)]
pub(super) struct Leasing {
    leases: Arc<Leases>,
    clock: Arc<Clock>,
    store: Arc<dyn Backend>,
}

impl Leasing {
    pub(super) fn over(store: impl Backend + 'static) -> Self {
        Self::with(store, Clock::system())
    }

    /// By the instants that are asked about, as the store itself.
    pub(super) fn over_memory() -> Self {
        Self::with(Memory::new(1_000, WhenFull::Deny, [7; 16]), Clock::manual(Nanos(0)))
    }

    fn with(store: impl Backend + 'static, clock: Clock) -> Self {
        let (clock, store): (_, Arc<dyn Backend>) = (Arc::new(clock), Arc::new(store));
        let leases = Leases::new(Arc::clone(&clock), Arc::clone(&store));
        Self { leases, clock, store }
    }

    fn at(&self, now: Nanos) -> Nanos {
        if let Clock::Manual(clock) = &*self.clock {
            clock.advance(now.since(self.clock.now()));
        }
        self.clock.now()
    }
}

fn terms(charge: &Charge) -> Option<Terms> {
    let is_coupled = matches!(charge.strategy, Strategy::FixedWindow(_));
    is_coupled.then_some(Terms {
        overshoot: Overshoot::InWindow,
        term: Nanos::from_secs(10),
        size: Size::Learned,
    })
}

impl Backend for Leasing {
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> Reply<'a, Outcomes> {
        Reply::Later(Box::pin(async move {
            let (now, terms): (_, Vec<_>) =
                (self.at(now), charges.list.iter().map(terms).collect());
            let terms: AllTerms<'_> = terms.iter().map(Option::as_ref).collect();
            let mut outcomes = Outcomes::new();
            match self.leases.at_once(now, charges, terms.iter().copied(), &mut outcomes) {
                Some(()) => outcomes,
                None => self.leases.charge(now, charges, &terms, None).await,
            }
        }))
    }

    fn borrow<'a>(&'a self, now: Nanos, message: &'a Message) -> Reply<'a, Lent> {
        self.store.borrow(self.at(now), message)
    }
}
