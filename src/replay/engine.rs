//! An engine that decides recorded checks.

use std::sync::Arc;

use futures_util::FutureExt as _;

use crate::clock::Clock;
use crate::config::Config;
use crate::engine::{Decision, DecisionPolicy, Engine, KeyNaming, OverridePolicy, PlanSettings};
use crate::kernel::decision::Check;
use crate::kernel::units::Nanos;
use crate::recording::{RecordedOverrides, RecordedPlanning, RecordingHeader};
use crate::store::memory::{MemoryStore, WhenFull};

/// The largest number of counters. One needs 32 to 40 bytes.
const MAX_COUNTERS: usize = 20_000_000;

/// The number of shards that are swept for each recorded second.
const SHARDS_PER_SECOND: u64 = 17;

/// The real engine with the memory store, on the recorded time.
pub(super) struct ReplayEngine {
    engine: Engine,
    store: Arc<MemoryStore>,
    now: Nanos,
    swept_at: Nanos,
}

impl ReplayEngine {
    pub(super) fn new(config: Config, header: &RecordingHeader) -> Self {
        let now = header.started_at;
        let store = Arc::new(MemoryStore::new(MAX_COUNTERS, WhenFull::Deny, [0; 16]));
        let policy = DecisionPolicy {
            planning: planning(header.planning),
            max_counted_rules: 0,
            ..DecisionPolicy::default()
        };
        let engine = Engine::new(Clock::manual(now), store.clone(), policy);
        engine.publish(Arc::new(config));
        Self { engine, store, now, swept_at: now }
    }

    /// Decides a check at `time`, or now if `time` is earlier. `None` if the check is invalid.
    pub(super) fn decide(&mut self, time: Nanos, check: &Check<'_>) -> Option<Decision> {
        self.advance_to(time);
        // The memory store replies at once.
        self.engine.decide(check).now_or_never()?.ok()
    }

    /// Returns how many checks were denied because there were too many counters.
    pub(super) fn times_full(&self) -> u64 {
        self.store.times_full()
    }

    fn advance_to(&mut self, time: Nanos) {
        if let Clock::Manual(clock) = self.engine.clock() {
            clock.advance(time.since(self.now));
        }
        self.now = self.now.max(time);
        let elapsed = self.now.since(self.swept_at);
        if Nanos::SECOND <= elapsed {
            let shards = (elapsed.0 / Nanos::SECOND.0).saturating_mul(SHARDS_PER_SECOND);
            for _ in 0..shards.min(MemoryStore::SHARDS as u64) {
                self.store.sweep_next(self.now);
            }
            self.swept_at = self.now;
        }
    }
}

const fn planning(recorded: RecordedPlanning) -> PlanSettings {
    PlanSettings {
        keys: if recorded.has_compatible_keys { KeyNaming::Envoyproxy } else { KeyNaming::Unique },
        overrides: match recorded.overrides {
            RecordedOverrides::Allow => OverridePolicy::Allow,
            RecordedOverrides::Deny => OverridePolicy::Deny,
            RecordedOverrides::Max => OverridePolicy::Max,
        },
        quota_for_all: recorded.quota_for_all,
    }
}
