//! Converts limits files, given as bytes, to a [`Config`].
//!
//! Guarantees:
//! - A [`Config`] is complete and valid. Every problem of a file is a [`diagnostic::Diagnostic`].
//! - A limits file of envoyproxy/ratelimit has the same meaning here.
//!
//! Not covered:
//! - Reading the files from disk or xDS (see [`crate::source`]).
//! - Counting hits (see [`crate::store`]).

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
    /// The version number of this configuration.
    pub revision: Revision,
    /// The domains, by name.
    pub domains: HashMap<Box<str>, Domain, FnvBuildHasher>,
}

/// The rules of one domain, and the fields that apply to all of them.
#[derive(Clone, Debug)]
pub struct Domain {
    /// The domain's name.
    pub name: Box<str>,
    /// The limits of a check that are charged if at least one of them denies it (field `charge`).
    pub charge: ChargePolicy,
    /// The key of the entry whose value selects the Redis Cluster slot of a counter (field
    /// `colocate`).
    pub colocate: Option<Box<str>>,
    /// The fallback for a limit that the request itself carries, if the domain has no rule for the
    /// descriptor.
    pub on_store_failure: FallbackMode,
    /// The rules of the domain, as a descriptor tree.
    pub tree: DescriptorTree,
}

/// The limits of a check that are charged if at least one of them denies it (field `charge`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChargePolicy {
    /// Each limit is charged, even if another denies.
    #[default]
    Each,
    /// A limit is charged only if all limits of the check allow it (all-or-nothing).
    AllOrNothing,
}

/// The prefix of a text in `metadata` that stands for a number that JSON cannot express. After the
/// prefix comes `inf`, `-inf` or `NaN`.
///
/// Such numbers are possible in gRPC metadata and in envoyproxy/ratelimit. Unicode reserves this
/// character for internal use by a program, so a file never contains it as text.
pub const NON_FINITE_PREFIX: char = '\u{fdd0}';

/// One node of the descriptor tree with `rate_limit`: its limit and options.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The limit, or `None` if the rule is `unlimited`.
    pub limit: Option<Limit>,
    /// The rule's `name`. Decisions report it, and other rules refer to it in `replaces`.
    pub name: Option<Arc<str>>,
    /// The names of the rules that do not apply in a check in which this rule matches.
    pub replaces: Box<[Arc<str>]>,
    /// Shadow mode: the rule decides and is reported, but never denies.
    pub shadow: bool,
    /// `quota_mode`: the rule belongs to the quota group, which denies only if all its limits deny.
    pub quota: bool,
    /// `detailed_metric`: the names of this rule's metrics contain the key and value of every
    /// entry.
    pub detailed_metric: bool,
    /// Free-form data that a check returns to the proxy if this rule does not deny.
    pub metadata: Option<Arc<serde_json::Map<String, serde_json::Value>>>,
    /// The full path of the rule: the domain and the names of all levels, joined by dots. A name is
    /// `key` or `key_value`.
    pub path: Box<str>,
    /// The file and line of the rule, for the command `explain`.
    pub location: Box<str>,
    /// The forced decision of an operator, if there is one.
    pub forced_decision: Option<ForcedDecision>,
}

/// A rate limit: the number of requests in a period, and the way to count and decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The requests that are allowed in each period.
    pub requests: u32,
    /// The period.
    pub window: LimitWindow,
    /// The strategy that counts hits, with its parameters.
    pub strategy: Strategy,
    /// The decisions that this replica makes without a store call.
    pub mode: LimitMode,
    /// The fallback of charges to which the store does not reply.
    pub on_store_failure: FallbackMode,
}

/// The period over which a limit counts requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitWindow {
    /// A `unit`. Windows of the strategy, if it has any, are aligned to the Unix epoch.
    Unit(Unit),
    /// A period `per`. Windows of the strategy, if it has any, are aligned to the Unix epoch.
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

/// The decisions that this replica makes without a store call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitMode {
    /// No decisions: every check makes a store call.
    #[default]
    Strict,
    /// Denials that the deny cache remembers until their retry-after.
    CachedDeny,
    /// Checks that the balance of a lease covers. The terms bound the size and duration of leases.
    Leased(LeaseTerms),
}

/// The decision of a charge to which the store does not reply.
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
    /// Returns the part of the counter key that depends on the strategy and window. A limit whose
    /// strategy changes thereby starts a new counter.
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

    /// Returns the strategy. For a calendar limit, it has the windows around the instant `now`.
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
    /// Returns the length of the period. A calendar month counts as 30 days, a calendar year as
    /// 365.
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
