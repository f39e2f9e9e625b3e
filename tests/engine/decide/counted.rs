//! Tests of the counted hits of a limit, also above it.

use std::sync::Arc;

use sluicegate::config::load;
use sluicegate::engine::{CountedHits, Engine};
use sluicegate::kernel::decision::{Check, Cost, Descriptor, Verdict};
use sluicegate::kernel::units::{Hits, Nanos, Revision};

use crate::edge::engine;
use crate::support::dice::{Dice, seed};
use crate::support::engine::advance_clock;

const STRATEGIES: [&str; 4] = ["fixed_window", "gcra", "sliding_window", "sliding_log"];

fn engine_of(fields: &str) -> Arc<Engine> {
    let text = format!("domain: d\ndescriptors:\n- {{key: k, rate_limit: {{{fields}}}}}\n");
    engine(load([("f", text.as_bytes())], Revision(2), false).unwrap().0)
}

fn check(cost: Cost) -> Check<'static> {
    let entries = smallvec::smallvec![("k", "v")];
    let descriptor = Descriptor { entries, cost, limit: None };
    Check { domain: "d", descriptors: smallvec::smallvec![descriptor] }
}

async fn ask(engine: &Engine, cost: Cost) -> Verdict {
    engine.decide(&check(cost)).await.unwrap().verdict
}

async fn counted(engine: &Engine) -> CountedHits {
    let counted = engine.counted_hits(check(Cost::Charge(Hits(5)))).await;
    counted[0].unwrap()
}

/// The case `grant-without-effect`: 50 of 10 are counted.
#[tokio::test]
async fn counted_hits_include_those_above_the_limit() {
    for strategy in STRATEGIES {
        let engine = engine_of(&format!(
            "unit: month, requests_per_unit: 10, strategy: {strategy}, on_excess: charge"
        ));
        for _ in 0..50 {
            ask(&engine, Cost::Charge(Hits(1))).await;
        }
        // A sliding log keeps the newest 10 hits, so one refunded hit is enough.
        let (counted_hits, to_refund) = if strategy == "sliding_log" { (10, 1) } else { (50, 41) };
        let to_refund = Some(to_refund);
        let right = CountedHits { counted: counted_hits, to_refund, is_leased: false };
        assert_eq!(counted(&engine).await, right, "{strategy}");
        assert_eq!(counted(&engine).await, right, "{strategy}: reading changes nothing");
    }
    let calendar = engine_of("unit: month, requests_per_unit: 10, calendar: {time_zone: UTC}");
    advance_clock(&calendar, Nanos::from_secs(1_800_000_000));
    ask(&calendar, Cost::Charge(Hits(50))).await;
    assert_eq!(counted(&calendar).await.counted, 50);
}

/// The law of `to_refund`: after a refund of so many hits a check is allowed, and not after one
/// fewer.
#[tokio::test]
async fn the_hits_to_refund_are_just_enough() {
    let seed = seed();
    let mut dice = Dice::new(seed);
    for round in 0..200 {
        let (strategy, limit) = (dice.pick(&STRATEGIES), 1 + dice.up_to(20));
        let fields = format!(
            "unit: hour, requests_per_unit: {limit}, strategy: {strategy}, on_excess: charge"
        );
        let context = format!("seed {seed}, round {round}: {fields}");
        let engine = engine_of(&fields);
        for _ in 0..dice.up_to(9) {
            ask(&engine, Cost::Charge(Hits(dice.up_to(15)))).await;
            // The sliding strategies refund only the current window and the newest arrivals.
            let most = if strategy.starts_with("sliding") { 0 } else { 300 };
            advance_clock(&engine, Nanos::from_secs(dice.up_to(most)));
        }
        let to_refund = counted(&engine).await.to_refund.unwrap();
        if let Some(fewer) = to_refund.checked_sub(1) {
            ask(&engine, Cost::Refund(Hits(fewer))).await;
            assert_eq!(counted(&engine).await.to_refund, Some(1), "{context}");
            assert_eq!(ask(&engine, Cost::Charge(Hits(0))).await, Verdict::Deny, "{context}");
            ask(&engine, Cost::Refund(Hits(1))).await;
        }
        assert_eq!(ask(&engine, Cost::Charge(Hits(1))).await, Verdict::Allow, "{context}");
    }
}
