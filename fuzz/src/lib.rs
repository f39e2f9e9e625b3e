//! What the fuzz targets share: limits, a service without ports, and the laws of its answers.
//!
//! A law that does not hold is a panic here, which is what a fuzzer reports. Nothing is random and no
//! clock is read: an input does the same every time.

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

/// An instant in the middle of every kind of window: 2026-03-29T00:30:00.25Z, an hour before clocks
/// in Berlin go forward.
pub const NOW: Nanos = Nanos(1_774_744_200_250_000_000);

/// Room for every question that may be asked, several times.
const MAX_KEYS: usize = 10_000;

/// The engine over an empty memory, with a clock that is set by hand.
pub struct Service {
    engine: Engine,
    memory: Arc<Memory>,
}

impl Service {
    /// A service with `config` in force, at [`NOW`].
    #[must_use]
    pub fn new(config: Arc<Config>, policy: Policy) -> Self {
        let memory = Arc::new(Memory::new(MAX_KEYS, WhenFull::Deny, [7; 16]));
        let engine = Engine::new(Clock::manual(NOW), memory.clone(), policy);
        engine.publish(config);
        Self { engine, memory }
    }

    /// Decides one question. The memory backend never waits, so neither does this.
    ///
    /// # Errors
    /// When the engine refuses the question.
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

    /// How many counters there are.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.memory.live_keys()
    }
}

/// The configuration of texts that are known to be sound.
#[must_use]
pub fn sound(texts: &[(&str, &str)]) -> Arc<Config> {
    let texts = texts.iter().map(|&(name, text)| (name, text.as_bytes()));
    match load(texts, Revision(1), false) {
        Ok((config, _)) => Arc::new(config),
        Err(found) => panic!("limits of the fuzz targets: {found:?}"),
    }
}
