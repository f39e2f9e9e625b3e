//! Bytes as limits files, separated by lines of `%%`.
//!
//! Guarantees:
//! - Invalid files yield at least one error with its position.
//! - Valid limits can be looked up, explained, listed and used for decisions.
#![no_main]

use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use sluicegate::config::diagnostic::{Diagnostic, Severity};
use sluicegate::config::explain::explain;
use sluicegate::config::load;
use sluicegate::config::tree::trace::LookupOutcome;
use sluicegate::config::{Config, Domain};
use sluicegate::edge::http::admin::rlconfig;
use sluicegate::engine::DecisionPolicy;
use sluicegate::kernel::decision::{Check, Cost, Descriptor};
use sluicegate::kernel::units::{Hits, Nanos, Revision};
use sluicegate_fuzz::{NOW, Service};

const NAMES: [&str; 3] = ["a.yaml", "b.yaml", "c.yaml"];

/// Maximum rules tried per domain, so that one file does not use up the fuzzer's time.
const MAX_RULES: usize = 20;

fuzz_target!(|bytes: &[u8]| {
    let texts = split_files(bytes);
    let merge_domains = 1 < texts.len();
    match load(NAMES.into_iter().zip(texts), Revision(1), merge_domains) {
        Err(findings) => {
            let is_error = |finding: &Diagnostic| finding.severity() == Severity::Error;
            assert!(findings.iter().any(is_error), "limits refused without an error");
            findings.iter().for_each(assert_printable);
        }
        Ok((config, warnings)) => {
            warnings.iter().for_each(assert_printable);
            assert_usable(&Arc::new(config));
        }
    }
});

/// Splits the input into at most as many files as there are names.
fn split_files(bytes: &[u8]) -> Vec<&[u8]> {
    const SEPARATOR: &[u8] = b"\n%%\n";
    let (mut files, mut rest) = (Vec::new(), bytes);
    while files.len() + 1 < NAMES.len() {
        let mut windows = rest.windows(SEPARATOR.len());
        let Some(at) = windows.position(|window| window == SEPARATOR) else { break };
        files.push(&rest[..at]);
        rest = &rest[at + SEPARATOR.len()..];
    }
    files.push(rest);
    files
}

fn assert_printable(finding: &Diagnostic) {
    assert!(!finding.message.is_empty());
    assert!(0 < finding.location.line && 0 < finding.location.column, "{finding}");
    assert!(!finding.to_string().is_empty());
    serde_json::to_value(finding).expect("JSON");
}

fn assert_usable(config: &Arc<Config>) {
    drop(rlconfig(config));
    for domain in config.domains.values() {
        assert!(!domain.name.is_empty());
        try_rules(config, domain);
    }
}

fn try_rules(config: &Arc<Config>, domain: &Domain) {
    let paths: Vec<_> = domain.tree.rules().take(MAX_RULES).map(|rule| &*rule.path).collect();
    let descriptors: Vec<_> = paths.iter().map(|path| path_entries(&domain.name, path)).collect();
    for entries in &descriptors {
        assert_lookup_equals_trace(domain, entries);
    }
    for (hits, now) in [(1, Nanos(0)), (u64::MAX, NOW), (0, Nanos(u64::MAX))] {
        let explanation = explain(config, &domain.name, &descriptors, Hits(hits), now);
        serde_json::to_value(&explanation).expect("JSON");
    }
    decide_twice(config, domain, &descriptors);
}

/// The entries in a rule's path, as far as the path contains them.
fn path_entries<'p>(domain: &str, path: &'p str) -> Vec<(&'p str, &'p str)> {
    let names = path.strip_prefix(domain).and_then(|rest| rest.strip_prefix('.'));
    let names = names.into_iter().flat_map(|names| names.split('.'));
    names.map(|name| name.split_once('_').unwrap_or((name, "v"))).collect()
}

fn assert_lookup_equals_trace(domain: &Domain, entries: &[(&str, &str)]) {
    let rule_match = domain.tree.lookup(entries.iter().copied());
    let trace = domain.tree.trace_lookup(entries);
    match (rule_match, trace.outcome) {
        (Some(found), LookupOutcome::Found(traced)) => {
            assert!(std::ptr::eq(found.rule, traced.rule), "{entries:?}");
            assert_eq!(found.shared, traced.shared, "{entries:?}");
        }
        (None, LookupOutcome::Found(_)) => panic!("only the trace finds {entries:?}"),
        (Some(found), _) => panic!("only the lookup finds {entries:?}: {:?}", found.rule.path),
        (None, _) => {}
    }
}

/// Decides one check of all descriptors twice: with empty counters, then after hits.
fn decide_twice(config: &Arc<Config>, domain: &Domain, descriptors: &[Vec<(&str, &str)>]) {
    if descriptors.is_empty() {
        return;
    }
    let to_descriptor = |entries: &Vec<(_, _)>| Descriptor {
        entries: entries.iter().copied().collect(),
        cost: Cost::Charge(Hits(1)),
        limit: None,
    };
    let descriptors = descriptors.iter().map(to_descriptor).collect();
    let check = Check { domain: &domain.name, descriptors };
    let service = Service::new(config.clone(), DecisionPolicy::default());
    for _ in 0..2 {
        let decision = service.decide(&check).expect("limits are loaded");
        assert_eq!(decision.statuses.len(), check.descriptors.len());
        service.advance(Nanos::SECOND);
    }
}
