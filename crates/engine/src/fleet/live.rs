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

mod report;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::Engine;
use crate::fleet::live_view::ViewScope;
use crate::fleet::membership::{ReplicaRecord, parse_record};
use crate::history::{History, RuleKey, Series};
use crate::kernel::top_keys::TopWindow;
use crate::kernel::units::Nanos;
use crate::rule_counters::{RuleActivity, RuleHash, rule_hash};
use crate::telemetry::metrics::METRICS;
use crate::top_keys::TopKeysQuery;
pub use report::{CheckCounts, LiveReport, TopLists, TopWindows, WatchedRule};

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

/// The pages of a replica that were read in the last [`WATCH_TIME`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Watch {
    /// `true` if the counts of all rules are read.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rules: bool,
    /// `true` if the top keys of all rules are read.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub top: bool,
    /// `true` if the history of all checks is read.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub overview: bool,
    /// The domain and the path of the rule that was read last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<RuleKey>,
}

impl Watch {
    const fn is_empty(&self) -> bool {
        !(self.rules || self.top || self.overview) && self.rule.is_none()
    }
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

impl Engine {
    /// Records that a page was read, so that the other replicas report its counts for
    /// [`WATCH_TIME`].
    pub fn watch_page(&self, page: WatchedPage) {
        let now = self.clock.steady();
        let mut reads = self.live.reads.lock();
        match page {
            WatchedPage::Overview => reads.overview = Some(now),
            WatchedPage::Rules => reads.rules = Some(now),
            WatchedPage::Top => reads.top = Some(now),
            WatchedPage::Rule(domain, path) => reads.rule = Some(((domain, path), now)),
        }
    }

    /// Returns the reports of the other live replicas, as of the last heartbeat.
    #[must_use]
    pub fn fleet_reports(&self) -> FleetReports {
        let Some(membership) = self.membership() else { return FleetReports::default() };
        let Some(fleet) = membership.snapshot() else { return FleetReports::default() };
        let others =
            fleet.replicas.iter().filter(|replica| *replica.node != *membership.replica_name());
        let others =
            others.map(|replica| (replica.node.clone(), parse_record(&replica.record))).collect();
        FleetReports { is_fleet: true, others }
    }

    /// Returns the pages of this replica that are read, for its record. `None` if there are none.
    pub(super) fn own_watch(&self) -> Option<Watch> {
        Some(self.live.watch(self.clock.steady())).filter(|watch| !watch.is_empty())
    }

    /// Returns this replica's live counts, for its record. `None` if no other replica's pages are
    /// read.
    pub(super) fn live_report(&self) -> Option<LiveReport> {
        let watches = self.watches_of_others();
        if watches.is_empty() {
            return None;
        }
        let is_read = |page: fn(&Watch) -> bool| watches.iter().any(page);
        let mut keys: Vec<_> = watches.iter().filter_map(|watch| watch.rule.clone()).collect();
        keys.sort();
        keys.dedup();
        let mut report = LiveReport {
            checks: self.check_counts(),
            history: is_read(|watch| watch.overview).then(|| self.check_history()),
            rules: is_read(|watch| watch.rules).then(|| self.reported_rules()),
            omitted_rules: 0,
            top: is_read(|watch| watch.top).then(|| self.top_windows((None, None), REPORTED_ROWS)),
            watched: keys
                .into_iter()
                .take(MAX_WATCHED_RULES)
                .map(|key| self.watched_rule(key))
                .collect(),
        };
        let replicas = usize::try_from(self.membership()?.division().replicas.get()).unwrap_or(1);
        let max = (MAX_FLEET_BYTES / replicas).clamp(MIN_REPORT_BYTES, MAX_REPORT_BYTES);
        report.shrink(max);
        Some(report)
    }

    fn watches_of_others(&self) -> Vec<Watch> {
        let Some(membership) = self.membership() else { return Vec::new() };
        let Some(fleet) = membership.snapshot() else { return Vec::new() };
        let others = fleet.replicas.iter().filter(|replica| {
            // Without this check, every heartbeat would parse all records once more.
            *replica.node != *membership.replica_name() && replica.record.contains("\"watch\":")
        });
        others.filter_map(|replica| parse_record(&replica.record).watch).collect()
    }

    /// Returns the counts of all rules, those with the most decisions first.
    fn reported_rules(&self) -> Vec<(RuleHash, RuleActivity)> {
        let mut rules: Vec<_> = self.rule_activity().into_iter().collect();
        rules.retain(|(_, activity)| *activity != RuleActivity::default());
        rules.sort_by_key(|(hash, activity)| (std::cmp::Reverse(activity.total()), *hash));
        rules
    }

    /// Returns the number of checks of this replica.
    #[must_use]
    pub fn check_counts(&self) -> CheckCounts {
        let [allow, deny, shadow_deny] = METRICS.verdict_counts();
        CheckCounts { allow, deny, shadow_deny, error: METRICS.failed_checks() }
    }

    /// Returns the history of all checks at this replica.
    #[must_use]
    pub fn check_history(&self) -> Series {
        self.live.history.lock().checks().clone()
    }

    /// Returns the decisions, the history and the top keys of a rule at this replica.
    #[must_use]
    pub fn watched_rule(&self, key: RuleKey) -> WatchedRule {
        let history = self.live.history.lock().rule(&key);
        let top = self.top_windows((Some(&key.0), Some(&key.1)), REPORTED_ROWS);
        let hash = rule_hash(&key.0, &key.1);
        let activity = self.rule_activity().get(&hash).copied().unwrap_or_default();
        WatchedRule { key, activity, history, top }
    }

    /// Returns the top keys of the rules with this domain and path at this replica.
    #[must_use]
    pub fn top_windows(
        &self,
        (domain, path): (Option<&str>, Option<&str>),
        max: usize,
    ) -> TopWindows {
        let lists = |window| self.top_keys(&TopKeysQuery { window, domain, path, max }).into();
        TopWindows { minute: lists(TopWindow::Minute), hour: lists(TopWindow::Hour) }
    }

    /// Returns the time since the start of the process.
    #[must_use]
    pub fn uptime(&self) -> Nanos {
        self.clock.steady().since(self.live.started_at)
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
