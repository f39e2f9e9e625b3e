//! Fixes for values of a wrong type.
//!
//! Guarantees:
//! - Each fix names a value that the field accepts, if the user's value has a clear meaning.

use std::ops::RangeInclusive;

use super::TWO_LIMITS_FIX;
use super::field_name::FieldName;
use crate::concurrency::INCREASE;
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

const UNLIMITED_FIX: &str = "write `unlimited: true` instead of `requests_per_unit` and `unit`";
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
        ExpectedNode::Field(FieldName::OverloadedBy, LIST) => {
            Some("write a list, such as `overloaded_by: [429, 503]`".to_owned())
        }
        ExpectedNode::Field(FieldName::WarnAt, LIST) => {
            Some("write a list, such as `warn_at: [80%, 100%]`".to_owned())
        }
        ExpectedNode::Field(_, LIST) if is_mapping && tree.pairs(node).next().is_none() => {
            Some("remove it".to_owned())
        }
        ExpectedNode::Field(_, LIST) if is_mapping => {
            Some("put `- ` before its first key".to_owned())
        }
        ExpectedNode::Field(field, wanted) if is_list => for_list(tree, node, *field, wanted),
        ExpectedNode::Field(field, wanted @ (BOOL | COUNT)) => {
            tree.scalar(node).map(|scalar| for_scalar(tree.is_quoted(node), scalar, *field, wanted))
        }
        _ => None,
    }
}

/// Returns the fix for a scalar that is no boolean or count.
fn for_scalar(
    is_quoted: bool,
    (text, value): (&str, ScalarValue),
    field: FieldName,
    wanted: &str,
) -> String {
    let is_right = match wanted {
        BOOL => matches!(text, "true" | "false"),
        _ => text.parse::<u32>().is_ok_and(|count| range_of(field).contains(&count)),
    };
    match wanted {
        BOOL if field == FieldName::Unlimited => for_unlimited(text),
        _ if is_quoted && is_right => "remove the quotes".to_owned(),
        BOOL => for_bool(text, field.as_str()),
        _ => for_count(text, &value, field),
    }
}

fn for_bool(text: &str, name: &str) -> String {
    match is_true(text) {
        Some(is_true) => format!("write `{name}: {is_true}`"),
        None => format!("write `{name}: true`, or `{name}: false`"),
    }
}

/// Returns the fix for `unlimited`, which is valid only without the fields of a limit.
fn for_unlimited(text: &str) -> String {
    match is_true(text) {
        Some(true) => UNLIMITED_FIX.to_owned(),
        Some(false) => "remove it".to_owned(),
        None => format!("remove it, or {UNLIMITED_FIX}"),
    }
}

fn is_true(text: &str) -> Option<bool> {
    match &*text.to_lowercase() {
        "true" | "1" | "enabled" | "enable" | "active" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

/// Returns the counts that a field accepts in every file, whatever its other fields are.
fn range_of(field: FieldName) -> RangeInclusive<u32> {
    match field {
        FieldName::Status => 400..=599,
        FieldName::Increase => INCREASE,
        FieldName::Min => 1..=1000,
        _ => 1..=u32::MAX,
    }
}

/// Returns the fix for a list at a field with one value.
fn for_list(tree: &YamlTree<'_>, node: YamlId, field: FieldName, wanted: &str) -> Option<String> {
    let scalars = || tree.children(node).iter().filter_map(|item| tree.scalar(tree.target(*item)));
    if matches!(wanted, BOOL | COUNT) && field != FieldName::RequestsPerUnit {
        return scalars().next().map(|scalar| for_scalar(false, scalar, field, wanted));
    }
    let items = scalars();
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
        FieldName::Domain
        | FieldName::Name
        | FieldName::Colocate
        | FieldName::Body
        | FieldName::Model => lines.first().map(|line| format!("write one value: {line}")),
        // Only some texts are valid for other fields, and the items of the list may be others.
        _ => Some("write one value, without `[` and `]`".to_owned()),
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
    let range = range_of(field);
    match parse_count(text) {
        Some(count) if range.contains(&count) => return format!("write `{name}: {count}`"),
        _ => {}
    }
    let example = match field {
        FieldName::Status => 503,
        FieldName::Min | FieldName::LeaseHits => 1,
        FieldName::Max => 1000,
        _ => 100,
    };
    // The largest value of some fields depends on other fields.
    let has_maximum = !matches!(field, FieldName::Min | FieldName::LeaseHits);
    if matches!(value, ScalarValue::Int(number) if has_maximum && i64::from(*range.end()) < *number)
    {
        return format!("write at most `{name}: {}`", range.end());
    }
    format!("write a whole number, such as `{name}: {example}`")
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
        return Some(UNLIMITED_FIX.to_owned());
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
