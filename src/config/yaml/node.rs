//! Parses the first YAML document of a text into a tree of nodes.
//!
//! Guarantees:
//! - All nodes are in one `Vec`, so dropping a tree does not recurse.
//! - A mapping is a list of pairs in the order of the text, with repeated keys.
//! - An alias is stored as a reference to its target, not as a copy.
//! - Time and memory are proportional to the length of the text.
//! - A second document is ignored with a warning, as in envoyproxy/ratelimit.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use granit_parser::{ErrorKind, Event, Parser, ScalarStyle, ScanError, StructureStyle, Tag};

use super::input::LenientInput;
use super::scalar::{self, ScalarValue};
use super::strict::Yaml11Checks;
use super::{BYTES, DEPTH};
use crate::config::diagnostic::{Code, Findings, Span};

pub(in crate::config) type YamlId = usize;

#[derive(Debug)]
pub(in crate::config) enum YamlKind<'s> {
    /// A scalar. If it has no quotes (`is_plain`), its text determines its type.
    Scalar { text: Cow<'s, str>, is_plain: bool },
    /// The range of the mapping's child nodes, which are alternately keys and values.
    Mapping(Range<u32>),
    /// The range of the sequence's items.
    Sequence(Range<u32>),
    /// The target of the alias, which is not an alias itself.
    Alias(YamlId),
}

#[derive(Debug)]
struct YamlNode<'s> {
    kind: YamlKind<'s>,
    start: u32,
    end: u32,
}

#[derive(Debug, Default)]
pub(in crate::config) struct YamlTree<'s> {
    nodes: Vec<YamlNode<'s>>,
    children: Vec<YamlId>,
    tags: HashMap<YamlId, Box<str>>,
    /// The outermost node, or `None` if the text is empty.
    pub(in crate::config) root: Option<YamlId>,
    pub(in crate::config) has_aliases: bool,
}

impl<'s> YamlTree<'s> {
    pub(in crate::config) fn len(&self) -> usize {
        self.nodes.len()
    }

    pub(in crate::config) fn kind(&self, id: YamlId) -> &YamlKind<'s> {
        &self.nodes[id].kind
    }

    pub(in crate::config) fn span(&self, id: YamlId) -> Span {
        let YamlNode { start, end, .. } = self.nodes[id];
        Span { start: to_usize(start), end: to_usize(end) }
    }

    /// Returns the tag of a node in its full form, or an empty text if there is no tag.
    pub(in crate::config) fn tag(&self, id: YamlId) -> &str {
        self.tags.get(&id).map_or("", |tag| tag)
    }

    /// Returns the target of `id` if it is an alias; otherwise `id` itself.
    pub(in crate::config) fn target(&self, id: YamlId) -> YamlId {
        match self.kind(id) {
            YamlKind::Alias(target) => *target,
            _ => id,
        }
    }

    /// Returns the items of a sequence, or the keys and values of a mapping alternately.
    pub(in crate::config) fn children(&self, id: YamlId) -> &[YamlId] {
        match self.kind(id) {
            YamlKind::Mapping(range) | YamlKind::Sequence(range) => {
                &self.children[to_usize(range.start)..to_usize(range.end)]
            }
            YamlKind::Scalar { .. } | YamlKind::Alias(_) => &[],
        }
    }

    pub(in crate::config) fn pairs(&self, id: YamlId) -> impl Iterator<Item = (YamlId, YamlId)> {
        self.children(id).as_chunks::<2>().0.iter().map(|[key, value]| (*key, *value))
    }

    /// Returns the text and value of a scalar. Ignores a misfitting tag, which
    /// [`super::check_structure`] reports.
    pub(in crate::config) fn scalar(&self, id: YamlId) -> Option<(&str, ScalarValue)> {
        match self.kind(id) {
            YamlKind::Scalar { text, is_plain } => {
                let value = scalar::parse_scalar(text, self.tag(id), *is_plain);
                Some((text, value.unwrap_or(ScalarValue::Text)))
            }
            _ => None,
        }
    }

    /// Returns `true` for a scalar in quotes without a tag.
    pub(in crate::config) fn is_quoted(&self, id: YamlId) -> bool {
        matches!(self.kind(id), YamlKind::Scalar { is_plain: false, .. }) && self.tag(id).is_empty()
    }

    /// Returns `true` if `key` is a merge key (`<<`).
    pub(in crate::config) fn is_merge(&self, key: YamlId) -> bool {
        match self.kind(key) {
            YamlKind::Scalar { text, is_plain } if text == "<<" => {
                (*is_plain && self.tag(key).is_empty())
                    || matches!(self.tag(key), "!" | "tag:yaml.org,2002:merge")
            }
            _ => false,
        }
    }

    /// Returns the mappings under a merge key. The first mapping of a list has precedence, so it
    /// comes last.
    pub(in crate::config) fn merged_mappings(&self, value: YamlId) -> Vec<YamlId> {
        match self.kind(value) {
            YamlKind::Sequence(_) => self.children(value).iter().rev().copied().collect(),
            _ => vec![value],
        }
    }
}

fn to_usize(offset: u32) -> usize {
    usize::try_from(offset).unwrap_or(BYTES)
}

/// Converts a byte offset. Offsets in the largest file ([`BYTES`]) fit into 32 bits.
fn to_u32(offset: usize) -> u32 {
    u32::try_from(offset).unwrap_or(u32::MAX)
}

pub(in crate::config) fn parse<'s>(text: &'s str, findings: &mut Findings) -> YamlTree<'s> {
    report_unknown_directives(text, 0, findings);
    let start = text.find("%YAML").unwrap_or_default();
    let mut builder = YamlTreeBuilder::new(text, Span { start, end: start + "%YAML".len() });
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
                let start = error.marker().byte_offset().unwrap_or(text.len());
                report_unknown_directives(text, start, findings);
                if !findings.has_errors() {
                    let span = Span { start, end: start };
                    report_second_document(span, builder.is_empty_document(), findings);
                }
                break;
            }
            Err(error) => {
                report_syntax_error(&error, text, findings);
                break;
            }
        }
        if DEPTH < builder.open.len() {
            let span = builder.open.last().map(|open| builder.tree.span(open.id));
            report_too_deep(span.unwrap_or_default(), findings);
            break;
        }
    }
    builder.tree
}

/// Warns about a second document unless it is empty.
fn report_later_documents<'s>(
    rest: impl Iterator<Item = Result<(Event<'s>, granit_parser::Span), ScanError>>,
    is_first_empty: bool,
    findings: &mut Findings,
) {
    let mut second_document = None;
    for event in rest {
        match event {
            Ok((Event::StreamEnd, _)) => return,
            Ok((Event::DocumentStart(..), at)) => second_document = Some(span_of(&at)),
            Ok((Event::DocumentEnd, _)) => {}
            Ok((Event::Scalar(text, ..), _)) if is_null_text(&text) => {}
            Ok(_) => break,
            Err(error) => {
                let start = error.marker().byte_offset().unwrap_or_default();
                second_document = second_document.or(Some(Span { start, end: start }));
                break;
            }
        }
    }
    if let Some(span) = second_document {
        report_second_document(span, is_first_empty, findings);
    }
}

/// Returns `true` for the text of a null. The parser reports a missing value as `~`.
fn is_null_text(text: &str) -> bool {
    matches!(text, "" | "~" | "null")
}

fn report_second_document(span: Span, is_first_empty: bool, findings: &mut Findings) {
    let help = if is_first_empty {
        "the first document is the one that is read, and is empty: take out the `---` before this one"
    } else {
        "a file is one document with one domain: put this one into a file of its own"
    };
    let message = "another document begins here, and is not read".to_owned();
    findings.add_with_help(Code::SecondDocument, span, message, help);
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

/// Returns `true` if the error is a directive (`%`) after the first document, which ends it.
fn ends_document(error: &ScanError) -> bool {
    *error.kind() == ErrorKind::MissingDocumentEndBeforeDirective
}

struct OpenCollection {
    id: YamlId,
    /// `true` if the collection is written with brackets (YAML flow style).
    is_flow: bool,
    /// The number of waiting nodes at the start of the collection. Later nodes are its children.
    waiting: usize,
}

struct YamlTreeBuilder<'s> {
    tree: YamlTree<'s>,
    strict: Yaml11Checks<'s>,
    open: Vec<OpenCollection>,
    /// The nodes whose parents are not complete.
    waiting: Vec<YamlId>,
    anchors: HashMap<usize, YamlId>,
    /// The position of the `%YAML` directive, if the document has such a directive.
    version_span: Span,
}

impl<'s> YamlTreeBuilder<'s> {
    fn new(text: &'s str, version_span: Span) -> Self {
        Self {
            tree: YamlTree::default(),
            strict: Yaml11Checks::new(text),
            open: Vec::new(),
            waiting: Vec::new(),
            anchors: HashMap::new(),
            version_span,
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
                    "the file is YAML {}.{} where 1.1 is read",
                    version.major, version.minor
                );
                let help = "take the line out";
                findings.add_with_help(Code::Syntax, self.version_span, message, help);
            }
            Event::Scalar(text, style, anchor, tag) => {
                let text = self.strict.check_scalar(text, style, span_of(at), findings);
                let scalar = YamlKind::Scalar { text, is_plain: style == ScalarStyle::Plain };
                let id = self.add_node(scalar, at, anchor, tag.as_deref());
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
        let (start, end) = (byte_offset(&at.start), byte_offset(&at.end));
        self.tree.nodes.push(YamlNode { kind, start, end });
        if let Some(tag) = tag {
            let full_tag = format!("{}{}", tag.handle(), tag.suffix());
            self.tree.tags.insert(id, full_tag.into());
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
        let Some(OpenCollection { id, is_flow, waiting }) = self.open.pop() else {
            return;
        };
        if is_flow {
            self.strict.close_bracket(span_of(at));
        }
        let first = to_u32(self.tree.children.len());
        self.tree.children.extend(self.waiting.drain(waiting..));
        let range = first..to_u32(self.tree.children.len());
        let node = &mut self.tree.nodes[id];
        node.end = byte_offset(&at.end).max(node.end);
        match &mut node.kind {
            YamlKind::Mapping(children) | YamlKind::Sequence(children) => *children = range,
            YamlKind::Scalar { .. } | YamlKind::Alias(_) => {}
        }
    }
}

fn span_of(at: &granit_parser::Span) -> Span {
    Span { start: to_usize(byte_offset(&at.start)), end: to_usize(byte_offset(&at.end)) }
}

fn byte_offset(marker: &granit_parser::Marker) -> u32 {
    to_u32(marker.byte_offset().unwrap_or(0))
}

pub(super) fn report_too_deep(span: Span, findings: &mut Findings) {
    let message = format!("nested more than {DEPTH} levels deep");
    findings.add(Code::TooDeep, span, message);
}

/// Reports unknown directives (`%`) after byte `from` as errors, as YAML 1.1 parsers do.
fn report_unknown_directives(text: &str, from: usize, findings: &mut Findings) {
    let mut start = from;
    for line in text.get(from..).unwrap_or_default().split_inclusive(['\n', '\r']) {
        let content = line.trim();
        let is_known = ["%YAML", "%TAG"].iter().any(|name| {
            content.strip_prefix(name).is_some_and(|rest| rest.starts_with([' ', '\t']))
        });
        if line.starts_with('%') && !is_known {
            let message = format!("`{content}` is not a directive that YAML has");
            let span = Span { start, end: start + content.len() };
            findings.add_with_help(Code::Syntax, span, message, "%YAML 1.1 and %TAG are known");
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
        let message = format!("not YAML: {}", error.info());
        return findings.add_with_help(Code::Syntax, word, message, CONTINUED_TEXT_FIX);
    }
    let word = rest.split([' ', '\t', '\n', '\r', ',', ']', '}']).next().unwrap_or_default();
    let span = Span { start, end: start + word.len() };
    let message = match error.kind() {
        ErrorKind::UnknownAnchor => format!("alias `{word}` names an anchor that is not above it"),
        _ => format!("not YAML: {}", error.info()),
    };
    match suggest_fix(error.kind()) {
        Some(help) => findings.add_with_help(Code::Syntax, span, message, help),
        None => findings.add(Code::Syntax, span, message),
    }
}

/// The suggested fix for an unquoted text that accidentally continues on the next line.
const CONTINUED_TEXT_FIX: &str =
    "keys of one block start in one column, and a colon is followed by a blank";

/// Returns the word at the end of `text_before_colon`, if only blanks and dashes precede the word
/// on its line. The syntax error is then in an unquoted text that starts on an earlier line.
fn lone_word_before_colon(text_before_colon: &str) -> Option<Span> {
    let line_start = text_before_colon.rfind(['\n', '\r']).map_or(0, |end| end + 1);
    let line = text_before_colon[line_start..].trim_end_matches([' ', '\t']);
    let word = line.rsplit([' ', '\t']).next().filter(|word| !word.is_empty())?;
    let end = line_start + line.len();
    let start = end - word.len();
    let is_alone = text_before_colon[line_start..start].split_whitespace().all(|part| part == "-");
    is_alone.then_some(Span { start, end })
}

fn suggest_fix(kind: &ErrorKind) -> Option<&'static str> {
    Some(match kind {
        ErrorKind::TabInBlockIndentation
        | ErrorKind::TabInIndentation
        | ErrorKind::TabNotAllowed
        | ErrorKind::TabInPlainScalar
        | ErrorKind::TabAtBlockScalarStart => "indent with spaces",
        ErrorKind::MissingAnchorOrAliasName => "a star alone must be quoted: '*'",
        ErrorKind::UnknownAnchor => "a text that starts with a star must be quoted: '*.png'",
        ErrorKind::UnexpectedCharacter { .. } => "quote the text",
        ErrorKind::UnclosedQuotedScalar | ErrorKind::InvalidQuotedScalarIndent => {
            "is a quote above not closed?"
        }
        ErrorKind::MappingValueNotAllowed => "a text that contains `: ` must be quoted",
        ErrorKind::InvalidIndentation => "keys of one block start in one column",
        ErrorKind::UnclosedFlowCollection { .. } => "close the bracket",
        _ => return None,
    })
}
