//! The queue of requests that wait for a permit.
//!
//! Guarantees:
//! - First in, first out.
//! - A waiting request leaves the queue once: admitted, timed out or canceled.
//! - Adding and admitting cost O(1); removing from the middle costs O(queue length).

use std::collections::VecDeque;

use crate::units::Nanos;

/// The number of a waiting request in its queue. Later tickets are larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueTicket(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct QueueWaiter {
    pub(super) ticket: QueueTicket,
    pub(super) deadline: Nanos,
    /// The lifetime of the permit, counted from the request's admission.
    pub(super) lifetime: Option<Nanos>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct WaitQueue {
    waiters: VecDeque<QueueWaiter>,
    next_number: u64,
}

impl WaitQueue {
    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn push(&mut self, deadline: Nanos, lifetime: Option<Nanos>) -> QueueTicket {
        let ticket = QueueTicket(self.next_number);
        self.next_number = self.next_number.saturating_add(1);
        self.waiters.push_back(QueueWaiter { ticket, deadline, lifetime });
        ticket
    }

    pub(super) fn pop(&mut self) -> Option<QueueWaiter> {
        self.waiters.pop_front()
    }

    /// Removes the request with `ticket`; `false` if it is not waiting.
    pub(super) fn remove(&mut self, ticket: QueueTicket) -> bool {
        let index = self.waiters.binary_search_by_key(&ticket, |waiter| waiter.ticket);
        index.is_ok_and(|index| self.waiters.remove(index).is_some())
    }

    /// Removes the first request whose deadline has passed, and returns its ticket.
    pub(super) fn remove_overdue(&mut self, now: Nanos) -> Option<QueueTicket> {
        let index = self.waiters.iter().position(|waiter| waiter.deadline <= now)?;
        self.waiters.remove(index).map(|waiter| waiter.ticket)
    }
}
