//! What limits files mean: from text to rules, and from a descriptor to its rule.

mod bad_files;
mod calendar;
mod ceilings;
mod commands;
mod matching;
mod our_words;
mod recorded;
mod schema;
mod warnings;

use sluicegate::config::diagnostic::{Diagnostic, Diagnostics, Severity, Source};
use sluicegate::config::raw::{self, File};
use sluicegate::config::resolve::resolve;
use sluicegate::config::tree::Match;
use sluicegate::config::{Config, Limit};
use sluicegate::kernel::units::Revision;

/// Files by name and text, and all that was said of them.
fn load(files: &[(&str, &str)], merge: bool) -> Result<(Config, Diagnostics), Diagnostics> {
    let files = files.iter().map(|(name, text)| (*name, text.as_bytes()));
    sluicegate::config::load(files, Revision(1), merge)
}

/// One file `a.yaml` of domain `d` with these descriptors, and nothing said about it.
fn sound(descriptors: &str) -> Config {
    let text = format!("domain: d\ndescriptors:\n{descriptors}");
    let (config, said) = load(&[("a.yaml", &text)], false).unwrap();
    // A note is no fault.
    let faults: Vec<_> = said.iter().filter(|one| one.severity() != Severity::Note).collect();
    assert!(faults.is_empty(), "{faults:?}");
    config
}

/// The same with everything that was said: `line code message`.
fn said(descriptors: &str) -> Vec<String> {
    let text = format!("domain: d\ndescriptors:\n{descriptors}");
    let said = match load(&[("a.yaml", &text)], false) {
        Ok((_, said)) | Err(said) => said,
    };
    said.iter().map(line).collect()
}

fn line(said: &Diagnostic) -> String {
    format!("{}:{} {} {}", said.place.line, said.place.column, said.code.name(), said.message)
}

/// The rule of domain `d` for a descriptor such as `k=v,k2=v2`.
fn find<'c>(config: &'c Config, descriptor: &str) -> Option<Match<'c>> {
    let entries = descriptor.split(',').filter(|entry| !entry.is_empty());
    let entries: Vec<(&str, &str)> = entries.map(|entry| entry.split_once('=').unwrap()).collect();
    config.domains.get("d").unwrap().tree.lookup(entries)
}

/// Requests of the limit that a descriptor finds.
fn requests(config: &Config, descriptor: &str) -> Option<u32> {
    find(config, descriptor)?.rule.limit.as_ref().map(|limit| limit.requests)
}

/// The one limit of a file whose only rule says this.
fn limit(words: &str) -> Limit {
    let config = sound(&format!("- key: k\n  rate_limit: {{{words}}}\n"));
    find(&config, "k=v").unwrap().rule.limit.clone().unwrap()
}

/// What is said of a file whose only rule says this.
fn said_of(words: &str) -> Vec<String> {
    said(&format!("- key: k\n  rate_limit: {{{words}}}\n"))
}

/// A config of domain `d` from descriptors made by hand.
fn by_hand(descriptors: Vec<raw::Descriptor>) -> Result<Config, Diagnostics> {
    let domain =
        sluicegate::config::diagnostic::Spanned { value: "d".to_owned(), ..Default::default() };
    let file = File { domain, descriptors, ..File::default() };
    resolve(&[(file, Source::new("a.yaml", ""))], Revision(1), false).map(|(config, _)| config)
}
