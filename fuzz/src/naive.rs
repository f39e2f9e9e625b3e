//! How a descriptor finds its rule, written a second time, from the description of the language and
//! as simply as it can be said: joined text, a map by scanning, recursion for stars.
//!
//! Shares nothing with the service: its tree is written down here, and the service reads it as YAML.

use std::fmt::Write as _;

/// A node of a limits file.
pub struct Node {
    /// `key`.
    pub key: &'static str,
    /// `value`; empty is none.
    pub value: &'static str,
    /// `requests_per_unit`, by which a rule is known; `None` is a node without a limit.
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

/// Everything about names that has surprised somebody.
pub const TRICKY: &[Node] = &[
    // Exact, bare and without a limit.
    node("k", "", 1001),
    node("k", "v", 1002),
    free("k", "free"),
    // Found by an empty value, and found by another key's value.
    node("k_", "", 1003),
    node("a", "b_c", 1004),
    node("a_b", "d", 1005),
    // Stars in values: order decides, not length; a longer key is caught as well.
    node("w", "x*", 1006),
    node("w", "x*y", 1007),
    node("w", "*", 1008),
    node("w", "", 1009),
    node("m", "a*b*c", 1010),
    node("m", "**", 1011),
    // Stars in keys run into the value.
    node("q*", "", 1012),
    shared("*z", "", 1013),
    // One counter for what a pattern catches.
    shared("s", "*", 1014),
    shared("t", "p*", 1015),
    node("t", "p*q", 1016),
    // Levels: each its own rule, no way back.
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
    // Bytes that are no letters, and letters of several bytes.
    node("é", "ü*ß", 1050),
    node("sp ace", "a.b/c", 1051),
    node("_", "", 1052),
    node("_", "_", 1053),
    node("__", "_", 1054),
];

/// The domain of [`TRICKY`].
pub const DOMAIN: &str = "d";

/// [`TRICKY`] as a limits file: each rule so many hits a day.
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

/// What a descriptor finds.
#[derive(Debug, PartialEq, Eq)]
pub struct Found {
    /// The rule's `requests_per_unit`.
    pub requests: u32,
    /// The entries that name its counter: shared values replaced.
    pub counted: Vec<(String, String)>,
}

/// The rule of a descriptor, if it has one.
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

/// The pattern without the request's key and underscore, or all of it.
fn substitute(pattern: &str, key: &str) -> String {
    let prefix = format!("{key}_");
    if pattern.starts_with(&prefix) { pattern[prefix.len()..].into() } else { pattern.into() }
}

/// Whether `subject` is `pattern` with some text in the place of every star.
fn glob(pattern: &str, subject: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == subject,
        Some((literal, rest)) => subject.strip_prefix(literal).is_some_and(|subject| {
            let mut starts = (0..=subject.len()).filter(|&at| subject.is_char_boundary(at));
            starts.any(|at| glob(rest, &subject[at..]))
        }),
    }
}
