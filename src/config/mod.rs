//! Text to meaning, without opening a file.
//!
//! Guarantees: a [`Config`] is complete and sound, or it does not exist and every reason is a
//! [`diagnostic::Diagnostic`]; a file written for envoyproxy/ratelimit means the same here.
//! Leaves out: where texts come from ([`crate::source`]) and what counts hits ([`crate::backend`]).

pub mod calendar;
pub mod concurrency;
mod describe;
pub mod diagnostic;
pub mod explain;
pub mod frozen;
pub mod hooks;
mod lint;
mod load;
pub mod raw;
pub mod resolve;
pub mod schema;
pub mod settings;
pub mod tree;
pub mod written;
mod yaml;

pub use describe::strategy_word;
pub use load::load;

use std::collections::HashMap;
use std::sync::Arc;

use fnv::FnvBuildHasher;

use crate::kernel::key::Counting;
use crate::kernel::lease::Terms;
use crate::kernel::rate::Strategy;
use crate::kernel::rate::fixed_window::{FixedWindow, Windows};
pub use crate::kernel::units::Unit;
use crate::kernel::units::{Nanos, Revision};
use frozen::Frozen;
use tree::DescriptorTree;

/// Everything the engine needs to know, immutable.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// The number of this configuration.
    pub revision: Revision,
    /// The domains by name.
    pub domains: HashMap<Box<str>, Domain, FnvBuildHasher>,
}

/// One domain's rules.
#[derive(Clone, Debug)]
pub struct Domain {
    /// The domain's name.
    pub name: Box<str>,
    /// Which of a question's limits are charged when one denies.
    pub charge: Charging,
    /// The key of the entry whose value says where counters live in a store of several nodes.
    pub colocate: Option<Box<str>>,
    /// What a failing backend means for a limit that a request brings where no limit of the domain's matches.
    pub on_backend_failure: OnBackendFailure,
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

/// Opens a text of a rule's metadata that stands for a number JSON does not have: then comes
/// `inf`, `-inf` or `NaN`. No file means this character, which Unicode reserves for use
/// within one program; gRPC can express such numbers, and the reference does.
pub const NOT_FINITE: char = '\u{fdd0}';

/// What a matching node imposes.
#[derive(Clone, Debug)]
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
    pub metadata: Option<Arc<serde_json::Map<String, serde_json::Value>>>,
    /// The rule's full path: domain, then `key` or `key_value` per level, joined by dots.
    pub path: Box<str>,
    /// Where it was written: file and line, for `explain`.
    pub place: Box<str>,
    /// What an operator holds it at.
    pub frozen: Option<Frozen>,
}

/// How much, per what, counted how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Requests per unit.
    pub requests: u32,
    /// The unit or period.
    pub window: Window,
    /// How hits are counted, with its numbers.
    pub strategy: Strategy,
    /// What may be answered without asking the store.
    pub mode: Mode,
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

/// A calendar: its windows start with a chosen local day.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calendar {
    /// The time zone.
    pub time_zone: jiff::tz::TimeZone,
    /// The day that a window starts on.
    pub starts: calendar::Starts,
    /// The windows last asked for.
    pub(crate) latest: calendar::Latest,
}

/// What may be answered without asking the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    #[default]
    Strict,
    /// What a denial that is not over yet denies.
    CachedDeny,
    /// What a balance of borrowed hits covers; leases are granted under these terms.
    Leased(Terms),
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

impl Limit {
    /// How this limit's counters are named apart from those that count otherwise.
    #[must_use]
    pub fn counting(&self) -> Counting {
        match (&self.strategy, &self.window) {
            (Strategy::Gcra(_), _) => Counting::Gcra,
            (Strategy::SlidingLog(_), _) => Counting::SlidingLog,
            (Strategy::SlidingWindow(_), window) => Counting::SlidingWindow(window.length()),
            (Strategy::FixedWindow(_), Window::Calendar(unit, _)) => Counting::Calendar(*unit),
            (Strategy::FixedWindow(_), window) => Counting::FixedWindow(window.length()),
        }
    }

    /// The strategy with the calendar's windows around `now`, where it has any.
    #[must_use]
    pub fn strategy_at(&self, now: Nanos) -> Strategy {
        match (&self.strategy, &self.window) {
            (Strategy::FixedWindow(window), Window::Calendar(_, calendar)) => {
                let starts = calendar.around(now);
                FixedWindow::new(window.limit(), Windows::Calendar { starts })
                    .map_or(self.strategy, Strategy::FixedWindow)
            }
            (strategy, _) => *strategy,
        }
    }
}

impl Window {
    /// The period's length; a calendar's window has its unit's nominal one.
    #[must_use]
    pub const fn length(&self) -> Nanos {
        match self {
            Self::Unit(unit) | Self::Calendar(unit, _) => unit.length(),
            Self::Per(length) => *length,
        }
    }

    /// The unit, where the period is one.
    #[must_use]
    pub const fn unit(&self) -> Option<Unit> {
        match self {
            Self::Unit(unit) | Self::Calendar(unit, _) => Some(*unit),
            Self::Per(_) => None,
        }
    }
}
