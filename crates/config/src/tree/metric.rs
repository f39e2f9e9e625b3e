//! The names under which envoyproxy/ratelimit's statistics count the decisions of a rule.
//!
//! Guarantees:
//! - The names are equal to those of envoyproxy/ratelimit.
//! - The fields `detailed_metric` and `value_to_metric` of rules are supported.
//!
//! Not covered:
//! - Replacement of characters that are invalid in statistics (see `telemetry::stats`).

use super::lookup::shared_text;
use super::{DescriptorTree, MatchKind, NodeFlags};
use crate::rule::Rule;

/// The treatment of dots in keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricDots {
    /// Dots stay.
    Kept,
    /// Each dot becomes `_`. Dots in the domain stay.
    Replaced,
}

impl MetricDots {
    /// Appends a key or value to the name of a statistic.
    pub fn append(self, name: &mut String, text: &str) {
        match self {
            Self::Kept => name.push_str(text),
            Self::Replaced => name.extend(text.chars().map(|c| if c == '.' { '_' } else { c })),
        }
    }
}

struct MetricLevel<'t, 'e> {
    key: &'e str,
    value: &'e str,
    how: MatchKind,
    /// The text that replaces the entry's value in the name, if the entry matched a pattern or a
    /// network.
    pattern: Option<&'t str>,
    is_shared: bool,
    value_to_metric: bool,
}

impl DescriptorTree {
    /// Returns the name of the statistics of `rule`, which a lookup of `entries` returned.
    #[must_use]
    pub fn metric_key<'e, E>(
        &self,
        domain: &str,
        entries: E,
        rule: &Rule,
        dots: MetricDots,
    ) -> String
    where
        E: IntoIterator<Item = (&'e str, &'e str)>,
        E::IntoIter: Clone,
    {
        let entries = entries.into_iter();
        let any_shared = rule.detailed_metric
            && self.metric_levels(entries.clone()).any(|level| level.is_shared);
        let mut name = String::with_capacity(rule.path.len());
        name.push_str(domain);
        for level in self.metric_levels(entries) {
            name.push('.');
            dots.append(&mut name, level.key);
            match level.value_text(rule.detailed_metric) {
                // With `detailed_metric`, an empty value is shown as `_`, unless the name contains
                // a shared value (`share_threshold`).
                "" if rule.detailed_metric && !any_shared => name.push('_'),
                "" => {}
                shown => {
                    name.push('_');
                    dots.append(&mut name, shown);
                }
            }
        }
        name
    }

    fn metric_levels<'t, 'e>(
        &'t self,
        entries: impl Iterator<Item = (&'e str, &'e str)>,
    ) -> impl Iterator<Item = MetricLevel<'t, 'e>> {
        let mut parent = Some(self.root());
        entries.map_while(move |(key, value)| {
            let (target, how) = self.match_entry(parent?, key, value)?;
            parent = self.node_at(target);
            let flags = parent.map_or_else(NodeFlags::default, |node| node.flags);
            let is_shared = how == MatchKind::Wildcard && flags.share_threshold;
            let pattern =
                parent.filter(|_| matches!(how, MatchKind::Wildcard | MatchKind::Network));
            let pattern = pattern.map(|node| shared_text(self.text(node.name), key));
            let value_to_metric = flags.value_to_metric;
            Some(MetricLevel { key, value, how, pattern, is_shared, value_to_metric })
        })
    }
}

impl<'t, 'e: 't> MetricLevel<'t, 'e> {
    fn value_text(&self, detailed: bool) -> &'t str {
        match (self.pattern, self.how) {
            (Some(pattern), _) if self.is_shared => pattern,
            _ if detailed || self.value_to_metric => self.value,
            (Some(pattern), _) => pattern,
            (None, MatchKind::Exact) => self.value,
            (None, MatchKind::Bare | MatchKind::Wildcard | MatchKind::Network) => "",
        }
    }
}
