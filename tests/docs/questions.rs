//! Tests that readers find the answers of `tests/docs/questions.md` from the summary in two clicks.
//!
//! Guarantees:
//! - There are forty different questions.
//! - The first click is a link of `docs/SUMMARY.md`.
//! - The second click is a heading of that page, or a link on it.
//! - The section that it opens has text.
//!
//! Not covered:
//! - Correct answers.

use std::collections::BTreeSet;
use std::fs;

use super::tables::{coded_links, slug};
use super::{bare, count_words, page, root, rows};

/// Fewest words of an answer.
const SHORTEST_ANSWER: usize = 15;

#[test]
fn forty_questions_have_answers_in_two_clicks() {
    let questions = fs::read_to_string(root().join("tests/docs/questions.md")).unwrap();
    let rows = rows(&questions, "question");
    let different: BTreeSet<_> = rows.iter().map(|row| &row[0]).collect();
    assert_eq!((rows.len(), different.len()), (40, 40));
    let listed = coded_links(&page("docs/SUMMARY.md"));
    for row in &rows {
        let (question, first, second) = (&row[0], bare(&row[1]), bare(&row[2]));
        assert!(listed.contains(&format!("docs/{first}")), "{question} {first} is not listed");
        let words = answer(first, second).as_deref().map(count_words);
        assert!(Some(SHORTEST_ANSWER) <= words, "{question} {first} {second}: {words:?} words");
    }
}

/// The section that the second click opens, or `None` without such a heading or link.
fn answer(first: &str, second: &str) -> Option<String> {
    let path = root().join("docs").join(first);
    let text = fs::read_to_string(&path).ok()?;
    let (file, anchor) = second.split_once('#').unwrap_or((second, ""));
    if file.is_empty() {
        return section(&text, anchor);
    }
    if !text.contains(&format!("]({second})")) {
        return None;
    }
    let linked = fs::read_to_string(path.parent()?.join(file)).ok()?;
    section(&linked, anchor)
}

/// The text below the heading with this anchor, up to the next heading of its level or above.
/// Without an anchor, the whole page.
fn section(text: &str, anchor: &str) -> Option<String> {
    if anchor.is_empty() {
        return Some(text.to_owned());
    }
    let (mut section, mut level, mut in_block) = (String::new(), None, false);
    for line in text.lines() {
        in_block ^= line.trim_start().starts_with("```");
        let depth = if in_block { 0 } else { line.chars().take_while(|c| *c == '#').count() };
        match level {
            None if 0 < depth && slug(line) == anchor => level = Some(depth),
            Some(own) if (1..=own).contains(&depth) => break,
            Some(_) => section.extend([line, "\n"]),
            None => {}
        }
    }
    level.map(|_| section)
}
