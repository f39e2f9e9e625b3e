//! The statistics of envoyproxy/ratelimit, under the same names.
//!
//! Guarantees:
//! - A statistic appears as soon as it is not zero.
//! - Counts are exact.
//! - The numbers of names from limits files and of names from requests are bounded separately.
//! - Statistics with further names are counted under the name [`OVERFLOW`].
//!
//! Not covered:
//! - Sluicegate's own metrics (see [`super::metrics`]).
//! - Sending statistics to StatsD or a log.

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

use crate::kernel::named_enum;
use crate::kernel::units::Nanos;
pub use lines::{LineFormat, NameRewrite, StatLineFormatter};
use mapping::StatMapping;
pub use page::render_page;
pub use rule::{RuleCharge, RuleStats};
pub use timer::{CallTimer, TimerSnapshot};

/// The domain and the key under which statistics are counted that exceed the maximum number of
/// names.
pub const OVERFLOW: &str = "_overflow_";

/// The maximum length of a name from a request, in bytes. Longer names are counted as [`OVERFLOW`],
/// because one entry may be 60 times as long and each name is stored several times.
const MAX_REQUEST_NAME_BYTES: usize = 1024;

named_enum! {
    /// A statistic of the whole process, with a single counter.
    pub enum StatCounter {
        /// A check without domain, descriptor or loaded configuration, or an invalid one.
        ServiceError = "ratelimit.service.call.should_rate_limit.service_error",
        /// A check that failed because of the store.
        RedisError = "ratelimit.service.call.should_rate_limit.redis_error",
        /// A denial that global shadow mode turned into an allowed check.
        GlobalShadowMode = "ratelimit.service.global_shadow_mode",
        /// A configuration was loaded.
        ConfigLoadSuccess = "ratelimit.service.config_load_success",
        /// A configuration was invalid.
        ConfigLoadError = "ratelimit.service.config_load_error",
        /// An attempt to read the files of limits.
        RuntimeLoadAttempts = "runtime.load_attempts",
        /// A failed attempt to read the files of limits.
        RuntimeLoadFailures = "runtime.load_failures",
    }
}

named_enum! {
    /// A gRPC method whose calls are counted and timed.
    pub enum TimedMethod {
        /// Envoy's gRPC method for rate limit checks.
        ShouldRateLimit = "ShouldRateLimit",
        /// The method of the gRPC health check.
        Check = "Check",
    }
}

/// The name of a rule's statistics before invalid characters are replaced.
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
    has_replaced_dots: bool,
    counters: [AtomicU64; StatCounter::ALL.len()],
    calls: [AtomicU64; TimedMethod::ALL.len()],
    timers: [(String, CallTimer); TimedMethod::ALL.len()],
    mapping: StatMapping,
}

#[derive(Debug, Default)]
struct RuleStatsTable {
    /// The statistics of rules by the original name.
    by_key: HashMap<Box<str>, Arc<RuleStats>>,
    /// The statistics of rules by the sanitized name. Several original names may have the same
    /// sanitized name.
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
        let times = TimedMethod::ALL.map(|method| {
            let name = format!("ratelimit_server.{}.response_time", method.as_str());
            let timer = CallTimer::new(&mapping, &name);
            (name, timer)
        });
        let name = format!("{OVERFLOW}.{OVERFLOW}");
        let overflow = Arc::new(RuleStats::new(&name));
        // Add the overflow statistics to `by_name`, so that a rule with this name shares their
        // counters.
        let by_name = HashMap::from([(name.into(), Arc::clone(&overflow))]);
        Self {
            rules: RwLock::new(RuleStatsTable { by_name, ..RuleStatsTable::default() }),
            overflow,
            max_rules: usize::try_from(max_rules).unwrap_or(usize::MAX),
            has_replaced_dots: false,
            counters: Default::default(),
            calls: Default::default(),
            timers: times,
            mapping,
        }
    }

    /// Tells callers of [`Self::rule_stats`] to replace the dots in keys and values.
    #[must_use]
    pub const fn with_replaced_dots(mut self) -> Self {
        self.has_replaced_dots = true;
        self
    }

    /// Returns `true` if dots in keys and values become `_` in names of statistics.
    #[must_use]
    pub const fn has_replaced_dots(&self) -> bool {
        self.has_replaced_dots
    }

    /// Returns the counters of the rule with the name `key`. Creates the counters at the first
    /// call.
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

    /// Adds `count` to the counter of the statistic `stat`.
    pub fn add(&self, stat: StatCounter, count: u64) {
        self.counters[stat as usize].fetch_add(count, Relaxed);
    }

    /// Counts a call of a gRPC method that ended at `now`, and records its duration.
    pub fn record_call(&self, method: TimedMethod, now: Nanos, took: Nanos) {
        self.calls[method as usize].fetch_add(1, Relaxed);
        self.timers[method as usize].1.record(now, took.0 / Nanos::MILLI.0);
    }

    /// Disables the collection of each single duration, because these are needed only to send
    /// statistics.
    #[must_use]
    pub fn without_sending(mut self) -> Self {
        self.timers.iter_mut().for_each(|(_, timer)| timer.disable_sending());
        self
    }

    /// Advances the time to `now` and removes old durations from the quantiles.
    pub fn advance(&self, now: Nanos) {
        self.timers.iter().for_each(|(_, timer)| timer.advance(now));
    }

    /// Calls the closure with each statistic that is not zero, including the given external
    /// statistics.
    pub fn for_each(&self, external_stats: &[ExternalStat], mut visit: impl FnMut(StatSample<'_>)) {
        let mut counter = |name: &str, count: u64| {
            if count != 0 {
                visit(StatSample::Counter(name, count));
            }
        };
        for stat in StatCounter::ALL {
            counter(stat.as_str(), self.counters[stat as usize].load(Relaxed));
        }
        for method in TimedMethod::ALL {
            let name = format!("ratelimit_server.{}.total_requests", method.as_str());
            counter(&name, self.calls[method as usize].load(Relaxed));
        }
        let (rules, unknown_domains) = self.named_counters();
        for rule in &rules {
            rule.for_each(&mut counter);
        }
        for (domain, count) in unknown_domains {
            counter(&format!("ratelimit.service.rate_limit.{domain}.domain_not_found"), count);
        }
        for looked in external_stats {
            match *looked {
                ExternalStat::Gauge(name, value) => visit(StatSample::Gauge(name, value)),
                ExternalStat::Counter(_, 0) => {}
                ExternalStat::Counter(name, count) => visit(StatSample::Counter(name, count)),
            }
        }
        for (name, timer) in &self.timers {
            visit(StatSample::Timer(name, timer));
        }
    }

    /// Copies the references to the rules' counters, and the counts of unknown domains by sanitized
    /// name. So output does not block counting.
    fn named_counters(&self) -> (Vec<Arc<RuleStats>>, HashMap<String, u64>) {
        let rules = self.rules.read();
        let mut unknown = HashMap::new();
        for (domain, count) in &rules.unknown_domains {
            // Several domains may have the same sanitized name. Add their counts: separate samples
            // would make the count jump.
            let sum: &mut u64 = unknown.entry(names::sanitize(domain).into_owned()).or_default();
            *sum = sum.saturating_add(count.load(Relaxed));
        }
        (rules.by_name.values().map(Arc::clone).collect(), unknown)
    }
}
