//! A backend whose counters are asked for through leases, where the strategy allows `max_overshoot: 0`.
//!
//! A lease has a fixed size, so that a key that is asked once under `each` is lent to. One that is first asked for under
//! `all_or_nothing` is lent to before, at no cost to its counter: what the law says of it is then said of a balance.

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use sluicegate::backend::lease::{Lent, Message};
use sluicegate::backend::memory::{Memory, WhenFull};
use sluicegate::backend::{Backend, Charge, Charges, Outcomes, Reply, Rule};
use sluicegate::clock::Clock;
use sluicegate::engine::leases::{AllTerms, Leases};
use sluicegate::kernel::decision::{Cost, Standing};
use sluicegate::kernel::key::CounterKey;
use sluicegate::kernel::lease::sizer::Size;
use sluicegate::kernel::lease::{Overshoot, Terms};
use sluicegate::kernel::rate::Strategy;
use sluicegate::kernel::units::{Hits, Nanos};

use super::{admits, all_or_nothing};
use crate::waiting::soon;

/// Longer than any law takes: what is void at its end stays charged.
const TERM: Nanos = Nanos::from_secs(60);

/// More than the most that one lease is for.
const SIZE: Size = Size::Fixed(Hits(100));

/// One member over a store that nobody else leases from.
#[derive(Debug)]
pub(super) struct Leasing {
    leases: Arc<Leases>,
    clock: Arc<Clock>,
    store: Arc<dyn Backend>,
    /// Keys that were asked for.
    known: Mutex<HashSet<CounterKey>>,
    /// Charges that a balance answered.
    answered: AtomicU64,
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
        Self { leases, clock, store, known: Mutex::default(), answered: AtomicU64::new(0) }
    }

    /// What holds of a backend that was never answered from a balance is not said of leased limits.
    #[track_caller]
    pub(super) fn has_answered_from_balances(&self, strategy: Strategy) {
        let answered = self.answered.load(Relaxed);
        assert_eq!(0 < answered, may_be_leased(strategy), "{answered} answers, {strategy:?}");
    }

    fn at(&self, now: Nanos) -> Nanos {
        if let Clock::Manual(clock) = &*self.clock {
            clock.advance(now.since(self.clock.now()));
        }
        self.clock.now()
    }

    /// Borrows for keys that nobody asked for yet. Who asks under `all_or_nothing` is lent nothing before the second
    /// question, and then in the background; each of these gives back what it takes.
    async fn lend(&self, now: Nanos, charges: &Charges, is_together: bool) {
        for charge in &charges.list {
            let is_new = self.known.lock().unwrap().insert(charge.key.clone());
            let lends = is_together && is_new;
            let (Some(terms), Cost::Charge(_), true) = (terms(charge), charge.cost, lends) else {
                continue;
            };
            let of = |cost| Charge { cost, standing: Standing::default(), ..charge.clone() };
            let nothing = all_or_nothing([of(Cost::Charge(Hits(1))), of(Cost::Refund(Hits(1)))]);
            for _ in 0..2 {
                self.leases.charge(now, &nothing, &[Some(&terms), None]).await;
                self.settled().await;
            }
        }
    }

    /// Waits for what is on its way in the background, which holds on to the leases. Balances that went with it are
    /// nowhere until it is answered: whoever asks what is left meanwhile is shown less, though none is denied for it.
    async fn settled(&self) {
        let settled = async {
            while 1 < Arc::strong_count(&self.leases) {
                tokio::task::yield_now().await;
            }
        };
        soon("an answer to what was sent in the background", settled).await;
    }

    fn balances(&self, charges: &Charges) -> Vec<Hits> {
        charges.list.iter().map(|charge| self.leases.balance(&charge.key)).collect()
    }

    /// How many of the `charges` were admitted and are what is missing of the balances of `before`.
    fn taken(&self, before: &[Hits], charges: &Charges, outcomes: &Outcomes) -> usize {
        let now = self.balances(charges);
        let is_taken = |at: &usize| match charges.list[*at].cost {
            Cost::Charge(hits) if hits != Hits(0) && admits(outcomes[*at]) => {
                before[*at] == now[*at].plus(hits)
            }
            _ => false,
        };
        (0..charges.list.len()).filter(is_taken).count()
    }
}

/// Nothing else ends with a window.
const fn may_be_leased(strategy: Strategy) -> bool {
    matches!(strategy, Strategy::FixedWindow(_))
}

fn terms(charge: &Charge) -> Option<Terms> {
    let terms = Terms { overshoot: Overshoot::InWindow, term: TERM, size: SIZE };
    may_be_leased(charge.strategy).then_some(terms)
}

impl Backend for Leasing {
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> Reply<'a, Outcomes> {
        Reply::Later(Box::pin(async move {
            let (now, terms): (_, Vec<_>) =
                (self.at(now), charges.list.iter().map(terms).collect());
            let terms: AllTerms<'_> = terms.iter().map(Option::as_ref).collect();
            let is_together = matches!(charges.rule, Rule::AllOrNothing { .. });
            self.lend(now, charges, is_together).await;
            let (before, mut outcomes) = (self.balances(charges), Outcomes::new());
            // What takes no call is answered from balances, or is a denial that was heard before.
            let is_done =
                self.leases.at_once(now, charges, terms.iter().copied(), &mut outcomes).is_some();
            let answered = if is_done {
                outcomes.iter().filter(|outcome| admits(**outcome)).count()
            } else {
                outcomes = self.leases.charge(now, charges, &terms).await;
                // Others who ask under `each` change the balances, too.
                if is_together { self.taken(&before, charges, &outcomes) } else { 0 }
            };
            if is_together {
                self.settled().await;
            }
            self.answered.fetch_add(answered as u64, Relaxed);
            outcomes
        }))
    }

    fn borrow<'a>(&'a self, now: Nanos, message: &'a Message) -> Reply<'a, Lent> {
        self.store.borrow(self.at(now), message)
    }
}
