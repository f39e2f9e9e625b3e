//! Live counts for the admin pages, of this replica and of the others.

use super::{
    FleetReports, MAX_FLEET_BYTES, MAX_REPORT_BYTES, MAX_WATCHED_RULES, MIN_REPORT_BYTES,
    REPORTED_ROWS, Watch, WatchedPage,
};
use crate::Engine;
use crate::fleet::live::report::{CheckCounts, LiveReport, TopWindows, WatchedRule};
use crate::fleet::membership::parse_record;
use crate::history::Series;
use crate::kernel::top_keys::TopWindow;
use crate::kernel::units::Nanos;
use crate::rule_counters::RuleKey;
use crate::rule_counters::{RuleActivity, RuleHash, rule_hash};
use crate::telemetry::metrics::METRICS;
use crate::top_keys::TopKeysQuery;

impl Engine {
    /// Records that a page was read, so that the other replicas report its counts for
    /// [`super::WATCH_TIME`].
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
    pub(crate) fn own_watch(&self) -> Option<Watch> {
        Some(self.live.watch(self.clock.steady())).filter(|watch| !watch.is_empty())
    }

    /// Returns this replica's live counts, for its record. `None` if no other replica's pages are
    /// read.
    pub(crate) fn live_report(&self) -> Option<LiveReport> {
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
