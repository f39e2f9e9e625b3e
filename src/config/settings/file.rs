//! Parses `server.yaml` into names and values with their positions.
//!
//! Guarantees:
//! - Every entry keeps the line and column of its name and its value.
//! - The content of a block is kept as JSON.
//! - Text settings are literal, even where YAML would read a number or boolean.
//!
//! Not covered:
//! - The known names and the meaning of values: see [`super`].

use std::borrow::Cow;
use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::Value as Json;
use serde_saphyr::{Location, Spanned};

use super::value::Shape;

/// A line and a column, both from 1.
pub(super) type Point = (u64, u64);

pub(super) struct Entry {
    pub(super) name: String,
    pub(super) name_at: Point,
    pub(super) value_at: Point,
    pub(super) node: Node,
}

pub(super) enum Node {
    Scalar(String, Json),
    List(Vec<Node>),
    Block(serde_json::Map<String, Json>),
    /// `null` or `~`, which a user may intend as text.
    Null,
    /// A missing value.
    Nothing,
}

impl Node {
    /// Returns the texts that make a value of `shape`, or `None` if the node does not fit.
    pub(super) fn texts(&self, shape: Shape) -> Option<Vec<Cow<'_, str>>> {
        match self {
            _ if shape == Shape::Block => Some(vec![self.json().to_string().into()]),
            Self::Scalar(text, _) => Some(vec![text.into()]),
            Self::Nothing if shape == Shape::One => Some(vec!["".into()]),
            Self::List(items) if shape == Shape::Many => items.iter().map(Self::text).collect(),
            _ => None,
        }
    }

    fn text(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Scalar(text, _) => Some(text.into()),
            _ => None,
        }
    }

    fn json(&self) -> Json {
        match self {
            Self::Scalar(_, json) => json.clone(),
            Self::List(items) => items.iter().map(Self::json).collect(),
            Self::Block(fields) => Json::Object(fields.clone()),
            Self::Null | Self::Nothing => Json::Null,
        }
    }
}

pub(super) struct Unreadable {
    pub(super) at: Point,
    pub(super) message: String,
}

/// Returns the entries in the order of the file. `is_text`
/// selects the settings that are taken literally.
pub(super) fn read(text: &str, is_text: impl Fn(&str) -> bool) -> Result<Vec<Entry>, Unreadable> {
    understood(text, is_text).map_err(|error| Unreadable {
        at: error.location().map_or((1, 1), point),
        message: said(error.without_snippet()),
    })
}

fn understood(
    text: &str,
    is_text: impl Fn(&str) -> bool,
) -> Result<Vec<Entry>, serde_saphyr::Error> {
    let mapping: Option<Mapping> = serde_saphyr::from_str_with_options(text, any_number())?;
    let Some(Mapping(mut entries)) = mapping else { return Ok(Vec::new()) };
    let texts = entries.iter_mut().map(|Entry { name, node, .. }| is_text(name).then_some(node));
    let written = WrittenIn(texts);
    serde_saphyr::with_deserializer_from_str_with_options(text, any_number(), |file| {
        file.deserialize_map(written)
    })?;
    Ok(entries)
}

/// Accepts numbers beyond the range of `f64`, such as `7e512345`, because a text
/// may look like one. Numeric settings reject them later with their own message.
fn any_number() -> serde_saphyr::Options {
    serde_saphyr::options! {
        non_finite_float_policy: serde_saphyr::options::NonFiniteFloatPolicy::PassThrough,
    }
}

fn point(at: Location) -> Point {
    (at.line().max(1), at.column().max(1))
}

/// Returns the parser's message, or a replacement for messages that only developers understand.
fn said(error: &serde_saphyr::Error) -> String {
    match error {
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("`{key}` is given twice; once is enough")
        }
        serde_saphyr::Error::DuplicateMappingKey { key: None, .. } => {
            "a key is given twice; once is enough".to_owned()
        }
        serde_saphyr::Error::MultipleDocuments { .. } => {
            "a second document begins here; a file of settings is one document".to_owned()
        }
        other => first_line(&other.to_string()),
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or("it is not YAML").to_owned()
}

struct Mapping(Vec<Entry>);

impl<'de> Deserialize<'de> for Mapping {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MappingVisitor)
    }
}

struct MappingVisitor;

impl<'de> Visitor<'de> for MappingVisitor {
    type Value = Mapping;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping from settings to their values")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Mapping, A::Error> {
        let mut entries = Vec::new();
        while let Some((name, node)) = map.next_entry::<Spanned<String>, Spanned<Node>>()? {
            entries.push(Entry {
                name_at: point(name.referenced),
                name: name.value,
                value_at: point(node.referenced),
                node: match node.value {
                    Node::Null if node.referenced.span().is_empty() => Node::Nothing,
                    node => node,
                },
            });
        }
        Ok(Mapping(entries))
    }
}

/// Replaces the nodes of a mapping, in its order, by their literal text.
///
/// This needs a second pass over the file. A pass that requests no type
/// returns `42` for `0042`, and only a scalar can be requested as text.
struct WrittenIn<I>(I);

impl<'de, 'n, I: Iterator<Item = Option<&'n mut Node>>> Visitor<'de> for WrittenIn<I> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        MappingVisitor.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while map.next_key::<IgnoredAny>()?.is_some() {
            map.next_value_seed(Written(self.0.next().flatten()))?;
        }
        Ok(())
    }
}

/// Reads a scalar, or each scalar of a list, literally.
struct Written<'n>(Option<&'n mut Node>);

impl<'de> DeserializeSeed<'de> for Written<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self.0 {
            Some(Node::Scalar(text, _)) => *text = String::deserialize(deserializer)?,
            Some(Node::List(items)) => deserializer.deserialize_seq(EachWritten(items))?,
            _ => {
                IgnoredAny::deserialize(deserializer)?;
            }
        }
        Ok(())
    }
}

struct EachWritten<'n>(&'n mut [Node]);

impl<'de> Visitor<'de> for EachWritten<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        NodeVisitor.expecting(f)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let mut items = self.0.iter_mut();
        while seq.next_element_seed(Written(items.next()))?.is_some() {}
        Ok(())
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or a list of values")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string(), value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string(), value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string(), value.into()))
    }

    fn visit_i128<E: Error>(self, value: i128) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string(), value.to_string().into()))
    }

    fn visit_u128<E: Error>(self, value: u128) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string(), value.to_string().into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string(), value.into()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Scalar(value.to_string(), value.into()))
    }

    fn visit_unit<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_none<E: Error>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut fields = serde_json::Map::new();
        while let Some((name, value)) = map.next_entry::<String, Node>()? {
            fields.insert(name, value.json());
        }
        Ok(Node::Block(fields))
    }
}
