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
    pub share: bool,
    /// `descriptors`.
    pub children: &'static [Node],
}

const fn node(key: &'static str, value: &'static str, requests: u32) -> Node {
    Node { key, value, requests: Some(requests), share: false, children: &[] }
}

const fn shared(key: &'static str, value: &'static str, requests: u32) -> Node {
    Node { share: true, ..node(key, value, requests) }
}

const fn above(node: Node, children: &'static [Node]) -> Node {
    Node { children, ..node }
}

const fn free(key: &'static str, value: &'static str) -> Node {
    Node { requests: None, ..node(key, value, 0) }
}

/// Names that have surprised users.
pub const TRICKY: &[Node] = &[
    // Exact, bare and without a limit.
    node("k", "", 1001),
    node("k", "v", 1002),
    free("k", "free"),
    // Matches an empty value, and another key's value.
    node("k_", "", 1003),
    node("a", "b_c", 1004),
    node("a_b", "d", 1005),
    // Stars in values: the order decides, not the length. A longer key also matches.
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
    above(
        node("n", "", 1020),
        &[
            node("k", "", 1021),
            above(
                shared("k", "v*", 1022),
                &[shared("s", "*", 1023), node("s", "1", 1024), free("k", "")],
            ),
            above(free("k", "v"), &[node("deep", "", 1025)]),
        ],
    ),
    above(node("n", "v", 1030), &[node("k", "only", 1031)]),
    above(shared("n", "p*", 1040), &[shared("n", "p*", 1041)]),
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
    write(&mut text, TRICKY);
    text + "]}"
}

fn write(text: &mut String, level: &[Node]) {
    for Node { key, value, requests, share, children } in level {
        let _ = write!(text, "{{key: \"{key}\"");
        if !value.is_empty() {
            let _ = write!(text, ", value: \"{value}\"");
        }
        if let Some(requests) = requests {
            let _ = write!(text, ", rate_limit: {{unit: day, requests_per_unit: {requests}}}");
        }
        let _ = write!(text, ", share_threshold: {share}, descriptors: [");
        write(text, children);
        text.push_str("]}, ");
    }
}

/// The rule and the counter of a descriptor.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// The rule's `requests_per_unit`.
    pub requests: u32,
    /// The entries that name its counter, with shared values replaced.
    pub counted: Vec<(String, String)>,
}

/// Finds the rule of a descriptor, if it has one.
#[must_use]
pub fn find(level: &[Node], entries: &[(&str, &str)]) -> Option<Found> {
    let (&(key, value), deeper) = entries.split_first()?;
    let joined = format!("{key}_{value}");
    let exact = || level.iter().find(|node| name(node) == joined).map(|node| (node, false));
    let by_star = |node: &&Node| name(node).contains('*') && glob(&name(node), &joined);
    let star = || level.iter().find(by_star).map(|node| (node, true));
    let bare = || level.iter().find(|node| name(node) == key).map(|node| (node, false));
    let (node, by_star) = exact().or_else(star).or_else(bare)?;
    let counted = if by_star && node.share { substitute(&name(node), key) } else { value.into() };
    let mut found = match deeper {
        [] => Found { requests: node.requests?, counted: Vec::new() },
        _ => find(node.children, deeper)?,
    };
    found.counted.insert(0, (key.into(), counted));
    Some(found)
}

fn name(node: &Node) -> String {
    if node.value.is_empty() { node.key.into() } else { format!("{}_{}", node.key, node.value) }
}

/// The pattern without the request's key and underscore, or the whole pattern.
fn substitute(pattern: &str, key: &str) -> String {
    let prefix = format!("{key}_");
    if pattern.starts_with(&prefix) { pattern[prefix.len()..].into() } else { pattern.into() }
}

/// Returns `true` if `subject` matches `pattern`, where a star matches any text.
fn glob(pattern: &str, subject: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == subject,
        Some((literal, rest)) => subject.strip_prefix(literal).is_some_and(|subject| {
            let mut starts = (0..=subject.len()).filter(|&at| subject.is_char_boundary(at));
            starts.any(|at| glob(rest, &subject[at..]))
        }),
    }
}
