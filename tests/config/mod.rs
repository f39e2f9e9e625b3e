//! Tests that limits files become the right rules and descriptors match the right rule.

mod bad;
mod budget;
mod calendar;
mod concurrency;
mod cures;
mod diagnostic;
mod envoy_filter;
mod explain;
mod field;
mod incomplete;
mod lint;
mod load;
mod manifest;
mod pace;
mod penalty;
mod raw;
mod recorded;
mod resolve;
mod schema;
mod settings;
mod tree;
mod yaml;

use sluicegate::config::diagnostic::{Diagnostic, Diagnostics, Severity, SourceText};
use sluicegate::config::raw::{Descriptor, File};
use sluicegate::config::resolve::resolve;
use sluicegate::config::tree::RuleMatch;
use sluicegate::config::{Config, Limit};
use sluicegate::kernel::units::Revision;

fn load(files: &[(&str, &str)], merge: bool) -> Result<(Config, Diagnostics), Diagnostics> {
    let files = files.iter().map(|(name, text)| (*name, text.as_bytes()));
    sluicegate::config::load(files, Revision(1), merge)
}

/// Loads `descriptors` as one file of domain `d`, which may have findings of severity note only.
fn load_clean(descriptors: &str) -> Config {
    let text = format!("domain: d\ndescriptors:\n{descriptors}");
    let (config, findings) = load(&[("a.yaml", &text)], false).unwrap();
    let faults: Vec<_> = findings.iter().filter(|one| one.severity() != Severity::Note).collect();
    assert!(faults.is_empty(), "{faults:?}");
    config
}

/// Loads `descriptors` as one file of domain `d`. Returns each finding as `line:column code
/// message`.
fn findings(descriptors: &str) -> Vec<String> {
    let text = format!("domain: d\ndescriptors:\n{descriptors}");
    let findings = match load(&[("a.yaml", &text)], false) {
        Ok((_, findings)) | Err(findings) => findings,
    };
    findings.iter().map(line).collect()
}

fn line(finding: &Diagnostic) -> String {
    format!(
        "{}:{} {} {}",
        finding.location.line,
        finding.location.column,
        finding.code.name(),
        finding.message
    )
}

/// The rule of domain `d` that matches a descriptor such as `k=v,k2=v2`.
fn find<'c>(config: &'c Config, descriptor: &str) -> Option<RuleMatch<'c>> {
    let entries = descriptor.split(',').filter(|entry| !entry.is_empty());
    let entries: Vec<(&str, &str)> = entries.map(|entry| entry.split_once('=').unwrap()).collect();
    config.domains.get("d").unwrap().tree.lookup(entries)
}

fn requests(config: &Config, descriptor: &str) -> Option<u32> {
    find(config, descriptor)?.rule.limits.first().map(|limit| limit.requests)
}

/// Loads a file with one rule, whose `rate_limit` block has `fields`, and returns its limit.
fn limit(fields: &str) -> Limit {
    let config = load_clean(&format!("- key: k\n  rate_limit: {{{fields}}}\n"));
    find(&config, "k=v").unwrap().rule.limits[0].clone()
}

fn limit_findings(fields: &str) -> Vec<String> {
    findings(&format!("- key: k\n  rate_limit: {{{fields}}}\n"))
}

fn resolve_descriptors(descriptors: Vec<Descriptor>) -> Result<Config, Diagnostics> {
    let domain =
        sluicegate::config::diagnostic::Spanned { value: "d".to_owned(), ..Default::default() };
    let file = File { domain, descriptors, ..File::default() };
    resolve(&[(file, SourceText::new("a.yaml", ""))], Revision(1), false).map(|(config, _)| config)
}
