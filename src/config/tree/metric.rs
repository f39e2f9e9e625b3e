//! The names of a rule's statistics, as in envoyproxy/ratelimit.

use super::{DescriptorTree, MatchKind, NodeFlags, shared_text};
use crate::config::Rule;

struct MetricLevel<'t, 'e> {
    key: &'e str,
    value: &'e str,
    kind: MatchKind,
    /// The text of the pattern that the entry matched, if any.
    pattern: Option<&'t str>,
    is_shared: bool,
    value_to_metric: bool,
}

impl DescriptorTree {
    /// Returns the name of the statistics of `rule`, which is the result of a lookup of `entries`.
    #[must_use]
    pub fn metric_key<'e, E>(&self, domain: &str, entries: E, rule: &Rule) -> String
    where
        E: IntoIterator<Item = (&'e str, &'e str)>,
        E::IntoIter: Clone,
    {
        let entries = entries.into_iter();
        let has_shared = rule.detailed_metric
            && self.metric_levels(entries.clone()).any(|level| level.is_shared);
        let mut name = String::with_capacity(rule.path.len());
        name.push_str(domain);
        for level in self.metric_levels(entries) {
            name.extend([".", level.key]);
            match level.value_text(rule.detailed_metric) {
                // As in envoyproxy/ratelimit, an empty value becomes `_`, unless a value is shared
                // (`share_threshold`).
                "" if rule.detailed_metric && !has_shared => name.push('_'),
                "" => {}
                value => name.extend(["_", value]),
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
            let (target, kind) = self.match_entry(parent?, key, value)?;
            parent = self.node_at(target);
            let flags = parent.map_or_else(NodeFlags::default, |node| node.flags);
            let pattern = parent.filter(|_| kind == MatchKind::Wildcard);
            let pattern = pattern.map(|node| shared_text(self.text(node.name), key));
            let is_shared = pattern.is_some() && flags.share_threshold;
            let value_to_metric = flags.value_to_metric;
            Some(MetricLevel { key, value, kind, pattern, is_shared, value_to_metric })
        })
    }
}

impl<'t, 'e: 't> MetricLevel<'t, 'e> {
    fn value_text(&self, detailed: bool) -> &'t str {
        match (self.pattern, self.kind) {
            (Some(pattern), _) if self.is_shared => pattern,
            _ if detailed || self.value_to_metric => self.value,
            (Some(pattern), _) => pattern,
            (None, MatchKind::Exact) => self.value,
            (None, MatchKind::Bare | MatchKind::Wildcard) => "",
        }
    }
}
