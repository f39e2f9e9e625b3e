//! Translates envoyproxy/ratelimit's environment variables to settings.
//!
//! Guarantees:
//! - Reads every variable of envoyproxy/ratelimit with its syntax and default ([`table`]).
//! - Each variable determines settings, or the log explains why it has no effect.
//! - Refuses every environment that envoyproxy/ratelimit refuses, and reports all reasons together.
//! - Ignores unknown variables.
//! - Flags, `SLUICEGATE_*` and `server.yaml` take precedence. Variables that they override cause no
//!   message.
//!
//! Not covered:
//! - Applying the settings.

mod env_reader;
mod limiting;
mod listeners;
pub mod parse;
mod redis;
mod source;
mod stats;
pub mod table;
mod tracing;

use std::collections::{BTreeSet, HashMap};

use crate::config::settings::RatelimitValue;
use env_reader::EnvReader;
pub use env_reader::VariableNote;
use table::{TABLE, VariableEffect};

/// The settings that the environment variables of envoyproxy/ratelimit determine.
pub struct RatelimitSettings {
    /// The settings, each with its environment variable.
    pub settings: Vec<RatelimitValue>,
    /// The environment variables that have another effect in Sluicegate, or none, with an
    /// explanation.
    pub notes: Vec<VariableNote>,
}

/// Translates the environment variables of envoyproxy/ratelimit in `environment` to settings. Omits
/// `overridden_settings`, which flags, `SLUICEGATE_*` variables or `server.yaml` set.
///
/// # Errors
/// One message for each variable or combination of variables that prevents the start.
pub fn read_environment(
    environment: impl IntoIterator<Item = (String, String)>,
    overridden_settings: &BTreeSet<&'static str>,
) -> Result<RatelimitSettings, Vec<String>> {
    let environment: HashMap<_, _> = environment.into_iter().collect();
    let mut reading = EnvReader::parse_all(&environment, overridden_settings);
    for row in TABLE {
        if let (VariableEffect::NoEffect(line), false) =
            (row.effect, reading.raw(row.name).is_empty())
        {
            reading.add_note(row.name, line);
        }
    }
    listeners::read(&mut reading);
    source::read(&mut reading);
    limiting::read(&mut reading);
    redis::read(&mut reading);
    stats::read(&mut reading);
    tracing::read(&mut reading);
    let EnvReader { settings: named, notes, errors: refused, .. } = reading;
    if refused.is_empty() { Ok(RatelimitSettings { settings: named, notes }) } else { Err(refused) }
}
