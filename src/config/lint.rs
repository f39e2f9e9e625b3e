//! Warns about limits files that are valid, but probably do not mean what their author intended.
//!
//! Guarantees:
//! - Style causes no warning.
//! - Linear cost: a pattern is compared with at most [`MAX_COMPARED_PATTERNS`] patterns of its
//!   level.

use std::collections::HashSet;
use std::sync::Arc;

use super::diagnostic::Code;
use super::raw::Descriptor;
use super::resolve::NodeOrigin;
use super::resolve::findings::{FileFindings, FileSpan};
use super::settings::nearest;
use super::tree::pattern::covers;
use super::tree::{DescriptorTree, NodeId};
use super::{ChargePolicy, LimitMode};

/// The number of patterns at the start of a level with which later patterns are compared.
const MAX_COMPARED_PATTERNS: usize = 100;

pub(super) struct DomainLint<'r, 'f, 'a> {
    pub(super) tree: &'r DescriptorTree,
    pub(super) origins: &'r [NodeOrigin],
    pub(super) replaces: &'r [(FileSpan, Arc<str>)],
    pub(super) charge_settings: ChargeSettings<'r>,
    pub(super) default_overshoot: Option<FileSpan>,
    pub(super) findings: &'f mut FileFindings<'a>,
}

pub(super) struct ChargeSettings<'r> {
    pub(super) charge: Option<(ChargePolicy, FileSpan)>,
    pub(super) colocate: Option<&'r (Box<str>, FileSpan)>,
}

/// Warns about fields of one descriptor that have no effect, or an effect that users rarely expect.
pub(super) fn lint_descriptor(raw: &Descriptor, span: FileSpan, findings: &mut FileFindings<'_>) {
    if raw.key.value.contains('*') {
        let message = format!(
            "the `*` in the key `{}` stands for any part of key and value joined by `_`",
            raw.key.value
        );
        let help = "put the `*` into the value; keys are better written out";
        findings.add(Code::StarInKey, span, message, help);
    }
    if raw.rate_limit.is_some() {
        return;
    }
    let ineffective_fields = [
        ("shadow_mode", raw.shadow_mode && raw.concurrency.is_none()),
        ("quota_mode", raw.quota_mode),
        ("detailed_metric", raw.detailed_metric),
        ("metadata", raw.metadata.is_some()),
    ];
    for (field, _) in ineffective_fields.into_iter().filter(|&(_, is_set)| is_set) {
        let message = format!("`{field}` has no effect on a descriptor without `rate_limit`");
        let help = "put it where the limit is; descriptors below do not inherit it";
        findings.add(Code::NoEffect, span, message, help);
    }
}

impl DomainLint<'_, '_, '_> {
    pub(super) fn run(mut self) {
        for node in self.tree.nodes() {
            self.warn_shadowed_key(node);
            self.warn_ambiguous_key(node);
        }
        for level in std::iter::once(NodeId::ROOT).chain(self.tree.nodes()) {
            self.warn_shadowed_patterns(level);
        }
        self.warn_unknown_replaces();
        self.note_cluster_slots();
        self.warn_unused_overshoot();
    }

    fn warn_unused_overshoot(&mut self) {
        let Some(span) = self.default_overshoot else { return };
        let mut limits = self.tree.rules().filter_map(|rule| rule.limit.as_ref());
        if limits.all(|limit| !matches!(limit.mode, LimitMode::Leased(_))) {
            let message =
                "`max_overshoot` has no effect: no limit of this domain is leased".to_owned();
            let help = "say `mode: leased`, here or where a limit is, or leave it out";
            self.findings.add(Code::NoEffect, span, message, help);
        }
    }

    fn note_cluster_slots(&mut self) {
        let all_or_nothing =
            self.charge_settings.charge.filter(|(charge, _)| *charge == ChargePolicy::AllOrNothing);
        match (all_or_nothing, self.charge_settings.colocate) {
            (_, Some((key, span))) if !self.has_key(key) => {
                let message = format!("no descriptor of this domain has the key `{key}`");
                let help = "name the key of an entry that the domain's descriptors have";
                self.findings.add(Code::UnknownColocate, *span, message, help);
            }
            (Some(_), Some((key, _))) => self.note_limits_without_key(key),
            (Some((_, span)), None) => {
                let message = "in a Redis Cluster one node has all counters of this domain, and \
                               charges a question in one step; in two where `backend_per_second` \
                               or `counter_keys: envoyproxy` takes some elsewhere"
                    .to_owned();
                let help = "`colocate: KEY`, an entry that all its descriptors have, spreads them";
                self.findings.add(Code::SeveralSlots, span, message, help);
            }
            (None, _) => {}
        }
    }

    fn has_key(&self, key: &str) -> bool {
        self.tree.nodes().any(|node| self.tree.key_and_value(node).0 == key)
    }

    /// Adds a note for each limit whose descriptors may lack the entry `key` of `colocate`.
    fn note_limits_without_key(&mut self, key: &str) {
        for node in self
            .tree
            .nodes()
            .filter(|&node| self.tree.rule(node).is_some_and(|rule| rule.limit.is_some()))
        {
            let mut path = std::iter::successors(Some(node), |&node| {
                Some(self.tree.node(node).parent).filter(|&parent| parent != NodeId::ROOT)
            });
            if path.any(|node| self.tree.key_and_value(node).0 == key) {
                continue;
            }
            let message = format!(
                "in a Redis Cluster this limit is charged in two steps with others, held first and \
                 kept or given back then: its descriptors have no entry `{key}`"
            );
            let help = "in memory and on a single Redis, without `backend_per_second`, all is charged in one step";
            self.findings.add(Code::SeveralSlots, self.key_span(node), message, help);
        }
    }

    fn warn_shadowed_patterns(&mut self, level: NodeId) {
        let patterns = self.tree.wildcards(level);
        for (rank, &narrow) in patterns.iter().enumerate() {
            let earlier = &patterns[..rank.min(MAX_COMPARED_PATTERNS)];
            let name = self.tree.name(narrow);
            let Some(&wide) = earlier.iter().find(|&&wide| covers(self.tree.name(wide), name))
            else {
                continue;
            };
            let other = self.describe_node(wide);
            let message =
                format!("nothing is left for `{name}`: {other} comes first and matches all of it");
            let help = format!("put it before `{}`", self.tree.name(wide));
            self.findings.add(Code::ShadowedPattern, self.key_span(narrow), message, help);
        }
    }

    /// Warns if a pattern of the same level matches every entry of the bare key `node`.
    fn warn_shadowed_key(&mut self, node: NodeId) {
        let (key, value) = self.tree.key_and_value(node);
        if value.is_some() || key.contains('*') {
            return;
        }
        let patterns = self.tree.wildcards(self.tree.node(node).parent);
        let mut patterns = patterns.iter().take(MAX_COMPARED_PATTERNS).copied();
        let Some(wide) = patterns.find(|&pattern| self.covers_key(pattern, key)) else { return };
        let other = self.describe_node(wide);
        let message = format!("no entry with key `{key}` gets here: {other} matches them all");
        let help = "a pattern outranks a bare key: narrow the pattern, or take this one out";
        self.findings.add(Code::ShadowedKey, self.key_span(node), message, help);
    }

    fn covers_key(&self, pattern: NodeId, key: &str) -> bool {
        covers(self.tree.name(pattern), &format!("{key}_*"))
    }

    /// Warns if a rule also matches entries of another key: the name of key `a` and value `b_c` is
    /// also the name of key `a_b` and value `c`.
    fn warn_ambiguous_key(&mut self, node: NodeId) {
        let (key, Some(value)) = self.tree.key_and_value(node) else { return };
        let (name, level) = (self.tree.name(node), self.tree.node(node).parent);
        let splits = value.match_indices('_').map(|(position, _)| key.len() + 1 + position);
        let mut others = splits.filter_map(|split| self.tree.find_node(level, &name[..split]));
        let is_bare_key = |other: &NodeId| self.tree.key_and_value(*other).1.is_none();
        let Some(other) = others.find(is_bare_key) else { return };
        let longer_key = self.tree.name(other);
        let message = format!(
            "an entry `{longer_key}`: `{}` finds this rule of key `{key}`, not {}",
            &name[longer_key.len() + 1..],
            self.describe_node(other)
        );
        let help = "key and value are joined by `_` before they are compared: rename one key";
        self.findings.add(Code::AmbiguousKey, self.key_span(node), message, help);
    }

    fn warn_unknown_replaces(&mut self) {
        let names: HashSet<&str> =
            self.tree.rules().filter_map(|rule| rule.name.as_deref()).collect();
        for (span, name) in self.replaces {
            if names.contains(&**name) || self.findings.count_if_full(Code::UnknownReplaces, *span)
            {
                continue;
            }
            let message = format!("no rule of this domain is named `{name}`");
            let help = nearest(name, names.iter().copied()).map_or_else(
                || "give the rule to be replaced this `name`".to_owned(),
                |similar| format!("did you mean `{similar}`?"),
            );
            self.findings.add(Code::UnknownReplaces, *span, message, help);
        }
    }

    fn describe_node(&self, node: NodeId) -> String {
        format!("`{}` ({})", self.tree.name(node), self.findings.format_line(self.key_span(node)))
    }

    fn key_span(&self, node: NodeId) -> FileSpan {
        self.origins.get(node.index()).map(|origin| origin.key).unwrap_or_default()
    }
}
