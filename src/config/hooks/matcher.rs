//! Envoy's header matchers.
//!
//! Guarantees: a missing header matches nothing but `present_match: false`, an inverted presence,
//! or where it is to be treated as empty; several lines of one name are one text, joined by commas.
//! Leaves out: the matchers that Envoy has deprecated (`exact_match` and its like).

use std::borrow::Cow;

use regex::Regex;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Attributes;

/// What a header must be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HeaderMatcher {
    /// Which header.
    pub name: String,
    /// Its text. Without this and the next two it only has to be there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub string_match: Option<StringMatch>,
    /// Its number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range_match: Option<Range>,
    /// Whether it must be there, or must not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present_match: Option<bool>,
    /// The opposite.
    #[serde(default)]
    pub invert_match: bool,
    /// A missing header is one without text.
    #[serde(default)]
    pub treat_missing_header_as_empty: bool,
}

/// From `start` to below `end`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// The least.
    pub start: i64,
    /// One more than the most.
    pub end: i64,
}

/// What a text must be: exactly one of these.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum StringMatch {
    /// The same.
    Exact(String),
    /// Begins so.
    Prefix(String),
    /// Ends so.
    Suffix(String),
    /// Has it in it.
    Contains(String),
    /// All of it matches a regular expression.
    SafeRegex(Pattern),
}

/// A regular expression.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Written", into = "Written")]
#[schemars(with = "Written")]
pub struct Pattern {
    text: String,
    whole: Regex,
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

/// A regular expression as it is written.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Pattern")]
struct Written {
    /// In the syntax of RE2.
    regex: String,
}

impl TryFrom<Written> for Pattern {
    type Error = regex::Error;

    fn try_from(Written { regex }: Written) -> Result<Self, regex::Error> {
        // Once by itself: one that closes the group too early must not pass.
        Regex::new(&regex)?;
        let whole = Regex::new(&format!("^(?:{regex})$"))?;
        Ok(Self { text: regex, whole })
    }
}

impl From<Pattern> for Written {
    fn from(pattern: Pattern) -> Self {
        Self { regex: pattern.text }
    }
}

impl HeaderMatcher {
    /// Whether the request's header is so.
    pub(super) fn matches(&self, request: &Attributes<'_>) -> bool {
        let header = (request.joined)(&self.name.to_ascii_lowercase());
        let value = match header {
            None if self.treat_missing_header_as_empty => Some(Cow::Borrowed("")),
            header => header,
        };
        if let Some(present) = self.present_match {
            return (value.is_some() == present) != self.invert_match;
        }
        match value {
            Some(value) => self.fits(&value) != self.invert_match,
            // Only presence can be inverted where there is nothing to compare.
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
            Self::SafeRegex(pattern) => pattern.whole.is_match(value),
        }
    }
}
