//! Hashes tie the TLA+ models, the kernel, the Lua scripts and the test models together.
//!
//! `spec/README.md` has the table. A cell names a definition and the hash of its text. After a
//! change, read the row again, change the other columns if necessary, and write the new hash.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use sha2::{Digest as _, Sha256};

/// The columns of the table, with the directory of their files and the mark of a comment.
const SIDES: [(&str, &str, &str); 4] = [
    ("TLA+", "spec", "\\*"),
    ("Rust", "crates/kernel/src", "//"),
    ("Lua", "crates/store/src/redis/lua", "--"),
    ("model check", "crates/kernel/tests/model_check", "//"),
];

#[test]
fn sides_of_the_spec_change_together() {
    let readme = fs::read_to_string("spec/README.md").unwrap();
    let (mut cells, mut findings) = (0, Vec::new());
    for row in readme.lines().filter(|line| line.starts_with("| `")) {
        let columns = row.trim_matches('|').split('|');
        for ((_, root, comment), column) in SIDES.iter().zip(columns) {
            for cell in column.split(',') {
                cells += usize::from(cell.contains('`'));
                findings.extend(finding(root, comment, cell));
            }
        }
    }
    assert!(40 < cells, "the table was not found: {cells} cells");
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn definitions_end_at_their_closing_line() {
    let rust = "    fn a(&self) {\n        // Why.\n        b();\n    }\n\n    fn b() {}\n";
    assert_eq!(place(rust, "a", "//").unwrap(), "fn a(&self) { b(); }");
    let tla = "A(m) ==\n    \\* Why.\n    /\\ x\n\nB == y\n";
    assert_eq!(place(tla, "A", "\\*").unwrap(), "A(m) == /\\ x");
    assert_eq!(place(tla, "B", "\\*").unwrap(), "B == y");
    assert_eq!(place(tla, "C", "\\*"), None);
    let lua = "loop\n  -- `a`, and `b`: why.\n  if x then\n    y()\n  end\n  z()\n\n  w()\nend\n";
    assert_eq!(place(lua, "a", "--").unwrap(), "if x then y() end z()");
    assert_eq!(place(lua, "b", "--"), None);
}

/// Returns the error of a cell such as "`lease/balance.rs::settle` 0123abcd".
fn finding(root: &str, comment: &str, cell: &str) -> Option<String> {
    let (named, hash) = cell.trim().strip_prefix('`')?.split_once('`')?;
    let (file, name) = named.split_once("::")?;
    let text = fs::read_to_string(Path::new(root).join(file)).unwrap_or_default();
    let Some(place) = place(&text, name, comment) else {
        return Some(format!("{root}/{named} is not there"));
    };
    let is = hash_of(&place);
    (is != hash.trim()).then(|| format!("{root}/{named} moved: reread its row; it is {is} now"))
}

/// The text of a definition, without comments, in one line.
fn place(text: &str, name: &str, comment: &str) -> Option<String> {
    let mut lines = text.lines().skip_while(|line| !opens(line, name));
    let first = lines.next()?;
    let indent = &first[..first.len() - first.trim_start().len()];
    let is_paragraph = first.trim().starts_with(comment);
    let ends = |line: &str| match comment {
        _ if is_paragraph => line.trim().is_empty(),
        "\\*" => line.trim().is_empty(),
        "//" => line == format!("{indent}}}"),
        _ => line == format!("{indent}end"),
    };
    let mut place = vec![first];
    for line in lines {
        if ends(line) {
            place.push(line);
            break;
        }
        place.push(line);
    }
    let kept = place.into_iter().filter(|line| !line.trim().starts_with(comment));
    Some(kept.flat_map(str::split_whitespace).collect::<Vec<_>>().join(" "))
}

/// Returns `true` if a definition of `name` begins in this line, or the Lua paragraph for it.
fn opens(line: &str, name: &str) -> bool {
    let called = |word: &str| {
        line.split_once(word).is_some_and(|(before, rest)| {
            let rest = rest.strip_prefix(name).unwrap_or("?");
            before.trim().chars().all(|c| c.is_alphanumeric() || "_(): ".contains(c))
                && rest.starts_with(['(', '<'])
        })
    };
    let tla = line
        .strip_prefix(name)
        .is_some_and(|rest| rest.starts_with('(') || rest.starts_with(" =="));
    let paragraph = line.trim().strip_prefix("-- `").and_then(|rest| rest.strip_prefix(name));
    let lua = paragraph.is_some_and(|rest| rest.starts_with('`'));
    tla || lua || called("fn ") || called("function ")
}

fn hash_of(place: &str) -> String {
    let digest = Sha256::digest(place.as_bytes());
    digest[..4].iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
