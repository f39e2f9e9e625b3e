//! The rules of the house, executable: who may name whom, what the kernel may not name, and what
//! every file opens with.

mod spec;

use std::fs;
use std::path::{Path, PathBuf};

/// Each layer and the layers it may name. Every layer may name itself.
const MAY_NAME: [(&str, &[&str]); 10] = [
    ("kernel", &[]),
    ("pem", &[]),
    ("config", &["kernel"]),
    ("clock", &["kernel"]),
    ("telemetry", &["kernel", "pem"]),
    ("backend", &["kernel", "pem", "telemetry"]),
    ("engine", &["kernel", "config", "clock", "backend", "telemetry"]),
    ("source", &["kernel", "pem", "config", "telemetry"]),
    ("edge", &["kernel", "pem", "config", "clock", "telemetry", "engine"]),
    ("cli", &["kernel", "config", "clock", "telemetry", "backend", "engine", "source", "edge"]),
];

/// What the kernel may not say, and what it does instead.
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
fn every_layer_names_only_those_below_it() {
    let findings = over_sources(|file, code| {
        let layer = layer_of(file);
        let Some((_, allowed)) = MAY_NAME.iter().find(|(name, _)| *name == layer) else {
            return Vec::new();
        };
        named_layers(code)
            .filter(|named| *named != layer && !allowed.contains(named))
            .map(|named| format!("`{layer}` may not name `{named}`"))
            .collect()
    });
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn the_kernel_is_pure() {
    let findings = over_sources(|file, code| {
        let words = IMPURE.iter().filter(|_| layer_of(file) == "kernel");
        words
            .filter(|(word, _)| says(code, word))
            .map(|(word, why)| format!("the kernel says `{word}`; it {why}"))
            .collect()
    });
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn every_file_opens_with_what_it_is_for() {
    let findings: Vec<String> = files(Path::new("src"))
        .into_iter()
        .chain(files(Path::new("tests")))
        .chain(files(Path::new("benches")))
        .filter(|file| !fs::read_to_string(file).unwrap().starts_with("//! "))
        .map(|file| format!("{} has no module doc", file.display()))
        .collect();
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn no_room_is_named_for_nothing() {
    let vague = ["utils", "util", "common", "types", "helpers", "helper", "misc", "manager"];
    let findings: Vec<String> = files(Path::new("src"))
        .into_iter()
        .filter(|file| vague.contains(&file.file_stem().unwrap().to_str().unwrap()))
        .map(|file| format!("{} says nothing of what is in it", file.display()))
        .collect();
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

#[test]
fn the_rules_bite() {
    assert_eq!(named_layers("use crate::edge::grpc;").collect::<Vec<_>>(), ["edge"]);
    let grouped = "use crate::{clock::Clock, engine::Engine};";
    assert_eq!(named_layers(grouped).collect::<Vec<_>>(), ["clock", "engine"]);
    assert!(says("let now = Instant::now();", "::now("));
    assert!(!says("/// operands", "rand"), "a word inside another is not that word");
}

fn over_sources(check: impl Fn(&Path, &str) -> Vec<String>) -> Vec<String> {
    let found = |file: PathBuf| {
        let code = without_comments(&fs::read_to_string(&file).unwrap());
        let found = check(&file, &code).into_iter();
        found.map(|finding| format!("{}: {finding}", file.display())).collect::<Vec<_>>()
    };
    files(Path::new("src")).into_iter().flat_map(found).collect()
}

fn layer_of(file: &Path) -> String {
    let first = file.strip_prefix("src").unwrap().components().next().unwrap();
    first.as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned()
}

/// The layers that `code` names, whether as `crate::layer` or inside `crate::{…}`.
fn named_layers(code: &str) -> impl Iterator<Item = &'static str> {
    let spaced: String = code.split_whitespace().collect::<Vec<_>>().join(" ");
    MAY_NAME.iter().map(|(layer, _)| *layer).filter(move |layer| {
        let direct = format!("crate::{layer}");
        let groups = spaced.split("crate::{").skip(1);
        let mut groups = groups.filter_map(|rest| rest.split(';').next());
        let member = |group: &str| {
            group.split([',', '{', '}']).any(|item| item.trim().split("::").next() == Some(layer))
        };
        says(&spaced, &direct) || groups.any(member)
    })
}

/// Whether `code` says `word` as a word of its own.
fn says(code: &str, word: &str) -> bool {
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

fn files(root: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(root) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let found =
        paths.into_iter().flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] });
    found.filter(|path| path.extension().is_some_and(|e| e == "rs")).collect()
}
