//! Tests that the guides of `docs/SUMMARY.md` explain by examples.
//!
//! Guarantees:
//! - A guide has a code block for every 200 words of prose.
//! - A guide begins with an example, after at most 60 words.
//!
//! Not covered:
//! - Pages that are not guides.

use super::tables::coded_links;
use super::{Page, count_words, page};

const MOST_WORDS_PER_EXAMPLE: usize = 200;

const MOST_WORDS_OF_AN_INTRODUCTION: usize = 60;

fn guides() -> Vec<Page> {
    let summary = page("docs/SUMMARY.md");
    let part = summary.split("\n# ").find_map(|part| part.strip_prefix("Guides\n")).unwrap();
    let guides = coded_links(part).into_iter().map(|name| Page { text: page(&name), name });
    guides.collect()
}

/// The words of prose, without code blocks, tables and headings; and the code blocks.
fn count(text: &str) -> (usize, usize) {
    let (mut words, mut examples, mut in_block) = (0, 0, false);
    for line in text.lines().map(str::trim_start) {
        if line.starts_with("```") {
            examples += usize::from(!in_block);
            in_block = !in_block;
        } else if !in_block && !line.starts_with(['|', '#']) {
            words += count_words(line);
        }
    }
    (words, examples)
}

#[test]
fn guides_have_an_example_for_every_200_words() {
    let guides = guides();
    assert!(10 < guides.len(), "{} guides", guides.len());
    for Page { name, text } in guides {
        let (words, examples) = count(&text);
        let most = MOST_WORDS_PER_EXAMPLE * examples;
        assert!(words <= most, "{name}: {words} words and {examples} examples");
    }
}

#[test]
fn guides_begin_with_an_example() {
    for Page { name, text } in guides() {
        let (introduction, _) = text.split_once("\n```").expect(&name);
        let (words, _) = count(introduction);
        assert!(words <= MOST_WORDS_OF_AN_INTRODUCTION, "{name}: {words} words before an example");
    }
}
