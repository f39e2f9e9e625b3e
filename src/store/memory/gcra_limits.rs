//! The GCRA limits under which a shard's counters were last written.
//!
//! A debt has a meaning only under its limit, which a reload may change. A counter
//! stores the limit's number in 4 bytes, instead of the limit itself in 20.
//!
//! Guarantees:
//! - A limit is stored exactly as long as a counter refers to it.

use std::collections::HashMap;

use crate::kernel::rate::gcra::Gcra;

pub(super) type GcraId = u32;

#[derive(Debug, Default)]
pub(super) struct GcraLimits {
    slots: Vec<(Gcra, u32)>,
    ids: HashMap<Gcra, GcraId>,
    free_ids: Vec<GcraId>,
}

impl GcraLimits {
    pub(super) fn get(&self, id: GcraId) -> Option<&Gcra> {
        self.slots.get(usize::try_from(id).ok()?).map(|(gcra, _)| gcra)
    }

    /// Counts one more counter under `gcra` and returns the limit's number.
    pub(super) fn add_user(&mut self, gcra: &Gcra) -> GcraId {
        let id = self.ids.get(gcra).copied().unwrap_or_else(|| self.insert(*gcra));
        if let Some((_, counters)) = self.slots.get_mut(id as usize) {
            *counters += 1;
        }
        id
    }

    /// Counts one counter less under `id`. Drops a limit without counters.
    pub(super) fn remove_user(&mut self, id: GcraId) {
        let Some((gcra, counters)) = self.slots.get_mut(id as usize) else { return };
        *counters -= 1;
        if *counters == 0 {
            self.ids.remove(gcra);
            self.free_ids.push(id);
        }
    }

    fn insert(&mut self, gcra: Gcra) -> GcraId {
        let id = self.free_ids.pop().unwrap_or_else(|| {
            self.slots.push((gcra, 0));
            // A shard has fewer limits than counters, and fewer than 2^32 counters.
            GcraId::try_from(self.slots.len() - 1).unwrap_or(GcraId::MAX)
        });
        self.slots[id as usize] = (gcra, 0);
        self.ids.insert(gcra, id);
        id
    }
}
