//! Sums the live counts of this replica and of the other replicas' reports.
//!
//! Guarantees:
//! - A sum has scope `fleet` only if all other live replicas report the part.
//! - Otherwise the scope is `replica`, and only this replica counts.
//! - The sums of rules have the number of replicas that report only some of their rules.

use std::collections::HashMap;

use crate::Engine;
use crate::fleet::live::{
    CheckCounts, FleetReports, LiveReport, REPORTED_ROWS, TopWindows, WatchedRule,
};
pub use crate::fleet::view_scope::ViewScope;
use crate::history::Series;
use crate::rule_counters::RuleKey;
use crate::rule_counters::{RuleActivity, RuleHash};

/// The decisions of all rules.
#[derive(Clone, Debug)]
pub struct RulesView {
    /// The counted replicas.
    pub scope: ViewScope,
    /// The decisions of each rule.
    pub activity: HashMap<RuleHash, RuleActivity>,
    /// The number of counted replicas whose report omits rules, because it would be too large.
    pub replicas_with_omitted_rules: usize,
}

impl Engine {
    /// Returns the number and the history of all checks.
    #[must_use]
    pub fn checks_view(&self, reports: &FleetReports) -> (ViewScope, CheckCounts, Series) {
        let (mut checks, mut history) = (self.check_counts(), self.check_history());
        let others = reports.all(|report| report.history.as_ref().map(|_| report));
        for report in others.iter().flatten() {
            checks = checks.plus(report.checks);
            report.history.iter().for_each(|other| history.merge(other));
        }
        (ViewScope::from_parts(others.as_ref()), checks, history)
    }

    /// Returns the decisions of all rules.
    #[must_use]
    pub fn rules_view(&self, reports: &FleetReports) -> RulesView {
        let mut sums = self.rule_activity();
        let others = reports.all(|report| report.rules.as_ref().map(|_| report));
        let mut replicas_with_omitted_rules = 0_usize;
        for report in others.iter().flatten() {
            let omits = usize::from(0 < report.omitted_rules);
            replicas_with_omitted_rules = replicas_with_omitted_rules.saturating_add(omits);
            for (rule, activity) in report.rules.iter().flatten() {
                sums.entry(*rule).or_default().merge(activity);
            }
        }
        let scope = ViewScope::from_parts(others.as_ref());
        RulesView { scope, activity: sums, replicas_with_omitted_rules }
    }

    /// Returns the decisions, the history and the top keys of one rule.
    #[must_use]
    pub fn rule_view(
        &self,
        key: RuleKey,
        max: usize,
        reports: &FleetReports,
    ) -> (ViewScope, WatchedRule) {
        let others = reports.all(|report| watched_in(report, &key));
        let mut rule = self.watched_rule(key);
        for other in others.iter().flatten() {
            rule.activity.merge(&other.activity);
            rule.history.merge(&other.history);
        }
        let tops: Vec<_> = others.iter().flatten().map(|other| &other.top).collect();
        rule.top.merge_all(&tops, max);
        (ViewScope::from_parts(others.as_ref()), rule)
    }

    /// Returns the top keys of all rules, of one domain, or of one rule.
    #[must_use]
    pub fn top_view(
        &self,
        (domain, path): (Option<&str>, Option<&str>),
        max: usize,
        reports: &FleetReports,
    ) -> (ViewScope, TopWindows) {
        // A key below the first `max` rows of this replica may be a top key of the fleet.
        let mut top = self.top_windows((domain, path), max.max(REPORTED_ROWS));
        let others = reports.all(|report| match (domain, path) {
            (Some(domain), Some(path)) => {
                let key = (domain.into(), path.into());
                watched_in(report, &key).map(|rule| &rule.top)
            }
            _ => report.top.as_ref(),
        });
        let selected: Vec<_> = others
            .iter()
            .flatten()
            .map(|other| {
                let mut other = (*other).clone();
                if path.is_none() {
                    other.select_domain(domain);
                }
                other
            })
            .collect();
        top.merge_all(&selected.iter().collect::<Vec<_>>(), max);
        (ViewScope::from_parts(others.as_ref()), top)
    }
}

fn watched_in<'r>(report: &'r LiveReport, key: &RuleKey) -> Option<&'r WatchedRule> {
    report.watched.iter().find(|rule| rule.key == *key)
}
