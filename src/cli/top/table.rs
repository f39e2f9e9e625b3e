//! Formats the reply of `/top` as a table.
//!
//! Guarantees:
//! - One row for each key: its denied hits, its hits, and its share of all hits.
//! - Keys with the most denied hits come first, then those with the most hits.
//! - Control characters become `\u{fffd}`.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::fmt::Write as _;

use serde::Deserialize;

/// The largest number of characters of a descriptor that is shown.
const MAX_DESCRIPTOR_CHARS: usize = 80;

/// The reply of `/top`.
#[derive(Debug, Deserialize)]
pub(super) struct TopPage {
    pub(super) replicas: u64,
    pub(super) live_replicas: u64,
    pub(super) window: String,
    pub(super) keys: String,
    all_total: u64,
    denied_total: u64,
    all: Vec<KeyRow>,
    denied: Vec<KeyRow>,
}

#[derive(Debug, Deserialize)]
struct KeyRow {
    path: String,
    descriptor: String,
    hits: u64,
}

#[derive(Default)]
struct TableRow<'p> {
    path: &'p str,
    descriptor: &'p str,
    denied: u64,
    /// `None` if the key is not among the keys with the most hits.
    hits: Option<u64>,
}

/// Formats at most `max` keys of the page.
pub(super) fn table(page: &TopPage, max: usize) -> String {
    let rows = join(page);
    let shown: Vec<_> = rows.iter().take(max).collect();
    let rule_width = shown.iter().map(|row| row.path.chars().count()).max().unwrap_or(0).max(4);
    let mut text = head(page);
    line(&mut text, rule_width, ["DENIED", "HITS", "SHARE", "RULE", "DESCRIPTOR"]);
    for row in shown {
        let (denied, hits) = (row.denied.to_string(), row.hits.map(|hits| hits.to_string()));
        let share = row.hits.map(|hits| percent(hits, page.all_total)).unwrap_or_default();
        let (rule, descriptor) = (printable(row.path), printable(&cut(row.descriptor)));
        let hits = hits.unwrap_or_default();
        line(&mut text, rule_width, [&denied, &hits, &share, &rule, &descriptor]);
    }
    text
}

fn head(page: &TopPage) -> String {
    let TopPage { replicas, live_replicas, window, all_total, denied_total, .. } = page;
    let fleet = match (replicas, live_replicas) {
        (_, 1) => String::new(),
        (replicas, live) => format!(", {replicas} of {live} replicas"),
    };
    format!("last {window}{fleet}: {all_total} hits, {denied_total} denied\n")
}

fn line(text: &mut String, rule_width: usize, [denied, hits, share, rule, key]: [&str; 5]) {
    let _infallible =
        writeln!(text, "{denied:>10} {hits:>10} {share:>7}  {rule:<rule_width$}  {key}");
}

fn join(page: &TopPage) -> Vec<TableRow<'_>> {
    let mut rows = HashMap::<_, TableRow<'_>>::new();
    for KeyRow { path, descriptor, hits } in &page.all {
        let row = rows.entry((&**path, &**descriptor)).or_default();
        (row.path, row.descriptor, row.hits) = (path, descriptor, Some(*hits));
    }
    for KeyRow { path, descriptor, hits } in &page.denied {
        let row = rows.entry((&**path, &**descriptor)).or_default();
        (row.path, row.descriptor, row.denied) = (path, descriptor, *hits);
    }
    let mut rows: Vec<_> = rows.into_values().collect();
    rows.sort_by_key(|row| (Reverse((row.denied, row.hits)), row.path, row.descriptor));
    rows
}

/// Returns the share of `part` in `whole` with one decimal place, rounded down: `83.3%`.
fn percent(part: u64, whole: u64) -> String {
    let per_mille = u128::from(part) * 1_000 / u128::from(whole.max(1));
    format!("{}.{}%", per_mille / 10, per_mille % 10)
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(MAX_DESCRIPTOR_CHARS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Replaces control characters.
pub(in crate::cli) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(descriptor: &str) -> TopPage {
        let page = serde_json::json!({
            "replicas": 2, "live_replicas": 3, "window": "minute", "keys": "clear",
            "all_total": 18, "denied_total": 10,
            "all": [
                {"path": "shop.api_key", "descriptor": "api_key=b", "hits": 3},
                {"path": "shop.api_key", "descriptor": descriptor, "hits": 15},
            ],
            "denied": [
                {"path": "shop.api_key", "descriptor": descriptor, "hits": 8},
                {"path": "shop.x", "descriptor": "x=1", "hits": 2},
            ],
        });
        serde_json::from_value(page).unwrap()
    }

    #[test]
    fn keys_with_denied_hits_come_first() {
        let expected = "\
last minute, 2 of 3 replicas: 18 hits, 10 denied
    DENIED       HITS   SHARE  RULE          DESCRIPTOR
         8         15   83.3%  shop.api_key  api_key=a
         2                     shop.x        x=1
         0          3   16.6%  shop.api_key  api_key=b
";
        assert_eq!(table(&page("api_key=a"), 20), expected);
        assert_eq!(table(&page("api_key=a"), 1).lines().count(), 3);
    }

    #[test]
    fn control_characters_are_replaced_and_long_descriptors_cut() {
        let text = table(&page("api_key=\x1b[31m\n"), 20);
        assert!(text.contains("api_key=\u{fffd}[31m\u{fffd}"), "{text}");
        let text = table(&page(&"é".repeat(100)), 20);
        assert!(text.contains(&format!("  {}…\n", "é".repeat(80))), "{text}");
    }
}
