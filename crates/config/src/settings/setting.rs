//! The description of one setting: its names, its documentation and its valid values.
//!
//! Guarantees:
//! - The flag and the variable of a setting follow from its name.
//!
//! Not covered:
//! - The values of settings (see [`mod@super::table`]).

use super::value::Shape;

/// The prefix of the environment variable of every setting.
pub const PREFIX: &str = "SLUICEGATE_";

/// The description of one setting: its names, its documentation and its valid values.
#[derive(Debug)]
pub struct Setting {
    /// The path of keys in `server.yaml`, with dots: `store.key_prefix`.
    pub name: &'static str,
    /// The flag, without its two dashes: `store-key-prefix`.
    pub flag: String,
    /// The environment variable: `SLUICEGATE_STORE_KEY_PREFIX`.
    pub variable: String,
    /// The documentation of the setting, for users.
    pub doc: String,
    /// The unit or the kind of the value, such as `bytes` or `path`.
    pub unit: &'static str,
    /// A description of the valid values, as part of a sentence.
    pub accepts: String,
    /// The number of texts of the value.
    pub shape: Shape,
    /// All valid texts, if they are a closed list; otherwise empty.
    pub choices: &'static [&'static str],
    /// `true` if the value is a secret and must not be printed.
    pub hidden: bool,
    pub(super) is_scalar: bool,
    pub(super) schema: serde_json::Value,
    pub(super) masked: fn(&str) -> String,
    pub(super) why: fn(&str) -> Option<String>,
}

impl Setting {
    /// Returns the name of the block that contains the setting, with dots; empty for none.
    #[must_use]
    pub fn block(&self) -> &'static str {
        self.name.rsplit_once('.').map_or("", |(block, _)| block)
    }

    /// Returns the key inside of the block.
    #[must_use]
    pub fn key(&self) -> &'static str {
        self.name.rsplit_once('.').map_or(self.name, |(_, key)| key)
    }

    /// Returns `true` if the value in `server.yaml` is taken as written, even if it looks like a
    /// number.
    pub(super) fn is_literal_text(&self) -> bool {
        !self.is_scalar && self.shape != Shape::Block
    }
}
