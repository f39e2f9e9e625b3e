//! Writes suggested limits as a limits file.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::kernel::units::Unit;

/// The limit of one list of descriptor keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuggestedLimit {
    /// The requests per unit.
    pub requests: u32,
    /// The remark beside the limit.
    pub comment: String,
}

#[derive(Default)]
struct Node<'k> {
    limit: Option<&'k SuggestedLimit>,
    children: BTreeMap<&'k str, Self>,
}

/// Writes a limits file of `domain`: for each list of keys, a rule with a bare key on each level.
#[must_use]
pub fn write_limits<'k>(
    domain: &str,
    unit: Unit,
    limits: impl IntoIterator<Item = (&'k [String], &'k SuggestedLimit)>,
) -> String {
    let mut root = Node::default();
    for (keys, limit) in limits {
        let mut node = &mut root;
        for key in keys {
            node = node.children.entry(key).or_default();
        }
        node.limit = Some(limit);
    }
    let mut text = format!("domain: {}\ndescriptors:\n", quote(domain));
    write_children(&root, unit, 0, &mut text);
    text
}

// The depth is the number of entries of a descriptor, at most 256 in a recording.
fn write_children(node: &Node<'_>, unit: Unit, depth: usize, text: &mut String) {
    let indent = "    ".repeat(depth);
    for (key, child) in &node.children {
        let _infallible = writeln!(text, "{indent}  - key: {}", quote(key));
        if let Some(SuggestedLimit { requests, comment }) = child.limit {
            let unit = unit_name(unit);
            let _infallible = writeln!(
                text,
                "{indent}    # {comment}\n\
                 {indent}    rate_limit: {{unit: {unit}, requests_per_unit: {requests}}}",
            );
        }
        if !child.children.is_empty() {
            let _infallible = writeln!(text, "{indent}    descriptors:");
            write_children(child, unit, depth + 1, text);
        }
    }
}

/// Returns the name of a unit in a limits file.
#[must_use]
pub const fn unit_name(unit: Unit) -> &'static str {
    match unit {
        Unit::Second => "second",
        Unit::Minute => "minute",
        Unit::Hour => "hour",
        Unit::Day => "day",
        Unit::Week => "week",
        Unit::Month => "month",
        Unit::Year => "year",
    }
}

/// Quotes a text for YAML. JSON strings are YAML, except the character U+007F and above, which
/// `serde_json` does not escape and YAML accepts.
fn quote(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
    let words = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let starts_with_letter = text.starts_with(|first: char| first.is_ascii_alphabetic());
    if starts_with_letter
        && text.bytes().all(is_plain)
        && !words.contains(&&*text.to_ascii_lowercase())
    {
        return text.to_owned();
    }
    serde_json::Value::from(text).to_string()
}
