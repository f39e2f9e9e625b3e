//! One file per code under `bad/`: its first line says what must be found, and where.
//!
//! Guarantees: exactly those findings, in that order; every code that reading can give has a file.
//! Leaves out: the two codes of files too big to keep, which [`super::hostile`] makes.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use sluicegate::config::diagnostic::{Code, Diagnostics};
use sluicegate::config::raw;

/// Codes of files that are made, not kept.
const MADE: [Code; 2] = [Code::TooLarge, Code::TooDeep];

fn files() -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/config/bad");
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| (path.file_name().unwrap().to_string_lossy().into_owned(), path))
        .map(|(name, path)| (name, fs::read(path).unwrap()))
        .collect();
    files.sort();
    files
}

/// The first line: `# expect E09 4:5, W01 6:3`.
fn expected(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let line = text.lines().next().unwrap();
    line.strip_prefix("# expect ").expect("the first line says what to expect").to_owned()
}

fn found(name: &str, bytes: &[u8]) -> Diagnostics {
    raw::read(name, bytes).map_or_else(|found| found, |(_, _, warnings)| warnings)
}

/// Whether reading finds this code; from 20 on it takes the meaning of the words.
fn by_reading(code: &str) -> bool {
    code[1..3].parse::<u32>().unwrap() < 20
}

#[test]
fn every_kept_file_is_found_fault_with_where_its_first_line_says() {
    for (name, bytes) in files() {
        let expected = expected(&bytes);
        if !by_reading(&expected) {
            continue;
        }
        let found: Vec<_> = found(&name, &bytes)
            .iter()
            .map(|one| format!("{} {}:{}", one.code.name(), one.place.line, one.place.column))
            .collect();
        assert_eq!(found.join(", "), expected, "{name}");
    }
}

#[test]
fn every_code_that_reading_gives_has_a_file() {
    let kept: BTreeSet<_> =
        files().iter().flat_map(|(name, bytes)| found(name, bytes)).map(|one| one.code).collect();
    for code in Code::ALL.iter().filter(|code| by_reading(code.name())) {
        assert!(kept.contains(code) || MADE.contains(code), "{}", code.name());
    }
}

#[test]
fn messages_are_sentences_of_the_house() {
    for (name, bytes) in files() {
        for one in found(&name, &bytes) {
            assert!(!one.message.ends_with('.'), "{name}: {}", one.message);
            assert!(!one.message.starts_with(char::is_uppercase), "{name}: {}", one.message);
            assert!(!one.message.contains('\n'), "{name}: {}", one.message);
        }
    }
}
