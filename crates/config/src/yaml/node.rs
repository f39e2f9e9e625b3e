//! The tree of nodes of one YAML document.
//!
//! Guarantees:
//! - All nodes are in one `Vec`, so dropping a tree does not recurse.
//! - A mapping is a list of pairs in the order of the text, with repeated keys.
//! - An alias is stored as a reference to its target, not as a copy.
//!
//! Not covered:
//! - Building the tree (see [`builder`]).

pub(super) mod builder;

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use super::BYTES;
use super::scalar::{self, ScalarValue};
use crate::diagnostic::Span;

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

pub(super) fn span_of(at: &granit_parser::Span) -> Span {
    Span { start: widen(offset(&at.start)), end: widen(offset(&at.end)) }
}

fn offset(marker: &granit_parser::Marker) -> u32 {
    narrow(marker.byte_offset().unwrap_or(0))
}
