//! Tests of the files under `bad/`, whose first lines list the expected findings.
//!
//! Guarantees:
//! - Each file gives exactly the findings of its first line, in that order.
//! - A file exists for every diagnostic code of the YAML reader.
//!
//! Not covered:
//! - Too large and too deep files: [`super::yaml::hostile`] generates them.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use sluicegate::config::diagnostic::{Code, Diagnostics};
use sluicegate::config::raw;

/// Diagnostic codes whose files [`super::yaml::hostile`] generates.
const GENERATED: [Code; 2] = [Code::TooLarge, Code::TooDeep];

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

/// The findings listed in the first line, such as `# expect E09 4:5, W01 6:3`.
fn expected(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let line = text.lines().next().unwrap();
    line.strip_prefix("# expect ").expect("the first line says what to expect").to_owned()
}

fn found(name: &str, bytes: &[u8]) -> Diagnostics {
    raw::read(name, bytes).map_or_else(|invalid| invalid.diagnostics, |(_, _, warnings)| warnings)
}

/// Returns `true` for a diagnostic code of the YAML reader, below 20. Codes from 20 depend on the
/// meaning of fields.
fn is_reader_code(code: &str) -> bool {
    code[1..3].parse::<u32>().unwrap() < 20
}

#[test]
fn files_give_exactly_the_expected_findings() {
    for (name, bytes) in files() {
        let expected = expected(&bytes);
        if !is_reader_code(&expected) {
            continue;
        }
        let found: Vec<_> = found(&name, &bytes)
            .iter()
            .map(|one| format!("{} {}:{}", one.code.name(), one.location.line, one.location.column))
            .collect();
        assert_eq!(found.join(", "), expected, "{name}");
    }
}

#[test]
fn every_diagnostic_code_of_the_yaml_reader_has_a_file() {
    let kept: BTreeSet<_> =
        files().iter().flat_map(|(name, bytes)| found(name, bytes)).map(|one| one.code).collect();
    for code in Code::ALL.iter().filter(|code| is_reader_code(code.name())) {
        assert!(kept.contains(code) || GENERATED.contains(code), "{}", code.name());
    }
}

#[test]
fn diagnostic_messages_are_one_line_without_capital_or_period() {
    for (name, bytes) in files() {
        for one in found(&name, &bytes) {
            assert!(!one.message.ends_with('.'), "{name}: {}", one.message);
            assert!(!one.message.starts_with(char::is_uppercase), "{name}: {}", one.message);
            assert!(!one.message.contains('\n'), "{name}: {}", one.message);
        }
    }
}
