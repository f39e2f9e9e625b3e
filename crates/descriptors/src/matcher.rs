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

use super::header_name::HeaderName;
use super::path::PathSpelling;
use super::request::RequestAttributes;

/// A condition on one request header, as in Envoy's `HeaderMatcher`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeaderMatcher {
    /// The name of the header.
    pub name: HeaderName,
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
#[serde(try_from = "Written", into = "Written")]
#[schemars(with = "Written")]
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
struct Written {
    /// The expression, in RE2 syntax.
    regex: String,
}

impl TryFrom<Written> for RegexPattern {
    type Error = regex::Error;

    fn try_from(Written { regex }: Written) -> Result<Self, regex::Error> {
        // First compile the expression without the group: an unbalanced `)` in it could close the
        // group of the next line, and the result would be valid.
        Regex::new(&regex)?;
        let whole = Regex::new(&format!("^(?:{regex})$"))?;
        Ok(Self { text: regex, anchored: whole })
    }
}

impl From<RegexPattern> for Written {
    fn from(pattern: RegexPattern) -> Self {
        Self { regex: pattern.text }
    }
}

impl HeaderMatcher {
    pub(super) fn matches(&self, request: &RequestAttributes<'_>, path: PathSpelling) -> bool {
        let name = self.name.as_str();
        let header = (request.joined_header_values)(name).map(|value| path.spell(name, value));
        let value = match header {
            None if self.treat_missing_header_as_empty => Some(Cow::Borrowed("")),
            header => header,
        };
        if let Some(present) = self.present_match {
            return (value.is_some() == present) != self.invert_match;
        }
        match value {
            Some(value) => self.fits(&value) != self.invert_match,
            // If the header is missing, there is no value to compare, so `invert_match` inverts
            // only its presence.
            None => self.invert_match && self.string_match.is_none() && self.range_match.is_none(),
        }
    }

    fn fits(&self, value: &str) -> bool {
        let text = self.string_match.as_ref().is_none_or(|text| text.fits(value));
        let number =
            |range: Range| value.parse().is_ok_and(|n| (range.start..range.end).contains(&n));
        text && self.range_match.is_none_or(number)
    }
}

impl StringMatch {
    fn fits(&self, value: &str) -> bool {
        match self {
            Self::Exact(text) => value == text,
            Self::Prefix(text) => value.starts_with(text.as_str()),
            Self::Suffix(text) => value.ends_with(text.as_str()),
            Self::Contains(text) => value.contains(text.as_str()),
            Self::SafeRegex(pattern) => pattern.anchored.is_match(value),
        }
    }
}
