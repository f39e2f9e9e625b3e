//! Parses and validates the setting `hooks`.
//!
//! Guarantees:
//! - Each hook has a unique name, a domain, and at least one action for each descriptor.
//! - Every error message contains its position inside the setting.

use std::collections::HashSet;

use serde_json::Value as Json;

use super::value::{Shape, Value};
use crate::config::hooks::{Hook, Hooks};

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
        let settings = schemars::generate::SchemaSettings::draft2020_12()
            .with(|settings| settings.inline_subschemas = true);
        let schema = settings.into_generator().into_root_schema_for::<Self>();
        let mut schema = schema.to_value();
        if let Some(fields) = schema.as_object_mut() {
            fields.retain(|field, _| field != "$schema" && field != "title");
        }
        schema
    }

    fn why(text: &str) -> Option<String> {
        parse_hooks(text).err()
    }
}

fn parse_hooks(text: &str) -> Result<Hooks, String> {
    let mut json = serde_json::Deserializer::from_str(text);
    let hooks: Hooks = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        format!("at `{}`: {}", error.path(), message_without_position(error.inner()))
    })?;
    let mut names = HashSet::new();
    for (at, hook) in hooks.0.iter().enumerate() {
        check_hook(hook, &mut names).map_err(|what| format!("at `[{at}]`: {what}"))?;
    }
    Ok(hooks)
}

/// Returns the error message without line and column: they refer to JSON that was generated from
/// the user's YAML.
fn message_without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or(&text).to_owned()
}

fn check_hook<'h>(hook: &'h Hook, names: &mut HashSet<&'h str>) -> Result<(), String> {
    if hook.name.is_empty() {
        return Err("the hook has no `name`".to_owned());
    }
    if !names.insert(&hook.name) {
        return Err(format!("another hook has the name `{}`", hook.name));
    }
    if hook.domain.is_empty() {
        return Err("the hook has no `domain`".to_owned());
    }
    if hook.descriptors.is_empty() || hook.descriptors.iter().any(Vec::is_empty) {
        return Err("`descriptors` is empty, or a descriptor has no action".to_owned());
    }
    Ok(())
}
