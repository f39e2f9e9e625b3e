//! Charges the limits of one check, some of which are leased.
//!
//! - [`Rule::Each`]: every leased limit is charged alone, from its balance or with a lease call.
//! - [`Rule::AllOrNothing`]: a leased limit is charged from its balance if the balance covers the
//!   hits. All other limits are charged in one atomic store call. A denial returns the balances.
//!
//! Guarantees:
//! - A canceled check returns the hits that it took from balances.
//! - Hits taken beside a store call that failed stay charged.
//! - A check that is denied in any case spends no balance and borrows nothing.
//!
//! Not covered:
//! - The fallback after a failed store call (see `degrade`).
//! - Combining a balance with hits left in the store under `all_or_nothing`.

use std::sync::Arc;

use futures_util::future::{join, join_all};
use smallvec::SmallVec;

use super::{Held, Leased, Leases, Place, awaits_another};
use crate::backend::{Cause, Charge, Charges, Outcome, Outcomes, Rule};
use crate::engine::again::{self, Missing};
use crate::kernel::decision::{Cost, Group, Standing, Verdict};
use crate::kernel::lease::Terms;
use crate::kernel::rate::{Room, Step};
use crate::kernel::units::{Hits, Nanos};

/// The lease settings of each charge; `None` if it is not leased.
pub type AllTerms<'t> = SmallVec<[Option<&'t Terms>; 2]>;

impl Leases {
    /// Decides a check if all its charges are leased and none needs a store
    /// call. Appends their outcomes to `outcomes`, which must be empty.
    ///
    /// Otherwise returns `None`. Then nothing was spent, and the contents of
    /// `outcomes` are meaningless. Must be called within a Tokio runtime.
    pub fn at_once<'t>(
        self: &Arc<Self>,
        now: Nanos,
        charges: &Charges,
        mut terms: impl Iterator<Item = Option<&'t Terms>>,
        outcomes: &mut Outcomes,
    ) -> Option<()> {
        let is_spent = is_spent(charges.rule);
        if let (true, [charge]) = (is_spent, &charges.list[..]) {
            let (leased, hits) = leased(charge, terms.next().flatten())?;
            return self.spend(now, leased, hits, outcomes);
        }
        let all: Option<SmallVec<[(Leased<'_>, Hits); 2]>> =
            charges.list.iter().zip(terms).map(|(charge, terms)| leased(charge, terms)).collect();
        let (all, mut taken) = (all?, Taken::of(self, charges));
        for (at, (leased, hits)) in all.iter().enumerate() {
            outcomes.push(taken.take(at, now, *leased, *hits)?);
        }
        for (leased, hits) in all.into_iter().filter(|_| is_spent) {
            self.count(now, leased, hits);
        }
        taken.settle(charges, outcomes);
        Some(())
    }

    /// Charges a check that [`at_once`](Self::at_once) does not decide.
    pub async fn charge(
        self: &Arc<Self>,
        now: Nanos,
        charges: &Charges,
        terms: &[Option<&Terms>],
    ) -> Outcomes {
        match charges.rule {
            Rule::Each => self.each(now, charges, terms).await,
            // Also for a single charge: a fixed window would count the denied hits of a lease call.
            Rule::AllOrNothing { .. } | Rule::Ask => self.together(now, charges, terms).await,
        }
    }

    /// Forgets the remembered denials of counters that `charges` refund, under
    /// any limit. Call it before the refunds are sent, and again after the reply.
    pub fn forget_denials(&self, charges: &Charges) {
        let refunds = charges.list.iter().filter(|charge| matches!(charge.cost, Cost::Refund(_)));
        for charge in refunds {
            let (now, place) = (self.clock.now(), self.place(&charge.key));
            if let Some(held) = self.shard(place).get_mut(&place) {
                held.forget_denial(now);
            }
        }
    }

    async fn each(
        self: &Arc<Self>,
        now: Nanos,
        charges: &Charges,
        terms: &[Option<&Terms>],
    ) -> Outcomes {
        let leased = |at: usize| leased(charges.list.get(at)?, *terms.get(at)?);
        let plain = Missing::of(charges, |at| leased(at).is_none(), charges.rule);
        let asked = (0..charges.list.len()).filter_map(|at| Some((at, leased(at)?)));
        let asks =
            asked.map(|(at, (leased, hits))| async move { (at, self.ask(leased, hits).await) });
        let rest = async {
            if plain.charges.list.is_empty() {
                return Outcomes::new();
            }
            self.charge_plainly(now, &plain.charges).await
        };
        let mut outcomes = unknown(charges);
        let (answered, asked) = join(rest, join_all(asks)).await;
        plain.put(answered, &mut outcomes);
        for (at, outcome) in asked {
            outcomes[at] = outcome;
        }
        outcomes
    }

    /// Charges all or nothing: each leased limit from its balance if that
    /// covers the hits, and all other limits in one atomic store call.
    async fn together(
        self: &Arc<Self>,
        now: Nanos,
        charges: &Charges,
        terms: &[Option<&Terms>],
    ) -> Outcomes {
        let leased = |at: usize| leased(charges.list.get(at)?, *terms.get(at)?);
        let at_each = || (0..charges.list.len()).filter_map(|at| Some((at, leased(at)?)));
        if is_spent(charges.rule) {
            let now = self.clock.now();
            at_each().for_each(|(_, (leased, hits))| self.count(now, leased, hits));
        }
        let (mut taken, mut outcomes) = (Taken::of(self, charges), unknown(charges));
        let mut is_known: SmallVec<[bool; 2]> = SmallVec::from_elem(false, charges.list.len());
        for (at, (leased, hits)) in at_each() {
            if let Some(outcome) = taken.take(at, self.clock.now(), leased, hits) {
                (outcomes[at], is_known[at]) = (outcome, true);
            }
        }
        let asked = || at_each().filter(|(at, _)| !is_known[*at]);
        let before: SmallVec<[Hits; 2]> =
            asked().map(|(_, (leased, _))| self.held(self.clock.now(), leased)).collect();
        let rule = rest(charges, &outcomes, &is_known);
        let missing = Missing::of(charges, |at| !is_known[at], rule);
        if !missing.charges.list.is_empty() {
            let answered = self.charge_plainly(now, &missing.charges).await;
            missing.put(answered, &mut outcomes);
        }
        for ((at, (leased, _)), before) in asked().zip(before) {
            outcomes[at] = self.with_balance(leased, before, outcomes[at]);
        }
        if taken.settle(charges, &mut outcomes) == Verdict::Admit {
            let now = self.clock.now();
            asked().for_each(|(_, (leased, hits))| self.stock(now, leased, hits));
        }
        outcomes
    }

    pub(super) fn held(&self, now: Nanos, leased: Leased<'_>) -> Hits {
        self.with(leased, |held| held.balance(now)).unwrap_or_default()
    }

    fn count(self: &Arc<Self>, now: Nanos, leased: Leased<'_>, hits: Hits) {
        self.with(leased, |held| held.count(now, hits));
    }

    /// Refills a lease in the background after a strict charge.
    /// The first check of a key only creates the lease.
    fn stock(self: &Arc<Self>, now: Nanos, leased: Leased<'_>, hits: Hits) {
        let place = self.place(&leased.charge.key);
        let mut shard = self.shard(place);
        if self.is_leaving() || awaits_another(&shard, place, leased) {
            return;
        }
        if !shard.get(&place).is_some_and(|held| held.is_of(leased)) {
            let before = self.begin(&mut shard, place, leased, now);
            self.tell_later(before);
            if let Some(held) = shard.get_mut(&place) {
                held.count(now, hits);
            }
        } else if let Some(held) = shard.get_mut(&place)
            && held.balance(now) < hits
            && let Some(borrow) = held.borrow(now, self.next(), Hits(0))
        {
            self.send_together(vec![(self.message(held.leased(), borrow), None)]);
        }
    }

    pub(super) fn with<T>(
        &self,
        leased: Leased<'_>,
        act: impl FnOnce(&mut Held) -> T,
    ) -> Option<T> {
        let place = self.place(&leased.charge.key);
        let mut shard = self.shard(place);
        shard.get_mut(&place).filter(|held| held.is_of(leased)).map(act)
    }
}

/// The hits that a check took from balances. They are put back unless the check is allowed.
struct Taken<'l> {
    leases: &'l Arc<Leases>,
    /// `false` if the check is denied in any case. Then its hits are put
    /// back at once, so that other checks can use them while this one waits.
    is_spent: bool,
    parts: SmallVec<[Part; 2]>,
}

struct Part {
    at: usize,
    place: Place,
    hits: Hits,
    epoch: u64,
}

impl<'l> Taken<'l> {
    fn of(leases: &'l Arc<Leases>, charges: &Charges) -> Self {
        Self { leases, is_spent: is_spent(charges.rule), parts: SmallVec::new() }
    }

    /// Returns the outcome of charge `at`, if its lease
    /// can decide. Takes the hits if they are allowed.
    fn take(&mut self, at: usize, now: Nanos, leased: Leased<'_>, hits: Hits) -> Option<Outcome> {
        let place = self.leases.place(&leased.charge.key);
        let mut shard = self.leases.shard(place);
        let held = shard.get_mut(&place).filter(|held| held.is_of(leased))?;
        let outcome = held.take(now, hits)?;
        if outcome.denies() {
            return Some(outcome);
        }
        if self.is_spent {
            self.parts.push(Part { at, place, hits, epoch: held.epoch() });
            return Some(outcome);
        }
        held.put_back(now, hits, held.epoch());
        Some(Outcome::Stepped(Step::Admit(held.room(now))))
    }

    /// Marks the hits as spent, or puts them back if `outcomes` deny the check.
    /// Then the outcomes of these charges show the headroom without them.
    fn settle(mut self, charges: &Charges, outcomes: &mut Outcomes) -> Verdict {
        let now = self.leases.clock.now();
        if again::denied(charges, outcomes) {
            for part in std::mem::take(&mut self.parts) {
                if let Some(room) = part.put_back(self.leases, now) {
                    outcomes[part.at] = Outcome::Stepped(Step::Admit(room));
                }
            }
            return Verdict::Deny;
        }
        for part in std::mem::take(&mut self.parts) {
            if let Some(held) = self.leases.shard(part.place).get_mut(&part.place) {
                held.let_go(part.hits, part.epoch);
                self.leases.borrow_ahead(held, now);
            }
        }
        Verdict::Admit
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let now = self.leases.clock.now();
        for part in &self.parts {
            part.put_back(self.leases, now);
        }
    }
}

impl Part {
    fn put_back(&self, leases: &Leases, now: Nanos) -> Option<Room> {
        let mut shard = leases.shard(self.place);
        let held = shard.get_mut(&self.place)?;
        held.put_back(now, self.hits, self.epoch);
        Some(held.room(now))
    }
}

/// Returns `false` if the check is denied in any case.
const fn is_spent(rule: Rule) -> bool {
    match rule {
        Rule::Each | Rule::AllOrNothing { .. } => true,
        Rule::Ask => false,
    }
}

fn leased<'c>(charge: &'c Charge, terms: Option<&Terms>) -> Option<(Leased<'c>, Hits)> {
    match (charge.cost, terms) {
        (Cost::Charge(hits), Some(terms)) => Some((Leased { charge, terms: *terms }, hits)),
        _ => None,
    }
}

/// Returns the charge mode for the charges without an outcome. If the
/// known outcomes deny the check, the others must not be charged.
fn rest(charges: &Charges, outcomes: &Outcomes, is_known: &[bool]) -> Rule {
    let Rule::AllOrNothing { quota_for_all, rescued } = charges.rule else { return charges.rule };
    if again::denied(charges, outcomes) {
        return Rule::Ask;
    }
    let passes = |at: usize| {
        let Standing { group, shadow } = charges.list[at].standing;
        let in_quota = group == Group::Quota || quota_for_all && group == Group::Enforced;
        in_quota && (shadow || !outcomes[at].denies())
    };
    let rescued = rescued || (0..is_known.len()).any(|at| is_known[at] && passes(at));
    Rule::AllOrNothing { quota_for_all, rescued }
}

/// Returns a placeholder outcome for each charge; it is not a denial.
fn unknown(charges: &Charges) -> Outcomes {
    charges.list.iter().map(|_| Outcome::Failed(Cause::NotUnderstood)).collect()
}
