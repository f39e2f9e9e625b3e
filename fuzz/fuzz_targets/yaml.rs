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
use sluicegate::config::tree::trace::Outcome;
use sluicegate::config::{Config, Domain};
use sluicegate::edge::http::admin::rlconfig;
use sluicegate::engine::Policy;
use sluicegate::kernel::decision::{Cost, Descriptor, Question};
use sluicegate::kernel::units::{Hits, Nanos, Revision};
use sluicegate_fuzz::{NOW, Service};

const NAMES: [&str; 3] = ["a.yaml", "b.yaml", "c.yaml"];

/// Maximum rules tried per domain, so that one file does not use up the fuzzer's time.
const MOST_TRIED: usize = 20;

fuzz_target!(|bytes: &[u8]| {
    let texts = parts(bytes);
    let merge_domains = 1 < texts.len();
    match load(NAMES.into_iter().zip(texts), Revision(1), merge_domains) {
        Err(found) => {
            let is_error = |one: &Diagnostic| one.code.severity() == Severity::Error;
            assert!(found.iter().any(is_error), "refused without a reason");
            found.iter().for_each(can_be_told);
        }
        Ok((config, warnings)) => {
            warnings.iter().for_each(can_be_told);
            works(Arc::new(config));
        }
    }
});

/// Splits the input into at most as many files as there are names.
fn parts(bytes: &[u8]) -> Vec<&[u8]> {
    const PARTING: &[u8] = b"\n%%\n";
    let (mut parts, mut rest) = (Vec::new(), bytes);
    while parts.len() + 1 < NAMES.len() {
        let Some(at) = rest.windows(PARTING.len()).position(|four| four == PARTING) else { break };
        parts.push(&rest[..at]);
        rest = &rest[at + PARTING.len()..];
    }
    parts.push(rest);
    parts
}

fn can_be_told(diagnostic: &Diagnostic) {
    assert!(!diagnostic.message.is_empty());
    assert!(0 < diagnostic.place.line && 0 < diagnostic.place.column, "{diagnostic}");
    assert!(!diagnostic.to_string().is_empty());
    serde_json::to_value(diagnostic).expect("JSON");
}

fn works(config: Arc<Config>) {
    drop(rlconfig(&config));
    for domain in config.domains.values() {
        assert!(!domain.name.is_empty());
        try_rules(&config, domain);
    }
}

fn try_rules(config: &Arc<Config>, domain: &Domain) {
    let paths: Vec<_> = domain.tree.rules().take(MOST_TRIED).map(|rule| &*rule.path).collect();
    let descriptors: Vec<_> = paths.iter().map(|path| entries(&domain.name, path)).collect();
    for entries in &descriptors {
        lookup_and_trace_agree(domain, entries);
    }
    for (hits, now) in [(1, Nanos(0)), (u64::MAX, NOW), (0, Nanos(u64::MAX))] {
        let explained = explain(config, &domain.name, &descriptors, Hits(hits), now);
        serde_json::to_value(&explained).expect("JSON");
    }
    decide(config, domain, &descriptors);
}

/// The entries in a rule's path, as far as the path contains them.
fn entries<'p>(domain: &str, path: &'p str) -> Vec<(&'p str, &'p str)> {
    let names = path.strip_prefix(domain).and_then(|rest| rest.strip_prefix('.'));
    let names = names.into_iter().flat_map(|names| names.split('.'));
    names.map(|name| name.split_once('_').unwrap_or((name, "v"))).collect()
}

fn lookup_and_trace_agree(domain: &Domain, entries: &[(&str, &str)]) {
    let found = domain.tree.lookup(entries.iter().copied());
    let trace = domain.tree.explain(entries);
    match (found, trace.outcome) {
        (Some(found), Outcome::Found(traced)) => {
            assert!(std::ptr::eq(found.rule, traced.rule), "{entries:?}");
            assert_eq!(found.shared, traced.shared, "{entries:?}");
        }
        (None, Outcome::Found(_)) => panic!("the trace alone finds {entries:?}"),
        (Some(found), _) => panic!("the lookup alone finds {entries:?}: {:?}", found.rule.path),
        (None, _) => {}
    }
}

/// Decides one check of all descriptors twice: with empty counters, then after hits.
fn decide(config: &Arc<Config>, domain: &Domain, descriptors: &[Vec<(&str, &str)>]) {
    if descriptors.is_empty() {
        return;
    }
    let descriptor = |entries: &Vec<(_, _)>| Descriptor {
        entries: entries.iter().copied().collect(),
        cost: Cost::Charge(Hits(1)),
        limit: None,
    };
    let descriptors = descriptors.iter().map(descriptor).collect();
    let question = Question { domain: &domain.name, descriptors };
    let service = Service::new(config.clone(), Policy::default());
    for _ in 0..2 {
        let answer = service.decide(&question).expect("limits are loaded");
        assert_eq!(answer.statuses.len(), question.descriptors.len());
        service.advance(Nanos::SECOND);
    }
}
