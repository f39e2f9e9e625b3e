//! Envoy's header matchers.
//!
//! Guarantees:
//! - A missing header matches `present_match: false`.
//! - A missing header matches `invert_match` without `string_match` and `range_match`.
//! - With `treat_missing_header_as_empty`, a missing header is an empty text.
//!
//! Not covered:
//! - Deprecated matchers such as `exact_match`.

use std::borrow::Cow;

use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::RequestAttributes;

/// A condition on one request header, as in Envoy's `HeaderMatcher`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeaderMatcher {
    /// The name of the header.
    pub name: String,
    /// The condition on the text of the header. Without `string_match`, `range_match` and
    /// `present_match`, the header must be present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub string_match: Option<StringMatch>,
    /// The range that must contain the integer value of the header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range_match: Option<Range>,
    /// `true` if the header must be present, `false` if it must be missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present_match: Option<bool>,
    /// `true` to invert the result of the other conditions.
    #[serde(default)]
    pub invert_match: bool,
    /// `true` to treat a missing header as an empty text.
    #[serde(default)]
    pub treat_missing_header_as_empty: bool,
}

/// A range of integers, from `start` to `end` (exclusive).
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The smallest integer.
    pub start: i64,
    /// The largest integer plus one.
    pub end: i64,
}

/// The condition on the text of a header: exactly one of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StringMatch {
    /// The text is equal to this one.
    Exact(String),
    /// The text starts with this prefix.
    Prefix(String),
    /// The text ends with this suffix.
    Suffix(String),
    /// The text contains this substring.
    Contains(String),
    /// The whole text matches this regular expression.
    SafeRegex(RegexPattern),
}

/// A compiled regular expression, which must match the whole text.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "RegexYaml", into = "RegexYaml")]
#[schemars(with = "RegexYaml")]
pub struct RegexPattern {
    text: String,
    anchored: Regex,
}

impl PartialEq for RegexPattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

/// A regular expression as written in `server.yaml`.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Pattern")]
struct RegexYaml {
    /// The expression, in RE2 syntax.
    regex: String,
}

impl TryFrom<RegexYaml> for RegexPattern {
    type Error = regex::Error;

    fn try_from(RegexYaml { regex }: RegexYaml) -> Result<Self, regex::Error> {
        // Validate the expression alone: in the next line, an unbalanced `)` could close the group.
        Regex::new(&regex)?;
        let anchored = Regex::new(&format!("^(?:{regex})$"))?;
        Ok(Self { text: regex, anchored })
    }
}

impl From<RegexPattern> for RegexYaml {
    fn from(pattern: RegexPattern) -> Self {
        Self { regex: pattern.text }
    }
}

impl HeaderMatcher {
    pub(super) fn matches(&self, request: &RequestAttributes<'_>) -> bool {
        let header = (request.joined_header_values)(&self.name.to_ascii_lowercase());
        let empty = self.treat_missing_header_as_empty.then_some(Cow::Borrowed(""));
        let value = header.or(empty);
        if let Some(present) = self.present_match {
            return (value.is_some() == present) != self.invert_match;
        }
        match value {
            Some(value) => self.matches_value(&value) != self.invert_match,
            // A missing header has no value to compare, so `invert_match` inverts only its
            // presence.
            None => self.invert_match && self.string_match.is_none() && self.range_match.is_none(),
        }
    }

    fn matches_value(&self, value: &str) -> bool {
        let matches_text = self.string_match.as_ref().is_none_or(|text| text.matches(value));
        let is_in_range =
            |range: Range| value.parse().is_ok_and(|n| (range.start..range.end).contains(&n));
        matches_text && self.range_match.is_none_or(is_in_range)
    }
}

impl StringMatch {
    fn matches(&self, value: &str) -> bool {
        match self {
            Self::Exact(text) => value == text,
            Self::Prefix(text) => value.starts_with(text.as_str()),
            Self::Suffix(text) => value.ends_with(text.as_str()),
            Self::Contains(text) => value.contains(text.as_str()),
            Self::SafeRegex(pattern) => pattern.anchored.is_match(value),
        }
    }
}
