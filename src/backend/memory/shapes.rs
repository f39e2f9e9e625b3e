//! The GCRA limits that a shard's counters were last written under.
//!
//! A counter's debt means nothing without the numbers it was counted in, and these may change at a
//! reload. Four bytes in the counter name them here instead of twenty beside every counter.
//! Guarantees: a shape lives as long as a counter names it, and no longer.

use std::collections::HashMap;

use crate::kernel::rate::gcra::Gcra;

/// Which shape a counter was written under.
pub(super) type ShapeId = u32;

/// The shapes of one shard.
#[derive(Debug, Default)]
pub(super) struct Shapes {
    slots: Vec<(Gcra, u32)>,
    ids: HashMap<Gcra, ShapeId>,
    free: Vec<ShapeId>,
}

impl Shapes {
    /// The shape of `id`.
    pub(super) fn get(&self, id: ShapeId) -> Option<&Gcra> {
        self.slots.get(usize::try_from(id).ok()?).map(|(gcra, _)| gcra)
    }

    /// Counts one more counter under `gcra`.
    pub(super) fn take(&mut self, gcra: &Gcra) -> ShapeId {
        let id = self.ids.get(gcra).copied().unwrap_or_else(|| self.add(*gcra));
        if let Some((_, counters)) = self.slots.get_mut(id as usize) {
            *counters += 1;
        }
        id
    }

    /// Counts one counter less under `id`.
    pub(super) fn give_back(&mut self, id: ShapeId) {
        let Some((gcra, counters)) = self.slots.get_mut(id as usize) else { return };
        *counters -= 1;
        if *counters == 0 {
            self.ids.remove(gcra);
            self.free.push(id);
        }
    }

    fn add(&mut self, gcra: Gcra) -> ShapeId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.slots.push((gcra, 0));
            // A shard has fewer shapes than counters, and those are fewer than 2^32.
            ShapeId::try_from(self.slots.len() - 1).unwrap_or(ShapeId::MAX)
        });
        self.slots[id as usize] = (gcra, 0);
        self.ids.insert(gcra, id);
        id
    }
}
