//! Finds settings that contradict each other or are incomplete.
//!
//! Guarantees:
//! - Contradicting settings are an error, with a suggested fix.
//! - A value from an environment variable of envoyproxy/ratelimit that has no effect is dropped
//!   instead.
//!
//! Not covered:
//! - Invalid values of single settings (see [`super::value`]).
//! - Settings without effect (see [`super::unused`]).
//! - Connections between replicas (see [`super::peer_conflicts`]).

use std::ops::RangeInclusive;

use super::{
    ListenTlsSettings, RedisEndpoint, RedisUrl, SecretText, Settings, StatsSink, StoreUrl,
    TlsSettings,
};
use crate::kernel::units::Nanos;

/// The largest `compat.store.expiry_jitter`, in seconds. Redis would accept a longer one.
const MAX_JITTER_SECS: u64 = u32::MAX as u64;

/// The valid values of `listen.max_message`: from the headers of a request under Envoy's default
/// limit to the largest message that gRPC libraries accept by default.
const MESSAGE_SIZES: RangeInclusive<u32> = 64 << 10..=4 << 20;

/// A conflict between settings: the name of the setting to change, the message and the suggested
/// fix.
pub(super) struct SettingConflict {
    pub(super) setting: &'static str,
    pub(super) message: String,
    pub(super) help: &'static str,
    pub(super) ratelimit_action: RatelimitValueAction,
}

/// The way to resolve a conflict if the value comes from an environment variable of
/// envoyproxy/ratelimit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RatelimitValueAction {
    /// The conflict is an error.
    Report,
    /// The value is kept, without an error.
    Accept,
    /// The setting gets its default value again.
    Drop,
    /// If the other setting named here was set by a flag, variable or file of Sluicegate, the value
    /// is dropped. Otherwise the conflict is an error.
    DropBesideOwn(&'static str),
}

pub(super) fn find_conflicts(settings: &Settings) -> Vec<SettingConflict> {
    let found = [
        check_admin_access(settings),
        check_admin_token(settings),
        check_message_size(settings),
        check_password_file(settings),
        check_store_pair(settings),
        check_expiry_jitter(settings),
        check_sentinel_password(settings),
        check_sentinel_user(settings),
        check_xds_pair(settings),
        check_mirror_pair(settings),
        check_xds_backoff(settings),
        check_listen_pair(settings),
        check_metrics_path(settings),
        check_stats_address(settings),
        check_stats_interval(settings),
    ];
    found.into_iter().flatten().chain(check_users(settings)).collect()
}

/// Returns the URL of each configured Redis, with the name of the setting that contains it.
pub(super) fn redis_urls(settings: &Settings) -> impl Iterator<Item = (&'static str, &RedisUrl)> {
    let main = match &settings.store.url {
        StoreUrl::Redis(url) => Some(("store.url", url)),
        StoreUrl::Memory | StoreUrl::File(_) | StoreUrl::Postgres(_) => None,
    };
    let second = settings.compat.store.per_second_url.as_ref();
    main.into_iter().chain(second.map(|url| ("compat.store.per_second_url", url)))
}

/// Returns `true` if this replica connects to other replicas.
pub(super) fn has_peers(settings: &Settings) -> bool {
    settings.store.url.is_shared() && settings.listen.peer_port.is_some()
}

pub(super) fn conflict(
    setting: &'static str,
    message: impl Into<String>,
    help: &'static str,
) -> SettingConflict {
    SettingConflict {
        setting,
        message: message.into(),
        help,
        ratelimit_action: RatelimitValueAction::Report,
    }
}

fn check_admin_access(settings: &Settings) -> Option<SettingConflict> {
    let host = settings.listen.admin_host;
    let is_protected =
        host.is_loopback() || settings.admin.has_token() || settings.compat.listen.like_ratelimit;
    let message = || {
        format!(
            "`listen.admin_host` {host} lets other machines read the limits, and \
             no admin token is set"
        )
    };
    let help = "set admin.token_file, or listen on 127.0.0.1";
    (!is_protected).then(|| conflict("listen.admin_host", message(), help))
}

fn check_admin_token(settings: &Settings) -> Option<SettingConflict> {
    let is_short = settings.admin.token.as_ref().is_some_and(SecretText::is_short);
    let shortest = SecretText::SHORTEST;
    let message = || format!("`admin.token` is shorter than {shortest} characters");
    let help = "create a token of 32 characters: `openssl rand -hex 16`";
    is_short.then(|| conflict("admin.token", message(), help))
}

fn check_message_size(settings: &Settings) -> Option<SettingConflict> {
    let (message, memory) = (settings.listen.max_message, settings.listen.max_body_memory);
    if !MESSAGE_SIZES.contains(&message) {
        let (least, most) = (MESSAGE_SIZES.start(), MESSAGE_SIZES.end());
        let why = format!("`listen.max_message` {message} is not from {least} to {most}");
        return Some(conflict("listen.max_message", why, "the default is 1048576"));
    }
    (memory < message).then(|| {
        let why = format!("`listen.max_body_memory` {memory} is below `listen.max_message`");
        conflict("listen.max_body_memory", why, "set at least the size of one message")
    })
}

fn check_password_file(settings: &Settings) -> Option<SettingConflict> {
    settings.store.password_file.as_ref()?;
    let mut urls = redis_urls(settings).peekable();
    let has_all = match &settings.store.url {
        StoreUrl::Postgres(url) => url.has_password(),
        _ => urls.peek().is_some() && urls.all(|(_, url)| url.password.is_some()),
    };
    has_all.then(|| {
        let message = "`store.url` contains a password, and `store.password_file` names another";
        let ratelimit_action = RatelimitValueAction::DropBesideOwn("store.url");
        let found = conflict("store.password_file", message, "keep one of them");
        SettingConflict { ratelimit_action, ..found }
    })
}

fn check_users(settings: &Settings) -> Vec<SettingConflict> {
    let is_half = |url: &RedisUrl| url.user.is_some() && url.password.is_none();
    let half = redis_urls(settings).filter(|(_, url)| is_half(url));
    let half = half.filter(|_| settings.store.password_file.is_none());
    half.map(|(name, _)| {
        let message = format!("`{name}` has a user without a password");
        conflict(name, message, "write user:password@, or set store.password_file")
    })
    .collect()
}

fn check_expiry_jitter(settings: &Settings) -> Option<SettingConflict> {
    let name = "compat.store.expiry_jitter";
    let jitter = settings.compat.store.expiry_jitter;
    let seconds = jitter.0 / Nanos::SECOND.0;
    let is_invalid = !jitter.0.is_multiple_of(Nanos::SECOND.0) || MAX_JITTER_SECS < seconds;
    is_invalid.then(|| {
        let message = format!("`{name}` {jitter} must be whole seconds, at most 4294967295");
        conflict(name, message, "envoyproxy/ratelimit's default is 300s")
    })
}

fn check_sentinel_password(settings: &Settings) -> Option<SettingConflict> {
    let has_both = uses_sentinels(settings)
        && settings.compat.store.sentinel_password.is_some()
        && settings.store.sentinel.password_file.is_some();
    let message =
        "`store.sentinel.password_file` and `compat.store.sentinel_password` are both set";
    has_both.then(|| conflict("store.sentinel.password_file", message, "keep one of them"))
}

fn check_sentinel_user(settings: &Settings) -> Option<SettingConflict> {
    let sentinel = &settings.store.sentinel;
    let has_password =
        settings.compat.store.sentinel_password.is_some() || sentinel.password_file.is_some();
    let is_half = uses_sentinels(settings) && !sentinel.user.is_empty() && !has_password;
    let message = "`store.sentinel.user` is set without a password";
    let help = "set store.sentinel.password_file";
    is_half.then(|| conflict("store.sentinel.user", message, help))
}

fn uses_sentinels(settings: &Settings) -> bool {
    redis_urls(settings).any(|(_, url)| matches!(url.endpoint, RedisEndpoint::Sentinel(..)))
}

fn check_store_pair(settings: &Settings) -> Option<SettingConflict> {
    let TlsSettings { cert_file, key_file, .. } = &settings.store.tls;
    let names = ["store.tls.cert_file", "store.tls.key_file"];
    check_certificate_pair(names, [cert_file.is_some(), key_file.is_some()])
}

fn check_xds_pair(settings: &Settings) -> Option<SettingConflict> {
    let TlsSettings { cert_file, key_file, .. } = &settings.limits.xds.tls;
    settings.limits.xds.server.as_ref()?;
    let names = ["limits.xds.tls.cert_file", "limits.xds.tls.key_file"];
    check_certificate_pair(names, [cert_file.is_some(), key_file.is_some()])
}

fn check_mirror_pair(settings: &Settings) -> Option<SettingConflict> {
    let TlsSettings { cert_file, key_file, .. } = &settings.mirror.tls;
    settings.mirror.to.as_ref()?;
    let names = ["mirror.tls.cert_file", "mirror.tls.key_file"];
    check_certificate_pair(names, [cert_file.is_some(), key_file.is_some()])
}

fn check_listen_pair(settings: &Settings) -> Option<SettingConflict> {
    let ListenTlsSettings { cert_file, key_file, .. } = &settings.listen.tls;
    let names = ["listen.tls.cert_file", "listen.tls.key_file"];
    check_certificate_pair(names, [cert_file.is_some(), key_file.is_some()])
}

/// Verifies that a certificate and its private key are both set or both absent.
fn check_certificate_pair(names: [&'static str; 2], are_set: [bool; 2]) -> Option<SettingConflict> {
    let (present, absent) = match are_set {
        [true, false] => (names[0], names[1]),
        [false, true] => (names[1], names[0]),
        _ => return None,
    };
    let message = format!("`{present}` is set and `{absent}` is not");
    Some(SettingConflict {
        ratelimit_action: RatelimitValueAction::DropBesideOwn(absent),
        ..conflict(present, message, "set the certificate and its key, or neither")
    })
}

/// Verifies that the longest wait before reconnecting to the xDS server is not below the shortest.
fn check_xds_backoff(settings: &Settings) -> Option<SettingConflict> {
    settings.limits.xds.server.as_ref()?;
    let (min, max) = (settings.compat.xds.backoff_min, settings.compat.xds.backoff_max);
    let is_max_changed = max != Settings::default().compat.xds.backoff_max;
    let names = ["compat.xds.backoff_min", "compat.xds.backoff_max"];
    (max < min).then(|| {
        let message = format!("`{}` {min} is longer than `{}` {max}", names[0], names[1]);
        let help = "make the first shorter, or the second longer";
        let found = conflict(names[usize::from(is_max_changed)], message, help);
        SettingConflict { ratelimit_action: RatelimitValueAction::Accept, ..found }
    })
}

fn check_metrics_path(settings: &Settings) -> Option<SettingConflict> {
    let name = "compat.metrics.path";
    let message = || format!("`{name}` does not start with `/`");
    let is_path = settings.compat.metrics.path.starts_with('/');
    (!is_path).then(|| conflict(name, message(), "write for example /metrics"))
}

fn check_stats_address(settings: &Settings) -> Option<SettingConflict> {
    let stats = &settings.compat.stats;
    let is_sent = !matches!(stats.sink, StatsSink::None | StatsSink::Log);
    (is_sent && stats.address.is_none()).then(|| {
        let sink = stats.sink.word();
        let message =
            format!("`compat.stats.sink` is {sink}, and `compat.stats.address` is not set");
        conflict("compat.stats.sink", message, "set compat.stats.address to the server")
    })
}

fn check_stats_interval(settings: &Settings) -> Option<SettingConflict> {
    let name = "compat.stats.interval";
    let message = || format!("`{name}` must be longer than 0");
    (settings.compat.stats.interval.0 == 0).then(|| conflict(name, message(), "the default is 10s"))
}
