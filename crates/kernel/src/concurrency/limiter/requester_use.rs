//! A snapshot of the classes and customers that use a limit.

use std::collections::BTreeMap;

use super::{Limiter, OTHERS};
use crate::concurrency::requester::{ClassParts, ClassUse, MAX_WEIGHT, Requester, RequesterUse};

impl Limiter {
    /// Returns `true` if the limit has classes or fair parts.
    #[must_use]
    pub fn distinguishes_requesters(&self) -> bool {
        self.fair_keys.is_some() || self.classes != ClassParts::ONE
    }

    /// Replaces a class or a customer that this limit does not distinguish.
    #[must_use]
    pub fn known(&self, by: Requester) -> Requester {
        let class = self.classes.clamp(by.class);
        let Some(most) = self.fair_keys else { return Requester { class, ..Requester::ANY } };
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let is_full = most <= self.queue.customers_without(OTHERS);
        if by.customer == 0 || is_full && !self.queue.knows(by.customer) {
            return Requester { class, customer: OTHERS, weight: 1 };
        }
        Requester { class, customer: by.customer, weight: by.weight.clamp(1, MAX_WEIGHT) }
    }

    /// The requests in flight and in the queue, for each class and customer, with the customer's weight.
    /// Cost: reads all permits and waiting requests.
    #[must_use]
    pub fn requests_by_requester(&self) -> BTreeMap<(u8, u64), (u32, u32)> {
        let mut requests = BTreeMap::new();
        for (class, customer) in self.in_flight.requesters().chain(self.queue.requesters()) {
            let weight = self.queue.weight_of(customer);
            let one = requests.entry((class, customer)).or_insert((0_u32, weight));
            one.0 = one.0.saturating_add(1);
        }
        requests
    }

    /// The users of the limit: all classes, and the `most` customers with the most requests. Cost:
    /// reads all permits, waiting requests and customers.
    #[must_use]
    pub fn requesters(&self, most: usize) -> RequesterUse {
        let last = u8::try_from(self.classes.percents().len().saturating_sub(1)).unwrap_or(0);
        let mut classes: Vec<_> = (0..=last)
            .map(|class| ClassUse { part: self.part(class), in_flight: 0, waiting: 0 })
            .collect();
        let mut add = |class: u8, count: fn(&mut ClassUse) -> &mut u32| {
            if let Some(one) = classes.get_mut(usize::from(self.classes.clamp(class))) {
                *count(one) = count(one).saturating_add(1);
            }
        };
        self.in_flight.requesters().for_each(|(class, _)| add(class, |one| &mut one.in_flight));
        self.queue.requesters().for_each(|(class, _)| add(class, |one| &mut one.waiting));
        RequesterUse { classes, customers: self.queue.largest_customers(most, OTHERS) }
    }
}
