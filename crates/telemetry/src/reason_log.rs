//! Bounds the log lines about a condition that repeats, such as failed connection attempts.
//!
//! Guarantees:
//! - A new reason is logged at once, and its repetitions as one count a minute.
//! - A condition that ends and begins again is logged at most [`MAX_BEGINS`] times a minute.
//! - At most [`MAX_REASONS`] reasons are logged in a minute. Further reasons are not logged.

use std::time::Duration;

use tokio::time::Instant;

/// The largest number of reasons that are logged in a minute.
const MAX_REASONS: usize = 10;

/// The largest number of times that the same reason is logged in a minute.
const MAX_BEGINS: u32 = 4;

/// The interval between two lines with the same reason, while its condition lasts.
const LINE_INTERVAL: Duration = Duration::from_secs(60);

/// The time without an occurrence after which the condition of a [`QuietLog`] ends. Successes
/// between two occurrences are common.
const QUIET_TIME: Duration = Duration::from_secs(10);

/// The logged reasons of one condition.
#[derive(Debug, Default)]
pub struct ReasonLog(Vec<LoggedReason>);

#[derive(Debug)]
struct LoggedReason {
    text: String,
    interval_start: Instant,
    /// The number of lines since the start of the interval.
    lines: u32,
    /// The number of occurrences since the last line.
    unlogged: u64,
    /// `true` if the condition has this reason, and the reason is logged.
    is_active: bool,
}

/// The log of a condition without a clear end. It ends with the first success after [`QUIET_TIME`]
/// without an occurrence.
#[derive(Debug, Default)]
pub struct QuietLog {
    reasons: ReasonLog,
    last: Option<Instant>,
}

/// A log line that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DueLine {
    /// The number of occurrences since the last line, this one included. `None` for one.
    pub times: Option<u64>,
}

impl ReasonLog {
    /// Creates the log of a condition that does not exist yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Returns `true` if a reason is logged since the last [`ReasonLog::end`]. The end of the
    /// condition must be logged then.
    #[must_use]
    pub fn is_begin_logged(&self) -> bool {
        self.0.iter().any(|reason| reason.is_active)
    }

    /// Records the end of the condition.
    pub fn end(&mut self) {
        self.0.iter_mut().for_each(|reason| reason.is_active = false);
    }

    /// Counts an occurrence of `reason` at `now`. Returns its log line, if one is due.
    pub fn count(&mut self, reason: &str, now: Instant) -> Option<DueLine> {
        let is_recent = |known: &LoggedReason| now - known.interval_start < LINE_INTERVAL;
        let Some(known) = self.0.iter_mut().find(|known| known.text == reason) else {
            self.0.retain(|known| known.is_active || is_recent(known));
            return self.add(reason, now);
        };
        known.unlogged += 1;
        if !is_recent(known) {
            (known.interval_start, known.lines) = (now, 0);
        } else if known.is_active || MAX_BEGINS <= known.lines {
            return None;
        }
        known.lines += 1;
        known.is_active = true;
        Some(DueLine {
            times: Some(std::mem::take(&mut known.unlogged)).filter(|times| *times != 1),
        })
    }

    fn add(&mut self, reason: &str, now: Instant) -> Option<DueLine> {
        if MAX_REASONS <= self.0.len() {
            return None;
        }
        self.0.push(LoggedReason {
            text: reason.to_owned(),
            interval_start: now,
            lines: 1,
            unlogged: 0,
            is_active: true,
        });
        Some(DueLine { times: None })
    }
}

impl QuietLog {
    /// Creates the log of a condition that does not exist yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { reasons: ReasonLog::new(), last: None }
    }

    /// Counts an occurrence of `reason` at `now`. Returns its log line, if one is due.
    pub fn count(&mut self, reason: &str, now: Instant) -> Option<DueLine> {
        self.last = Some(now);
        self.reasons.count(reason, now)
    }

    /// Records a success at `now`. Returns `true` if it ends the condition, which must be logged
    /// then.
    pub fn record_success(&mut self, now: Instant) -> bool {
        if self.last.is_none_or(|last| now - last < QUIET_TIME) {
            return false;
        }
        self.last = None;
        let is_logged = self.reasons.is_begin_logged();
        self.reasons.end();
        is_logged
    }
}
