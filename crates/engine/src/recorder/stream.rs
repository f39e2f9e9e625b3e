//! Starts a recording, and returns its bytes for a client.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;

use super::error::RecordError;
use super::state::{ActiveRecording, RecordedRest, Recorder};
use crate::Engine;
use crate::clock::Clock;
use crate::decide::plan::{KeyNaming, OverridePolicy, PlanSettings};
use crate::kernel::units::Nanos;
use crate::recording::hashed_values::{ValueHasher, new_salt};
use crate::recording::percent::Percent;
use crate::recording::writer::{pack_block, pack_end, pack_header};
use crate::recording::{
    BlockBuilder, CheckOrder, RecordedOverrides, RecordedPlanning, RecordingEnd, RecordingHeader,
};

/// The largest number of full blocks that wait for the client. A block usually has half a MiB, and
/// at most 1.5 MiB; the index of its texts needs as much again.
pub const MAX_QUEUED_BLOCKS: usize = 32;

/// The longest recording.
pub const MAX_RECORDING: Nanos = Nanos::from_secs(3_600);

/// The interval after which a block is sent although it is not full.
const FLUSH_INTERVAL: Duration = Duration::from_millis(500);

/// The options of a recording.
#[derive(Clone, Copy, Debug)]
pub struct RecordingOptions {
    /// The share of keys to record. A key is a domain with the entries of one descriptor; of a reserve
    /// and its end, with the first entry of their first descriptor.
    pub sample: Percent,
    /// The duration, 1 s to [`MAX_RECORDING`].
    pub duration: Nanos,
    /// The form of descriptor values in the recording.
    pub keys: RecordedKeys,
}

/// The form of descriptor values in a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordedKeys {
    /// Hashes, except values that the limits name.
    Hashed,
    /// The values.
    Clear,
}

impl RecordedKeys {
    /// Parses `hashed` or `clear`.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "hashed" => Some(Self::Hashed),
            "clear" => Some(Self::Clear),
            _ => None,
        }
    }

    /// Returns `hashed` or `clear`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hashed => "hashed",
            Self::Clear => "clear",
        }
    }
}

/// The bytes of a running recording. Dropping it ends the recording.
#[derive(Debug)]
pub struct RecordingStream {
    recorder: Arc<Recorder>,
    clock: Arc<Clock>,
    /// The generation of this recording.
    generation: u64,
    blocks: mpsc::Receiver<BlockBuilder>,
    /// The end of the recording, on the steady clock.
    end_at: Nanos,
    next: NextPart,
}

#[derive(Debug)]
enum NextPart {
    Header(Vec<u8>),
    Blocks,
    End(RecordingEnd),
    Nothing,
}

impl Engine {
    /// Starts a recording of the checks that begin from now on.
    ///
    /// # Errors
    /// Another recording runs, no limits are loaded, or the duration is invalid.
    pub fn start_recording(
        &self,
        options: RecordingOptions,
    ) -> Result<RecordingStream, RecordError> {
        if options.duration < Nanos::SECOND || MAX_RECORDING < options.duration {
            return Err(RecordError::InvalidDuration);
        }
        let config = self.config().ok_or(RecordError::NoConfig)?;
        let salt = match options.keys {
            RecordedKeys::Clear => None,
            RecordedKeys::Hashed => Some(new_salt().ok_or(RecordError::NoRandomNumbers)?),
        };
        let header = self.recording_header(options.sample, salt);
        let (sender, blocks) = mpsc::channel(MAX_QUEUED_BLOCKS);
        let hashed = salt.map(|salt| (ValueHasher::new(salt), config));
        let end_at = self.clock.steady().plus(options.duration);
        let scope = (options.sample, self.policy.planning.quota_for_all, end_at);
        let active = ActiveRecording::new(scope, hashed, sender);
        let generation = self.recorder.start(active)?;
        let (sample, duration, keys) = (options.sample, options.duration, options.keys.name());
        tracing::warn!(%sample, %duration, keys, "recording started");
        Ok(RecordingStream {
            recorder: Arc::clone(&self.recorder),
            clock: Arc::clone(&self.clock),
            generation,
            blocks,
            end_at,
            next: NextPart::Header(pack_header(&header)),
        })
    }

    /// Ends the recording, if one runs. Its stream then returns the rest.
    pub fn stop_recording(&self) {
        self.recorder.stop();
    }

    fn recording_header(&self, sample: Percent, salt: Option<[u8; 16]>) -> RecordingHeader {
        let is_synchronous = self.store().is_synchronous();
        let order = if is_synchronous { CheckOrder::Decisions } else { CheckOrder::Replies };
        let planning = recorded_planning(self.policy.planning);
        RecordingHeader { salt, sample, started_at: self.clock.now(), order, planning }
    }
}

const fn recorded_planning(planning: PlanSettings) -> RecordedPlanning {
    RecordedPlanning {
        has_compatible_keys: matches!(planning.keys, KeyNaming::Envoyproxy),
        overrides: match planning.overrides {
            OverridePolicy::Allow => RecordedOverrides::Allow,
            OverridePolicy::Deny => RecordedOverrides::Deny,
            OverridePolicy::Max => RecordedOverrides::Max,
        },
        quota_for_all: planning.quota_for_all,
    }
}

impl RecordingStream {
    /// Waits for the next bytes of the recording. Returns `None` after the last ones.
    pub async fn next_bytes(&mut self) -> Option<Vec<u8>> {
        // `Blocks` stays while this waits, so that `drop` knows that the recording has not ended.
        if matches!(self.next, NextPart::Blocks) {
            return match self.next_block().await {
                Some(block) => pack(block).await,
                None => self.finish().await,
            };
        }
        match std::mem::replace(&mut self.next, NextPart::Nothing) {
            NextPart::Header(bytes) => {
                self.next = NextPart::Blocks;
                Some(bytes)
            }
            NextPart::End(end) => Some(pack_end(end)),
            NextPart::Blocks | NextPart::Nothing => None,
        }
    }

    /// Returns the next full block, or a smaller one after [`FLUSH_INTERVAL`]. `None` at the end.
    async fn next_block(&mut self) -> Option<BlockBuilder> {
        loop {
            let left = self.end_at.since(self.clock.steady());
            if left == Nanos(0) {
                self.recorder.stop();
            }
            let wait = FLUSH_INTERVAL.min(Duration::from_nanos(left.0));
            match timeout(wait, self.blocks.recv()).await {
                Ok(next) => return next,
                // Through the queue, so that no block overtakes another.
                Err(_elapsed) => self.recorder.send_block(),
            }
        }
    }

    /// Returns the bytes of the last block, or of the end if there is none.
    async fn finish(&mut self) -> Option<Vec<u8>> {
        self.next = NextPart::Nothing;
        let RecordedRest { block, end } = self.recorder.take_rest()?;
        let RecordingEnd { recorded, dropped } = end;
        tracing::warn!(recorded, dropped, "recording ended");
        if block.is_empty() {
            return Some(pack_end(end));
        }
        self.next = NextPart::End(end);
        pack(block).await
    }
}

impl Drop for RecordingStream {
    fn drop(&mut self) {
        if !matches!(self.next, NextPart::Nothing) {
            tracing::warn!("recording ended, its client disconnected");
        }
        self.recorder.reset(self.generation);
    }
}

/// Compresses a block on a thread for blocking work, because it takes milliseconds.
async fn pack(block: BlockBuilder) -> Option<Vec<u8>> {
    tokio::task::spawn_blocking(move || pack_block(&block)).await.ok()?
}
