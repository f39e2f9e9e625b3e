//! The list of all settings of a process, and everything that is derived from it.
//!
//! Guarantees:
//! - The list below is the only list of settings.
//! - Flags, environment variables, `server.yaml`, its JSON Schema and `--print-config` are derived
//!   from it.
//! - Precedence: flag, environment variable, `server.yaml`, default.
//! - All invalid values are reported at once, even those that a flag or variable overrides.
//!
//! Not covered:
//! - Reading the command line, the environment and `server.yaml` (see [`crate::cli`]).
//! - The environment variables `OTEL_*` (see [`crate::telemetry::otlp`]).
//! - The variable that shifts the clock in fleet tests (see [`crate::clock::SHIFT_VARIABLE`]).

mod address;
mod choices;
mod conflicts;
mod file;
mod file_and_host;
mod hooks;
mod nearest;
mod network;
mod pairs;
mod peer_conflicts;
mod print;
mod ratelimit_prefix;
mod read;
mod store;
mod value;

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::LazyLock;

pub use choices::{
    CounterKeys, LogFormat, LogLevel, MetricNames, OnHangup, OtlpProtocol, Overrides,
    ResponseHeaders, StatsProtocol, StatsSink, WhenFull,
};
pub use file_and_host::HostName;
pub use nearest::nearest;
pub use network::Networks;
pub use pairs::{Mogrifier, Mogrifiers, OutgoingHeaders, TextPairs};
pub use print::{print_config, schema, server_yaml};
pub use ratelimit_prefix::RatelimitKeyPrefix;
pub use read::{
    LoadedSettings, RatelimitValue, SettingOrigin, SettingProblem, SettingsInput, read,
};
pub use store::{HostPort, RedisEndpoint, RedisUrl, StoreSetting};
pub use value::{AtLeastOne, HeaderName, SecretText, Shape, UnitFraction, Value};

use crate::config::hooks::Hooks;
use crate::kernel::units::Nanos;

macro_rules! settings {
    ($( $(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:expr, $unit:literal; )+) => {
        /// All settings of a process, with valid values.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(clippy::struct_excessive_bools, reason = "each is a switch that a person sets")]
        pub struct Settings {
            $( $(#[doc = $doc])+ pub $name: $type, )+
        }

        impl Default for Settings {
            fn default() -> Self {
                Self { $( $name: $default, )+ }
            }
        }

        static TABLE: LazyLock<Vec<Setting>> = LazyLock::new(|| vec![ $(
            Setting {
                name: stringify!($name),
                flag: stringify!($name).replace('_', "-"),
                variable: format!("{PREFIX}{}", stringify!($name).to_uppercase()),
                doc: [$($doc.trim()),+].join(" "),
                unit: $unit,
                accepts: <$type as Value>::accepts(),
                shape: <$type as Value>::SHAPE,
                choices: <$type as Value>::CHOICES,
                hidden: <$type as Value>::HIDDEN,
                is_scalar: <$type as Value>::IS_SCALAR,
                schema: <$type as Value>::schema(),
                masked: <$type as Value>::masked,
                why: <$type as Value>::why,
                set: |settings, texts| {
                    settings.$name = <$type as Value>::read(texts)?;
                    Some(())
                },
                reset: |settings| settings.$name = $default,
                show: |settings| settings.$name.show(),
            },
        )+ ]);
    };
}

settings! {
    /// Limits files, and directories with limits files. They are reloaded when they change. In the
    /// environment variable, `:` separates them.
    limits: Vec<PathBuf> = Vec::new(), "paths";
    /// Load only files whose name begins with this text and a dot; empty loads all. The name of a
    /// file is its path below `limits`, with dots instead of slashes.
    limits_prefix: String = String::new(), "text";
    /// Also load files and directories below `limits` whose names begin with a dot.
    limits_dot_files: bool = false, "switch";
    /// Treat a missing path in `limits` as an empty directory. If all paths are missing, nothing is
    /// limited.
    limits_optional: bool = false, "switch";
    /// Address of an xDS server (Envoy's aggregated discovery service) from which limits are
    /// loaded, instead of files.
    xds_server: Option<HostPort> = None, "address";
    /// Node ID that is sent to the xDS server.
    xds_node_id: String = "default".to_owned(), "text";
    /// Node metadata that is sent to the xDS server.
    xds_node_metadata: TextPairs = TextPairs::default(), "pairs";
    /// Headers that are sent to the xDS server.
    xds_headers: OutgoingHeaders = OutgoingHeaders::default(), "pairs";
    /// Use TLS for the connection to the xDS server.
    xds_tls: bool = false, "switch";
    /// CA bundle (PEM) that verifies the xDS server's certificate. Default: the system's CAs.
    xds_tls_ca_file: Option<PathBuf> = None, "path";
    /// In addition to `xds_tls_ca_file`, trust the system's CAs for the xDS server.
    xds_tls_system_roots: bool = false, "switch";
    /// Client certificate (PEM) for the xDS server.
    xds_tls_cert_file: Option<PathBuf> = None, "path";
    /// Private key (PEM) of `xds_tls_cert_file`.
    xds_tls_key_file: Option<PathBuf> = None, "path";
    /// Name that the xDS server's certificate must contain. Default: the host in `xds_server`.
    xds_tls_server_name: Option<HostName> = None, "name";
    /// Shortest wait before reconnecting to the xDS server. The wait doubles after each failure.
    xds_backoff_min: Nanos = Nanos(500 * Nanos::MILLI.0), "duration";
    /// Longest wait before reconnecting to the xDS server.
    xds_backoff_max: Nanos = Nanos::from_secs(30), "duration";
    /// Choose each wait before reconnecting at random, between `xds_backoff_min` and the doubled
    /// wait.
    xds_backoff_jitter: bool = true, "switch";
    /// Largest message that is accepted from the xDS server, in bytes. 0 means 4 MiB.
    xds_max_message: u32 = 0, "bytes";
    /// IP address on which gRPC, HTTP and metrics listen.
    host: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED), "IP address";
    /// Port for gRPC: rate limit checks, health, reflection. 0 chooses a free port and prints it.
    grpc_port: u16 = 8081, "TCP port";
    /// IP address on which gRPC listens, if it differs from `host`.
    grpc_host: Option<IpAddr> = None, "IP address";
    /// Path of a Unix socket on which gRPC listens, instead of `grpc_port`.
    grpc_socket: Option<PathBuf> = None, "path";
    /// Age at which the server asks a gRPC client to close its connection (GOAWAY), plus or minus
    /// 10 %. 0: never.
    grpc_max_age: Nanos = Nanos(0), "duration";
    /// Time for calls to finish after the GOAWAY of `grpc_max_age`; then the connection is closed.
    /// 0: no limit.
    grpc_max_age_grace: Nanos = Nanos(0), "duration";
    /// Certificate chain (PEM) of the gRPC server, reloaded when the file changes. Without it, gRPC
    /// has no TLS.
    grpc_tls_cert_file: Option<PathBuf> = None, "path";
    /// Private key (PEM) of `grpc_tls_cert_file`.
    grpc_tls_key_file: Option<PathBuf> = None, "path";
    /// CA bundle (PEM) that verifies the certificates of gRPC clients. Without it, clients need no
    /// certificate.
    grpc_tls_client_ca_file: Option<PathBuf> = None, "path";
    /// DNS name that each gRPC client's certificate must contain.
    grpc_tls_client_name: Option<HostName> = None, "name";
    /// IP address on which HTTP listens, if it differs from `host`.
    http_host: Option<IpAddr> = None, "IP address";
    /// Port for HTTP: `/json`, `/check`, `/hold`, `/healthcheck`, `/livez`, `/readyz`. 0 chooses a
    /// free port and prints it.
    http_port: u16 = 8080, "TCP port";
    /// Let other processes of the same user listen on the same ports (`SO_REUSEPORT`).
    reuse_port: bool = false, "switch";
    /// Serve metrics over HTTP on a separate port.
    metrics: bool = true, "switch";
    /// IP address on which metrics are served, if it differs from `host`.
    metrics_host: Option<IpAddr> = None, "IP address";
    /// HTTP path at which metrics are served.
    metrics_path: String = "/metrics".to_owned(), "path";
    /// Names of the metrics: Sluicegate's own, envoyproxy/ratelimit's, or both.
    metrics_names: MetricNames = MetricNames::Own, "word";
    /// File that maps envoyproxy/ratelimit's statistics to Prometheus metrics, in the format of
    /// `statsd_exporter`.
    metrics_mapping: Option<PathBuf> = None, "path";
    /// Export envoyproxy/ratelimit's response times in milliseconds instead of seconds, if there is
    /// no `metrics_mapping`.
    metrics_milliseconds: bool = false, "switch";
    /// Largest number of rules that have their own statistics under envoyproxy/ratelimit's names.
    /// Further rules are counted together as `_overflow_`.
    max_rule_stats: u32 = 10_000, "rules";
    /// Destination to which envoyproxy/ratelimit's statistics are sent: none, StatsD, DogStatsD or
    /// standard error.
    stats_sink: StatsSink = StatsSink::None, "word";
    /// Address of the StatsD or DogStatsD server.
    stats_address: Option<HostPort> = None, "address";
    /// Transport protocol to the StatsD server. DogStatsD always uses UDP.
    stats_protocol: StatsProtocol = StatsProtocol::Tcp, "word";
    /// Interval at which statistics are sent to `stats_sink`.
    stats_interval: Nanos = Nanos::from_secs(10), "duration";
    /// Tags that are added to every statistic sent to `stats_sink`.
    stats_tags: TextPairs = TextPairs::default(), "pairs";
    /// Rules that turn parts of a DogStatsD statistic's name into tags. A flag or environment
    /// variable contains them as JSON.
    stats_mogrifiers: Mogrifiers = Mogrifiers::default(), "rules";
    /// Port for metrics. 0 chooses a free port and prints it.
    metrics_port: u16 = 9090, "TCP port";
    /// IP address on which the admin port listens. Any address other than loopback needs
    /// `admin_token` or `debug_pages`.
    admin_host: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST), "IP address";
    /// Port for administration: `/config`, `/counter`, `/explain`, `/fleet`, `/frozen`, `/permits`,
    /// `/rlconfig`, `/stats`; by POST `/freeze`, `/grant`, `/reset`, `/thaw`. 0 chooses a free port
    /// and prints it.
    admin_port: u16 = 6070, "TCP port";
    /// Serve `/`, `/stats` and `/rlconfig` of the admin port without a token, as
    /// envoyproxy/ratelimit's debug port does. All other paths need the token.
    debug_pages: bool = false, "switch";
    /// Token that callers of the admin port send as `Authorization: Bearer …`. Every local user can
    /// see a token in a flag.
    admin_token: Option<SecretText> = None, "text";
    /// UDP port that receives releases of permits from NGINX's `access_log` (syslog); empty for
    /// none. 0 chooses a free port and prints it.
    syslog_port: Option<u16> = None, "UDP port";
    /// IP address on which `syslog_port` listens.
    syslog_host: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST), "IP address";
    /// Networks, separated by commas, from which `syslog_port` accepts releases. Releases from
    /// other addresses are dropped.
    syslog_from: Networks = Networks::loopback(), "networks";
    /// Port for releases that other replicas of the fleet forward; empty for none. Without a shared
    /// Redis, it is not opened. 0 chooses a free port and prints it.
    peer_port: Option<u16> = Some(8082), "TCP port";
    /// IP address on which `peer_port` listens. Any address other than loopback needs a secret or
    /// certificates for other replicas.
    peer_host: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST), "IP address";
    /// IP address to which other replicas connect, if it differs from `peer_host`.
    peer_address: Option<IpAddr> = None, "IP address";
    /// Networks of the replicas, separated by commas. This replica never connects to a replica
    /// outside of them.
    peer_networks: Networks = Networks::private(), "networks";
    /// Secret that signs all messages between replicas, the same for the whole fleet. Every local
    /// user can see a secret in a flag.
    peer_secret: Option<SecretText> = None, "text";
    /// File that contains the secret, instead of `peer_secret`.
    peer_secret_file: Option<PathBuf> = None, "path";
    /// Certificate chain (PEM) of this replica for connections between replicas, reloaded when the
    /// file changes.
    peer_tls_cert_file: Option<PathBuf> = None, "path";
    /// Private key (PEM) of `peer_tls_cert_file`.
    peer_tls_key_file: Option<PathBuf> = None, "path";
    /// CA bundle (PEM) that verifies the certificates of other replicas.
    peer_tls_ca_file: Option<PathBuf> = None, "path";
    /// DNS name that the certificate of each replica must contain.
    peer_tls_name: Option<HostName> = None, "name";
    /// Store of the counters: the memory of this process, or the URL of a Redis that the fleet
    /// shares.
    backend: StoreSetting = StoreSetting::Memory, "place";
    /// File that contains the Redis password, read again for each connection. The user name is in
    /// `backend`.
    backend_password_file: Option<PathBuf> = None, "path";
    /// CA bundle (PEM) that verifies the certificate of Redis. Default: the system's CAs.
    backend_tls_ca_file: Option<PathBuf> = None, "path";
    /// In addition to `backend_tls_ca_file`, trust the system's CAs for Redis.
    backend_tls_system_roots: bool = false, "switch";
    /// Client certificate chain (PEM) for Redis.
    backend_tls_cert_file: Option<PathBuf> = None, "path";
    /// Private key (PEM) of `backend_tls_cert_file`.
    backend_tls_key_file: Option<PathBuf> = None, "path";
    /// Name that the certificate of Redis must contain. Default: the host to which the connection
    /// is made.
    backend_tls_server_name: Option<HostName> = None, "name";
    /// Accept a certificate of Redis with any name. Its CA is still verified.
    backend_tls_any_name: bool = false, "switch";
    /// ACL user for Redis Sentinel. Default: the sentinels' default user.
    backend_sentinel_user: String = String::new(), "text";
    /// Password for Redis Sentinel. Every local user can see a password in a flag.
    backend_sentinel_password: Option<SecretText> = None, "text";
    /// File that contains the password for Redis Sentinel, read again for each connection.
    backend_sentinel_password_file: Option<PathBuf> = None, "path";
    /// Longest time that a check waits for Redis. After it, `on_backend_failure` decides.
    backend_deadline: Nanos = Nanos(15 * Nanos::MILLI.0), "duration";
    /// URL of a second Redis for limits with a period of one second; empty to keep their counters
    /// in `backend`. The second Redis uses the TLS files of `backend`, and its password file if the
    /// URL has no password.
    backend_per_second: Option<RedisUrl> = None, "place";
    /// Prefix of every key in Redis, except counter keys in envoyproxy/ratelimit's format.
    key_prefix: String = "sluicegate".to_owned(), "text";
    /// Name of this replica, unique among the replicas that share a Redis. Empty: the host name and
    /// a random suffix.
    node_id: String = String::new(), "text";
    /// Smallest number of replicas to assume when `on_backend_failure: local` divides a limit by
    /// the number of replicas.
    replicas_min: AtLeastOne = AtLeastOne::ONE, "replicas";
    /// Interval of heartbeats, in which a replica reports its use of shared concurrency limits to
    /// Redis.
    fleet_heartbeat: Nanos = Nanos::SECOND, "duration";
    /// Time for which this replica may use its share of a concurrency limit without a further reply
    /// from Redis.
    fleet_term: Nanos = Nanos::from_secs(5), "duration";
    /// Format of counter keys: Sluicegate's, which is unambiguous, or envoyproxy/ratelimit's.
    counter_keys: CounterKeys = CounterKeys::Injective, "word";
    /// Prefix of counter keys in envoyproxy/ratelimit's format (its `CACHE_KEY_PREFIX`).
    reference_key_prefix: RatelimitKeyPrefix = RatelimitKeyPrefix::default(), "text";
    /// With envoyproxy/ratelimit's counter keys: the largest random time that is added to the
    /// expiry of a key at each hit.
    expiry_jitter: Nanos = Nanos::from_secs(300), "duration";
    /// With envoyproxy/ratelimit's counter keys: memory for remembered denials, which need no Redis
    /// call until their window ends. 0: no denial is remembered.
    local_deny_cache: u64 = 0, "bytes";
    /// With envoyproxy/ratelimit's counter keys: charge only the limits that deny, if a check is
    /// denied.
    stop_when_over: bool = false, "switch";
    /// Largest number of counters in the memory store.
    max_keys: u64 = 10_000_000, "keys";
    /// Decision of a check that needs a new counter while the memory store has `max_keys` counters.
    when_full: WhenFull = WhenFull::Deny, "word";
    /// Largest number of concurrency buckets (one limit for one set of descriptor values), for
    /// names of 512 bytes on average. A new bucket replaces one without requests. If there is none,
    /// the request is rejected.
    max_buckets: u64 = 100_000, "buckets";
    /// Effect of a limit that a request carries: it replaces the configured limit, is ignored, or
    /// applies only if it is lower.
    overrides: Overrides = Overrides::Allow, "word";
    /// Accept descriptors that refund hits (`is_negative_hits`). Otherwise, a check with such a
    /// descriptor is an error.
    negative_hits: bool = false, "switch";
    /// Decide and report all checks, but never deny (shadow mode for all limits).
    shadow_mode: bool = false, "switch";
    /// Treat every limit as if it had `quota_mode`: a check is denied only if all its limits deny.
    quota_mode: bool = false, "switch";
    /// Merge limits files with the same domain. Otherwise, the second file of a domain is an error.
    merge_domains: bool = false, "switch";
    /// Fraction of a limit. Metrics count an allowed check as near the limit if its counter exceeds
    /// this fraction.
    near_limit_ratio: UnitFraction = UnitFraction::NEAR_LIMIT_DEFAULT, "part of the limit";
    /// Rate limit headers in responses: none, envoyproxy/ratelimit's three, those of the IETF
    /// draft, or all.
    response_headers: ResponseHeaders = ResponseHeaders::None, "word";
    /// Add envoyproxy/ratelimit's three headers also to the request that the proxy sends to the
    /// upstream.
    request_headers: bool = false, "switch";
    /// Name of the header with the limit. If the name is empty, the header is sent with an empty
    /// name, as by envoyproxy/ratelimit, although HTTP/2 forbids it. To omit headers, use
    /// `response_headers`.
    limit_header: HeaderName = default_header_name("RateLimit-Limit"), "header name";
    /// Name of the header with the remaining hits. An empty name does not omit the header; see
    /// `limit_header`.
    remaining_header: HeaderName = default_header_name("RateLimit-Remaining"), "header name";
    /// Name of the header with the seconds until the limit resets. An empty name does not omit the
    /// header; see `limit_header`.
    reset_header: HeaderName = default_header_name("RateLimit-Reset"), "header name";
    /// Send the header `Retry-After` with a denial.
    retry_after: bool = false, "switch";
    /// Return the descriptors of the check and the `metadata` of its rules as Envoy's dynamic
    /// metadata.
    dynamic_metadata: bool = false, "switch";
    /// Start even if the limits cannot be loaded. Until a later load succeeds, nothing is limited.
    start_without_config: bool = false, "switch";
    /// Report the health `NOT_SERVING` until at least one domain is loaded.
    healthy_with_config: bool = false, "switch";
    /// Report the health `NOT_SERVING` while the store is unavailable.
    healthy_with_backend: bool = false, "switch";
    /// Effect of the signal SIGHUP: reload the limits, or stop the process as SIGTERM does.
    on_hangup: OnHangup = OnHangup::Reload, "word";
    /// Time for which changed limits files must stay the same before they are reloaded.
    reload_debounce: Nanos = Nanos(100 * Nanos::MILLI.0), "duration";
    /// At shutdown: time between `NOT_SERVING` and GOAWAY, in which load balancers stop sending
    /// calls.
    drain_delay: Nanos = Nanos::from_secs(5), "duration";
    /// At shutdown: time for calls in flight to finish after GOAWAY.
    drain_timeout: Nanos = Nanos::from_secs(20), "duration";
    /// Rules that build descriptors for calls from proxies that send none. A flag or environment
    /// variable contains them as JSON.
    hooks: Hooks = Hooks::default(), "hooks";
    /// Send traces and metrics to the OTLP collector, if environment variables `OTEL_*` name one.
    otlp: bool = true, "switch";
    /// OTLP protocol, if the environment variable `OTEL_EXPORTER_OTLP_PROTOCOL` is not set.
    otlp_protocol: OtlpProtocol = OtlpProtocol::Grpc, "word";
    /// Send metrics as well as traces, if the environment variable `OTEL_METRICS_EXPORTER` is not
    /// set.
    otlp_counts: bool = true, "switch";
    /// Service name in traces and metrics for OTLP, if the environment variable `OTEL_SERVICE_NAME`
    /// is not set.
    otlp_service: String = "sluicegate".to_owned(), "text";
    /// Resource attributes of traces and metrics for OTLP. Attributes in the environment variable
    /// `OTEL_RESOURCE_ATTRIBUTES` take precedence.
    otlp_attributes: TextPairs = TextPairs::default(), "pairs";
    /// Fraction of traces to send, if neither the caller nor the environment variable
    /// `OTEL_TRACES_SAMPLER` decides.
    otlp_sampled: UnitFraction = UnitFraction::WHOLE, "part of the traces";
    /// Number of worker threads. 0: one for each CPU core.
    threads: u32 = 0, "threads";
    /// Lowest level of the log lines that are written.
    log_level: LogLevel = LogLevel::Info, "word";
    /// Format of log lines: text, JSON with Sluicegate's keys, or JSON with envoyproxy/ratelimit's
    /// keys.
    log_format: LogFormat = LogFormat::Text, "word";
}

/// The prefix of the environment variable of every setting.
pub const PREFIX: &str = "SLUICEGATE_";

/// The description of one setting: its names, its documentation and its valid values.
#[derive(Debug)]
pub struct Setting {
    /// The key in `server.yaml`: `a_b_c`.
    pub name: &'static str,
    /// The flag, without its two dashes: `a-b-c`.
    pub flag: String,
    /// The environment variable: `SLUICEGATE_A_B_C`.
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
    set: fn(&mut Settings, &[&str]) -> Option<()>,
    reset: fn(&mut Settings),
    show: fn(&Settings) -> String,
}

impl Setting {
    /// Returns the value that this setting has in `settings`, as YAML.
    #[must_use]
    pub fn show(&self, settings: &Settings) -> String {
        (self.show)(settings)
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
    &TABLE
}

/// Returns a header name for a default. A test verifies that all default names are valid.
fn default_header_name(name: &str) -> HeaderName {
    HeaderName::new(name).unwrap_or_default()
}
