//! Parses the setting of when the file store writes to disk.
//!
//! Guarantees:
//! - An interval is at least 1 ms.

use serde_json::{Value as Json, json};

use super::value::Value;
use crate::kernel::units::Nanos;

/// When the file store writes charges to disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSync {
    /// Before each answer.
    Always,
    /// Once per interval.
    Every(Nanos),
}

impl FileSync {
    /// A shorter interval would write more often than a disk can.
    const SHORTEST: Nanos = Nanos::MILLI;
}

impl Value for FileSync {
    const CHOICES: &'static [&'static str] = &["always"];
    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            ["always"] => Some(Self::Always),
            _ => Nanos::read(texts).filter(|interval| Self::SHORTEST <= *interval).map(Self::Every),
        }
    }
    fn accepts() -> String {
        format!("always, or an interval of at least {}; for example 10ms or 1s", Self::SHORTEST)
    }
    fn show(&self) -> String {
        match self {
            Self::Always => "always".to_owned(),
            Self::Every(interval) => interval.show(),
        }
    }
    fn schema() -> Json {
        json!({"type": "string", "pattern": "^(always|[0-9]+(us|ms|s|m|h|d))$"})
    }
}
