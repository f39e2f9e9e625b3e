//! `sluicegate serve`.

use super::Outcome;
use crate::config::settings::Settings;

/// Serves until it is told to stop.
pub(super) fn serve(_settings: Settings) -> Outcome {
    Outcome::CouldNotSay
}
