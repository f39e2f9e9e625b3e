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
mod file_sync;
mod fraction;
mod hooks;
mod host_port;
mod list;
mod list_compat;
mod masked_url;
mod nearest;
mod network;
mod origin;
mod pairs;
mod peer_conflicts;
mod percent;
mod postgres_url;
mod print;
mod ratelimit_prefix;
mod read;
mod redis_url;
mod reference;
mod setting;
mod store;
mod table;
mod tables;
mod unknown;
mod unused;
mod url_cause;
mod value;
mod words;

pub use block::SettingBlock;
pub use choices::{
    DeniedBy, DescriptorValues, KeyFormat, LogFormat, LogLevel, MetricNames, OtlpExport,
    OtlpProtocol, Overrides, PostgresDurability, PostgresPrepare, ProxyAccess, RedisProxy,
    ResponseHeaders, StatsSink, WhenFull,
};
pub use events::{EventKinds, HttpUrl};
pub use file_and_host::HostName;
pub use file_sync::FileSync;
pub use fraction::{Percentage, UnitFraction};
pub use host_port::HostPort;
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
pub use origin::SettingOrigin;
pub use pairs::{Mogrifier, Mogrifiers, OutgoingHeaders, TextPairs};
pub use percent::encode_percent;
pub use postgres_url::PostgresUrl;
pub use print::{print_config, schema, server_yaml};
pub use ratelimit_prefix::RatelimitKeyPrefix;
pub use read::{LoadedSettings, RatelimitValue, SettingProblem, SettingsInput, read};
pub use redis_url::{RedisEndpoint, RedisUrl};
pub use reference::reference_page;
pub use setting::{PREFIX, Setting};
pub use store::StoreUrl;
pub(crate) use table::find_setting;
pub use table::{setting_blocks, table};
pub use tables::{PlanAmount, TableSettings, TableSource, Tables};
pub use value::{AtLeastOne, HeaderName, SecretText, Shape, Value};
pub use words::{Absent, Auto, Never, Or, Word};
