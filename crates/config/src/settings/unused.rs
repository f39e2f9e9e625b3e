//! Finds settings that have no effect because of another setting.
//!
//! Guarantees:
//! - A setting without effect is an error, with the setting that would give it an effect.
//! - A setting is reported once.
//!
//! Not covered:
//! - Settings that have their default value, which look as if they were not set.
//! - `store.key_prefix`, `store.timeout`, `fleet.heartbeat` and `fleet.share_expiry` with the
//!   stores `memory` and `file`.
//! - Settings of metrics without a metrics port.
//! - `listen.grpc_port` and `compat.listen.grpc_host` beside `listen.grpc_socket`.
//! - `compat.stats.replace_dots` if no statistics of envoyproxy/ratelimit are exported.
//!
//! Settings of the last four points are accepted without effect, so that processes with different
//! tasks can share one `server.yaml`.

use super::conflicts::{RatelimitValueAction, SettingConflict, conflict, has_peers, redis_urls};
use super::{
    DeniedBy, KeyFormat, MetricNames, OtlpExport, RedisEndpoint, Settings, StatsSink, StoreUrl,
    table,
};

/// Settings that have no effect under a condition.
struct UnusedRule {
    /// The names of settings, and of blocks of which all settings are meant.
    names: &'static [&'static str],
    /// Returns `true` if the settings have no effect.
    is_unused: fn(&Settings) -> bool,
    /// The condition, as a clause.
    why: &'static str,
    /// The fix besides removing the setting.
    help: &'static str,
}

const RULES: &[UnusedRule] = &[
    UnusedRule {
        names: &["store.password_file"],
        is_unused: |settings| {
            redis_urls(settings).next().is_none() && !settings.store.url.is_shared()
        },
        why: "`store.url` is not the URL of a Redis or PostgreSQL",
        help: "set store.url to the URL of a Redis or PostgreSQL, or remove this setting",
    },
    UnusedRule {
        names: &["store.file"],
        is_unused: |settings| !matches!(settings.store.url, StoreUrl::File(_)),
        why: "`store.url` is not the URL of a directory",
        help: "set `store.url: file:///var/lib/sluicegate`, or remove this setting",
    },
    UnusedRule {
        names: &["compat.store.per_second_url"],
        is_unused: |settings| !matches!(settings.store.url, StoreUrl::Redis(_)),
        why: "`store.url` is not the URL of a Redis",
        help: "set store.url to the URL of the Redis for all other limits",
    },
    UnusedRule {
        names: &["store.tls", "compat.store.any_server_name"],
        is_unused: |settings| {
            let is_postgres_tls = matches!(&settings.store.url, StoreUrl::Postgres(url) if url.tls);
            !is_postgres_tls && !redis_urls(settings).any(|(_, url)| url.tls)
        },
        why: "`store.url` does not use TLS",
        help: "write rediss instead of redis, or ?sslmode=require after postgres://…, in store.url; \
               or remove this setting",
    },
    UnusedRule {
        names: &["compat.system_cas"],
        is_unused: |settings| {
            settings.store.tls.ca_file.is_none() && settings.limits.xds.tls.ca_file.is_none()
        },
        why: "no CA bundle replaces the system's CAs",
        help: "set store.tls.ca_file or limits.xds.tls.ca_file, or remove this setting",
    },
    UnusedRule {
        names: &["store.sentinel", "compat.store.sentinel_password"],
        is_unused: |settings| {
            !redis_urls(settings)
                .any(|(_, url)| matches!(url.endpoint, RedisEndpoint::Sentinel(..)))
        },
        why: "`store.url` does not name sentinels",
        help: "write redis+sentinel:// in store.url, or remove this setting",
    },
    UnusedRule {
        names: &[
            "compat.store.key_prefix",
            "compat.store.expiry_jitter",
            "compat.store.deny_cache",
            "compat.store.stop_when_over",
        ],
        is_unused: |settings| {
            !matches!(settings.store.url, StoreUrl::Redis(_))
                || settings.compat.store.key_format == KeyFormat::Own
        },
        why: "counter keys in Redis do not have envoyproxy/ratelimit's format",
        help: "set `compat.store.key_format: compat` and store.url to the URL of a Redis",
    },
    UnusedRule {
        names: &["store.postgres"],
        is_unused: |settings| !matches!(settings.store.url, StoreUrl::Postgres(_)),
        why: "`store.url` is not the URL of a PostgreSQL",
        help: "set store.url to postgres://…, or remove this setting",
    },
    UnusedRule {
        names: &["compat.store.key_format"],
        is_unused: |settings| matches!(settings.store.url, StoreUrl::Postgres(_)),
        why: "envoyproxy/ratelimit has no counters in PostgreSQL",
        help: "remove this setting, or set store.url to the URL of a Redis",
    },
    UnusedRule {
        names: &["limits.xds", "compat.xds"],
        is_unused: |settings| settings.limits.xds.server.is_none(),
        why: "`limits.xds.server` is not set",
        help: "set limits.xds.server, or remove this setting",
    },
    UnusedRule {
        names: &["limits.xds.tls"],
        is_unused: |settings| !settings.limits.xds.use_tls,
        why: "`limits.xds.use_tls` is false",
        help: "set limits.xds.use_tls, or remove this setting",
    },
    UnusedRule {
        names: &[
            "limits.paths",
            "compat.limits.file_prefix",
            "compat.limits.dot_files",
            "compat.limits.optional_paths",
        ],
        is_unused: |settings| settings.limits.xds.server.is_some(),
        why: "limits are loaded from `limits.xds.server`",
        help: "remove this setting, or limits.xds.server",
    },
    UnusedRule {
        names: &["listen.tls.client_ca_file", "listen.tls.client_name"],
        is_unused: |settings| {
            settings.listen.tls.cert_file.is_none() && settings.listen.tls.key_file.is_none()
        },
        why: "gRPC has no TLS",
        help: "set listen.tls.cert_file, or remove this setting",
    },
    UnusedRule {
        names: &["listen.tls.client_name"],
        is_unused: |settings| settings.listen.tls.client_ca_file.is_none(),
        why: "clients need no certificate",
        help: "set listen.tls.client_ca_file, or remove this setting",
    },
    UnusedRule {
        names: &["compat.listen.max_connection_age_grace"],
        is_unused: |settings| settings.listen.max_connection_age.get().is_none(),
        why: "connections have no maximum age",
        help: "set listen.max_connection_age, or remove this setting",
    },
    UnusedRule {
        names: &["listen.syslog_from"],
        is_unused: |settings| settings.listen.syslog_port.is_none(),
        why: "`listen.syslog_port` is not set",
        help: "set listen.syslog_port, or remove this setting",
    },
    UnusedRule {
        names: &["compat.metrics.mapping", "compat.metrics.milliseconds"],
        is_unused: |settings| settings.compat.metrics.names == MetricNames::Own,
        why: "envoyproxy/ratelimit's metrics are not shown",
        help: "set `compat.metrics.names: all`, or remove this setting",
    },
    UnusedRule {
        names: &["compat.stats.interval", "compat.stats.tags"],
        is_unused: |settings| settings.compat.stats.sink == StatsSink::None,
        why: "statistics are not sent",
        help: "set compat.stats.sink, or remove this setting",
    },
    UnusedRule {
        names: &["compat.stats.address"],
        is_unused: |settings| {
            matches!(settings.compat.stats.sink, StatsSink::None | StatsSink::Log)
        },
        why: "statistics are not sent to a server",
        help: "set `compat.stats.sink: statsd`, or remove this setting",
    },
    UnusedRule {
        names: &["compat.stats.mogrifiers"],
        is_unused: |settings| settings.compat.stats.sink != StatsSink::Dogstatsd,
        why: "statistics are not sent to DogStatsD",
        help: "set `compat.stats.sink: dogstatsd`, or remove this setting",
    },
    UnusedRule {
        names: &["compat.tracing"],
        is_unused: |settings| settings.telemetry.otlp.export == OtlpExport::None,
        why: "`telemetry.otlp.export` is none",
        help: "set `telemetry.otlp.export: traces`, or remove this setting",
    },
    UnusedRule {
        names: &["mirror"],
        is_unused: |settings| settings.mirror.to.is_none(),
        why: "`mirror.to` is not set",
        help: "set mirror.to, or remove this setting",
    },
    UnusedRule {
        names: &["mirror.tls"],
        is_unused: |settings| !settings.mirror.use_tls,
        why: "`mirror.use_tls` is false",
        help: "set mirror.use_tls, or remove this setting",
    },
    UnusedRule {
        names: &["answers.denied_by"],
        is_unused: |settings| {
            settings.answers.denied_by == DeniedBy::Metadata && !settings.answers.metadata
        },
        why: "`answers.metadata` is false",
        help: "set answers.metadata, or write `answers.denied_by: header`",
    },
    UnusedRule {
        names: &["events"],
        is_unused: |settings| settings.events.url.is_none(),
        why: "`events.url` is not set",
        help: "set events.url, or remove this setting",
    },
    UnusedRule {
        names: &["events.ca_file"],
        is_unused: |settings| {
            settings.events.url.as_ref().is_none_or(|url| !url.as_str().starts_with("https:"))
        },
        why: "`events.url` does not use TLS",
        help: "write https instead of http in events.url, or remove this setting",
    },
    UnusedRule {
        names: &["listen.peer_host", "fleet.peers"],
        is_unused: |settings| !has_peers(settings),
        why: "this replica connects to no other replica",
        help: "set listen.peer_port, and store.url to the URL of a Redis or PostgreSQL, or remove this setting",
    },
];

/// Returns a conflict for each setting that is not at its default and has no effect.
pub(super) fn find_unused(settings: &Settings) -> Vec<SettingConflict> {
    let defaults = Settings::default();
    let rules: Vec<_> = RULES.iter().filter(|rule| (rule.is_unused)(settings)).collect();
    let unused = table().iter().filter_map(|row| {
        let rule =
            rules.iter().find(|rule| rule.names.iter().any(|name| covers(name, row.name)))?;
        let is_changed = row.show(settings) != row.show(&defaults);
        is_changed.then(|| unused_setting(row.name, rule))
    });
    unused.collect()
}

/// Returns `true` if `name` is the setting `setting`, or a block that contains it.
fn covers(name: &str, setting: &str) -> bool {
    setting.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn unused_setting(name: &'static str, rule: &UnusedRule) -> SettingConflict {
    let message = format!("`{name}` has no effect, because {}", rule.why);
    SettingConflict {
        ratelimit_action: RatelimitValueAction::Drop,
        ..conflict(name, message, rule.help)
    }
}
