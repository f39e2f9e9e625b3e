//! What a process can be told from outside, in one table.
//!
//! Guarantees: the table below is the only list of settings. The typed [`Settings`], the flags, the
//! environment variables, the keys of `server.yaml`, its JSON Schema, the file that is shipped and
//! what `--print-config` shows all follow from it. Beside it a process heeds where `OTEL_*` says that
//! it tells spans and counts ([`crate::telemetry::otlp`]), and how wrong [`crate::clock::SHIFT`] says
//! that its clock is, which is for tests of fleets alone. Of two doors that name one setting the stronger
//! wins: flags, then the environment, then `server.yaml`, then the default. Every problem of every
//! door is reported at once, even where a stronger door wins.
//! Leaves out: reading the command line, the environment and the file, which is for [`crate::cli`].

mod address;
mod backend;
mod file;
mod hooks;
mod named;
mod nearest;
mod network;
mod pairs;
mod peers;
mod print;
mod read;
mod reference;
mod together;
mod value;
mod words;

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::LazyLock;

pub use backend::{Address, Backend, Place, RedisUrl};
pub use named::HostName;
pub use nearest::nearest;
pub use network::Networks;
pub use pairs::{Headers, Mogrifier, Mogrifiers, Pairs};
pub use print::{print_config, schema, server_yaml};
pub use read::{Doors, Loaded, Named, Origin, Problem, read};
pub use reference::ReferencePrefix;
pub use value::{AtLeastOne, HeaderName, Ratio, Secret, Shape, Value};
pub use words::{
    CounterKeys, LogFormat, LogLevel, MetricNames, OnHangup, OtlpProtocol, Overrides,
    ResponseHeaders, StatsProtocol, StatsSink, WhenFull,
};

use crate::config::hooks::Hooks;
use crate::kernel::units::Nanos;

macro_rules! settings {
    ($( $(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:expr, $unit:literal; )+) => {
        /// Everything a process can be told from outside, checked.
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
    /// Files and directories of limits, watched for changes; in the environment separated by `:`.
    limits: Vec<PathBuf> = Vec::new(), "paths";
    /// Join the names of `limits` and what is below them by dots, and take only those that begin with this and
    /// a dot; empty for all.
    limits_prefix: String = String::new(), "text";
    /// Read files and directories below `limits` whose names begin with a dot, too.
    limits_dot_files: bool = false, "switch";
    /// Take a path of `limits` that is not there for an empty directory; with none at all nothing is limited.
    limits_optional: bool = false, "switch";
    /// A management server that has the limits, instead of files: Envoy's aggregated discovery service.
    xds_server: Option<Address> = None, "address";
    /// What this process calls itself to the management server.
    xds_node_id: String = "default".to_owned(), "text";
    /// What it tells the management server of itself.
    xds_node_metadata: Pairs = Pairs::default(), "pairs";
    /// Headers of the stream to the management server.
    xds_headers: Headers = Headers::default(), "pairs";
    /// Speak TLS to the management server.
    xds_tls: bool = false, "switch";
    /// PEM file of who may sign the management server's certificate; without it whom this system trusts.
    xds_tls_ca_file: Option<PathBuf> = None, "path";
    /// Whom this system trusts may sign it, too, beside those of `xds_tls_ca_file`.
    xds_tls_system_roots: bool = false, "switch";
    /// PEM file with the certificate that is shown to the management server.
    xds_tls_cert_file: Option<PathBuf> = None, "path";
    /// PEM file with the key of `xds_tls_cert_file`.
    xds_tls_key_file: Option<PathBuf> = None, "path";
    /// Whom the management server's certificate must be made out to, instead of to the host that is called.
    xds_tls_server_name: Option<HostName> = None, "name";
    /// Shortest wait before the management server is called again; it doubles at each failure.
    xds_backoff_min: Nanos = Nanos(500 * Nanos::MILLI.0), "duration";
    /// Longest wait before the management server is called again.
    xds_backoff_max: Nanos = Nanos::from_secs(30), "duration";
    /// Draw each wait anew between the shortest and what is due.
    xds_backoff_jitter: bool = true, "switch";
    /// Longest message that is taken from the management server; 0: 4 MiB.
    xds_max_message: u32 = 0, "bytes";
    /// Address that gRPC, HTTP and metrics listen on.
    host: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED), "IP address";
    /// gRPC: rate limits, health, reflection. 0 takes a free port and prints it.
    grpc_port: u16 = 8081, "TCP port";
    /// Address that gRPC listens on, where it is another than `host`.
    grpc_host: Option<IpAddr> = None, "IP address";
    /// Unix socket that gRPC listens on, instead of `grpc_port`.
    grpc_socket: Option<PathBuf> = None, "path";
    /// About how long a gRPC connection may last before it is told to go, a tenth more or less; 0: for ever.
    grpc_max_age: Nanos = Nanos(0), "duration";
    /// How long calls of a connection that was told to go have to finish before it is closed; 0: any time.
    grpc_max_age_grace: Nanos = Nanos(0), "duration";
    /// PEM file with gRPC's certificate, and those up to its root, read anew when it changes; none for no TLS.
    grpc_tls_cert_file: Option<PathBuf> = None, "path";
    /// PEM file with the key of `grpc_tls_cert_file`.
    grpc_tls_key_file: Option<PathBuf> = None, "path";
    /// PEM file of who must have signed each client's certificate; without it clients need none.
    grpc_tls_client_ca_file: Option<PathBuf> = None, "path";
    /// DNS name that each client's certificate must be made out to.
    grpc_tls_client_name: Option<HostName> = None, "name";
    /// Address that HTTP listens on, where it is another than `host`.
    http_host: Option<IpAddr> = None, "IP address";
    /// HTTP: `/json`, `/check`, `/hold`, `/healthcheck`, `/livez`, `/readyz`. 0 takes a free port and prints it.
    http_port: u16 = 8080, "TCP port";
    /// Let other processes of this user listen on the same ports at the same time.
    reuse_port: bool = false, "switch";
    /// Serve metrics on a port of their own.
    metrics: bool = true, "switch";
    /// Address that metrics listen on, where it is another than `host`.
    metrics_host: Option<IpAddr> = None, "IP address";
    /// Path of the metrics.
    metrics_path: String = "/metrics".to_owned(), "path";
    /// Whose metrics are shown: this service's own, envoyproxy/ratelimit's, or both.
    metrics_names: MetricNames = MetricNames::Own, "word";
    /// File that says how envoyproxy/ratelimit's statistics become metrics, as `statsd_exporter` reads it.
    metrics_mapping: Option<PathBuf> = None, "path";
    /// Without `metrics_mapping`: envoyproxy/ratelimit's response times are milliseconds, not seconds.
    metrics_milliseconds: bool = false, "switch";
    /// Most rules that are counted one by one under envoyproxy/ratelimit's names; what comes then is counted as
    /// `_overflow_`.
    max_rule_stats: u32 = 10_000, "rules";
    /// Where envoyproxy/ratelimit's statistics are sent: nowhere, to StatsD, to DogStatsD, to standard error.
    stats_sink: StatsSink = StatsSink::None, "word";
    /// Where StatsD or DogStatsD listens.
    stats_address: Option<Address> = None, "address";
    /// How StatsD is spoken to; DogStatsD always by datagrams.
    stats_protocol: StatsProtocol = StatsProtocol::Tcp, "word";
    /// How often statistics are sent.
    stats_interval: Nanos = Nanos::from_secs(10), "duration";
    /// Tags of every statistic that is sent.
    stats_tags: Pairs = Pairs::default(), "pairs";
    /// How DogStatsD's names become other names and tags; inline as JSON in a flag or variable.
    stats_mogrifiers: Mogrifiers = Mogrifiers::default(), "rules";
    /// HTTP: `/metrics`. 0 takes a free port and prints it.
    metrics_port: u16 = 9090, "TCP port";
    /// Address that admin listens on; anything but loopback needs `admin_token` or `debug_pages`.
    admin_host: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST), "IP address";
    /// HTTP: `/config`, `/counter`, `/explain`, `/fleet`, `/frozen`, `/permits`, `/rlconfig`, `/stats`,
    /// `/debug/pprof/profile`; by POST `/freeze`, `/grant`, `/reset`, `/thaw`. 0 takes a free port and prints it.
    admin_port: u16 = 6070, "TCP port";
    /// Show `/`, `/stats` and `/rlconfig` on admin to anybody, as envoyproxy/ratelimit's debug port does, and the
    /// rest to those with the token alone.
    debug_pages: bool = false, "switch";
    /// What admin's callers send as `Authorization: Bearer …`; a flag shows it to every local user.
    admin_token: Option<Secret> = None, "text";
    /// Releases from NGINX's `access_log`, as datagrams; empty for none. 0 takes a free port and prints it.
    syslog_port: Option<u16> = None, "UDP port";
    /// Address that releases are received on.
    syslog_host: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST), "IP address";
    /// Whose releases are heeded, separated by commas; those of all others are dropped.
    syslog_from: Networks = Networks::loopback(), "networks";
    /// Ends of requests from other replicas that share a Redis, which reached the wrong one; empty for none. Nothing
    /// listens without a Redis. 0 takes a free port and prints it.
    peer_port: Option<u16> = Some(8082), "TCP port";
    /// Address that other replicas are heard on; anything but loopback needs a secret or certificates.
    peer_host: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST), "IP address";
    /// Address that other replicas call, where it is another than `peer_host`.
    peer_address: Option<IpAddr> = None, "IP address";
    /// Where other replicas may be, separated by commas; what says that it is elsewhere is not called.
    peer_networks: Networks = Networks::private(), "networks";
    /// What seals everything that replicas tell each other, the same for all of a fleet; a flag shows it to every local
    /// user.
    peer_secret: Option<Secret> = None, "text";
    /// File with the same, instead of `peer_secret`.
    peer_secret_file: Option<PathBuf> = None, "path";
    /// PEM file with the certificate that replicas show each other, and those up to its root, read anew when it changes.
    peer_tls_cert_file: Option<PathBuf> = None, "path";
    /// PEM file with the key of `peer_tls_cert_file`.
    peer_tls_key_file: Option<PathBuf> = None, "path";
    /// PEM file of who must have signed each replica's certificate.
    peer_tls_ca_file: Option<PathBuf> = None, "path";
    /// DNS name that each replica's certificate must be made out to.
    peer_tls_name: Option<HostName> = None, "name";
    /// Where counters live: in this process, or in a Redis that replicas share.
    backend: Backend = Backend::Memory, "place";
    /// File with the password for Redis, read anew for each connection; the user stays in `backend`.
    backend_password_file: Option<PathBuf> = None, "path";
    /// PEM file of who may sign the certificate of Redis; without it whom this system trusts.
    backend_tls_ca_file: Option<PathBuf> = None, "path";
    /// Whom this system trusts may sign it, too, beside those of `backend_tls_ca_file`.
    backend_tls_system_roots: bool = false, "switch";
    /// PEM file with the certificate that is shown to Redis, and those up to its root.
    backend_tls_cert_file: Option<PathBuf> = None, "path";
    /// PEM file with the key of `backend_tls_cert_file`.
    backend_tls_key_file: Option<PathBuf> = None, "path";
    /// Whom the certificate of Redis must be made out to, instead of to the host that is called.
    backend_tls_server_name: Option<HostName> = None, "name";
    /// Let the certificate of Redis be made out to anybody; who signed it is looked at all the same.
    backend_tls_any_name: bool = false, "switch";
    /// ACL user for the sentinels themselves; their default user without.
    backend_sentinel_user: String = String::new(), "text";
    /// Password for the sentinels themselves; a flag shows it to every local user.
    backend_sentinel_password: Option<Secret> = None, "text";
    /// File with the password for the sentinels themselves, read anew for each connection.
    backend_sentinel_password_file: Option<PathBuf> = None, "path";
    /// How long one question may wait for Redis before `on_backend_failure` answers it.
    backend_deadline: Nanos = Nanos(15 * Nanos::MILLI.0), "duration";
    /// A second Redis for limits whose period is one second, or nothing: then `backend` has these, too. The
    /// files of `backend` are its too: those of TLS, and that of the password where its URL has none.
    backend_per_second: Option<RedisUrl> = None, "place";
    /// What every key in Redis begins with, the reference's keys apart.
    key_prefix: String = "sluicegate".to_owned(), "text";
    /// Name of this replica among those that share a Redis, another one for each; empty for the host's
    /// name and a random end.
    node_id: String = String::new(), "text";
    /// Fewest replicas by which `on_backend_failure: local` divides a limit, however few are seen.
    replicas_min: AtLeastOne = AtLeastOne::ONE, "replicas";
    /// How often a replica tells Redis of the ceilings that it shares with others.
    fleet_heartbeat: Nanos = Nanos::SECOND, "duration";
    /// How long a share of a ceiling is good without an answer from Redis.
    fleet_term: Nanos = Nanos::from_secs(5), "duration";
    /// How a counter's key is written: unmistakably, or as envoyproxy/ratelimit writes it.
    counter_keys: CounterKeys = CounterKeys::Injective, "word";
    /// What the reference's keys begin with (its `CACHE_KEY_PREFIX`).
    reference_key_prefix: ReferencePrefix = ReferencePrefix::default(), "text";
    /// The reference's keys live up to so much longer than their window, drawn anew at each hit.
    expiry_jitter: Nanos = Nanos::from_secs(300), "duration";
    /// Memory for reference's keys that are over, denied without asking Redis until their window ends; 0: none.
    local_deny_cache: u64 = 0, "bytes";
    /// Under the reference's keys: a denied question charges only the limits that deny it.
    stop_when_over: bool = false, "switch";
    /// Most keys that the memory backend counts at one time.
    max_keys: u64 = 10_000_000, "keys";
    /// What a new key gets once there are `max_keys`.
    when_full: WhenFull = WhenFull::Deny, "word";
    /// Most buckets of ceilings on requests in flight at one time, with names of 512 bytes on average; one more takes
    /// the place of an idle one, or is turned away.
    max_buckets: u64 = 100_000, "buckets";
    /// What a limit carried in a request may do: replace the configured one, nothing, only tighten it.
    overrides: Overrides = Overrides::Allow, "word";
    /// Whether a descriptor may give hits back (`is_negative_hits`); otherwise it is refused.
    negative_hits: bool = false, "switch";
    /// Decide and report, but never deny.
    shadow_mode: bool = false, "switch";
    /// Treat every limit as marked `quota_mode`: deny only when all that a question meets are used up.
    quota_mode: bool = false, "switch";
    /// Join files that name the same domain, instead of refusing the second.
    merge_domains: bool = false, "switch";
    /// Part of a limit from which on a caller counts as near it.
    near_limit_ratio: Ratio = Ratio::REFERENCE, "part of the limit";
    /// Rate limit headers in answers: none, the reference's three, the IETF draft's, or all of them.
    response_headers: ResponseHeaders = ResponseHeaders::None, "word";
    /// Put the reference's three headers on the request on its way to the upstream, too.
    request_headers: bool = false, "switch";
    /// Name of the reference's header with the limit. An empty one is sent, too, as the reference does, though HTTP/2
    /// has no header without a name; `response_headers` leaves headers out.
    limit_header: HeaderName = header("RateLimit-Limit"), "header name";
    /// Name of the reference's header with what is left of it. An empty one is sent, too, as with `limit_header`.
    remaining_header: HeaderName = header("RateLimit-Remaining"), "header name";
    /// Name of the reference's header with the seconds until it is whole again. An empty one is sent, too, as with
    /// `limit_header`.
    reset_header: HeaderName = header("RateLimit-Reset"), "header name";
    /// Send `Retry-After` with a denial.
    retry_after: bool = false, "switch";
    /// Send the question and the rules' metadata back as dynamic metadata.
    dynamic_metadata: bool = false, "switch";
    /// Start although the first load is refused, and serve without limits until one is accepted.
    start_without_config: bool = false, "switch";
    /// Report `NOT_SERVING` until at least one domain is loaded.
    healthy_with_config: bool = false, "switch";
    /// Report `NOT_SERVING` while the store of counters does not answer.
    healthy_with_backend: bool = false, "switch";
    /// What SIGHUP does: reload the limits, or stop as SIGTERM does.
    on_hangup: OnHangup = OnHangup::Reload, "word";
    /// How long files must rest after a change before they are read again.
    reload_debounce: Nanos = Nanos(100 * Nanos::MILLI.0), "duration";
    /// Time between `NOT_SERVING` and GOAWAY, for load balancers to look elsewhere.
    drain_delay: Nanos = Nanos::from_secs(5), "duration";
    /// Time after GOAWAY that calls in flight have to finish.
    drain_timeout: Nanos = Nanos::from_secs(20), "duration";
    /// How hooks without descriptors of their own make them; inline as JSON in a flag or variable.
    hooks: Hooks = Hooks::default(), "hooks";
    /// Tell spans and counts to the collector that `OTEL_*` variables name, if they name one.
    otlp: bool = true, "switch";
    /// How OTLP is spoken, where `OTEL_EXPORTER_OTLP_PROTOCOL` does not say.
    otlp_protocol: OtlpProtocol = OtlpProtocol::Grpc, "word";
    /// Tell counts as well, where `OTEL_METRICS_EXPORTER` does not say.
    otlp_counts: bool = true, "switch";
    /// Who tells, where `OTEL_SERVICE_NAME` does not say.
    otlp_service: String = "sluicegate".to_owned(), "text";
    /// What else is told of who tells, as far as `OTEL_RESOURCE_ATTRIBUTES` does not say it.
    otlp_attributes: Pairs = Pairs::default(), "pairs";
    /// Part of the traces that no caller decided about, where `OTEL_TRACES_SAMPLER` does not say.
    otlp_sampled: Ratio = Ratio::ALL, "part of the traces";
    /// Threads that answer; 0 takes one for each core.
    threads: u32 = 0, "threads";
    /// Least important log line that is written.
    log_level: LogLevel = LogLevel::Info, "word";
    /// Log lines for people, or one JSON object a line, with this service's keys or envoyproxy/ratelimit's.
    log_format: LogFormat = LogFormat::Text, "word";
}

/// What every variable's name begins with.
pub const PREFIX: &str = "SLUICEGATE_";

/// Words of the language whose machinery is not in this version. Naming one is an error: a person
/// who sets a deadline and sees the process start believes that there is one.
pub const LATER: &[&str] = &[];

/// One row of the table.
#[derive(Debug)]
pub struct Setting {
    /// The name in `server.yaml`: `a_b_c`.
    pub name: &'static str,
    /// The flag, without its two dashes: `a-b-c`.
    pub flag: String,
    /// The environment variable: `SLUICEGATE_A_B_C`.
    pub variable: String,
    /// What it is for.
    pub doc: String,
    /// What its value counts or is.
    pub unit: &'static str,
    /// What is accepted, for a sentence.
    pub accepts: String,
    /// How many texts make its value.
    pub shape: Shape,
    /// The accepted texts, where they are a closed list.
    pub choices: &'static [&'static str],
    /// Whether a text for it must not be shown.
    pub hidden: bool,
    is_scalar: bool,
    /// Its part of the JSON Schema.
    schema: serde_json::Value,
    masked: fn(&str) -> String,
    why: fn(&str) -> Option<String>,
    set: fn(&mut Settings, &[&str]) -> Option<()>,
    reset: fn(&mut Settings),
    show: fn(&Settings) -> String,
}

impl Setting {
    /// The value that `settings` holds, as YAML.
    #[must_use]
    pub fn show(&self, settings: &Settings) -> String {
        (self.show)(settings)
    }

    /// Whether what a file says is meant as it is written.
    fn is_text(&self) -> bool {
        !self.is_scalar && self.shape != Shape::Block
    }
}

/// Every setting, in the order that a person reads them.
#[must_use]
pub fn table() -> &'static [Setting] {
    &TABLE
}

/// A default name; the table's own are sound, which a test holds.
fn header(name: &str) -> HeaderName {
    HeaderName::new(name).unwrap_or_default()
}
