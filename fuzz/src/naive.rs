//! A second, simple rule lookup: joined text, a scan of each level, and recursion for stars.
//!
//! It follows the description of the limits language and shares no code with the service. The tree
//! is defined here, and the service reads it as YAML.

use std::fmt::Write as _;

/// A node of a limits file.
pub struct Node {
    /// `key`.
    pub key: &'static str,
    /// `value`; empty if the node has none.
    pub value: &'static str,
    /// `requests_per_unit`, which identifies a rule; `None` for a node without a limit.
    pub requests: Option<u32>,
    /// `share_threshold`.
    pub share_threshold: bool,
    /// `descriptors`.
    pub children: &'static [Node],
}

const fn node(key: &'static str, value: &'static str, requests: u32) -> Node {
    Node { key, value, requests: Some(requests), share_threshold: false, children: &[] }
}

const fn shared(key: &'static str, value: &'static str, requests: u32) -> Node {
    Node { share_threshold: true, ..node(key, value, requests) }
}

const fn with_children(node: Node, children: &'static [Node]) -> Node {
    Node { children, ..node }
}

const fn without_limit(key: &'static str, value: &'static str) -> Node {
    Node { requests: None, ..node(key, value, 0) }
}

/// Names that have surprised users.
pub const TRICKY: &[Node] = &[
    // A key alone, an exact value, and a node without a limit.
    node("k", "", 1001),
    node("k", "v", 1002),
    without_limit("k", "free"),
    // Ambiguous when key and value are joined: `k_` may be `k` with an empty value.
    node("k_", "", 1003),
    node("a", "b_c", 1004),
    node("a_b", "d", 1005),
    // Stars in values: the first match wins, not the longest. A longer key also matches.
    node("w", "x*", 1006),
    node("w", "x*y", 1007),
    node("w", "*", 1008),
    node("w", "", 1009),
    node("m", "a*b*c", 1010),
    node("m", "**", 1011),
    // Stars in keys also match the value.
    node("q*", "", 1012),
    shared("*z", "", 1013),
    // One counter for all matches of a pattern.
    shared("s", "*", 1014),
    shared("t", "p*", 1015),
    node("t", "p*q", 1016),
    // Levels: each has its own rule, without backtracking.
    with_children(
        node("n", "", 1020),
        &[
            node("k", "", 1021),
            with_children(
                shared("k", "v*", 1022),
                &[shared("s", "*", 1023), node("s", "1", 1024), without_limit("k", "")],
            ),
            with_children(without_limit("k", "v"), &[node("deep", "", 1025)]),
        ],
    ),
    with_children(node("n", "v", 1030), &[node("k", "only", 1031)]),
    with_children(shared("n", "p*", 1040), &[shared("n", "p*", 1041)]),
    // Punctuation, and characters of several bytes.
    node("é", "ü*ß", 1050),
    node("sp ace", "a.b/c", 1051),
    node("_", "", 1052),
    node("_", "_", 1053),
    node("__", "_", 1054),
];

/// The domain of [`TRICKY`].
pub const DOMAIN: &str = "d";

/// [`TRICKY`] as a limits file, with limits per day.
#[must_use]
pub fn yaml() -> String {
    let mut text = format!("{{domain: {DOMAIN}, descriptors: [");
    write_level(&mut text, TRICKY);
    text + "]}"
}

fn write_level(text: &mut String, level: &[Node]) {
    for Node { key, value, requests, share_threshold, children } in level {
        let _ = write!(text, "{{key: \"{key}\"");
        if !value.is_empty() {
            let _ = write!(text, ", value: \"{value}\"");
        }
        if let Some(requests) = requests {
            let _ = write!(text, ", rate_limit: {{unit: day, requests_per_unit: {requests}}}");
        }
        let _ = write!(text, ", share_threshold: {share_threshold}, descriptors: [");
        write_level(text, children);
        text.push_str("]}, ");
    }
}

/// The rule and the counter of a descriptor.
#[derive(Debug, PartialEq, Eq)]
pub struct ExpectedMatch {
    /// The rule's `requests_per_unit`.
    pub requests: u32,
    /// The entries in the counter's key, with shared values replaced.
    pub key_entries: Vec<(String, String)>,
}

/// Finds the rule of a descriptor, if it has one.
#[must_use]
pub fn find_rule(level: &[Node], entries: &[(&str, &str)]) -> Option<ExpectedMatch> {
    let (&(key, value), rest) = entries.split_first()?;
    let joined = format!("{key}_{value}");
    let exact = || level.iter().find(|node| full_name(node) == joined).map(|node| (node, false));
    let is_star_match =
        |node: &&Node| full_name(node).contains('*') && matches_pattern(&full_name(node), &joined);
    let star = || level.iter().find(is_star_match).map(|node| (node, true));
    let bare = || level.iter().find(|node| full_name(node) == key).map(|node| (node, false));
    let (node, by_star) = exact().or_else(star).or_else(bare)?;
    let is_shared = by_star && node.share_threshold;
    let key_value = if is_shared { shared_value(&full_name(node), key) } else { value.into() };
    let mut expected = match rest {
        [] => ExpectedMatch { requests: node.requests?, key_entries: Vec::new() },
        _ => find_rule(node.children, rest)?,
    };
    expected.key_entries.insert(0, (key.into(), key_value));
    Some(expected)
}

fn full_name(node: &Node) -> String {
    if node.value.is_empty() { node.key.into() } else { format!("{}_{}", node.key, node.value) }
}

/// The pattern without the request's key and underscore, or the whole pattern.
fn shared_value(pattern: &str, key: &str) -> String {
    let prefix = format!("{key}_");
    pattern.strip_prefix(&prefix).unwrap_or(pattern).into()
}

/// Returns `true` if `text` matches `pattern`, where a star matches any text.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((literal, after_star)) => text.strip_prefix(literal).is_some_and(|rest| {
            let mut starts = (0..=rest.len()).filter(|&at| rest.is_char_boundary(at));
            starts.any(|at| matches_pattern(after_star, &rest[at..]))
        }),
    }
}
