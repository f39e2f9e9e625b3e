//! The second pass: converts the tree to a [`File`] with typed fields.
//!
//! Guarantees:
//! - Fields are read in the order of the text, as in envoyproxy/ratelimit.
//! - Repeated and merged keys overwrite earlier ones: blocks by field, lists as a whole.
//! - Null resets a field.
//! - Every type mismatch is reported.
//! - Misplaced keys are skipped.
//!
//! Not covered:
//! - Key names: see [`super::names`].

use std::collections::HashSet;

use super::names::{describe, head};
use super::word::{Block, Word};
use super::{
    Adaptive, Calendar, Concurrency, Defaults, Descriptor, File, Queue, RateLimit, Reject,
};
use crate::config::diagnostic::{Code, Findings, Span, Spanned};
use crate::config::yaml::{Budget, Id, Kind, Tree, Value};

/// Reads the file from a tree. Nodes in `blamed` are not reported again.
pub(super) fn read(tree: &Tree<'_>, blamed: &HashSet<Id>, findings: &mut Findings) -> File {
    let mut reader = Reader { tree, blamed, findings, budget: Budget::default(), exhausted: false };
    let mut file = File::default();
    if let Some(root) = tree.root {
        reader.fields(root, &mut file, &Wanted::File, Reader::in_file);
    }
    file
}

enum Wanted {
    File,
    Item(Block),
    Word(Word, &'static str),
}

const LIST: &str = "a list";
const BOOL: &str = "a bool (true or false)";
const COUNT: &str = "a whole number from 0 to 4294967295 (uint32)";

/// A key with its value, aliases resolved.
#[derive(Clone, Copy)]
struct Field {
    word: Word,
    value: Id,
}

type Take<'a, 's, T> = fn(&mut Reader<'a, 's>, Field, &mut T);

pub(super) struct Reader<'a, 's> {
    pub(super) tree: &'a Tree<'s>,
    blamed: &'a HashSet<Id>,
    pub(super) findings: &'a mut Findings,
    budget: Budget,
    exhausted: bool,
}

impl<'a, 's> Reader<'a, 's> {
    /// Calls `read` with the node `id` or its alias target, unless aliases exceed the budget.
    pub(super) fn at(&mut self, id: Id, read: impl FnOnce(&mut Self, Id)) {
        let target = self.tree.target(id);
        let inside = usize::from(target != id);
        if !self.counted(id) {
            return;
        }
        self.budget.inside += inside;
        if inside == 0 || self.counted(id) {
            read(self, target);
        }
        self.budget.inside -= inside;
    }

    fn counted(&mut self, id: Id) -> bool {
        if !self.exhausted && !self.budget.count() {
            self.exhausted = true;
            let span = self.tree.span(id);
            self.findings.add(Code::EndlessAlias, span, "aliases multiply beyond measure");
        }
        !self.exhausted
    }

    fn fields<T>(&mut self, node: Id, out: &mut T, wanted: &Wanted, take: Take<'a, 's, T>) {
        let tree = self.tree;
        if let Some((_, Value::Null)) = tree.scalar(node) {
            return;
        }
        if !matches!(tree.kind(node), Kind::Mapping(_)) {
            return self.mismatch(node, wanted);
        }
        for (key, value) in tree.pairs(node) {
            if tree.is_merge(key) {
                for merged in tree.merged(value) {
                    self.at(merged, |reader, merged| {
                        if matches!(tree.kind(merged), Kind::Mapping(_)) {
                            reader.fields(merged, out, wanted, take);
                        }
                    });
                }
            } else if let Some(word) = self.word(key) {
                self.at(value, |reader, value| take(reader, Field { word, value }, out));
            }
        }
    }

    fn word(&mut self, key: Id) -> Option<Word> {
        let mut word = None;
        self.at(key, |reader, key| word = Word::named(&reader.key_text(key)));
        word
    }

    /// Returns the source text of a key, or the decoded bytes of a binary key.
    pub(super) fn key_text(&self, key: Id) -> String {
        match self.tree.scalar(key) {
            Some((_, Value::Binary(bytes))) => String::from_utf8_lossy(&bytes).into_owned(),
            None | Some((_, Value::Null)) => String::new(),
            Some((text, _)) => text.to_owned(),
        }
    }

    fn in_file(&mut self, field: Field, file: &mut File) {
        match field.word {
            Word::Domain => self.text(field, &mut file.domain),
            Word::Descriptors => self.descriptors(field, &mut file.descriptors),
            Word::Charge => self.optional(field, &mut file.charge, Self::text),
            Word::Colocate => self.optional(field, &mut file.colocate, Self::text),
            Word::Defaults => self.block(field, &mut file.defaults, Self::in_defaults),
            _ => {}
        }
    }

    fn in_defaults(&mut self, field: Field, defaults: &mut Defaults) {
        match field.word {
            Word::Strategy => self.optional(field, &mut defaults.strategy, Self::text),
            Word::Mode => self.optional(field, &mut defaults.mode, Self::text),
            Word::MaxOvershoot => self.optional(field, &mut defaults.max_overshoot, Self::text),
            Word::OnBackendFailure => {
                self.optional(field, &mut defaults.on_backend_failure, Self::text);
            }
            _ => {}
        }
    }

    fn in_descriptor(&mut self, field: Field, descriptor: &mut Descriptor) {
        match field.word {
            Word::Key => self.text(field, &mut descriptor.key),
            Word::Value => self.text(field, &mut descriptor.value),
            Word::RateLimit => self.rate_limit(field, &mut descriptor.rate_limit),
            Word::Descriptors => self.descriptors(field, &mut descriptor.descriptors),
            Word::ShadowMode => self.flag(field, &mut descriptor.shadow_mode),
            Word::QuotaMode => self.flag(field, &mut descriptor.quota_mode),
            Word::DetailedMetric => self.flag(field, &mut descriptor.detailed_metric),
            Word::ValueToMetric => self.flag(field, &mut descriptor.value_to_metric),
            Word::ShareThreshold => self.boolean(field, &mut descriptor.share_threshold),
            Word::Metadata => self.metadata(field.value, &mut descriptor.metadata),
            Word::Concurrency => {
                self.block(field, &mut descriptor.concurrency, Self::in_concurrency);
            }
            _ => {}
        }
    }

    /// Reads `rate_limit`. `Null` and `NULL` make an empty block, but `null` makes none: only the
    /// lower-case spelling is null when envoyproxy/ratelimit's parser decides if there is a block.
    fn rate_limit(&mut self, field: Field, out: &mut Option<RateLimit>) {
        if let Some(("Null" | "NULL", Value::Null)) = self.tree.scalar(field.value)
            && self.tree.tag(field.value).is_empty()
        {
            let span = self.tree.span(field.value);
            *out = Some(RateLimit { span, ..RateLimit::default() });
            return;
        }
        self.block(field, out, Self::in_rate_limit);
    }

    fn in_rate_limit(&mut self, field: Field, limit: &mut RateLimit) {
        match field.word {
            Word::Unit => self.text(field, &mut limit.unit),
            Word::RequestsPerUnit => self.count(field, &mut limit.requests_per_unit),
            Word::Unlimited => self.boolean(field, &mut limit.unlimited),
            Word::Name => self.text(field, &mut limit.name),
            Word::Replaces => {
                self.list(field, &mut limit.replaces, Block::Replaces, Self::in_replaces);
            }
            Word::Per => self.optional(field, &mut limit.per, Self::text),
            Word::Strategy => self.optional(field, &mut limit.strategy, Self::text),
            Word::Burst => self.optional(field, &mut limit.burst, Self::count),
            Word::Mode => self.optional(field, &mut limit.mode, Self::text),
            Word::MaxOvershoot => self.optional(field, &mut limit.max_overshoot, Self::text),
            Word::LeaseHits => self.optional(field, &mut limit.lease_hits, Self::count),
            Word::OnBackendFailure => {
                self.optional(field, &mut limit.on_backend_failure, Self::text);
            }
            Word::Calendar => self.block(field, &mut limit.calendar, Self::in_calendar),
            _ => {}
        }
    }

    fn in_replaces(&mut self, field: Field, name: &mut Spanned<String>) {
        if field.word == Word::Name {
            self.text(field, name);
        }
    }

    fn in_calendar(&mut self, field: Field, calendar: &mut Calendar) {
        match field.word {
            Word::TimeZone => self.optional(field, &mut calendar.time_zone, Self::text),
            Word::StartsOn => self.optional(field, &mut calendar.starts_on, Self::text),
            _ => {}
        }
    }

    fn in_concurrency(&mut self, field: Field, ceiling: &mut Concurrency) {
        match field.word {
            Word::Limit => self.optional(field, &mut ceiling.limit, Self::count),
            Word::Adaptive => self.block(field, &mut ceiling.adaptive, Self::in_adaptive),
            Word::Mode => self.optional(field, &mut ceiling.mode, Self::text),
            Word::OnBackendFailure => {
                self.optional(field, &mut ceiling.on_backend_failure, Self::text);
            }
            Word::Queue => self.block(field, &mut ceiling.queue, Self::in_queue),
            Word::MaxDuration => self.optional(field, &mut ceiling.max_duration, Self::text),
            Word::Reject => self.block(field, &mut ceiling.reject, Self::in_reject),
            _ => {}
        }
    }

    fn in_adaptive(&mut self, field: Field, adaptive: &mut Adaptive) {
        match field.word {
            Word::Policy => self.optional(field, &mut adaptive.policy, Self::text),
            Word::Min => self.optional(field, &mut adaptive.min, Self::count),
            Word::Max => self.optional(field, &mut adaptive.max, Self::count),
            _ => {}
        }
    }

    fn in_queue(&mut self, field: Field, queue: &mut Queue) {
        match field.word {
            Word::Size => self.optional(field, &mut queue.size, Self::count),
            Word::Timeout => self.optional(field, &mut queue.timeout, Self::text),
            _ => {}
        }
    }

    fn in_reject(&mut self, field: Field, reject: &mut Reject) {
        match field.word {
            Word::Status => self.optional(field, &mut reject.status, Self::count),
            Word::RetryAfter => self.optional(field, &mut reject.retry_after, Self::text),
            Word::Body => self.optional(field, &mut reject.body, Self::text),
            _ => {}
        }
    }

    fn descriptors(&mut self, field: Field, out: &mut Vec<Descriptor>) {
        self.list(field, out, Block::Descriptor, Self::in_descriptor);
    }

    fn list<T: Default + Placed>(
        &mut self,
        field: Field,
        out: &mut Vec<T>,
        item: Block,
        take: Take<'a, 's, T>,
    ) {
        let tree = self.tree;
        out.clear();
        match tree.kind(field.value) {
            Kind::Sequence(_) => {}
            _ if self.is_null(field.value) => return,
            _ => return self.mismatch(field.value, &Wanted::Word(field.word, LIST)),
        }
        for id in tree.children(field.value) {
            self.at(*id, |reader, target| {
                let span = if target == *id { head(tree, target) } else { tree.span(*id) };
                let mut made = T::default();
                made.place(span);
                reader.fields(target, &mut made, &Wanted::Item(item), take);
                out.push(made);
            });
        }
    }

    fn block<T: Default + Placed>(
        &mut self,
        field: Field,
        out: &mut Option<T>,
        take: Take<'a, 's, T>,
    ) {
        if self.is_null(field.value) {
            *out = None;
            return;
        }
        let block = out.get_or_insert_default();
        block.place(head(self.tree, field.value));
        self.fields(field.value, block, &Wanted::Word(field.word, "a mapping"), take);
    }

    fn optional<T: Default>(
        &mut self,
        field: Field,
        out: &mut Option<T>,
        read: fn(&mut Self, Field, &mut T),
    ) {
        *out = None;
        if !self.is_null(field.value) {
            read(self, field, out.insert(T::default()));
        }
    }

    fn is_null(&self, node: Id) -> bool {
        matches!(self.tree.scalar(node), Some((_, Value::Null)))
    }

    fn text(&mut self, field: Field, out: &mut Spanned<String>) {
        let span = self.tree.span(field.value);
        let value = match self.tree.scalar(field.value) {
            Some((_, Value::Null)) => String::new(),
            Some((_, Value::Binary(bytes))) => self.decoded(bytes, span),
            Some((text, _)) => text.to_owned(),
            None => return self.mismatch(field.value, &Wanted::Word(field.word, "text")),
        };
        *out = Spanned { value, span };
    }

    /// Decodes binary text. envoyproxy/ratelimit accepts any bytes,
    /// but requests contain only UTF-8, so other bytes match nothing.
    fn decoded(&mut self, bytes: Vec<u8>, span: Span) -> String {
        String::from_utf8(bytes).unwrap_or_else(|error| {
            let message = "these bytes are not UTF-8, so that no request can ever carry them";
            self.findings.add(Code::BinaryNotText, span, message);
            String::from_utf8_lossy(error.as_bytes()).into_owned()
        })
    }

    fn flag(&mut self, field: Field, out: &mut bool) {
        let mut spanned = Spanned { value: *out, span: Span::default() };
        self.boolean(field, &mut spanned);
        *out = spanned.value;
    }

    fn boolean(&mut self, field: Field, out: &mut Spanned<bool>) {
        let span = self.tree.span(field.value);
        match self.tree.scalar(field.value) {
            Some((_, Value::Bool(value))) => *out = Spanned { value, span },
            Some((_, Value::Null)) => *out = Spanned { value: false, span },
            _ => self.mismatch(field.value, &Wanted::Word(field.word, BOOL)),
        }
    }

    fn count(&mut self, field: Field, out: &mut Spanned<u32>) {
        let span = self.tree.span(field.value);
        let number = match self.tree.scalar(field.value) {
            Some((_, Value::Null)) => Some(0),
            Some((_, Value::Int(value))) => u32::try_from(value).ok(),
            Some((_, Value::Float(value))) => cut(value),
            _ => None,
        };
        match number {
            Some(value) => *out = Spanned { value, span },
            None => {
                self.mismatch(field.value, &Wanted::Word(field.word, COUNT));
            }
        }
    }

    fn mismatch(&mut self, node: Id, wanted: &Wanted) {
        if self.blamed.contains(&node) {
            return;
        }
        let got = describe(self.tree, node);
        let message = match wanted {
            Wanted::File => format!("a limits file is a mapping, this one is {got}"),
            Wanted::Item(block) => format!("{} is a mapping, this one is {got}", block.title()),
            Wanted::Word(word, what) => format!("`{}` wants {what}, got {got}", word.name()),
        };
        let span = self.tree.span(node);
        match self.cure(node, wanted) {
            Some(help) => self.findings.add_with_help(Code::TypeMismatch, span, message, help),
            None => self.findings.add(Code::TypeMismatch, span, message),
        }
    }

    fn cure(&self, node: Id, wanted: &Wanted) -> Option<&'static str> {
        let is_mapping = matches!(self.tree.kind(node), Kind::Mapping(_));
        match wanted {
            Wanted::File => Some("it looks like this: `domain: …` and `descriptors: …`"),
            Wanted::Word(_, LIST) if is_mapping => Some("put `- ` before its first key"),
            Wanted::Word(_, BOOL | COUNT) if self.tree.is_quoted(node) => {
                Some("take the quotes off if it is not meant as text")
            }
            _ => None,
        }
    }

    /// Reads `metadata`. A repeated or merged block adds its first-level keys to the earlier block.
    fn metadata(
        &mut self,
        value: Id,
        out: &mut Option<Spanned<serde_json::Map<String, serde_json::Value>>>,
    ) {
        if self.is_null(value) {
            *out = None;
        } else if matches!(self.tree.kind(value), Kind::Mapping(_)) {
            let map = out.get_or_insert_default();
            map.span = head(self.tree, value);
            self.first_level(value, &mut map.value);
        } else {
            self.mismatch(value, &Wanted::Word(Word::Metadata, "a mapping"));
        }
    }
}

/// Truncates a fraction. Only an overwritten block can contain one: the
/// first pass skips it, and envoyproxy/ratelimit's second pass truncates it.
fn cut(value: f64) -> Option<u32> {
    let fits = -1.0 < value && value < 4_294_967_296.0;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    fits.then_some(value.max(0.0) as u32)
}

/// A block that stores its position.
trait Placed {
    fn place(&mut self, span: Span);
}

macro_rules! placed {
    ($($block:ty),*) => {
        $(impl Placed for $block {
            fn place(&mut self, span: Span) {
                self.span = span;
            }
        })*
    };
}

placed!(Defaults, Descriptor, RateLimit, Calendar, Spanned<String>);
placed!(Concurrency, Adaptive, Queue, Reject);
