//! An engine that makes recorded calls.
//!
//! Guarantees:
//! - A check uses its budgets before its rate limits, as in a replica.
//! - Holds expire at the recorded times.
//! - The settle of a request that was denied in the recording or here is ignored: the usage of a denied
//!   request is unknown. A request that is admitted only here costs its estimate when its hold expires.
//! - A prepaid budget denies nothing, because a recording has no top-ups.
//!
//! Memory: about 50 bytes for each denied request with an id.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::FutureExt as _;

use crate::clock::Clock;
use crate::config::Config;
use crate::config::budget::{BudgetUnit, BudgetWindow};
use crate::engine::budgets::{BudgetUse, Reserve, hold_id};
use crate::engine::{
    AdmissionOutcome, Decision, DecisionPolicy, Engine, KeyNaming, OverridePolicy, PermitLifetime,
    PlanSettings, Rejection, RequestStart,
};
use crate::kernel::budget::{Amount, HoldId};
use crate::kernel::decision::{Check, Reason, Verdict};
use crate::kernel::units::Nanos;
use crate::recording::{
    RecordedBudgets, RecordedCall, RecordedOverrides, RecordedPlanning, RecordedReserve,
    RecordingHeader,
};
use crate::store::memory::{MemoryStore, WhenFull};

/// The largest number of counters. One needs 32 to 40 bytes.
const MAX_COUNTERS: usize = 20_000_000;

/// The number of shards that are swept for each recorded second.
const SHARDS_PER_SECOND: u64 = 17;

/// The real engine with the memory store, on the recorded time.
pub(super) struct ReplayEngine {
    engine: Engine,
    store: Arc<MemoryStore>,
    now: Nanos,
    swept_at: Nanos,
    /// The units of the prepaid budgets.
    prepaid_units: HashSet<BudgetUnit>,
    /// The requests that were denied, in the recording or here.
    without_usage: HashSet<HoldId>,
}

/// The decision of a replayed check.
pub(super) struct ReplayedDecision {
    pub(super) verdict: Verdict,
    /// The path of the rule that denied. `None` if a limit of the request denied.
    pub(super) denied_by: Option<Arc<str>>,
    /// The index of the descriptor that denied, and the number of its entries in the key.
    pub(super) denied_key: Option<(usize, usize)>,
}

impl ReplayEngine {
    pub(super) fn new(config: Config, header: &RecordingHeader) -> Self {
        let now = header.started_at;
        let store = Arc::new(MemoryStore::new(MAX_COUNTERS, WhenFull::Deny, [0; 16]));
        let policy = DecisionPolicy {
            planning: planning(header.planning),
            max_counted_rules: 0,
            ..DecisionPolicy::default()
        };
        let engine = Engine::new(Clock::manual(now), store.clone(), policy);
        let budgets = config.domains.values().flat_map(|domain| domain.tree.budgets());
        let prepaid = budgets.filter(|budget| budget.window == BudgetWindow::Prepaid);
        let prepaid_units = prepaid.map(|budget| budget.unit).collect();
        engine.publish(Arc::new(config));
        let without_usage = HashSet::new();
        Self { engine, store, now, swept_at: now, prepaid_units, without_usage }
    }

    /// Decides a recorded check at its time, with its budgets. `None` if the check is invalid.
    pub(super) fn decide_call(&mut self, call: &RecordedCall<'_>) -> Option<ReplayedDecision> {
        let RecordedCall { check, decision, budgets } = call;
        let reserve = match budgets {
            RecordedBudgets::Reserve(reserve) => Some((reserve, reserve.covered_part(check))),
            RecordedBudgets::Charge if self.engine.has_budgets() => None,
            _ => {
                let decision = self.decide(decision.time, check)?;
                return Some(ReplayedDecision::of_limits(check, decision));
            }
        };
        self.advance_to(decision.time);
        self.fill_prepaid(reserve.as_ref().map_or(check, |(_, covered)| covered));
        let budgets = match &reserve {
            Some((RecordedReserve { id, tokens, .. }, covered)) => {
                BudgetUse::Reserve(Reserve { id, covered, tokens: *tokens })
            }
            None => BudgetUse::Charge,
        };
        let no_permits = Check { descriptors: std::iter::empty().collect(), ..*check };
        let start = RequestStart { covered: &no_permits, budgets };
        let admitted = self.engine.admit_request(start, check, None, PermitLifetime::UntilReleased);
        // The memory store replies at once.
        let admitted = admitted.now_or_never()?.ok()?;
        if let Some((reserve, _)) = reserve {
            self.note_usage((check.domain, reserve), &admitted);
        }
        Some(match admitted {
            AdmissionOutcome::Decided(decision, _) => ReplayedDecision::of_limits(check, decision),
            AdmissionOutcome::Rejected(rejection) => self.rejected(check, &rejection),
        })
    }

    /// Ends or renews the holds of a request.
    pub(super) fn end_call(&mut self, call: &RecordedCall<'_>) {
        let RecordedCall { check, decision, budgets } = call;
        self.advance_to(decision.time);
        let has_usage = |id| !self.without_usage.contains(&hold_id(check.domain, id));
        match *budgets {
            RecordedBudgets::Settle(id, usage) if has_usage(id) => {
                let _settled = self.engine.settle(check, id, usage, None).now_or_never();
            }
            RecordedBudgets::Renew(id) if has_usage(id) => {
                let _renewed = self.engine.renew_budgets(check, id, None).now_or_never();
            }
            _ => {}
        }
    }

    /// Notes whether the recorded settle of a request has its usage.
    fn note_usage(
        &mut self,
        (domain, reserve): (&str, &RecordedReserve<&str>),
        admitted: &AdmissionOutcome,
    ) {
        let id = hold_id(domain, reserve.id);
        match admitted {
            // The settle is that of the first request with this id.
            AdmissionOutcome::Rejected(rejection) if rejection.reason == Reason::RepeatedId => {}
            AdmissionOutcome::Decided(decision, _)
                if reserve.is_admitted && decision.verdict == Verdict::Allow =>
            {
                self.without_usage.remove(&id);
            }
            _ => {
                self.without_usage.insert(id);
            }
        }
    }

    /// Tops up the prepaid budgets of a check, each once.
    fn fill_prepaid(&self, check: &Check<'_>) {
        for unit in &self.prepaid_units {
            let all = (Amount::bounded(u64::MAX), *unit);
            let _filled = self.engine.top_up(check, "replay", all, None).now_or_never();
        }
    }

    /// Returns the denial by a budget.
    fn rejected(&self, check: &Check<'_>, rejection: &Rejection) -> ReplayedDecision {
        let config = self.engine.config();
        let domain = config.as_ref().and_then(|config| config.domains.get(check.domain));
        let key_length = |entries: &[_]| {
            let budgets = domain?.tree.lookup_budgets(entries);
            let denied = budgets.iter().find(|found| *found.rule.path == *rejection.path);
            denied.map(|found| found.entries)
        };
        let mut keys = check.descriptors.iter().map(|one| key_length(&one.entries)).enumerate();
        ReplayedDecision {
            verdict: Verdict::Deny,
            denied_by: Some((*rejection.path).into()),
            denied_key: keys.find_map(|(index, length)| Some((index, length?))),
        }
    }

    /// Decides a check at `time`, or now if `time` is earlier. `None` if the check is invalid.
    pub(super) fn decide(&mut self, time: Nanos, check: &Check<'_>) -> Option<Decision> {
        self.advance_to(time);
        // The memory store replies at once.
        self.engine.decide(check).now_or_never()?.ok()
    }

    /// Returns how many checks were denied because there were too many counters.
    pub(super) fn times_full(&self) -> u64 {
        self.store.times_full()
    }

    fn advance_to(&mut self, time: Nanos) {
        if let Clock::Manual(clock) = self.engine.clock() {
            clock.advance(time.since(self.now));
        }
        self.now = self.now.max(time);
        let elapsed = self.now.since(self.swept_at);
        if Nanos::SECOND <= elapsed {
            let shards = (elapsed.0 / Nanos::SECOND.0).saturating_mul(SHARDS_PER_SECOND);
            for _ in 0..shards.min(MemoryStore::SHARDS as u64) {
                self.store.sweep_next(self.now);
            }
            self.swept_at = self.now;
        }
    }
}

impl ReplayedDecision {
    /// Returns the decision of rate limits.
    fn of_limits(check: &Check<'_>, decision: Decision) -> Self {
        let has_denied = |index: &usize| {
            let status = decision.statuses.get(*index);
            status.is_some_and(|one| one.decision.verdict == Verdict::Deny)
        };
        let index = decision.binding.filter(has_denied);
        let index = index.or_else(|| (0..decision.statuses.len()).find(has_denied));
        let key = |index: usize| Some((index, check.descriptors.get(index)?.entries.len()));
        let denied_key = index.and_then(key);
        Self { verdict: decision.verdict, denied_by: decision.denied_by, denied_key }
    }
}

const fn planning(recorded: RecordedPlanning) -> PlanSettings {
    PlanSettings {
        keys: if recorded.has_compatible_keys { KeyNaming::Envoyproxy } else { KeyNaming::Unique },
        overrides: match recorded.overrides {
            RecordedOverrides::Allow => OverridePolicy::Allow,
            RecordedOverrides::Deny => OverridePolicy::Deny,
            RecordedOverrides::Max => OverridePolicy::Max,
        },
        quota_for_all: recorded.quota_for_all,
    }
}
