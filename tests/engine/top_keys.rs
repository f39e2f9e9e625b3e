//! Tests the top keys: which hits of which checks are counted, and their texts.

use std::sync::Arc;

use sluicegate::clock::Clock;
use sluicegate::config::settings::DescriptorValues;
use sluicegate::engine::top_keys::{TopKeyList, TopKeysPage, TopKeysQuery};
use sluicegate::engine::{AdmissionOutcome, DecisionPolicy, Engine};
use sluicegate::kernel::decision::Cost;
use sluicegate::kernel::top_keys::TopWindow;
use sluicegate::kernel::units::{Hits, Nanos};
use sluicegate::store::memory::{MemoryStore, WhenFull};

use crate::support::engine::{advance_clock, block_on, check, check_of, publish};

const FIVE_A_DAY: &str = "rate_limit: {unit: day, requests_per_unit: 5}";

fn engine(descriptor_values: DescriptorValues, descriptors: &str) -> Engine {
    let memory = Arc::new(MemoryStore::new(1_000, WhenFull::Deny, [0; 16]));
    let policy = DecisionPolicy { descriptor_values, ..DecisionPolicy::default() };
    let engine = Engine::new(Clock::manual(Nanos::from_secs(36_000)), memory, policy);
    publish(&engine, "", descriptors);
    engine
}

fn decide(engine: &Engine, entries: &[(&str, &str)], cost: Cost) {
    block_on(engine.decide(&check(entries, cost))).unwrap();
}

fn top(engine: &Engine) -> TopKeysPage {
    let window = TopWindow::Minute;
    engine.top_keys(&TopKeysQuery { window, domain: None, path: None, max: 20 })
}

/// The rows as `path descriptor hits`, the most hits first.
fn rows(list: &TopKeyList) -> Vec<String> {
    let row = |row: &sluicegate::engine::top_keys::TopKeyRow| {
        format!("{} {} {}", row.path, row.descriptor, row.hits)
    };
    list.rows.iter().map(row).collect()
}

#[test]
fn hits_of_each_key_are_counted_and_denials_apart() {
    let engine = engine(DescriptorValues::Shown, &format!("- {{key: k, {FIVE_A_DAY}}}\n"));
    decide(&engine, &[("k", "a")], Cost::Charge(Hits(4)));
    decide(&engine, &[("k", "a")], Cost::Charge(Hits(2)));
    decide(&engine, &[("k", "b"), ("unknown", "c")], Cost::Charge(Hits(3)));
    let page = top(&engine);
    assert_eq!(rows(&page.all), ["d.k k=a 6", "d.k k=b 3"]);
    assert_eq!((page.all.total, page.denied.total), (9, 2));
    assert_eq!(rows(&page.denied), ["d.k k=a 2"]);
}

#[test]
fn peeks_and_refunds_are_not_counted() {
    let engine = engine(DescriptorValues::Shown, &format!("- {{key: k, {FIVE_A_DAY}}}\n"));
    decide(&engine, &[("k", "a")], Cost::Charge(Hits(0)));
    decide(&engine, &[("k", "a")], Cost::Refund(Hits(1)));
    assert_eq!(top(&engine).all, TopKeyList::default());
}

#[test]
fn denials_in_shadow_mode_are_denied_hits() {
    let rule = format!("- {{key: k, {FIVE_A_DAY}, shadow_mode: true}}\n");
    let engine = engine(DescriptorValues::Shown, &rule);
    decide(&engine, &[("k", "a")], Cost::Charge(Hits(6)));
    assert_eq!(rows(&top(&engine).denied), ["d.k k=a 6"]);
}

#[test]
fn a_rejection_by_a_concurrency_limit_is_a_denied_hit() {
    let engine = engine(DescriptorValues::Shown, "- {key: k, concurrency: {limit: 1}}\n");
    let asked = check_of(&[("k", "a")]);
    let held = block_on(engine.admit(&asked, None)).unwrap();
    assert!(matches!(held, AdmissionOutcome::Decided(..)));
    let rejected = block_on(engine.admit(&asked, None)).unwrap();
    assert!(matches!(rejected, AdmissionOutcome::Rejected(_)));
    assert_eq!(rows(&top(&engine).denied), ["d.k k=a 1"]);
}

#[test]
fn hits_leave_the_minute_but_not_the_hour() {
    let engine = engine(DescriptorValues::Shown, &format!("- {{key: k, {FIVE_A_DAY}}}\n"));
    decide(&engine, &[("k", "a")], Cost::Charge(Hits(4)));
    advance_clock(&engine, Nanos::from_secs(120));
    assert_eq!(rows(&top(&engine).all), <[String; 0]>::default());
    let hour = TopKeysQuery { window: TopWindow::Hour, domain: Some("d"), path: None, max: 20 };
    assert_eq!(rows(&engine.top_keys(&hour).all), ["d.k k=a 4"]);
    let other = TopKeysQuery { domain: Some("e"), ..hour };
    assert_eq!(engine.top_keys(&other).all, TopKeyList::default());
}

#[test]
fn values_are_hashed_or_nothing_is_counted() {
    let rule = format!("- {{key: k, {FIVE_A_DAY}}}\n");
    let engine_with = |values| {
        let engine = engine(values, &rule);
        decide(&engine, &[("k", "secret")], Cost::Charge(Hits(1)));
        rows(&top(&engine).all)
    };
    let hashed = engine_with(DescriptorValues::Hashed);
    assert!(hashed[0].starts_with("d.k k=~") && !hashed[0].contains("secret"), "{hashed:?}");
    assert_eq!(hashed, engine_with(DescriptorValues::Hashed));
    assert!(engine_with(DescriptorValues::Hidden).is_empty());
}

#[test]
fn the_largest_used_share_is_that_of_the_fullest_counter() {
    let engine = engine(DescriptorValues::Hidden, &format!("- {{key: k, {FIVE_A_DAY}}}\n"));
    decide(&engine, &[("k", "a")], Cost::Charge(Hits(4)));
    decide(&engine, &[("k", "b")], Cost::Charge(Hits(1)));
    let used = |engine: &Engine| engine.rule_activity().values().map(|rule| rule.used).max();
    assert_eq!(used(&engine), Some(800_000));
    // The last step still counts; without further checks, the step after it is empty.
    advance_clock(&engine, Nanos::from_secs(30));
    engine.sample_history();
    assert_eq!(used(&engine), Some(800_000));
    advance_clock(&engine, Nanos::from_secs(30));
    engine.sample_history();
    assert_eq!(used(&engine), Some(0));
}
