//! The state of a recording, and the recording of one check.

use std::hash::Hasher as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};
use siphasher::sip::SipHasher13;
use smallvec::SmallVec;
use tokio::sync::mpsc;

use super::error::RecordError;
use crate::clock::Clock;
use crate::config::Config;
use crate::decide::{CheckError, Decision};
use crate::kernel::decision::{Check, Descriptor, Verdict, combine};
use crate::kernel::units::Nanos;
use crate::recording::hashed_values::{ValueHasher, with_values};
use crate::recording::percent::Percent;
use crate::recording::{BlockBuilder, CheckOutcome, RecordedDecision, RecordingEnd};

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

    /// Locks the recording. With the memory store, a check is decided under this lock.
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

impl LockedRecorder<'_> {
    /// Records a decided check. A check that was refused before any charge is left out. At the end
    /// of the duration, ends the recording, even if its client does not read.
    pub(crate) fn record(
        &mut self,
        check: &Check<'_>,
        clock: &Clock,
        result: &Result<Decision, CheckError>,
    ) {
        let RecorderPhase::Recording(active) = &mut self.state.phase else { return };
        if active.end_at <= clock.steady() {
            return self.stop();
        }
        let Some(sampled) = active.sampled_part(check) else { return };
        let (time, outcome) = match result {
            Ok(decision) => (decision.now, active.outcome_of(&sampled, decision)),
            Err(CheckError::StoreUnavailable(_)) => (clock.now(), CheckOutcome::Failed),
            Err(_) => return,
        };
        let denied_by = result.as_ref().ok().and_then(|decision| decision.denied_by.as_deref());
        let denied_by = denied_by.filter(|_| outcome == CheckOutcome::Deny);
        active.add(&sampled.check, RecordedDecision { time, outcome, denied_by });
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

    /// Returns the check with only its sampled descriptors; `None` if there are none.
    fn sampled_part<'a>(&self, check: &'a Check<'_>) -> Option<SampledPart<'a>> {
        let is_sampled = |one| self.sample.contains_hash(key_hash(check.domain, one));
        let is_sampled: SmallVec<[bool; 2]> = check.descriptors.iter().map(is_sampled).collect();
        let sampled = check.descriptors.iter().zip(&is_sampled).filter(|(_, sampled)| **sampled);
        let descriptors = sampled
            .map(|(one, _)| Descriptor { entries: one.entries.iter().copied().collect(), ..*one });
        let check = Check { domain: check.domain, descriptors: descriptors.collect() };
        (!check.descriptors.is_empty()).then_some(SampledPart { check, is_sampled })
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

    fn add(&mut self, check: &Check<'_>, decision: RecordedDecision<'_>) {
        let is_added = match &self.hashed {
            None => self.block.add(check, decision),
            Some((hasher, config)) => {
                let values = hasher.hash_values(config, check);
                let check = values.as_deref().map(|values| with_values(check, values));
                check.is_some_and(|check| self.block.add(&check, decision))
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
        let checks = block.checks();
        if self.blocks.try_send(block).is_err() {
            self.end.recorded -= checks;
            self.end.dropped += checks;
        }
    }
}

/// Returns a hash of the domain and the entries of a descriptor, the same in every recording.
fn key_hash(domain: &str, descriptor: &Descriptor<'_>) -> u64 {
    let mut hasher = SipHasher13::new();
    let texts = descriptor.entries.iter().flat_map(|(key, value)| [*key, *value]);
    for text in std::iter::once(domain).chain(texts) {
        hasher.write(text.as_bytes());
        hasher.write_u8(0xff);
    }
    hasher.finish()
}
