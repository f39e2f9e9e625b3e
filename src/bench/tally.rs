//! Counts the checks of one step.

use std::collections::BTreeMap;

use super::answer::AnswerCode;
use super::latency::LatencyHistogram;
use crate::kernel::units::Nanos;

/// The counts of one step.
#[derive(Clone, Debug, Default)]
pub struct StepTally {
    /// Checks by result.
    pub codes: BTreeMap<AnswerCode, u64>,
    /// From the scheduled send time to the decision. A check without a decision in time counts with
    /// the time that it waited. Checks that failed at once do not count: they would lower quantiles.
    pub latency: LatencyHistogram,
    /// From the scheduled to the real send time.
    pub send_delay: LatencyHistogram,
    /// Checks that were due and not sent when the step ended.
    pub not_sent: u64,
}

/// The times of one check.
#[derive(Clone, Copy, Debug)]
pub struct CheckTimes {
    /// The scheduled send time.
    pub scheduled: Nanos,
    /// The real send time.
    pub sent: Nanos,
    /// The time of the reply, or of the end of the wait for it.
    pub replied: Nanos,
}

impl StepTally {
    /// Counts a check that was sent.
    pub fn record(&mut self, code: AnswerCode, times: CheckTimes) {
        *self.codes.entry(code).or_default() += 1;
        self.send_delay.record(times.sent.since(times.scheduled));
        if code.is_decision() || code == AnswerCode::Timeout {
            self.latency.record(times.replied.since(times.scheduled));
        }
    }

    /// Counts a check that was not sent after `wait`. Its latency would be longer.
    pub fn record_not_sent(&mut self, wait: Nanos) {
        self.not_sent += 1;
        self.latency.record(wait);
    }

    /// Returns the number of decisions.
    #[must_use]
    pub fn decisions(&self) -> u64 {
        self.codes.iter().filter(|(code, _)| code.is_decision()).map(|(_, count)| count).sum()
    }

    /// Returns the number of checks that were sent.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.codes.values().sum()
    }
}
