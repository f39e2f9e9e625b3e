//! Tests predicted lease sizes against sizes by recent demand alone, over traces of demand.
//!
//! Every simulation also asserts that no message wants more than `max_lease`.

use proptest::prelude::*;
use sluicegate_kernel::lease::sizer::{LeasePlan, LeaseSizer, LeaseSizing};
use sluicegate_kernel::units::{Hits, Nanos};

#[path = "../../../../benches/support/adagrad.rs"]
#[allow(dead_code, unreachable_pub, reason = "the bench uses the rest")]
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
mod adagrad;
#[path = "../../../../benches/support/lease_traces.rs"]
#[allow(dead_code, unreachable_pub, reason = "the bench uses the rest")]
#[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
mod lease_traces;

use lease_traces::{LeaseUse, Random, Trace, arrivals, bursts, erratic, merged, oracle, simulate};

/// The calls by recent demand, and the calls with predictions.
fn both(trace: &Trace, max_lease: u64) -> [LeaseUse; 2] {
    [LeaseSizing::Recent, LeaseSizing::Learned].map(|sizing| simulate(sizing, trace, max_lease))
}

/// A burst of 450 to 550 hits each minute, for an hour.
fn hourly_bursts(random: &mut Random) -> Trace {
    let starts: Vec<f64> = (0..60).map(|minute| f64::from(minute) * 60.0 + 3.0).collect();
    bursts(random, &starts, |random| random.hits(450, 550))
}

#[test]
fn repeating_bursts_need_seven_tenths_of_the_calls() {
    let random = &mut Random(1);
    let background = arrivals(random, 3_600, |_| 2.0);
    for trace in [hourly_bursts(random), merged(hourly_bursts(random), background)] {
        for max_lease in [100, 1_000] {
            let [recent, learned] = both(&trace, max_lease);
            assert!(learned.calls * 10 <= recent.calls * 7, "{learned:?} {recent:?}");
            assert!(learned.unspent * 10 <= recent.unspent * 11, "{learned:?} {recent:?}");
            assert!(oracle(&trace, max_lease).calls <= learned.calls);
        }
    }
}

#[test]
fn few_steady_hits_are_leased_for_the_whole_duration() {
    let trace = arrivals(&mut Random(2), 3_600, |_| 2.0);
    let [recent, learned] = both(&trace, 1_000);
    assert!(learned.calls * 10 <= recent.calls * 7, "{learned:?} {recent:?}");
    assert!(learned.unspent * 20 <= trace.len() as u64, "5 %: {learned:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Ten calls are added, because a trace may begin with one wrong prediction.
    #[test]
    fn wrong_predictions_cost_at_most_a_tenth_more_calls(seed: u64, limit in 0..3_u32) {
        let max_lease = 10_u64.pow(limit + 1);
        let trace = erratic(&mut Random(seed), 1_800.0);
        let [recent, learned] = both(&trace, max_lease);
        prop_assert!(learned.calls * 10 <= recent.calls * 11 + 100, "{learned:?} {recent:?}");
    }
}

/// A sizer that earned trust, with 500 hits in the last two minutes and one now.
fn trusting() -> (LeaseSizer, Nanos) {
    let mut sizer = LeaseSizer::new(LeaseSizing::Learned, lease_traces::LEASE, Hits(1_000));
    for minute in 10..12 {
        sizer.record_check(Nanos::from_secs(60 * minute), Hits(500));
    }
    let now = Nanos::from_secs(720);
    sizer.record_check(now, Hits(1));
    for lease in 0..10 {
        let plan = sizer.next_lease(now, Hits(1));
        assert_eq!(plan, LeasePlan { hits: Hits(0), recent: Hits(0) }, "lease {lease}");
        sizer.record_plan(now, plan);
    }
    (sizer, now)
}

#[test]
fn an_unspent_predicted_lease_costs_the_trust_of_ten_leases() {
    let (mut sizer, now) = trusting();
    let larger = sizer.next_lease(now, Hits(1));
    assert_eq!(larger, LeasePlan { hits: Hits(499), recent: Hits(0) });
    sizer.record_plan(now, larger);
    let mut spent = sizer;
    assert_eq!(spent.record_unspent(now, Hits(249)), Hits(0), "half may stay unspent");
    assert_eq!(spent.next_lease(now, Hits(1)), larger, "the stake is returned");
    assert_eq!(sizer.record_unspent(now, Hits(250)), Hits(0), "they do not shrink later leases");
    assert_eq!(sizer.record_unspent(now, Hits(300)), Hits(300), "no prediction is open");
    for lease in 0..10 {
        let plan = sizer.next_lease(now, Hits(1));
        assert_eq!(plan.hits, Hits(0), "lease {lease}");
        sizer.record_plan(now, plan);
    }
    assert_eq!(sizer.next_lease(now, Hits(1)), larger, "trust was earned again");
}

#[test]
fn a_reduced_lease_that_is_too_small_costs_trust() {
    let (mut sizer, now) = trusting();
    sizer.record_check(now, Hits(498));
    let smaller = sizer.next_lease(now, Hits(0));
    assert_eq!(smaller, LeasePlan { hits: Hits(1 + 1_000 / 64), recent: Hits(1_000) });
    sizer.record_plan(now, smaller);
    assert_eq!(sizer.next_lease(now, Hits(0)).hits, Hits(1_000), "needed again too early");
}

#[test]
fn short_leases_follow_recent_demand_alone() {
    let with = |sizing| {
        let mut sizer = LeaseSizer::new(sizing, Nanos::from_secs(9), Hits(1_000));
        for minute in 10..15 {
            for _ in 0..20 {
                let plan = sizer.next_lease(Nanos::from_secs(60 * minute), Hits(0));
                sizer.record_plan(Nanos::from_secs(60 * minute), plan);
            }
            sizer.record_check(Nanos::from_secs(60 * minute), Hits(500));
        }
        let now = Nanos::from_secs(900);
        sizer.record_check(now, Hits(1));
        sizer.next_lease(now, Hits(1))
    };
    assert_eq!(with(LeaseSizing::Learned), with(LeaseSizing::Recent));
    assert_eq!(with(LeaseSizing::Learned).hits, Hits(0));
}
#[test]
fn adagrad_converges_to_the_economic_order_quantity() {
    // For 40 hits in each window: √(2·20·40/1) = 40 hits. The first step is a factor of e.
    let mut sizer = adagrad::AdaGradSizer::new(1, 1_000);
    sizer.observe(40);
    assert_eq!(sizer.size(), 3);
    for _ in 0..1_000 {
        sizer.observe(40);
    }
    assert!((39..=41).contains(&sizer.size()), "{}", sizer.size());
}
