//! The permits in flight of one concurrency limit.
//!
//! Guarantees:
//! - A permit is released once. Then it is unknown, even if its slot is reused.
//! - Free slots are reused, so there are never more slots than the largest limit.
//! - Cost: O(1) without a deadline, O(log n) with one; no allocation once the slots exist.
//!
//! Not covered:
//! - The limit; see [`super::limiter`].

use super::deadlines::Deadlines;
use crate::kernel::units::Nanos;

/// The right of one request to be in flight, until its release or deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Permit {
    slot: u32,
    /// The number of earlier uses of the slot. It distinguishes permits of one slot.
    life: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    pub(super) since: Nanos,
    /// The number in flight at its admission, including itself.
    pub(super) among: u32,
    until: Option<Nanos>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Slot {
    life: u32,
    held: Option<Held>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct InFlight {
    slots: Vec<Slot>,
    free: Vec<u32>,
    count: u32,
    deadlines: Deadlines,
}

impl InFlight {
    pub(super) const fn count(&self) -> u32 {
        self.count
    }

    /// Adds a permit. Without `keep` it has no deadline, because its end is always observed.
    pub(super) fn admit(&mut self, now: Nanos, keep: Option<Nanos>) -> Permit {
        self.count = self.count.saturating_add(1);
        let until = keep.map(|keep| now.plus(keep));
        let permit = self.place(Held { since: now, among: self.count, until });
        if let Some(until) = until {
            self.deadlines.set(permit.slot, until);
        }
        permit
    }

    pub(super) fn since(&self, permit: Permit) -> Option<Nanos> {
        let slot = self.slots.get(usize::try_from(permit.slot).ok()?)?;
        slot.held.filter(|_| slot.life == permit.life).map(|held| held.since)
    }

    pub(super) fn until(&self, permit: Permit) -> Option<Nanos> {
        let slot = self.slots.get(usize::try_from(permit.slot).ok()?)?;
        slot.held.filter(|_| slot.life == permit.life)?.until
    }

    pub(super) fn take(&mut self, permit: Permit) -> Option<Held> {
        let held = self.slot(permit)?.held.take()?;
        self.count = self.count.saturating_sub(1);
        self.free.push(permit.slot);
        if held.until.is_some() {
            self.deadlines.remove(permit.slot);
        }
        Some(held)
    }

    /// Moves the deadline of `permit` to `keep` from now; `false` if it is not in flight.
    pub(super) fn renew(&mut self, permit: Permit, now: Nanos, keep: Nanos) -> bool {
        let Some(held) = self.slot(permit).and_then(|slot| slot.held.as_mut()) else {
            return false;
        };
        // A permit without a deadline stays so, because its end is always observed.
        if held.until.is_some() {
            let until = now.plus(keep);
            held.until = Some(until);
            self.deadlines.set(permit.slot, until);
        }
        true
    }

    /// Releases and returns one permit whose deadline has passed.
    pub(super) fn expire(&mut self, now: Nanos) -> Option<Permit> {
        let (until, slot) = self.deadlines.first()?;
        if now < until {
            return None;
        }
        let life = self.slots.get(usize::try_from(slot).ok()?)?.life;
        let permit = Permit { slot, life };
        self.take(permit).map(|_| permit)
    }

    pub(super) fn next_deadline(&self) -> Option<Nanos> {
        self.deadlines.first().map(|(until, _)| until)
    }

    /// All permits in flight with the instants of their admission, ordered by slot.
    pub(super) fn all(&self) -> impl Iterator<Item = (Permit, Nanos)> {
        (0..).zip(&self.slots).filter_map(|(slot, place)| {
            place.held.map(|held| (Permit { slot, life: place.life }, held.since))
        })
    }

    fn slot(&mut self, permit: Permit) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(usize::try_from(permit.slot).ok()?)?;
        (slot.life == permit.life).then_some(slot)
    }

    fn place(&mut self, held: Held) -> Permit {
        if let Some(permit) = self.free.pop().and_then(|slot| self.reuse(slot, held)) {
            return permit;
        }
        // There are fewer slots than the limit, which is a u32.
        let slot = u32::try_from(self.slots.len()).unwrap_or(u32::MAX);
        self.slots.push(Slot { life: 0, held: Some(held) });
        // Reserve for every slot, so that a release never allocates.
        self.free.reserve(self.slots.len());
        Permit { slot, life: 0 }
    }

    fn reuse(&mut self, slot: u32, held: Held) -> Option<Permit> {
        let place = self.slots.get_mut(usize::try_from(slot).ok()?)?;
        // Wraps after 2^32 uses of one slot; by then no caller has the first permit.
        place.life = place.life.wrapping_add(1);
        place.held = Some(held);
        Some(Permit { slot, life: place.life })
    }
}
