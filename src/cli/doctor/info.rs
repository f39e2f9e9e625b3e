//! The reply of Redis to `INFO`.
//!
//! Guarantees:
//! - Lines that are no fields are ignored.

use std::collections::BTreeMap;

/// The fields of the reply, by name.
#[derive(Debug)]
pub(super) struct RedisInfo(BTreeMap<String, String>);

impl RedisInfo {
    pub(super) fn parse(text: &str) -> Self {
        let pairs = text.lines().filter_map(|line| line.trim_end().split_once(':'));
        Self(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }
}
