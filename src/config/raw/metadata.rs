//! Reads `metadata` as JSON.
//!
//! Guarantees:
//! - Values keep their YAML type.
//! - Keys of the first level keep their source text.
//! - Deeper keys are rendered from their value: `0x10` becomes `16`, `yes` becomes `true`.
//!
//! Not covered:
//! - Infinity and NaN, which JSON lacks: a [`NOT_FINITE`] text replaces them, with a warning.

use serde_json::{Map, Value as Json};

use super::typed::Reader;
use crate::config::NOT_FINITE;
use crate::config::diagnostic::Code;
use crate::config::yaml::{Id, Kind, Value};

impl Reader<'_, '_> {
    pub(super) fn first_level(&mut self, mapping: Id, out: &mut Map<String, Json>) {
        self.pairs_into(mapping, out, |reader, key| {
            reader.text_only(key);
            reader.key_text(key)
        });
    }

    fn pairs_into(
        &mut self,
        mapping: Id,
        out: &mut Map<String, Json>,
        name: fn(&mut Self, Id) -> String,
    ) {
        let tree = self.tree;
        for (key, value) in tree.pairs(mapping) {
            if tree.is_merge(key) {
                for merged in tree.merged(value) {
                    self.at(merged, |reader, merged| reader.pairs_into(merged, out, name));
                }
                continue;
            }
            let mut named = String::new();
            self.at(key, |reader, key| named = name(reader, key));
            self.at(value, |reader, value| {
                let value = reader.json(value);
                out.insert(named, value);
            });
        }
    }

    fn json(&mut self, node: Id) -> Json {
        let tree = self.tree;
        match tree.kind(node) {
            Kind::Mapping(_) => {
                let mut map = Map::new();
                self.pairs_into(node, &mut map, Self::rendered);
                Json::Object(map)
            }
            Kind::Sequence(_) => {
                let mut list = Vec::new();
                for item in tree.children(node) {
                    self.at(*item, |reader, item| list.push(reader.json(item)));
                }
                Json::Array(list)
            }
            Kind::Scalar { .. } | Kind::Alias(_) => self.leaf(node),
        }
    }

    fn leaf(&mut self, node: Id) -> Json {
        match self.tree.scalar(node) {
            None | Some((_, Value::Null)) => Json::Null,
            Some((_, Value::Bool(value))) => value.into(),
            Some((_, Value::Int(value))) => value.into(),
            Some((_, Value::Big(value))) => value.into(),
            Some((_, Value::Float(value))) if value.is_finite() => value.into(),
            Some((_, Value::Float(value))) => self.not_finite(node, value).into(),
            Some((text, Value::Text)) => text.into(),
            Some((_, Value::Binary(bytes))) => {
                self.text_only(node);
                String::from_utf8_lossy(&bytes).into()
            }
        }
    }

    fn not_finite(&mut self, node: Id, value: f64) -> String {
        let message = "no such number exists in JSON: /json answers 500 to what would return it";
        let (span, help) = (self.tree.span(node), "write a finite number, or quote the text");
        self.findings.add_with_help(Code::NotFinite, span, message, help);
        format!("{NOT_FINITE}{value}")
    }

    fn text_only(&mut self, node: Id) {
        if let Some((_, Value::Binary(bytes))) = self.tree.scalar(node)
            && str::from_utf8(&bytes).is_err()
        {
            let message = "metadata is returned as JSON, which holds text and not these bytes";
            self.findings.add(Code::MetadataNotText, self.tree.span(node), message);
        }
    }

    /// Returns the text of a key below the first level, rendered from its value.
    fn rendered(&mut self, key: Id) -> String {
        self.text_only(key);
        match self.tree.scalar(key) {
            None | Some((_, Value::Null)) => "<nil>".to_owned(),
            Some((_, Value::Bool(value))) => value.to_string(),
            Some((_, Value::Int(value))) => value.to_string(),
            Some((_, Value::Big(value))) => value.to_string(),
            Some((_, Value::Float(value))) => float(value),
            Some((text, Value::Text)) => text.to_owned(),
            Some((_, Value::Binary(bytes))) => String::from_utf8_lossy(&bytes).into_owned(),
        }
    }
}

/// Formats a float with the shortest digits. Below 1e-4 and
/// from 1e6 on, it has an exponent of two or more digits.
fn float(value: f64) -> String {
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else {
        return match value {
            f64::INFINITY => "+Inf".to_owned(),
            f64::NEG_INFINITY => "-Inf".to_owned(),
            _ => "NaN".to_owned(),
        };
    };
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..6).contains(&exponent) => format!("{digits}e{exponent:+03}"),
        _ => value.to_string(),
    }
}
