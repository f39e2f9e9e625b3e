//! Laws of the estimates that are learned from costs.

use proptest::collection::vec;
use proptest::prelude::*;
use sluicegate_kernel::budget::{Amount, CostLearner, EXCESS_SHARE};

proptest! {
    /// The law of the learner, over the costs that it counts.
    #[test]
    fn a_learned_estimate_bounds_the_excess(costs in vec(0..1_000_000_u64, 30..1_000)) {
        let mut learner = CostLearner::default();
        for cost in &costs {
            learner.observe(Amount(*cost));
        }
        let estimate = learner.estimate().unwrap().0;
        let excess: u64 = costs.iter().map(|cost| cost.saturating_sub(estimate)).sum();
        let total: u64 = costs.iter().sum();
        prop_assert!(excess * EXCESS_SHARE <= total, "{excess} of {total} above {estimate}");
        // Not larger than needed: a third less, and a part of the largest cost, would be too little.
        let largest = costs.iter().max().unwrap();
        prop_assert!(estimate <= largest + largest / 4 + 1);
    }
}

#[test]
fn a_learner_forgets_old_costs() {
    let mut learner = CostLearner::default();
    (0..29).for_each(|_| learner.observe(Amount(1 << 40)));
    assert_eq!(learner.estimate(), None);
    (0..20_000).for_each(|_| learner.observe(Amount(100)));
    assert!(learner.estimate().unwrap().0 < 130);
}
