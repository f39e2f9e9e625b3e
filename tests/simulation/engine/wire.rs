//! The network between a replica and the store: a backend whose replies the simulation delivers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use sluicegate::backend::heartbeat::{Heard, Name, Round};
use sluicegate::backend::lease::{Lent, Message};
use sluicegate::backend::memory::{Memory, WhenFull};
use sluicegate::backend::{Backend, Cause, Charges, Outcomes, Reply};
use sluicegate::kernel::units::{Nanos, Share};
use tokio::sync::oneshot;

use crate::simulation::bad::Flaw;

#[derive(Debug)]
pub struct SentRound {
    pub round: Round,
    pub answer: oneshot::Sender<Heard>,
}

/// The connection of one incarnation of a replica.
#[derive(Debug)]
pub struct Wire {
    /// The store for all calls except heartbeats.
    memory: Memory,
    said: Mutex<Vec<SentRound>>,
    flaw: Flaw,
    /// The requests in flight in the last heartbeat of each limit.
    before: Mutex<HashMap<Name, Share>>,
}

impl Wire {
    pub fn new(flaw: Flaw) -> Arc<Self> {
        let memory = Memory::new(100, WhenFull::Deny, [0; 16]);
        let (said, before) = Default::default();
        Arc::new(Self { memory, said, flaw, before })
    }

    pub fn take(&self) -> Vec<SentRound> {
        std::mem::take(&mut self.said.lock().unwrap())
    }

    /// The round with the requests in flight of the previous heartbeat.
    fn torn(&self, mut round: Round) -> Round {
        for beat in &mut round.beats {
            let in_flight = beat.said.in_flight;
            let before = self.before.lock().unwrap().insert(beat.bucket.clone(), in_flight);
            beat.said.in_flight = before.unwrap_or_default().min(in_flight);
        }
        round
    }
}

impl Backend for Wire {
    fn charge<'a>(&'a self, now: Nanos, charges: &'a Charges) -> Reply<'a, Outcomes> {
        self.memory.charge(now, charges)
    }

    fn borrow<'a>(&'a self, now: Nanos, message: &'a Message) -> Reply<'a, Lent> {
        self.memory.borrow(now, message)
    }

    fn heartbeat<'a>(&'a self, _now: Nanos, round: &'a Round) -> Reply<'a, Result<Heard, Cause>> {
        let (answer, heard) = oneshot::channel();
        let round = round.clone();
        let round = if self.flaw == Flaw::Torn { self.torn(round) } else { round };
        self.said.lock().unwrap().push(SentRound { round, answer });
        // The simulation drops the sender if no reply arrives.
        Reply::Later(Box::pin(async { heard.await.map_err(|_| Cause::Unreachable) }))
    }
}
