//! Bounds the memory of the request bodies in flight, over gRPC and HTTP.
//!
//! Guarantees:
//! - All bodies together take at most `listen.max_body_memory`, besides [`FREE_BYTES`] each.
//! - A body is charged for its memory, before the memory is allocated. Its announced length alone
//!   costs nothing.
//! - The end of a call frees its memory.
//! - Refused bodies are counted, and logged once a minute.
//!
//! Not covered:
//! - The buffers of connections, which their number bounds.
//! - The decoded form of a message, except of one that waits in a queue ([`BodyLimits::charge`]).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::config::settings::{ListenSettings, Settings};
use crate::telemetry::event::{BodyRefused, Event as _};
use crate::telemetry::reason_log::{DueLine, ReasonLog};

/// The bytes of each body that are not charged. An open call takes more memory than that. Most
/// checks are smaller, so they change no memory that threads share.
const FREE_BYTES: usize = 1024;

/// The bounds on request bodies, which all ports share.
#[derive(Clone, Debug)]
pub struct BodyLimits {
    /// The setting `listen.max_message`, in bytes.
    pub(super) max_message: usize,
    budget: Arc<BodyBudget>,
}

impl BodyLimits {
    /// Creates the bounds that the settings contain. A process has one.
    #[must_use]
    pub fn new(settings: &ListenSettings) -> Self {
        let bytes = |setting: u32| usize::try_from(setting).unwrap_or(usize::MAX);
        let budget = BodyBudget {
            max: bytes(settings.max_body_memory),
            in_use: AtomicUsize::new(0),
            refusals: Mutex::new(ReasonLog::new()),
        };
        Self { max_message: bytes(settings.max_message), budget: Arc::new(budget) }
    }

    /// Returns the memory that bodies take, in bytes.
    #[must_use]
    pub fn in_use(&self) -> usize {
        self.budget.in_use.load(Relaxed)
    }

    /// Returns the most memory that bodies may take, in bytes.
    #[must_use]
    pub fn max(&self) -> usize {
        self.budget.max
    }

    /// Charges a message that waits for `bytes` bytes, until the result is dropped.
    ///
    /// # Errors
    /// [`BodyMemoryFull`] if the bodies in flight would take too much.
    pub(super) fn charge(&self, bytes: usize) -> Result<Arc<BodyMemory>, BodyMemoryFull> {
        let memory = self.open_account();
        memory.resize(bytes)?;
        Ok(memory)
    }

    /// Creates the account of a body that takes no memory yet.
    pub(super) fn open_account(&self) -> Arc<BodyMemory> {
        Arc::new(BodyMemory { budget: Arc::clone(&self.budget), charged: AtomicUsize::new(0) })
    }
}

impl Default for BodyLimits {
    fn default() -> Self {
        Self::new(&Settings::default().listen)
    }
}

#[derive(Debug)]
struct BodyBudget {
    max: usize,
    in_use: AtomicUsize,
    refusals: Mutex<ReasonLog>,
}

impl BodyBudget {
    fn charge(&self, bytes: usize) -> Result<(), BodyMemoryFull> {
        let charged = |in_use: usize| in_use.checked_add(bytes).filter(|sum| *sum <= self.max);
        if self.in_use.fetch_update(Relaxed, Relaxed, charged).is_err() {
            self.record_refusal();
            return Err(BodyMemoryFull);
        }
        Ok(())
    }

    fn record_refusal(&self) {
        BodyRefused.emit();
        if let Some(DueLine { times }) = self.refusals.lock().count("full", Instant::now()) {
            tracing::warn!(
                max_body_memory = self.max,
                times,
                help = "raise listen.max_body_memory, or find the client that sends so much",
                "refused a request: the bodies in flight take too much memory"
            );
        }
    }
}

/// The error for a body that would exceed `listen.max_body_memory`.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("the bodies of requests in flight take all of listen.max_body_memory: send again later")]
pub(super) struct BodyMemoryFull;

/// The memory of one body. Its drop frees the memory.
#[derive(Debug)]
pub(super) struct BodyMemory {
    budget: Arc<BodyBudget>,
    /// Only the owner of the body changes this, so its value is exact.
    charged: AtomicUsize,
}

impl BodyMemory {
    /// Charges the body for `bytes` bytes of memory in total.
    ///
    /// # Errors
    /// [`BodyMemoryFull`] if the bodies would take too much. The charge stays as it was.
    pub(super) fn resize(&self, bytes: usize) -> Result<(), BodyMemoryFull> {
        let (before, now) = (self.charged.load(Relaxed), bytes.saturating_sub(FREE_BYTES));
        if before < now {
            self.budget.charge(now - before)?;
        } else if now < before {
            self.budget.in_use.fetch_sub(before - now, Relaxed);
        }
        self.charged.store(now, Relaxed);
        Ok(())
    }
}

impl Drop for BodyMemory {
    fn drop(&mut self) {
        let charged = *self.charged.get_mut();
        if charged != 0 {
            self.budget.in_use.fetch_sub(charged, Relaxed);
        }
    }
}

/// The received part of a body.
#[derive(Debug)]
pub(super) struct BodyBuffer {
    /// The bytes so far.
    pub(super) bytes: Vec<u8>,
    /// The expected size. The buffer grows beyond it only if more bytes arrive.
    expected: usize,
    memory: Arc<BodyMemory>,
}

impl BodyBuffer {
    pub(super) const fn new(expected: usize, memory: Arc<BodyMemory>) -> Self {
        Self { bytes: Vec::new(), expected, memory }
    }

    /// Appends `piece`, after its memory was charged.
    ///
    /// # Errors
    /// [`BodyMemoryFull`] if the bodies in flight would take too much memory.
    pub(super) fn append(&mut self, piece: &[u8]) -> Result<(), BodyMemoryFull> {
        let needed = self.bytes.len() + piece.len();
        if self.bytes.capacity() < needed {
            let capacity = (2 * self.bytes.capacity()).min(self.expected).max(needed);
            self.memory.resize(capacity)?;
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.extend_from_slice(piece);
        Ok(())
    }

    /// Takes the bytes. They stay charged until the next [`BodyMemory::resize`].
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(max_body_memory: u32) -> BodyLimits {
        BodyLimits::new(&ListenSettings { max_body_memory, ..Settings::default().listen })
    }

    #[test]
    fn bodies_are_charged_above_their_free_bytes_until_they_end() {
        let limits = limits(10_000);
        let (first, second) = (limits.open_account(), limits.open_account());
        assert_eq!((first.resize(FREE_BYTES), limits.in_use()), (Ok(()), 0));
        assert_eq!((first.resize(FREE_BYTES + 6_000), limits.in_use()), (Ok(()), 6_000));
        assert_eq!(second.resize(FREE_BYTES + 4_001), Err(BodyMemoryFull));
        assert_eq!((second.resize(FREE_BYTES + 4_000), limits.in_use()), (Ok(()), 10_000));
        assert_eq!((first.resize(0), limits.in_use()), (Ok(()), 4_000));
        drop(first);
        drop(second);
        assert_eq!(limits.in_use(), 0);
    }

    #[test]
    fn a_buffer_is_charged_for_its_capacity_and_stops_when_refused() {
        let limits = limits(9_000);
        let mut buffer = BodyBuffer::new(12_000, limits.open_account());
        // The capacity doubles up to the expected size: 2,000, 4,000, 8,000, 12,000.
        for _ in 0..4 {
            buffer.append(&[0; 2_000]).unwrap();
            assert_eq!(limits.in_use(), buffer.bytes.capacity() - FREE_BYTES);
        }
        assert_eq!(buffer.append(&[0; 2_000]), Err(BodyMemoryFull));
        assert_eq!(buffer.bytes.len(), 8_000);
    }
}
