//! Tests of `docs/reference/findings.md`, generated from the diagnostic codes and one example file
//! for each code.
//!
//! Guarantees:
//! - Every code is listed, with the findings that `sluicegate validate` prints for its example.
//! - The example of a code has this code among its findings.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use sluicegate::config::diagnostic::Code;
use sluicegate::config::load;
use sluicegate::kernel::units::Revision;

use super::{assert_page, root};

/// Codes whose example would be too large for a page, or is no limits file.
const WITHOUT_EXAMPLE: [Code; 8] = [
    Code::TooLarge,
    Code::TooDeep,
    Code::TooMany,
    Code::FailsOpen,
    Code::FailsClosed,
    Code::BadModuleConfig,
    Code::Unloadable,
    Code::UnreadTimeout,
];

const HEAD: &str = "\
# Findings

`sluicegate validate` prints one finding for each problem, with its place and a fix. The letter of a code is the severity:

- **E** is an error. The files are not loaded, and a running replica keeps its limits.
- **W** is a warning, and **N** is a note. The files are loaded.

At most 200 findings of a file are printed, errors first. The log shows 50. A syntax error (E01 to E05) hides the other
findings of its file.
";

fn example_files(code: Code) -> Vec<(String, Vec<u8>)> {
    let folder = root().join("tests/docs/findings");
    let read = |path: PathBuf| fs::read(&path).unwrap_or_else(|_| panic!("{}", path.display()));
    let second = folder.join(format!("{}.second.yaml", code.name()));
    let first = read(folder.join(format!("{}.yaml", code.name())));
    let mut files = vec![("limits/shop.yaml".to_owned(), first)];
    if second.exists() {
        files.push(("limits/shop2.yaml".to_owned(), read(second)));
    }
    files
}

fn generated_page() -> String {
    let mut page = HEAD.to_owned();
    for code in Code::ALL {
        let (name, title) = (code.name(), code.title());
        write!(page, "\n## {name}: {title}\n\nFix: {}.\n\n", code.fix()).unwrap();
        if WITHOUT_EXAMPLE.contains(code) {
            page.pop();
        } else {
            page.push_str(&example(*code));
        }
    }
    page
}

/// The example file or files of a code, and the printed findings.
fn example(code: Code) -> String {
    let files = example_files(code);
    let texts = files.iter().map(|(name, bytes)| (&**name, &**bytes));
    let found = load(texts, Revision(1), false).map_or_else(|found| found, |(_, found)| found);
    let codes: Vec<_> = found.iter().map(|one| one.code.name()).collect();
    assert!(codes.contains(&code.name()), "{}: {codes:?}", code.name());
    let printed: Vec<_> = found.iter().map(ToString::to_string).collect();
    let files: Vec<_> = files.iter().map(|(_, bytes)| String::from_utf8_lossy(bytes)).collect();
    // Files that are not UTF-8 or that are only wrong together are not tested as pages' examples.
    let is_tested = files.len() == 1 && !files[0].contains(char::REPLACEMENT_CHARACTER);
    let (language, head) = if is_tested {
        ("yaml", format!("# check: {}\n", codes.join(", ")))
    } else {
        ("text", String::new())
    };
    let files = files.join("# the second file\n");
    format!("```{language}\n{head}{files}```\n\n```text\n{}\n```\n", printed.join("\n"))
}

#[test]
fn findings_page_matches_the_codes() {
    assert_page("docs/reference/findings.md", &generated_page());
}

#[test]
fn every_finding_example_belongs_to_a_code() {
    let known: BTreeSet<_> = Code::ALL.iter().map(|code| code.name()).collect();
    for entry in fs::read_dir(root().join("tests/docs/findings")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(known.contains(name.split('.').next().unwrap()), "{name}");
    }
}
