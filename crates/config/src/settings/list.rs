//! Lists all settings: names, types, defaults, units and documentation. The settings `compat.…`
//! are in [`super::list_compat`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use super::block::{AnyValue, Block, SettingList, blocks};
use super::tables::Tables;
use super::{
    Absent, AtLeastOne, Auto, CompatSettings, DeniedBy, DescriptorValues, EventKinds, FileSync,
    HeaderName, HostName, HostPort, HttpUrl, LogFormat, LogLevel, Networks, Never, Or, OtlpExport,
    Overrides, Percentage, PostgresDurability, PostgresPrepare, ProxyAccess, RedisProxy,
    ResponseHeaders, SecretText, StoreUrl, UnitFraction, WhenFull,
};
use crate::hooks::Hooks;
use crate::kernel::units::Nanos;

blocks! {
    /// All settings of a process, with valid values.
    Settings [
        /// Addresses and ports of this process, and access to them.
        listen: ListenSettings,
        /// Tokens of the admin port.
        admin: AdminSettings,
        /// Source of the limits, and their use.
        limits: LimitsSettings,
        /// Store of the counters.
        store: StoreSettings,
        /// Replicas that share a store.
        fleet: FleetSettings,
        /// Content of replies.
        answers: AnswerSettings,
        /// Log, traces and metrics.
        telemetry: TelemetrySettings,
        /// Events that are posted to another program.
        events: EventSettings,
        /// Another rate limit service, whose decisions are compared.
        mirror: MirrorSettings,
        /// Settings that only a replacement of envoyproxy/ratelimit needs.
        compat: CompatSettings,
    ] {
        /// Rules that build descriptors for calls from proxies that send none. A flag or
        /// environment variable contains them as JSON.
        hooks: Hooks = Hooks::default(), "hooks";
        /// Data that limits read (`from`): a row with own numbers or a plan for each customer. A flag
        /// or environment variable contains the list as JSON.
        tables: Tables = Tables::default(), "tables";
    }

    /// Certificates of connections to other processes.
    TlsSettings [] {
        /// CA bundle (PEM) that verifies the other side's certificate. Default: the system's CAs.
        ca_file: Option<PathBuf> = None, "path";
        /// Certificate chain (PEM) that this process presents.
        cert_file: Option<PathBuf> = None, "path";
        /// Private key (PEM) of `cert_file`.
        key_file: Option<PathBuf> = None, "path";
        /// Name that the other side's certificate must contain. Default: the host to which the
        /// connection is made.
        server_name: Option<HostName> = None, "name";
    }

    /// Addresses and ports of this process, and access to them.
    ListenSettings [
        /// Certificates of the gRPC port, reloaded when a file changes.
        tls: ListenTlsSettings,
    ] {
        /// IP address on which gRPC, HTTP and metrics listen. `::` is every address, IPv6 and IPv4;
        /// without IPv6 in the kernel, it is `0.0.0.0`.
        host: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED), "IP address";
        /// Port for gRPC: rate limit checks, health, reflection. 0 chooses a free port and prints
        /// it.
        grpc_port: u16 = 8081, "TCP port";
        /// Path of a Unix socket on which gRPC listens, instead of `grpc_port`.
        grpc_socket: Option<PathBuf> = None, "path";
        /// Proxies to which the gRPC port lends limits: `auto` serves clients with a certificate
        /// (`listen.tls.client_ca_file`), loopback addresses and the Unix socket; `on` serves every
        /// client; `off` none.
        proxies: ProxyAccess = ProxyAccess::Auto, "auto | on | off";
        /// Port for HTTP: `/json`, `/check`, `/acquire`, `/healthcheck`, `/livez`, `/readyz`. 0
        /// chooses a free port and prints it.
        http_port: u16 = 8080, "TCP port";
        /// Port for metrics, at `/metrics`, and health; `none` opens no port. 0 chooses a free port
        /// and prints it.
        metrics_port: Option<u16> = Some(9090), "TCP port";
        /// IP address on which the admin port listens. Any address other than loopback needs
        /// a token (`admin`).
        admin_host: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST), "IP address";
        /// Port for administration: the console at `/console`, and the JSON pages that `/` lists. 0
        /// chooses a free port and prints it.
        admin_port: u16 = 6070, "TCP port";
        /// UDP port that receives releases of permits from NGINX's `access_log` (syslog);
        /// `none` opens no port. 0 chooses a free port and prints it.
        syslog_port: Option<u16> = None, "UDP port";
        /// Networks, separated by commas, from which `syslog_port` accepts releases. Releases from
        /// other addresses are dropped. The port listens on `host`, or only on 127.0.0.1 if all
        /// networks are loopback networks.
        syslog_from: Networks = Networks::loopback(), "networks";
        /// Port for releases that other replicas of the fleet forward; `none` opens no port. Without
        /// a shared store, it is not opened. 0 chooses a free port and prints it.
        peer_port: Option<u16> = Some(8082), "TCP port";
        /// IP address on which `peer_port` listens. Any address other than loopback needs a secret
        /// or certificates in `fleet.peers`.
        peer_host: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST), "IP address";
        /// Largest number of open connections on the gRPC port, and on the HTTP port. Further
        /// connections get GOAWAY or status 503, except health probes over HTTP. `auto`: half of
        /// (`ulimit -n` minus 512), at most 65536.
        max_connections: Or<u64, Auto> = Or::WORD, "connections";
        /// Largest message of a check over gRPC, and largest body of `/json`, in bytes: from 65536
        /// to 4194304. Other gRPC methods have a maximum of 1048576, too.
        max_message: u32 = 1 << 20, "bytes";
        /// Most memory of the request bodies in flight, over gRPC and HTTP together, in bytes.
        /// Further bodies above 1 KiB get `RESOURCE_EXHAUSTED` or status 429.
        max_body_memory: u32 = 64 << 20, "bytes";
        /// Age at which the server asks a gRPC client to close its connection (GOAWAY), plus or
        /// minus 10 %.
        max_connection_age: Or<Nanos, Never> = Or::WORD, "duration";
        /// At shutdown: time between `NOT_SERVING` and GOAWAY, in which load balancers stop sending
        /// calls.
        drain_delay: Nanos = Nanos::from_secs(5), "duration";
        /// At shutdown: time for calls in flight to finish after GOAWAY.
        drain_timeout: Nanos = Nanos::from_secs(20), "duration";
    }

    /// Certificates of the gRPC port.
    ListenTlsSettings [] {
        /// Certificate chain (PEM) of the gRPC server. Without it, gRPC has no TLS.
        cert_file: Option<PathBuf> = None, "path";
        /// Private key (PEM) of `cert_file`.
        key_file: Option<PathBuf> = None, "path";
        /// CA bundle (PEM) that verifies the certificates of clients. Without it, clients need no
        /// certificate.
        client_ca_file: Option<PathBuf> = None, "path";
        /// DNS name that each client's certificate must contain.
        client_name: Option<HostName> = None, "name";
    }

    /// Tokens of the admin port.
    AdminSettings [] {
        /// Token that callers of the admin port send as `Authorization: Bearer …`, with at least
        /// 16 characters. Every local user can see a token in a flag.
        token: Option<SecretText> = None, "text";
        /// File with such a token, if `token` is not set. If the file does not exist, the start
        /// writes a random token into it, readable only for its user.
        token_file: Option<PathBuf> = None, "path";
        /// Directory of further tokens, one in each file, read again every second. A token has at
        /// least 16 characters. File names are `view.NAME` or `operate.NAME`: a change needs
        /// `operate`, and the audit log shows the name.
        token_dir: Option<PathBuf> = None, "path";
        /// Header in which a reverse proxy sends the operator's name for the audit log. It is
        /// ignored without a valid token, so the proxy must also add a token.
        trusted_header: HeaderName = HeaderName::default(), "header name";
    }

    /// Source of the limits, and their use.
    LimitsSettings [
        /// xDS server (Envoy's aggregated discovery service) from which limits are loaded, instead
        /// of files.
        xds: XdsSettings,
    ] {
        /// Limits files, and directories with limits files. They are reloaded when they change. In
        /// the environment variable, `:` separates them.
        paths: Vec<PathBuf> = Vec::new(), "paths";
        /// Merge limits files with the same domain. Otherwise, the second file of a domain is an
        /// error.
        merge_domains: bool = false, "switch";
        /// Start only with valid limits. If `false`, the process starts without them, and checks
        /// fail with `no_config` until a later load succeeds.
        required_at_start: bool = true, "switch";
        /// Report the health `NOT_SERVING` until at least one domain is loaded.
        required_for_health: bool = false, "switch";
        /// Effect of a limit that a request carries: it is ignored, applies only if it is lower, or
        /// replaces the configured limit. With `replace`, whoever sends checks sets the limit.
        overrides: Overrides = Overrides::Ignore, "word";
        /// Accept descriptors that refund hits (`is_negative_hits`). Otherwise, a check with such
        /// a descriptor is an error.
        refunds: bool = false, "switch";
    }

    /// Connection to an xDS server.
    XdsSettings [
        /// Certificates of the connection to the xDS server.
        tls: TlsSettings,
    ] {
        /// Address of the xDS server; empty to load limits from files.
        server: Option<HostPort> = None, "address";
        /// Node ID that is sent to the xDS server.
        node_id: String = "default".to_owned(), "text";
        /// Use TLS for the connection to the xDS server.
        use_tls: bool = false, "switch";
        /// Accept an answer without limits from the xDS server, which removes all limits.
        /// Otherwise, the last limits stay, and the answer is reported as a failed load.
        allow_empty: bool = false, "switch";
    }

    /// Store of the counters.
    StoreSettings [
        /// Certificates of connections to the store, for URLs with `rediss` or `sslmode=require`.
        tls: TlsSettings,
        /// Credentials for Redis Sentinel.
        sentinel: SentinelSettings,
        /// Proxy in front of Redis.
        redis: RedisSettings,
        /// Connections and tables of PostgreSQL.
        postgres: PostgresSettings,
        /// File of the counters, for URLs that start with `file`.
        file: FileStoreSettings,
    ] {
        /// Store of the counters: the memory of this process, a directory in which this process
        /// saves them (`file:///var/lib/sluicegate`), or the URL of a Redis or PostgreSQL that the
        /// fleet shares.
        url: StoreUrl = StoreUrl::Memory, "place";
        /// Longest time that a check waits for the store. After it, `on_store_failure` of the
        /// limit decides (default: `error` for rate limits, as in envoyproxy/ratelimit; `local` for
        /// concurrency limits, which have a share). `auto`: 15 ms for Redis, 50 ms for PostgreSQL and for a file.
        timeout: Or<Nanos, Auto> = Or::WORD, "duration";
        /// Longest time that the start waits for the first answer of the store. After it, the
        /// ports open, and `on_store_failure` of each limit decides. `none` does not wait.
        start_timeout: Or<Nanos, Absent> = Or::value(Nanos(2 * Nanos::SECOND.0)), "duration";
        /// File that contains the store's password, read again for each connection. The user name
        /// is in `url`.
        password_file: Option<PathBuf> = None, "path";
        /// Prefix of every key in the store, except counter keys in envoyproxy/ratelimit's format.
        key_prefix: String = "sluicegate".to_owned(), "text";
        /// Report the health `NOT_SERVING` while the store is unavailable.
        required_for_health: bool = false, "switch";
        /// Largest number of counters in memory (stores `memory` and `file`).
        max_keys: u64 = 10_000_000, "keys";
        /// Decision of a check that needs a new counter while the memory store has `max_keys`
        /// counters.
        when_full: WhenFull = WhenFull::Deny, "word";
        /// Largest number of concurrency buckets (one limit for one set of descriptor values), for
        /// names of 512 bytes on average. A new bucket replaces one without requests. If there is
        /// none, the request is rejected.
        max_buckets: u64 = 100_000, "buckets";
    }

    /// Proxy in front of Redis.
    RedisSettings [] {
        /// Whether Redis is behind a proxy with several servers, such as twemproxy, Codis or Envoy.
        /// Each call then has one counter. `auto`: if the server does not know `SCRIPT` or `INFO`.
        proxy: RedisProxy = RedisProxy::Auto, "word";
    }

    /// Connections and tables of PostgreSQL.
    PostgresSettings [] {
        /// Number of connections that each replica opens, besides one for maintenance. Each runs one
        /// transaction at a time, for up to 64 checks.
        connections: AtLeastOne = AtLeastOne::FOUR, "connections";
        /// Prepare statements, which costs less CPU. `auto` does, unless a pooler such as `PgBouncer`
        /// gives each transaction another server connection.
        prepare: PostgresPrepare = PostgresPrepare::Auto, "word";
        /// Crash safety of the tables that `sluicegate migrate` creates. `full`: counters survive.
        /// `unlogged`: less CPU and disk, but a crash or failover of the server resets all counters.
        durability: PostgresDurability = PostgresDurability::Full, "word";
    }

    /// File of the counters.
    FileStoreSettings [] {
        /// Interval in which changed counters are written to disk; after a crash, at most this much
        /// is forgotten. `always`: before each answer, within `store.timeout`.
        sync: FileSync = FileSync::Every(Nanos(10 * Nanos::MILLI.0)), "word";
    }

    /// Credentials for Redis Sentinel.
    SentinelSettings [] {
        /// ACL user for Redis Sentinel. Default: the sentinels' default user.
        user: String = String::new(), "text";
        /// File that contains the password for Redis Sentinel, read again for each connection.
        password_file: Option<PathBuf> = None, "path";
    }

    /// Replicas that share a store.
    FleetSettings [
        /// Connections between replicas, which forward releases of permits.
        peers: PeerSettings,
    ] {
        /// Name of this replica, unique among the replicas that share a store. Empty: the host name
        /// and a random suffix.
        replica_name: String = String::new(), "text";
        /// Smallest number of replicas to assume when `on_store_failure: local` divides a limit
        /// by the number of replicas.
        min_replicas: AtLeastOne = AtLeastOne::ONE, "replicas";
        /// Interval of heartbeats, in which a replica reports its use of shared concurrency limits
        /// to the store.
        heartbeat: Nanos = Nanos::SECOND, "duration";
        /// Time for which this replica may use its share of a concurrency limit without a further
        /// reply from the store.
        share_expiry: Nanos = Nanos::from_secs(5), "duration";
    }

    /// Connections between replicas.
    PeerSettings [
        /// Certificates of this replica for connections between replicas, reloaded when a file
        /// changes. Set all four: `server_name` is the name in every replica's certificate.
        tls: TlsSettings,
    ] {
        /// IP address to which other replicas connect, if it differs from `listen.peer_host`.
        address: Option<IpAddr> = None, "IP address";
        /// Networks of the replicas, separated by commas. This replica never connects to a replica
        /// outside of them.
        networks: Networks = Networks::private(), "networks";
        /// Secret that signs all messages between replicas, the same for the whole fleet. Every
        /// local user can see a secret in a flag.
        secret: Option<SecretText> = None, "text";
        /// File that contains the secret, instead of `secret`.
        secret_file: Option<PathBuf> = None, "path";
    }

    /// Content of replies.
    AnswerSettings [] {
        /// Rate limit headers in responses: none, envoyproxy/ratelimit's three, those of the IETF
        /// draft, or all.
        headers: ResponseHeaders = ResponseHeaders::None, "word";
        /// Send the header `Retry-After` with a denial.
        retry_after: bool = false, "switch";
        /// Return the descriptors of the check and the `metadata` of its rules as Envoy's dynamic
        /// metadata.
        metadata: bool = false, "switch";
        /// Place in which a denial names the path of its rule: in the response header
        /// `x-sluicegate-denied-by`, in the metadata (with `answers.metadata`), in both or in none.
        /// A denial of shadow mode has `x-sluicegate-shadow-denied-by` or `shadow_denied_by`.
        denied_by: DeniedBy = DeniedBy::None, "word";
        /// Decide and report all checks, but never deny (shadow mode for all limits).
        shadow_mode: bool = false, "switch";
    }

    /// Log, traces and metrics.
    TelemetrySettings [
        /// Log, on standard error.
        log: LogSettings,
        /// Export of traces and metrics by OTLP. The environment variables `OTEL_*` configure it.
        otlp: OtlpSettings,
        /// Metrics, on `listen.metrics_port`.
        metrics: MetricsSettings,
    ] {
        /// Form of descriptor values in log lines about checks, in events, and on admin pages such as
        /// the list of top keys. `shown`: their first 64 bytes; `hashed`: a hash of each value;
        /// `hidden`: `*` for each value, and top keys are not counted.
        descriptor_values: DescriptorValues = DescriptorValues::Shown, "word";
        /// Used part of a limit from which an allowed check counts as near the limit: in metrics,
        /// and for the event `near_limit`.
        near_limit: UnitFraction = UnitFraction::NEAR_LIMIT_DEFAULT, "part of the limit";
    }

    /// Log, on standard error.
    LogSettings [] {
        /// Lowest level of the log lines that are written.
        level: LogLevel = LogLevel::Info, "word";
        /// Format of log lines: text, JSON with Sluicegate's keys, or JSON with
        /// envoyproxy/ratelimit's keys.
        format: LogFormat = LogFormat::Text, "word";
    }

    /// Export of traces and metrics by OTLP.
    OtlpSettings [] {
        /// Signals that are sent to the OTLP collector, if environment variables `OTEL_*` name one.
        export: OtlpExport = OtlpExport::All, "word";
    }

    /// Metrics.
    MetricsSettings [] {
        /// Largest number of rules with their own series in `sluicegate_rule_decisions_total`. All
        /// further rules share the series `other`.
        max_rules: u32 = 1_000, "rules";
    }

    /// Events that are posted to another program.
    EventSettings [] {
        /// URL (`http` or `https`) to which events are posted as CloudEvents; empty for none.
        url: Option<HttpUrl> = None, "URL";
        /// Kinds of events to send. In the environment variable, `:` separates them.
        kinds: EventKinds = EventKinds::ALL, "kinds";
        /// Attribute `source` of all events. Receivers compare `source` and `id`, so set it the
        /// same at all replicas.
        source: String = "sluicegate".to_owned(), "text";
        /// File with the secret that signs events (Standard Webhooks), read again for each request.
        /// Without it, events have no signature.
        secret_file: Option<PathBuf> = None, "path";
        /// CA bundle (PEM) that verifies the receiver's certificate. Default: the system's CAs.
        ca_file: Option<PathBuf> = None, "path";
    }

    /// Another rate limit service, whose decisions are compared.
    MirrorSettings [
        /// Certificates of the connection to the other service.
        tls: TlsSettings,
    ] {
        /// Address of another rate limit service (Envoy's gRPC protocol) that gets a sample of the
        /// checks; empty for none. Its decisions are compared, and have no other effect.
        to: Option<HostPort> = None, "address";
        /// Share of the descriptors whose checks are sent. All checks of a selected descriptor are
        /// sent, so that the other service's counters are comparable.
        sample: Percentage = Percentage::ONE, "part of the descriptors";
        /// Use TLS for the connection to the other service.
        use_tls: bool = false, "switch";
    }
}
