//! Parses settings that are pairs of names and texts, or rules that turn parts of a statistic's
//! name into tags.
//!
//! Guarantees:
//! - An empty text means no pairs.
//! - Names are nonempty, and regular expressions are valid.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

use super::value::{Shape, Value, quoted};

/// Pairs of a name and a text, in the order of the input: `a=b,c=d`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TextPairs(pub Vec<(String, String)>);

impl Value for TextPairs {
    fn read(texts: &[&str]) -> Option<Self> {
        let [text] = texts else { return None };
        if text.is_empty() {
            return Some(Self::default());
        }
        let pair = |pair: &str| {
            let (name, text) = pair.split_once('=')?;
            (!name.is_empty()).then(|| (name.to_owned(), text.to_owned()))
        };
        text.split(',').map(pair).collect::<Option<_>>().map(Self)
    }
    fn accepts() -> String {
        "name=text pairs with commas between them, or nothing for none".to_owned()
    }
    fn show(&self) -> String {
        let pairs: Vec<_> = self.0.iter().map(|(name, text)| format!("{name}={text}")).collect();
        quoted(&pairs.join(","))
    }
    fn schema() -> Json {
        json!({"type": "string", "pattern": "^([^=,]+=[^,]*(,[^=,]+=[^,]*)*)?$"})
    }
}

/// Names and values of headers that this process sends. The values may be credentials, so they are
/// never printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct OutgoingHeaders(pub Vec<(String, String)>);

impl fmt::Debug for OutgoingHeaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

impl Value for OutgoingHeaders {
    const HIDDEN: bool = true;
    fn read(texts: &[&str]) -> Option<Self> {
        TextPairs::read(texts).map(|TextPairs(pairs)| Self(pairs))
    }
    fn accepts() -> String {
        TextPairs::accepts()
    }
    fn show(&self) -> String {
        quoted(if self.0.is_empty() { "" } else { "(set, not shown)" })
    }
    fn hides_secret(&self) -> bool {
        !self.0.is_empty()
    }
    fn schema() -> Json {
        TextPairs::schema()
    }
}

/// The rules that rename DogStatsD statistics. Only the first rule whose pattern matches is
/// applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mogrifiers(pub Vec<Mogrifier>);

/// A rule that turns parts of a statistic's name into tags.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mogrifier {
    /// The regular expression. The rule applies if it matches anywhere in the name.
    pub pattern: String,
    /// The new name of the statistic. `$1` is the text of the pattern's first group.
    pub name: String,
    /// The names and values of the tags. Values may contain `$1` as in `name`.
    #[serde(default)]
    pub tags: Vec<(String, String)>,
}

impl Value for Mogrifiers {
    const SHAPE: Shape = Shape::Block;

    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            [text] => parse_mogrifiers(text).ok(),
            _ => None,
        }
    }
    fn accepts() -> String {
        "a list of pattern, name and tags, pairs of texts".to_owned()
    }
    fn show(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
    fn schema() -> Json {
        let text = json!({"type": "string", "minLength": 1});
        let pair = json!({"type": "array", "items": text, "minItems": 2, "maxItems": 2});
        let tags = json!({"type": "array", "items": pair});
        let rule = json!({
            "type": "object", "additionalProperties": false, "required": ["pattern", "name"],
            "properties": {"pattern": text, "name": text, "tags": tags},
        });
        json!({"type": "array", "items": rule})
    }
    fn why(text: &str) -> Option<String> {
        parse_mogrifiers(text).err()
    }
}

fn parse_mogrifiers(text: &str) -> Result<Mogrifiers, String> {
    let rules: Mogrifiers = serde_json::from_str(text).map_err(|error| error.to_string())?;
    for (at, rule) in rules.0.iter().enumerate() {
        check_mogrifier(rule).map_err(|what| format!("at `[{at}]`: {what}"))?;
    }
    Ok(rules)
}

fn check_mogrifier(rule: &Mogrifier) -> Result<(), String> {
    let has_empty_tag = rule.tags.iter().any(|(name, text)| name.is_empty() || text.is_empty());
    if rule.pattern.is_empty() || rule.name.is_empty() || has_empty_tag {
        return Err("`pattern`, `name` and the texts of tags must not be empty".to_owned());
    }
    regex::Regex::new(&rule.pattern).map_err(|error| error.to_string()).map(drop)
}
