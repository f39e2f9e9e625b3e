//! Converts the field `metadata` from YAML to JSON.
//!
//! Guarantees:
//! - Values keep their YAML type.
//! - Keys of the first level are taken as written.
//! - Keys of deeper levels are formatted from their YAML value: `0x10` becomes `16`, `yes` becomes
//!   `true`.
//!
//! Not covered:
//! - Infinity and NaN, which JSON lacks. A text with [`NON_FINITE_PREFIX`] replaces them, with a
//!   warning.

use serde_json::{Map, Value as Json};

use super::typed::FileReader;
use crate::NON_FINITE_PREFIX;
use crate::diagnostic::Code;
use crate::yaml::{ScalarValue, YamlId, YamlKind};

impl FileReader<'_, '_> {
    pub(super) fn read_first_level(&mut self, mapping: YamlId, out: &mut Map<String, Json>) {
        self.read_pairs(mapping, out, |reader, key| {
            reader.check_is_text(key);
            reader.key_text(key)
        });
    }

    fn read_pairs(
        &mut self,
        mapping: YamlId,
        out: &mut Map<String, Json>,
        name: fn(&mut Self, YamlId) -> String,
    ) {
        let tree = self.tree;
        for (key, value) in tree.pairs(mapping) {
            if tree.is_merge(key) {
                for merged in tree.merged_mappings(value) {
                    self.visit(merged, |reader, merged| reader.read_pairs(merged, out, name));
                }
                continue;
            }
            let mut named = String::new();
            self.visit(key, |reader, key| named = name(reader, key));
            self.visit(value, |reader, value| {
                let value = reader.read_json(value);
                out.insert(named, value);
            });
        }
    }

    fn read_json(&mut self, node: YamlId) -> Json {
        let tree = self.tree;
        match tree.kind(node) {
            YamlKind::Mapping(_) => {
                let mut map = Map::new();
                self.read_pairs(node, &mut map, Self::render_key);
                Json::Object(map)
            }
            YamlKind::Sequence(_) => {
                let mut list = Vec::new();
                for item in tree.children(node) {
                    self.visit(*item, |reader, item| list.push(reader.read_json(item)));
                }
                Json::Array(list)
            }
            YamlKind::Scalar { .. } | YamlKind::Alias(_) => self.read_leaf(node),
        }
    }

    fn read_leaf(&mut self, node: YamlId) -> Json {
        match self.tree.scalar(node) {
            None | Some((_, ScalarValue::Null)) => Json::Null,
            Some((_, ScalarValue::Bool(value))) => value.into(),
            Some((_, ScalarValue::Int(value))) => value.into(),
            Some((_, ScalarValue::Unsigned(value))) => value.into(),
            Some((_, ScalarValue::Float(value))) if value.is_finite() => value.into(),
            Some((_, ScalarValue::Float(value))) => self.non_finite_text(node, value).into(),
            Some((text, ScalarValue::Text)) => text.into(),
            Some((_, ScalarValue::Binary(bytes))) => {
                self.check_is_text(node);
                String::from_utf8_lossy(&bytes).into()
            }
        }
    }

    fn non_finite_text(&mut self, node: YamlId, value: f64) -> String {
        let message =
            "this number has no JSON form: `/json` fails with 500 if it returns this metadata";
        let (span, help) = (self.tree.span(node), "write a finite number, or quote it");
        self.findings.add_with_help(Code::NotFinite, span, message, help);
        format!("{NON_FINITE_PREFIX}{value}")
    }

    fn check_is_text(&mut self, node: YamlId) {
        if let Some((_, ScalarValue::Binary(bytes))) = self.tree.scalar(node)
            && str::from_utf8(&bytes).is_err()
        {
            let message = "the binary value is not UTF-8, so metadata cannot be returned as JSON";
            let (span, help) = (self.tree.span(node), "write text, or the bytes as base64 text");
            self.findings.add_with_help(Code::MetadataNotText, span, message, help);
        }
    }

    /// Returns the text of a key below the first level, formatted from its YAML value.
    fn render_key(&mut self, key: YamlId) -> String {
        self.check_is_text(key);
        match self.tree.scalar(key) {
            None | Some((_, ScalarValue::Null)) => "<nil>".to_owned(),
            Some((_, ScalarValue::Bool(value))) => value.to_string(),
            Some((_, ScalarValue::Int(value))) => value.to_string(),
            Some((_, ScalarValue::Unsigned(value))) => value.to_string(),
            Some((_, ScalarValue::Float(value))) => format_float(value),
            Some((text, ScalarValue::Text)) => text.to_owned(),
            Some((_, ScalarValue::Binary(bytes))) => String::from_utf8_lossy(&bytes).into_owned(),
        }
    }
}

/// Formats a float with the fewest digits that identify it. Numbers below 1e-4 and from 1e6 on get
/// an exponent of two or more digits.
fn format_float(value: f64) -> String {
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
