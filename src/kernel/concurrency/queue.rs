//! Those who wait for a permit, in the order they came.
//!
//! Guarantees: first come, first served; a waiter leaves once, whether served, late or gone.
//! Cost: O(1) to join and to serve; O(n) to leave from the middle, n at most the queue's size.
//! Leaves out: how many may wait; see [`super::limiter::Waiting`].

use std::collections::VecDeque;

use crate::kernel::units::Nanos;

/// A place in the queue. Later tickets are larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Waiter {
    pub(super) ticket: Ticket,
    pub(super) until: Nanos,
    /// For how long the permit may be out once it is given.
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

    /// Takes `ticket` out; false when it is not waiting.
    pub(super) fn leave(&mut self, ticket: Ticket) -> bool {
        let place = self.waiters.binary_search_by_key(&ticket, |waiter| waiter.ticket);
        place.is_ok_and(|place| self.waiters.remove(place).is_some())
    }

    /// The first waiter whose deadline has come, if there is one; it leaves.
    pub(super) fn expire(&mut self, now: Nanos) -> Option<Ticket> {
        let late = self.waiters.iter().position(|waiter| waiter.until <= now)?;
        self.waiters.remove(late).map(|waiter| waiter.ticket)
    }

    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        self.waiters.iter().map(|waiter| waiter.until).min()
    }
}
