//! Translates envoyproxy/ratelimit's environment variables to settings.
//!
//! Guarantees:
//! - Reads every variable of envoyproxy/ratelimit with its syntax and default ([`table`]).
//! - Each variable becomes settings, or a log line explains why it has no effect.
//! - Refuses every environment that envoyproxy/ratelimit refuses, and reports all reasons together.
//! - Ignores unknown variables.
//! - Flags, `SLUICEGATE_*` and `server.yaml` win. Variables that they override cause no message.
//!
//! Not covered:
//! - Applying the settings.

mod limiting;
mod listeners;
pub mod parse;
mod reading;
mod redis;
mod source;
mod stats;
pub mod table;
mod tracing;

use std::collections::{BTreeSet, HashMap};

use crate::config::settings::Named;
pub use reading::Note;
use reading::Reading;
use table::{Means, TABLE};

/// The settings that come from the variables.
pub struct Read {
    /// The settings.
    pub named: Vec<Named>,
    /// The variables that apply differently, or not at all, with an explanation.
    pub notes: Vec<Note>,
}

/// Reads `environment`, except for the settings in `ours`:
/// flags, `SLUICEGATE_*` variables or `server.yaml` set these.
///
/// # Errors
/// One message for each reason to refuse the start.
pub fn read(
    environment: impl IntoIterator<Item = (String, String)>,
    ours: &BTreeSet<&'static str>,
) -> Result<Read, Vec<String>> {
    let environment: HashMap<_, _> = environment.into_iter().collect();
    let mut reading = Reading::of(&environment, ours);
    for row in TABLE {
        if let (Means::Nothing(line), false) = (row.means, reading.raw(row.name).is_empty()) {
            reading.note(row.name, line);
        }
    }
    listeners::read(&mut reading);
    source::read(&mut reading);
    limiting::read(&mut reading);
    redis::read(&mut reading);
    stats::read(&mut reading);
    tracing::read(&mut reading);
    let Reading { named, notes, refused, .. } = reading;
    if refused.is_empty() { Ok(Read { named, notes }) } else { Err(refused) }
}
