//! Errors of the filter config.

use serde::de::DeserializeOwned;
use serde_json::error::Category;

/// An invalid field of the filter config.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{field}` {problem}; {fix}")]
pub struct FilterConfigError {
    /// The path of the field, such as `service.address` or `descriptors[0][1]`.
    pub field: String,
    /// The problem: a verb with its object.
    pub problem: String,
    /// The suggested fix.
    pub fix: String,
}

impl FilterConfigError {
    pub(super) fn new(
        field: impl Into<String>,
        problem: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { field: field.into(), problem: problem.into(), fix: fix.into() }
    }
}

/// Parses JSON. The error names the field in which it occurred.
pub(super) fn parse_json<T: DeserializeOwned>(json: &str) -> Result<T, FilterConfigError> {
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let parsed = serde_path_to_error::deserialize(&mut deserializer);
    let value = parsed.map_err(|error| to_error(&error.path().to_string(), error.inner()))?;
    deserializer.end().map_err(|error| to_error("", &error))?;
    Ok(value)
}

fn to_error(path: &str, error: &serde_json::Error) -> FilterConfigError {
    let text = error.to_string();
    // The position refers to JSON that Envoy generated from the user's YAML.
    let text = text.split(" at line ").next().unwrap_or_default();
    if matches!(error.classify(), Category::Syntax | Category::Eof) {
        let fix = "write a `google.protobuf.Struct`";
        return FilterConfigError::new("filter_config", format!("is no JSON: {text}"), fix);
    }
    field_error(path, text)
}

fn field_error(path: &str, text: &str) -> FilterConfigError {
    let path = path.trim_end_matches(['.', '?']);
    let block = if path.is_empty() { "filter_config" } else { path };
    let named = |prefix: &str| {
        let rest = text.strip_prefix(prefix)?.strip_prefix(" `")?;
        rest.split_once('`')
    };
    if let Some((name, _)) = named("missing field") {
        return FilterConfigError::new(join(path, name), "is missing", "add it");
    }
    if let Some((name, known)) = named("unknown field") {
        let is_named = path == name || path.ends_with(&format!(".{name}"));
        let (field, problem) = match name {
            "" => (block.to_owned(), "has a field without a name"),
            _ if is_named => (path.to_owned(), "is an unknown field"),
            _ => (join(path, name), "is an unknown field"),
        };
        return FilterConfigError::new(field, problem, format!("write {}", choice(known)));
    }
    if let Some((name, known)) = named("unknown variant") {
        let fix = format!("write {}", choice(known));
        return FilterConfigError::new(block, format!("is `{name}`"), fix);
    }
    match text.rsplit_once("expected ") {
        Some((problem, expected)) => {
            let problem = problem.trim_end_matches([' ', ',']);
            let is_integer = matches!(expected, "u16" | "i64");
            let expected = if is_integer { "a whole number" } else { expected };
            FilterConfigError::new(block, format!("has an {problem}"), format!("write {expected}"))
        }
        None => FilterConfigError::new(block, format!("is invalid: {text}"), "correct the value"),
    }
}

/// Returns the list of names in `, expected one of …`.
fn choice(expected: &str) -> &str {
    let known = expected.trim_start_matches([',', ' ']);
    known.strip_prefix("expected ").unwrap_or("the name of a field")
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
