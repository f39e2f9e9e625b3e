//! Parses and validates the setting `hooks`.
//!
//! Guarantees:
//! - Every error message contains its position inside the setting.
//!
//! Not covered:
//! - The fields of a hook (see [`Hooks::parse`]).

use serde_json::Value as Json;

use super::value::{Shape, Value, block_schema};
use crate::hooks::Hooks;
use crate::hooks::filter_config::FilterConfigError;

impl Value for Hooks {
    const SHAPE: Shape = Shape::Block;

    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            [text] => parse_hooks(text).ok(),
            _ => None,
        }
    }

    fn accepts() -> String {
        "a list of hooks: name, domain, and lists of Envoy's actions as descriptors".to_owned()
    }

    fn show(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    fn schema() -> Json {
        block_schema::<Self>()
    }

    fn why(text: &str) -> Option<String> {
        parse_hooks(text).err()
    }
}

fn parse_hooks(text: &str) -> Result<Hooks, String> {
    Hooks::parse(text).map_err(|error| {
        let FilterConfigError { field, problem, fix } = error;
        // Without a path, the error concerns the whole setting.
        match field.as_str() {
            "filter_config" => format!("{problem}; {fix}"),
            field => format!("at `{field}`: {problem}; {fix}"),
        }
    })
}
