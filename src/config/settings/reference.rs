//! The prefix of the reference's keys.
//!
//! Guarantees: every prefix that the reference takes and that a person writes.
//! Leaves out: what it has to do with other settings ([`super::together`]).

use serde_json::{Value as Json, json};

use super::value::{Value, quoted};

/// The longest prefix, in bytes: above what anybody writes.
const LONGEST_PREFIX: usize = 256;

/// What each of the reference's keys begins with: any text, for the reference takes any.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReferencePrefix(String);

impl ReferencePrefix {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Value for ReferencePrefix {
    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            [text] if text.len() <= LONGEST_PREFIX && !text.contains(char::is_control) => {
                Some(Self((*text).to_owned()))
            }
            _ => None,
        }
    }
    fn accepts() -> String {
        "up to 256 bytes without control characters".to_owned()
    }
    fn show(&self) -> String {
        quoted(&self.0)
    }
    fn schema() -> Json {
        json!({"type": "string", "maxLength": LONGEST_PREFIX})
    }
}
