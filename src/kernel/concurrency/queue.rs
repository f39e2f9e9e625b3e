//! The queue of requests that wait for a permit.
//!
//! Guarantees:
//! - First in, first out.
//! - A waiter leaves once: served, timed out or canceled.
//! - Joining and serving cost O(1); leaving from the middle costs O(queue length).
//!
//! Not covered:
//! - The queue's bounds; see [`super::limiter`].

use std::collections::VecDeque;

use crate::kernel::units::Nanos;

/// The number of a waiting request. Later tickets are larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Waiter {
    pub(super) ticket: Ticket,
    pub(super) until: Nanos,
    /// The lifetime of the permit, counted from its admission.
    pub(super) keep: Option<Nanos>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Queue {
    waiters: VecDeque<Waiter>,
    given: u64,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn join(&mut self, until: Nanos, keep: Option<Nanos>) -> Ticket {
        let ticket = Ticket(self.given);
        self.given = self.given.saturating_add(1);
        self.waiters.push_back(Waiter { ticket, until, keep });
        ticket
    }

    pub(super) fn serve(&mut self) -> Option<Waiter> {
        self.waiters.pop_front()
    }

    /// Removes `ticket`; `false` if it is not waiting.
    pub(super) fn leave(&mut self, ticket: Ticket) -> bool {
        let place = self.waiters.binary_search_by_key(&ticket, |waiter| waiter.ticket);
        place.is_ok_and(|place| self.waiters.remove(place).is_some())
    }

    /// Removes and returns the first waiter whose deadline has passed.
    pub(super) fn expire(&mut self, now: Nanos) -> Option<Ticket> {
        let late = self.waiters.iter().position(|waiter| waiter.until <= now)?;
        self.waiters.remove(late).map(|waiter| waiter.ticket)
    }

    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        self.waiters.iter().map(|waiter| waiter.until).min()
    }
}
