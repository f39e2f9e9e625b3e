//! Converts the field `metadata` from YAML to JSON.
//!
//! Guarantees:
//! - Values keep their YAML type, but infinity and NaN become a text with [`NON_FINITE_PREFIX`].
//! - Keys of the first level stay as written.
//! - Keys of deeper levels are formatted from their YAML value: `0x10` becomes `16`, `yes` becomes
//!   `true`.

use serde_json::{Map, Value as Json};

use super::typed::FileReader;
use crate::config::NON_FINITE_PREFIX;
use crate::config::diagnostic::Code;
use crate::config::yaml::{ScalarValue, YamlId, YamlKind};

impl FileReader<'_, '_> {
    pub(super) fn read_first_level(&mut self, mapping: YamlId, json: &mut Map<String, Json>) {
        self.read_pairs(mapping, json, |reader, key| {
            reader.check_is_text(key);
            reader.key_text(key)
        });
    }

    fn read_pairs(
        &mut self,
        mapping: YamlId,
        json: &mut Map<String, Json>,
        read_key: fn(&mut Self, YamlId) -> String,
    ) {
        let tree = self.tree;
        for (key, value) in tree.pairs(mapping) {
            if tree.is_merge(key) {
                for merged in tree.merged_mappings(value) {
                    self.visit(merged, |reader, merged| reader.read_pairs(merged, json, read_key));
                }
                continue;
            }
            let mut name = String::new();
            self.visit(key, |reader, key| name = read_key(reader, key));
            self.visit(value, |reader, value| {
                let value = reader.read_json(value);
                json.insert(name, value);
            });
        }
    }

    fn read_json(&mut self, node: YamlId) -> Json {
        let tree = self.tree;
        match tree.kind(node) {
            YamlKind::Mapping(_) => {
                let mut map = Map::new();
                self.read_pairs(node, &mut map, Self::format_nested_key);
                Json::Object(map)
            }
            YamlKind::Sequence(_) => {
                let mut list = Vec::new();
                for item in tree.children(node) {
                    self.visit(*item, |reader, item| list.push(reader.read_json(item)));
                }
                Json::Array(list)
            }
            YamlKind::Scalar { .. } | YamlKind::Alias(_) => self.read_scalar(node),
        }
    }

    fn read_scalar(&mut self, node: YamlId) -> Json {
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
        let message = "no such number exists in JSON: /json answers 500 to what would return it";
        let (span, help) = (self.tree.span(node), "write a finite number, or quote the text");
        self.findings.add_with_help(Code::NotFinite, span, message, help);
        format!("{NON_FINITE_PREFIX}{value}")
    }

    fn check_is_text(&mut self, node: YamlId) {
        if let Some((_, ScalarValue::Binary(bytes))) = self.tree.scalar(node)
            && str::from_utf8(&bytes).is_err()
        {
            let message = "metadata is returned as JSON, which holds text and not these bytes";
            self.findings.add(Code::MetadataNotText, self.tree.span(node), message);
        }
    }

    fn format_nested_key(&mut self, key: YamlId) -> String {
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

/// Formats a float as Go does: below 1e-4 and from 1e6 on with an exponent of at least two digits.
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
