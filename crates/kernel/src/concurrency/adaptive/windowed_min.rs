//! The smallest latency of a fixed number of newest samples, as the published algorithms use it.

use std::collections::VecDeque;

use crate::units::Nanos;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct WindowedMin {
    window: u64,
    count: u64,
    /// Sample numbers with increasing latencies, each the smallest since the previous one.
    candidates: VecDeque<(u64, Nanos)>,
}

impl WindowedMin {
    /// A minimum over the last `window` samples; 0 counts as 1.
    pub(super) fn over(window: u16) -> Self {
        let capacity = usize::from(window).saturating_add(1);
        Self { window: u64::from(window), count: 0, candidates: VecDeque::with_capacity(capacity) }
    }

    /// Adds `rtt` and returns the minimum, at least 1 ns, so that dividing by it is possible.
    pub(super) fn push(&mut self, rtt: Nanos) -> Nanos {
        let rtt = rtt.max(Nanos(1));
        self.count = self.count.saturating_add(1);
        while self.candidates.back().is_some_and(|&(_, larger)| rtt <= larger) {
            self.candidates.pop_back();
        }
        let last_expired = self.count.saturating_sub(self.window);
        while self.candidates.front().is_some_and(|&(number, _)| number <= last_expired) {
            self.candidates.pop_front();
        }
        self.candidates.push_back((self.count, rtt));
        self.get().unwrap_or(rtt)
    }

    pub(super) fn get(&self) -> Option<Nanos> {
        self.candidates.front().map(|&(_, rtt)| rtt)
    }
}
