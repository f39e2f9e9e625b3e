//! Budgets whose estimates are learned, with costs of heavy tails and a change of model.
//!
//! 200 requests are in flight. Each reserves the learned estimate of its model, and settles its cost
//! at random later. The laws:
//! - No request is denied while the settled and the true cost in flight are at most half of the amount.
//! - The first denial comes when at least 90 % of the amount is settled or in flight.
//! - Requests in flight then hold the rest, and at least 99 % is settled when they have ended.
//! - The costs above their holds are at most twice the share that the learner aims at.
//! - What is settled above the amount is at most what the requests cost above their holds.

use sluicegate_kernel::budget::{
    Amount, Budget, BudgetPeriod, BudgetTerms, CostLearner, EXCESS_SHARE, Hold, HoldId, OnExpiry,
    Reserved, reserve_all,
};
use sluicegate_kernel::rate::fixed_window::Windows;
use sluicegate_kernel::units::Nanos;

use crate::dice::{Dice, seed};

const IN_FLIGHT: usize = 200;

/// The most that a request can cost, and its estimate before the first samples.
const AT_MOST: u64 = 32_000;

/// The tokens of a month.
const AMOUNT: u64 = 250_000_000;

/// A distribution of costs.
#[derive(Clone, Copy, Debug)]
enum Costs {
    /// Nearly alike.
    Even,
    /// A Pareto distribution with exponent 1, whose mean is infinite without the bound.
    HeavyTail,
    /// One request in a hundred costs the most, the others a little.
    Rare,
}

impl Costs {
    fn roll(self, dice: &mut Dice, scale: u64) -> u64 {
        let cost = match self {
            Self::Even => 900 + dice.up_to(200),
            Self::HeavyTail => 300_000_000 / (1 + dice.up_to(999_999)),
            Self::Rare if dice.once_in(100) => AT_MOST,
            Self::Rare => 200,
        };
        (cost * scale).min(AT_MOST)
    }
}

struct Request {
    id: HoldId,
    model: usize,
    held: u64,
    cost: u64,
}

struct Gateway {
    budget: Budget,
    terms: BudgetTerms,
    now: Nanos,
    learners: [CostLearner; 2],
    in_flight: Vec<Request>,
    next_id: u64,
    /// The sum of the costs above their holds.
    excess: u64,
}

impl Gateway {
    fn new() -> Self {
        let period = BudgetPeriod::Each(Windows::Every(Nanos::from_secs(30 * 86_400)));
        let (time_limit, on_expiry) = (Nanos::from_secs(600), OnExpiry::Charge);
        let amount = Amount(AMOUNT);
        Self {
            budget: Budget::default(),
            terms: BudgetTerms { amount, period, time_limit, on_expiry, is_enforced: true },
            now: Nanos::from_secs(1_000_000),
            learners: Default::default(),
            in_flight: Vec::new(),
            next_id: 0,
            excess: 0,
        }
    }

    fn used(&self) -> u64 {
        self.budget.usage().settled.0 + self.in_flight.iter().map(|its| its.cost).sum::<u64>()
    }

    fn starts(&mut self, model: usize, cost: u64) -> bool {
        self.next_id += 1;
        self.now = self.now.plus(Nanos::MILLI);
        let id = HoldId(1, self.next_id);
        let held =
            self.learners[model].estimate().map_or(AT_MOST, |learned| learned.0.min(AT_MOST));
        let Self { budget, terms, now, .. } = self;
        let is_held = reserve_all(&mut [Hold { budget, terms, amount: Amount(held) }], id, *now);
        if is_held == Reserved::Held {
            self.in_flight.push(Request { id, model, held, cost });
        }
        is_held == Reserved::Held
    }

    fn ends(&mut self, dice: &mut Dice) {
        let index = usize::try_from(dice.up_to(self.in_flight.len() as u64 - 1)).unwrap();
        let Request { id, model, held, cost } = self.in_flight.swap_remove(index);
        self.budget.settle(&self.terms, id, Amount(cost), self.now);
        self.learners[model].observe(Amount(cost));
        self.excess += cost.saturating_sub(held);
    }
}

/// Spends a whole budget. Returns the per mille that was used at the first denial, and the excess per
/// mille of the costs.
fn spend(costs: Costs, is_changed: bool, dice: &mut Dice) -> (u64, u64) {
    let (mut gateway, mut first_denial) = (Gateway::new(), None);
    let mut denials = 0;
    while denials < 1_000 {
        // The other model costs four times as much.
        let model = usize::from(is_changed && AMOUNT / 4 < gateway.used());
        let cost = costs.roll(dice, if model == 0 { 1 } else { 4 });
        let used = gateway.used();
        if !gateway.starts(model, cost) {
            denials += 1;
            assert!(AMOUNT < 2 * (used + cost), "{costs:?}: denied at {used} of {AMOUNT}");
            first_denial.get_or_insert(used);
        }
        if IN_FLIGHT <= gateway.in_flight.len()
            || first_denial.is_some() && !gateway.in_flight.is_empty()
        {
            gateway.ends(dice);
        }
    }
    let settled = gateway.budget.usage().settled.0;
    assert!(settled.saturating_sub(AMOUNT) <= gateway.excess, "{costs:?}: {settled}");
    assert!(AMOUNT / 100 * 99 <= settled, "{costs:?}: {settled}");
    (first_denial.unwrap() * 1_000 / AMOUNT, gateway.excess * 1_000 / settled)
}

#[test]
fn learned_estimates_deny_nothing_falsely_and_use_the_amount() {
    let seed = seed();
    let mut dice = Dice::new(seed);
    for costs in [Costs::Even, Costs::HeavyTail, Costs::Rare] {
        for is_changed in [false, true] {
            let (used, excess) = spend(costs, is_changed, &mut dice);
            println!("{costs:?}, changed model {is_changed}: used {used}, excess {excess}");
            assert!(
                excess <= 2 * 1_000 / EXCESS_SHARE,
                "SLUICEGATE_SEED={seed}, {costs:?}: {excess}"
            );
            assert!(900 <= used, "SLUICEGATE_SEED={seed}, {costs:?}: {used}");
        }
    }
}
