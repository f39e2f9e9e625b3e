//! Tests that `docs/` and the README agree with the code.
//!
//! Guarantees:
//! - Every limits example loads with exactly the findings that it declares.
//! - The command line parser accepts every documented command.
//! - Every reference table lists exactly the items of the code.
//! - Every relative link resolves.
//! - Guides begin with an example and have one for every 200 words.
//! - The examples of programs in Python, Go and Rust work.
//! - The first change of `CONTRIBUTING.md` names existing code.
//! - Forty questions have their answers two clicks from the summary.
//!
//! Not covered:
//! - Prose.

mod book;
mod density;
mod examples;
mod first_change;
mod permit_programs;
mod programs;
mod questions;
mod reference;
mod tables;

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;

use sluicegate::cli::{self, Terminal};

pub struct Page {
    pub name: String,
    pub text: String,
}

/// A fenced code block of a page. `place` is `page:line`.
pub struct Block {
    pub place: String,
    language: String,
    pub text: String,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

pub fn pages() -> Vec<Page> {
    let listed = ["docs", "docs/guides", "docs/operations", "docs/reference", "docs/with"]
        .map(|at| fs::read_dir(root().join(at)).unwrap());
    let listed = listed.into_iter().flatten().map(|entry| entry.unwrap().path());
    let tops = ["README.md", "SECURITY.md"].map(|name| root().join(name));
    let mut paths: Vec<_> = listed.filter(|path| path.is_file()).chain(tops).collect();
    paths.sort();
    let read = |path: PathBuf| Page {
        name: path.strip_prefix(root()).unwrap().display().to_string(),
        text: fs::read_to_string(&path).unwrap(),
    };
    paths.into_iter().map(read).collect()
}

fn page(name: &str) -> String {
    pages().into_iter().find(|page| page.name == name).expect(name).text
}

pub fn blocks(wanted: &str) -> Vec<Block> {
    let found = pages().into_iter().flat_map(|page| blocks_of(&page));
    found.filter(|block| block.language == wanted).collect()
}

fn blocks_of(page: &Page) -> Vec<Block> {
    let (mut blocks, mut open) = (Vec::new(), None::<Block>);
    for (number, line) in page.text.lines().enumerate() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(_), Some(block)) => blocks.push(block),
            (Some(language), None) => {
                let place = format!("{}:{}", page.name, number + 2);
                open = Some(Block { place, language: language.to_owned(), text: String::new() });
            }
            (None, Some(mut block)) => {
                block.text.extend([line, "\n"]);
                open = Some(block);
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{} ends within a block", page.name);
    blocks
}

/// Rows of the Markdown table whose first header cell is `head`, as trimmed cells.
fn rows(text: &str, head: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| {
        let inner = line.trim().trim_matches('|').replace("\\|", "\u{0}");
        inner.split('|').map(|cell| cell.trim().replace('\u{0}', "|")).collect::<Vec<_>>()
    };
    let lines = text.lines().skip_while(|line| !line.starts_with(&format!("| {head} |")));
    let rows: Vec<_> = lines.skip(2).take_while(|line| line.starts_with('|')).map(cells).collect();
    assert!(!rows.is_empty(), "no table under `{head}`");
    rows
}

fn count_words(text: &str) -> usize {
    text.split_whitespace().filter(|word| word.contains(char::is_alphanumeric)).count()
}

fn bare(cell: &str) -> &str {
    cell.trim_matches('`')
}

fn printed(words: &[String]) -> String {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let argv = words.iter().map(OsString::from).collect();
    cli::run(argv, [], &mut Terminal { out: &mut out, err: &mut err });
    String::from_utf8([out, err].concat()).unwrap()
}
