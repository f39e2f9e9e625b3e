//! Charges strikes to the store, and begins bans.

use smallvec::smallvec;

use super::list::BannedCounter;
use super::{Strike, ban_paths};
use crate::Engine;
use crate::events::BanAction;
use crate::kernel::decision::{Cost, Enforcement};
use crate::kernel::key::CounterKey;
use crate::kernel::rate::limit::EXACT_BOUND;
use crate::kernel::rate::{CounterDecision, Strategy};
use crate::kernel::units::{Hits, Nanos};
use crate::store::{Charge, ChargeMode, ChargeOutcome, Charges, Outcomes};
use crate::telemetry::event::{BanEvent, Event as _};

/// The strikes that are in flight at once.
const BATCH: usize = 64;

impl Strike {
    /// Returns the charge of another counter, beside that of the limit.
    fn charge(&self, key: CounterKey, strategy: Strategy, cost: Cost) -> Charge {
        let standing = Enforcement::default();
        Charge { key, strategy, cost, standing, ..self.charge.clone() }
    }

    /// Adds the strike, and reads whether the key is banned.
    fn count(&self) -> Charges {
        let (key, penalty) = (&self.charge.key, &self.penalty);
        let strike = self.charge(key.strikes(), penalty.strikes(), Cost::Charge(Hits(1)));
        let ban = self.charge(key.ban(), penalty.ban_peek(), Cost::Charge(Hits(0)));
        Charges { list: smallvec![strike, ban], mode: ChargeMode::Each }
    }

    /// Begins the ban, and removes the strikes.
    fn begin(&self) -> Charges {
        let (key, penalty) = (&self.charge.key, &self.penalty);
        let ban = self.charge(key.ban(), penalty.ban(), Cost::Charge(Hits(1)));
        Charges { list: smallvec![ban, self.no_strikes()], mode: ChargeMode::Each }
    }

    /// Ends the ban, and removes the strikes.
    pub(super) fn lift(&self) -> Charges {
        let all = Cost::Refund(Hits(EXACT_BOUND));
        let ban = self.charge(self.charge.key.ban(), self.penalty.ban(), all);
        Charges { list: smallvec![ban, self.no_strikes()], mode: ChargeMode::Each }
    }

    fn no_strikes(&self) -> Charge {
        let all = Cost::Refund(Hits(EXACT_BOUND));
        self.charge(self.charge.key.strikes(), self.penalty.strikes(), all)
    }

    pub(super) fn counter(&self) -> BannedCounter {
        BannedCounter { key: self.charge.key.as_bytes().into(), length: self.penalty.length() }
    }
}

/// The state of a counter of a penalty.
enum PenaltyCounter {
    /// More hits fit.
    Open,
    /// The last hit was used.
    UsedUp,
    /// No hit fits for this time.
    Denied(Nanos),
    /// The store did not count.
    Unknown,
}

impl PenaltyCounter {
    fn read(outcomes: &Outcomes, index: usize) -> Self {
        match outcomes.get(index) {
            Some(ChargeOutcome::Decided(decision) | ChargeOutcome::Counted(decision, _)) => {
                match decision {
                    CounterDecision::Allow(room) if room.remaining == Hits(0) => Self::UsedUp,
                    CounterDecision::Allow(_) => Self::Open,
                    CounterDecision::Deny { retry_after, .. } => Self::Denied(*retry_after),
                    CounterDecision::ExceedsLimit(_) | CounterDecision::OutsideWindows => {
                        Self::Unknown
                    }
                }
            }
            _ => Self::Unknown,
        }
    }
}

impl Engine {
    /// Counts a strike: at once if the store replies at once, otherwise in the background.
    pub(super) fn strike(&self, strike: Strike) {
        use futures_util::FutureExt as _;
        if self.store().is_synchronous() {
            let _always_ready = self.charge_strike(strike).now_or_never();
        } else if !self.bans.add_strike(strike) {
            BanEvent::StrikeLost.emit();
        }
    }

    /// Counts strikes in the store whenever there are some. Never returns.
    pub async fn charge_strikes_forever(&self) {
        loop {
            self.bans.has_strikes.notified().await;
            self.charge_strikes().await;
        }
    }

    /// Counts the strikes that wait.
    pub async fn charge_strikes(&self) {
        loop {
            let strikes = self.bans.take_strikes(BATCH);
            if strikes.is_empty() {
                return;
            }
            let calls = strikes.into_iter().map(|strike| self.charge_strike(strike));
            futures_util::future::join_all(calls).await;
        }
    }

    async fn charge_strike(&self, strike: Strike) {
        let outcomes = self.charge_store(self.clock.now(), &strike.count(), None).await;
        if let PenaltyCounter::Denied(left) = PenaltyCounter::read(&outcomes, 1) {
            // Another replica began the ban, or this one before its start.
            self.add_ban(&strike, left);
            return;
        }
        match PenaltyCounter::read(&outcomes, 0) {
            PenaltyCounter::Open => {}
            PenaltyCounter::Unknown => BanEvent::StrikeLost.emit(),
            PenaltyCounter::UsedUp | PenaltyCounter::Denied(_) => self.begin_ban(strike).await,
        }
    }

    async fn begin_ban(&self, strike: Strike) {
        let outcomes = self.charge_store(self.clock.now(), &strike.begin(), None).await;
        match PenaltyCounter::read(&outcomes, 0) {
            PenaltyCounter::UsedUp | PenaltyCounter::Open => {
                if self.add_ban(&strike, strike.penalty.length()) {
                    BanEvent::Began.emit();
                    let now = self.clock.now();
                    let until = now.plus(strike.penalty.length());
                    let config = self.config();
                    let paths = config.and_then(|config| ban_paths(&config, &strike.name));
                    let path = paths.map(|paths| paths.limit);
                    self.send_ban(BanAction::Began(until), (&strike.name, path), now);
                }
            }
            PenaltyCounter::Denied(left) => {
                self.add_ban(&strike, left);
            }
            PenaltyCounter::Unknown => BanEvent::StrikeLost.emit(),
        }
    }

    /// Adds a ban to the list. Returns `false` if the list is full.
    fn add_ban(&self, strike: &Strike, left: Nanos) -> bool {
        let (now, name) = (self.clock.now(), strike.name.clone());
        let has_room = self.bans.change(|list| list.begin(name, &strike.counter(), left, now));
        if !has_room {
            BanEvent::Refused.emit();
        }
        has_room
    }
}
