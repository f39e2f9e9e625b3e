//! Fixes for values of a wrong type.
//!
//! Guarantees:
//! - Each fix names a value that the field accepts, if the user's value has a clear meaning.

use super::TWO_LIMITS_FIX;
use super::field_name::FieldName;
use crate::resolve::keywords;
use crate::yaml::{ScalarValue, YamlId, YamlKind, YamlTree};

/// The most values of a list that a fix repeats.
const MAX_SHOWN_VALUES: usize = 3;

/// The node that the reader expects, and the words for its value.
pub(super) enum ExpectedNode {
    File,
    Item(&'static str),
    Field(FieldName, &'static str),
}

pub(super) const LIST: &str = "a list";
pub(super) const BOOL: &str = "a bool (true or false)";
pub(super) const COUNT: &str = "a whole number from 0 to 4294967295 (uint32)";

/// Returns the fix for a value that is not what the field wants.
pub(super) fn for_mismatch(
    tree: &YamlTree<'_>,
    node: YamlId,
    wanted: &ExpectedNode,
) -> Option<String> {
    let kind = tree.kind(node);
    let is_mapping = matches!(kind, YamlKind::Mapping(_));
    let is_list = matches!(kind, YamlKind::Sequence(_));
    match wanted {
        ExpectedNode::File => Some("start with `domain: …` and `descriptors: …`".to_owned()),
        ExpectedNode::Field(FieldName::RateLimit, _) if is_list => Some(TWO_LIMITS_FIX.to_owned()),
        ExpectedNode::Field(_, LIST) if is_mapping => {
            Some("put `- ` before its first key".to_owned())
        }
        ExpectedNode::Field(field, _) if is_list => for_list(tree, node, *field),
        ExpectedNode::Field(_, BOOL | COUNT)
            if tree.is_quoted(node) && is_plain_scalar(tree, node) =>
        {
            Some("remove the quotes".to_owned())
        }
        ExpectedNode::Field(field, BOOL) => {
            let name = field.as_str();
            tree.scalar(node).map(|(text, _)| {
                let text = text.to_lowercase();
                let is_true = ["1", "enabled", "enable", "active"].contains(&text.as_str());
                if is_true {
                    format!("write `{name}: true`")
                } else {
                    format!("write `{name}: true`, or `{name}: false`")
                }
            })
        }
        ExpectedNode::Field(field, COUNT) => {
            tree.scalar(node).map(|(text, value)| for_count(text, &value, *field))
        }
        _ => None,
    }
}

/// Returns `true` for a quoted text that is a number or a boolean without its quotes.
fn is_plain_scalar(tree: &YamlTree<'_>, node: YamlId) -> bool {
    tree.scalar(node)
        .is_some_and(|(text, _)| text.parse::<u32>().is_ok() || matches!(text, "true" | "false"))
}

/// Returns the fix for a list at a field with one value.
fn for_list(tree: &YamlTree<'_>, node: YamlId, field: FieldName) -> Option<String> {
    let items = tree.children(node).iter().filter_map(|item| tree.scalar(tree.target(*item)));
    let lines: Vec<_> = items
        .filter(|(text, _)| !text.is_empty())
        .take(MAX_SHOWN_VALUES)
        .map(|(text, _)| format!("`{}: {}`", field.as_str(), quoted_if_needed(&shortened(text))))
        .collect();
    match field {
        FieldName::Value if !lines.is_empty() => {
            Some(format!("write a descriptor for each value: {}", lines.join(", ")))
        }
        FieldName::Value => Some("write a descriptor for each value".to_owned()),
        FieldName::Key => Some(
            "write one key; for further entries of a descriptor, nest `descriptors`".to_owned(),
        ),
        FieldName::Unit | FieldName::RequestsPerUnit | FieldName::Per => {
            Some(TWO_LIMITS_FIX.to_owned())
        }
        _ => lines.first().map(|line| format!("write one value: {line}")),
    }
}

fn quoted_if_needed(text: &str) -> String {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-./".contains(&byte))
        && !text.starts_with('-');
    if is_plain { text.to_owned() } else { format!("'{}'", text.replace('\'', "''")) }
}

/// Returns the fix for a value of a count that is not a number from 0 to 4294967295.
fn for_count(text: &str, value: &ScalarValue, field: FieldName) -> String {
    let name = field.as_str();
    if let Some(fix) = (field == FieldName::RequestsPerUnit).then(|| for_requests(text)).flatten() {
        return fix;
    }
    if matches!(value, ScalarValue::Int(number) if 0 < *number) {
        return format!("write at most `{name}: {}`", u32::MAX);
    }
    match parse_count(text) {
        Some(count) => format!("write `{name}: {count}`"),
        None => format!("write a whole number, such as `{name}: 100`"),
    }
}

/// Returns the fix for `unlimited`, -1, and rates such as `10r/s`.
fn for_requests(text: &str) -> Option<String> {
    const NO_LIMIT: [&str; 12] = [
        "unlimited",
        "infinite",
        "infinity",
        "inf",
        "-1",
        "∞",
        "none",
        "never",
        "no",
        "off",
        "max",
        "unbounded",
    ];
    let lower = text.trim().to_lowercase();
    if NO_LIMIT.contains(&lower.as_str()) {
        return Some(
            "write `unlimited: true` instead of `requests_per_unit` and `unit`".to_owned(),
        );
    }
    let (count, unit) = lower.split_once('/')?;
    let count = parse_count(count.trim_end_matches(|c: char| c.is_ascii_alphabetic() && c != 'k'))?;
    let unit = keywords::unit_of(unit.trim())?;
    Some(format!("write `requests_per_unit: {count}` and `unit: {unit}`"))
}

/// Returns the number that a text such as `1k`, `1,000` or `10 requests` means.
fn parse_count(text: &str) -> Option<u32> {
    let text = text.trim().to_lowercase().replace([',', '_', '\'', ' '], "");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let factor = match suffix {
        "" | "requests" | "request" | "req" | "r" | "hits" => 1,
        "k" => 1000,
        "m" => 1_000_000,
        _ => return None,
    };
    number.parse::<u32>().ok()?.checked_mul(factor)
}

/// Returns the first line of a text, of at most 40 characters.
pub(super) fn shortened(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let start: String = line.chars().take(40).collect();
    if start.len() < text.len() { format!("{start}…") } else { start }
}
