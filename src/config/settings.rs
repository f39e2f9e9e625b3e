//! The table of all settings of a process, with everything that follows from it.
//!
//! Guarantees:
//! - The table below is the only list of settings.
//! - Flags, variables, `server.yaml`, its JSON Schema and `--print-config` follow from it.
//! - A flag wins over a variable, a variable over `server.yaml`, that over the default.
//! - Every invalid value is reported at once, even if a stronger value overrides it.
//!
//! Not covered:
//! - Reading the command line, the environment and the file: see [`crate::cli`].
//! - The `OTEL_*` variables: see [`crate::telemetry::otlp`].
//! - The clock offset for fleet tests: see [`crate::clock::SHIFT_VARIABLE`].

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
        /// The settings of a process, validated.
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
    /// Limits files and directories, watched for changes. In the environment, `:` separates them.
    limits: Vec<PathBuf> = Vec::new(), "paths";
    /// Only load files whose name begins with this text and a dot; empty loads
    /// all. A file's name is its path below `limits`, with dots for slashes.
    limits_prefix: String = String::new(), "text";
    /// Also load files and directories below `limits` whose names begin with a dot.
    limits_dot_files: bool = false, "switch";
    /// Treat a missing path of `limits` as an empty
    /// directory. If all are missing, nothing is limited.
    limits_optional: bool = false, "switch";
    /// xDS server (Envoy's aggregated discovery service) that provides the limits instead of files.
    xds_server: Option<HostPort> = None, "address";
    /// Node ID that is sent to the xDS server.
    xds_node_id: String = "default".to_owned(), "text";
    /// Node metadata that is sent to the xDS server.
    xds_node_metadata: TextPairs = TextPairs::default(), "pairs";
    /// Headers that are sent to the xDS server.
    xds_headers: OutgoingHeaders = OutgoingHeaders::default(), "pairs";
    /// Use TLS for the xDS server.
    xds_tls: bool = false, "switch";
    /// CA bundle (PEM) that verifies the xDS server. Default: the system's CAs.
    xds_tls_ca_file: Option<PathBuf> = None, "path";
    /// Also trust the system's CAs for the xDS server, in addition to `xds_tls_ca_file`.
    xds_tls_system_roots: bool = false, "switch";
    /// Client certificate (PEM) for the xDS server.
    xds_tls_cert_file: Option<PathBuf> = None, "path";
    /// Private key (PEM) of `xds_tls_cert_file`.
    xds_tls_key_file: Option<PathBuf> = None, "path";
    /// Name that the xDS server's certificate must contain. Default: the host in `xds_server`.
    xds_tls_server_name: Option<HostName> = None, "name";
    /// Shortest wait before reconnecting to the xDS server. It doubles after each failure.
    xds_backoff_min: Nanos = Nanos(500 * Nanos::MILLI.0), "duration";
    /// Longest wait before reconnecting to the xDS server.
    xds_backoff_max: Nanos = Nanos::from_secs(30), "duration";
    /// Choose each reconnect wait at random between `xds_backoff_min` and the current backoff.
    xds_backoff_jitter: bool = true, "switch";
    /// Largest message that is accepted from the xDS server. 0 means 4 MiB.
    xds_max_message: u32 = 0, "bytes";
    /// IP address that gRPC, HTTP and metrics listen on.
    host: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED), "IP address";
    /// Port of gRPC: rate limits, health, reflection. 0 chooses a free port and prints it.
    grpc_port: u16 = 8081, "TCP port";
    /// IP address that gRPC listens on, if it differs from `host`.
    grpc_host: Option<IpAddr> = None, "IP address";
    /// Unix socket that gRPC listens on, instead of `grpc_port`.
    grpc_socket: Option<PathBuf> = None, "path";
    /// Age at which a gRPC connection is asked to close (GOAWAY), plus or minus 10 %. 0: never.
    grpc_max_age: Nanos = Nanos(0), "duration";
    /// Time that calls have to finish after the GOAWAY of `grpc_max_age`. 0: no limit.
    grpc_max_age_grace: Nanos = Nanos(0), "duration";
    /// Certificate chain (PEM) of gRPC, reloaded when the file changes. Without it gRPC has no TLS.
    grpc_tls_cert_file: Option<PathBuf> = None, "path";
    /// Private key (PEM) of `grpc_tls_cert_file`.
    grpc_tls_key_file: Option<PathBuf> = None, "path";
    /// CA bundle (PEM) that verifies gRPC clients. Without it clients need no certificate.
    grpc_tls_client_ca_file: Option<PathBuf> = None, "path";
    /// DNS name that each gRPC client's certificate must contain.
    grpc_tls_client_name: Option<HostName> = None, "name";
    /// IP address that HTTP listens on, if it differs from `host`.
    http_host: Option<IpAddr> = None, "IP address";
    /// Port of HTTP: `/json`, `/check`, `/hold`, `/healthcheck`,
    /// `/livez`, `/readyz`. 0 chooses a free port and prints it.
    http_port: u16 = 8080, "TCP port";
    /// Let other processes of the same user listen on the same ports (`SO_REUSEPORT`).
    reuse_port: bool = false, "switch";
    /// Serve metrics on a separate port.
    metrics: bool = true, "switch";
    /// IP address that metrics listen on, if it differs from `host`.
    metrics_host: Option<IpAddr> = None, "IP address";
    /// HTTP path of the metrics.
    metrics_path: String = "/metrics".to_owned(), "path";
    /// Names of the metrics: this service's own, envoyproxy/ratelimit's, or both.
    metrics_names: MetricNames = MetricNames::Own, "word";
    /// File that maps envoyproxy/ratelimit's statistics
    /// to metrics, in the format of `statsd_exporter`.
    metrics_mapping: Option<PathBuf> = None, "path";
    /// Without `metrics_mapping`: envoyproxy/ratelimit's
    /// response times are in milliseconds, not seconds.
    metrics_milliseconds: bool = false, "switch";
    /// Largest number of rules with statistics of their own under
    /// envoyproxy/ratelimit's names. Further rules are counted as `_overflow_`.
    max_rule_stats: u32 = 10_000, "rules";
    /// Destination of envoyproxy/ratelimit's statistics: none, StatsD, DogStatsD or standard error.
    stats_sink: StatsSink = StatsSink::None, "word";
    /// Address of StatsD or DogStatsD.
    stats_address: Option<HostPort> = None, "address";
    /// Transport to StatsD. DogStatsD always uses UDP.
    stats_protocol: StatsProtocol = StatsProtocol::Tcp, "word";
    /// Interval at which statistics are sent.
    stats_interval: Nanos = Nanos::from_secs(10), "duration";
    /// Tags that are added to every statistic.
    stats_tags: TextPairs = TextPairs::default(), "pairs";
    /// Rules that turn DogStatsD names into other names and tags. A flag or variable takes JSON.
    stats_mogrifiers: Mogrifiers = Mogrifiers::default(), "rules";
    /// Port of metrics: `/metrics`. 0 chooses a free port and prints it.
    metrics_port: u16 = 9090, "TCP port";
    /// IP address that admin listens on. Any other than
    /// loopback needs `admin_token` or `debug_pages`.
    admin_host: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST), "IP address";
    /// Port of admin: `/config`, `/counter`, `/explain`, `/fleet`,
    /// `/frozen`, `/permits`, `/rlconfig`, `/stats`; by POST `/freeze`,
    /// `/grant`, `/reset`, `/thaw`. 0 chooses a free port and prints it.
    admin_port: u16 = 6070, "TCP port";
    /// Serve `/`, `/stats` and `/rlconfig` of admin without a token, as
    /// envoyproxy/ratelimit's debug port does. All other pages need the token.
    debug_pages: bool = false, "switch";
    /// Token that admin's callers send as `Authorization: Bearer …`.
    /// A flag is visible to every local user.
    admin_token: Option<SecretText> = None, "text";
    /// UDP port for releases from NGINX's `access_log`;
    /// empty for none. 0 chooses a free port and prints it.
    syslog_port: Option<u16> = None, "UDP port";
    /// IP address that receives these releases.
    syslog_host: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST), "IP address";
    /// Networks, separated by commas, from which releases are accepted. All others are dropped.
    syslog_from: Networks = Networks::loopback(), "networks";
    /// Port for forwarded releases from other replicas that share a Redis; empty
    /// for none. It is closed without a Redis. 0 chooses a free port and prints it.
    peer_port: Option<u16> = Some(8082), "TCP port";
    /// IP address that other replicas connect to. Any
    /// other than loopback needs a secret or certificates.
    peer_host: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST), "IP address";
    /// IP address that other replicas use for this one, if it differs from `peer_host`.
    peer_address: Option<IpAddr> = None, "IP address";
    /// Networks of the replicas, separated by commas. Addresses outside of them are never called.
    peer_networks: Networks = Networks::private(), "networks";
    /// Secret that signs all messages between replicas, the same
    /// in the whole fleet. A flag is visible to every local user.
    peer_secret: Option<SecretText> = None, "text";
    /// File with the secret, instead of `peer_secret`.
    peer_secret_file: Option<PathBuf> = None, "path";
    /// Certificate chain (PEM) for connections between replicas, reloaded when the file changes.
    peer_tls_cert_file: Option<PathBuf> = None, "path";
    /// Private key (PEM) of `peer_tls_cert_file`.
    peer_tls_key_file: Option<PathBuf> = None, "path";
    /// CA bundle (PEM) that verifies the certificates of other replicas.
    peer_tls_ca_file: Option<PathBuf> = None, "path";
    /// DNS name that each replica's certificate must contain.
    peer_tls_name: Option<HostName> = None, "name";
    /// Store of the counters: this process's memory, or a Redis that replicas share.
    backend: StoreSetting = StoreSetting::Memory, "place";
    /// File with the Redis password, read again for each connection. The user stays in `backend`.
    backend_password_file: Option<PathBuf> = None, "path";
    /// CA bundle (PEM) that verifies Redis. Default: the system's CAs.
    backend_tls_ca_file: Option<PathBuf> = None, "path";
    /// Also trust the system's CAs for Redis, in addition to `backend_tls_ca_file`.
    backend_tls_system_roots: bool = false, "switch";
    /// Client certificate chain (PEM) for Redis.
    backend_tls_cert_file: Option<PathBuf> = None, "path";
    /// Private key (PEM) of `backend_tls_cert_file`.
    backend_tls_key_file: Option<PathBuf> = None, "path";
    /// Name that the certificate of Redis must contain. Default: the host of the connection.
    backend_tls_server_name: Option<HostName> = None, "name";
    /// Accept any name in the certificate of Redis. Its CA is still verified.
    backend_tls_any_name: bool = false, "switch";
    /// ACL user for the sentinels. Default: their default user.
    backend_sentinel_user: String = String::new(), "text";
    /// Password for the sentinels. A flag is visible to every local user.
    backend_sentinel_password: Option<SecretText> = None, "text";
    /// File with the password for the sentinels, read again for each connection.
    backend_sentinel_password_file: Option<PathBuf> = None, "path";
    /// Timeout of one check's wait for Redis. After it `on_backend_failure` decides.
    backend_deadline: Nanos = Nanos(15 * Nanos::MILLI.0), "duration";
    /// A second Redis for limits with a period of one second; empty to keep them in `backend`.
    /// It uses the TLS files of `backend`, and its password file if the URL has no password.
    backend_per_second: Option<RedisUrl> = None, "place";
    /// Prefix of every key in Redis, except the keys in envoyproxy/ratelimit's format.
    key_prefix: String = "sluicegate".to_owned(), "text";
    /// Name of this replica, unique among the replicas that
    /// share a Redis. Empty: the host name and a random suffix.
    node_id: String = String::new(), "text";
    /// Smallest number of replicas by which `on_backend_failure: local` divides a limit.
    replicas_min: AtLeastOne = AtLeastOne::ONE, "replicas";
    /// Interval at which a replica reports its shared concurrency limits to Redis.
    fleet_heartbeat: Nanos = Nanos::SECOND, "duration";
    /// Time that a share of a concurrency limit stays valid without a reply from Redis.
    fleet_term: Nanos = Nanos::from_secs(5), "duration";
    /// Format of counter keys: unambiguous, or envoyproxy/ratelimit's.
    counter_keys: CounterKeys = CounterKeys::Injective, "word";
    /// Prefix of keys in envoyproxy/ratelimit's format (its `CACHE_KEY_PREFIX`).
    reference_key_prefix: RatelimitKeyPrefix = RatelimitKeyPrefix::default(), "text";
    /// Largest random time that envoyproxy/ratelimit's
    /// keys outlive their window, drawn at each hit.
    expiry_jitter: Nanos = Nanos::from_secs(300), "duration";
    /// Memory of the deny cache for envoyproxy/ratelimit's keys, which
    /// needs no Redis call until their window ends. 0: no cache.
    local_deny_cache: u64 = 0, "bytes";
    /// With envoyproxy/ratelimit's keys: a denied check charges only the limits that deny it.
    stop_when_over: bool = false, "switch";
    /// Largest number of keys in the memory store.
    max_keys: u64 = 10_000_000, "keys";
    /// Decision for a new key when there are already `max_keys` keys.
    when_full: WhenFull = WhenFull::Deny, "word";
    /// Largest number of concurrency buckets, for names of 512 bytes on average. A
    /// new bucket replaces an idle one. If none is idle, the request is rejected.
    max_buckets: u64 = 100_000, "buckets";
    /// Effect of a limit in a request: replace the configured limit, none, or only tighten it.
    overrides: Overrides = Overrides::Allow, "word";
    /// Accept descriptors that return hits (`is_negative_hits`). Otherwise their check is an error.
    negative_hits: bool = false, "switch";
    /// Decide and report, but never deny.
    shadow_mode: bool = false, "switch";
    /// Treat every limit as `quota_mode`: deny only if all limits that match a check are exhausted.
    quota_mode: bool = false, "switch";
    /// Merge files that name the same domain. Otherwise the second file is an error.
    merge_domains: bool = false, "switch";
    /// Fraction of a limit above which a caller counts as near the limit.
    near_limit_ratio: UnitFraction = UnitFraction::NEAR_LIMIT_DEFAULT, "part of the limit";
    /// Rate limit headers in responses: none,
    /// envoyproxy/ratelimit's three, the IETF draft's, or all.
    response_headers: ResponseHeaders = ResponseHeaders::None, "word";
    /// Also add envoyproxy/ratelimit's three headers to the request to the upstream.
    request_headers: bool = false, "switch";
    /// Name of the header with the limit. An empty name is sent too, as envoyproxy/ratelimit
    /// does, although HTTP/2 forbids it. To omit headers, use `response_headers`.
    limit_header: HeaderName = default_header_name("RateLimit-Limit"), "header name";
    /// Name of the header with the remaining hits. An empty name is sent too; see `limit_header`.
    remaining_header: HeaderName = default_header_name("RateLimit-Remaining"), "header name";
    /// Name of the header with the seconds until the limit
    /// resets. An empty name is sent too; see `limit_header`.
    reset_header: HeaderName = default_header_name("RateLimit-Reset"), "header name";
    /// Send `Retry-After` with a denial.
    retry_after: bool = false, "switch";
    /// Return the check and the metadata of its rules as dynamic metadata.
    dynamic_metadata: bool = false, "switch";
    /// Start even if the first load fails, and serve without limits until a load succeeds.
    start_without_config: bool = false, "switch";
    /// Report `NOT_SERVING` until at least one domain is loaded.
    healthy_with_config: bool = false, "switch";
    /// Report `NOT_SERVING` while the store is unavailable.
    healthy_with_backend: bool = false, "switch";
    /// Effect of SIGHUP: reload the limits, or stop as SIGTERM does.
    on_hangup: OnHangup = OnHangup::Reload, "word";
    /// Time that files must stay unchanged after a change before they are reloaded.
    reload_debounce: Nanos = Nanos(100 * Nanos::MILLI.0), "duration";
    /// Time between `NOT_SERVING` and GOAWAY, so that load balancers stop sending calls.
    drain_delay: Nanos = Nanos::from_secs(5), "duration";
    /// Time that calls in flight have to finish after GOAWAY.
    drain_timeout: Nanos = Nanos::from_secs(20), "duration";
    /// Descriptors of hooks whose requests contain none. A flag or variable takes JSON.
    hooks: Hooks = Hooks::default(), "hooks";
    /// Send traces and metrics to the OTLP collector that
    /// the `OTEL_*` variables name, if they name one.
    otlp: bool = true, "switch";
    /// OTLP protocol, if `OTEL_EXPORTER_OTLP_PROTOCOL` is not set.
    otlp_protocol: OtlpProtocol = OtlpProtocol::Grpc, "word";
    /// Send metrics too, if `OTEL_METRICS_EXPORTER` is not set.
    otlp_counts: bool = true, "switch";
    /// Service name in OTLP, if `OTEL_SERVICE_NAME` is not set.
    otlp_service: String = "sluicegate".to_owned(), "text";
    /// Resource attributes in OTLP. Attributes in `OTEL_RESOURCE_ATTRIBUTES` win.
    otlp_attributes: TextPairs = TextPairs::default(), "pairs";
    /// Fraction of traces to sample if the caller did
    /// not decide and `OTEL_TRACES_SAMPLER` is not set.
    otlp_sampled: UnitFraction = UnitFraction::WHOLE, "part of the traces";
    /// Number of worker threads. 0: one for each core.
    threads: u32 = 0, "threads";
    /// Lowest level of log lines that are written.
    log_level: LogLevel = LogLevel::Info, "word";
    /// Format of log lines: text, or JSON with this service's keys or envoyproxy/ratelimit's.
    log_format: LogFormat = LogFormat::Text, "word";
}

/// The prefix of every environment variable.
pub const PREFIX: &str = "SLUICEGATE_";

/// One row of the table of settings.
#[derive(Debug)]
pub struct Setting {
    /// The name in `server.yaml`: `a_b_c`.
    pub name: &'static str,
    /// The flag, without its two dashes: `a-b-c`.
    pub flag: String,
    /// The environment variable: `SLUICEGATE_A_B_C`.
    pub variable: String,
    /// The description of the setting.
    pub doc: String,
    /// The unit or the kind of the value.
    pub unit: &'static str,
    /// The accepted values, as part of a sentence.
    pub accepts: String,
    /// The number of texts that make a value.
    pub shape: Shape,
    /// The accepted texts, if they are a closed list.
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
    /// Returns the value in `settings` as YAML.
    #[must_use]
    pub fn show(&self, settings: &Settings) -> String {
        (self.show)(settings)
    }

    /// Returns `true` if the value is the literal text in a file, even if it looks like a number.
    fn is_literal_text(&self) -> bool {
        !self.is_scalar && self.shape != Shape::Block
    }
}

/// Returns all settings in reading order.
#[must_use]
pub fn table() -> &'static [Setting] {
    &TABLE
}

/// Returns a default header name. A test checks that the names in the table are valid.
fn default_header_name(name: &str) -> HeaderName {
    HeaderName::new(name).unwrap_or_default()
}
