//! Converts limits files, given as bytes, to a [`Config`].
//!
//! Guarantees:
//! - A [`Config`] is complete and valid. Every problem of a file is a [`diagnostic::Diagnostic`].
//! - A limits file of envoyproxy/ratelimit has the same meaning here.
//!
//! Not covered:
//! - Reading the files from disk or xDS (see [`crate::source`]).

pub mod calendar;
pub mod concurrency;
mod describe;
pub mod descriptor_text;
pub mod diagnostic;
pub mod explain;
pub mod forced_decision;
pub mod hooks;
mod lint;
mod load;
pub mod raw;
pub mod resolve;
pub mod schema;
pub mod settings;
pub mod tree;
mod yaml;

pub use describe::strategy_keyword;
pub use load::load;

use std::collections::HashMap;
use std::sync::Arc;

use fnv::FnvBuildHasher;

use crate::kernel::key::KeyStrategy;
use crate::kernel::lease::LeaseTerms;
use crate::kernel::rate::Strategy;
use crate::kernel::rate::fixed_window::{FixedWindow, Windows};
pub use crate::kernel::units::Unit;
use crate::kernel::units::{Nanos, Revision};
use forced_decision::ForcedDecision;
use tree::DescriptorTree;

/// A complete, valid and immutable configuration: all limits that the engine enforces.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The version number.
    pub revision: Revision,
    /// The domains, by name.
    pub domains: HashMap<Box<str>, Domain, FnvBuildHasher>,
}

/// The rules of one domain, and the fields that apply to all of them.
#[derive(Clone, Debug)]
pub struct Domain {
    /// The name.
    pub name: Box<str>,
    /// The charges of a check that one of its limits denies (field `charge`).
    pub charge: ChargePolicy,
    /// The entry key whose value selects the Redis Cluster slot of a counter (field `colocate`).
    pub colocate: Option<Box<str>>,
    /// The fallback of limits in checks (`limit` of a descriptor) that match no rule.
    pub on_backend_failure: FallbackMode,
    /// The rules, as a descriptor tree.
    pub tree: DescriptorTree,
}

/// The charges of a check that at least one of its limits denies (field `charge`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChargePolicy {
    /// Each limit is charged, even if another limit denies.
    #[default]
    Each,
    /// A limit is charged only if all limits of the check allow it (all-or-nothing).
    AllOrNothing,
}

/// The prefix of `inf`, `-inf` and `NaN` in `metadata`, numbers that JSON cannot express. Unicode
/// reserves the character for internal use by programs, so no text in a file contains it.
pub const NON_FINITE_PREFIX: char = '\u{fdd0}';

/// A rule with a `rate_limit`: the limit and the options of one node of the descriptor tree.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The limit, or `None` if the rule is `unlimited`.
    pub limit: Option<Limit>,
    /// The rule's `name`, which decisions report and the `replaces` of other rules contains.
    pub name: Option<Arc<str>>,
    /// The names of the rules that do not apply to a check that this rule matches.
    pub replaces: Box<[Arc<str>]>,
    /// Shadow mode: the rule counts hits and is reported, but never denies.
    pub shadow: bool,
    /// `quota_mode`: the rule belongs to the quota group, which denies only if all its limits deny.
    pub quota: bool,
    /// `detailed_metric`: the names of metrics contain the key and value of every entry.
    pub detailed_metric: bool,
    /// Free-form data that the reply to the proxy contains if this rule does not deny.
    pub metadata: Option<Arc<serde_json::Map<String, serde_json::Value>>>,
    /// The full path, such as `shop.plan_gold.user`: the domain and the names of all levels.
    pub path: Box<str>,
    /// The file and line of the rule, for the command `explain`.
    pub location: Box<str>,
    /// The forced decision, if an operator set one.
    pub forced_decision: Option<ForcedDecision>,
}

/// A rate limit: the number of requests in a period, and how to count and decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The number of requests that are allowed in each period.
    pub requests: u32,
    /// The period.
    pub window: LimitWindow,
    /// The strategy that counts hits, with its parameters.
    pub strategy: Strategy,
    /// The decisions that a replica makes without a store call.
    pub mode: LimitMode,
    /// The decision of a charge to which the store does not reply.
    pub on_backend_failure: FallbackMode,
}

/// The period over which a limit counts requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitWindow {
    /// A `unit`. Windows are aligned to the Unix epoch.
    Unit(Unit),
    /// A period `per`. Windows are aligned to the Unix epoch.
    Per(Nanos),
    /// Calendar days, weeks, months or years in a time zone.
    Calendar(Unit, Arc<Calendar>),
}

/// A calendar whose windows start on a configured local day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    /// The time zone in which days start at midnight.
    pub time_zone: jiff::tz::TimeZone,
    /// The day on which each window starts.
    pub start_day: calendar::WindowStartDay,
    pub(crate) cached_starts: calendar::CachedStarts,
}

/// The decisions that a replica makes without a store call (field `mode` of a rate limit).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitMode {
    /// None: every check makes a store call.
    #[default]
    Strict,
    /// Denials that the deny cache remembers until their retry-after.
    CachedDeny,
    /// Checks that the balance of a lease covers. [`LeaseTerms`] bounds the leases.
    Leased(LeaseTerms),
}

/// The decision of a charge to which the store does not reply (field `on_backend_failure`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FallbackMode {
    /// The check is an error. Envoy then allows or denies, by its option `failure_mode_deny`.
    #[default]
    Error,
    /// The charge is allowed.
    Allow,
    /// The charge is denied.
    Deny,
    /// The charge is counted in memory against this replica's local share of the limit.
    Local,
}

impl Limit {
    /// Returns the part of the counter key that depends on the strategy and window.
    #[must_use]
    pub fn counting(&self) -> KeyStrategy {
        match (&self.strategy, &self.window) {
            (Strategy::Gcra(_), _) => KeyStrategy::Gcra,
            (Strategy::SlidingLog(_), _) => KeyStrategy::SlidingLog,
            (Strategy::SlidingWindow(_), window) => KeyStrategy::SlidingWindow(window.length()),
            (Strategy::FixedWindow(_), LimitWindow::Calendar(unit, _)) => {
                KeyStrategy::Calendar(*unit)
            }
            (Strategy::FixedWindow(_), window) => KeyStrategy::FixedWindow(window.length()),
        }
    }

    /// Returns the strategy. The strategy of a calendar limit has the windows around `now`.
    #[must_use]
    pub fn strategy_at(&self, now: Nanos) -> Strategy {
        match (&self.strategy, &self.window) {
            (Strategy::FixedWindow(window), LimitWindow::Calendar(_, calendar)) => {
                let starts = calendar.cached_starts_around(now);
                FixedWindow::new(window.limit(), Windows::Calendar { starts })
                    .map_or(self.strategy, Strategy::FixedWindow)
            }
            (strategy, _) => *strategy,
        }
    }
}

impl LimitWindow {
    /// Returns the length of the period. A calendar month has 30 days, a calendar year 365.
    #[must_use]
    pub const fn length(&self) -> Nanos {
        match self {
            Self::Unit(unit) | Self::Calendar(unit, _) => unit.length(),
            Self::Per(length) => *length,
        }
    }

    /// Returns the unit of the period, or `None` for a period given by `per`.
    #[must_use]
    pub const fn unit(&self) -> Option<Unit> {
        match self {
            Self::Unit(unit) | Self::Calendar(unit, _) => Some(*unit),
            Self::Per(_) => None,
        }
    }
}
