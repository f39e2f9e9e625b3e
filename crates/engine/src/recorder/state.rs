//! The state of a recording, and the recording of one call.

use std::hash::Hasher as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};
use siphasher::sip::SipHasher13;
use smallvec::SmallVec;
use tokio::sync::mpsc;

use super::error::RecordError;
use crate::budgets::{BudgetUse, Reserve};
use crate::clock::Clock;
use crate::config::Config;
use crate::decide::{CheckError, Decision};
use crate::kernel::decision::{Check, Descriptor, Verdict, combine};
use crate::kernel::units::Nanos;
use crate::recording::hashed_values::{ValueHasher, with_values};
use crate::recording::percent::Percent;
use crate::recording::{
    BlockBuilder, CheckOutcome, RecordedBudgets, RecordedDecision, RecordedReserve, RecordingEnd,
};

/// The recording of a replica, if one runs.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    is_on: AtomicBool,
    state: Mutex<RecorderState>,
}

#[derive(Debug, Default)]
struct RecorderState {
    phase: RecorderPhase,
    /// The number of the last recording.
    generation: u64,
}

#[derive(Debug, Default)]
enum RecorderPhase {
    #[default]
    Idle,
    Recording(Box<ActiveRecording>),
    /// The stream has not sent the rest yet.
    Ended(Box<RecordedRest>),
}

/// The last block of a recording, and its end.
#[derive(Debug)]
pub(super) struct RecordedRest {
    pub(super) block: BlockBuilder,
    pub(super) end: RecordingEnd,
}

#[derive(Debug)]
pub(super) struct ActiveRecording {
    sample: Percent,
    /// The end of the recording, on the steady clock.
    end_at: Nanos,
    /// `true` if every limit is in the quota group.
    quota_for_all: bool,
    /// Hashes values by the limits at the start, so that equal values stay equal after a reload.
    hashed: Option<(ValueHasher, Arc<Config>)>,
    blocks: mpsc::Sender<BlockBuilder>,
    block: BlockBuilder,
    end: RecordingEnd,
}

impl Recorder {
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Locks the recording. With the memory store, a call is made under this lock.
    pub(crate) fn lock(&self) -> LockedRecorder<'_> {
        LockedRecorder { state: self.state.lock(), is_on: &self.is_on }
    }

    /// Starts a recording. Returns its generation.
    pub(super) fn start(&self, recording: ActiveRecording) -> Result<u64, RecordError> {
        let mut state = self.state.lock();
        let RecorderPhase::Idle = state.phase else { return Err(RecordError::AlreadyRecording) };
        state.phase = RecorderPhase::Recording(Box::new(recording));
        state.generation += 1;
        self.is_on.store(true, Relaxed);
        Ok(state.generation)
    }

    /// Ends the recording. Its stream then sends the rest.
    pub(super) fn stop(&self) {
        self.lock().stop();
    }

    /// Ends the recording of this generation and drops its rest. Another one may start. Does nothing
    /// if another one has started: its predecessor may still be sending its last bytes.
    pub(super) fn reset(&self, generation: u64) {
        let mut state = self.state.lock();
        if state.generation == generation {
            self.is_on.store(false, Relaxed);
            state.phase = RecorderPhase::Idle;
        }
    }

    /// Sends the block although it is not full.
    pub(super) fn send_block(&self) {
        if let RecorderPhase::Recording(active) = &mut self.state.lock().phase
            && !active.block.is_empty()
        {
            active.send_block();
        }
    }

    /// Returns the rest of an ended recording.
    pub(super) fn take_rest(&self) -> Option<RecordedRest> {
        let mut state = self.state.lock();
        match std::mem::take(&mut state.phase) {
            RecorderPhase::Ended(rest) => Some(*rest),
            other => {
                state.phase = other;
                None
            }
        }
    }
}

/// The recording, locked.
pub(crate) struct LockedRecorder<'r> {
    state: MutexGuard<'r, RecorderState>,
    is_on: &'r AtomicBool,
}

/// The result of a check that is recorded.
pub(super) enum RecordedResult<'r> {
    Decided(&'r Decision),
    /// The path of the budget that rejected the check.
    Rejected(&'r str),
    /// The store did not reply.
    Failed,
}

impl<'r> RecordedResult<'r> {
    /// Returns `None` for a check that was refused before any charge. It is left out.
    pub(super) fn of<T>(
        result: &'r Result<T, CheckError>,
        of_reply: impl FnOnce(&'r T) -> Self,
    ) -> Option<Self> {
        match result {
            Ok(reply) => Some(of_reply(reply)),
            Err(CheckError::StoreUnavailable(_)) => Some(Self::Failed),
            Err(_) => None,
        }
    }
}

impl LockedRecorder<'_> {
    /// Records a check after its decision.
    pub(super) fn record_check(
        &mut self,
        (check, budgets): (&Check<'_>, Option<BudgetUse<'_, '_>>),
        clock: &Clock,
        result: Option<RecordedResult<'_>>,
    ) {
        let (Some(active), Some(result)) = (self.active(clock), result) else { return };
        let Some(sampled) = active.sampled_part(check, budgets) else { return };
        let (time, outcome, denied_by) = match &result {
            RecordedResult::Decided(decision) => {
                let outcome = active.outcome_of(&sampled, decision);
                (decision.now, outcome, decision.denied_by.as_deref())
            }
            RecordedResult::Rejected(path) => (clock.now(), CheckOutcome::Deny, Some(*path)),
            RecordedResult::Failed => (clock.now(), CheckOutcome::Failed, None),
        };
        let denied_by = denied_by.filter(|_| outcome == CheckOutcome::Deny);
        let decision = RecordedDecision { time, outcome, denied_by };
        if let Some(budgets) = sampled.recorded_budgets(outcome, &result) {
            active.add(&sampled.check, decision, budgets);
        }
    }

    /// Records a call that ends or renews the holds of a request.
    pub(super) fn record_end(
        &mut self,
        (check, budgets): (&Check<'_>, RecordedBudgets<&str>),
        clock: &Clock,
    ) {
        let Some(active) = self.active(clock).filter(|active| active.samples_holds_of(check))
        else {
            return;
        };
        let (time, outcome) = (clock.now(), CheckOutcome::Unknown);
        active.add(check, RecordedDecision { time, outcome, denied_by: None }, budgets);
    }

    /// Returns the recording. At the end of its duration, ends it, even if its client does not read.
    fn active(&mut self, clock: &Clock) -> Option<&mut ActiveRecording> {
        let RecorderPhase::Recording(active) = &self.state.phase else { return None };
        if active.end_at <= clock.steady() {
            self.stop();
        }
        match &mut self.state.phase {
            RecorderPhase::Recording(active) => Some(active),
            _ => None,
        }
    }

    fn stop(&mut self) {
        self.is_on.store(false, Relaxed);
        self.state.phase = match std::mem::take(&mut self.state.phase) {
            // Drops the sender of blocks, which wakes the stream.
            RecorderPhase::Recording(active) => {
                let ActiveRecording { block, end, .. } = *active;
                RecorderPhase::Ended(Box::new(RecordedRest { block, end }))
            }
            phase => phase,
        };
    }
}

/// The sampled descriptors of a check.
struct SampledPart<'a> {
    check: Check<'a>,
    /// For each descriptor of the whole check, `true` if it is sampled.
    is_sampled: SmallVec<[bool; 2]>,
    budgets: RecordedBudgets<&'a str>,
}

impl<'a> SampledPart<'a> {
    /// Returns the use of budgets. `None` if a budget outside the sample rejected the check, so that it
    /// charged no sampled counter.
    fn recorded_budgets(
        &self,
        outcome: CheckOutcome,
        result: &RecordedResult<'_>,
    ) -> Option<RecordedBudgets<&'a str>> {
        match (self.budgets.clone(), result) {
            (RecordedBudgets::Unused, RecordedResult::Rejected(_)) => None,
            (RecordedBudgets::Reserve(reserve), RecordedResult::Decided(decision)) => {
                let is_admitted = decision.verdict == Verdict::Allow;
                // A limit outside the sample denied the check, which canceled its holds.
                let is_canceled = outcome == CheckOutcome::Allow && !is_admitted;
                let reserve = RecordedBudgets::Reserve(RecordedReserve { is_admitted, ..reserve });
                Some(if is_canceled { RecordedBudgets::Unused } else { reserve })
            }
            (budgets, _) => Some(budgets),
        }
    }
}

fn has_entries(check: &Check<'_>, entries: &[(&str, &str)]) -> bool {
    check.descriptors.iter().any(|one| *one.entries == *entries)
}

impl ActiveRecording {
    pub(super) fn new(
        (sample, quota_for_all, end_at): (Percent, bool, Nanos),
        hashed: Option<(ValueHasher, Arc<Config>)>,
        blocks: mpsc::Sender<BlockBuilder>,
    ) -> Self {
        let (block, end) = (BlockBuilder::default(), RecordingEnd::default());
        Self { sample, end_at, quota_for_all, hashed, blocks, block, end }
    }

    /// Returns the check with only its sampled descriptors, and those that a sampled reserve covers;
    /// `None` if there are none.
    fn sampled_part<'a>(
        &self,
        check: &'a Check<'_>,
        budgets: Option<BudgetUse<'a, '_>>,
    ) -> Option<SampledPart<'a>> {
        let reserve = match budgets {
            Some(BudgetUse::Reserve(it)) if self.samples_holds_of(it.covered) => Some(it),
            _ => None,
        };
        let is_covered =
            |one: &Descriptor<'_>| reserve.is_some_and(|it| has_entries(it.covered, &one.entries));
        let is_sampled = |one: &Descriptor<'_>| {
            self.sample.contains_hash(key_hash(check.domain, &one.entries)) || is_covered(one)
        };
        let is_sampled: SmallVec<[bool; 2]> = check.descriptors.iter().map(is_sampled).collect();
        let sampled = check.descriptors.iter().zip(&is_sampled).filter(|(_, sampled)| **sampled);
        let descriptors = sampled
            .map(|(one, _)| Descriptor { entries: one.entries.iter().copied().collect(), ..*one });
        let check = Check { domain: check.domain, descriptors: descriptors.collect() };
        let budgets = match (budgets, reserve) {
            (_, Some(Reserve { id, tokens, .. })) => {
                let covered = (0..).zip(&check.descriptors).filter(|(_, one)| is_covered(one));
                let covered = covered.map(|(index, _)| index).collect();
                let is_admitted = false;
                RecordedBudgets::Reserve(RecordedReserve { id, covered, tokens, is_admitted })
            }
            (Some(BudgetUse::Charge), None) => RecordedBudgets::Charge,
            _ => RecordedBudgets::Unused,
        };
        (!check.descriptors.is_empty()).then_some(SampledPart { check, is_sampled, budgets })
    }

    /// Returns `true` if the holds in the budgets of these descriptors are in the sample.
    fn samples_holds_of(&self, covered: &Check<'_>) -> bool {
        let first = covered.descriptors.first().and_then(|one| one.entries.get(..1));
        self.sample.contains_hash(key_hash(covered.domain, first.unwrap_or_default()))
    }

    /// Returns the outcome of the sampled descriptors alone, before global shadow mode, so that a
    /// replay compares decisions of the limits.
    fn outcome_of(&self, sampled: &SampledPart<'_>, decision: &Decision) -> CheckOutcome {
        let statuses = decision.statuses.iter().zip(&sampled.is_sampled);
        let votes = statuses.filter(|(_, sampled)| **sampled).map(|(status, _)| &status.decision);
        let votes = votes.map(|vote| (vote.enforcement.group, vote.verdict));
        match combine(votes, self.quota_for_all) {
            Verdict::Allow => CheckOutcome::Allow,
            Verdict::Deny => CheckOutcome::Deny,
        }
    }

    fn add(
        &mut self,
        check: &Check<'_>,
        decision: RecordedDecision<'_>,
        budgets: RecordedBudgets<&str>,
    ) {
        let is_added = match &self.hashed {
            None => self.block.add(check, decision, budgets),
            Some((hasher, config)) => {
                let values = hasher.hash_values(config, check);
                let check = values.as_deref().map(|values| with_values(check, values));
                let budgets = budgets.map_id(|id| hasher.hash(id));
                check.is_some_and(|check| self.block.add(&check, decision, budgets))
            }
        };
        if !is_added {
            self.end.dropped += 1;
            return;
        }
        self.end.recorded += 1;
        if self.block.is_full() {
            self.send_block();
        }
    }

    fn send_block(&mut self) {
        let block = self.block.take();
        let calls = block.calls();
        if self.blocks.try_send(block).is_err() {
            self.end.recorded -= calls;
            self.end.dropped += calls;
        }
    }
}

/// Returns a hash of a domain and entries, the same in every recording.
fn key_hash(domain: &str, entries: &[(&str, &str)]) -> u64 {
    let mut hasher = SipHasher13::new();
    let texts = entries.iter().flat_map(|(key, value)| [*key, *value]);
    for text in std::iter::once(domain).chain(texts) {
        hasher.write(text.as_bytes());
        hasher.write_u8(0xff);
    }
    hasher.finish()
}
