//! Turns configuration text into a [`Config`], without opening files.
//!
//! Guarantees:
//! - A [`Config`] is complete and valid; each problem is a [`diagnostic::Diagnostic`].
//! - A file written for envoyproxy/ratelimit has the same meaning here.
//!
//! Not covered:
//! - The origin of the text (see [`crate::source`]).
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

/// A complete, immutable configuration for the engine.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The version number of this configuration.
    pub revision: Revision,
    /// The domains by name.
    pub domains: HashMap<Box<str>, Domain, FnvBuildHasher>,
}

/// The rules and settings of one domain.
#[derive(Clone, Debug)]
pub struct Domain {
    /// The domain's name.
    pub name: Box<str>,
    /// The limits of a check that are charged if one of them denies.
    pub charge: ChargePolicy,
    /// The entry key whose value selects the Redis Cluster slot of a counter.
    pub colocate: Option<Box<str>>,
    /// The fallback of a limit carried in a request, if no limit of the domain matches.
    pub on_backend_failure: FallbackMode,
    /// The rules.
    pub tree: DescriptorTree,
}

/// The limits of a check that are charged if one of them denies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ChargePolicy {
    /// Each limit is charged, even if another denies.
    #[default]
    Each,
    /// No limit is charged unless all allow.
    AllOrNothing,
}

/// The prefix of a metadata text that represents a number
/// JSON cannot express: `inf`, `-inf` or `NaN` follows.
///
/// gRPC and envoyproxy/ratelimit support such numbers. Unicode reserves
/// this character for use inside a program, so no file contains it as text.
pub const NON_FINITE_PREFIX: char = '\u{fdd0}';

/// The limit and the options of a node of the descriptor tree.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The limit; `None` is `unlimited`.
    pub limit: Option<Limit>,
    /// `name`: reported in decisions, and referenced by `replaces`.
    pub name: Option<Arc<str>>,
    /// Names of the rules that this rule disables in the same check.
    pub replaces: Box<[Arc<str>]>,
    /// Shadow mode: decided and reported, not enforced.
    pub shadow: bool,
    /// `quota_mode`: this rule is a member of the quota group.
    pub quota: bool,
    /// Metrics contain the key and value of every entry.
    pub detailed_metric: bool,
    /// Metadata that is returned to the caller if the rule does not deny.
    pub metadata: Option<Arc<serde_json::Map<String, serde_json::Value>>>,
    /// The rule's full path: domain, then `key` or `key_value` per level, joined by dots.
    pub path: Box<str>,
    /// The source file and line, for `explain`.
    pub location: Box<str>,
    /// The decision that an operator forced for a while.
    pub forced_decision: Option<ForcedDecision>,
}

/// A rate limit: requests per period, counting strategy, mode and fallback.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Requests per unit.
    pub requests: u32,
    /// The unit or period.
    pub window: LimitWindow,
    /// The counting strategy with its parameters.
    pub strategy: Strategy,
    /// The decisions that need no store call.
    pub mode: LimitMode,
    /// The fallback while the store does not answer.
    pub on_backend_failure: FallbackMode,
}

/// The period of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LimitWindow {
    /// One of the seven units, aligned to the Unix epoch.
    Unit(Unit),
    /// Another period; if the strategy has windows, they are aligned to the Unix epoch.
    Per(Nanos),
    /// Calendar days, weeks, months or years.
    Calendar(Unit, Arc<Calendar>),
}

/// A calendar whose windows start on a configured local day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    /// The time zone.
    pub time_zone: jiff::tz::TimeZone,
    /// The day that a window starts on.
    pub start_day: calendar::WindowStartDay,
    pub(crate) cached_starts: calendar::CachedStarts,
}

/// The decisions that need no store call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitMode {
    /// None: every check calls the store.
    #[default]
    Strict,
    /// Denials from the deny cache, until their retry-after.
    CachedDeny,
    /// Checks that the lease balance covers; leases are granted under these terms.
    Leased(LeaseTerms),
}

/// The fallback of a limit while the store does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FallbackMode {
    /// Return an error; Envoy's `failure_mode_deny` decides.
    #[default]
    Error,
    /// Allow.
    Allow,
    /// Deny.
    Deny,
    /// Count in memory against this replica's local share.
    Local,
}

impl Limit {
    /// Returns the part of the counter key that separates different ways of counting.
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

    /// Returns the strategy; for a calendar limit, with the windows around `now`.
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
    /// Returns the length of the period; a calendar window has its unit's nominal length.
    #[must_use]
    pub const fn length(&self) -> Nanos {
        match self {
            Self::Unit(unit) | Self::Calendar(unit, _) => unit.length(),
            Self::Per(length) => *length,
        }
    }

    /// Returns the unit, if the period is one.
    #[must_use]
    pub const fn unit(&self) -> Option<Unit> {
        match self {
            Self::Unit(unit) | Self::Calendar(unit, _) => Some(*unit),
            Self::Per(_) => None,
        }
    }
}
