//! Translates envoyproxy/ratelimit's environment variables to settings.
//!
//! Guarantees:
//! - Reads every variable of envoyproxy/ratelimit with its syntax and default ([`table`]).
//! - Each variable determines settings, or the log explains why it has no effect.
//! - Refuses every environment that envoyproxy/ratelimit refuses, and reports all reasons together.
//! - Ignores unknown variables, with a warning if a name resembles a known one.
//! - Flags, `SLUICEGATE_*` and `server.yaml` take precedence, without a message.

mod env_reader;
mod limiting;
mod listeners;
pub mod parse;
mod redis;
mod source;
mod stats;
pub mod table;
mod tracing;
mod unknown;

use std::collections::{BTreeSet, HashMap};

use crate::config::settings::RatelimitValue;
use env_reader::EnvReader;
pub use env_reader::VariableNote;
use table::{TABLE, VariableEffect};

/// The settings that the environment variables of envoyproxy/ratelimit determine.
pub struct RatelimitSettings {
    /// The settings, each with its environment variable.
    pub settings: Vec<RatelimitValue>,
    /// The variables that have another effect in Sluicegate, or none.
    pub notes: Vec<VariableNote>,
}

/// Translates the environment variables of envoyproxy/ratelimit in `environment` to settings. Omits
/// the settings in `overridden_settings`.
///
/// # Errors
/// One message for each variable or combination of variables that prevents the start.
pub fn read_environment(
    environment: impl IntoIterator<Item = (String, String)>,
    overridden_settings: &BTreeSet<&'static str>,
) -> Result<RatelimitSettings, Vec<String>> {
    let environment: HashMap<_, _> = environment.into_iter().collect();
    let mut reader = EnvReader::parse_all(&environment, overridden_settings);
    for row in TABLE {
        if let (VariableEffect::NoEffect(line), false) =
            (row.effect, reader.raw(row.name).is_empty())
        {
            reader.add_note(row.name, line);
        }
    }
    listeners::read(&mut reader);
    source::read(&mut reader);
    limiting::read(&mut reader);
    redis::read(&mut reader);
    stats::read(&mut reader);
    tracing::read(&mut reader);
    unknown::read(&mut reader);
    let EnvReader { settings, notes, errors, .. } = reader;
    if errors.is_empty() { Ok(RatelimitSettings { settings, notes }) } else { Err(errors) }
}
