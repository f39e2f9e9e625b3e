//! Tests that the first change of `CONTRIBUTING.md` fits the code.
//!
//! Guarantees:
//! - The line to break is in the file that the step names, once.
//! - The test that then fails is a test of the kernel.
//! - The example of a new word has the form of the words in the named table.
//!
//! Not covered:
//! - The time that the steps take.

use std::fs;

use super::root;

fn read(name: &str) -> String {
    fs::read_to_string(root().join(name)).expect(name)
}

/// The text between the first `opening` and the next `closing`.
fn between<'t>(text: &'t str, opening: &str, closing: &str) -> &'t str {
    text.split_once(opening).expect(opening).1.split_once(closing).expect(closing).0
}

#[test]
fn the_line_to_break_is_in_the_named_file_once() {
    let text = read("CONTRIBUTING.md");
    let file = read(between(&text, "In `decide` of `", "`"));
    let old = between(&text, "```diff\n   -", "\n").trim();
    assert_eq!(file.matches(old).count(), 1, "{old}");
    let failing = between(&text, "The same command prints `", " ...");
    assert!(
        read("crates/kernel/tests/rate/gcra.rs").contains(&format!("fn {failing}(")),
        "{failing}"
    );
}

#[test]
fn the_example_of_a_new_word_has_the_form_of_its_table() {
    let text = read("CONTRIBUTING.md");
    let table = read(between(&text, "Add it to a row of `", "`"));
    let word = between(&text, "marks: `\"", "\",`");
    assert!(word.chars().all(|letter| letter.is_ascii_lowercase()), "{word}");
    assert!(table.contains("\"maxhits\","), "{word}");
}
