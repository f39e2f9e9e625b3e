//! The GCRA limits of a shard's counters: for each counter, the limit at its last write.
//!
//! A GCRA counter stores a debt in units of its limit, which a reload may change. So it also stores
//! the number of that limit, in 4 bytes instead of the 20 bytes of the limit.

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

    /// Adds one counter to the users of the limit `gcra`, and returns the limit's number.
    pub(super) fn add_user(&mut self, gcra: &Gcra) -> GcraId {
        let id = self.ids.get(gcra).copied().unwrap_or_else(|| self.insert(*gcra));
        if let Some((_, counters)) = self.slots.get_mut(id as usize) {
            *counters += 1;
        }
        id
    }

    /// Removes one counter from the users of the limit `id`; drops a limit without users.
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
