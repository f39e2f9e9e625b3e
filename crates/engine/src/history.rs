//! The last hour of each rule and each concurrency limit, in steps of [`STEP`].
//!
//! Guarantees:
//! - A series has at most [`MAX_POINTS`] points, the oldest first.
//! - Points of all replicas have the same step boundaries, by their wall clocks.
//! - A step without a sample is a point of zeros.
//! - Series of removed rules and limits are dropped with the next sample.
//!
//! Not covered:
//! - The current step, which is not over.

mod calls;

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::kernel::units::Nanos;
use crate::rule_counters::{RuleKey, RuleSample};

/// The time that one point of a series covers.
pub const STEP: Nanos = Nanos::from_secs(30);

/// The number of points of an hour.
pub const MAX_POINTS: usize = 120;

/// The largest number of concurrency limits with a series.
pub const MAX_LIMITS: usize = 50;

/// The values of one step.
pub type Point = [u64; 4];

/// The points of successive steps.
///
/// | series | values of a point |
/// |---|---|
/// | rule | allowed, denied, denied in shadow mode, largest used share in millionths |
/// | all checks | allowed, denied, denied in shadow mode, 0 |
/// | concurrency limit | limit, in flight, waiting, RTT in µs |
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Series {
    /// The number of the first step: the instant of its start divided by [`STEP`].
    pub start: u64,
    /// The points, the oldest first.
    pub points: VecDeque<Point>,
}

impl Series {
    /// Adds the point of `step`. Ignores a step that has a point.
    fn push(&mut self, step: u64, point: Point) {
        if self.points.is_empty() {
            self.start = step;
        }
        let missing = step.saturating_sub(self.end());
        if step < self.end() {
            return;
        }
        let missing = usize::try_from(missing).unwrap_or(usize::MAX).min(MAX_POINTS);
        self.points.extend(std::iter::repeat_n([0; 4], missing));
        self.points.push_back(point);
        self.start = step.saturating_add(1).saturating_sub(self.points.len() as u64);
        self.drop_oldest();
    }

    /// The step after the last point.
    fn end(&self) -> u64 {
        self.start.saturating_add(self.points.len() as u64)
    }

    fn drop_oldest(&mut self) {
        let surplus = self.points.len().saturating_sub(MAX_POINTS);
        self.points.drain(..surplus);
        self.start = self.start.saturating_add(surplus as u64);
    }

    /// Adds the counts of another replica. The used share becomes the larger one.
    pub(crate) fn merge(&mut self, other: &Self) {
        if other.points.is_empty() {
            return;
        }
        if self.points.is_empty() {
            self.start = other.start;
        }
        // A clock that is off by hours must not make a long series.
        let newest = self.end().max(other.end());
        let oldest = newest.saturating_sub(MAX_POINTS as u64);
        let first = self.start.min(other.start).max(oldest);
        let merged = (first..newest).map(|step| {
            let (a, b) = (self.at(step), other.at(step));
            let sum = |index: usize| a[index].saturating_add(b[index]);
            [sum(0), sum(1), sum(2), a[3].max(b[3])]
        });
        (self.points, self.start) = (merged.collect(), first);
    }

    fn at(&self, step: u64) -> Point {
        let index = step.checked_sub(self.start).and_then(|index| usize::try_from(index).ok());
        index.and_then(|index| self.points.get(index)).copied().unwrap_or_default()
    }
}

/// The counts and loads at the end of a step.
#[derive(Debug, Default)]
pub(crate) struct Sample {
    /// The number of the step.
    pub(crate) step: u64,
    /// The checks since the start of the process: allowed, denied, denied in shadow mode.
    pub(crate) checks: [u64; 3],
    /// The rules, by domain and path.
    pub(crate) rules: Vec<RuleSample>,
    /// The concurrency limits in use by path, with their points.
    pub(crate) limits: Vec<(Box<str>, Point)>,
}

/// The history of this replica.
#[derive(Debug, Default)]
pub(crate) struct History {
    checks: CountSeries,
    rules: HashMap<RuleKey, CountSeries>,
    limits: HashMap<Box<str>, Series>,
}

/// A series of counts, made from totals.
#[derive(Debug, Default)]
struct CountSeries {
    last: [u64; 3],
    series: Series,
}

impl CountSeries {
    fn push(&mut self, step: u64, totals: [u64; 3], used: u64) {
        let [allow, deny, shadow] =
            std::array::from_fn(|index| totals[index].saturating_sub(self.last[index]));
        self.last = totals;
        self.series.push(step, [allow, deny, shadow, used]);
    }
}

impl History {
    pub(crate) fn add(&mut self, sample: Sample) {
        let Sample { step, checks, rules, mut limits } = sample;
        self.checks.push(step, checks, 0);
        let mut old = std::mem::take(&mut self.rules);
        for RuleSample { key, counts, used } in rules {
            let mut series = old.remove(&key).unwrap_or_default();
            series.push(step, counts, used);
            self.rules.insert(key, series);
        }
        let mut old = std::mem::take(&mut self.limits);
        // Limits that have a series keep it; then the busiest ones get one.
        limits.sort_by_key(|(path, [_, in_flight, ..])| {
            (!old.contains_key(path), std::cmp::Reverse(*in_flight))
        });
        for (path, point) in limits.into_iter().take(MAX_LIMITS) {
            let mut series = old.remove(&path).unwrap_or_default();
            series.push(step, point);
            self.limits.insert(path, series);
        }
    }

    pub(crate) fn checks(&self) -> &Series {
        &self.checks.series
    }

    pub(crate) fn rule(&self, key: &RuleKey) -> Series {
        self.rules.get(key).map(|rule| rule.series.clone()).unwrap_or_default()
    }

    /// Returns the largest used share of a rule in the last step, in millionths.
    pub(crate) fn last_used(&self, key: &RuleKey) -> u64 {
        let last = self.rules.get(key).and_then(|rule| rule.series.points.back());
        last.map_or(0, |[.., used]| *used)
    }

    pub(crate) fn limit(&self, path: &str) -> Option<&Series> {
        self.limits.get(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(step: u64, allow: u64, used: u64) -> Sample {
        let rule = RuleSample { key: key(), counts: [allow, 0, 0], used };
        let limits = vec![("d.k".into(), [8, step, 0, 5])];
        Sample { step, checks: [allow, 1, 2], rules: vec![rule], limits }
    }

    fn key() -> RuleKey {
        ("d".into(), "d.k".into())
    }

    #[test]
    fn a_point_counts_the_decisions_of_its_step() {
        let mut history = History::default();
        history.add(sample(7, 10, 500_000));
        history.add(sample(8, 25, 1_000_000));
        let points = vec![[10, 0, 0, 500_000], [15, 0, 0, 1_000_000]];
        assert_eq!(history.rule(&key()), Series { start: 7, points: points.into() });
        assert_eq!(history.checks().points, [[10, 1, 2, 0], [15, 0, 0, 0]]);
        assert_eq!(history.last_used(&key()), 1_000_000);
        assert_eq!(history.limit("d.k").unwrap().points, [[8, 7, 0, 5], [8, 8, 0, 5]]);
    }

    #[test]
    fn missed_steps_are_zeros_and_an_hour_is_kept() {
        let mut history = History::default();
        history.add(sample(7, 10, 0));
        history.add(sample(9, 12, 0));
        assert_eq!(history.rule(&key()).points, [[10, 0, 0, 0], [0; 4], [2, 0, 0, 0]]);
        history.add(sample(9, 99, 0));
        assert_eq!(history.rule(&key()).points.len(), 3);
        history.add(sample(1_000, 100, 0));
        let series = history.rule(&key());
        assert_eq!((series.start, series.points.len()), (1_000 - 119, MAX_POINTS));
        assert_eq!(series.points.back(), Some(&[1, 0, 0, 0]));
    }

    #[test]
    fn removed_rules_lose_their_series() {
        let mut history = History::default();
        history.add(sample(7, 10, 0));
        history.add(Sample { step: 8, ..Sample::default() });
        assert_eq!(history.rule(&key()), Series::default());
        assert_eq!(history.limit("d.k"), None);
    }

    #[test]
    fn series_of_two_replicas_are_added_by_step() {
        let mut series = Series { start: 7, points: vec![[1, 2, 3, 10], [4, 5, 6, 40]].into() };
        series.merge(&Series { start: 8, points: vec![[1, 1, 1, 30], [2, 2, 2, 50]].into() });
        let sum = vec![[1, 2, 3, 10], [5, 6, 7, 40], [2, 2, 2, 50]];
        assert_eq!(series, Series { start: 7, points: sum.into() });
        series.merge(&Series { start: 900, points: vec![[1, 0, 0, 0]].into() });
        assert_eq!((series.start, series.points.len()), (901 - 120, 120));
    }
}
