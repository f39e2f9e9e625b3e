//! Shared code of the fuzz targets: limits, a service without ports, and invariants.
//!
//! A violated invariant panics, and the fuzzer reports the panic. There is no randomness and no
//! real clock, so an input always has the same effect.

pub mod laws;
pub mod naive;

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use sluicegate::backend::memory::{Memory, WhenFull};
use sluicegate::clock::Clock;
use sluicegate::config::Config;
use sluicegate::config::load;
use sluicegate::engine::{Answer, Engine, Policy, Refusal};
use sluicegate::kernel::decision::Question;
use sluicegate::kernel::units::{Nanos, Revision};

/// An instant inside every kind of window: 2026-03-29T00:30:00.25Z, half an hour before summer time
/// starts in Berlin.
pub const NOW: Nanos = Nanos(1_774_744_200_250_000_000);

/// Enough counters for all descriptors of a request, several times.
const MAX_KEYS: usize = 10_000;

/// The engine with an empty memory store and a manual clock.
pub struct Service {
    engine: Engine,
    memory: Arc<Memory>,
}

impl Service {
    /// Creates a service with `config` active, at [`NOW`].
    #[must_use]
    pub fn new(config: Arc<Config>, policy: Policy) -> Self {
        let memory = Arc::new(Memory::new(MAX_KEYS, WhenFull::Deny, [7; 16]));
        let engine = Engine::new(Clock::manual(NOW), memory.clone(), policy);
        engine.publish(config);
        Self { engine, memory }
    }

    /// Decides one check. The memory store never waits, so this does not wait either.
    ///
    /// # Errors
    /// If the engine refuses the check.
    pub fn decide(&self, question: &Question<'_>) -> Result<Answer, Refusal> {
        let deciding = pin!(self.engine.decide(question));
        match deciding.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => answer,
            Poll::Pending => panic!("the memory backend waited"),
        }
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Nanos) {
        if let Clock::Manual(clock) = self.engine.clock() {
            clock.advance(by);
        }
    }

    /// The number of counters.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.memory.live_keys()
    }
}

/// Loads limits files that are known to be valid.
#[must_use]
pub fn sound(texts: &[(&str, &str)]) -> Arc<Config> {
    let texts = texts.iter().map(|&(name, text)| (name, text.as_bytes()));
    match load(texts, Revision(1), false) {
        Ok((config, _)) => Arc::new(config),
        Err(found) => panic!("limits of the fuzz targets: {found:?}"),
    }
}
