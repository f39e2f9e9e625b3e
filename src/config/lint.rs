//! Warns about files that load but probably have an unintended meaning.
//!
//! Guarantees:
//! - Every warning follows from the files alone; style causes no warning.
//! - Linear cost: each pattern is compared with the first [`WIDEST`] of its level.
//!
//! Not covered:
//! - Files that do not load (see [`super::resolve`]).

use std::collections::HashSet;
use std::sync::Arc;

use super::diagnostic::Code;
use super::raw::Descriptor;
use super::resolve::Origin;
use super::resolve::findings::{At, Findings};
use super::settings::nearest;
use super::tree::pattern::covers;
use super::tree::{DescriptorTree, NodeId};
use super::{Charging, Mode};

/// The number of patterns per level that later patterns are compared with. A
/// level with more is probably generated, and its first patterns are the widest.
const WIDEST: usize = 100;

pub(super) struct Lint<'r, 'f, 'a> {
    pub(super) tree: &'r DescriptorTree,
    pub(super) origins: &'r [Origin],
    pub(super) replaces: &'r [(At, Arc<str>)],
    pub(super) slots: Slots<'r>,
    /// The position of `max_overshoot` in the domain's `defaults`.
    pub(super) overshoot: Option<At>,
    pub(super) findings: &'f mut Findings<'a>,
}

/// The domain's settings for charging several counters together, with their positions.
pub(super) struct Slots<'r> {
    pub(super) charge: Option<(Charging, At)>,
    pub(super) colocate: Option<&'r (Box<str>, At)>,
}

/// Warns about fields of one descriptor that have no effect or an unexpected one.
pub(super) fn descriptor(raw: &Descriptor, at: At, findings: &mut Findings<'_>) {
    if raw.key.value.contains('*') {
        let message = format!(
            "the `*` in the key `{}` stands for any part of key and value joined by `_`",
            raw.key.value
        );
        let cure = "put the `*` into the value; keys are better written out";
        findings.add(Code::StarInKey, at, message, cure);
    }
    if raw.rate_limit.is_some() {
        return;
    }
    let words = [
        ("shadow_mode", raw.shadow_mode && raw.concurrency.is_none()),
        ("quota_mode", raw.quota_mode),
        ("detailed_metric", raw.detailed_metric),
        ("metadata", raw.metadata.is_some()),
    ];
    for (word, _) in words.into_iter().filter(|&(_, said)| said) {
        let message = format!("`{word}` has no effect on a descriptor without `rate_limit`");
        let cure = "put it where the limit is; descriptors below do not inherit it";
        findings.add(Code::NoEffect, at, message, cure);
    }
}

impl Lint<'_, '_, '_> {
    pub(super) fn run(mut self) {
        for node in self.tree.nodes() {
            self.shadowed_key(node);
            self.ambiguous_key(node);
        }
        for level in std::iter::once(NodeId::ROOT).chain(self.tree.nodes()) {
            self.shadowed_patterns(level);
        }
        self.unknown_replaces();
        self.several_slots();
        self.unused_overshoot();
    }

    fn unused_overshoot(&mut self) {
        let Some(at) = self.overshoot else { return };
        let mut limits = self.tree.rules().filter_map(|rule| rule.limit.as_ref());
        if limits.all(|limit| !matches!(limit.mode, Mode::Leased(_))) {
            let message =
                "`max_overshoot` has no effect: no limit of this domain is leased".to_owned();
            let cure = "say `mode: leased`, here or where a limit is, or leave it out";
            self.findings.add(Code::NoEffect, at, message, cure);
        }
    }

    /// Notes how a Redis Cluster charges limits that are charged together.
    fn several_slots(&mut self) {
        let as_one = self.slots.charge.filter(|(charge, _)| *charge == Charging::AllOrNothing);
        match (as_one, self.slots.colocate) {
            (_, Some((key, at))) if !self.has_key(key) => {
                let message = format!("no descriptor of this domain has the key `{key}`");
                let cure = "name the key of an entry that the domain's descriptors have";
                self.findings.add(Code::UnknownColocate, *at, message, cure);
            }
            (Some(_), Some((key, _))) => self.apart_from(key),
            (Some((_, at)), None) => {
                let message = "in a Redis Cluster one node has all counters of this domain, and \
                               charges a question in one step; in two where `backend_per_second` \
                               or `counter_keys: envoyproxy` takes some elsewhere"
                    .to_owned();
                let cure = "`colocate: KEY`, an entry that all its descriptors have, spreads them";
                self.findings.add(Code::SeveralSlots, at, message, cure);
            }
            (None, _) => {}
        }
    }

    fn has_key(&self, key: &str) -> bool {
        self.tree.nodes().any(|node| self.tree.parts(node).0 == key)
    }

    /// Notes limits whose descriptors may lack an entry `key`.
    fn apart_from(&mut self, key: &str) {
        for node in self
            .tree
            .nodes()
            .filter(|&node| self.tree.rule(node).is_some_and(|rule| rule.limit.is_some()))
        {
            let mut path = std::iter::successors(Some(node), |&node| {
                Some(self.tree.node(node).parent).filter(|&parent| parent != NodeId::ROOT)
            });
            if path.any(|node| self.tree.parts(node).0 == key) {
                continue;
            }
            let message = format!(
                "in a Redis Cluster this limit is charged in two steps with others, held first and \
                 kept or given back then: its descriptors have no entry `{key}`"
            );
            let cure = "in memory and on a single Redis, without `backend_per_second`, all is charged in one step";
            self.findings.add(Code::SeveralSlots, self.at(node), message, cure);
        }
    }

    fn shadowed_patterns(&mut self, level: NodeId) {
        let patterns = self.tree.wildcards(level);
        for (rank, &narrow) in patterns.iter().enumerate() {
            let earlier = &patterns[..rank.min(WIDEST)];
            let name = self.tree.name(narrow);
            let Some(&wide) = earlier.iter().find(|&&wide| covers(self.tree.name(wide), name))
            else {
                continue;
            };
            let other = self.named(wide);
            let message =
                format!("nothing is left for `{name}`: {other} comes first and matches all of it");
            let help = format!("put it before `{}`", self.tree.name(wide));
            self.findings.add(Code::ShadowedPattern, self.at(narrow), message, help);
        }
    }

    /// Warns if a pattern of the level matches every entry of a bare key.
    fn shadowed_key(&mut self, node: NodeId) {
        let (key, value) = self.tree.parts(node);
        if value.is_some() || key.contains('*') {
            return;
        }
        let patterns = self.tree.wildcards(self.tree.node(node).parent);
        let mut widest = patterns.iter().take(WIDEST).copied();
        let Some(wide) = widest.find(|&wide| self.takes_all(wide, key)) else { return };
        let other = self.named(wide);
        let message = format!("no entry with key `{key}` gets here: {other} matches them all");
        let help = "a pattern outranks a bare key: narrow the pattern, or take this one out";
        self.findings.add(Code::ShadowedKey, self.at(node), message, help);
    }

    fn takes_all(&self, pattern: NodeId, key: &str) -> bool {
        covers(self.tree.name(pattern), &format!("{key}_*"))
    }

    /// Warns if a rule takes entries of another key: beside key `a_b`,
    /// the rule of key `a` with value `b_c` matches the entry `a_b`, `c`.
    fn ambiguous_key(&mut self, node: NodeId) {
        let (key, Some(value)) = self.tree.parts(node) else { return };
        let (name, level) = (self.tree.name(node), self.tree.node(node).parent);
        let splits = value.match_indices('_').map(|(at, _)| key.len() + 1 + at);
        let others = splits.filter_map(|split| self.tree.named(level, &name[..split]));
        let bare = |other: &NodeId| self.tree.parts(*other).1.is_none();
        let Some(other) = others.into_iter().find(bare) else { return };
        let longer = self.tree.name(other);
        let message = format!(
            "an entry `{longer}`: `{}` finds this rule of key `{key}`, not {}",
            &name[longer.len() + 1..],
            self.named(other)
        );
        let help = "key and value are joined by `_` before they are compared: rename one key";
        self.findings.add(Code::AmbiguousKey, self.at(node), message, help);
    }

    fn unknown_replaces(&mut self) {
        let names: HashSet<&str> =
            self.tree.rules().filter_map(|rule| rule.name.as_deref()).collect();
        for (at, name) in self.replaces {
            if names.contains(&**name) || self.findings.only_counts(Code::UnknownReplaces, *at) {
                continue;
            }
            let message = format!("no rule of this domain is named `{name}`");
            let help = nearest(name, names.iter().copied()).map_or_else(
                || "give the rule to be replaced this `name`".to_owned(),
                |near| format!("did you mean `{near}`?"),
            );
            self.findings.add(Code::UnknownReplaces, *at, message, help);
        }
    }

    fn named(&self, node: NodeId) -> String {
        format!("`{}` ({})", self.tree.name(node), self.findings.line(self.at(node)))
    }

    fn at(&self, node: NodeId) -> At {
        self.origins.get(node.index()).map(|origin| origin.key).unwrap_or_default()
    }
}
