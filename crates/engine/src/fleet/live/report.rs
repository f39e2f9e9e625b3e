//! The live counts of one replica, as its record in the store has them.
//!
//! Guarantees:
//! - A report can be shrunk to a size: rows with few hits go first, then histories.
//! - Parts keep their presence when rows are dropped, so that readers know that they are reported.
//!
//! Not covered:
//! - The time at which a replica reports (see [`super`]).

use serde::{Deserialize, Serialize};

use crate::history::Series;
use crate::kernel::top_keys::TopWindow;
use crate::rule_counters::RuleKey;
use crate::rule_counters::{RuleActivity, RuleHash};
use crate::top_keys::{TopKeyList, TopKeysPage};

/// The live counts of one replica.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LiveReport {
    /// The checks since the start of the process.
    pub checks: CheckCounts,
    /// The history of all checks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub history: Option<Series>,
    /// The counts of the rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rules: Option<Vec<(RuleHash, RuleActivity)>>,
    /// The number of rules that `rules` omits, because the report would be too large.
    #[serde(skip_serializing_if = "is_zero")]
    pub omitted_rules: usize,
    /// The top keys of all rules.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top: Option<TopWindows>,
    /// The watched rules.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub watched: Vec<WatchedRule>,
}

/// The number of checks since the start of the process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckCounts {
    /// Allowed checks.
    pub allow: u64,
    /// Denied checks.
    pub deny: u64,
    /// Checks that the global shadow mode allowed.
    pub shadow_deny: u64,
    /// Checks without a decision, because the store was unavailable.
    pub error: u64,
}

/// The decisions, the history and the top keys of one rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WatchedRule {
    /// The domain and the path of the rule.
    pub key: RuleKey,
    /// The decisions and the used share.
    pub activity: RuleActivity,
    /// The history.
    pub history: Series,
    /// The top keys.
    pub top: TopWindows,
}

/// Top keys of both windows.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopWindows {
    /// The last minute.
    pub minute: TopLists,
    /// The last hour.
    pub hour: TopLists,
}

/// The top keys of one window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TopLists {
    /// The keys with the most hits.
    pub all: TopKeyList,
    /// The keys with the most denied hits.
    pub denied: TopKeyList,
}

impl TopWindows {
    /// Returns the lists of `window`.
    #[must_use]
    pub const fn of(&self, window: TopWindow) -> &TopLists {
        match window {
            TopWindow::Minute => &self.minute,
            TopWindow::Hour => &self.hour,
        }
    }

    /// Adds the rows of other replicas, and keeps the `max` rows with the most hits in each list.
    /// No row is dropped before the last replica is added, because the order is then still open.
    pub(crate) fn merge_all(&mut self, others: &[&Self], max: usize) {
        for other in others {
            for (list, other) in self.lists_mut().into_iter().zip(other.lists()) {
                list.append(other);
            }
        }
        self.lists_mut().into_iter().for_each(|list| list.sum_rows(max));
    }

    /// Drops the rows of other domains. The totals then count the rows only, because the hits of
    /// other keys are unknown by domain.
    pub(crate) fn select_domain(&mut self, domain: Option<&str>) {
        let Some(domain) = domain else { return };
        for list in self.lists_mut() {
            list.rows.retain(|row| *row.domain == *domain);
            list.total = list.rows.iter().map(|row| row.hits).fold(0, u64::saturating_add);
        }
    }

    const fn lists(&self) -> [&TopKeyList; 4] {
        let Self { minute, hour } = self;
        [&minute.all, &minute.denied, &hour.all, &hour.denied]
    }

    const fn lists_mut(&mut self) -> [&mut TopKeyList; 4] {
        let Self { minute, hour } = self;
        [&mut minute.all, &mut minute.denied, &mut hour.all, &mut hour.denied]
    }
}

impl From<TopKeysPage> for TopLists {
    fn from(TopKeysPage { all, denied }: TopKeysPage) -> Self {
        Self { all, denied }
    }
}

impl CheckCounts {
    /// Adds the checks of another replica.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            allow: self.allow.saturating_add(other.allow),
            deny: self.deny.saturating_add(other.deny),
            shadow_deny: self.shadow_deny.saturating_add(other.shadow_deny),
            error: self.error.saturating_add(other.error),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl LiveReport {
    fn bytes(&self) -> usize {
        serde_json::to_string(self).map_or(usize::MAX, |text| text.len())
    }

    /// Drops rows until the report has at most `max` bytes: half of the remaining rows each time,
    /// then the histories.
    pub(super) fn shrink(&mut self, max: usize) {
        let mut rows = usize::MAX;
        while max < self.bytes() && 0 < rows {
            rows = self.longest_list() / 2;
            let watched = self.watched.iter_mut().map(|rule| &mut rule.top);
            let tops = self.top.iter_mut().chain(watched);
            tops.flat_map(TopWindows::lists_mut).for_each(|list| list.rows.truncate(rows));
            if let Some(rules) = &mut self.rules {
                let omitted = rules.len().saturating_sub(rows);
                self.omitted_rules = self.omitted_rules.saturating_add(omitted);
                rules.truncate(rows);
            }
        }
        if max < self.bytes() {
            self.history = self.history.take().map(|_| Series::default());
            self.watched.iter_mut().for_each(|rule| rule.history = Series::default());
        }
    }

    fn longest_list(&self) -> usize {
        let watched = self.watched.iter().map(|rule| &rule.top);
        let lists = self.top.iter().chain(watched).flat_map(TopWindows::lists);
        let rules = self.rules.as_ref().map_or(0, Vec::len);
        lists.map(|list| list.rows.len()).max().unwrap_or(0).max(rules)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top_keys::TopKeyRow;

    fn row(descriptor: &str, hits: u64) -> TopKeyRow {
        let (domain, path, descriptor) = ("d".into(), "d.k".into(), descriptor.into());
        TopKeyRow { domain, path, descriptor, hits, error: 1 }
    }

    fn list(rows: &[(&str, u64)]) -> TopKeyList {
        let total = rows.iter().map(|(_, hits)| hits).sum();
        TopKeyList { total, rows: rows.iter().map(|(name, hits)| row(name, *hits)).collect() }
    }

    fn windows(all: TopKeyList) -> TopWindows {
        let lists = TopLists { all, denied: TopKeyList::default() };
        TopWindows { minute: lists.clone(), hour: lists }
    }

    #[test]
    fn merging_adds_the_hits_of_equal_descriptors() {
        let mut top = windows(list(&[("k=a", 5), ("k=b", 4)]));
        top.merge_all(&[&windows(list(&[("k=b", 3), ("k=c", 6), ("k=d", 1)]))], 3);
        let TopKeyList { total, rows } = top.minute.all;
        assert_eq!(total, 19);
        assert_eq!((rows[0].hits, rows[0].error), (7, 2));
        let names: Vec<_> = rows.iter().map(|row| &*row.descriptor).collect();
        assert_eq!(names, ["k=b", "k=c", "k=a"]);
    }

    #[test]
    fn a_key_of_several_replicas_exceeds_the_top_key_of_one() {
        let mut top = windows(list(&[("k=a", 10)]));
        let others = [windows(list(&[("k=b", 9), ("k=a", 1)])), windows(list(&[("k=b", 9)]))];
        top.merge_all(&others.each_ref(), 1);
        let TopKeyList { total, rows } = top.hour.all;
        assert_eq!(total, 29);
        assert_eq!(rows, [TopKeyRow { error: 2, ..row("k=b", 18) }]);
    }

    #[test]
    fn a_large_report_drops_the_rows_with_the_fewest_hits() {
        let long = "v".repeat(250);
        let rows: Vec<_> = (0..20).map(|n| (&*long, 100 - n)).collect();
        let mut report = LiveReport {
            top: Some(windows(list(&rows))),
            rules: Some((0..1_000).map(|rule| (rule, RuleActivity::default())).collect()),
            history: Some(Series { start: 7, points: vec![[1; 4]; 120].into() }),
            ..LiveReport::default()
        };
        report.shrink(8 << 10);
        assert!(report.bytes() <= 8 << 10, "{}", report.bytes());
        let top = report.top.as_ref().unwrap();
        assert_eq!(top.hour.all.total, (81..=100).sum::<u64>());
        assert_eq!(top.hour.all.rows[0].hits, 100);
        assert!(report.rules.as_ref().is_some_and(|rules| rules[0].0 == 0));
        assert!(0 < report.omitted_rules);
        assert_eq!(report.rules.as_ref().unwrap().len() + report.omitted_rules, 1_000);
        assert_eq!(report.history.as_ref().unwrap().points.len(), 120);
        report.shrink(1 << 10);
        assert!(report.bytes() <= 1 << 10, "{}", report.bytes());
        assert!(report.top.is_some() && report.rules.is_some() && report.history.is_some());
    }

    #[test]
    fn a_record_of_another_version_is_read() {
        let report: LiveReport = serde_json::from_str(r#"{"checks":{"allow":3},"new":1}"#).unwrap();
        assert_eq!(report.checks, CheckCounts { allow: 3, ..CheckCounts::default() });
    }
}
