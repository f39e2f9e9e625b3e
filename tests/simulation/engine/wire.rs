//! The way from a replica to the store: a backend whose answers come when somebody brings them.

use std::sync::{Arc, Mutex};

use sluicegate::backend::heartbeat::{Heard, Round};
use sluicegate::backend::lease::{Lent, Message};
use sluicegate::backend::memory::{Memory, WhenFull};
use sluicegate::backend::{Backend, Cause, Charges, Outcomes, Reply};
use sluicegate::kernel::units::Nanos;
use tokio::sync::oneshot;

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
}

impl Wire {
    pub fn new() -> Arc<Self> {
        let memory = Memory::new(100, WhenFull::Deny, [0; 16]);
        Arc::new(Self { memory, said: Mutex::default() })
    }

    /// What was said since this was last asked.
    pub fn take(&self) -> Vec<Said> {
        std::mem::take(&mut self.said.lock().unwrap())
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
        self.said.lock().unwrap().push(Said { round: round.clone(), answer });
        // An answer that never comes is given up by who carries it.
        Reply::Later(Box::pin(async { heard.await.map_err(|_| Cause::Unreachable) }))
    }
}
