//! The queue of requests that wait for a permit, in the order of class and fair share.
//!
//! The waiting requests of one class and customer are a *flow*. A free permit goes to the first class
//! with a waiting request. In it, it goes to a flow whose customer has no permit, else to the one whose
//! customer, with this permit, would have the fewest permits per unit of weight. Among equals, it goes to
//! the flow that waited longest for a turn.
//!
//! | formula, for customers with weights 1 and 4 that have 1 and 5 permits | worked row |
//! |---|---|
//! | level = ⌊(permits + 1)·2^20 / weight⌋ | 2·2^20 and 1.5·2^20: the second one is served |
//!
//! A full queue makes room for a request of an earlier class, or of a customer with fewer waiting
//! requests for its weight, also counting the new one. The newest request of the longest flow of the
//! last class leaves.
//!
//! Guarantees:
//! - One flow is first in, first out.
//! - A waiting request leaves the queue once: admitted, displaced, timed out or canceled.
//! - A customer without a permit waits at most for one turn of each other one, whatever the weights.
//! - Under lasting demand, the permits of the customers of one class are within one permit of weighted
//!   max-min after each admission from the queue.
//! - Every operation costs O(log n), n being the number of waiting requests and customers.
//!
//! Not covered:
//! - Permits in flight are never taken back: a customer keeps what it has above its part until its
//!   requests end.

use std::collections::{BTreeMap, BTreeSet};

use super::requester::{CustomerUse, MAX_CLASSES, Requester};
use crate::units::Nanos;

/// The number of a waiting request in its queue. Later tickets are larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueTicket(u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct QueueWaiter {
    pub(super) deadline: Nanos,
    /// The lifetime of the permit, counted from the request's admission.
    pub(super) lifetime: Option<Nanos>,
    pub(super) by: Requester,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct WaitQueue {
    waiters: BTreeMap<QueueTicket, QueueWaiter>,
    deadlines: BTreeSet<(Nanos, QueueTicket)>,
    flows: BTreeMap<FlowId, Flow>,
    turns: BTreeSet<Turn>,
    /// The number of waiting requests of each flow, for its weight.
    backlogs: BTreeSet<(u8, u64, u64)>,
    /// The customers with permits or waiting requests. Without a customer there is no entry.
    customers: BTreeMap<u64, Customer>,
    next_ticket: u64,
    next_turn: u64,
}

/// A class and a customer.
type FlowId = (u8, u64);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Flow {
    tickets: BTreeSet<QueueTicket>,
    /// `None` until it is in `turns`.
    turn: Option<Turn>,
    backlog: u64,
}

/// The place of a flow in the order of service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Turn {
    class: u8,
    level: u64,
    since: u64,
    customer: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Customer {
    weight: u32,
    permits: u32,
    waiting: u32,
}

impl WaitQueue {
    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    pub(super) fn knows(&self, customer: u64) -> bool {
        self.customers.contains_key(&customer)
    }

    /// Returns the number of customers with permits or waiting requests, without `other`.
    pub(super) fn customers_without(&self, other: u64) -> usize {
        self.customers.len().saturating_sub(usize::from(self.knows(other)))
    }

    /// The class and the customer of each waiting request.
    pub(super) fn requesters(&self) -> impl Iterator<Item = (u8, u64)> {
        self.waiters.values().map(|waiter| (waiter.by.class, waiter.by.customer))
    }

    /// The weight of a customer with permits or waiting requests; 1 for any other.
    pub(super) fn weight_of(&self, customer: u64) -> u32 {
        self.customers.get(&customer).map_or(1, |customer| customer.weight)
    }

    /// Returns the `most` customers with the most permits and waiting requests. `others` has no hash.
    pub(super) fn largest_customers(&self, most: usize, others: u64) -> Vec<CustomerUse> {
        let customers = self.customers.iter().map(|(&id, customer)| CustomerUse {
            customer: (id != others).then_some(id),
            weight: customer.weight,
            in_flight: customer.permits,
            waiting: customer.waiting,
        });
        let requests = |one: &CustomerUse| one.in_flight.saturating_add(one.waiting);
        let order = |one: &CustomerUse| (std::cmp::Reverse(requests(one)), one.customer);
        let mut largest = Vec::with_capacity(most.saturating_add(1));
        for customer in customers {
            let place = largest.partition_point(|other| order(other) < order(&customer));
            if place < most {
                largest.insert(place, customer);
                largest.truncate(most);
            }
        }
        largest
    }

    /// Returns the class that is served next.
    pub(super) fn first_class(&self) -> Option<u8> {
        self.turns.first().map(|turn| turn.class)
    }

    pub(super) fn push(
        &mut self,
        deadline: Nanos,
        lifetime: Option<Nanos>,
        by: Requester,
    ) -> QueueTicket {
        let ticket = QueueTicket(self.next_ticket);
        self.next_ticket = self.next_ticket.saturating_add(1);
        self.change_customer(by.customer, |customer| {
            customer.weight = by.weight;
            customer.waiting = customer.waiting.saturating_add(1);
        });
        self.waiters.insert(ticket, QueueWaiter { deadline, lifetime, by });
        self.deadlines.insert((deadline, ticket));
        self.change_flow((by.class, by.customer), |tickets| tickets.insert(ticket));
        ticket
    }

    /// Removes and returns the request that is served next.
    pub(super) fn pop(&mut self) -> Option<(QueueTicket, QueueWaiter)> {
        let turn = self.turns.first()?;
        let flow = self.flows.get(&(turn.class, turn.customer))?;
        let ticket = *flow.tickets.first()?;
        self.take(ticket).map(|waiter| (ticket, waiter))
    }

    /// Removes the request with `ticket`; `false` if it is not waiting.
    pub(super) fn remove(&mut self, ticket: QueueTicket) -> bool {
        self.take(ticket).is_some()
    }

    /// Removes the first request whose deadline has passed, and returns its ticket.
    pub(super) fn remove_overdue(&mut self, now: Nanos) -> Option<QueueTicket> {
        let (deadline, ticket) = *self.deadlines.first()?;
        (deadline <= now && self.remove(ticket)).then_some(ticket)
    }

    /// Removes the request that leaves a full queue for one of `by`, and returns its ticket; `None` if
    /// `by` has to leave itself.
    pub(super) fn make_room_for(&mut self, by: Requester) -> Option<QueueTicket> {
        let (class, backlog, customer) = *self.backlogs.last()?;
        let own = self.flows.get(&(by.class, by.customer)).map_or(0, |flow| flow.tickets.len());
        let is_behind = by.class < class
            || by.class == class && scaled(own.saturating_add(1), by.weight) < backlog;
        let newest = *self.flows.get(&(class, customer))?.tickets.last()?;
        (is_behind && self.remove(newest)).then_some(newest)
    }

    /// Counts a permit of the customer of `by`.
    pub(super) fn admitted(&mut self, by: Requester) {
        self.change_customer(by.customer, |customer| {
            // Waiting requests are newer, and have the newest weight.
            if customer.waiting == 0 {
                customer.weight = by.weight;
            }
            customer.permits = customer.permits.saturating_add(1);
        });
    }

    /// Counts the end of a permit of `customer`.
    pub(super) fn released(&mut self, customer: u64) {
        if self.knows(customer) {
            self.change_customer(customer, |its| its.permits = its.permits.saturating_sub(1));
        }
    }

    fn take(&mut self, ticket: QueueTicket) -> Option<QueueWaiter> {
        let waiter = self.waiters.remove(&ticket)?;
        let by = waiter.by;
        self.deadlines.remove(&(waiter.deadline, ticket));
        self.change_flow((by.class, by.customer), |tickets| tickets.remove(&ticket));
        self.change_customer(by.customer, |its| its.waiting = its.waiting.saturating_sub(1));
        Some(waiter)
    }

    /// Changes the numbers of a customer, and the turns of its flows.
    fn change_customer(&mut self, id: u64, change: impl FnOnce(&mut Customer)) {
        if id == 0 {
            return;
        }
        let customer = self.customers.entry(id).or_default();
        let before = (customer.permits, customer.weight);
        change(customer);
        let Customer { waiting, permits, weight } = *customer;
        if waiting == 0 && permits == 0 {
            self.customers.remove(&id);
        }
        if waiting == 0 || before == (permits, weight) {
            return;
        }
        for class in 0..MAX_CLASSES {
            if self.flows.contains_key(&(class, id)) {
                self.change_flow((class, id), |_| true);
            }
        }
    }

    /// Changes the tickets of a flow, and its place in the order of service.
    fn change_flow(&mut self, id: FlowId, change: impl FnOnce(&mut BTreeSet<QueueTicket>) -> bool) {
        let ((class, customer), known) = (id, self.customers.get(&id.1).copied());
        let Customer { weight, permits, .. } =
            known.unwrap_or(Customer { weight: 1, ..Customer::default() });
        let flow = self.flows.entry(id).or_default();
        if let Some(turn) = flow.turn {
            self.turns.remove(&turn);
        }
        self.backlogs.remove(&(class, flow.backlog, customer));
        change(&mut flow.tickets);
        if flow.tickets.is_empty() {
            self.flows.remove(&id);
            return;
        }
        // A customer without a permit comes first, also if its part is less than one permit.
        let has_permits = customer != 0 && permits != 0;
        let level = if has_permits { scaled(permits.saturating_add(1), weight) } else { 0 };
        let turn = flow.turn.filter(|turn| turn.level == level).unwrap_or_else(|| {
            self.next_turn = self.next_turn.saturating_add(1);
            Turn { class, level, since: self.next_turn, customer }
        });
        flow.turn = Some(turn);
        flow.backlog = scaled(flow.tickets.len(), weight);
        self.turns.insert(turn);
        self.backlogs.insert((class, flow.backlog, customer));
    }
}

/// Returns `number` for one unit of weight, in 1/2^20.
fn scaled(number: impl TryInto<u64>, weight: u32) -> u64 {
    let number = number.try_into().unwrap_or(u64::MAX).saturating_mul(1 << 20);
    number.checked_div(weight.into()).unwrap_or(number)
}
