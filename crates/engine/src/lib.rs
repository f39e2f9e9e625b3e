//! The engine of one replica: decides checks and acquires permits, and runs the background work.
//!
//! Guarantees:
//! - A check is decided by exactly one configuration at one instant.
//! - An invalid check is refused before any counter changes.
//! - A published configuration decides every check that starts afterwards.
//!
//! Structure: each part of the engine is a module. If [`Engine`] has a field of the module's type, the
//! methods of `Engine` for this part are in its file `calls.rs`, so that no two files import each other.
//!
//! Not covered:
//! - Protocols (`edge`).
//! - Where counters live ([`crate::store`]).

pub mod actions;
mod active_config;
pub mod bans;
pub mod budgets;
mod check_text;
pub mod concurrency;
mod decide;
pub mod events;
pub mod fleet;
pub mod history;
pub mod lease;
pub mod proxies;
pub mod recorder;
pub mod recording;
mod rejection;
pub mod rule_counters;
pub mod top_keys;
mod unmatched;

use sluicegate_config as config;
use sluicegate_kernel as kernel;
use sluicegate_lease::clock;
use sluicegate_store as store;
use sluicegate_telemetry as telemetry;

use crate::actions::{AuditLog, OperatorActions};
use crate::active_config::ActiveConfig;
use crate::bans::Bans;
use crate::budgets::{LearnedCosts, MetBudgets, Retries, SettleWatch};
use crate::clock::Clock;
use crate::concurrency::ConcurrencyLimits;
use crate::concurrency::DEFAULT_MAX_BUCKETS;
use crate::concurrency::permit_ids::{DEFAULT_BOUNDS, PermitIds};
use crate::config::Config;
use crate::config::settings::DescriptorValues;
use crate::config::tables::{Table, TableStates};
use crate::decide::deny_cache::DenyCache;
use crate::events::EventOptions;
use crate::fleet::forwarding::ForwardingQueue;
use crate::fleet::live::LiveState;
use crate::fleet::reporter::FleetReporter;
use crate::kernel::concurrency::permit_registry;
use crate::lease::{LeaseManager, LeaseOptions};
use crate::proxies::Proxies;
use crate::recorder::state::Recorder;
use crate::rule_counters::RuleCounters;
use crate::store::stats::StoreStats;
use crate::store::{Store, StoreFailure};
use crate::telemetry::metrics::RuleDecisions;
use crate::telemetry::stats::Stats;
use crate::top_keys::TopKeys;
use crate::unmatched::UnmatchedDescriptors;
use arc_swap::ArcSwapOption;
use std::sync::Arc;

pub use concurrency::path::{AdmissionOutcome, PermitLifetime, RequestStart};
pub use concurrency::permit_ids::validate_id;
pub use concurrency::request_permits::RequestPermits;
pub use decide::local_fallback::LocalFallback;
pub use decide::local_share;
pub use decide::plan::{KeyNaming, OverridePolicy, PlanSettings};
pub use decide::{CheckError, CountedHits, Decision, LimitStatus, LimitStatuses};
pub use fleet::membership::Membership;
pub use rejection::Rejection;
pub use unmatched::UnmatchedDescriptor;

/// Decides rate limit checks and requests for permits in one replica.
#[derive(Debug)]
pub struct Engine {
    clock: Arc<Clock>,
    active: ArcSwapOption<ActiveConfig>,
    store: Arc<dyn Store>,
    policy: DecisionPolicy,
    deny_cache: DenyCache,
    /// The leases of this replica; `None` for the memory store.
    leases: Option<Arc<LeaseManager>>,
    /// The local counters that decide while the store is unavailable (`on_store_failure: local`).
    local_fallback: Option<LocalFallback>,
    concurrency_limits: ConcurrencyLimits,
    permit_ids: PermitIds,
    /// The statistics with the names of envoyproxy/ratelimit.
    stats: Option<Arc<Stats>>,
    forwarding: Option<ForwardingQueue>,
    actions: OperatorActions,
    bans: Bans,
    audit: AuditLog,
    unmatched: UnmatchedDescriptors,
    /// The events for other programs, if they are on.
    events: Option<Box<EventOptions>>,
    top_keys: TopKeys,
    live: LiveState,
    /// The kind of the store, for the admin pages.
    store_kind: &'static str,
    recorder: Arc<Recorder>,
    proxies: Proxies,
    table_states: Arc<TableStates>,
    learned_costs: LearnedCosts,
    met_budgets: MetBudgets,
    settle_watch: SettleWatch,
    retries: Retries,
}

/// The settings that apply to every decision.
#[derive(Clone, Copy, Debug)]
pub struct DecisionPolicy {
    /// The settings with which each check is planned.
    pub planning: PlanSettings,
    /// Global shadow mode. `true`: denials are reported, but not enforced.
    pub is_shadow: bool,
    /// The fraction of a limit, 0 to 1, above which a descriptor counts as near the limit.
    pub near_limit_ratio: f32,
    /// The form of descriptor values in the log, in events and on admin pages.
    pub descriptor_values: DescriptorValues,
    /// The largest number of rules whose decisions are counted separately.
    pub max_counted_rules: u32,
}

impl Default for DecisionPolicy {
    fn default() -> Self {
        Self {
            planning: PlanSettings::default(),
            is_shadow: false,
            near_limit_ratio: 0.8,
            descriptor_values: DescriptorValues::default(),
            max_counted_rules: 1_000,
        }
    }
}

impl Engine {
    /// Creates an engine without a configuration. It refuses every check until [`Engine::publish`].
    #[must_use]
    pub fn new(clock: Clock, store: Arc<dyn Store>, policy: DecisionPolicy) -> Self {
        let (active, deny_cache) = (ArcSwapOption::empty(), DenyCache::new());
        let clock = Arc::new(clock);
        let concurrency_limits = new_concurrency_limits(&clock, DEFAULT_MAX_BUCKETS, 0);
        let lease_options =
            LeaseOptions { observe: lease::count_leased_hits, ..Default::default() };
        let new_leases = || LeaseManager::new(Arc::clone(&clock), store.clone(), lease_options);
        let leases = store.has_leases().then(new_leases);
        let (local_fallback, permit_ids, stats, forwarding) =
            (None, PermitIds::new(DEFAULT_BOUNDS), None, None);
        let (actions, audit) = (OperatorActions::default(), AuditLog::default());
        let unmatched = UnmatchedDescriptors::default();
        let live = LiveState::new(clock.steady());
        Self {
            clock,
            active,
            store,
            policy,
            deny_cache,
            leases,
            local_fallback,
            concurrency_limits,
            permit_ids,
            stats,
            forwarding,
            actions,
            bans: Bans::default(),
            audit,
            unmatched,
            events: None,
            top_keys: TopKeys::new(policy.descriptor_values),
            live,
            store_kind: "memory",
            recorder: Arc::default(),
            proxies: Proxies::default(),
            table_states: Arc::default(),
            learned_costs: LearnedCosts::default(),
            met_budgets: MetBudgets::default(),
            settle_watch: SettleWatch::default(),
            retries: Retries::default(),
        }
    }

    /// Adds the local counters for `on_store_failure: local`. Without them, `local` has the
    /// effect of `error`.
    #[must_use]
    pub fn with_local_fallback(self, local: LocalFallback) -> Self {
        Self { local_fallback: Some(local), ..self }
    }

    /// Sets the bounds for early releases, which arrive before their acquire.
    #[must_use]
    pub fn with_early_releases(self, bounds: permit_registry::EarlyReleaseLimits) -> Self {
        Self { permit_ids: PermitIds::new(bounds), ..self }
    }

    /// Sets the largest number of concurrency buckets. `jitter` is any number that differs between
    /// replicas.
    #[must_use]
    pub fn with_max_buckets(self, max_buckets: usize, jitter: u64) -> Self {
        let concurrency_limits = new_concurrency_limits(&self.clock, max_buckets, jitter);
        Self { concurrency_limits, ..self }
    }

    /// Sets the kind of the store that the admin pages show. Default: `memory`.
    #[must_use]
    pub fn with_store_kind(self, store_kind: &'static str) -> Self {
        Self { store_kind, ..self }
    }

    /// Sets the states of the tables that limits read.
    #[must_use]
    pub fn with_table_states(self, table_states: Arc<TableStates>) -> Self {
        Self { table_states, ..self }
    }

    /// Returns the states of the tables that limits read.
    #[must_use]
    pub const fn table_states(&self) -> &Arc<TableStates> {
        &self.table_states
    }

    /// Returns the kind of the store: `memory`, `file`, `redis` or `postgres`.
    #[must_use]
    pub const fn store_kind(&self) -> &'static str {
        self.store_kind
    }

    /// Counts decisions in `stats`.
    #[must_use]
    pub fn with_stats(self, stats: Arc<Stats>) -> Self {
        Self { stats: Some(stats), ..self }
    }

    /// Returns the statistics with the names of envoyproxy/ratelimit, if they are on.
    #[must_use]
    pub const fn stats(&self) -> Option<&Arc<Stats>> {
        self.stats.as_ref()
    }

    /// Splits shared concurrency limits with the other replicas of the fleet.
    #[must_use]
    pub fn with_fleet(self, fleet: Arc<FleetReporter>) -> Self {
        Self { concurrency_limits: self.concurrency_limits.with_fleet(fleet), ..self }
    }

    /// Returns the live replicas; `None` for the memory store.
    #[must_use]
    pub fn membership(&self) -> Option<&Membership> {
        self.local_fallback.as_ref().map(|local| &*local.membership)
    }

    /// Returns the leases of this replica; `None` for the memory store.
    #[must_use]
    pub const fn leases(&self) -> Option<&Arc<LeaseManager>> {
        self.leases.as_ref()
    }

    const fn local_fallback(&self) -> Option<&LocalFallback> {
        self.local_fallback.as_ref()
    }

    fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Returns the reason why the store is unavailable, if it is.
    #[must_use]
    pub fn store_failure(&self) -> Option<StoreFailure> {
        self.store.current_failure()
    }

    /// Returns the store's statistics.
    #[must_use]
    pub fn store_stats(&self) -> StoreStats {
        self.store.stats()
    }

    /// Replaces the configuration: `config` decides all later checks. Its concurrency limits also
    /// apply to requests that already wait in a queue.
    pub fn publish(&self, config: Arc<Config>) {
        self.actions.load(config, self.clock.now(), |config| self.activate_config(config));
    }

    fn activate_config(&self, config: Arc<Config>) {
        let before = self.active.load_full();
        if let Some(before) = before.as_deref().filter(|before| before.has_rules_of(&config)) {
            let counters = Arc::clone(&before.counters);
            return self.activate_tables(
                before,
                ActiveConfig { config, counters, has_budgets: before.has_budgets },
            );
        }
        let counters = before.as_deref().map(|before| &*before.counters);
        let counters = RuleCounters::new(&config, self.policy.max_counted_rules, counters);
        let active = Arc::new(ActiveConfig::new(config, Arc::new(counters)));
        self.active.store(Some(Arc::clone(&active)));
        self.reload_bans(&active);
        if let Some(leases) = &self.leases {
            let before = before.as_deref().map(|before| &*before.config);
            lease::apply_config(leases, before, &active);
        }
        // After the swap, so that the reload includes buckets that the old configuration creates
        // meanwhile.
        self.reload_concurrency_limits(&active);
        self.proxies.announce_limits();
    }

    /// Replaces the tables that limits read. They decide all later checks, also of later
    /// configurations.
    pub fn publish_tables(&self, tables: Arc<[Arc<Table>]>) {
        self.actions.load_tables(tables, self.clock.now(), |config| self.activate_config(config));
    }

    fn activate_tables(&self, before: &ActiveConfig, active: ActiveConfig) {
        let active = Arc::new(active);
        self.active.store(Some(Arc::clone(&active)));
        if active.tables.has_concurrency_limits() {
            self.reload_concurrency_limits(&active);
        }
        match active.tables.changed_since(&before.tables) {
            Some(rows) => self.proxies.announce_rows(&rows),
            None => self.proxies.announce_limits(),
        }
    }

    /// Returns the current configuration.
    #[must_use]
    pub fn config(&self) -> Option<Arc<Config>> {
        self.active.load().as_ref().map(|active| Arc::clone(&active.config))
    }

    /// Returns `true` if the current configuration has a budget.
    pub fn has_budgets(&self) -> bool {
        self.active.load().as_ref().is_some_and(|active| active.has_budgets)
    }

    /// Returns the decisions of each rule of the current configuration.
    #[must_use]
    pub fn rule_decisions(&self) -> Vec<RuleDecisions> {
        self.active.load().as_ref().map_or_else(Vec::new, |active| active.counters.totals())
    }

    /// Returns the clock of all decisions.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }
}

fn new_concurrency_limits(
    clock: &Arc<Clock>,
    max_buckets: usize,
    jitter: u64,
) -> ConcurrencyLimits {
    ConcurrencyLimits::new(Arc::clone(clock), max_buckets, jitter)
        .with_queue_spans(concurrency::start_queue_span)
}
