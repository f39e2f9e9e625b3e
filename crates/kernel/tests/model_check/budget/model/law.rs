//! The history of each request, from which the model computes every amount.

/// The state of a request by its history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    #[default]
    New,
    Open,
    Expired,
    Ended,
    /// Its messages have arrived or are lost.
    Over,
}

/// The history of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct History {
    pub phase: Phase,
    /// The first budget that the request meets. It also meets all later ones.
    pub first: usize,
    pub held: u64,
    /// What the request is charged.
    pub bill: u64,
    /// What it cost more than it held.
    pub over: u64,
    /// The period of each budget.
    pub took: [u64; 2],
    pub had_expired: bool,
    pub was_settled: bool,
    /// Ticks until the hold expires, or until no message of the request arrives.
    left: u64,
}

/// The rules of all requests, in ticks.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    pub time_limit: u64,
    /// The time after the end of a request in which its messages may arrive.
    pub late: u64,
    pub charges_expiry: bool,
}

impl History {
    pub fn new(first: usize) -> Self {
        Self { first, ..Self::default() }
    }

    pub fn reserve(&mut self, amount: u64, periods: [u64; 2], rules: Rules) {
        let (phase, left) = (Phase::Open, rules.time_limit);
        *self = Self { phase, held: amount, took: periods, left, ..Self::new(self.first) };
    }

    pub fn renew(&mut self, rules: Rules) {
        if self.phase == Phase::Open {
            self.left = rules.time_limit;
        }
    }

    /// The amount that counts before the request ends.
    pub fn counted(&self) -> u64 {
        match self.phase {
            Phase::New => 0,
            Phase::Open => self.held,
            Phase::Expired | Phase::Ended | Phase::Over => self.bill,
        }
    }

    /// Only the first end counts. `None` is a cancel.
    pub fn end(&mut self, actual: Option<u64>, periods: [u64; 2], rules: Rules) {
        if self.has_ended() {
            return;
        }
        if self.phase == Phase::New {
            self.took = periods;
        }
        let bill = actual.unwrap_or_default();
        self.over = bill.saturating_sub(self.counted());
        (self.phase, self.bill, self.left) = (Phase::Ended, bill, rules.late);
        self.was_settled = actual.is_some();
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended | Phase::Over)
    }

    pub fn tick(&mut self, rules: Rules) {
        self.left = self.left.saturating_sub(1);
        match self.phase {
            Phase::Open if self.left == 0 => {
                (self.phase, self.left, self.had_expired) = (Phase::Expired, rules.late, true);
                self.bill = if rules.charges_expiry { self.held } else { 0 };
            }
            Phase::Expired | Phase::Ended if self.left == 0 => self.phase = Phase::Over,
            Phase::New | Phase::Open | Phase::Expired | Phase::Ended | Phase::Over => {}
        }
    }
}

/// What a client knows from the replies to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Told {
    pub held: u64,
    pub cost: Option<u64>,
}

impl Told {
    /// A client keeps the first end that it learns.
    pub fn learn(&mut self, law: &History) {
        if self.cost.is_some() {
        } else if law.has_ended() {
            self.cost = Some(law.bill);
        } else if law.phase == Phase::Open {
            self.held = law.held;
        }
    }

    /// The amount that the client has settled, or may still spend.
    pub fn owes(&self) -> u64 {
        self.cost.unwrap_or(self.held)
    }

    /// Returns `true` if the store has lost a step that the client knows.
    pub fn has_lost(&self, law: &History) -> bool {
        match self.cost {
            Some(cost) => !law.has_ended() || law.bill != cost,
            None => 0 < self.held && law.phase == Phase::New,
        }
    }
}
