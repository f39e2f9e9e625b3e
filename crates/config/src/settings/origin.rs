//! The origin of a setting's value, and the spelling of its name there.
//!
//! Not covered:
//! - The choice of the value (see [`mod@super::read`]).

use std::fmt;
use std::sync::Arc;

use super::setting::Setting;

/// The origin of a setting's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingOrigin {
    /// Sluicegate's default.
    Default,
    /// The file `server.yaml`: its path as the user wrote it, the line and the column, both from 1.
    File(Arc<str>, u64, u64),
    /// The environment variable of this name.
    Environment(String),
    /// The flag of this name, without its two dashes.
    Flag(String),
    /// The default of this envoyproxy/ratelimit environment variable, which is not set.
    RatelimitDefault(&'static str),
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(name, line, column) => write!(f, "{name}:{line}:{column}"),
            Self::Environment(variable) => f.write_str(variable),
            Self::Flag(flag) => write!(f, "--{flag}"),
            Self::RatelimitDefault(variable) => write!(f, "ratelimit's default of {variable}"),
        }
    }
}

impl Setting {
    /// Returns the name as the user writes it at `origin`: `--a-b`, `SLUICEGATE_A_B` or `a.b`.
    pub(super) fn spelled_for(&self, origin: &SettingOrigin) -> String {
        match origin {
            SettingOrigin::Environment(_) => self.variable.clone(),
            SettingOrigin::Flag(_) => format!("--{}", self.flag),
            SettingOrigin::File(..)
            | SettingOrigin::Default
            | SettingOrigin::RatelimitDefault(_) => format!("`{}`", self.name),
        }
    }
}
