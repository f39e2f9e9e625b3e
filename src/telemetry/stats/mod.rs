//! envoyproxy/ratelimit's statistics, by its names.
//!
//! Guarantees: a statistic is there once it is not zero; amounts are exact; the number of names is bounded: so
//! many that requests make and so many that files do, and what comes then is counted as [`OVERFLOW`].
//! Leaves out: what this service counts for itself ([`super::metrics`]), and sending.

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
pub use lines::{Dialect, Lines, Rewrite};
use mapping::Mapping;
pub use page::page;
pub use rule::{Rule, Verdict};
pub use timer::{Timer, Times};

/// What is counted once there are as many names as may be: domain and key alike.
pub const OVERFLOW: &str = "_overflow_";

/// The longest name that a question makes, in bytes: one entry alone may be sixty times as long, and each name is kept
/// several times.
const LONGEST: usize = 1024;

/// Statistics that are one counter each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stat {
    /// A question of no domain, no descriptor or before the first configuration, or one that cannot be meant.
    ServiceError,
    /// A question that the store did not answer.
    RedisError,
    /// A denial that global shadow mode turned into an admission.
    GlobalShadowMode,
    /// A configuration was taken.
    ConfigLoadSuccess,
    /// A configuration was refused.
    ConfigLoadError,
    /// The files were looked at for a load.
    RuntimeLoadAttempts,
    /// The files could not be read.
    RuntimeLoadFailures,
}

impl Stat {
    /// Every one, in the order of their discriminants.
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

/// The methods that are timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Envoy's question.
    ShouldRateLimit,
    /// A check of health.
    Check,
}

impl Method {
    const ALL: [(Self, &'static str); 2] =
        [(Self::ShouldRateLimit, "ShouldRateLimit"), (Self::Check, "Check")];
}

/// The name of a rule's statistics, not yet fit for a statistic.
#[derive(Clone, Copy, Debug)]
pub enum Key<'k> {
    /// As a file writes it.
    Written(&'k str),
    /// With parts of a request.
    Made(&'k str),
}

/// A number that is looked up, not counted here.
#[derive(Clone, Debug, PartialEq)]
pub enum Looked {
    /// The name and value of one that goes up and down.
    Gauge(&'static str, u64),
    /// Of one that only grows.
    Counter(&'static str, u64),
}

/// One statistic at one time.
#[derive(Clone, Copy, Debug)]
pub enum Sample<'s> {
    /// A counter's name and value.
    Counter(&'s str, u64),
    /// A gauge's.
    Gauge(&'s str, u64),
    /// A timer's.
    Timer(&'s str, &'s Timer),
}

/// All statistics of a process.
#[derive(Debug)]
pub struct Stats {
    rules: RwLock<Rules>,
    overflow: Arc<Rule>,
    most: usize,
    single: [AtomicU64; Stat::ALL.len()],
    requests: [AtomicU64; Method::ALL.len()],
    times: [(String, Timer); Method::ALL.len()],
    mapping: Mapping,
}

#[derive(Debug, Default)]
struct Rules {
    /// By what files and requests say.
    by_key: HashMap<Box<str>, Arc<Rule>>,
    /// By what statistics hold of that, which may be the same for several.
    by_name: HashMap<Box<str>, Arc<Rule>>,
    /// How often questions named a domain that there is not.
    unknown_domains: HashMap<Box<str>, Arc<AtomicU64>>,
    written: usize,
    made: usize,
}

impl Stats {
    /// With at most `most` rules of each kind, and shown by `mapping`.
    #[must_use]
    pub fn new(most: u32, mapping: Mapping) -> Self {
        let times = Method::ALL.map(|(_, method)| {
            let name = format!("ratelimit_server.{method}.response_time");
            let timer = Timer::new(&mapping, &name);
            (name, timer)
        });
        let name = format!("{OVERFLOW}.{OVERFLOW}");
        let overflow = Arc::new(Rule::new(&name));
        // Among the others, so that a rule of that name is the same one.
        let by_name = HashMap::from([(name.into(), Arc::clone(&overflow))]);
        Self {
            rules: RwLock::new(Rules { by_name, ..Rules::default() }),
            overflow,
            most: usize::try_from(most).unwrap_or(usize::MAX),
            single: Default::default(),
            requests: Default::default(),
            times,
            mapping,
        }
    }

    /// Where what a rule does is counted.
    #[must_use]
    pub fn rule(&self, key: Key<'_>) -> Arc<Rule> {
        let (Key::Written(text) | Key::Made(text)) = key;
        if matches!(key, Key::Made(_)) && LONGEST < text.len() {
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
            Key::Written(_) => &mut rules.written,
            Key::Made(_) => &mut rules.made,
        };
        if self.most <= *count {
            return Arc::clone(&self.overflow);
        }
        *count += 1;
        let name: Box<str> = names::sound(text).into();
        let rule = rules.by_name.entry(name).or_insert_with_key(|name| Arc::new(Rule::new(name)));
        let rule = Arc::clone(rule);
        rules.by_key.insert(text.into(), Arc::clone(&rule));
        rule
    }

    /// Counts descriptors of a domain that there is not.
    pub fn unknown_domain(&self, domain: &str, descriptors: u64) {
        let domain = if LONGEST < domain.len() { OVERFLOW } else { domain };
        if let Some(count) = self.rules.read().unknown_domains.get(domain) {
            count.fetch_add(descriptors, Relaxed);
            return;
        }
        let mut rules = self.rules.write();
        let is_full = self.most <= rules.unknown_domains.len();
        let name = if is_full { OVERFLOW } else { domain };
        rules.unknown_domains.entry(name.into()).or_default().fetch_add(descriptors, Relaxed);
    }

    /// Counts what is one counter.
    pub fn add(&self, stat: Stat, count: u64) {
        self.single[stat as usize].fetch_add(count, Relaxed);
    }

    /// Counts a call that ended at `now` and the time that it took.
    pub fn called(&self, method: Method, now: Nanos, took: Nanos) {
        self.requests[method as usize].fetch_add(1, Relaxed);
        self.times[method as usize].1.took(now, took.0 / Nanos::MILLI.0);
    }

    /// The same, where nobody is sent what single calls took.
    #[must_use]
    pub fn unsent(mut self) -> Self {
        self.times.iter_mut().for_each(|(_, timer)| timer.keep_none());
        self
    }

    /// It is `now`: quantiles forget what is too old.
    pub fn pass(&self, now: Nanos) {
        self.times.iter().for_each(|(_, timer)| timer.pass(now));
    }

    /// Shows every statistic that is not zero, and what was looked up, to `see`.
    pub fn each(&self, looked: &[Looked], mut see: impl FnMut(Sample<'_>)) {
        let mut counter = |name: &str, count: u64| {
            if count != 0 {
                see(Sample::Counter(name, count));
            }
        };
        for (stat, name) in Stat::ALL {
            counter(name, self.single[stat as usize].load(Relaxed));
        }
        for (method, name) in Method::ALL {
            let name = format!("ratelimit_server.{name}.total_requests");
            counter(&name, self.requests[method as usize].load(Relaxed));
        }
        let (rules, unknown_domains) = self.named();
        for rule in &rules {
            rule.each(&mut counter);
        }
        for (domain, count) in unknown_domains {
            counter(&format!("ratelimit.service.rate_limit.{domain}.domain_not_found"), count);
        }
        for looked in looked {
            match *looked {
                Looked::Gauge(name, value) => see(Sample::Gauge(name, value)),
                Looked::Counter(_, 0) => {}
                Looked::Counter(name, count) => see(Sample::Counter(name, count)),
            }
        }
        for (name, timer) in &self.times {
            see(Sample::Timer(name, timer));
        }
    }

    /// What has a name of its own, each name once. Copied, so that who shows it holds up nobody who counts.
    fn named(&self) -> (Vec<Arc<Rule>>, HashMap<String, u64>) {
        let rules = self.rules.read();
        let mut unknown = HashMap::new();
        for (domain, count) in &rules.unknown_domains {
            // Several domains may be one name, whose count would go up and down if each were shown by itself.
            let sum: &mut u64 = unknown.entry(names::sound(domain).into_owned()).or_default();
            *sum = sum.saturating_add(count.load(Relaxed));
        }
        (rules.by_name.values().map(Arc::clone).collect(), unknown)
    }
}
