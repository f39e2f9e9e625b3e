//! Text to meaning, without opening a file.
//!
//! Guarantees: a [`Config`] is complete and sound, or it does not exist and every reason is a
//! [`diagnostic::Diagnostic`]; a file written for envoyproxy/ratelimit means the same here.
//! Leaves out: where texts come from ([`crate::source`]) and what counts hits ([`crate::backend`]).

pub mod diagnostic;
pub mod raw;
pub mod tree;
mod yaml;

use std::collections::HashMap;
use std::sync::Arc;

use crate::kernel::rate::Strategy;
use crate::kernel::units::{Nanos, Revision};
use tree::DescriptorTree;

/// Everything the engine needs to know, immutable.
#[derive(Debug, Default)]
pub struct Config {
    /// The number of this configuration.
    pub revision: Revision,
    /// The domains by name.
    pub domains: HashMap<Box<str>, Domain>,
}

/// One domain's rules.
#[derive(Debug)]
pub struct Domain {
    /// The domain's name.
    pub name: Box<str>,
    /// Which of a question's limits are charged when one denies.
    pub charge: Charging,
    /// The rules.
    pub tree: DescriptorTree,
}

/// Which of a question's limits are charged when one of them denies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Charging {
    /// Each is charged whether or not another denies.
    #[default]
    Each,
    /// None is charged unless all admit.
    AllOrNothing,
}

/// What a matching node imposes.
#[derive(Debug)]
pub struct Rule {
    /// The limit; `None` is `unlimited`.
    pub limit: Option<Limit>,
    /// `name`, echoed in answers and the handle for `replaces`.
    pub name: Option<Arc<str>>,
    /// Names of the rules that this one suppresses in the same question.
    pub replaces: Box<[Arc<str>]>,
    /// Decided and reported, not enforced.
    pub shadow: bool,
    /// Joins the quota group.
    pub quota: bool,
    /// Metrics carry every run-time key and value.
    pub detailed_metric: bool,
    /// Returned to the caller when not over limit.
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
    /// The rule's full path: domain, then `key` or `key_value` per level, joined by dots.
    pub path: Box<str>,
    /// Where it was written: file and line, for `explain`.
    pub place: Box<str>,
}

/// How much, per what, counted how.
#[derive(Clone, Debug)]
pub struct Limit {
    /// Requests per unit.
    pub requests: u32,
    /// The unit or period.
    pub window: Window,
    /// How hits are counted, with its numbers.
    pub strategy: Strategy,
    /// What a failing backend means for this limit.
    pub on_backend_failure: OnBackendFailure,
}

/// The period of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Window {
    /// One of the seven units, epoch-aligned.
    Unit(Unit),
    /// Any other period, epoch-aligned where the strategy has windows.
    Per(Nanos),
    /// A calendar's own days, weeks, months or years.
    Calendar(Unit, Arc<Calendar>),
}

/// The units of the base language. A month has 30 days and a year 365.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unit {
    /// 1 s.
    Second,
    /// 60 s.
    Minute,
    /// 3,600 s.
    Hour,
    /// 86,400 s.
    Day,
    /// 7 days, from a Thursday, as the epoch.
    Week,
    /// 30 days.
    Month,
    /// 365 days.
    Year,
}

impl Unit {
    /// The unit's length.
    #[must_use]
    pub const fn length(self) -> Nanos {
        Nanos::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 604_800,
            Self::Month => 2_592_000,
            Self::Year => 31_536_000,
        })
    }
}

/// A calendar: its windows start at local midnight of a chosen day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    /// The time zone.
    pub time_zone: jiff::tz::TimeZone,
    /// Day of the week (1 = Monday), month, or (for years) month and day that a window starts on.
    pub starts_on: i8,
}

/// What the caller gets when the backend fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnBackendFailure {
    /// An error; Envoy's `failure_mode_deny` decides.
    #[default]
    Error,
    /// Admit.
    Allow,
    /// Deny.
    Deny,
    /// This replica's part, counted in its own memory.
    Local,
}
