//! The way from a replica to the store: a backend whose answers come when somebody brings them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use sluicegate::backend::heartbeat::{Heard, Name, Round};
use sluicegate::backend::lease::{Lent, Message};
use sluicegate::backend::memory::{Memory, WhenFull};
use sluicegate::backend::{Backend, Cause, Charges, Outcomes, Reply};
use sluicegate::kernel::units::{Nanos, Share};
use tokio::sync::oneshot;

use crate::simulation::bad::Bad;

/// What a replica said, and who waits for the answer.
#[derive(Debug)]
pub struct Said {
    pub round: Round,
    pub answer: oneshot::Sender<Heard>,
}

/// One life's end of it.
#[derive(Debug)]
pub struct Wire {
    /// For what is no heartbeat.
    memory: Memory,
    said: Mutex<Vec<Said>>,
    bad: Bad,
    /// What each ceiling's last heartbeat said was in flight.
    before: Mutex<HashMap<Name, Share>>,
}

impl Wire {
    pub fn new(bad: Bad) -> Arc<Self> {
        let memory = Memory::new(100, WhenFull::Deny, [0; 16]);
        let (said, before) = Default::default();
        Arc::new(Self { memory, said, bad, before })
    }

    /// What was said since this was last asked.
    pub fn take(&self) -> Vec<Said> {
        std::mem::take(&mut self.said.lock().unwrap())
    }

    /// The same, with what was in flight when the heartbeat before was made.
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
        let round = if self.bad == Bad::Torn { self.torn(round) } else { round };
        self.said.lock().unwrap().push(Said { round, answer });
        // An answer that never comes is given up by who carries it.
        Reply::Later(Box::pin(async { heard.await.map_err(|_| Cause::Unreachable) }))
    }
}
