//! The second of two passes over a limits file: converts the YAML tree to a [`File`] with typed
//! fields.
//!
//! Guarantees:
//! - Fields are read in the order of the file, as in envoyproxy/ratelimit.
//! - A repeated or merged block overwrites the earlier block field by field; a list replaces the
//!   earlier list.
//! - Null resets a field to its default.
//! - Every value of a wrong type is reported.
//! - Keys in a block where they are not valid are skipped.
//!
//! Not covered:
//! - Unknown keys (see [`super::names`]).

use std::collections::HashSet;

use serde_json::{Map, Value as Json};

use super::field_name::FieldName;
use super::fixes::{self, BOOL, COUNT, ExpectedNode, LIST, shortened};
use super::{File, TextList};
use crate::diagnostic::{Code, Findings, Span, Spanned};
use crate::yaml::{AliasBudget, ScalarValue, YamlId, YamlKind, YamlTree, report_too_many_aliases};

/// Reads a limits file from its YAML tree. Nodes in `reported` already have a finding and are not
/// reported again.
pub(super) fn read(
    tree: &YamlTree<'_>,
    reported: &HashSet<YamlId>,
    findings: &mut Findings,
) -> File {
    let mut reader = FileReader {
        tree,
        blamed: reported,
        findings,
        budget: AliasBudget::default(),
        exhausted: false,
        mismatched: None,
    };
    let mut file = File::default();
    if let Some(root) = tree.root {
        reader.read_fields(root, &mut file, &ExpectedNode::File);
    }
    file
}

/// A key and its value. An alias is replaced by its target.
#[derive(Clone, Copy)]
pub(super) struct FieldValue {
    pub(super) name: FieldName,
    pub(super) value: YamlId,
}

/// A value with fields, which is a mapping in the file.
pub(super) trait FieldMap {
    /// Returns the field for a key; `None` if this block has no such field.
    fn field(&mut self, name: FieldName) -> Option<&mut dyn FieldTarget>;

    /// Stores the position of the block in the file, unless it is the whole file.
    fn place(&mut self, _: Span) {}

    /// Records that a field of the block could not be read.
    fn mark_incomplete(&mut self) {}
}

/// A block that null removes.
pub(super) trait Block: FieldMap + Default {
    /// `true` if the value `Null` or `NULL` is an empty block.
    const NULL_IS_EMPTY: bool = false;
}

/// An item of a list.
pub(super) trait ListItem: FieldMap + Default {
    /// The words for an item in messages.
    const TITLE: &'static str;
}

/// A field that can be read from the file.
pub(super) trait FieldTarget {
    /// Reads the value of `field`, or reports that it has a wrong type.
    fn read(&mut self, reader: &mut FileReader<'_, '_>, field: FieldValue);
}

pub(super) struct FileReader<'a, 's> {
    pub(super) tree: &'a YamlTree<'s>,
    blamed: &'a HashSet<YamlId>,
    pub(super) findings: &'a mut Findings,
    budget: AliasBudget,
    exhausted: bool,
    /// The last node that had a wrong type.
    pub(super) mismatched: Option<YamlId>,
}

impl FileReader<'_, '_> {
    /// Calls `read` with node `id`, or with its target if it is an alias. Does nothing after the
    /// budget for nodes from aliases is used up.
    pub(super) fn visit(&mut self, id: YamlId, read: impl FnOnce(&mut Self, YamlId)) {
        let target = self.tree.target(id);
        let inside = usize::from(target != id);
        if !self.count_node(id) {
            return;
        }
        self.budget.alias_depth += inside;
        if inside == 0 || self.count_node(id) {
            read(self, target);
        }
        self.budget.alias_depth -= inside;
    }

    fn count_node(&mut self, id: YamlId) -> bool {
        if !self.exhausted && !self.budget.count() {
            self.exhausted = true;
            let span = self.tree.span(id);
            report_too_many_aliases(span, self.findings);
        }
        !self.exhausted
    }

    fn read_fields(&mut self, node: YamlId, out: &mut dyn FieldMap, wanted: &ExpectedNode) {
        let tree = self.tree;
        if self.is_null(node) {
            if matches!(wanted, ExpectedNode::Item(_)) {
                out.mark_incomplete();
            }
            return;
        }
        if !matches!(tree.kind(node), YamlKind::Mapping(_)) {
            out.mark_incomplete();
            return self.report_mismatch(node, wanted);
        }
        for (key, value) in tree.pairs(node) {
            if tree.is_merge(key) {
                for merged in tree.merged_mappings(value) {
                    self.visit(merged, |reader, merged| {
                        if matches!(tree.kind(merged), YamlKind::Mapping(_)) {
                            reader.read_fields(merged, out, wanted);
                        }
                    });
                }
            } else if let Some(name) = self.field_name(key) {
                let was_reported = self.blamed.contains(&self.tree.target(value));
                self.mismatched = None;
                let mut is_misplaced = false;
                self.visit(value, |reader, value| match out.field(name) {
                    Some(target) => target.read(reader, FieldValue { name, value }),
                    None => is_misplaced = name.is_extension(),
                });
                // The user may mean a field of this block that seems to be missing.
                if is_misplaced || was_reported || self.mismatched == Some(tree.target(value)) {
                    out.mark_incomplete();
                }
            } else {
                out.mark_incomplete();
            }
        }
    }

    fn field_name(&mut self, key: YamlId) -> Option<FieldName> {
        let mut word = None;
        self.visit(key, |reader, key| word = FieldName::from_name(&reader.key_text(key)));
        word
    }

    /// Returns a key as written in the file, or decoded if it is tagged `!!binary`.
    pub(super) fn key_text(&self, key: YamlId) -> String {
        match self.tree.scalar(key) {
            Some((_, ScalarValue::Binary(bytes))) => String::from_utf8_lossy(&bytes).into_owned(),
            None | Some((_, ScalarValue::Null)) => String::new(),
            Some((text, _)) => text.to_owned(),
        }
    }

    fn is_null(&self, node: YamlId) -> bool {
        matches!(self.tree.scalar(node), Some((_, ScalarValue::Null)))
    }

    /// Decodes a text tagged `!!binary`. envoyproxy/ratelimit accepts any bytes, but requests
    /// contain only UTF-8, so a text with other bytes matches no request.
    fn decode_text(&mut self, bytes: Vec<u8>, span: Span) -> String {
        String::from_utf8(bytes).unwrap_or_else(|error| {
            let message = "the binary value is not UTF-8, so it matches no request";
            let help = "write the text itself instead of `!!binary`";
            self.findings.add_with_help(Code::BinaryNotText, span, message, help);
            String::from_utf8_lossy(error.as_bytes()).into_owned()
        })
    }

    fn report_mismatch(&mut self, node: YamlId, wanted: &ExpectedNode) {
        self.mismatched = Some(node);
        if self.blamed.contains(&node) {
            return;
        }
        let got = describe_node(self.tree, node);
        let message = match wanted {
            ExpectedNode::File => format!("a limits file must be a mapping, not {got}"),
            ExpectedNode::Item(title) => format!("{title} must be a mapping, not {got}"),
            ExpectedNode::Field(word, what) => {
                format!("`{}` must be {what}, not {got}", word.as_str())
            }
        };
        let span = self.tree.span(node);
        match fixes::for_mismatch(self.tree, node, wanted) {
            Some(help) => self.findings.add_with_help(Code::TypeMismatch, span, message, help),
            None => self.findings.add(Code::TypeMismatch, span, message),
        }
    }

    pub(super) fn report_wrong_value(&mut self, field: FieldValue, wanted: &'static str) {
        self.report_mismatch(field.value, &ExpectedNode::Field(field.name, wanted));
    }
}

impl FieldTarget for Spanned<String> {
    fn read(&mut self, reader: &mut FileReader<'_, '_>, field: FieldValue) {
        let span = reader.tree.span(field.value);
        let value = match reader.tree.scalar(field.value) {
            Some((_, ScalarValue::Null)) => String::new(),
            Some((_, ScalarValue::Binary(bytes))) => reader.decode_text(bytes, span),
            Some((text, _)) => text.to_owned(),
            None => return reader.report_wrong_value(field, "text"),
        };
        *self = Self { value, span };
    }
}

impl FieldTarget for Spanned<bool> {
    fn read(&mut self, reader: &mut FileReader<'_, '_>, field: FieldValue) {
        let span = reader.tree.span(field.value);
        match reader.tree.scalar(field.value) {
            Some((_, ScalarValue::Bool(value))) => *self = Self { value, span },
            Some((_, ScalarValue::Null)) => *self = Self { value: false, span },
            _ => reader.report_wrong_value(field, BOOL),
        }
    }
}

impl FieldTarget for bool {
    fn read(&mut self, reader: &mut FileReader<'_, '_>, field: FieldValue) {
        let mut spanned = Spanned { value: *self, span: Span::default() };
        spanned.read(reader, field);
        *self = spanned.value;
    }
}

impl FieldTarget for Spanned<u32> {
    fn read(&mut self, reader: &mut FileReader<'_, '_>, field: FieldValue) {
        let number = match reader.tree.scalar(field.value) {
            Some((_, ScalarValue::Null)) => Some(0),
            Some((_, ScalarValue::Int(value))) => u32::try_from(value).ok(),
            Some((_, ScalarValue::Float(value))) => truncate_to_u32(value),
            _ => None,
        };
        match number {
            Some(value) => *self = Self { value, span: reader.tree.span(field.value) },
            None => reader.report_wrong_value(field, COUNT),
        }
    }
}

/// An optional scalar: null is `None`.
impl<T: Default> FieldTarget for Option<Spanned<T>>
where
    Spanned<T>: FieldTarget,
{
    fn read(&mut self, reader: &mut FileReader<'_, '_>, field: FieldValue) {
        *self = None;
        if !reader.is_null(field.value) {
            let mut value = Spanned::default();
            value.read(reader, field);
            *self = Some(value).filter(|_| reader.mismatched != Some(field.value));
        }
    }
}

/// An optional block: null is `None`, and a repeated block overwrites field by field.
impl<T: Block> FieldTarget for Option<T> {
    fn read(&mut self, reader: &mut FileReader<'_, '_>, field: FieldValue) {
        let tree = reader.tree;
        if let Some((text, ScalarValue::Null)) = tree.scalar(field.value) {
            let is_empty = T::NULL_IS_EMPTY
                && matches!(text, "Null" | "NULL")
                && tree.tag(field.value).is_empty();
            *self = is_empty.then(|| placed(tree.span(field.value)));
            return;
        }
        let block = self.get_or_insert_default();
        block.place(first_key_span(tree, field.value));
        reader.read_fields(field.value, block, &ExpectedNode::Field(field.name, "a mapping"));
    }
}

fn placed<T: Block>(span: Span) -> T {
    let mut block = T::default();
    block.place(span);
    block
}

impl<T: ListItem> FieldTarget for Vec<T> {
    fn read(&mut self, reader: &mut FileReader<'_, '_>, field: FieldValue) {
        let tree = reader.tree;
        self.clear();
        match tree.kind(field.value) {
            YamlKind::Sequence(_) => {}
            _ if reader.is_null(field.value) => return,
            _ => return reader.report_wrong_value(field, LIST),
        }
        for id in tree.children(field.value) {
            reader.visit(*id, |reader, target| {
                let span =
                    if target == *id { first_key_span(tree, target) } else { tree.span(*id) };
                let mut block = T::default();
                block.place(span);
                reader.read_fields(target, &mut block, &ExpectedNode::Item(T::TITLE));
                self.push(block);
            });
        }
    }
}

/// Reads texts and numbers, each as written.
impl FieldTarget for Spanned<TextList> {
    fn read(&mut self, reader: &mut FileReader<'_, '_>, field: FieldValue) {
        let tree = reader.tree;
        if !matches!(tree.kind(field.value), YamlKind::Sequence(_)) {
            return reader.report_wrong_value(field, LIST);
        }
        self.span = tree.span(field.value);
        for id in tree.children(field.value) {
            reader.visit(*id, |reader, value| {
                let mut item = Spanned::<String>::default();
                item.read(reader, FieldValue { name: field.name, value });
                let is_reported =
                    reader.mismatched == Some(value) || reader.blamed.contains(&value);
                self.value.0.extend((!is_reported).then_some(item));
            });
        }
    }
}

/// A list with its position: the first item's, or that of an empty list.
impl<T: ListItem> FieldTarget for Spanned<Vec<T>> {
    fn read(&mut self, reader: &mut FileReader<'_, '_>, field: FieldValue) {
        let tree = reader.tree;
        let first = tree.children(field.value).first().copied().unwrap_or(field.value);
        self.span = first_key_span(tree, first);
        self.value.read(reader, field);
    }
}

/// The field `metadata`. The first-level keys of a repeated or merged `metadata` are added to those
/// of the earlier one.
impl FieldTarget for Option<Spanned<Map<String, Json>>> {
    fn read(&mut self, reader: &mut FileReader<'_, '_>, field: FieldValue) {
        if reader.is_null(field.value) {
            *self = None;
        } else if matches!(reader.tree.kind(field.value), YamlKind::Mapping(_)) {
            let map = self.get_or_insert_default();
            map.span = first_key_span(reader.tree, field.value);
            reader.read_first_level(field.value, &mut map.value);
        } else {
            reader.report_wrong_value(field, "a mapping");
        }
    }
}

/// Converts a number to an integer, without its fraction. The first pass rejects fractions except
/// in a block that a later one overwrites; envoyproxy/ratelimit truncates those.
fn truncate_to_u32(value: f64) -> Option<u32> {
    let fits = -1.0 < value && value < 4_294_967_296.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    fits.then_some(value.max(0.0) as u32)
}

/// Describes a YAML node in a message, with its text if it is a scalar.
pub(super) fn describe_node(tree: &YamlTree<'_>, node: YamlId) -> String {
    match tree.scalar(node) {
        Some((_, ScalarValue::Null)) => "null".to_owned(),
        Some((text, ScalarValue::Text)) => format!("the text `{}`", shortened(text)),
        Some((text, value)) => format!("{}: `{}`", kind_of(&value), shortened(text)),
        None if matches!(tree.kind(node), YamlKind::Mapping(_)) => "a mapping".to_owned(),
        None => "a list".to_owned(),
    }
}

/// Returns the span of a mapping's first key. A finding about the mapping shows it, because the
/// whole mapping can have many lines.
pub(super) fn first_key_span(tree: &YamlTree<'_>, mapping: YamlId) -> Span {
    tree.pairs(mapping).next().map_or_else(|| tree.span(mapping), |(key, _)| tree.span(key))
}

pub(super) fn kind_of(value: &ScalarValue) -> &'static str {
    match value {
        ScalarValue::Null => "null",
        ScalarValue::Bool(_) => "a boolean",
        ScalarValue::Int(_) | ScalarValue::Unsigned(_) => "an integer",
        ScalarValue::Float(_) => "a number",
        ScalarValue::Text => "text",
        ScalarValue::Binary(_) => "binary",
    }
}
