//! All settings of a process, in blocks, and everything that is derived from their list.
//!
//! Guarantees:
//! - [`list`] and [`list_compat`] are the only lists of settings.
//! - Flags, environment variables, `server.yaml`, its JSON Schema, its reference page and
//!   `--print-config` are derived from them.
//! - Precedence: flag, environment variable, `server.yaml`, default.
//! - All invalid values are reported at once, even those that a flag or variable overrides.
//!
//! Not covered:
//! - Reading the command line, the environment and `server.yaml` (see `cli`).
//! - The environment variables `OTEL_*` (see `telemetry::otlp`).
//! - The variable that shifts the clock in fleet tests (see `clock::SHIFT_VARIABLE`).

mod address;
mod block;
mod choices;
mod conflicts;
mod derived;
mod events;
mod file;
mod file_and_host;
mod fraction;
mod hooks;
mod list;
mod list_compat;
mod nearest;
mod network;
mod pairs;
mod peer_conflicts;
mod percent;
mod postgres_url;
mod print;
mod ratelimit_prefix;
mod read;
mod reference;
mod store;
mod unknown;
mod unused;
mod url_cause;
mod value;
mod words;

use std::sync::LazyLock;

pub use block::SettingBlock;
use block::{Block as _, SettingList};
pub use choices::{
    DeniedBy, DescriptorValues, KeyFormat, LogFormat, LogLevel, MetricNames, OtlpExport,
    OtlpProtocol, Overrides, PostgresDurability, PostgresPrepare, ProxyAccess, RedisProxy,
    ResponseHeaders, StatsSink, WhenFull,
};
pub use events::{EventKinds, EventUrl};
pub use file_and_host::HostName;
pub use fraction::{Percentage, UnitFraction};
pub use list::{
    AdminSettings, AnswerSettings, EventSettings, FleetSettings, LimitsSettings, ListenSettings,
    ListenTlsSettings, LogSettings, MetricsSettings, MirrorSettings, OtlpSettings, PeerSettings,
    RedisSettings, SentinelSettings, Settings, StoreSettings, TelemetrySettings, TlsSettings,
    XdsSettings,
};
pub use list_compat::{
    CompatAnswerSettings, CompatLimitsSettings, CompatListenSettings, CompatMetricsSettings,
    CompatSettings, CompatStatsSettings, CompatStoreSettings, CompatTracingSettings,
    CompatXdsSettings,
};
pub use nearest::{nearest, nearest_within};
pub use network::Networks;
pub use pairs::{Mogrifier, Mogrifiers, OutgoingHeaders, TextPairs};
pub use percent::encode_percent;
pub use postgres_url::PostgresUrl;
pub use print::{print_config, schema, server_yaml};
pub use ratelimit_prefix::RatelimitKeyPrefix;
pub use read::{
    LoadedSettings, RatelimitValue, SettingOrigin, SettingProblem, SettingsInput, read,
};
pub use reference::reference_page;
pub use store::{FileSync, HostPort, RedisEndpoint, RedisUrl, StoreUrl};
pub use value::{AtLeastOne, HeaderName, SecretText, Shape, Value};
pub use words::{Absent, Auto, Never, Or, Word};

static LIST: LazyLock<SettingList> = LazyLock::new(SettingList::new);

/// The prefix of the environment variable of every setting.
pub const PREFIX: &str = "SLUICEGATE_";

/// The description of one setting: its names, its documentation and its valid values.
#[derive(Debug)]
pub struct Setting {
    /// The path of keys in `server.yaml`, with dots: `store.key_prefix`.
    pub name: &'static str,
    /// The flag, without its two dashes: `store-key-prefix`.
    pub flag: String,
    /// The environment variable: `SLUICEGATE_STORE_KEY_PREFIX`.
    pub variable: String,
    /// The documentation of the setting, for users.
    pub doc: String,
    /// The unit or the kind of the value, such as `bytes` or `path`.
    pub unit: &'static str,
    /// A description of the valid values, as part of a sentence.
    pub accepts: String,
    /// The number of texts of the value.
    pub shape: Shape,
    /// All valid texts, if they are a closed list; otherwise empty.
    pub choices: &'static [&'static str],
    /// `true` if the value is a secret and must not be printed.
    pub hidden: bool,
    is_scalar: bool,
    schema: serde_json::Value,
    masked: fn(&str) -> String,
    why: fn(&str) -> Option<String>,
}

impl Setting {
    /// Returns the value that this setting has in `settings`, as YAML.
    #[must_use]
    pub fn show(&self, settings: &Settings) -> String {
        settings.value(self.name).map(block::AnyValue::shown).unwrap_or_default()
    }

    /// Returns `true` if [`Setting::show`] masks a part of the value in `settings`.
    #[must_use]
    pub fn hides_secret(&self, settings: &Settings) -> bool {
        settings.value(self.name).is_some_and(block::AnyValue::hides_secret)
    }

    /// Returns the name of the block that contains the setting, with dots; empty for none.
    #[must_use]
    pub fn block(&self) -> &'static str {
        self.name.rsplit_once('.').map_or("", |(block, _)| block)
    }

    /// Returns the key inside of the block.
    #[must_use]
    pub fn key(&self) -> &'static str {
        self.name.rsplit_once('.').map_or(self.name, |(_, key)| key)
    }

    fn assign(&self, settings: &mut Settings, texts: &[&str]) -> Option<()> {
        settings.value_mut(self.name)?.assign(texts)
    }

    /// Returns `true` if the value in `server.yaml` is taken as written, even if it looks like a
    /// number.
    fn is_literal_text(&self) -> bool {
        !self.is_scalar && self.shape != Shape::Block
    }
}

/// Returns all settings, in the order in which users read them.
#[must_use]
pub fn table() -> &'static [Setting] {
    &LIST.settings
}

/// Returns all blocks of settings. A block follows the block that contains it.
#[must_use]
pub fn setting_blocks() -> &'static [SettingBlock] {
    &LIST.blocks
}

pub(crate) fn find_setting(name: &str) -> Option<&'static Setting> {
    table().iter().find(|row| row.name == name)
}

fn is_block(name: &str) -> bool {
    setting_blocks().iter().any(|block| block.name == name)
}
