//! Builds the tree of nodes from the events of the parser.
//!
//! Guarantees:
//! - No recursion: the open collections are in a list.

use std::collections::HashMap;

use granit_parser::{Event, ScalarStyle, StructureStyle, Tag};

use super::{YamlId, YamlKind, YamlNode, YamlTree, narrow, offset, span_of};
use crate::diagnostic::{Code, Findings, Span};
use crate::yaml::strict::Yaml11Checks;

/// A mapping or sequence whose end the parser has not reached yet.
pub(in crate::yaml) struct OpenCollection {
    pub(in crate::yaml) id: YamlId,
    /// `true` if the collection is written with brackets (YAML flow style).
    is_flow: bool,
    /// The number of nodes that had no parent yet when the collection started. Later ones are its
    /// children.
    waiting: usize,
}

pub(in crate::yaml) struct YamlTreeBuilder<'s> {
    pub(in crate::yaml) tree: YamlTree<'s>,
    pub(in crate::yaml) strict: Yaml11Checks<'s>,
    pub(in crate::yaml) open: Vec<OpenCollection>,
    waiting: Vec<YamlId>,
    anchors: HashMap<usize, YamlId>,
    /// The position of the `%YAML` directive. Used only if the document has one.
    version_at: Span,
}

impl<'s> YamlTreeBuilder<'s> {
    pub(in crate::yaml) fn new(text: &'s str, version_at: Span) -> Self {
        Self {
            tree: YamlTree::default(),
            strict: Yaml11Checks::new(text),
            open: Vec::new(),
            waiting: Vec::new(),
            anchors: HashMap::new(),
            version_at,
        }
    }

    pub(in crate::yaml) fn is_complete(&self) -> bool {
        self.tree.root.is_some() && self.open.is_empty()
    }

    pub(in crate::yaml) fn is_empty_document(&self) -> bool {
        let kind = self.tree.root.map(|root| self.tree.kind(root));
        kind.is_none_or(|kind| matches!(kind, YamlKind::Scalar { text, .. } if is_null_text(text)))
    }

    pub(in crate::yaml) fn apply_event(
        &mut self,
        event: Event<'s>,
        at: &granit_parser::Span,
        findings: &mut Findings,
    ) {
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

/// Returns `true` for a text that means null. The parser reports a missing value as `~`.
pub(in crate::yaml) fn is_null_text(text: &str) -> bool {
    matches!(text, "" | "~" | "null")
}
