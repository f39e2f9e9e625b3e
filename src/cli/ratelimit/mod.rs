//! The name `ratelimit`: the settings that envoyproxy/ratelimit's environment variables stand for.
//!
//! Guarantees: every variable of the reference is read by its rules and with its defaults ([`table`]); each
//! becomes settings of ours, or a line says why it means nothing here; what it does not start with this
//! does not start with either, and says every reason at once. Variables that it does not know are nobody's. Flags,
//! `SLUICEGATE_*` and `server.yaml` win over all of this: of a setting that they name no variable is heeded, refused
//! or spoken of.
//! Leaves out: doing what the settings say.

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

/// What the variables come to.
pub struct Read {
    /// Settings.
    pub named: Vec<Named>,
    /// What a person should know of variables that are not taken as they stand.
    pub notes: Vec<Note>,
}

/// Reads `environment`, but for the settings that are `ours`: what wins over it names them.
///
/// # Errors
/// A sentence for each reason why the reference, or this, does not start with it.
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
