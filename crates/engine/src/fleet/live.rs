//! Live counts of the fleet for the admin pages, exchanged through the replicas' records.
//!
//! A replica whose pages were read in the last [`WATCH_TIME`] adds a [`Watch`] to its record. The
//! other replicas then add a [`LiveReport`] to theirs. Nobody reports while nobody looks.
//!
//! Guarantees:
//! - A record grows by at most [`MAX_REPORT_BYTES`], and all records by about [`MAX_FLEET_BYTES`].
//! - A page shows sums only if all other live replicas report. Otherwise it shows this replica.
//! - Rows with few hits are dropped first from a report that is too large.
//!
//! Not covered:
//! - Exact top keys: a key that is no top key of a replica is missing in its report.
//! - Hits since the last heartbeat, about one second.

mod calls;
mod report;
pub mod watch;

use parking_lot::Mutex;

use crate::fleet::membership::ReplicaRecord;
use crate::fleet::view_scope::ViewScope;
use crate::history::History;
use crate::kernel::units::Nanos;
use crate::rule_counters::RuleKey;
pub use report::{CheckCounts, LiveReport, TopLists, TopWindows, WatchedRule};
pub use watch::Watch;

/// The time for which a read of a page counts as a watch.
pub const WATCH_TIME: Nanos = Nanos::from_secs(10);

/// The largest size of a [`LiveReport`], in bytes of JSON.
pub const MAX_REPORT_BYTES: usize = 32 << 10;

/// The size that the reports of all replicas share. Each replica reads all of them every second.
pub const MAX_FLEET_BYTES: usize = 64 << 10;

/// In a very large fleet, a report may still have this size.
const MIN_REPORT_BYTES: usize = 1 << 10;

/// The number of top keys in a list of a report.
pub const REPORTED_ROWS: usize = 20;

/// The number of rules that a report describes with their history and top keys.
const MAX_WATCHED_RULES: usize = 2;

/// A page of the admin port that shows live counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchedPage {
    /// Counts and history of all checks.
    Overview,
    /// Counts of all rules.
    Rules,
    /// Top keys of all rules.
    Top,
    /// History and top keys of the rule with this domain and path.
    Rule(Box<str>, Box<str>),
}

/// The state of this replica's live pages.
#[derive(Debug)]
pub(crate) struct LiveState {
    /// The start of the process, by the steady clock.
    pub(crate) started_at: Nanos,
    pub(crate) history: Mutex<History>,
    reads: Mutex<PageReads>,
}

/// The last read of each page, by the steady clock.
#[derive(Debug, Default)]
struct PageReads {
    overview: Option<Nanos>,
    rules: Option<Nanos>,
    top: Option<Nanos>,
    rule: Option<(RuleKey, Nanos)>,
}

impl LiveState {
    pub(crate) fn new(started_at: Nanos) -> Self {
        Self { started_at, history: Mutex::default(), reads: Mutex::default() }
    }

    fn watch(&self, now: Nanos) -> Watch {
        let reads = self.reads.lock();
        let is_recent = |read: Option<Nanos>| read.is_some_and(|at| now.since(at) < WATCH_TIME);
        let rule = reads.rule.as_ref().filter(|(_, at)| is_recent(Some(*at)));
        Watch {
            overview: is_recent(reads.overview),
            rules: is_recent(reads.rules),
            top: is_recent(reads.top),
            rule: rule.map(|(key, _)| key.clone()),
        }
    }
}

/// The reports of the other live replicas.
#[derive(Debug, Default)]
pub struct FleetReports {
    /// `true` if this replica belongs to a fleet.
    is_fleet: bool,
    /// The record of each other live replica, by name.
    others: Vec<(Box<str>, ReplicaRecord)>,
}

impl FleetReports {
    /// Returns a part of the reports of all other live replicas. `None` if this replica belongs to
    /// no fleet, or a replica does not report this part.
    pub fn all<T>(&self, part: impl Fn(&LiveReport) -> Option<&T>) -> Option<Vec<&T>> {
        if !self.is_fleet {
            return None;
        }
        self.others.iter().map(|(_, record)| part(record.live.as_ref()?)).collect()
    }

    /// Returns the number of replicas that a sum with this scope counts.
    #[must_use]
    pub fn counted(&self, scope: ViewScope) -> usize {
        match scope {
            ViewScope::Fleet => self.live_replicas(),
            ViewScope::Replica => 1,
        }
    }

    /// Returns the sorted names of the replicas that a sum with this scope counts. `own` is the
    /// name of this replica.
    #[must_use]
    pub fn counted_names<'r>(&'r self, own: &'r str, scope: ViewScope) -> Vec<&'r str> {
        let others = match scope {
            ViewScope::Fleet => &*self.others,
            ViewScope::Replica => &[],
        };
        let mut names: Vec<_> = others.iter().map(|(name, _)| &**name).chain([own]).collect();
        names.sort_unstable();
        names
    }

    /// Returns the number of live replicas, with this one.
    #[must_use]
    pub fn live_replicas(&self) -> usize {
        self.others.len().saturating_add(1)
    }

    /// Returns the report of a replica.
    #[must_use]
    pub fn of(&self, replica: &str) -> Option<&LiveReport> {
        let (_, record) = self.others.iter().find(|(name, _)| **name == *replica)?;
        record.live.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_is_a_watch_for_ten_seconds() {
        let state = LiveState::new(Nanos(0));
        assert!(state.watch(Nanos(0)).is_empty());
        state.reads.lock().top = Some(Nanos::from_secs(5));
        state.reads.lock().rule = Some((("d".into(), "d.k".into()), Nanos::from_secs(6)));
        let watch = state.watch(Nanos::from_secs(14));
        let rule = Some(("d".into(), "d.k".into()));
        assert_eq!(watch, Watch { top: true, rule, ..Watch::default() });
        assert!(!state.watch(Nanos::from_secs(15)).top);
        assert!(state.watch(Nanos::from_secs(16)).is_empty());
    }
}
