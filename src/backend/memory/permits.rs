//! The permits of strict concurrency limits and their incarnation, in this process.
//!
//! These are the kernel's steps; `acquire.lua` and `tell.lua` are the same steps in Redis.
//! Only replicas in one process share this store. Tests compare the scripts with it.
//!
//! Guarantees:
//! - A limit without permits uses no memory.

use std::collections::HashMap;

use super::coordinators::is_same;
use crate::backend::heartbeat::Name;
use crate::backend::permits::{Acquire, Answer, Heard, Life, Permits, Round, Times};
use crate::kernel::units::Nanos;

/// The strict concurrency limits of one store.
#[derive(Debug, Default)]
pub struct Strict {
    life: Option<Life>,
    /// The name of the store when the incarnation began.
    store: String,
    states: HashMap<Name, Permits>,
}

impl Strict {
    /// Creates a store in which no earlier permit can exist, because it began with the process.
    #[must_use]
    pub fn settled() -> Self {
        Self { life: Some(Life::settled()), ..Self::default() }
    }

    /// Acquires a permit at `now` in the store with the name `store`.
    ///
    /// A new name means another store, or the same store after a
    /// restart. An empty name means that the caller does not know it.
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

    /// Applies `round` and returns one reply for each limit.
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
