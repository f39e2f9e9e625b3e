//! One lane: the queue of items for one Redis or one Cluster slot, and its calls in flight.
//!
//! Guarantees:
//! - The size of a call and the number of calls in flight are bounded.
//! - An abandoned item is never in a batch.

use std::collections::VecDeque;

use super::item::{BatchItem, QueuedItem};

/// The longest estimated script time of a call, in microseconds: meanwhile Redis serves no other
/// client.
const MAX_SCRIPT_MICROS: usize = 1_000;

/// The most calls in flight in one lane: at one call per millisecond enough for a round trip of 32
/// ms. Full batches carry 100,000 checks per second over a round trip of 80 ms.
const MAX_CALLS_IN_FLIGHT: usize = 32;

/// The most estimated script time that may wait in one lane, in microseconds. Further items would
/// wait longer than any caller's deadline.
pub(super) const MAX_WAITING_MICROS: usize = 64 * MAX_SCRIPT_MICROS;

pub(super) type NumberedBatch<T> = (Vec<QueuedItem<T>>, u64);

/// The waiting items and the calls in flight of one Redis or one Cluster slot.
#[derive(Debug)]
pub(super) struct BatchLane<T: BatchItem> {
    pub(super) waiting: VecDeque<QueuedItem<T>>,
    /// The estimated script time of the waiting items, in microseconds.
    pub(super) waiting_micros: usize,
    /// At least the number of abandoned items in `waiting`.
    abandoned: usize,
    in_flight: usize,
    call_count: u64,
    /// The number of the call in flight that delays waiting items.
    delaying_call: Option<u64>,
    pub(super) open_groups: usize,
}

impl<T: BatchItem> Default for BatchLane<T> {
    fn default() -> Self {
        Self {
            waiting: VecDeque::new(),
            waiting_micros: 0,
            abandoned: 0,
            in_flight: 0,
            call_count: 0,
            delaying_call: None,
            open_groups: 0,
        }
    }
}

impl<T: BatchItem> BatchLane<T> {
    pub(super) fn can_start_call(&self) -> bool {
        let is_full = MAX_SCRIPT_MICROS <= self.waiting_micros;
        let is_delayed = self.delaying_call.is_some() && !is_full;
        self.open_groups == 0 && self.in_flight < MAX_CALLS_IN_FLIGHT && !is_delayed
    }

    pub(super) fn begin_call(&mut self) -> u64 {
        self.call_count += 1;
        self.in_flight += 1;
        self.delaying_call = Some(self.call_count);
        self.call_count
    }

    pub(super) fn end_call(&mut self, number: u64) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.stop_delaying(Some(number));
    }

    pub(super) fn stop_delaying(&mut self, number: Option<u64>) {
        if self.delaying_call == number {
            self.delaying_call = None;
        }
    }

    pub(super) fn next_batch(&mut self) -> Option<NumberedBatch<T>> {
        if !self.can_start_call() {
            return None;
        }
        let batch = self.take_batch();
        if batch.is_empty() { None } else { Some((batch, self.begin_call())) }
    }

    /// Removes the next batch from the queue: at least one item, and as many as fit in
    /// [`MAX_SCRIPT_MICROS`].
    fn take_batch(&mut self) -> Vec<QueuedItem<T>> {
        let (mut batch, mut micros) = (Vec::with_capacity(self.waiting.len().min(256)), 0);
        while let Some(first) = self.waiting.front() {
            let item_micros = first.item.script_micros();
            let is_abandoned = first.sender.is_closed();
            if !is_abandoned && !batch.is_empty() && MAX_SCRIPT_MICROS < micros + item_micros {
                break;
            }
            self.waiting_micros -= item_micros;
            if is_abandoned {
                self.waiting.pop_front();
                self.abandoned = self.abandoned.saturating_sub(1);
                continue;
            }
            micros += item_micros;
            batch.extend(self.waiting.pop_front());
        }
        batch
    }

    /// Counts an abandoned item. Removes all abandoned items if they may be more than half of the
    /// queue. Amortized cost: O(1) for each item.
    pub(super) fn count_abandoned(&mut self) {
        self.abandoned += 1;
        if self.waiting.len() < 2 * self.abandoned {
            self.abandoned = 0;
            self.waiting.retain(|waiting| !waiting.sender.is_closed());
            self.waiting_micros =
                self.waiting.iter().map(|waiting| waiting.item.script_micros()).sum();
        }
    }
}
