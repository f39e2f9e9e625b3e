//! The first of two passes over a limits file: verifies that keys are known and that scalars have a
//! permitted type.
//!
//! Guarantees:
//! - A key that is known in any block is accepted in every block, as in envoyproxy/ratelimit.
//! - If a key is repeated or merged (`<<`), only the last value is examined.
//! - The content of `metadata` and `up_to` is not examined.
//! - List items must be mappings, except in `overloaded_by` and `warn_at`.
//! - Other values must be text, integers, booleans or null; decimals only in decimal fields and
//!   in fields with units.
//!
//! Not covered:
//! - The type that each single key requires (see [`super::typed`]).

use std::collections::{HashSet, VecDeque};

use super::field_name::FieldName;
use super::foreign::{self, WordPlace};
use super::limits_block::LimitsBlock;
use super::typed::{describe_node, kind_of};
use crate::diagnostic::{Code, Findings};
use crate::yaml::{ScalarValue, YamlId, YamlKind, YamlTree};

/// Verifies the keys and scalars of a YAML tree. Nodes in `blamed` already have a finding. Returns
/// them and the newly reported nodes, so that the second pass reports no node again.
pub(super) fn check(
    tree: &YamlTree<'_>,
    blamed: HashSet<YamlId>,
    findings: &mut Findings,
) -> HashSet<YamlId> {
    let Some(root) = tree.root else { return blamed };
    let seen = HashSet::new();
    let mut names = NameChecker { mapping: root, tree, findings, reported: blamed, seen };
    let mut todo = VecDeque::from([(root, LimitsBlock::File)]);
    while let Some((mapping, block)) = todo.pop_front() {
        names.check_mapping(mapping, block, &mut todo);
    }
    names.reported
}

/// A key of a mapping, and the value that counts after repetitions and merges.
#[derive(Clone, Copy)]
struct FieldEntry {
    key: YamlId,
    value: YamlId,
    /// The mapping in which the key is written. For a merged key (`<<`), this is the mapping that
    /// the alias names.
    owner: YamlId,
}

/// The queue of mappings that are still to be examined, outer ones first.
type PendingMappings = VecDeque<(YamlId, LimitsBlock)>;

type FieldEntries = [Option<FieldEntry>; FieldName::ALL.len()];

struct NameChecker<'a, 's> {
    /// The mapping that is examined now.
    mapping: YamlId,
    tree: &'a YamlTree<'s>,
    findings: &'a mut Findings,
    reported: HashSet<YamlId>,
    /// The mappings that were reached through an alias, by kind of block. Each is examined only
    /// once, even with a thousand aliases.
    seen: HashSet<(YamlId, LimitsBlock)>,
}

impl NameChecker<'_, '_> {
    fn check_mapping(&mut self, mapping: YamlId, block: LimitsBlock, todo: &mut PendingMappings) {
        let mut entries: FieldEntries = [None; FieldName::ALL.len()];
        self.mapping = mapping;
        self.collect_entries(mapping, block, &mut entries);
        for (word, entry) in FieldName::ALL.into_iter().zip(entries) {
            let Some(entry) = entry else { continue };
            self.check_place(word, entry, block);
            // The second pass reports a list where one value is expected.
            let is_list =
                matches!(self.tree.kind(self.tree.target(entry.value)), YamlKind::Sequence(_));
            let is_reported_later =
                is_list && word.is_single_value() && block.field_names().contains(&word);
            if !word.has_own_keys() && !is_reported_later {
                self.check_value(word, entry.value, block.child_block(word), todo);
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
            } else if let Some(word) = self.field_name(key, value, block) {
                let entry = FieldEntry { key, value, owner: mapping };
                let slot = &mut entries[word as usize];
                if slot.replace(entry).is_some_and(|earlier| earlier.owner == mapping) {
                    self.warn_repeated(word, key);
                }
            }
        }
    }

    /// Adds the entries of a merged mapping. They overwrite entries that are written before the
    /// merge key.
    fn merge_entries(
        &mut self,
        into: YamlId,
        key: YamlId,
        from: YamlId,
        block: LimitsBlock,
        entries: &mut FieldEntries,
    ) {
        let mut merged: FieldEntries = [None; FieldName::ALL.len()];
        self.collect_entries(from, block, &mut merged);
        for ((word, slot), entry) in FieldName::ALL.into_iter().zip(entries).zip(merged) {
            let Some(entry) = entry else { continue };
            if slot.replace(entry).is_some_and(|earlier| earlier.owner == into) {
                let message = format!("`<<` overwrites `{}` above it", word.as_str());
                let help = "move `<<` to the top of the block: fields below it take precedence";
                self.report_warning(Code::MergeOverwrites, key, message, help);
            }
        }
    }

    fn warn_repeated(&mut self, word: FieldName, key: YamlId) {
        let message = format!("duplicate key `{}`; the last value is used", word.as_str());
        self.report_warning(Code::RepeatedKey, key, message, "remove one of them");
    }

    fn field_name(
        &mut self,
        key: YamlId,
        value_node: YamlId,
        block: LimitsBlock,
    ) -> Option<FieldName> {
        let key = self.tree.target(key);
        let (text, value) = self.tree.scalar(key)?;
        let name = match &value {
            ScalarValue::Text => Some(text),
            ScalarValue::Binary(bytes) => str::from_utf8(bytes).ok(),
            _ => None,
        };
        let Some(name) = name else {
            let message = format!("the key `{text}` is not text but {}", kind_of(&value));
            let help = "use the name of a field as the key";
            self.report_error(Code::KeyNotText, key, message, Some(help.to_owned()));
            return None;
        };
        let word = FieldName::from_name(name);
        if word.is_none() && self.findings.is_full(Code::UnknownKey) {
            self.findings.count_dropped(Code::UnknownKey);
        } else if word.is_none() {
            let message = format!("unknown field `{name}`");
            let help = self.help_for_unknown(name, value_node, block);
            self.report_error(Code::UnknownKey, key, message, Some(help));
        }
        word
    }

    fn check_place(&mut self, word: FieldName, entry: FieldEntry, block: LimitsBlock) {
        let is_anchor_metadata = word == FieldName::Metadata && block == LimitsBlock::File;
        if block.field_names().contains(&word) || is_anchor_metadata {
            return;
        }
        let place = self.word_place(entry.value, block);
        let help = foreign::fix_for(word.as_str(), &place)
            .filter(|_| word.is_extension())
            .unwrap_or_else(|| format!("move it to {}", LimitsBlock::list_blocks_of(word)));
        if word.is_extension() {
            let message = format!("`{}` is not valid in {}", word.as_str(), block.title());
            self.report_error(Code::MisplacedField, entry.key, message, Some(help));
        } else if block != LimitsBlock::WithoutEffect {
            let message = format!("`{}` is ignored in {}", word.as_str(), block.title());
            self.report_warning(Code::IgnoredKey, entry.key, message, &help);
        }
    }

    fn check_value(
        &mut self,
        word: FieldName,
        value: YamlId,
        inside: LimitsBlock,
        todo: &mut PendingMappings,
    ) {
        let target = self.tree.target(value);
        match self.tree.kind(target) {
            YamlKind::Mapping(_) => self.enqueue_once(value, inside, todo),
            YamlKind::Sequence(_) => {
                for item in self.tree.children(target) {
                    self.check_item(word, *item, target, inside, todo);
                }
            }
            YamlKind::Scalar { .. } => self.check_leaf(word, target),
            YamlKind::Alias(_) => {}
        }
    }

    fn check_item(
        &mut self,
        word: FieldName,
        item: YamlId,
        list: YamlId,
        inside: LimitsBlock,
        todo: &mut PendingMappings,
    ) {
        let target = self.tree.target(item);
        if matches!(self.tree.kind(target), YamlKind::Mapping(_)) {
            return self.enqueue_once(item, inside, todo);
        }
        if word.is_list_of_scalars() {
            return self.check_leaf(word, target);
        }
        self.reported.insert(list);
        let got = describe_node(self.tree, target);
        let message = format!("an item of `{}` is not a mapping but {got}", word.as_str());
        let help = match inside {
            LimitsBlock::Descriptor => Some("write each item as `- key: …`".to_owned()),
            LimitsBlock::Replaces => Some("write each item as `- name: …`".to_owned()),
            _ => None,
        };
        self.report_error(Code::NotMappingInList, item, message, help);
    }

    fn enqueue_once(&mut self, mapping: YamlId, block: LimitsBlock, todo: &mut PendingMappings) {
        let target = self.tree.target(mapping);
        if target == mapping || self.seen.insert((target, block)) {
            todo.push_back((target, block));
        }
    }

    fn check_leaf(&mut self, word: FieldName, leaf: YamlId) {
        let Some((text, value)) = self.tree.scalar(leaf) else { return };
        let what = match &value {
            ScalarValue::Float(_) if word.is_decimal() => return,
            _ if word.has_units() => return,
            ScalarValue::Float(_) => "a number with a fraction or exponent",
            ScalarValue::Unsigned(_) => "an integer of more than 64 bits",
            _ => return,
        };
        let message =
            format!("`{}: {text}` is {what}, which this field does not accept", word.as_str());
        let help = help_for_number(word, text, &value);
        self.report_error(Code::FractionOrTooBig, leaf, message, Some(help));
    }

    /// Returns the fix for the unknown key `name`: its new name, the field with its meaning, or the
    /// most similar field.
    fn help_for_unknown(&self, name: &str, value: YamlId, block: LimitsBlock) -> String {
        if block == LimitsBlock::File && name == "apiVersion" {
            return "in a Kubernetes manifest, the limits file is a text under `data` of a ConfigMap"
                .to_owned();
        }
        let fields = block.field_names();
        let meant = |field: FieldName| format!("did you mean `{}`?", field.as_str());
        FieldName::with_letters(name, fields)
            .map(meant)
            .or_else(|| foreign::fix_for(name, &self.word_place(value, block)))
            .or_else(|| FieldName::nearest(name, fields).map(meant))
            .or_else(|| help_for_elsewhere(name, block))
            .unwrap_or_else(|| block.describe_fields())
    }

    fn word_place(&self, value: YamlId, block: LimitsBlock) -> WordPlace<'_> {
        let siblings = self.fields_of(self.mapping);
        let limit = self.tree.pairs(self.mapping).find_map(|(key, value)| {
            let (text, _) = self.tree.scalar(self.tree.target(key))?;
            let value = self.tree.target(value);
            match FieldName::from_name(text)? {
                FieldName::RateLimit => Some(value),
                FieldName::RateLimits => self.tree.children(value).first().copied(),
                _ => None,
            }
        });
        WordPlace {
            block,
            siblings,
            limit_fields: limit.map_or_else(Vec::new, |limit| self.fields_of(limit)),
            value: self.tree.scalar(self.tree.target(value)).map(|(text, _)| text),
        }
    }

    /// Returns the fields that are written in a mapping, without merged ones.
    fn fields_of(&self, mapping: YamlId) -> Vec<FieldName> {
        let pairs = self.tree.pairs(self.tree.target(mapping));
        let keys = pairs.filter_map(|(key, _)| self.tree.scalar(self.tree.target(key)));
        keys.filter_map(|(text, _)| FieldName::from_name(text)).collect()
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

/// Returns the fix for the number `text`, which is not an integer of 64 bits.
fn help_for_number(word: FieldName, text: &str, value: &ScalarValue) -> String {
    match value {
        _ if !word.is_count() => format!("quote it if it is text: '{text}'"),
        ScalarValue::Float(number)
            if number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(number) =>
        {
            format!("write {number:.0}")
        }
        ScalarValue::Float(number)
            if word == FieldName::RequestsPerUnit && *number < f64::from(u32::MAX) =>
        {
            "write a whole number; for fractions, use a longer period, such as `per: 10m`"
                .to_owned()
        }
        _ => format!("write a whole number up to {}", u32::MAX),
    }
}

/// Returns the fix for a misspelled field of another block.
fn help_for_elsewhere(name: &str, block: LimitsBlock) -> Option<String> {
    if block == LimitsBlock::WithoutEffect {
        return Some("remove it".to_owned());
    }
    let field = FieldName::nearest(name, &FieldName::ALL)?;
    let blocks = LimitsBlock::list_blocks_of(field);
    Some(format!("move it to {blocks}, and write `{}`", field.as_str()))
}
