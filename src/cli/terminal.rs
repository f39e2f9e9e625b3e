//! The output streams and the result of a command.
//!
//! Not covered:
//! - The commands (see [`super::args`]).

use std::io::{self, Write};
use std::process::ExitCode;

/// The result of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandOutcome {
    /// Success without a finding. Exit code 0.
    Success,
    /// Success with a negative result, such as a finding or a denial. Exit code 1.
    Negative,
    /// The command failed. Exit code 2.
    Failed,
}

/// The output streams of a command.
pub struct Terminal<'a> {
    /// Receives the results.
    pub out: &'a mut dyn Write,
    /// Receives the errors.
    pub err: &'a mut dyn Write,
}

impl Terminal<'_> {
    /// Writes the result of a command, or its error. An error that contains `negative` is a negative
    /// result.
    pub(super) fn report(
        &mut self,
        done: Result<String, String>,
        negative: &str,
    ) -> io::Result<CommandOutcome> {
        match done {
            Ok(text) => {
                self.out.write_all(text.as_bytes())?;
                Ok(CommandOutcome::Success)
            }
            Err(message) => {
                writeln!(self.err, "error: {message}")?;
                let is_negative = message.contains(negative);
                Ok(if is_negative { CommandOutcome::Negative } else { CommandOutcome::Failed })
            }
        }
    }
}

impl From<CommandOutcome> for ExitCode {
    fn from(outcome: CommandOutcome) -> Self {
        Self::from(match outcome {
            CommandOutcome::Success => 0,
            CommandOutcome::Negative => 1,
            CommandOutcome::Failed => 2,
        })
    }
}
