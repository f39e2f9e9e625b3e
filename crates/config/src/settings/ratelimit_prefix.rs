//! The setting `compat.store.key_prefix`: the prefix of counter keys in envoyproxy/ratelimit's
//! format.
//!
//! Guarantees:
//! - Accepts any prefix up to 256 bytes without control characters.
//!
//! Not covered:
//! - Conflicts with other settings (see `super::conflicts`).

use serde_json::{Value as Json, json};

use super::value::{Value, quoted};

/// The length of the longest prefix, in bytes.
const LONGEST_PREFIX: usize = 256;

/// The prefix of counter keys in envoyproxy/ratelimit's format. It can be any text without control
/// characters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RatelimitKeyPrefix(String);

impl RatelimitKeyPrefix {
    /// Returns the prefix as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Value for RatelimitKeyPrefix {
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
