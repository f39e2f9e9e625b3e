//! Parses the first YAML document of a text into a tree of nodes.
//!
//! Guarantees:
//! - All nodes are in one `Vec`, so dropping a tree does not recurse.
//! - A mapping is a list of pairs in the order of the text, with repeated keys.
//! - An alias is stored as a reference to its target, not as a copy.
//! - Time and memory are proportional to the length of the text.
//!
//! Not covered:
//! - The content of later documents, which causes a warning and is ignored, as in
//!   envoyproxy/ratelimit.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, StructureStyle, Tag};

use super::input::LenientInput;
use super::scalar::{self, ScalarValue};
use super::strict::Yaml11Checks;
use super::{BYTES, DEPTH};
use crate::diagnostic::{Code, Findings, Span};

pub(crate) type YamlId = usize;

#[derive(Debug)]
pub(crate) enum YamlKind<'s> {
    /// A scalar. If it is `is_plain` (without quotes), its text determines its type.
    Scalar { text: Cow<'s, str>, plain: bool },
    /// A mapping: the range of its child nodes, which are alternately keys and values.
    Mapping(Range<u32>),
    /// A sequence: the range of its items.
    Sequence(Range<u32>),
    /// An alias: its target, which is not an alias itself.
    Alias(YamlId),
}

#[derive(Debug)]
struct YamlNode<'s> {
    kind: YamlKind<'s>,
    start: u32,
    end: u32,
}

#[derive(Debug, Default)]
pub(crate) struct YamlTree<'s> {
    nodes: Vec<YamlNode<'s>>,
    children: Vec<YamlId>,
    tags: HashMap<YamlId, Box<str>>,
    /// The outermost node, or `None` if the text is empty.
    pub(crate) root: Option<YamlId>,
    pub(crate) has_aliases: bool,
}

impl<'s> YamlTree<'s> {
    /// Returns the number of nodes. The IDs are the numbers below it.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn kind(&self, id: YamlId) -> &YamlKind<'s> {
        &self.nodes[id].kind
    }

    pub(crate) fn span(&self, id: YamlId) -> Span {
        let YamlNode { start, end, .. } = &self.nodes[id];
        Span { start: widen(*start), end: widen(*end) }
    }

    /// Returns the tag of a node in its full form, or an empty text without a tag.
    pub(crate) fn tag(&self, id: YamlId) -> &str {
        self.tags.get(&id).map_or("", |tag| tag)
    }

    /// Returns the target of `id` if it is an alias; otherwise `id` itself.
    pub(crate) fn target(&self, id: YamlId) -> YamlId {
        match self.kind(id) {
            YamlKind::Alias(target) => *target,
            _ => id,
        }
    }

    /// Returns the items of a sequence, or the keys and values of a mapping alternately.
    pub(crate) fn children(&self, id: YamlId) -> &[YamlId] {
        match self.kind(id) {
            YamlKind::Mapping(range) | YamlKind::Sequence(range) => {
                &self.children[widen(range.start)..widen(range.end)]
            }
            YamlKind::Scalar { .. } | YamlKind::Alias(_) => &[],
        }
    }

    pub(crate) fn pairs(&self, id: YamlId) -> impl Iterator<Item = (YamlId, YamlId)> {
        self.children(id).as_chunks::<2>().0.iter().map(|[key, value]| (*key, *value))
    }

    /// Returns the text and the typed value of a scalar, or `None` for other nodes. A tag that does
    /// not fit the text is ignored here, because [`super::check`] reports it.
    pub(crate) fn scalar(&self, id: YamlId) -> Option<(&str, ScalarValue)> {
        match self.kind(id) {
            YamlKind::Scalar { text, plain } => {
                let value = scalar::parse_scalar(text, self.tag(id), *plain);
                Some((text, value.unwrap_or(ScalarValue::Text)))
            }
            _ => None,
        }
    }

    /// Returns `true` if a scalar is text only because of its quotes.
    pub(crate) fn is_quoted(&self, id: YamlId) -> bool {
        matches!(self.kind(id), YamlKind::Scalar { plain: false, .. }) && self.tag(id).is_empty()
    }

    /// Returns `true` if `key` is a merge key (`<<`).
    pub(crate) fn is_merge(&self, key: YamlId) -> bool {
        match self.kind(key) {
            YamlKind::Scalar { text, plain } if text == "<<" => {
                (*plain && self.tag(key).is_empty())
                    || matches!(self.tag(key), "!" | "tag:yaml.org,2002:merge")
            }
            _ => false,
        }
    }

    /// Returns the mappings that the value of a merge key names, in the order in which they are
    /// applied. In a YAML list of mappings, the first has precedence, so it is applied last.
    pub(crate) fn merged_mappings(&self, value: YamlId) -> Vec<YamlId> {
        match self.kind(value) {
            YamlKind::Sequence(_) => self.children(value).iter().rev().copied().collect(),
            _ => vec![value],
        }
    }
}

/// Converts a stored byte offset. Offsets have 32 bits, which suffices for the largest file
/// ([`BYTES`]).
fn widen(offset: u32) -> usize {
    usize::try_from(offset).unwrap_or(BYTES)
}

fn narrow(offset: usize) -> u32 {
    u32::try_from(offset).unwrap_or(u32::MAX)
}

/// Parses the first YAML document of `text`. Adds syntax errors to `findings`.
pub(crate) fn parse<'s>(text: &'s str, findings: &mut Findings) -> YamlTree<'s> {
    report_unknown_directives(text, 0, findings);
    let version_at = text.find("%YAML").unwrap_or_default();
    let version_at = Span { start: version_at, end: version_at + "%YAML".len() };
    let mut builder = YamlTreeBuilder::new(text, version_at);
    let mut parser = Parser::with_options(LenientInput::new(text), parser_options(DEPTH));
    while let Some(event) = parser.next() {
        match event {
            Ok((Event::DocumentEnd | Event::StreamEnd, at)) => {
                builder.strict.check_token(span_of(&at), findings);
                report_later_documents(parser, builder.is_empty_document(), findings);
                break;
            }
            Ok((event, span)) => builder.apply_event(event, &span, findings),
            Err(error) if builder.is_complete() && ends_document(&error) => {
                let at = error.marker().byte_offset().unwrap_or(text.len());
                report_unknown_directives(text, at, findings);
                if !findings.has_errors() {
                    report_second_document(
                        Span { start: at, end: at },
                        builder.is_empty_document(),
                        findings,
                    );
                }
                break;
            }
            Err(error) => {
                report_syntax_error(&error, text, findings);
                break;
            }
        }
        if DEPTH < builder.open.len() {
            let at = builder.open.last().map(|open| builder.tree.span(open.id));
            report_too_deep(at.unwrap_or_default(), findings);
            break;
        }
    }
    builder.tree
}

/// Warns about a second document, which is ignored, as in envoyproxy/ratelimit. Empty documents
/// cause no warning.
fn report_later_documents<'s>(
    rest: impl Iterator<Item = Result<(Event<'s>, granit_parser::Span), ScanError>>,
    is_first_empty: bool,
    findings: &mut Findings,
) {
    let mut begins = None;
    for event in rest {
        match event {
            Ok((Event::StreamEnd, _)) => return,
            Ok((Event::DocumentStart(..), at)) => begins = Some(span_of(&at)),
            Ok((Event::DocumentEnd, _)) => {}
            Ok((Event::Scalar(text, ..), _)) if is_null_text(&text) => {}
            Ok(_) => break,
            Err(error) => {
                let at = error.marker().byte_offset().unwrap_or_default();
                begins = begins.or(Some(Span { start: at, end: at }));
                break;
            }
        }
    }
    if let Some(at) = begins {
        report_second_document(at, is_first_empty, findings);
    }
}

/// Returns `true` for a text that means null. The parser reports a missing value as `~`.
fn is_null_text(text: &str) -> bool {
    matches!(text, "" | "~" | "null")
}

fn report_second_document(at: Span, is_first_empty: bool, findings: &mut Findings) {
    let help = if is_first_empty {
        "the first document is empty: remove the `---` before this one"
    } else {
        "move it to another file: a file is one document with one domain"
    };
    let message = "a second document starts here and is ignored".to_owned();
    findings.add_with_help(Code::SecondDocument, at, message, help);
}

fn parser_options(depth: usize) -> granit_parser::Options {
    let mut options = granit_parser::options! {
        flow_nesting_limit: depth,
        block_nesting_limit: depth,
        emit_anchor_events: true,
    };
    options.set_emit_comments(false);
    options
}

/// Returns `true` if the error is a directive (`%`) after the first document. A valid directive
/// ends the document, and the text after it is not read.
fn ends_document(error: &ScanError) -> bool {
    *error.kind() == ErrorKind::MissingDocumentEndBeforeDirective
}

/// A mapping or sequence whose end the parser has not reached yet.
struct OpenCollection {
    id: YamlId,
    /// `true` if the collection is written with brackets (YAML flow style).
    is_flow: bool,
    /// The number of nodes that had no parent yet when the collection started. Later ones are its
    /// children.
    waiting: usize,
}

struct YamlTreeBuilder<'s> {
    tree: YamlTree<'s>,
    strict: Yaml11Checks<'s>,
    open: Vec<OpenCollection>,
    waiting: Vec<YamlId>,
    anchors: HashMap<usize, YamlId>,
    /// The position of the `%YAML` directive. Used only if the document has one.
    version_at: Span,
}

impl<'s> YamlTreeBuilder<'s> {
    fn new(text: &'s str, version_at: Span) -> Self {
        Self {
            tree: YamlTree::default(),
            strict: Yaml11Checks::new(text),
            open: Vec::new(),
            waiting: Vec::new(),
            anchors: HashMap::new(),
            version_at,
        }
    }

    fn is_complete(&self) -> bool {
        self.tree.root.is_some() && self.open.is_empty()
    }

    fn is_empty_document(&self) -> bool {
        let kind = self.tree.root.map(|root| self.tree.kind(root));
        kind.is_none_or(|kind| matches!(kind, YamlKind::Scalar { text, .. } if is_null_text(text)))
    }

    fn apply_event(&mut self, event: Event<'s>, at: &granit_parser::Span, findings: &mut Findings) {
        match event {
            Event::DocumentStart(_, Some(version)) if (version.major, version.minor) != (1, 1) => {
                let message = format!(
                    "the file is YAML {}.{}, but only 1.1 is supported",
                    version.major, version.minor
                );
                let help = "remove this line";
                findings.add_with_help(Code::Syntax, self.version_at, message, help);
            }
            Event::Scalar(text, style, anchor, tag) => {
                let is_plain = style == ScalarStyle::Plain;
                let text = self.strict.check_scalar(text, style, span_of(at), findings);
                let id = self.add_node(
                    YamlKind::Scalar { text, plain: is_plain },
                    at,
                    anchor,
                    tag.as_deref(),
                );
                self.waiting.push(id);
            }
            Event::Alias(anchor) => {
                self.strict.check_token(span_of(at), findings);
                self.add_alias(anchor, at);
            }
            Event::Anchor(_, name) => Yaml11Checks::check_anchor(&name, span_of(at), findings),
            Event::SequenceStart(style, anchor, tag) => {
                let id = self.add_node(YamlKind::Sequence(0..0), at, anchor, tag.as_deref());
                self.begin_collection(id, style, at, findings);
            }
            Event::MappingStart(style, anchor, tag) => {
                let id = self.add_node(YamlKind::Mapping(0..0), at, anchor, tag.as_deref());
                self.begin_collection(id, style, at, findings);
            }
            Event::SequenceEnd | Event::MappingEnd => self.end_collection(at),
            _ => {}
        }
    }

    fn add_node(
        &mut self,
        kind: YamlKind<'s>,
        at: &granit_parser::Span,
        anchor: usize,
        tag: Option<&Tag>,
    ) -> YamlId {
        let id = self.tree.nodes.len();
        let (start, end) = (offset(&at.start), offset(&at.end));
        self.tree.nodes.push(YamlNode { kind, start, end });
        if let Some(tag) = tag {
            let written_out = format!("{}{}", tag.handle(), tag.suffix());
            self.tree.tags.insert(id, written_out.into());
        }
        if anchor != 0 {
            self.anchors.insert(anchor, id);
        }
        self.tree.root.get_or_insert(id);
        id
    }

    fn add_alias(&mut self, anchor: usize, at: &granit_parser::Span) {
        if let Some(target) = self.anchors.get(&anchor).copied() {
            self.tree.has_aliases = true;
            let id = self.add_node(YamlKind::Alias(target), at, 0, None);
            self.waiting.push(id);
        }
    }

    fn begin_collection(
        &mut self,
        id: YamlId,
        style: StructureStyle,
        at: &granit_parser::Span,
        findings: &mut Findings,
    ) {
        let is_flow = style == StructureStyle::Flow;
        if is_flow {
            self.strict.open_bracket(span_of(at), findings);
        }
        self.waiting.push(id);
        self.open.push(OpenCollection { id, is_flow, waiting: self.waiting.len() });
    }

    fn end_collection(&mut self, at: &granit_parser::Span) {
        let Some(OpenCollection { id, is_flow: bracketed, waiting }) = self.open.pop() else {
            return;
        };
        if bracketed {
            self.strict.close_bracket(span_of(at));
        }
        let first = narrow(self.tree.children.len());
        self.tree.children.extend(self.waiting.drain(waiting..));
        let range = first..narrow(self.tree.children.len());
        let node = &mut self.tree.nodes[id];
        node.end = offset(&at.end).max(node.end);
        match &mut node.kind {
            YamlKind::Mapping(children) | YamlKind::Sequence(children) => *children = range,
            YamlKind::Scalar { .. } | YamlKind::Alias(_) => {}
        }
    }
}

fn span_of(at: &granit_parser::Span) -> Span {
    Span { start: widen(offset(&at.start)), end: widen(offset(&at.end)) }
}

fn offset(marker: &granit_parser::Marker) -> u32 {
    narrow(marker.byte_offset().unwrap_or(0))
}

pub(super) fn report_too_deep(at: Span, findings: &mut Findings) {
    let message = format!("the file is nested more than {DEPTH} levels deep");
    findings.add(Code::TooDeep, at, message);
}

/// Reports unknown directives (`%`) as errors, as YAML 1.1 parsers do. The parser `granit_parser`
/// skips them.
fn report_unknown_directives(text: &str, from: usize, findings: &mut Findings) {
    let mut start = from;
    for line in text.get(from..).unwrap_or_default().split_inclusive(['\n', '\r']) {
        let content = line.trim();
        let is_known = ["%YAML", "%TAG"].iter().any(|name| {
            content.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '\t']))
        });
        if line.starts_with('%') && !is_known {
            let message = format!("`{content}` is not a YAML directive");
            let span = Span { start, end: start + content.len() };
            let help = "remove this line; only `%YAML 1.1` and `%TAG` are valid";
            findings.add_with_help(Code::Syntax, span, message, help);
        }
        if !content.is_empty() && !line.starts_with(['%', '#']) {
            return;
        }
        start += line.len();
    }
}

fn report_syntax_error(error: &ScanError, text: &str, findings: &mut Findings) {
    let start = error.marker().byte_offset().unwrap_or(0).min(text.len());
    let rest = text.get(start..).unwrap_or_default();
    if *error.kind() == ErrorKind::RecursionLimitExceeded {
        return report_too_deep(Span { start, end: start }, findings);
    }
    if *error.kind() == ErrorKind::MappingValueNotAllowed
        && let Some(word) = lone_word_before_colon(&text[..start])
    {
        let message = format!("invalid YAML: {}", error.info());
        return findings.add_with_help(Code::Syntax, word, message, CONTINUED_TEXT_FIX);
    }
    let word = rest.split([' ', '\t', '\n', '\r', ',', ']', '}']).next().unwrap_or_default();
    let span = Span { start, end: start + word.len() };
    let message = match error.kind() {
        ErrorKind::UnknownAnchor => format!("the alias `{word}` has no anchor above it"),
        _ => format!("invalid YAML: {}", error.info()),
    };
    match suggest_fix(error.kind()) {
        Some(help) => findings.add_with_help(Code::Syntax, span, message, help),
        None => findings.add(Code::Syntax, span, message),
    }
}

/// The suggested fix for an unquoted text that unintentionally continues on the next line.
const CONTINUED_TEXT_FIX: &str =
    "indent all keys of a block equally, and write a space after each colon";

/// Returns the word before a colon if only blanks and dashes precede the word on its line. The
/// syntax error is then in an unquoted text that starts on an earlier line.
fn lone_word_before_colon(before: &str) -> Option<Span> {
    let first = before.rfind(['\n', '\r']).map_or(0, |end| end + 1);
    let line = before[first..].trim_end_matches([' ', '\t']);
    let word = line.rsplit([' ', '\t']).next().filter(|word| !word.is_empty())?;
    let end = first + line.len();
    let start = end - word.len();
    let is_alone = before[first..start].split_whitespace().all(|mark| mark == "-");
    is_alone.then_some(Span { start, end })
}

fn suggest_fix(kind: &ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::TabInBlockIndentation
        | ErrorKind::TabInIndentation
        | ErrorKind::TabNotAllowed
        | ErrorKind::TabInPlainScalar
        | ErrorKind::TabAtBlockScalarStart => "indent with spaces",
        ErrorKind::MissingAnchorOrAliasName => "quote a lone star: '*'",
        ErrorKind::UnknownAnchor => "quote a text that starts with a star: '*.png'",
        ErrorKind::UnexpectedCharacter { .. } => "quote the text",
        ErrorKind::UnclosedQuotedScalar | ErrorKind::InvalidQuotedScalarIndent => {
            "look for an unclosed quote above"
        }
        ErrorKind::MappingValueNotAllowed => "quote a text that contains `: `",
        ErrorKind::InvalidIndentation => "indent all keys of a block equally",
        ErrorKind::UnclosedFlowCollection { .. } => "close the bracket",
        _ => return None,
    })
}
