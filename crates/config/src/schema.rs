//! The JSON Schema of a limits file, with which editors complete and validate the file.
//!
//! Guarantees:
//! - Derived from the parser's types and keyword lists, so that each completion is valid.
//! - A key in a block where it has no effect is marked as an error.
//!
//! Not covered:
//! - Problems that depend on several rules or files (see the command `validate`).
//! - Anchors, aliases and merge keys, which editors expand first.

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use super::raw::File;

/// Returns the JSON Schema of a limits file.
#[must_use]
pub fn limits_schema() -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<File>();
    schema.insert("title".to_owned(), json!("Limits of one domain, for Sluicegate"));
    schema.to_value()
}
