//! The second of two passes over a limits file: converts the YAML tree to a typed [`File`].
//!
//! Guarantees:
//! - Fields are read in the order of the file, as in envoyproxy/ratelimit.
//! - A repeated or merged block overwrites the earlier block field by field; a list replaces the
//!   earlier list.
//! - Null resets a field to its default.
//! - Every value of a wrong type is reported.
//! - Keys in a block where they are not valid are skipped.

use std::collections::HashSet;

use super::field_name::{FieldName, LimitsBlock};
use super::names::{describe_node, first_key_span};
use super::{
    Adaptive, Calendar, Concurrency, Defaults, Descriptor, File, Queue, RateLimit, Reject,
};
use crate::config::diagnostic::{Code, Findings, Span, Spanned};
use crate::config::yaml::{AliasBudget, ScalarValue, YamlId, YamlKind, YamlTree};

/// Reads a limits file from its YAML tree. Reports nothing about nodes in `reported`.
pub(super) fn read_file(
    tree: &YamlTree<'_>,
    reported: &HashSet<YamlId>,
    findings: &mut Findings,
) -> File {
    let mut reader =
        FileReader { tree, reported, findings, budget: AliasBudget::default(), exhausted: false };
    let mut file = File::default();
    if let Some(root) = tree.root {
        reader.read_fields(root, &mut file, &ExpectedNode::File, FileReader::set_file_field);
    }
    file
}

enum ExpectedNode {
    File,
    Item(LimitsBlock),
    Field(FieldName, &'static str),
}

const LIST: &str = "a list";
const BOOL: &str = "a bool (true or false)";
const COUNT: &str = "a whole number from 0 to 4294967295 (uint32)";

/// A key and its value, or the target of its value if that is an alias.
#[derive(Clone, Copy)]
struct FieldValue {
    name: FieldName,
    value: YamlId,
}

type FieldSetter<'a, 's, T> = fn(&mut FileReader<'a, 's>, FieldValue, &mut T);

pub(super) struct FileReader<'a, 's> {
    pub(super) tree: &'a YamlTree<'s>,
    reported: &'a HashSet<YamlId>,
    pub(super) findings: &'a mut Findings,
    budget: AliasBudget,
    exhausted: bool,
}

impl<'a, 's> FileReader<'a, 's> {
    /// Calls `read` with node `id` or the target of its alias, unless the [`AliasBudget`] is
    /// exhausted.
    pub(super) fn visit(&mut self, id: YamlId, read: impl FnOnce(&mut Self, YamlId)) {
        let target = self.tree.target(id);
        let alias_levels = usize::from(target != id);
        if !self.count_node(id) {
            return;
        }
        self.budget.alias_depth += alias_levels;
        if alias_levels == 0 || self.count_node(id) {
            read(self, target);
        }
        self.budget.alias_depth -= alias_levels;
    }

    fn count_node(&mut self, id: YamlId) -> bool {
        if !self.exhausted && !self.budget.count_node() {
            self.exhausted = true;
            let span = self.tree.span(id);
            self.findings.add(Code::EndlessAlias, span, "aliases multiply beyond measure");
        }
        !self.exhausted
    }

    fn read_fields<T>(
        &mut self,
        node: YamlId,
        out: &mut T,
        expected: &ExpectedNode,
        set_field: FieldSetter<'a, 's, T>,
    ) {
        let tree = self.tree;
        if let Some((_, ScalarValue::Null)) = tree.scalar(node) {
            return;
        }
        if !matches!(tree.kind(node), YamlKind::Mapping(_)) {
            return self.report_mismatch(node, expected);
        }
        for (key, value) in tree.pairs(node) {
            if tree.is_merge(key) {
                for merged in tree.merged_mappings(value) {
                    self.visit(merged, |reader, merged| {
                        if matches!(tree.kind(merged), YamlKind::Mapping(_)) {
                            reader.read_fields(merged, out, expected, set_field);
                        }
                    });
                }
            } else if let Some(name) = self.parse_key(key) {
                self.visit(value, |reader, value| {
                    set_field(reader, FieldValue { name, value }, out);
                });
            }
        }
    }

    fn parse_key(&mut self, key: YamlId) -> Option<FieldName> {
        let mut field = None;
        self.visit(key, |reader, key| field = FieldName::from_name(&reader.key_text(key)));
        field
    }

    /// Returns a key as written in the file, or decoded if it is tagged `!!binary`.
    pub(super) fn key_text(&self, key: YamlId) -> String {
        match self.tree.scalar(key) {
            Some((_, ScalarValue::Binary(bytes))) => String::from_utf8_lossy(&bytes).into_owned(),
            None | Some((_, ScalarValue::Null)) => String::new(),
            Some((text, _)) => text.to_owned(),
        }
    }

    fn set_file_field(&mut self, field: FieldValue, file: &mut File) {
        match field.name {
            FieldName::Domain => self.read_text(field, &mut file.domain),
            FieldName::Descriptors => self.read_descriptors(field, &mut file.descriptors),
            FieldName::Charge => self.read_optional(field, &mut file.charge, Self::read_text),
            FieldName::Colocate => self.read_optional(field, &mut file.colocate, Self::read_text),
            FieldName::Defaults => {
                self.read_block(field, &mut file.defaults, Self::set_defaults_field);
            }
            _ => {}
        }
    }

    fn set_defaults_field(&mut self, field: FieldValue, defaults: &mut Defaults) {
        match field.name {
            FieldName::Strategy => {
                self.read_optional(field, &mut defaults.strategy, Self::read_text);
            }
            FieldName::Mode => self.read_optional(field, &mut defaults.mode, Self::read_text),
            FieldName::MaxOvershoot => {
                self.read_optional(field, &mut defaults.max_overshoot, Self::read_text);
            }
            FieldName::OnBackendFailure => {
                self.read_optional(field, &mut defaults.on_backend_failure, Self::read_text);
            }
            _ => {}
        }
    }

    fn set_descriptor_field(&mut self, field: FieldValue, descriptor: &mut Descriptor) {
        match field.name {
            FieldName::Key => self.read_text(field, &mut descriptor.key),
            FieldName::Value => self.read_text(field, &mut descriptor.value),
            FieldName::RateLimit => self.read_rate_limit(field, &mut descriptor.rate_limit),
            FieldName::Descriptors => self.read_descriptors(field, &mut descriptor.descriptors),
            FieldName::ShadowMode => self.read_flag(field, &mut descriptor.shadow_mode),
            FieldName::QuotaMode => self.read_flag(field, &mut descriptor.quota_mode),
            FieldName::DetailedMetric => self.read_flag(field, &mut descriptor.detailed_metric),
            FieldName::ValueToMetric => self.read_flag(field, &mut descriptor.value_to_metric),
            FieldName::ShareThreshold => self.read_bool(field, &mut descriptor.share_threshold),
            FieldName::Metadata => self.read_metadata(field.value, &mut descriptor.metadata),
            FieldName::Concurrency => {
                self.read_block(field, &mut descriptor.concurrency, Self::set_concurrency_field);
            }
            _ => {}
        }
    }

    /// `null` means no block; `Null` and `NULL` mean an empty block, as in envoyproxy/ratelimit.
    fn read_rate_limit(&mut self, field: FieldValue, out: &mut Option<RateLimit>) {
        if let Some(("Null" | "NULL", ScalarValue::Null)) = self.tree.scalar(field.value)
            && self.tree.tag(field.value).is_empty()
        {
            let span = self.tree.span(field.value);
            *out = Some(RateLimit { span, ..RateLimit::default() });
            return;
        }
        self.read_block(field, out, Self::set_rate_limit_field);
    }

    fn set_rate_limit_field(&mut self, field: FieldValue, limit: &mut RateLimit) {
        match field.name {
            FieldName::Unit => self.read_text(field, &mut limit.unit),
            FieldName::RequestsPerUnit => self.read_count(field, &mut limit.requests_per_unit),
            FieldName::Unlimited => self.read_bool(field, &mut limit.unlimited),
            FieldName::Name => self.read_text(field, &mut limit.name),
            FieldName::Replaces => {
                self.read_list(
                    field,
                    &mut limit.replaces,
                    LimitsBlock::Replaces,
                    Self::set_replaces_field,
                );
            }
            FieldName::Per => self.read_optional(field, &mut limit.per, Self::read_text),
            FieldName::Strategy => self.read_optional(field, &mut limit.strategy, Self::read_text),
            FieldName::Burst => self.read_optional(field, &mut limit.burst, Self::read_count),
            FieldName::Mode => self.read_optional(field, &mut limit.mode, Self::read_text),
            FieldName::MaxOvershoot => {
                self.read_optional(field, &mut limit.max_overshoot, Self::read_text);
            }
            FieldName::LeaseHits => {
                self.read_optional(field, &mut limit.lease_hits, Self::read_count);
            }
            FieldName::OnBackendFailure => {
                self.read_optional(field, &mut limit.on_backend_failure, Self::read_text);
            }
            FieldName::Calendar => {
                self.read_block(field, &mut limit.calendar, Self::set_calendar_field);
            }
            _ => {}
        }
    }

    fn set_replaces_field(&mut self, field: FieldValue, name: &mut Spanned<String>) {
        if field.name == FieldName::Name {
            self.read_text(field, name);
        }
    }

    fn set_calendar_field(&mut self, field: FieldValue, calendar: &mut Calendar) {
        match field.name {
            FieldName::TimeZone => {
                self.read_optional(field, &mut calendar.time_zone, Self::read_text);
            }
            FieldName::StartsOn => {
                self.read_optional(field, &mut calendar.starts_on, Self::read_text);
            }
            _ => {}
        }
    }

    fn set_concurrency_field(&mut self, field: FieldValue, concurrency: &mut Concurrency) {
        match field.name {
            FieldName::Limit => self.read_optional(field, &mut concurrency.limit, Self::read_count),
            FieldName::Adaptive => {
                self.read_block(field, &mut concurrency.adaptive, Self::set_adaptive_field);
            }
            FieldName::Mode => self.read_optional(field, &mut concurrency.mode, Self::read_text),
            FieldName::OnBackendFailure => {
                self.read_optional(field, &mut concurrency.on_backend_failure, Self::read_text);
            }
            FieldName::Queue => {
                self.read_block(field, &mut concurrency.queue, Self::set_queue_field);
            }
            FieldName::MaxDuration => {
                self.read_optional(field, &mut concurrency.max_duration, Self::read_text);
            }
            FieldName::Reject => {
                self.read_block(field, &mut concurrency.reject, Self::set_reject_field);
            }
            _ => {}
        }
    }

    fn set_adaptive_field(&mut self, field: FieldValue, adaptive: &mut Adaptive) {
        match field.name {
            FieldName::Policy => self.read_optional(field, &mut adaptive.policy, Self::read_text),
            FieldName::Min => self.read_optional(field, &mut adaptive.min, Self::read_count),
            FieldName::Max => self.read_optional(field, &mut adaptive.max, Self::read_count),
            _ => {}
        }
    }

    fn set_queue_field(&mut self, field: FieldValue, queue: &mut Queue) {
        match field.name {
            FieldName::Size => self.read_optional(field, &mut queue.size, Self::read_count),
            FieldName::Timeout => self.read_optional(field, &mut queue.timeout, Self::read_text),
            _ => {}
        }
    }

    fn set_reject_field(&mut self, field: FieldValue, reject: &mut Reject) {
        match field.name {
            FieldName::Status => self.read_optional(field, &mut reject.status, Self::read_count),
            FieldName::RetryAfter => {
                self.read_optional(field, &mut reject.retry_after, Self::read_text);
            }
            FieldName::Body => self.read_optional(field, &mut reject.body, Self::read_text),
            _ => {}
        }
    }

    fn read_descriptors(&mut self, field: FieldValue, out: &mut Vec<Descriptor>) {
        self.read_list(field, out, LimitsBlock::Descriptor, Self::set_descriptor_field);
    }

    fn read_list<T: Default + HasSpan>(
        &mut self,
        field: FieldValue,
        out: &mut Vec<T>,
        item_block: LimitsBlock,
        set_field: FieldSetter<'a, 's, T>,
    ) {
        let tree = self.tree;
        out.clear();
        match tree.kind(field.value) {
            YamlKind::Sequence(_) => {}
            _ if self.is_null(field.value) => return,
            _ => return self.report_mismatch(field.value, &ExpectedNode::Field(field.name, LIST)),
        }
        for id in tree.children(field.value) {
            self.visit(*id, |reader, target| {
                let span =
                    if target == *id { first_key_span(tree, target) } else { tree.span(*id) };
                let mut block = T::default();
                block.set_span(span);
                reader.read_fields(target, &mut block, &ExpectedNode::Item(item_block), set_field);
                out.push(block);
            });
        }
    }

    fn read_block<T: Default + HasSpan>(
        &mut self,
        field: FieldValue,
        out: &mut Option<T>,
        set_field: FieldSetter<'a, 's, T>,
    ) {
        if self.is_null(field.value) {
            *out = None;
            return;
        }
        let block = out.get_or_insert_default();
        block.set_span(first_key_span(self.tree, field.value));
        let expected = ExpectedNode::Field(field.name, "a mapping");
        self.read_fields(field.value, block, &expected, set_field);
    }

    fn read_optional<T: Default>(
        &mut self,
        field: FieldValue,
        out: &mut Option<T>,
        read: fn(&mut Self, FieldValue, &mut T),
    ) {
        *out = None;
        if !self.is_null(field.value) {
            read(self, field, out.insert(T::default()));
        }
    }

    fn is_null(&self, node: YamlId) -> bool {
        matches!(self.tree.scalar(node), Some((_, ScalarValue::Null)))
    }

    fn read_text(&mut self, field: FieldValue, out: &mut Spanned<String>) {
        let span = self.tree.span(field.value);
        let value = match self.tree.scalar(field.value) {
            Some((_, ScalarValue::Null)) => String::new(),
            Some((_, ScalarValue::Binary(bytes))) => self.decode_text(bytes, span),
            Some((text, _)) => text.to_owned(),
            None => {
                return self.report_mismatch(field.value, &ExpectedNode::Field(field.name, "text"));
            }
        };
        *out = Spanned { value, span };
    }

    /// Decodes a text tagged `!!binary`. Warns about other bytes than UTF-8, which no request
    /// contains.
    fn decode_text(&mut self, bytes: Vec<u8>, span: Span) -> String {
        String::from_utf8(bytes).unwrap_or_else(|error| {
            let message = "these bytes are not UTF-8, so that no request can ever carry them";
            self.findings.add(Code::BinaryNotText, span, message);
            String::from_utf8_lossy(error.as_bytes()).into_owned()
        })
    }

    fn read_flag(&mut self, field: FieldValue, out: &mut bool) {
        let mut spanned = Spanned { value: *out, span: Span::default() };
        self.read_bool(field, &mut spanned);
        *out = spanned.value;
    }

    fn read_bool(&mut self, field: FieldValue, out: &mut Spanned<bool>) {
        let span = self.tree.span(field.value);
        match self.tree.scalar(field.value) {
            Some((_, ScalarValue::Bool(value))) => *out = Spanned { value, span },
            Some((_, ScalarValue::Null)) => *out = Spanned { value: false, span },
            _ => self.report_mismatch(field.value, &ExpectedNode::Field(field.name, BOOL)),
        }
    }

    fn read_count(&mut self, field: FieldValue, out: &mut Spanned<u32>) {
        let span = self.tree.span(field.value);
        let number = match self.tree.scalar(field.value) {
            Some((_, ScalarValue::Null)) => Some(0),
            Some((_, ScalarValue::Int(value))) => u32::try_from(value).ok(),
            Some((_, ScalarValue::Float(value))) => truncate_to_u32(value),
            _ => None,
        };
        match number {
            Some(value) => *out = Spanned { value, span },
            None => {
                self.report_mismatch(field.value, &ExpectedNode::Field(field.name, COUNT));
            }
        }
    }

    fn report_mismatch(&mut self, node: YamlId, expected: &ExpectedNode) {
        if self.reported.contains(&node) {
            return;
        }
        let actual = describe_node(self.tree, node);
        let message = match expected {
            ExpectedNode::File => format!("a limits file is a mapping, this one is {actual}"),
            ExpectedNode::Item(block) => {
                format!("{} is a mapping, this one is {actual}", block.title())
            }
            ExpectedNode::Field(field, kind) => {
                format!("`{}` wants {kind}, got {actual}", field.name())
            }
        };
        let span = self.tree.span(node);
        match self.suggest_fix(node, expected) {
            Some(help) => self.findings.add_with_help(Code::TypeMismatch, span, message, help),
            None => self.findings.add(Code::TypeMismatch, span, message),
        }
    }

    fn suggest_fix(&self, node: YamlId, expected: &ExpectedNode) -> Option<&'static str> {
        let is_mapping = matches!(self.tree.kind(node), YamlKind::Mapping(_));
        match expected {
            ExpectedNode::File => Some("it looks like this: `domain: …` and `descriptors: …`"),
            ExpectedNode::Field(_, LIST) if is_mapping => Some("put `- ` before its first key"),
            ExpectedNode::Field(_, BOOL | COUNT) if self.tree.is_quoted(node) => {
                Some("take the quotes off if it is not meant as text")
            }
            _ => None,
        }
    }

    /// Reads `metadata`. A repeated or merged `metadata` adds keys to the earlier `metadata`.
    fn read_metadata(
        &mut self,
        value: YamlId,
        out: &mut Option<Spanned<serde_json::Map<String, serde_json::Value>>>,
    ) {
        if self.is_null(value) {
            *out = None;
        } else if matches!(self.tree.kind(value), YamlKind::Mapping(_)) {
            let map = out.get_or_insert_default();
            map.span = first_key_span(self.tree, value);
            self.read_first_level(value, &mut map.value);
        } else {
            self.report_mismatch(value, &ExpectedNode::Field(FieldName::Metadata, "a mapping"));
        }
    }
}

/// Drops the fraction of a number in a block that a later block overwrites, as envoyproxy/ratelimit
/// does. In other blocks, the first pass rejects fractions.
fn truncate_to_u32(value: f64) -> Option<u32> {
    let fits = -1.0 < value && value < 4_294_967_296.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    fits.then_some(value.max(0.0) as u32)
}

trait HasSpan {
    fn set_span(&mut self, span: Span);
}

macro_rules! impl_has_span {
    ($($block:ty),*) => {
        $(impl HasSpan for $block {
            fn set_span(&mut self, span: Span) {
                self.span = span;
            }
        })*
    };
}

impl_has_span!(Defaults, Descriptor, RateLimit, Calendar, Spanned<String>);
impl_has_span!(Concurrency, Adaptive, Queue, Reject);
