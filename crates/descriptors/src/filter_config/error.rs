//! Errors of the filter config.

use serde::de::DeserializeOwned;
use serde_json::Value;

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
    pub(crate) fn new(
        field: impl Into<String>,
        problem: impl Into<String>,
        fix: impl Into<String>,
    ) -> Self {
        Self { field: field.into(), problem: problem.into(), fix: fix.into() }
    }
}

/// Parses JSON. The error names the field in which it occurred.
pub(crate) fn parse_json<T: DeserializeOwned>(json: &str) -> Result<T, FilterConfigError> {
    // Actions are read from a parsed value: then an item with two actions is no syntax error.
    let value: Value = serde_json::from_str(json).map_err(|error| {
        let problem = format!("is no JSON: {}", without_position(&error));
        let fix = "write a `google.protobuf.Struct`";
        FilterConfigError::new("filter_config", problem, fix)
    })?;
    serde_path_to_error::deserialize(value)
        .map_err(|error| field_error(&error.path().to_string(), &without_position(error.inner())))
}

/// Returns the message without line and column, which refer to JSON that a program generated.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
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
        return FilterConfigError::new(field, problem, field_choice(known));
    }
    if let Some((name, known)) = named("unknown variant") {
        return FilterConfigError::new(block, format!("is `{name}`"), field_choice(known));
    }
    match text.rsplit_once("expected ") {
        Some((found, expected)) => {
            let found = found.trim_end_matches([' ', ',']);
            FilterConfigError::new(block, problem(found), expectation(block, expected))
        }
        None => FilterConfigError::new(block, format!("is invalid: {text}"), "correct the value"),
    }
}

/// Returns the problem of serde's text for a value of a wrong type.
fn problem(found: &str) -> String {
    let value =
        found.strip_prefix("invalid type: ").or_else(|| found.strip_prefix("invalid value: "));
    let Some(value) = value else { return list_problem(found) };
    match value {
        "null" | "unit value" => "has no value".to_owned(),
        "map" => "is a block of fields".to_owned(),
        "sequence" => "is a list".to_owned(),
        "unit variant" => "has no fields".to_owned(),
        _ => match value.split_once(' ') {
            Some(("string", text)) => format!("is the text {text}"),
            Some(("integer" | "boolean", value)) => format!("is {value}"),
            Some(("floating", value)) => format!("is {}", value.trim_start_matches("point ")),
            _ => "is invalid".to_owned(),
        },
    }
}

/// Returns the problem of a list in the place of a block, or of a value with a rule of its own.
fn list_problem(found: &str) -> String {
    match found.strip_prefix("invalid length ") {
        Some(number) if number.bytes().all(|byte| byte.is_ascii_digit()) => "is a list".to_owned(),
        _ => format!("has an {found}"),
    }
}

/// Returns the fix for a value of a wrong type. `expected` is serde's text.
fn expectation(block: &str, expected: &str) -> String {
    let name = block.rsplit('.').next().unwrap_or(block);
    if expected.starts_with("struct variant") {
        return format!("write `{name}: {{}}`, with the fields of this action");
    }
    let written = match expected {
        "u8" | "u16" | "u32" | "u64" | "i64" | "usize" => "a whole number",
        "f32" | "f64" => "a number",
        "a string" => "a text",
        "a boolean" => "`true` or `false`",
        "a sequence" => "a list",
        "a map" => "fields",
        "map with a single key" | "string or map" => "one action, such as `remote_address: {}`",
        _ if expected.starts_with("struct ") => "the fields of this block",
        _ if expected.starts_with("enum ") || expected.contains(" variant") => {
            "one of the documented words"
        }
        other => other,
    };
    format!("write {written}")
}

/// Returns the fix with the list of names in `, expected one of …`.
fn field_choice(expected: &str) -> String {
    let known = expected.trim_start_matches([',', ' ']);
    match known.strip_prefix("expected ") {
        Some(known) => format!("write {known}"),
        None => "remove it: this block has no fields".to_owned(),
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}
