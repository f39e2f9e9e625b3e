//! The smallest latency among the last so many.
//!
//! Guarantees: exact; O(1) amortized, no allocation after the first.
//! Leaves out: whether the smallest of noisy latencies is a good ideal. It is biased low; the
//! published laws take it all the same.

use std::collections::VecDeque;

use crate::kernel::units::Nanos;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct MinRtt {
    window: u64,
    seen: u64,
    /// Rising latencies, each the smallest since the one before it.
    candidates: VecDeque<(u64, Nanos)>,
}

impl MinRtt {
    /// Over the last `window` samples, at least 1.
    pub(super) fn over(window: u16) -> Self {
        let room = usize::from(window).saturating_add(1);
        Self { window: u64::from(window), seen: 0, candidates: VecDeque::with_capacity(room) }
    }

    /// The minimum, `rtt` included. Zero is taken for one nanosecond: an ideal of nothing would
    /// make every latency infinitely bad.
    pub(super) fn push(&mut self, rtt: Nanos) -> Nanos {
        let rtt = rtt.max(Nanos(1));
        self.seen = self.seen.saturating_add(1);
        while self.candidates.back().is_some_and(|&(_, larger)| rtt <= larger) {
            self.candidates.pop_back();
        }
        let over = self.seen.saturating_sub(self.window);
        while self.candidates.front().is_some_and(|&(number, _)| number <= over) {
            self.candidates.pop_front();
        }
        self.candidates.push_back((self.seen, rtt));
        self.get().unwrap_or(rtt)
    }

    pub(super) fn get(&self) -> Option<Nanos> {
        self.candidates.front().map(|&(_, rtt)| rtt)
    }
}
