//! The tiers of `tests/README.md`, which `scripts/tiers.py` runs.
//!
//! Guarantees:
//! - Each module in the table exists, and each top module has a tier.
//! - Modules in the tier `pure` start no process, and no server of `support`.

use std::fs;
use std::path::{Path, PathBuf};

/// Code that starts a process or a server.
const STARTS: [&str; 14] = [
    "Command::new",
    "Service::start",
    "TcpListener::bind",
    "support::browser",
    "support::cluster",
    "support::collector",
    "support::event_receiver",
    "support::postgres",
    "support::process",
    "support::rate_limit_server",
    "support::redis",
    "support::sentinel",
    "support::service",
    "support::store_server",
];

/// A module prefix and its tier.
type Row = (String, String);

fn table() -> Vec<Row> {
    let page = fs::read_to_string("tests/README.md").unwrap();
    let rows = page.lines().filter_map(|line| {
        let [_, tier, at_once, modules, _] = line.split('|').collect::<Vec<_>>()[..] else {
            return None;
        };
        let at_once = at_once.trim();
        (at_once == "cores" || at_once.parse::<u32>().is_ok()).then_some((tier.trim(), modules))
    });
    let prefixes = |modules: &str| -> Vec<String> {
        let odd = modules.split('`').skip(1).step_by(2);
        odd.map(str::to_owned).collect()
    };
    rows.flat_map(|(tier, modules)| prefixes(modules).into_iter().map(|it| (it, tier.to_owned())))
        .collect()
}

/// The module path of a test file, with a final `::`.
fn module_of(file: &Path) -> String {
    let name = file.strip_prefix("tests").unwrap().with_extension("");
    let name = name.to_str().unwrap().replace('/', "::");
    format!("{}::", name.strip_suffix("::mod").unwrap_or(&name))
}

fn tier_of<'a>(table: &'a [Row], module: &str) -> Option<&'a str> {
    let rows = table.iter().filter(|(prefix, _)| module.starts_with(prefix.as_str()));
    rows.max_by_key(|(prefix, _)| prefix.len()).map(|(_, tier)| tier.as_str())
}

fn test_files() -> Vec<PathBuf> {
    let roots = [Path::new("tests/all.rs"), Path::new("tests/support")];
    let mut files = super::files(Path::new("tests"));
    files.retain(|file| !roots.iter().any(|root| file.starts_with(root)));
    files
}

#[test]
fn every_test_module_has_a_tier_and_every_row_a_module() {
    let (table, files) = (table(), test_files());
    assert!(!table.is_empty());
    let modules: Vec<_> = files.iter().map(|file| module_of(file)).collect();
    let without = modules.iter().filter(|module| tier_of(&table, module).is_none());
    let without: Vec<_> = without.collect();
    assert!(without.is_empty(), "add to tests/README.md: {without:?}");
    let is_module = |prefix: &str| {
        prefix.starts_with("support::") || modules.iter().any(|module| module.starts_with(prefix))
    };
    let unknown: Vec<_> = table.iter().filter(|(prefix, _)| !is_module(prefix)).collect();
    assert!(unknown.is_empty(), "no such module: {unknown:?}");
}

#[test]
fn pure_tests_start_no_process_and_no_server() {
    let table = table();
    let is_pure = |file: &PathBuf| tier_of(&table, &module_of(file)) == Some("pure");
    let files =
        test_files().into_iter().filter(|file| is_pure(file) && !file.ends_with("tiers.rs"));
    let findings: Vec<_> = files
        .filter_map(|file| {
            let text = fs::read_to_string(&file).unwrap();
            let start = STARTS.iter().find(|start| text.contains(**start))?;
            Some(format!("{}: `{start}`", file.display()))
        })
        .collect();
    assert!(findings.is_empty(), "move to another tier in tests/README.md: {findings:#?}");
}
