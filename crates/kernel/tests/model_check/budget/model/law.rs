//! The history of each request, from which the model computes every amount.

/// The state of a request by its history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    #[default]
    New,
    Open,
    /// Expired or canceled. A settle still corrects the charge.
    Correctable,
    Settled,
    /// Its messages have arrived or are lost.
    Over,
}

/// The history of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct History {
    pub phase: Phase,
    /// The first budget that the request meets. It also meets all later ones.
    pub first: usize,
    /// The amount of the open hold; 0 after it, so that equal states have one form.
    pub held: u64,
    /// What the request is charged.
    pub bill: u64,
    /// What it cost more than it held.
    pub over: u64,
    /// The period of each budget.
    pub took: [u64; 2],
    pub had_expired: bool,
    /// True after an end without a charge: a cancel, or an unknown cost without a hold.
    pub was_canceled: bool,
    pub was_settled: bool,
    /// Ticks until the hold expires, or until no message of the request arrives.
    left: u64,
}

/// The charge with which a request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charge {
    Actual(u64),
    /// The held amount, because the cost is unknown.
    Held,
    Nothing,
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
            Phase::Correctable | Phase::Settled | Phase::Over => self.bill,
        }
    }

    /// The first settle is the last word. An expiry or a cancel before it is provisional.
    pub fn end(&mut self, charge: Charge, periods: [u64; 2], rules: Rules) {
        if !self.changes_with(charge) {
            return;
        }
        if self.phase == Phase::New {
            self.took = periods;
        }
        let settled = match charge {
            Charge::Actual(cost) => Some(cost),
            Charge::Held if self.phase == Phase::Open => Some(self.held),
            Charge::Held | Charge::Nothing => None,
        };
        let bill = settled.unwrap_or_default();
        self.over = bill.saturating_sub(self.counted());
        self.phase = if settled.is_some() { Phase::Settled } else { Phase::Correctable };
        (self.held, self.bill, self.left) = (0, bill, rules.late);
        self.was_canceled |= settled.is_none();
        self.was_settled = settled.is_some();
    }

    /// Returns `false` for an end that the request ignores.
    pub fn changes_with(&self, charge: Charge) -> bool {
        match self.phase {
            Phase::New | Phase::Open => true,
            Phase::Correctable => charge != Charge::Held,
            Phase::Settled | Phase::Over => false,
        }
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Settled | Phase::Over)
    }

    /// The cost of a request that settled after a cancel, which had freed its amount for others.
    pub fn revived(&self) -> u64 {
        if self.was_canceled { self.bill } else { 0 }
    }

    pub fn tick(&mut self, rules: Rules) {
        self.left = self.left.saturating_sub(1);
        match self.phase {
            Phase::Open if self.left == 0 => {
                (self.phase, self.left, self.had_expired) = (Phase::Correctable, rules.late, true);
                let held = std::mem::take(&mut self.held);
                self.bill = if rules.charges_expiry { held } else { 0 };
            }
            Phase::Correctable | Phase::Settled if self.left == 0 => self.phase = Phase::Over,
            Phase::New | Phase::Open | Phase::Correctable | Phase::Settled | Phase::Over => {}
        }
    }
}

/// What a client knows from the replies to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Told {
    pub held: u64,
    pub is_canceled: bool,
    pub cost: Option<u64>,
}

impl Told {
    /// A client keeps the first settle that it learns.
    pub fn learn(&mut self, law: &History) {
        if self.cost.is_some() {
        } else if law.has_ended() {
            *self = Self { cost: Some(law.bill), ..Self::default() };
        } else if law.was_canceled {
            *self = Self { is_canceled: true, ..Self::default() };
        } else if law.phase == Phase::Open && !self.is_canceled {
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
            None if self.is_canceled => !law.was_canceled,
            None => 0 < self.held && law.phase == Phase::New,
        }
    }
}
