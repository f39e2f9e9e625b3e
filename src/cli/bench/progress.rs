//! The progress line of `sluicegate bench`.
//!
//! Guarantees:
//! - Nothing is written if standard error is no terminal.

use std::io::{self, IsTerminal as _, Write};
use std::time::Duration;

use crate::bench::SendSchedule;

/// The interval between two lines.
pub(super) const INTERVAL: Duration = Duration::from_millis(500);
/// Moves the cursor to the first column, and clears the line.
const CLEAR: &str = "\r\x1b[K";

/// Writes the progress line.
pub(super) struct Progress<'t> {
    err: &'t mut dyn Write,
    is_shown: bool,
}

impl<'t> Progress<'t> {
    /// Creates the line on standard error.
    pub(super) fn new(err: &'t mut dyn Write) -> Self {
        Self { err, is_shown: io::stderr().is_terminal() }
    }

    /// Shows the checks that were sent and decided so far.
    pub(super) fn show(&mut self, label: &str, step: SendSchedule, (sent, decided): (u64, u64)) {
        let (rate, count) = (step.rate, step.count());
        self.write(&format!("{label}: {rate}/s, {sent} of {count} sent, {decided} decided"));
    }

    /// Removes the line.
    pub(super) fn clear(&mut self) {
        self.write("");
    }

    fn write(&mut self, text: &str) {
        if self.is_shown {
            // A closed standard error is no reason to end the load.
            let written = write!(self.err, "{CLEAR}{text}").and_then(|()| self.err.flush());
            self.is_shown = written.is_ok();
        }
    }
}
