//! The rules of the source tree.
//!
//! Guarantees:
//! - The modules `replay` and `source` use only the layers below them.
//! - The kernel is pure.
//! - A crate below `crates` depends only on the crates that it may use.
//! - Every file begins with a module doc, and no module has a vague name.

mod circles;
mod plain;
mod spec;
mod tiers;

use std::fs;
use std::path::{Path, PathBuf};

/// The modules of `src` below the command line, and the words that would lead out of their layer.
const LOWER_MODULES: [(&str, &[&str]); 2] = [
    ("src/replay", &["cli", "edge", "source", "telemetry"]),
    ("src/source", &["cli", "edge", "engine", "replay", "store"]),
];

/// Each crate below `crates`, and the crates of this workspace that it may use.
const CRATES: [(&str, &[&str]); 14] = [
    ("concurrency", &["kernel", "lease"]),
    ("config", &["descriptors", "kernel", "tables"]),
    ("descriptors", &[]),
    ("edge", &["config", "engine", "kernel", "lease", "lease-protocol", "telemetry", "usage"]),
    ("engine", &["concurrency", "config", "kernel", "lease", "store", "telemetry"]),
    ("envoy-module", &["descriptors", "proxy"]),
    ("kernel", &[]),
    ("lease", &["kernel"]),
    ("lease-protocol", &["concurrency", "kernel"]),
    ("proxy", &["concurrency", "kernel", "lease", "lease-protocol"]),
    ("store", &["concurrency", "kernel", "lease", "telemetry"]),
    ("tables", &["kernel"]),
    ("telemetry", &["kernel"]),
    ("usage", &[]),
];

/// Text that the kernel may not contain, with the reason.
const IMPURE: [(&str, &str); 14] = [
    ("::now(", "is told the time"),
    ("async ", "waits for nothing"),
    (".await", "waits for nothing"),
    ("rand", "is given its randomness as a number"),
    ("std::fs", "does no I/O"),
    ("std::io", "does no I/O"),
    ("std::net", "does no I/O"),
    ("std::env", "reads no environment"),
    ("std::time", "is told the time"),
    ("tokio", "waits for nothing"),
    ("tracing", "returns what happened; the engine logs it"),
    ("println!", "prints nothing"),
    ("Mutex", "shares nothing"),
    ("f64", "counts in integers"),
];

#[test]
fn modules_of_the_binary_use_only_lower_layers() {
    for (folder, words) in LOWER_MODULES {
        let findings = over_sources(folder, |_, code| {
            let paths = words.iter().map(|word| format!("{word}::"));
            paths.filter(|path| contains_word(code, path)).collect()
        });
        assert!(findings.is_empty(), "{}", findings.join("\n"));
    }
}

#[test]
fn crates_use_only_lower_crates() {
    let is_crate = |path: &PathBuf| path.join("Cargo.toml").exists();
    let mut crates: Vec<_> = entries(Path::new("crates")).into_iter().filter(is_crate).collect();
    crates.retain(|path| !CRATES.iter().any(|(name, _)| path.ends_with(name)));
    assert!(crates.is_empty(), "add to CRATES: {crates:?}");
    for (name, allowed) in CRATES {
        let manifest = fs::read_to_string(format!("crates/{name}/Cargo.toml")).unwrap();
        let used = manifest.lines().filter_map(|line| line.strip_prefix("sluicegate-"));
        let used = used.map(|line| line.split([' ', '.', '=']).next().unwrap());
        let findings: Vec<_> = used.filter(|used| !allowed.contains(used)).collect();
        assert!(findings.is_empty(), "`{name}` may not use {findings:?}");
    }
}

#[test]
fn only_the_binary_interface_of_envoy_is_unsafe() {
    let is_outside =
        |file: &PathBuf| !file.to_string_lossy().starts_with("crates/envoy-module/src/abi");
    let code = |file: &PathBuf| without_comments(&fs::read_to_string(file).unwrap());
    let mut found = [files(Path::new("crates")), files(Path::new("src"))].concat();
    found.retain(|file| is_outside(file) && contains_word(&code(file), "unsafe"));
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn the_kernel_is_pure() {
    let findings = over_sources("crates/kernel/src", |_, code| {
        IMPURE
            .iter()
            .filter(|(word, _)| contains_word(code, word))
            .map(|(word, why)| format!("the kernel says `{word}`; it {why}"))
            .collect()
    });
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn every_file_has_a_module_doc() {
    let findings: Vec<String> = files(Path::new("src"))
        .into_iter()
        .chain(files(Path::new("crates")))
        .chain(files(Path::new("tests")))
        .chain(files(Path::new("benches")))
        .filter(|file| !fs::read_to_string(file).unwrap().starts_with("//! "))
        .map(|file| format!("{} has no module doc", file.display()))
        .collect();
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn no_module_has_a_vague_name() {
    let vague = ["utils", "util", "common", "types", "helpers", "helper", "misc", "manager"];
    let findings: Vec<String> = files(Path::new("src"))
        .into_iter()
        .chain(files(Path::new("crates")))
        .filter(|file| vague.contains(&file.file_stem().unwrap().to_str().unwrap()))
        .map(|file| format!("{} says nothing of what is in it", file.display()))
        .collect();
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn whole_words_are_found() {
    assert!(contains_word("let now = Instant::now();", "::now("));
    assert!(contains_word("use super::super::cli::run;", "cli::"));
    assert!(!contains_word("/// operands", "rand"), "part of a word");
}

fn over_sources(root: &str, check: impl Fn(&Path, &str) -> Vec<String>) -> Vec<String> {
    let found = |file: PathBuf| {
        let code = without_comments(&fs::read_to_string(&file).unwrap());
        let found = check(&file, &code).into_iter();
        found.map(|finding| format!("{}: {finding}", file.display())).collect::<Vec<_>>()
    };
    files(Path::new(root)).into_iter().flat_map(found).collect()
}

fn is_word(token: &str) -> bool {
    token.starts_with(|c: char| c.is_alphanumeric() || c == '_')
}

/// Splits into words, `::` and single characters, without blanks.
fn tokens(code: &str) -> impl Iterator<Item = &str> {
    let mut rest = code;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
        let length = match word {
            0 if rest.starts_with("::") => 2,
            0 => rest.chars().next()?.len_utf8(),
            word => word,
        };
        let (token, after) = rest.split_at(length);
        rest = after;
        Some(token)
    })
}

/// Returns `true` if `code` contains `word` as a whole word.
fn contains_word(code: &str, word: &str) -> bool {
    let part_of_word = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back().is_some_and(part_of_word);
        let after = code[at + word.len()..].chars().next().is_some_and(part_of_word);
        let opens = word.starts_with(part_of_word);
        let closes = word.ends_with(part_of_word);
        !(opens && before || closes && after)
    })
}

fn without_comments(code: &str) -> String {
    let kept = code.lines().map(|line| line.find("//").map_or(line, |at| &line[..at]));
    kept.collect::<Vec<_>>().join("\n")
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths
}

fn files(root: &Path) -> Vec<PathBuf> {
    let found = entries(root)
        .into_iter()
        .flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] });
    found.filter(|path| path.extension().is_some_and(|e| e == "rs")).collect()
}
