//! Tests that the generated pages of `docs/reference` match the code.
//!
//! Guarantees:
//! - Each page equals its generated text. `UPDATE=1` writes the pages.
//!
//! Not covered:
//! - `docs/reference/settings.md` (see `crate::config::settings::shipped`).

mod commands;
mod findings;
mod limits;
mod metrics;

use std::fs;

use super::root;

/// Compares a page with its generated text. With `UPDATE` set, writes the page first.
fn assert_page(name: &str, wanted: &str) {
    let path = root().join(name);
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, wanted).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, wanted, "{name} is stale: write it with `UPDATE=1 cargo test docs::`");
}
