//! The engine: owns the parts that decide checks, and publishes the configuration.
//!
//! Guarantees:
//! - A published configuration decides every check that starts afterwards.
//!
//! Not covered:
//! - The path of a check (see [`super::path`]).

use std::sync::Arc;

use arc_swap::ArcSwapOption;

use super::Membership;
use super::admit::Admission;
use super::admit::fleet::Fleet;
use super::ceilings::MAX_BUCKETS;
use super::freezer::Freezer;
use super::ids::{BOUNDS, Ids};
use super::leases::Leases;
use super::ledgers::Ledgers;
use super::local::Local;
use super::peers::Peers;
use super::plan::Planning;
use crate::backend::inside::Inside;
use crate::backend::{Backend, Cause};
use crate::clock::Clock;
use crate::config::Config;
use crate::kernel::concurrency::register;
use crate::telemetry::stats::Stats;

/// Decides checks.
#[derive(Debug)]
pub struct Engine {
    pub(super) clock: Arc<Clock>,
    pub(super) config: ArcSwapOption<Config>,
    backend: Arc<dyn Backend>,
    pub(super) policy: Policy,
    pub(super) ledgers: Ledgers,
    /// The balances of leased limits; `None` for the memory store.
    pub(super) leases: Option<Arc<Leases>>,
    /// The local shares that decide while the store is unavailable.
    local: Option<Local>,
    pub(super) ceilings: Admission,
    pub(super) ids: Ids,
    /// Statistics under envoyproxy/ratelimit's names.
    pub(super) stats: Option<Arc<Stats>>,
    pub(super) peers: Option<Peers>,
    pub(super) freezer: Freezer,
}

/// The settings that apply to every decision.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// The settings of the plan.
    pub planning: Planning,
    /// `true`: denials are reported, but not enforced.
    pub shadow: bool,
    /// The fraction of a limit, 0 to 1, above which a descriptor counts as near the limit.
    pub near_limit_ratio: f32,
}

impl Default for Policy {
    fn default() -> Self {
        Self { planning: Planning::default(), shadow: false, near_limit_ratio: 0.8 }
    }
}

impl Engine {
    /// Creates an engine without limits. It refuses every check until [`Engine::publish`].
    #[must_use]
    pub fn new(clock: Clock, backend: Arc<dyn Backend>, policy: Policy) -> Self {
        let (config, ledgers) = (ArcSwapOption::empty(), Ledgers::new());
        let clock = Arc::new(clock);
        let ceilings = Admission::new(Arc::clone(&clock), MAX_BUCKETS, 0);
        let shared = || Leases::new(Arc::clone(&clock), Arc::clone(&backend));
        let leases = (!backend.is_at_hand()).then(shared);
        let (local, ids, stats, peers) = (None, Ids::new(BOUNDS), None, None);
        let freezer = Freezer::default();
        Self {
            clock,
            config,
            backend,
            policy,
            ledgers,
            leases,
            local,
            ceilings,
            ids,
            stats,
            peers,
            freezer,
        }
    }

    /// Adds the counters of local shares. Without them, the fallback "local" means "error".
    #[must_use]
    pub fn with_local(self, local: Local) -> Self {
        Self { local: Some(local), ..self }
    }

    /// Sets the bounds for early releases.
    #[must_use]
    pub fn with_early_releases(self, bounds: register::Bounds) -> Self {
        Self { ids: Ids::new(bounds), ..self }
    }

    /// Sets the largest number of concurrency buckets. `jitter` is any number that differs between
    /// replicas.
    #[must_use]
    pub fn with_buckets(self, most: usize, jitter: u64) -> Self {
        let ceilings = Admission::new(Arc::clone(&self.clock), most, jitter);
        Self { ceilings, ..self }
    }

    /// Counts decisions in `stats`.
    #[must_use]
    pub fn with_stats(self, stats: Arc<Stats>) -> Self {
        Self { stats: Some(stats), ..self }
    }

    /// Returns the statistics under envoyproxy/ratelimit's names, if they are on.
    #[must_use]
    pub const fn stats(&self) -> Option<&Arc<Stats>> {
        self.stats.as_ref()
    }

    /// Shares concurrency limits with a fleet.
    #[must_use]
    pub fn with_fleet(self, fleet: Arc<Fleet>) -> Self {
        Self { ceilings: self.ceilings.with_fleet(fleet), ..self }
    }

    /// Reports the shared concurrency limits to the store, forever.
    pub async fn speak_on(&self) {
        self.ceilings.speak_on(self.backend()).await;
    }

    /// Sends the reports that are due now and applies the replies.
    pub async fn speak_once(&self) {
        self.ceilings.speak_once(self.backend()).await;
    }

    /// Returns the live replicas; `None` for the memory store.
    #[must_use]
    pub fn membership(&self) -> Option<&Membership> {
        self.local.as_ref().map(|local| &*local.membership)
    }

    /// Returns the balances of leased limits; `None` for the memory store.
    #[must_use]
    pub const fn leases(&self) -> Option<&Arc<Leases>> {
        self.leases.as_ref()
    }

    pub(super) const fn local(&self) -> Option<&Local> {
        self.local.as_ref()
    }

    pub(super) fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// Returns the reason why the store is unavailable, if it is.
    #[must_use]
    pub fn trouble(&self) -> Option<Cause> {
        self.backend.trouble()
    }

    /// Returns the store's statistics.
    #[must_use]
    pub fn inside(&self) -> Inside {
        self.backend.inside()
    }

    /// Decides all later checks by `config`. Its concurrency limits also apply to requests that
    /// wait in a queue.
    pub fn publish(&self, config: Arc<Config>) {
        self.freezer.load(config, self.clock.now(), |config| self.put_in_force(config));
    }

    pub(super) fn put_in_force(&self, config: Arc<Config>) {
        let before = self.config.swap(Some(config));
        let Some(now) = self.config() else { return };
        if let Some(leases) = &self.leases {
            leases.follow(before.as_deref(), &now);
        }
        // After the swap, so that it includes buckets that the old configuration creates meanwhile.
        self.reload_ceilings(&now);
    }

    /// Returns the current configuration.
    #[must_use]
    pub fn config(&self) -> Option<Arc<Config>> {
        self.config.load_full()
    }

    /// Returns the clock of all decisions.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }
}
