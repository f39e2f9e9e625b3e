//! A snapshot of the classes and customers that use a limit.

use super::{Limiter, OTHERS};
use crate::concurrency::requester::{ClassUse, RequesterUse};

impl Limiter {
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
        self.in_flight.classes().for_each(|class| add(class, |one| &mut one.in_flight));
        self.queue.classes().for_each(|class| add(class, |one| &mut one.waiting));
        RequesterUse { classes, customers: self.queue.largest_customers(most, OTHERS) }
    }
}
