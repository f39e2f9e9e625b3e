//! Parses `server.yaml` into setting names and values, with their positions.
//!
//! Guarantees:
//! - The line and column of every name and value are kept.
//! - The keys of nested blocks are joined to one name: `store.tls.ca_file`.
//! - The value of a setting with several fields, such as `hooks`, is kept as JSON.
//! - The value of a text setting is taken as written, even if YAML would read a number or boolean.
//!
//! Not covered:
//! - Unknown names and invalid values (see [`mod@super::read`]).

use std::borrow::Cow;
use std::fmt;

use serde::de::{
    Deserialize, DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use serde_json::Value as Json;
use serde_saphyr::{Location, Spanned};

use super::setting::Setting;
use super::table::{find_setting, is_block};
use super::value::Shape;

/// A line and a column, both from 1.
pub(super) type LineColumn = (u64, u64);

pub(super) struct SettingEntry {
    pub(super) name: String,
    /// `true` if a key of the file contains a dot, although blocks are nested.
    pub(super) has_dotted_key: bool,
    pub(super) name_at: LineColumn,
    pub(super) value_at: LineColumn,
    pub(super) node: SettingNode,
}

pub(super) enum SettingNode {
    Scalar(String, Json),
    List(Vec<SettingNode>),
    Map(Vec<SettingEntry>),
    /// `null` or `~`, which may be intended as a text.
    Null,
    /// No value after the colon.
    Missing,
}

impl SettingNode {
    /// Returns the texts of a value of `shape`, or `None` if the YAML node has another shape.
    pub(super) fn texts(&self, shape: Shape) -> Option<Vec<Cow<'_, str>>> {
        match self {
            _ if shape == Shape::Block => Some(vec![self.json().to_string().into()]),
            Self::Scalar(text, _) => Some(vec![text.into()]),
            Self::Missing if shape == Shape::One => Some(vec!["".into()]),
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
            Self::Map(entries) => Json::Object(
                entries.iter().map(|entry| (entry.name.clone(), entry.node.json())).collect(),
            ),
            Self::Null | Self::Missing => Json::Null,
        }
    }
}

pub(super) struct SettingsFileError {
    pub(super) at: LineColumn,
    pub(super) message: String,
}

/// Returns the names and values of all settings in the order of the file. The name of an entry that
/// is in a block starts with the block's name. An entry may have an unknown name.
pub(super) fn read_entries(text: &str) -> Result<Vec<SettingEntry>, SettingsFileError> {
    let entries = parse_entries(text).map_err(|error| SettingsFileError {
        at: error.location().map_or((1, 1), line_column),
        message: plain_message(error.without_snippet()),
    })?;
    let mut flat = Vec::new();
    flatten(entries, "", &mut flat);
    Ok(flat)
}

fn parse_entries(text: &str) -> Result<Vec<SettingEntry>, serde_saphyr::Error> {
    let mapping: Option<SettingsMapping> =
        serde_saphyr::from_str_with_options(text, parser_options())?;
    let Some(SettingsMapping(mut entries)) = mapping else { return Ok(Vec::new()) };
    let visitor = LiteralMappingVisitor { entries: entries.iter_mut(), block: "" };
    serde_saphyr::with_deserializer_from_str_with_options(text, parser_options(), |file| {
        file.deserialize_map(visitor)
    })?;
    Ok(entries)
}

/// Moves the settings of `block` and of all blocks inside it to `flat`, with their full names. An
/// empty block has no settings.
fn flatten(entries: Vec<SettingEntry>, block: &str, flat: &mut Vec<SettingEntry>) {
    for entry in entries {
        let name = full_name(block, &entry.name);
        match entry.node {
            SettingNode::Map(inner) if is_block(&name) => flatten(inner, &name, flat),
            SettingNode::Missing if is_block(&name) => {}
            node => flat.push(SettingEntry { name, node, ..entry }),
        }
    }
}

/// Returns the name of the setting or block `key` inside of `block`.
fn full_name(block: &str, key: &str) -> String {
    if block.is_empty() { key.to_owned() } else { format!("{block}.{key}") }
}

/// Accepts numbers beyond the range of `f64`, such as `7e512345`, because the value of a text
/// setting may look like one. For other settings, such a number is an error later.
fn parser_options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        non_finite_float_policy: serde_saphyr::options::NonFiniteFloatPolicy::PassThrough,
    }
}

fn line_column(at: Location) -> LineColumn {
    (at.line().max(1), at.column().max(1))
}

/// Returns the YAML parser's error message, or a replacement if that message needs knowledge of the
/// parser.
fn plain_message(error: &serde_saphyr::Error) -> String {
    match error {
        serde_saphyr::Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("duplicate key `{key}`; remove one")
        }
        serde_saphyr::Error::DuplicateMappingKey { key: None, .. } => {
            "duplicate key; remove one".to_owned()
        }
        serde_saphyr::Error::MultipleDocuments { .. } => {
            "a second YAML document starts here; write all settings in one document".to_owned()
        }
        other => first_line(&other.to_string()),
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or("invalid YAML").to_owned()
}

struct SettingsMapping(Vec<SettingEntry>);

impl<'de> Deserialize<'de> for SettingsMapping {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(SettingsMappingVisitor)
    }
}

struct SettingsMappingVisitor;

impl<'de> Visitor<'de> for SettingsMappingVisitor {
    type Value = SettingsMapping;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a mapping of settings to values")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SettingsMapping, A::Error> {
        read_mapping(map).map(SettingsMapping)
    }
}

fn read_mapping<'de, A: MapAccess<'de>>(mut map: A) -> Result<Vec<SettingEntry>, A::Error> {
    let mut entries = Vec::new();
    while let Some((name, node)) = map.next_entry::<Spanned<String>, Spanned<SettingNode>>()? {
        entries.push(SettingEntry {
            name_at: line_column(name.referenced),
            has_dotted_key: name.value.contains('.'),
            name: name.value,
            value_at: line_column(node.referenced),
            node: match node.value {
                SettingNode::Null if node.referenced.span().is_empty() => SettingNode::Missing,
                node => node,
            },
        });
    }
    Ok(entries)
}

/// Replaces the values of text settings by their text as written. The entries are in the order of
/// the file.
///
/// This is the second pass over the file. The first pass, which also accepts lists and blocks,
/// returns `42` for `0042`. A request for text returns `0042`, but fails for a list or block.
struct LiteralMappingVisitor<'n> {
    entries: std::slice::IterMut<'n, SettingEntry>,
    /// The name of the block that contains the entries.
    block: &'n str,
}

impl<'de> Visitor<'de> for LiteralMappingVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SettingsMappingVisitor.expecting(f)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while map.next_key::<IgnoredAny>()?.is_some() {
            let entry = self.entries.next();
            let seed = entry.map(|entry| LiteralSeed {
                name: full_name(self.block, &entry.name),
                node: &mut entry.node,
            });
            match seed {
                Some(seed) => map.next_value_seed(seed)?,
                None => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(())
    }
}

/// Reads the scalar, or each scalar of the list, as written, if `name` is a text setting. Does the
/// same for each setting in a block.
struct LiteralSeed<'n> {
    name: String,
    node: &'n mut SettingNode,
}

impl<'de> DeserializeSeed<'de> for LiteralSeed<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let Self { name, node } = self;
        let is_text = find_setting(&name).is_some_and(Setting::is_literal_text);
        match node {
            SettingNode::Map(entries) if is_block(&name) => {
                deserializer.deserialize_map(LiteralMappingVisitor {
                    entries: entries.iter_mut(),
                    block: &name,
                })
            }
            SettingNode::Scalar(text, _) if is_text => {
                *text = String::deserialize(deserializer)?;
                Ok(())
            }
            SettingNode::List(items) if is_text => {
                deserializer.deserialize_seq(LiteralListVisitor(items))
            }
            _ => IgnoredAny::deserialize(deserializer).map(drop),
        }
    }
}

/// Reads each scalar of a list as written.
struct LiteralListVisitor<'n>(&'n mut [SettingNode]);

impl<'de> Visitor<'de> for LiteralListVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SettingNodeVisitor.expecting(f)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let mut items = self.0.iter_mut();
        while seq.next_element_seed(LiteralItem(items.next()))?.is_some() {}
        Ok(())
    }
}

struct LiteralItem<'n>(Option<&'n mut SettingNode>);

impl<'de> DeserializeSeed<'de> for LiteralItem<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        match self.0 {
            Some(SettingNode::Scalar(text, _)) => *text = String::deserialize(deserializer)?,
            _ => drop(IgnoredAny::deserialize(deserializer)?),
        }
        Ok(())
    }
}

impl<'de> Deserialize<'de> for SettingNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SettingNodeVisitor)
    }
}

struct SettingNodeVisitor;

impl<'de> Visitor<'de> for SettingNodeVisitor {
    type Value = SettingNode;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value or a list of values")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<SettingNode, E> {
        Ok(SettingNode::Scalar(value.to_string(), value.into()))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<SettingNode, E> {
        Ok(SettingNode::Scalar(value.to_string(), value.into()))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<SettingNode, E> {
        Ok(SettingNode::Scalar(value.to_string(), value.into()))
    }

    fn visit_i128<E: Error>(self, value: i128) -> Result<SettingNode, E> {
        Ok(SettingNode::Scalar(value.to_string(), value.to_string().into()))
    }

    fn visit_u128<E: Error>(self, value: u128) -> Result<SettingNode, E> {
        Ok(SettingNode::Scalar(value.to_string(), value.to_string().into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<SettingNode, E> {
        Ok(SettingNode::Scalar(value.to_string(), value.into()))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<SettingNode, E> {
        Ok(SettingNode::Scalar(value.to_string(), value.into()))
    }

    fn visit_unit<E: Error>(self) -> Result<SettingNode, E> {
        Ok(SettingNode::Null)
    }

    fn visit_none<E: Error>(self) -> Result<SettingNode, E> {
        Ok(SettingNode::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<SettingNode, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(SettingNode::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SettingNode, A::Error> {
        read_mapping(map).map(SettingNode::Map)
    }
}
