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
//! | the held amount is not checked | the same, and `holds_that_cover_their_cost_never_exceed_the_amount` |

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use sluicegate_kernel::budget::{
    Amount, Budget, BudgetTerms, Denial, DenialCause, Ended, Hold, HoldId, KNOWN_FOR, LedgerEntry,
    MAX_ENTRIES, OnExpiry, Reserved, reserve_all,
};
use sluicegate_kernel::rate::fixed_window::Windows;
use sluicegate_kernel::units::Nanos;

const LIMIT: Nanos = Nanos::from_secs(50);

const PERIODS: [Nanos; 2] = [Nanos::from_secs(40), Nanos::from_secs(300)];

const AMOUNT: u64 = 100;

fn terms(index: usize, on_expiry: OnExpiry) -> BudgetTerms {
    let windows = Windows::Every(PERIODS[index]);
    let amount = Amount(AMOUNT * (index as u64 + 1));
    BudgetTerms { amount, windows, time_limit: LIMIT, on_expiry, is_enforced: true }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Reserve(u64, u64),
    Settle(u64, u64),
    Cancel(u64),
    Renew(u64),
}

fn step() -> impl Strategy<Value = (u64, Step)> {
    let id = || 0..6_u64;
    let step = prop_oneof![
        4 => (id(), 0..60_u64).prop_map(|(id, amount)| Step::Reserve(id, amount)),
        3 => (id(), 0..60_u64).prop_map(|(id, amount)| Step::Settle(id, amount)),
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
    /// The first settle or cancel, with its amount.
    ended: Option<(Nanos, u64)>,
}

impl Request {
    const fn expires_at(&self) -> Nanos {
        self.renewed_at.plus(LIMIT)
    }

    fn is_open(&self, now: Nanos) -> bool {
        self.ended.is_none() && now < self.expires_at()
    }

    fn is_known(&self, now: Nanos) -> bool {
        let until = self.ended.map_or(self.expires_at().plus(LIMIT), |(at, _)| at.plus(KNOWN_FOR));
        now < until
    }

    /// The charge at `now`.
    fn charge(&self, now: Nanos, on_expiry: OnExpiry) -> u64 {
        match self.ended {
            Some((_, charged)) => charged,
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

    fn settled(&self, index: usize, period: u64, now: Nanos, on_expiry: OnExpiry) -> u64 {
        let own = self.requests.iter().filter(|request| request.period(index) == period);
        own.map(|request| request.charge(now, on_expiry)).sum()
    }

    fn held(&self, index: usize, now: Nanos) -> u64 {
        let own = self.requests.iter().filter(|request| {
            request.is_open(now) && request.period(index) == now.0 / PERIODS[index].0
        });
        own.map(|request| request.amount).sum()
    }

    fn free(&self, index: usize, now: Nanos, on_expiry: OnExpiry) -> u64 {
        let spent = self.settled(index, now.0 / PERIODS[index].0, now, on_expiry);
        let amount = AMOUNT * (index as u64 + 1);
        amount.saturating_sub(spent).saturating_sub(self.held(index, now))
    }

    /// Applies an end. Returns what the budgets should say.
    fn end(&mut self, id: u64, amount: u64, now: Nanos) -> Ended {
        let Some(request) = self.known(id, now) else { return Ended::Unknown };
        if request.ended.is_some() {
            return Ended::Before;
        }
        let ended = if request.is_open(now) { Ended::Now } else { Ended::AfterExpiry };
        request.ended = Some((now, amount));
        ended
    }
}

struct Checked {
    budgets: [Budget; 2],
    terms: [BudgetTerms; 2],
    ledger: [BTreeMap<Nanos, i64>; 2],
    history: History,
    now: Nanos,
}

/// Adds an entry to the sums of a ledger.
fn add(ledger: &mut BTreeMap<Nanos, i64>, entry: LedgerEntry) {
    *ledger.entry(entry.period).or_default() += entry.change;
}

impl Checked {
    fn new(on_expiry: OnExpiry) -> Self {
        Self {
            budgets: Default::default(),
            terms: [terms(0, on_expiry), terms(1, on_expiry)],
            ledger: Default::default(),
            history: History::default(),
            now: Nanos::from_secs(10_000),
        }
    }

    fn reserve(&mut self, id: u64, amount: u64) -> Reserved {
        let [first, second] = &mut self.budgets;
        // Each budget emits into its own ledger, before the holds are compared.
        for (index, budget) in [&mut *first, &mut *second].into_iter().enumerate() {
            let ledger = &mut self.ledger[index];
            budget.advance(&self.terms[index], self.now, &mut |entry| add(ledger, entry));
        }
        let amount = Amount(amount);
        let mut holds = [
            Hold { budget: first, terms: &self.terms[0], amount },
            Hold { budget: second, terms: &self.terms[1], amount },
        ];
        reserve_all(&mut holds, HoldId(1, id), self.now, &mut |entry| panic!("{entry:?}"))
    }

    fn end(&mut self, id: u64, actual: Option<u64>) -> [Ended; 2] {
        [0, 1].map(|index| {
            let (budget, terms) = (&mut self.budgets[index], &self.terms[index]);
            let (ledger, id) = (&mut self.ledger[index], HoldId(1, id));
            let mut ledger = |entry| add(ledger, entry);
            match actual {
                Some(actual) => budget.settle(terms, id, Amount(actual), self.now, &mut ledger),
                None => budget.cancel(terms, id, self.now, &mut ledger),
            }
        })
    }

    fn apply(&mut self, step: Step) {
        let (now, on_expiry) = (self.now, self.terms[0].on_expiry);
        match step {
            Step::Reserve(id, amount) => {
                let free = [0, 1].map(|index| self.history.free(index, now, on_expiry));
                let want = match self.history.known(id, now) {
                    Some(request) if request.is_open(now) => None,
                    Some(_) => Some(Reserved::Ended),
                    None => free.iter().position(|free| *free < amount).map(|index| {
                        let got = self.reserve(id, amount);
                        let is_it = matches!(got, Reserved::Denied(it)
                            if it.index == index && it.free == Amount(free[index]));
                        assert!(is_it, "{got:?}, {free:?}");
                        got
                    }),
                };
                let is_new = self.history.known(id, now).is_none();
                assert_eq!(self.reserve(id, amount), want.unwrap_or(Reserved::Held));
                if want.is_none() && is_new {
                    let (reserved_at, renewed_at, ended) = (now, now, None);
                    let request = Request { id, reserved_at, amount, renewed_at, ended };
                    self.history.requests.push(request);
                }
            }
            Step::Settle(id, actual) => {
                let want = self.history.end(id, actual, now);
                if want == Ended::Unknown {
                    let (reserved_at, renewed_at, ended) = (now, now, Some((now, actual)));
                    let request = Request { id, reserved_at, amount: 0, renewed_at, ended };
                    self.history.requests.push(request);
                }
                assert_eq!(self.end(id, Some(actual)), [want; 2]);
            }
            Step::Cancel(id) => {
                let want = self.history.end(id, 0, now);
                assert_eq!(self.end(id, None), [want; 2]);
            }
            Step::Renew(id) => {
                let known = self.history.known(id, now).filter(|request| request.is_open(now));
                let want = known.map(|request| request.renewed_at = now).is_some();
                for index in [0, 1] {
                    let (budget, terms) = (&mut self.budgets[index], &self.terms[index]);
                    let ledger = &mut self.ledger[index];
                    let mut ledger = |entry| add(ledger, entry);
                    assert_eq!(budget.renew(terms, HoldId(1, id), now, &mut ledger), want);
                }
            }
        }
    }

    /// Compares amounts and ledgers with the history.
    fn compare(&mut self) {
        let (now, on_expiry) = (self.now, self.terms[0].on_expiry);
        for index in [0, 1] {
            let (budget, ledger) = (&mut self.budgets[index], &mut self.ledger[index]);
            budget.advance(&self.terms[index], now, &mut |entry| add(ledger, entry));
            let period = now.0 / PERIODS[index].0;
            let settled = self.history.settled(index, period, now, on_expiry);
            assert_eq!(budget.settled(), Amount(settled), "settled of budget {index}");
            assert_eq!(budget.held(), Amount(self.history.held(index, now)), "held of {index}");
            for (start, sum) in ledger {
                let period = start.0 / PERIODS[index].0;
                let want = self.history.settled(index, period, now, on_expiry);
                assert_eq!(*sum, i64::try_from(want).unwrap(), "the ledger of {index}");
            }
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
                Step::Settle(id, actual) => drop(checked.end(id, Some(actual))),
                Step::Cancel(id) => drop(checked.end(id, None)),
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
                        checked.end(id, Some(actual.min(estimate)));
                    }
                }
                Step::Cancel(_) | Step::Renew(_) => {}
            }
            for (index, budget) in checked.budgets.iter().enumerate() {
                let used = budget.settled().0 + budget.held().0;
                prop_assert!(used <= checked.terms[index].amount.0, "{used}");
            }
        }
    }
}

fn reserve(budget: &mut Budget, terms: &BudgetTerms, id: u64, amount: u64, now: Nanos) -> Reserved {
    let mut holds = [Hold { budget, terms, amount: Amount(amount) }];
    reserve_all(&mut holds, HoldId(1, id), now, &mut |_| ())
}

#[test]
fn a_denial_names_its_cause() {
    let (terms, now) = (terms(1, OnExpiry::Charge), Nanos::from_secs(300_000));
    let mut budget = Budget::default();
    let cause = |reserved| match reserved {
        Reserved::Denied(Denial { cause, .. }) => cause,
        other => panic!("{other:?}"),
    };
    assert_eq!(cause(reserve(&mut budget, &terms, 1, 201, now)), DenialCause::ExceedsAmount);
    assert_eq!(reserve(&mut budget, &terms, 2, 150, now), Reserved::Held);
    assert_eq!(cause(reserve(&mut budget, &terms, 3, 51, now)), DenialCause::InFlight);
    budget.settle(&terms, HoldId(1, 2), Amount(150), now, &mut |_| ());
    let later = now.plus(Nanos::from_secs(100));
    let spent = DenialCause::Spent(Nanos::from_secs(200));
    assert_eq!(cause(reserve(&mut budget, &terms, 3, 51, later)), spent);
    let shadow = BudgetTerms { is_enforced: false, ..terms };
    assert_eq!(reserve(&mut budget, &shadow, 3, 51, later), Reserved::Held);
    let starts = [1, 2, 3, 4].map(Nanos::from_secs);
    let outside = BudgetTerms { windows: Windows::Calendar { starts }, ..terms };
    let outside = cause(reserve(&mut Budget::default(), &outside, 1, 1, now));
    assert_eq!(outside, DenialCause::OutsidePeriods);
}

#[test]
fn a_flood_of_ids_is_bounded_and_still_charged() {
    let (terms, now) = (terms(1, OnExpiry::Charge), Nanos::from_secs(300_000));
    let (mut budget, flood) = (Budget::default(), MAX_ENTRIES as u64 + 10);
    for id in 0..flood {
        budget.settle(&terms, HoldId(1, id), Amount(1), now, &mut |_| ());
    }
    assert_eq!(budget.settled(), Amount(flood));
    let full = reserve(&mut budget, &BudgetTerms { is_enforced: false, ..terms }, flood, 1, now);
    assert!(matches!(full, Reserved::Denied(Denial { cause: DenialCause::Full, .. })), "{full:?}");
    let later = now.plus(KNOWN_FOR);
    assert_eq!(
        reserve(
            &mut Budget::clone(&budget),
            &BudgetTerms { is_enforced: false, ..terms },
            1,
            1,
            later
        ),
        Reserved::Held
    );
}

/// A store's clock that was a year ahead left holds that would last a year.
#[test]
fn holds_of_a_clock_that_was_ahead_end_after_a_denial() {
    let (terms, ahead) = (terms(1, OnExpiry::Release), Nanos::from_secs(40_000_000));
    let mut budget = Budget::default();
    assert_eq!(reserve(&mut budget, &terms, 1, 200, ahead), Reserved::Held);
    let now = Nanos::from_secs(8_000_000);
    assert!(matches!(reserve(&mut budget, &terms, 2, 1, now), Reserved::Denied(_)));
    let later = now.plus(LIMIT).plus(LIMIT).plus(KNOWN_FOR);
    assert_eq!(reserve(&mut budget, &terms, 2, 1, later), Reserved::Held);
}
