//! Lists the settings `compat.…`, which only a replacement of envoyproxy/ratelimit needs.

use std::net::IpAddr;
use std::path::PathBuf;

use super::block::{AnyValue, Block, SettingList, blocks};
use super::{
    Absent, Auto, HeaderName, HostPort, KeyFormat, MetricNames, Mogrifiers, Never, Or,
    OtlpProtocol, OutgoingHeaders, RatelimitKeyPrefix, RedisUrl, SecretText, StatsSink, TextPairs,
    UnitFraction,
};
use crate::kernel::units::Nanos;

blocks! {
    /// Settings that only a replacement of envoyproxy/ratelimit needs.
    CompatSettings [
        /// Listeners of envoyproxy/ratelimit.
        listen: CompatListenSettings,
        /// Limits of envoyproxy/ratelimit.
        limits: CompatLimitsSettings,
        /// Connection to an xDS server as in envoyproxy/ratelimit.
        xds: CompatXdsSettings,
        /// Redis and the counter keys of envoyproxy/ratelimit.
        store: CompatStoreSettings,
        /// Headers of envoyproxy/ratelimit.
        answers: CompatAnswerSettings,
        /// Statistics that are sent to StatsD, DogStatsD or standard error.
        stats: CompatStatsSettings,
        /// Prometheus metrics of envoyproxy/ratelimit.
        metrics: CompatMetricsSettings,
        /// Defaults of the environment variables `OTEL_*`.
        tracing: CompatTracingSettings,
    ] {
        /// In addition to `store.tls.ca_file` and `limits.xds.tls.ca_file`, trust the system's CAs.
        system_cas: bool = false, "switch";
    }

    /// Listeners of envoyproxy/ratelimit.
    CompatListenSettings [] {
        /// IP address on which gRPC listens, if it differs from `listen.host`.
        grpc_host: Option<IpAddr> = None, "IP address";
        /// IP address on which metrics are served, if it differs from `listen.host`.
        metrics_host: Option<IpAddr> = None, "IP address";
        /// Behave as the process of envoyproxy/ratelimit: other processes of the same user may
        /// listen on the same ports (`SO_REUSEPORT`), SIGHUP stops the process as SIGTERM does, and
        /// `/`, `/stats` and `/rlconfig` of the admin port need no token.
        like_ratelimit: bool = false, "switch";
        /// Time for calls to finish after the GOAWAY of `listen.max_connection_age`; then the
        /// connection is closed.
        max_connection_age_grace: Or<Nanos, Never> = Or::WORD, "duration";
    }

    /// Limits of envoyproxy/ratelimit.
    CompatLimitsSettings [] {
        /// Load only files whose name begins with this text and a dot; empty loads all. The name of
        /// a file is its path below `limits.paths`, with dots instead of slashes.
        file_prefix: String = String::new(), "text";
        /// Also load files and directories below `limits.paths` whose names begin with a dot.
        dot_files: bool = false, "switch";
        /// Treat a missing path in `limits.paths` as an empty directory. If all paths are missing,
        /// nothing is limited.
        optional_paths: bool = false, "switch";
        /// Treat every limit as if it had `quota_mode`: a check is denied only if all its limits
        /// deny.
        quota_mode: bool = false, "switch";
    }

    /// Connection to an xDS server as in envoyproxy/ratelimit.
    CompatXdsSettings [] {
        /// Node metadata that is sent to the xDS server.
        node_metadata: TextPairs = TextPairs::default(), "pairs";
        /// Headers that are sent to the xDS server.
        headers: OutgoingHeaders = OutgoingHeaders::default(), "pairs";
        /// Shortest wait before reconnecting to the xDS server. The wait doubles after each
        /// failure.
        backoff_min: Nanos = Nanos(500 * Nanos::MILLI.0), "duration";
        /// Longest wait before reconnecting to the xDS server.
        backoff_max: Nanos = Nanos::from_secs(30), "duration";
        /// Choose each wait before reconnecting at random, between `backoff_min` and the doubled
        /// wait.
        backoff_jitter: bool = true, "switch";
        /// Largest message that is accepted from the xDS server, in bytes. `auto`: 4 MiB.
        max_message: Or<u32, Auto> = Or::WORD, "bytes";
    }

    /// Redis and the counter keys of envoyproxy/ratelimit.
    CompatStoreSettings [] {
        /// URL of a second Redis for limits with a period of one second; empty to keep their
        /// counters in `store.url`. The second Redis uses `store.tls`, and `store.password_file` if
        /// the URL has no password.
        per_second_url: Option<RedisUrl> = None, "place";
        /// Password for Redis Sentinel. Every local user can see a password in a flag.
        sentinel_password: Option<SecretText> = None, "text";
        /// Accept a certificate of Redis with any name. Its CA is still verified.
        any_server_name: bool = false, "switch";
        /// Format of counter keys: Sluicegate's, which is unambiguous, or envoyproxy/ratelimit's.
        key_format: KeyFormat = KeyFormat::Own, "word";
        /// With `key_format: compat`: prefix of counter keys.
        key_prefix: RatelimitKeyPrefix = RatelimitKeyPrefix::default(), "text";
        /// With `key_format: compat`: the largest random time that is added to the expiry of a key
        /// at each hit.
        expiry_jitter: Nanos = Nanos::from_secs(300), "duration";
        /// With `key_format: compat`: memory for remembered denials, which need no Redis call until
        /// their window ends. `none`: no denial is remembered.
        deny_cache: Or<u64, Absent> = Or::WORD, "bytes";
        /// With `key_format: compat`: charge only the limits that deny, if a check is denied. In
        /// several slots or stores, a denied check may charge all limits if others run at the same time.
        stop_when_over: bool = false, "switch";
    }

    /// Headers of envoyproxy/ratelimit.
    CompatAnswerSettings [] {
        /// Add envoyproxy/ratelimit's three headers also to the request that the proxy sends to the
        /// upstream.
        request_headers: bool = false, "switch";
        /// Name of the header with the limit. If the name is empty, the header is sent with an
        /// empty name, as by envoyproxy/ratelimit, although HTTP/2 forbids it. To omit headers, use
        /// `answers.headers`.
        limit_header: HeaderName = default_header_name("RateLimit-Limit"), "header name";
        /// Name of the header with the remaining hits. An empty name does not omit the header; see
        /// `limit_header`.
        remaining_header: HeaderName = default_header_name("RateLimit-Remaining"), "header name";
        /// Name of the header with the seconds until the limit resets. An empty name does not omit
        /// the header; see `limit_header`.
        reset_header: HeaderName = default_header_name("RateLimit-Reset"), "header name";
    }

    /// Statistics that are sent to StatsD, DogStatsD or standard error.
    CompatStatsSettings [] {
        /// Destination to which envoyproxy/ratelimit's statistics are sent: none, StatsD over TCP or
        /// UDP, DogStatsD (over UDP) or standard error.
        sink: StatsSink = StatsSink::None, "word";
        /// Address of the StatsD or DogStatsD server.
        address: Option<HostPort> = None, "address";
        /// Interval at which statistics are sent to `sink`.
        interval: Nanos = Nanos::from_secs(10), "duration";
        /// Tags that are added to every statistic sent to `sink`.
        tags: TextPairs = TextPairs::default(), "pairs";
        /// Rules that turn parts of a DogStatsD statistic's name into tags. A flag or environment
        /// variable contains them as JSON.
        mogrifiers: Mogrifiers = Mogrifiers::default(), "rules";
        /// In names of statistics, replace each dot in a key or value by `_`, so that each rule has
        /// its own Prometheus series.
        replace_dots: bool = false, "switch";
    }

    /// Prometheus metrics of envoyproxy/ratelimit.
    CompatMetricsSettings [] {
        /// Names of the metrics: Sluicegate's own, envoyproxy/ratelimit's, or both.
        names: MetricNames = MetricNames::Own, "word";
        /// HTTP path at which metrics are served.
        path: String = "/metrics".to_owned(), "path";
        /// File that maps envoyproxy/ratelimit's statistics to Prometheus metrics, in the format of
        /// `statsd_exporter`.
        mapping: Option<PathBuf> = None, "path";
        /// Export response times in milliseconds instead of seconds, if there is no `mapping`.
        milliseconds: bool = false, "switch";
    }

    /// Defaults of the environment variables `OTEL_*`.
    CompatTracingSettings [] {
        /// OTLP protocol, if the environment variable `OTEL_EXPORTER_OTLP_PROTOCOL` is not set.
        protocol: OtlpProtocol = OtlpProtocol::Grpc, "word";
        /// Resource attributes of traces and metrics, such as `service.name=limits`. The environment
        /// variables `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` take precedence.
        attributes: TextPairs = TextPairs::default(), "pairs";
        /// Fraction of traces to send, if neither the caller nor the environment variable
        /// `OTEL_TRACES_SAMPLER` decides.
        sampling_ratio: UnitFraction = UnitFraction::WHOLE, "part of the traces";
    }
}

/// Returns a header name for a default. A test verifies that all default names are valid.
fn default_header_name(name: &str) -> HeaderName {
    HeaderName::new(name).unwrap_or_default()
}
