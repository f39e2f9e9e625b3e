//! The statistics of envoyproxy/ratelimit, under the same names.
//!
//! Guarantees:
//! - Counts are exact. A statistic appears as soon as it is not zero.
//! - The numbers of names from limits files and of names from requests are bounded separately.
//! - Statistics with further names are counted under the name [`OVERFLOW`].

mod lines;
pub mod mapping;
mod names;
mod page;
mod recent;
mod rule;
mod timer;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::RwLock;

use crate::kernel::units::Nanos;
pub use lines::{LineFormat, NameRewrite, StatLineFormatter};
use mapping::StatMapping;
pub use page::render_page;
pub use rule::{RuleCharge, RuleStats};
pub use timer::{CallTimer, TimerSnapshot};

/// The domain and key of the statistics above the maximum number of names.
pub const OVERFLOW: &str = "_overflow_";

/// The maximum length of a name from a request, in bytes. Longer names count as [`OVERFLOW`].
const MAX_REQUEST_NAME_BYTES: usize = 1024;

/// A statistic of the whole process, with a single counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatCounter {
    /// An invalid check, or a check before the first configuration was loaded.
    ServiceError,
    /// A check that failed because of the store.
    RedisError,
    /// A denied check that global shadow mode allowed.
    GlobalShadowMode,
    /// A configuration was loaded.
    ConfigLoadSuccess,
    /// A configuration was invalid.
    ConfigLoadError,
    /// An attempt to read the files of limits.
    RuntimeLoadAttempts,
    /// A failed attempt to read the files of limits.
    RuntimeLoadFailures,
}

impl StatCounter {
    const ALL: [(Self, &'static str); 7] = [
        (Self::ServiceError, "ratelimit.service.call.should_rate_limit.service_error"),
        (Self::RedisError, "ratelimit.service.call.should_rate_limit.redis_error"),
        (Self::GlobalShadowMode, "ratelimit.service.global_shadow_mode"),
        (Self::ConfigLoadSuccess, "ratelimit.service.config_load_success"),
        (Self::ConfigLoadError, "ratelimit.service.config_load_error"),
        (Self::RuntimeLoadAttempts, "runtime.load_attempts"),
        (Self::RuntimeLoadFailures, "runtime.load_failures"),
    ];
}

/// A gRPC method whose calls are counted and timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimedMethod {
    /// Envoy's gRPC method for rate limit checks.
    ShouldRateLimit,
    /// The method of the gRPC health check.
    Check,
}

impl TimedMethod {
    const ALL: [(Self, &'static str); 2] =
        [(Self::ShouldRateLimit, "ShouldRateLimit"), (Self::Check, "Check")];
}

/// The name of a rule's statistics, before invalid characters are replaced.
#[derive(Clone, Copy, Debug)]
pub enum RuleStatsKey<'k> {
    /// A name from a limits file.
    FromFile(&'k str),
    /// A name that contains values from a request.
    FromRequest(&'k str),
}

/// A value that is counted elsewhere and read when statistics are shown.
#[derive(Clone, Debug, PartialEq)]
pub enum ExternalStat {
    /// The name and value of a gauge.
    Gauge(&'static str, u64),
    /// The name and value of a counter.
    Counter(&'static str, u64),
}

/// The value of one statistic at one instant.
#[derive(Clone, Copy, Debug)]
pub enum StatSample<'s> {
    /// The name and value of a counter.
    Counter(&'s str, u64),
    /// The name and value of a gauge.
    Gauge(&'s str, u64),
    /// The name and the durations of a timer.
    Timer(&'s str, &'s CallTimer),
}

/// All statistics of a process.
#[derive(Debug)]
pub struct Stats {
    rules: RwLock<RuleStatsTable>,
    overflow: Arc<RuleStats>,
    max_rules: usize,
    counters: [AtomicU64; StatCounter::ALL.len()],
    calls: [AtomicU64; TimedMethod::ALL.len()],
    timers: [(String, CallTimer); TimedMethod::ALL.len()],
    mapping: StatMapping,
}

#[derive(Debug, Default)]
struct RuleStatsTable {
    /// The statistics of rules by original name.
    by_key: HashMap<Box<str>, Arc<RuleStats>>,
    /// The statistics of rules by sanitized name, which several original names may share.
    by_name: HashMap<Box<str>, Arc<RuleStats>>,
    /// The number of descriptors in checks of each unknown domain.
    unknown_domains: HashMap<Box<str>, Arc<AtomicU64>>,
    from_files: usize,
    from_requests: usize,
}

impl Stats {
    /// Creates statistics with at most `max_rules` rules from files and `max_rules` from requests.
    #[must_use]
    pub fn new(max_rules: u32, mapping: StatMapping) -> Self {
        let timers = TimedMethod::ALL.map(|(_, method)| {
            let name = format!("ratelimit_server.{method}.response_time");
            let timer = CallTimer::new(&mapping, &name);
            (name, timer)
        });
        let name = format!("{OVERFLOW}.{OVERFLOW}");
        let overflow = Arc::new(RuleStats::new(&name));
        // A rule with the name of the overflow statistics shares their counters.
        let by_name = HashMap::from([(name.into(), Arc::clone(&overflow))]);
        Self {
            rules: RwLock::new(RuleStatsTable { by_name, ..RuleStatsTable::default() }),
            overflow,
            max_rules: usize::try_from(max_rules).unwrap_or(usize::MAX),
            counters: Default::default(),
            calls: Default::default(),
            timers,
            mapping,
        }
    }

    /// Returns the counters of the rule with the name `key`. The first call creates them.
    #[must_use]
    pub fn rule_stats(&self, key: RuleStatsKey<'_>) -> Arc<RuleStats> {
        let (RuleStatsKey::FromFile(text) | RuleStatsKey::FromRequest(text)) = key;
        if matches!(key, RuleStatsKey::FromRequest(_)) && MAX_REQUEST_NAME_BYTES < text.len() {
            return Arc::clone(&self.overflow);
        }
        if let Some(rule) = self.rules.read().by_key.get(text) {
            return Arc::clone(rule);
        }
        let mut rules = self.rules.write();
        // Another thread may have added the rule.
        if let Some(rule) = rules.by_key.get(text) {
            return Arc::clone(rule);
        }
        let count = match key {
            RuleStatsKey::FromFile(_) => &mut rules.from_files,
            RuleStatsKey::FromRequest(_) => &mut rules.from_requests,
        };
        if self.max_rules <= *count {
            return Arc::clone(&self.overflow);
        }
        *count += 1;
        let name: Box<str> = names::sanitize(text).into();
        let rule =
            rules.by_name.entry(name).or_insert_with_key(|name| Arc::new(RuleStats::new(name)));
        let rule = Arc::clone(rule);
        rules.by_key.insert(text.into(), Arc::clone(&rule));
        rule
    }

    /// Counts the descriptors of a check whose domain is unknown.
    pub fn count_unknown_domain(&self, domain: &str, descriptors: u64) {
        let domain = if MAX_REQUEST_NAME_BYTES < domain.len() { OVERFLOW } else { domain };
        if let Some(count) = self.rules.read().unknown_domains.get(domain) {
            count.fetch_add(descriptors, Relaxed);
            return;
        }
        let mut rules = self.rules.write();
        let is_full = self.max_rules <= rules.unknown_domains.len();
        let name = if is_full { OVERFLOW } else { domain };
        rules.unknown_domains.entry(name.into()).or_default().fetch_add(descriptors, Relaxed);
    }

    /// Adds `count` to the statistic `stat`.
    pub fn add(&self, stat: StatCounter, count: u64) {
        self.counters[stat as usize].fetch_add(count, Relaxed);
    }

    /// Counts a call of a gRPC method that ended at `now`, and records its duration.
    pub fn record_call(&self, method: TimedMethod, now: Nanos, duration: Nanos) {
        self.calls[method as usize].fetch_add(1, Relaxed);
        self.timers[method as usize].1.record(now, duration.0 / Nanos::MILLI.0);
    }

    /// Disables the collection of single durations, which only the sending of statistics needs.
    #[must_use]
    pub fn without_sending(mut self) -> Self {
        self.timers.iter_mut().for_each(|(_, timer)| timer.disable_sending());
        self
    }

    /// Advances the time to `now` and removes old durations from the quantiles.
    pub fn advance(&self, now: Nanos) {
        self.timers.iter().for_each(|(_, timer)| timer.advance(now));
    }

    /// Calls `visit` with each statistic that is not zero, including `external_stats`.
    pub fn for_each(&self, external_stats: &[ExternalStat], mut visit: impl FnMut(StatSample<'_>)) {
        let mut visit_counter = |name: &str, count: u64| {
            if count != 0 {
                visit(StatSample::Counter(name, count));
            }
        };
        for (stat, name) in StatCounter::ALL {
            visit_counter(name, self.counters[stat as usize].load(Relaxed));
        }
        for (method, name) in TimedMethod::ALL {
            let name = format!("ratelimit_server.{name}.total_requests");
            visit_counter(&name, self.calls[method as usize].load(Relaxed));
        }
        let (rules, unknown_domains) = self.named_counters();
        for rule in &rules {
            rule.for_each(&mut visit_counter);
        }
        for (domain, count) in unknown_domains {
            let name = format!("ratelimit.service.rate_limit.{domain}.domain_not_found");
            visit_counter(&name, count);
        }
        for external_stat in external_stats {
            match *external_stat {
                ExternalStat::Gauge(name, value) => visit(StatSample::Gauge(name, value)),
                ExternalStat::Counter(_, 0) => {}
                ExternalStat::Counter(name, count) => visit(StatSample::Counter(name, count)),
            }
        }
        for (name, timer) in &self.timers {
            visit(StatSample::Timer(name, timer));
        }
    }

    /// Copies the references and counts, so that output does not hold the lock.
    fn named_counters(&self) -> (Vec<Arc<RuleStats>>, HashMap<String, u64>) {
        let rules = self.rules.read();
        let mut unknown = HashMap::new();
        for (domain, count) in &rules.unknown_domains {
            // Several domains may have the same sanitized name, so add their counts.
            let sum: &mut u64 = unknown.entry(names::sanitize(domain).into_owned()).or_default();
            *sum = sum.saturating_add(count.load(Relaxed));
        }
        (rules.by_name.values().map(Arc::clone).collect(), unknown)
    }
}
