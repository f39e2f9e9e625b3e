//! The model of budgets in `spec/Budget.tla`, with the kernel's own functions as actions.
//!
//! A message may arrive at any time, again, or never, but not later than [`Rules::late`] ticks after its
//! request ended. Time is in whole ticks. The kernel applies an expiry with the next step, the law at
//! its tick: the properties bring a copy of the budgets to the current instant.

mod law;
mod steps;

use std::hash::{Hash, Hasher};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use sluicegate_kernel::budget::{Amount, Budget, BudgetPeriod, BudgetTerms, OnExpiry, PeriodUsage};
use sluicegate_kernel::rate::fixed_window::Windows;
use sluicegate_kernel::units::Nanos;
use stateright::{Model, Property};

pub use law::{Charge, History, Phase, Rules, Told};

const TICK: Nanos = Nanos::SECOND;

/// The start of the model, at which periods of every length start.
const START: Nanos = Nanos::from_secs(3_600);

/// A flawed design of budgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetFlaw {
    None,
    HoldInSettledAmount,
    SettleNotIdempotent,
    ExpiryForgets,
    FirstBudgetKeepsDeniedHold,
    SettleInCurrentPeriod,
    HeldNotChecked,
    /// A cancel loses the settle of a request that runs.
    CancelIsFinal,
    /// A repeated message is answered before the copy of the store has its step.
    EarlyReply,
}

#[derive(Debug)]
pub struct BudgetModel {
    /// The first budget that each request meets. It also meets all later ones.
    pub requests: &'static [usize],
    pub amounts: [u64; 2],
    /// The length of the periods of each budget, in ticks.
    pub lengths: [u64; 2],
    pub rules: Rules,
    pub estimates: &'static [u64],
    pub costs: &'static [u64],
    /// The duration of the model in ticks.
    pub horizon: u64,
    /// True if a request without a hold may settle.
    pub strangers: bool,
    /// The maximum number of failovers of the store.
    pub failovers: u64,
    /// The maximum number of steps that the copy of the store lacks.
    pub lag: u64,
    /// True if the store replies after the copy has the step.
    pub waits: bool,
    pub flaw: BudgetFlaw,
    /// The events that occurred so far in any explored state.
    pub seen: AtomicU32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Happens {
    Held = 1,
    DeniedByFirst = 2,
    DeniedBySecond = 4,
    ReserveRepeated = 8,
    ReserveAfterEnd = 16,
    Settled = 32,
    SettledInLaterPeriod = 64,
    CorrectedAfterExpiry = 128,
    SettledWithoutHold = 256,
    EndRepeated = 512,
    Renewed = 1_024,
    LostUnacknowledged = 2_048,
    LostAcknowledged = 4_096,
    Canceled = 8_192,
    SettledAfterCancel = 16_384,
    HeldSettled = 32_768,
    UnknownMadeKnown = 65_536,
}

/// The budgets of a store, and the history that led to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    budgets: [Budget; 2],
    law: Vec<History>,
}

impl Hash for Store {
    fn hash<H: Hasher>(&self, state: &mut H) {
        postcard::to_allocvec(&self.budgets).unwrap().hash(state);
        self.law.hash(state);
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BudgetModelState {
    /// Ticks since the start.
    tick: u64,
    store: Store,
    /// The store after a failover.
    copy: Store,
    /// The number of steps that the copy lacks.
    behind: u64,
    faults: u64,
    told: Vec<Told>,
    /// False after a reply that contradicts the law.
    replies_agree: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Tick,
    Reserve(usize, u64),
    Renew(usize),
    End(usize, Charge),
    Copy,
    FailOver,
    ReplyEarly(usize),
}

impl BudgetModel {
    pub fn happened(&self, event: Happens) -> bool {
        self.seen.load(Relaxed) & event as u32 != 0
    }

    fn record(&self, event: Happens) {
        self.seen.fetch_or(event as u32, Relaxed);
    }

    fn periods_at(&self, tick: u64) -> [u64; 2] {
        self.lengths.map(|length| tick / length)
    }

    fn length(&self, index: usize) -> Nanos {
        Nanos(self.lengths[index] * TICK.0)
    }

    fn start_of(&self, index: usize, period: u64) -> Nanos {
        START.plus(Nanos(period * self.length(index).0))
    }

    fn terms(&self, index: usize) -> BudgetTerms {
        let charges = self.rules.charges_expiry && self.flaw != BudgetFlaw::ExpiryForgets;
        BudgetTerms {
            amount: Amount(self.amounts[index]),
            period: BudgetPeriod::Each(Windows::Every(self.length(index))),
            time_limit: Nanos(self.rules.time_limit * TICK.0),
            on_expiry: if charges { OnExpiry::Charge } else { OnExpiry::Release },
            is_enforced: true,
        }
    }
}

impl Model for BudgetModel {
    type State = BudgetModelState;
    type Action = Action;

    fn init_states(&self) -> Vec<BudgetModelState> {
        let law = self.requests.iter().map(|first| History::new(*first)).collect();
        let store = Store { budgets: Default::default(), law };
        vec![BudgetModelState {
            tick: 0,
            copy: store.clone(),
            store,
            behind: 0,
            faults: 0,
            told: vec![Told::default(); self.requests.len()],
            replies_agree: true,
        }]
    }

    fn actions(&self, state: &BudgetModelState, actions: &mut Vec<Action>) {
        if state.tick < self.horizon {
            actions.push(Action::Tick);
        }
        if 0 < state.behind {
            actions.push(Action::Copy);
        }
        if state.faults < self.failovers {
            actions.push(Action::FailOver);
        }
        let mays = self.failovers == 0 || state.behind < self.lag;
        for (at, law) in state.store.law.iter().enumerate().filter(|_| mays) {
            if law.phase == Phase::Over {
                continue;
            }
            actions.extend(self.estimates.iter().map(|amount| Action::Reserve(at, *amount)));
            actions.push(Action::Renew(at));
            if self.strangers || law.phase != Phase::New || state.told[at] != Told::default() {
                let settles = self.costs.iter().map(|cost| Charge::Actual(*cost));
                let charges = settles.chain([Charge::Held, Charge::Nothing]);
                actions.extend(charges.map(|charge| Action::End(at, charge)));
            }
            if self.flaw == BudgetFlaw::EarlyReply {
                actions.push(Action::ReplyEarly(at));
            }
        }
    }

    fn next_state(&self, last: &BudgetModelState, action: Action) -> Option<BudgetModelState> {
        let mut state = last.clone();
        match action {
            Action::Tick => self.tick(&mut state),
            Action::Reserve(at, amount) => self.reserve(&mut state, at, amount),
            Action::Renew(at) => self.renew(&mut state, at),
            Action::End(at, charge) => self.end(&mut state, at, charge),
            Action::Copy => self.copy(&mut state),
            Action::FailOver => self.fail_over(&mut state),
            Action::ReplyEarly(at) => state.told[at].learn(&last.store.law[at]),
        }
        if state.store != last.store && self.failovers != 0 {
            self.acknowledge(&mut state, action);
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("usage is the sum of the requests", Self::usage_is_the_sum),
            Property::always("held amounts are the open holds", Self::held_is_the_sum),
            Property::always("the excess bounds each period", Self::is_within_excess),
            Property::always("replies agree with the law", |_, state: &BudgetModelState| {
                state.replies_agree
            }),
            Property::always("lost steps bound the rest", Self::is_within_loss),
        ];
        if self.waits {
            properties
                .push(Property::always("no known step is lost", |_, state: &BudgetModelState| {
                    state.lost() == 0
                }));
        }
        if self.is_exact() {
            properties.push(Property::always("the amount bounds each period", Self::is_exact_at));
        }
        properties
    }
}

impl BudgetModel {
    /// True if no request costs more than it holds.
    fn is_exact(&self) -> bool {
        let most = self.costs.iter().max();
        self.rules.charges_expiry && !self.strangers && most <= self.estimates.iter().min()
    }

    /// The budgets of the store, brought to the current instant.
    fn current(&self, state: &BudgetModelState) -> [Budget; 2] {
        let mut budgets = state.store.budgets.clone();
        for (index, budget) in budgets.iter_mut().enumerate() {
            budget.advance(&self.terms(index), state.now());
        }
        budgets
    }

    /// The usage that the requests of each period cause, in ascending order.
    fn usage(&self, state: &BudgetModelState, index: usize) -> Vec<PeriodUsage> {
        let mut all = Vec::new();
        for period in 0..=self.periods_at(state.tick)[index] {
            let unused =
                PeriodUsage { start: self.start_of(index, period), ..PeriodUsage::default() };
            let mut usage = unused;
            for law in state.of_period(index, period) {
                usage.settled.0 += law.bill;
                usage.excess.0 += law.over;
                usage.requests += u64::from(law.was_settled);
                usage.expired += u64::from(law.had_expired);
            }
            if usage != unused {
                all.push(usage);
            }
        }
        all
    }

    fn usage_is_the_sum(&self, state: &BudgetModelState) -> bool {
        let budgets = self.current(state);
        let agrees = |index: usize| budgets[index].periods() == self.usage(state, index);
        [0, 1].into_iter().all(agrees)
    }

    fn held_is_the_sum(&self, state: &BudgetModelState) -> bool {
        let budgets = self.current(state);
        [0, 1].into_iter().all(|index| {
            let is_open = |law: &&History| law.phase == Phase::Open && law.first <= index;
            let open = state.store.law.iter().filter(is_open).count();
            let held = state.held(index, self.periods_at(state.tick)[index]);
            budgets[index].held() == Amount(held) && budgets[index].open_holds() as usize == open
        })
    }

    fn is_within_excess(&self, state: &BudgetModelState) -> bool {
        self.is_within(state, |law| law.over)
    }

    fn is_exact_at(&self, state: &BudgetModelState) -> bool {
        self.is_within(state, History::revived)
    }

    /// True if settled and held amounts exceed the amount of no period by more than the `extra` of its
    /// requests.
    fn is_within(&self, state: &BudgetModelState, extra: impl Fn(&History) -> u64) -> bool {
        let budgets = self.current(state);
        [0, 1].into_iter().all(|index| {
            (0..=self.periods_at(state.tick)[index]).all(|period| {
                let start = self.start_of(index, period);
                let used = budgets[index].periods().iter().find(|usage| usage.start == start);
                let settled = used.map_or(0, |usage| usage.settled.0);
                let extra: u64 = state.of_period(index, period).map(&extra).sum();
                settled + state.held(index, period) <= self.amounts[index] + extra
            })
        })
    }

    /// True if all clients together spend at most the amount, the excess, and the amounts of the
    /// requests with a lost step. The law is about a budget with one period.
    fn is_within_loss(&self, state: &BudgetModelState) -> bool {
        let owed: u64 = state.clients().map(|(told, _)| told.owes()).sum();
        let lost = state.clients().filter(|(told, law)| told.has_lost(law));
        let extra: u64 = lost.map(|(told, _)| told.owes()).sum();
        let excess: u64 = state.store.law.iter().map(|law| law.over).sum();
        let is_bounded = state.lost() <= self.failovers * self.lag;
        let is_within = |index: usize| owed <= self.amounts[index] + excess + extra;
        let mut single = [0, 1].into_iter().filter(|index| self.horizon < self.lengths[*index]);
        self.failovers == 0 || is_bounded && single.all(is_within)
    }
}

impl BudgetModelState {
    fn now(&self) -> Nanos {
        START.plus(Nanos(self.tick * TICK.0))
    }

    fn clients(&self) -> impl Iterator<Item = (&Told, &History)> {
        self.told.iter().zip(&self.store.law)
    }

    /// The number of requests of which the store has lost a step that their client knows.
    fn lost(&self) -> u64 {
        self.clients().map(|(told, law)| u64::from(told.has_lost(law))).sum()
    }

    fn of_period(&self, index: usize, period: u64) -> impl Iterator<Item = &History> {
        let is_it = move |law: &&History| {
            law.phase != Phase::New && law.first <= index && law.took[index] == period
        };
        self.store.law.iter().filter(is_it)
    }

    /// The amount that the open holds of a period hold.
    fn held(&self, index: usize, period: u64) -> u64 {
        let open = self.of_period(index, period).filter(|law| law.phase == Phase::Open);
        open.map(|law| law.held).sum()
    }
}
