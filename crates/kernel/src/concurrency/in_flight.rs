//! The permits in flight of one concurrency limit.
//!
//! Guarantees:
//! - A permit is released once. Then it is unknown, even if another permit reuses its slot.
//! - Free slots are reused, so there are never more slots than the largest limit.
//! - Cost: O(1) without a deadline, O(log n) with one; no allocation once the slots exist.

use super::deadline_heap::DeadlineHeap;
use super::requester::Requester;
use crate::units::Nanos;

/// The right of one request to be in flight, until its release or deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Permit {
    slot: u32,
    /// The number of earlier uses of the slot. It distinguishes successive permits of one slot.
    generation: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct InFlightState {
    pub(super) admitted_at: Nanos,
    /// The number of requests in flight at its admission, including itself.
    pub(super) in_flight: u32,
    /// The number of its class.
    pub(super) class: u8,
    /// The hash of its customer; 0 without one.
    pub(super) customer: u64,
    /// `true` if the limit has a pace, and requests used it at the admission.
    pub(super) is_paced: bool,
    deadline: Option<Nanos>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct PermitSlot {
    generation: u32,
    state: Option<InFlightState>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct InFlightPermits {
    slots: Vec<PermitSlot>,
    free_slots: Vec<u32>,
    count: u32,
    deadlines: DeadlineHeap,
}

impl InFlightPermits {
    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    /// Adds a permit; without `lifetime` it has no deadline, as the request's end is always
    /// observed.
    pub(super) fn admit(&mut self, now: Nanos, lifetime: Option<Nanos>, by: Requester) -> Permit {
        self.count = self.count.saturating_add(1);
        let deadline = lifetime.map(|lifetime| now.plus(lifetime));
        let in_flight = self.count;
        let Requester { class, customer, .. } = by;
        let (admitted_at, is_paced) = (now, false);
        let state = InFlightState { admitted_at, in_flight, class, customer, is_paced, deadline };
        let permit = self.insert(state);
        if let Some(until) = deadline {
            self.deadlines.set(permit.slot, until);
        }
        permit
    }

    pub(super) fn mark_paced(&mut self, permit: Permit) {
        if let Some(state) = self.slot(permit).and_then(|slot| slot.state.as_mut()) {
            state.is_paced = true;
        }
    }

    pub(super) fn admitted_at(&self, permit: Permit) -> Option<Nanos> {
        let slot = self.slots.get(usize::try_from(permit.slot).ok()?)?;
        slot.state.filter(|_| slot.generation == permit.generation).map(|state| state.admitted_at)
    }

    pub(super) fn deadline(&self, permit: Permit) -> Option<Nanos> {
        let slot = self.slots.get(usize::try_from(permit.slot).ok()?)?;
        slot.state.filter(|_| slot.generation == permit.generation)?.deadline
    }

    pub(super) fn release(&mut self, permit: Permit) -> Option<InFlightState> {
        let state = self.slot(permit)?.state.take()?;
        self.count = self.count.saturating_sub(1);
        self.free_slots.push(permit.slot);
        if state.deadline.is_some() {
            self.deadlines.remove(permit.slot);
        }
        Some(state)
    }

    /// Moves the deadline of `permit` to `lifetime` after `now`; `false` if it is not in flight.
    pub(super) fn renew(&mut self, permit: Permit, now: Nanos, lifetime: Nanos) -> bool {
        let Some(state) = self.slot(permit).and_then(|slot| slot.state.as_mut()) else {
            return false;
        };
        // A permit without a deadline keeps none, because the request's end is always observed.
        if state.deadline.is_some() {
            let deadline = now.plus(lifetime);
            state.deadline = Some(deadline);
            self.deadlines.set(permit.slot, deadline);
        }
        true
    }

    /// Releases a permit whose deadline has passed. Returns it with its customer.
    pub(super) fn release_overdue(&mut self, now: Nanos) -> Option<(Permit, u64)> {
        let (until, slot) = self.deadlines.first()?;
        if now < until {
            return None;
        }
        let generation = self.slots.get(usize::try_from(slot).ok()?)?.generation;
        let permit = Permit { slot, generation };
        self.release(permit).map(|state| (permit, state.customer))
    }

    /// All permits in flight with the instants of their admission, ordered by slot.
    pub(super) fn all(&self) -> impl Iterator<Item = (Permit, Nanos)> {
        (0..).zip(&self.slots).filter_map(|(slot, entry)| {
            entry
                .state
                .map(|state| (Permit { slot, generation: entry.generation }, state.admitted_at))
        })
    }

    /// The class and the customer of each permit in flight.
    pub(super) fn requesters(&self) -> impl Iterator<Item = (u8, u64)> {
        self.slots.iter().filter_map(|entry| entry.state.map(|it| (it.class, it.customer)))
    }

    fn slot(&mut self, permit: Permit) -> Option<&mut PermitSlot> {
        let slot = self.slots.get_mut(usize::try_from(permit.slot).ok()?)?;
        (slot.generation == permit.generation).then_some(slot)
    }

    fn insert(&mut self, state: InFlightState) -> Permit {
        if let Some(permit) = self.free_slots.pop().and_then(|slot| self.reuse_slot(slot, state)) {
            return permit;
        }
        // There are fewer slots than the limit, which is a u32.
        let slot = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        self.slots.push(PermitSlot { generation: 0, state: Some(state) });
        // Reserve an entry for every slot, so that a release never allocates.
        self.free_slots.reserve(self.slots.len());
        Permit { slot, generation: 0 }
    }

    fn reuse_slot(&mut self, slot: u32, state: InFlightState) -> Option<Permit> {
        let reused = self.slots.get_mut(usize::try_from(slot).ok()?)?;
        // The number wraps after 2^32 uses of one slot; by then no caller has the first permit.
        reused.generation = reused.generation.wrapping_add(1);
        reused.state = Some(state);
        Some(Permit { slot, generation: reused.generation })
    }
}
