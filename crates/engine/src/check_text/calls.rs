//! Formats checks for an engine.

use super::{short_entries, short_text};
use crate::Engine;

impl Engine {
    /// Returns the first entries of a descriptor as logs and admin pages show them.
    #[must_use]
    pub fn redacted_entries(&self, entries: &[(&str, &str)]) -> Vec<(String, String)> {
        short_entries(entries, self.policy.descriptor_values)
    }

    /// Returns the start of a text, such as a domain, as logs and admin pages show it.
    #[must_use]
    pub fn short_text(&self, text: &str) -> String {
        short_text(text).into_owned()
    }
}
