//! Laws of budgets, for random sequences of requests against an oracle that knows the whole history.
//!
//! Each row shows a deliberate fault in the code, and a test that failed with it.
//!
//! | fault | failed test |
//! |---|---|
//! | a hold is added to the settled amount | `budgets_match_a_model_of_all_requests` |
//! | a repeated settle charges again | the same |
//! | an expiry forgets the charge | the same |
//! | a settle counts in the period of the settle | the same |
//! | the first budget keeps the hold of a denied request | the same |
//! | an open hold is forgotten when it expires | `a_budget_is_kept_while_an_id_or_a_period_is_kept` |
//! | the held amount is not checked | the same, and `holds_that_cover_their_cost_never_exceed_the_amount` |

mod learned_estimates;
mod learner;
mod rules;

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;
use sluicegate_kernel::budget::{
    Amount, Budget, BudgetPeriod, BudgetTerms, Ended, EndedHold, Hold, HoldId, KEPT_PERIODS,
    OnExpiry, PeriodUsage, Reserved, reserve_all,
};
use sluicegate_kernel::rate::fixed_window::Windows;
use sluicegate_kernel::units::Nanos;

const LIMIT: Nanos = Nanos::from_secs(50);

const PERIODS: [Nanos; 2] = [Nanos::from_secs(40), Nanos::from_secs(300)];

const AMOUNT: u64 = 100;

fn terms(index: usize, on_expiry: OnExpiry) -> BudgetTerms {
    let period = BudgetPeriod::Each(Windows::Every(PERIODS[index]));
    let amount = Amount(AMOUNT * (index as u64 + 1));
    BudgetTerms { amount, period, time_limit: LIMIT, on_expiry, is_enforced: true }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Reserve(u64, u64),
    Settle(u64, u64),
    SettleHeld(u64),
    Cancel(u64),
    Renew(u64),
}

/// The charge with which a request ends.
#[derive(Clone, Copy, Debug)]
enum Charge {
    Actual(u64),
    Held,
    Nothing,
}

fn step() -> impl Strategy<Value = (u64, Step)> {
    let id = || 0..6_u64;
    let step = prop_oneof![
        4 => (id(), 0..60_u64).prop_map(|(id, amount)| Step::Reserve(id, amount)),
        3 => (id(), 0..60_u64).prop_map(|(id, amount)| Step::Settle(id, amount)),
        1 => id().prop_map(Step::SettleHeld),
        1 => id().prop_map(Step::Cancel),
        1 => id().prop_map(Step::Renew),
    ];
    (prop_oneof![4 => 0..10_u64, 1 => 0..120_u64], step)
}

/// What happened to one request.
#[derive(Clone, Copy, Debug)]
struct Request {
    id: u64,
    reserved_at: Nanos,
    amount: u64,
    renewed_at: Nanos,
    /// The first settle or cancel.
    first_end: Option<Nanos>,
    /// The first settle, else the last cancel.
    ended: Option<End>,
}

#[derive(Clone, Copy, Debug)]
struct End {
    at: Nanos,
    charged: u64,
    /// The amount that counted before.
    counted: u64,
    is_settle: bool,
}

impl Request {
    const fn expires_at(&self) -> Nanos {
        self.renewed_at.plus(LIMIT)
    }

    fn is_open(&self, now: Nanos) -> bool {
        self.ended.is_none() && now < self.expires_at()
    }

    fn is_known(&self, now: Nanos) -> bool {
        let until = self.ended.map_or(self.expires_at(), |end| end.at).plus(LIMIT);
        now < until
    }

    /// The charge at `now`.
    fn charge(&self, now: Nanos, on_expiry: OnExpiry) -> u64 {
        match self.ended {
            Some(end) => end.charged,
            None if now < self.expires_at() || on_expiry == OnExpiry::Release => 0,
            None => self.amount,
        }
    }

    const fn period(&self, index: usize) -> u64 {
        self.reserved_at.0 / PERIODS[index].0
    }
}

/// All requests so far.
#[derive(Debug, Default)]
struct History {
    requests: Vec<Request>,
}

impl History {
    fn known(&mut self, id: u64, now: Nanos) -> Option<&mut Request> {
        self.requests.iter_mut().rev().find(|request| request.id == id && request.is_known(now))
    }

    /// The usage that the requests of a period cause.
    fn usage(&self, index: usize, period: u64, now: Nanos, on_expiry: OnExpiry) -> PeriodUsage {
        let start = Nanos(period * PERIODS[index].0);
        let mut usage = PeriodUsage { start, ..PeriodUsage::default() };
        for request in self.requests.iter().filter(|request| request.period(index) == period) {
            usage.settled.0 += request.charge(now, on_expiry);
            let ended_at = request.first_end.unwrap_or(now);
            usage.expired += u64::from(request.expires_at() <= ended_at);
            if let Some(end) = request.ended.filter(|end| end.is_settle) {
                usage.requests += 1;
                usage.excess.0 += end.charged.saturating_sub(end.counted);
            }
        }
        usage
    }

    fn held(&self, index: usize, now: Nanos) -> u64 {
        let own = self.requests.iter().filter(|request| {
            request.is_open(now) && request.period(index) == now.0 / PERIODS[index].0
        });
        own.map(|request| request.amount).sum()
    }

    fn free(&self, index: usize, now: Nanos, on_expiry: OnExpiry) -> u64 {
        let spent = self.usage(index, now.0 / PERIODS[index].0, now, on_expiry).settled.0;
        let amount = AMOUNT * (index as u64 + 1);
        amount.saturating_sub(spent).saturating_sub(self.held(index, now))
    }

    /// Applies an end. Returns what the budgets should say.
    fn end(&mut self, id: u64, charge: Charge, now: Nanos, on_expiry: OnExpiry) -> (Ended, u64) {
        let end = |counted, is_known| {
            let (charged, is_settle) = match charge {
                Charge::Actual(amount) => (amount, true),
                Charge::Held => (counted, is_known),
                Charge::Nothing => (0, false),
            };
            Some(End { at: now, charged, counted, is_settle })
        };
        let Some(request) = self.known(id, now) else {
            let (reserved_at, renewed_at, ended) = (now, now, end(0, false));
            let (first_end, amount) = (Some(now), 0);
            self.requests.push(Request { id, reserved_at, amount, renewed_at, first_end, ended });
            return (Ended::Unknown, 0);
        };
        if let Some(end) = request.ended.filter(|end| end.is_settle) {
            return (Ended::Before, end.charged);
        }
        let is_open = request.is_open(now);
        if !is_open && matches!(charge, Charge::Held) {
            return (Ended::Before, request.charge(now, on_expiry));
        }
        let counted = if is_open { request.amount } else { request.charge(now, on_expiry) };
        request.first_end = request.first_end.or(Some(now));
        request.ended = end(counted, true);
        (if is_open { Ended::Now } else { Ended::Corrected }, counted)
    }
}

struct Checked {
    budgets: [Budget; 2],
    terms: [BudgetTerms; 2],
    history: History,
    now: Nanos,
}

impl Checked {
    fn new(on_expiry: OnExpiry) -> Self {
        Self {
            budgets: Default::default(),
            terms: [terms(0, on_expiry), terms(1, on_expiry)],
            history: History::default(),
            now: Nanos::from_secs(10_000),
        }
    }

    fn reserve(&mut self, id: u64, amount: u64) -> Reserved {
        let ([first, second], amount) = (&mut self.budgets, Amount(amount));
        let mut holds = [
            Hold { budget: first, terms: &self.terms[0], amount },
            Hold { budget: second, terms: &self.terms[1], amount },
        ];
        reserve_all(&mut holds, HoldId(1, id), self.now)
    }

    fn end(&mut self, id: u64, charge: Charge) -> [EndedHold; 2] {
        [0, 1].map(|index| {
            let (budget, terms) = (&mut self.budgets[index], &self.terms[index]);
            let (id, now) = (HoldId(1, id), self.now);
            match charge {
                Charge::Actual(amount) => budget.settle(terms, id, Amount(amount), now),
                Charge::Held => budget.settle_held(terms, id, now),
                Charge::Nothing => budget.cancel(terms, id, now),
            }
        })
    }

    fn apply(&mut self, step: Step) {
        let (now, on_expiry) = (self.now, self.terms[0].on_expiry);
        match step {
            Step::Reserve(id, amount) => {
                let free = [0, 1].map(|index| self.history.free(index, now, on_expiry));
                let is_known = self.history.known(id, now).map(|request| request.is_open(now));
                let reserved = self.reserve(id, amount);
                match is_known {
                    Some(true) => assert_eq!(reserved, Reserved::Repeated),
                    Some(false) => assert_eq!(reserved, Reserved::Ended),
                    None => self.compare_new_hold((id, amount), free, reserved),
                }
            }
            Step::Settle(id, actual) => self.compare_end(id, Charge::Actual(actual)),
            Step::SettleHeld(id) => self.compare_end(id, Charge::Held),
            Step::Cancel(id) => self.compare_end(id, Charge::Nothing),
            Step::Renew(id) => {
                let known = self.history.known(id, now).filter(|request| request.is_open(now));
                let want = known.map(|request| request.renewed_at = now).is_some();
                for index in [0, 1] {
                    let (budget, terms) = (&mut self.budgets[index], &self.terms[index]);
                    assert_eq!(budget.renew(terms, HoldId(1, id), now), want);
                }
            }
        }
    }

    fn compare_new_hold(&mut self, (id, amount): (u64, u64), free: [u64; 2], reserved: Reserved) {
        if let Some(index) = free.iter().position(|free| *free < amount) {
            let is_it = matches!(reserved, Reserved::Denied(it) if it.index == index);
            assert!(is_it, "{reserved:?}, {free:?}");
            return;
        }
        assert_eq!(reserved, Reserved::Held);
        let (reserved_at, renewed_at, first_end, ended) = (self.now, self.now, None, None);
        let request = Request { id, reserved_at, amount, renewed_at, first_end, ended };
        self.history.requests.push(request);
    }

    fn compare_end(&mut self, id: u64, charge: Charge) {
        let on_expiry = self.terms[0].on_expiry;
        let (ended, counted) = self.history.end(id, charge, self.now, on_expiry);
        assert_eq!(self.end(id, charge), [EndedHold { ended, counted: Amount(counted) }; 2]);
    }

    /// Compares all amounts with the history.
    fn compare(&mut self) {
        let (now, on_expiry) = (self.now, self.terms[0].on_expiry);
        for index in [0, 1] {
            let budget = &mut self.budgets[index];
            budget.advance(&self.terms[index], now);
            let usage = |period| self.history.usage(index, period, now, on_expiry);
            assert_eq!(budget.usage(), usage(now.0 / PERIODS[index].0), "usage of {index}");
            assert_eq!(budget.held(), Amount(self.history.held(index, now)), "held of {index}");
            let periods = self.history.requests.iter().map(|request| request.period(index));
            let periods: BTreeSet<u64> = periods.collect();
            let used = periods.into_iter().map(usage).filter(|usage| {
                (usage.requests, usage.expired, usage.settled) != (0, 0, Amount(0))
            });
            let used: Vec<_> = used.collect();
            let kept = &used[used.len().saturating_sub(KEPT_PERIODS)..];
            assert_eq!(budget.periods(), kept, "periods of {index}");
        }
    }
}

proptest! {
    #[test]
    fn budgets_match_a_model_of_all_requests(
        steps in vec(step(), 1..120),
        charges in any::<bool>(),
    ) {
        let on_expiry = if charges { OnExpiry::Charge } else { OnExpiry::Release };
        let mut checked = Checked::new(on_expiry);
        for (pause, step) in steps {
            checked.now = checked.now.plus(Nanos::from_secs(pause));
            checked.apply(step);
            checked.compare();
            // A repeat, such as a retry whose first try arrived, changes nothing.
            let before = checked.budgets.clone();
            match step {
                Step::Reserve(id, amount) => drop(checked.reserve(id, amount)),
                Step::Settle(id, actual) => drop(checked.end(id, Charge::Actual(actual))),
                Step::SettleHeld(id) => drop(checked.end(id, Charge::Held)),
                Step::Cancel(id) => drop(checked.end(id, Charge::Nothing)),
                Step::Renew(_) => {}
            }
            prop_assert_eq!(&checked.budgets, &before);
        }
    }

    /// Each request costs at most its estimate.
    #[test]
    fn holds_that_cover_their_cost_never_exceed_the_amount(steps in vec(step(), 1..120)) {
        let mut checked = Checked::new(OnExpiry::Charge);
        let mut estimates = BTreeMap::new();
        for (number, (pause, step)) in steps.into_iter().enumerate() {
            checked.now = checked.now.plus(Nanos::from_secs(pause));
            match step {
                Step::Reserve(_, amount) => {
                    if checked.reserve(number as u64, amount) == Reserved::Held {
                        estimates.insert(number as u64, (amount, checked.now));
                    }
                }
                Step::Settle(_, actual) => {
                    // A settle of an id that is no longer known charges more than was held.
                    let known_since = Nanos(checked.now.0 - 2 * LIMIT.0);
                    estimates.retain(|_, (_, at)| known_since < *at);
                    if let Some((id, (estimate, _))) = estimates.pop_first() {
                        checked.end(id, Charge::Actual(actual.min(estimate)));
                    }
                }
                Step::SettleHeld(_) | Step::Cancel(_) | Step::Renew(_) => {}
            }
            for (index, budget) in checked.budgets.iter().enumerate() {
                let used = budget.usage().settled.0 + budget.held().0;
                prop_assert!(used <= checked.terms[index].amount.0, "{used}");
            }
        }
    }
}

proptest! {
    /// A store forgets a budget at this instant, also if no request came since.
    #[test]
    fn a_budget_is_kept_while_an_id_or_a_period_is_kept(steps in vec(step(), 1..20)) {
        for on_expiry in [OnExpiry::Charge, OnExpiry::Release] {
            let mut checked = Checked::new(on_expiry);
            for (pause, step) in &steps {
                checked.now = checked.now.plus(Nanos::from_secs(*pause));
                checked.apply(*step);
            }
            for (index, mut budget) in checked.budgets.into_iter().enumerate() {
                let terms = terms(index, on_expiry);
                let end = budget.keep_until(&terms, checked.now).unwrap();
                budget.advance(&terms, end);
                let kept = |usage: &PeriodUsage| {
                    end.since(usage.start).0 < KEPT_PERIODS as u64 * PERIODS[index].0
                };
                prop_assert!(!budget.periods().iter().any(kept), "{budget:?} at {end:?}");
                for id in 0..6 {
                    let ended = budget.cancel(&terms, HoldId(1, id), end).ended;
                    prop_assert_eq!(ended, Ended::Unknown);
                }
            }
        }
    }

    /// A store may keep a budget without the ids that ended, and these ids elsewhere.
    #[test]
    fn a_saved_budget_equals_the_original(steps in vec(step(), 1..60)) {
        let mut checked = Checked::new(OnExpiry::Charge);
        for (pause, step) in steps {
            checked.now = checked.now.plus(Nanos::from_secs(pause));
            checked.apply(step);
        }
        for budget in checked.budgets {
            let (kept, ended) = budget.clone().split_ended(|HoldId(_, id)| id % 2 == 0);
            let bytes = postcard::to_allocvec(&kept).unwrap();
            let mut restored: Budget = postcard::from_bytes(&bytes).unwrap();
            prop_assert_eq!(&restored, &kept);
            restored.add_ended(ended);
            prop_assert_eq!(restored, budget);
        }
    }
}
