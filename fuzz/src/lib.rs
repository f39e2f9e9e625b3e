//! Shared code of the fuzz targets: limits, a service without ports, and invariants.
//!
//! A violated invariant panics, and the fuzzer reports the panic. There is no randomness and no
//! real clock, so an input always has the same effect.

pub mod laws;
pub mod naive;

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use sluicegate::clock::Clock;
use sluicegate::config::Config;
use sluicegate::config::load;
use sluicegate::engine::{CheckError, Decision, DecisionPolicy, Engine};
use sluicegate::kernel::decision::Check;
use sluicegate::kernel::units::{Nanos, Revision};
use sluicegate::store::memory::{MemoryStore, WhenFull};

/// An instant inside every kind of window: 2026-03-29T00:30:00.25Z, half an hour before summer time
/// starts in Berlin.
pub const NOW: Nanos = Nanos(1_774_744_200_250_000_000);

/// More counters than the descriptors of a request.
const MAX_KEYS: usize = 10_000;

/// The engine with an empty memory store and a manual clock.
pub struct Service {
    engine: Engine,
    store: Arc<MemoryStore>,
}

impl Service {
    /// Creates a service with `config` active, at [`NOW`].
    #[must_use]
    pub fn new(config: Arc<Config>, policy: DecisionPolicy) -> Self {
        let store = Arc::new(MemoryStore::new(MAX_KEYS, WhenFull::Deny, [7; 16]));
        let engine = Engine::new(Clock::manual(NOW), store.clone(), policy);
        engine.publish(config);
        Self { engine, store }
    }

    /// Decides `check` in one poll, because the memory store never waits.
    ///
    /// # Errors
    /// The engine refuses the check.
    pub fn decide(&self, check: &Check<'_>) -> Result<Decision, CheckError> {
        let future = pin!(self.engine.decide(check));
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(decision) => decision,
            Poll::Pending => panic!("the memory store waited"),
        }
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Nanos) {
        if let Clock::Manual(clock) = self.engine.clock() {
            clock.advance(by);
        }
    }

    /// Returns the number of counters.
    #[must_use]
    pub fn key_count(&self) -> usize {
        self.store.live_keys()
    }
}

/// Loads limits files that are known to be valid.
#[must_use]
pub fn load_valid(texts: &[(&str, &str)]) -> Arc<Config> {
    let texts = texts.iter().map(|&(name, text)| (name, text.as_bytes()));
    match load(texts, Revision(1), false) {
        Ok((config, _)) => Arc::new(config),
        Err(findings) => panic!("invalid limits of the fuzz targets: {findings:?}"),
    }
}
