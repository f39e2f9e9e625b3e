//! What the caller gets when the store of counters does not answer.
//!
//! Guarantees: pure but for the counters in [`Local`]; each limit's own `on_backend_failure` decides
//! for it; `error` on any limit that was not answered refuses the whole question, before anything
//! is counted here; a part is whole hits and all parts together are at most the limit.
//! Leaves out: why the store does not answer; putting what was counted here to the store when it is
//! back; parts by the number of replicas that live, and the remainders of the division, which go to
//! nobody: both need membership, until which `replicas_min` is the number.

use std::num::NonZeroU32;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Refusal;
use super::plan::{Part, Plan};
use crate::backend::memory::Memory;
use crate::backend::{Backend as _, Charge, Charges, Outcome, Outcomes, Reply};
use crate::config::OnBackendFailure;
use crate::kernel::decision::{Cause, Cost, Reason, Verdict};
use crate::kernel::rate::fixed_window::FixedWindow;
use crate::kernel::rate::gcra::Gcra;
use crate::kernel::rate::limit::Tick;
use crate::kernel::rate::sliding_log::SlidingLog;
use crate::kernel::rate::sliding_window::SlidingWindow;
use crate::kernel::rate::{Room, Step, Strategy};
use crate::kernel::units::Nanos;
use crate::telemetry::event::BackendFailed;

/// Where `on_backend_failure: local` counts.
#[derive(Clone, Debug)]
pub struct Local {
    /// This replica's own counters.
    pub memory: Arc<Memory>,
    /// How many replicas a limit is divided by.
    pub replicas: NonZeroU32,
}

/// A charge's outcome, whoever gave it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Settled {
    /// The store.
    Answered(Outcome),
    /// `on_backend_failure`.
    Ruled(Verdict, Reason),
    /// This replica's part.
    Local(Outcome),
    /// Nobody: another limit of the question was known to deny it.
    NotAsked,
}

/// Whether the store left any charge unanswered.
pub(super) fn is_needed(outcomes: &[Outcome]) -> bool {
    outcomes.iter().any(|outcome| cause(*outcome).is_some())
}

/// Settles every charge of `plan`.
///
/// # Errors
/// [`Refusal::BackendDown`] where a charge was not answered and its limit says `error`.
#[cold]
pub(super) fn settle(
    plan: &Plan<'_>,
    outcomes: &[Outcome],
    local: Option<&Local>,
    now: Nanos,
) -> Result<SmallVec<[Settled; 2]>, Refusal> {
    let rules = || plan.parts.iter().filter_map(Part::on_failure);
    for cause in outcomes.iter().filter_map(|outcome| cause(*outcome)) {
        BackendFailed { cause, charges: 1 }.emit();
    }
    for (rule, outcome) in rules().zip(outcomes) {
        let refuses =
            rule == OnBackendFailure::Error || rule == OnBackendFailure::Local && local.is_none();
        if let (true, Some(cause)) = (refuses, cause(*outcome)) {
            return Err(Refusal::BackendDown(cause));
        }
    }
    let counts = |(rule, outcome): (OnBackendFailure, &Outcome)| {
        rule == OnBackendFailure::Local && cause(*outcome).is_some()
    };
    let ours: SmallVec<[&Charge; 2]> = plan
        .charges
        .list
        .iter()
        .zip(rules().zip(outcomes))
        .filter_map(|(charge, each)| counts(each).then_some(charge))
        .collect();
    let counted = local.map(|local| local.charge(&ours, plan, now)).unwrap_or_default();
    let mut counted = counted.into_iter();
    let settled = rules().zip(outcomes).map(|(rule, outcome)| match (cause(*outcome), rule) {
        (None, _) => Settled::Answered(*outcome),
        (_, OnBackendFailure::Allow) => Settled::Ruled(Verdict::Admit, Reason::BackendDownAllowed),
        (_, OnBackendFailure::Deny | OnBackendFailure::Error) => {
            Settled::Ruled(Verdict::Deny, Reason::BackendDownDenied)
        }
        (_, OnBackendFailure::Local) => Settled::Local(counted.next().unwrap_or(NOTHING)),
    });
    Ok(settled.collect())
}

/// The outcome of a part of no hits.
const NOTHING: Outcome = Outcome::Stepped(Step::Never(Room {
    remaining: crate::kernel::units::Hits(0),
    reset_after: Nanos(0),
}));

const fn cause(outcome: Outcome) -> Option<Cause> {
    match outcome {
        Outcome::Failed(cause) => Some(cause),
        Outcome::Stale(_) => Some(Cause::Stale),
        Outcome::Stepped(_) | Outcome::Refunded(_) | Outcome::Full(_) => None,
    }
}

impl Local {
    /// Puts `charges` to their parts; one outcome each, in order.
    fn charge(&self, charges: &[&Charge], plan: &Plan<'_>, now: Nanos) -> Outcomes {
        let part_of = |charge: &&Charge| part(&charge.strategy, self.replicas);
        let parts: SmallVec<[Option<Strategy>; 2]> = charges.iter().map(part_of).collect();
        let list = charges.iter().zip(&parts).filter_map(|(charge, part)| {
            part.map(|strategy| Charge { strategy, ..(*charge).clone() })
        });
        let asked = Charges { list: list.collect(), rule: plan.charges.rule };
        let answered = match self.memory.charge(now, &asked) {
            Reply::Now(outcomes) => outcomes,
            // Memory is at hand; what is not has no part.
            Reply::Later(_) => Outcomes::new(),
        };
        let mut answered = answered.into_iter();
        let outcome = |(charge, part): (&&Charge, &Option<Strategy>)| match (part, charge.cost) {
            (Some(_), _) => answered.next().unwrap_or(NOTHING),
            (None, Cost::Charge(_)) => NOTHING,
            (None, Cost::Refund(_)) => Outcome::Refunded(Step::Admit(Room::default())),
        };
        charges.iter().zip(&parts).map(outcome).collect()
    }
}

/// One of `replicas` equal parts of a limit; none where the limit has fewer hits than replicas.
///
/// Whole hits, rounded down; GCRA's burst is divided so, and its rate exactly.
#[must_use]
pub fn part(whole: &Strategy, replicas: NonZeroU32) -> Option<Strategy> {
    if replicas == NonZeroU32::MIN {
        return Some(*whole);
    }
    let most = Some(whole.most() / replicas).filter(|most| 0 < *most)?;
    match whole {
        Strategy::Gcra(gcra) => {
            let worth = gcra.worth();
            let ticks = worth.ticks.get().checked_mul(u64::from(replicas.get()))?;
            Gcra::new(worth.hits, period(gcra.tick(), ticks)?, most).ok().map(Strategy::Gcra)
        }
        Strategy::FixedWindow(window) => {
            FixedWindow::new(most, *window.windows()).ok().map(Strategy::FixedWindow)
        }
        Strategy::SlidingWindow(window) => {
            let period = period(window.tick(), window.worth().ticks.get())?;
            SlidingWindow::new(most, period).ok().map(Strategy::SlidingWindow)
        }
        Strategy::SlidingLog(log) => {
            SlidingLog::new(most, log.period()).ok().map(Strategy::SlidingLog)
        }
    }
}

fn period(tick: Tick, ticks: u64) -> Option<Nanos> {
    ticks.checked_mul(tick.size().0).map(Nanos)
}
