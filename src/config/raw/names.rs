//! The first of two passes over a limits file: verifies that keys are known and scalars have a
//! permitted type.
//!
//! Guarantees:
//! - A key that is known in any block is accepted in every block, as in envoyproxy/ratelimit.
//! - If a key is repeated or merged (`<<`), only its last value is verified.
//! - List items must be mappings. Other values must be text, integers, booleans or null.

use std::collections::{HashSet, VecDeque};

use super::field_name::{FieldName, LimitsBlock};
use crate::config::diagnostic::{Code, Findings, Span};
use crate::config::yaml::{ScalarValue, YamlId, YamlKind, YamlTree};

/// Verifies the keys and scalars of a YAML tree. Returns `reported`, the nodes that already have a
/// finding, with the newly reported nodes.
pub(super) fn check_keys(
    tree: &YamlTree<'_>,
    reported: HashSet<YamlId>,
    findings: &mut Findings,
) -> HashSet<YamlId> {
    let mut checker = NameChecker { tree, findings, reported, seen: HashSet::new() };
    let mut pending = VecDeque::new();
    if let Some(root) = tree.root {
        pending.push_back((root, LimitsBlock::File));
    }
    while let Some((mapping, block)) = pending.pop_front() {
        checker.check_mapping(mapping, block, &mut pending);
    }
    checker.reported
}

/// A key of a mapping, and the value that counts after repetitions and merges.
#[derive(Clone, Copy)]
struct FieldEntry {
    key: YamlId,
    value: YamlId,
    /// The mapping that contains the key. For a merged key (`<<`), the target of the alias.
    owner: YamlId,
}

type PendingMappings = VecDeque<(YamlId, LimitsBlock)>;

type FieldEntries = [Option<FieldEntry>; FieldName::ALL.len()];

struct NameChecker<'a, 's> {
    tree: &'a YamlTree<'s>,
    findings: &'a mut Findings,
    reported: HashSet<YamlId>,
    /// The mappings that were reached through an alias. Each is verified once per kind of block.
    seen: HashSet<(YamlId, LimitsBlock)>,
}

impl NameChecker<'_, '_> {
    fn check_mapping(
        &mut self,
        mapping: YamlId,
        block: LimitsBlock,
        pending: &mut PendingMappings,
    ) {
        let mut entries: FieldEntries = [None; FieldName::ALL.len()];
        self.collect_entries(mapping, block, &mut entries);
        for (field, entry) in FieldName::ALL.into_iter().zip(entries) {
            let Some(entry) = entry else { continue };
            self.check_is_allowed(field, entry, block);
            if field != FieldName::Metadata {
                self.check_value(field, entry.value, block.child_block(field), pending);
            }
        }
    }

    fn collect_entries(&mut self, mapping: YamlId, block: LimitsBlock, entries: &mut FieldEntries) {
        let tree = self.tree;
        for (key, value) in tree.pairs(mapping) {
            if tree.is_merge(key) {
                for merged in tree.merged_mappings(value) {
                    self.merge_entries(mapping, key, tree.target(merged), block, entries);
                }
            } else if let Some(field) = self.parse_key(key, block) {
                let entry = FieldEntry { key, value, owner: mapping };
                let slot = &mut entries[field as usize];
                if slot.replace(entry).is_some_and(|earlier| earlier.owner == mapping) {
                    self.warn_repeated_key(field, key);
                }
            }
        }
    }

    /// Adds the entries of `source`, which overwrite entries of `mapping` before the merge key
    /// `key`.
    fn merge_entries(
        &mut self,
        mapping: YamlId,
        key: YamlId,
        source: YamlId,
        block: LimitsBlock,
        entries: &mut FieldEntries,
    ) {
        let mut merged: FieldEntries = [None; FieldName::ALL.len()];
        self.collect_entries(source, block, &mut merged);
        for ((field, slot), entry) in FieldName::ALL.into_iter().zip(entries).zip(merged) {
            let Some(entry) = entry else { continue };
            if slot.replace(entry).is_some_and(|earlier| earlier.owner == mapping) {
                let message = format!("`<<` overwrites `{}` above it", field.name());
                let help = "move `<<` to the top of the block; what is below it wins";
                self.report_warning(Code::MergeOverwrites, key, message, help);
            }
        }
    }

    fn warn_repeated_key(&mut self, field: FieldName, key: YamlId) {
        let message =
            format!("`{}` is written twice in one block; the last one counts", field.name());
        self.report_warning(Code::RepeatedKey, key, message, "take one of them out");
    }

    fn parse_key(&mut self, key: YamlId, block: LimitsBlock) -> Option<FieldName> {
        let key = self.tree.target(key);
        let (text, value) = self.tree.scalar(key)?;
        let name = match &value {
            ScalarValue::Text => Some(text),
            ScalarValue::Binary(bytes) => str::from_utf8(bytes).ok(),
            _ => None,
        };
        let Some(name) = name else {
            let message = format!("the key `{text}` is not text but {}", kind_name(&value));
            let help = "every key is one of the language's words";
            self.report_error(Code::KeyNotText, key, message, Some(help.to_owned()));
            return None;
        };
        let field = FieldName::from_name(name);
        if field.is_none() && self.findings.is_full(Code::UnknownKey) {
            self.findings.count_dropped(Code::UnknownKey);
        } else if field.is_none() {
            let message = format!("there is no key `{name}`");
            let help = match FieldName::nearest(name, block) {
                Some(nearest) => format!("did you mean `{}`?", nearest.name()),
                None if block == LimitsBlock::WithoutEffect => "take it out".to_owned(),
                None => block.describe_fields(),
            };
            self.report_error(Code::UnknownKey, key, message, Some(help));
        }
        field
    }

    fn check_is_allowed(&mut self, field: FieldName, entry: FieldEntry, block: LimitsBlock) {
        let is_anchor_metadata = field == FieldName::Metadata && block == LimitsBlock::File;
        if block.field_names().contains(&field) || is_anchor_metadata {
            return;
        }
        let help = format!("it belongs in {}", LimitsBlock::list_blocks_of(field));
        if field.is_extension() {
            let message = format!("`{}` has no place in {}", field.name(), block.title());
            self.report_error(Code::MisplacedWord, entry.key, message, Some(help));
        } else if block != LimitsBlock::WithoutEffect {
            let message = format!("`{}` is ignored in {}", field.name(), block.title());
            self.report_warning(Code::IgnoredKey, entry.key, message, &help);
        }
    }

    fn check_value(
        &mut self,
        field: FieldName,
        value: YamlId,
        child_block: LimitsBlock,
        pending: &mut PendingMappings,
    ) {
        let target = self.tree.target(value);
        match self.tree.kind(target) {
            YamlKind::Mapping(_) => self.enqueue_once(value, child_block, pending),
            YamlKind::Sequence(_) => {
                for item in self.tree.children(target) {
                    self.check_item(field, *item, target, child_block, pending);
                }
            }
            YamlKind::Scalar { .. } => self.check_scalar(field, target),
            YamlKind::Alias(_) => {}
        }
    }

    fn check_item(
        &mut self,
        field: FieldName,
        item: YamlId,
        list: YamlId,
        item_block: LimitsBlock,
        pending: &mut PendingMappings,
    ) {
        let target = self.tree.target(item);
        if matches!(self.tree.kind(target), YamlKind::Mapping(_)) {
            return self.enqueue_once(item, item_block, pending);
        }
        self.reported.insert(list);
        let actual = describe_node(self.tree, target);
        let message = format!("an item of `{}` is not a mapping but {actual}", field.name());
        let help = match item_block {
            LimitsBlock::Descriptor => Some("an item looks like this: `- key: …`".to_owned()),
            LimitsBlock::Replaces => Some("an item looks like this: `- name: …`".to_owned()),
            _ => None,
        };
        self.report_error(Code::NotMappingInList, item, message, help);
    }

    fn enqueue_once(&mut self, mapping: YamlId, block: LimitsBlock, pending: &mut PendingMappings) {
        let target = self.tree.target(mapping);
        if target == mapping || self.seen.insert((target, block)) {
            pending.push_back((target, block));
        }
    }

    fn check_scalar(&mut self, field: FieldName, leaf: YamlId) {
        let Some((text, value)) = self.tree.scalar(leaf) else { return };
        let kind = match value {
            ScalarValue::Float(_) => "a number with a fraction or exponent",
            ScalarValue::Unsigned(_) => "an integer beyond 64 bits",
            _ => return,
        };
        let message =
            format!("`{}` is {kind}, which a limits file cannot hold: {text}", field.name());
        let help = format!("quote it if it is meant as text: '{text}'");
        self.report_error(Code::FractionOrTooBig, leaf, message, Some(help));
    }

    fn report_error(&mut self, code: Code, node: YamlId, message: String, help: Option<String>) {
        self.reported.insert(node);
        let span = self.tree.span(node);
        match help {
            Some(help) => self.findings.add_with_help(code, span, message, help),
            None => self.findings.add(code, span, message),
        }
    }

    fn report_warning(&mut self, code: Code, node: YamlId, message: String, help: &str) {
        self.findings.add_with_help(code, self.tree.span(node), message, help);
    }
}

pub(super) fn describe_node(tree: &YamlTree<'_>, node: YamlId) -> String {
    match tree.scalar(node) {
        Some((_, ScalarValue::Null)) => "nothing".to_owned(),
        Some((text, ScalarValue::Text)) => format!("the text `{}`", shortened(text)),
        Some((text, value)) => format!("{}: `{}`", kind_name(&value), shortened(text)),
        None if matches!(tree.kind(node), YamlKind::Mapping(_)) => "a mapping".to_owned(),
        None => "a list".to_owned(),
    }
}

fn kind_name(value: &ScalarValue) -> &'static str {
    match value {
        ScalarValue::Null => "nothing",
        ScalarValue::Bool(_) => "a boolean",
        ScalarValue::Int(_) | ScalarValue::Unsigned(_) => "an integer",
        ScalarValue::Float(_) => "a number",
        ScalarValue::Text => "text",
        ScalarValue::Binary(_) => "binary",
    }
}

fn shortened(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let start: String = line.chars().take(40).collect();
    if start.len() < text.len() { format!("{start}…") } else { start }
}

/// Returns the span of a mapping's first key, which findings about the mapping show.
pub(super) fn first_key_span(tree: &YamlTree<'_>, mapping: YamlId) -> Span {
    tree.pairs(mapping).next().map_or_else(|| tree.span(mapping), |(key, _)| tree.span(key))
}
