//! The permits of strict ceilings, and their common life, in this process.
//!
//! What Redis keeps by `acquire.lua` and `tell.lua`, by the kernel's own steps. A replica alone asks nobody,
//! so this is what a fleet in one process shares, and what the scripts are compared with.
//!
//! Guarantees: a ceiling of which nothing is held takes no room.

use std::collections::HashMap;

use super::coordinators::is_same;
use crate::backend::heartbeat::Name;
use crate::backend::permits::{Acquire, Answer, Heard, Life, Permits, Round, Times};
use crate::kernel::units::Nanos;

/// All strict ceilings of one store.
#[derive(Debug, Default)]
pub struct Strict {
    life: Option<Life>,
    /// What the store was called when the life began.
    store: String,
    states: HashMap<Name, Permits>,
}

impl Strict {
    /// A store that nobody can hold anything of: it began with the process that asks it.
    #[must_use]
    pub fn settled() -> Self {
        Self { life: Some(Life::settled()), ..Self::default() }
    }

    /// Asks for a permit at `now`, in the store that is called `store`: another name is another store, or
    /// the same after a restart; an empty one is said by who does not know.
    pub fn acquire(&mut self, now: Nanos, store: &str, asked: &Acquire) -> Answer {
        let mut life = self.life(now, store, &asked.ask.times);
        let closed_for = life.closed_for(now, &asked.ask.times);
        self.life = Some(life);
        let permits = self.states.entry(asked.bucket.clone()).or_default();
        let acquired = permits.acquire(now, closed_for, &asked.ask);
        let held = permits.held();
        self.drop_if_rested(&asked.bucket);
        Answer { acquired, held }
    }

    /// Hears `round`; one answer for each ceiling.
    pub fn tell(&mut self, now: Nanos, store: &str, round: &Round) -> Vec<Heard> {
        let mut life = self.life(now, store, &round.times);
        life.closed_for(now, &round.times);
        life.told(now);
        self.life = Some(life);
        let mut heard = Vec::new();
        for told in &round.told {
            let permits = self.states.entry(told.bucket.clone()).or_default();
            let found = permits.tell(now, &told.held, &told.over);
            heard.push(Heard { found, held: permits.held() });
            self.drop_if_rested(&told.bucket);
        }
        heard
    }

    fn life(&mut self, now: Nanos, store: &str, times: &Times) -> Life {
        let known = self.life.filter(|_| is_same(&self.store, store));
        known.unwrap_or_else(|| {
            store.clone_into(&mut self.store);
            Life::begin(now, times.grace)
        })
    }

    fn drop_if_rested(&mut self, bucket: &Name) {
        if self.states.get(bucket).is_some_and(|permits| permits.last().is_none()) {
            self.states.remove(bucket);
        }
    }
}
