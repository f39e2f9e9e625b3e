//! What settings have to do with each other.
//!
//! Guarantees: a setting that nothing would heed, because of what another one says, is an error.
//! Leaves out: what one value alone is refused for ([`super::value`]).

use super::{Backend, CounterKeys, Place, RedisUrl, Settings};
use crate::kernel::units::Nanos;

/// The longest that an expiry may be put off, in seconds: Redis' own bound is beyond it.
const LONGEST_JITTER: u64 = u32::MAX as u64;

/// What is wrong, about which setting, and what would cure it.
pub(super) struct Clash {
    pub(super) setting: &'static str,
    pub(super) message: String,
    pub(super) help: &'static str,
}

/// Everything that does not go together.
pub(super) fn clashes(settings: &Settings) -> Vec<Clash> {
    let found = [
        admin(settings),
        password(settings),
        identity(settings),
        second(settings),
        jitter(settings),
    ];
    let found = found.into_iter().flatten().chain(users(settings)).chain(tls(settings));
    found.chain(sentinels(settings)).chain(reference(settings)).chain(syslog(settings)).collect()
}

/// Each Redis that is named, and by which setting.
fn stores(settings: &Settings) -> impl Iterator<Item = (&'static str, &RedisUrl)> {
    let main = match &settings.backend {
        Backend::Redis(url) => Some(("backend", url)),
        Backend::Memory => None,
    };
    let second = settings.backend_per_second.as_ref().map(|url| ("backend_per_second", url));
    main.into_iter().chain(second)
}

fn clash(setting: &'static str, message: impl Into<String>, help: &'static str) -> Clash {
    Clash { setting, message: message.into(), help }
}

fn admin(settings: &Settings) -> Option<Clash> {
    let open = !settings.admin_host.is_loopback() && settings.admin_token.is_none();
    let message = || {
        format!(
            "`admin_host` {} lets other machines read the limits, and `admin_token` is not set",
            settings.admin_host
        )
    };
    let help = "set admin_token, or listen on 127.0.0.1";
    open.then(|| clash("admin_host", message(), help))
}

fn password(settings: &Settings) -> Option<Clash> {
    settings.backend_password_file.as_ref()?;
    let name = "backend_password_file";
    if stores(settings).next().is_none() {
        return Some(clash(
            name,
            "`backend_password_file` is for a Redis, and `backend` names none",
            "leave it out: nothing would heed it",
        ));
    }
    stores(settings).all(|(_, url)| url.password.is_some()).then(|| {
        let message = "`backend` has a password and `backend_password_file` names another";
        clash(name, message, "keep one of them")
    })
}

fn users(settings: &Settings) -> Vec<Clash> {
    let is_half = |url: &RedisUrl| url.user.is_some() && url.password.is_none();
    let half = stores(settings).filter(|(_, url)| is_half(url));
    let half = half.filter(|_| settings.backend_password_file.is_none());
    half.map(|(name, _)| {
        let message = format!("`{name}` names a user without a password, whom no Redis knows");
        clash(name, message, "write user:password@, or set backend_password_file")
    })
    .collect()
}

fn second(settings: &Settings) -> Option<Clash> {
    let alone = settings.backend_per_second.is_some() && settings.backend == Backend::Memory;
    alone.then(|| {
        let message = "`backend_per_second` is a second Redis, and `backend` is not the first";
        let help = "name the store of all other limits as `backend`";
        clash("backend_per_second", message, help)
    })
}

fn jitter(settings: &Settings) -> Option<Clash> {
    let jitter = settings.expiry_jitter;
    let seconds = jitter.0 / Nanos::SECOND.0;
    let uneven = !jitter.0.is_multiple_of(Nanos::SECOND.0) || LONGEST_JITTER < seconds;
    uneven.then(|| {
        let message =
            format!("`expiry_jitter` {jitter} is not a whole number of up to 2^32 - 1 seconds");
        clash("expiry_jitter", message, "300s is the reference's")
    })
}

/// Settings of the reference's keys where there are none.
fn reference(settings: &Settings) -> Vec<Clash> {
    let is_redis = matches!(settings.backend, Backend::Redis(_));
    if is_redis && settings.counter_keys == CounterKeys::Envoyproxy {
        return Vec::new();
    }
    let defaults = Settings::default();
    let given = [
        ("reference_key_prefix", settings.reference_key_prefix != defaults.reference_key_prefix),
        ("expiry_jitter", settings.expiry_jitter != defaults.expiry_jitter),
        ("local_deny_cache", settings.local_deny_cache != defaults.local_deny_cache),
        ("stop_when_over", settings.stop_when_over != defaults.stop_when_over),
    ];
    let given = given.into_iter().filter(|(_, given)| *given);
    given
        .map(|(name, _)| {
            let message =
                format!("`{name}` is about the reference's keys in a Redis, and there are none");
            clash(name, message, "set `counter_keys: envoyproxy` and a Redis as `backend`")
        })
        .collect()
}

/// Settings of releases where none are received.
fn syslog(settings: &Settings) -> Vec<Clash> {
    let defaults = Settings::default();
    let given = [
        ("syslog_host", settings.syslog_host != defaults.syslog_host),
        ("syslog_from", settings.syslog_from != defaults.syslog_from),
    ];
    let given = given.into_iter().filter(|(_, given)| *given && settings.syslog_port.is_none());
    given
        .map(|(name, _)| {
            let message = format!("`{name}` is about releases by datagrams, and there is no port");
            clash(name, message, "set syslog_port, or leave this out")
        })
        .collect()
}

fn identity(settings: &Settings) -> Option<Clash> {
    let (name, other) = match (&settings.backend_tls_cert_file, &settings.backend_tls_key_file) {
        (Some(_), None) => ("backend_tls_cert_file", "backend_tls_key_file"),
        (None, Some(_)) => ("backend_tls_key_file", "backend_tls_cert_file"),
        _ => return None,
    };
    let message = format!("`{name}` is set and `{other}` is not");
    Some(clash(name, message, "a client's certificate is good with its key only: name both"))
}

/// Settings of TLS that nothing would heed.
fn tls(settings: &Settings) -> Vec<Clash> {
    if stores(settings).any(|(_, url)| url.tls) {
        return Vec::new();
    }
    let given = [
        ("backend_tls_ca_file", settings.backend_tls_ca_file.is_some()),
        ("backend_tls_cert_file", settings.backend_tls_cert_file.is_some()),
        ("backend_tls_key_file", settings.backend_tls_key_file.is_some()),
        ("backend_tls_server_name", settings.backend_tls_server_name.is_some()),
    ];
    let given = given.into_iter().filter(|(_, given)| *given);
    given
        .map(|(name, _)| {
            let message = format!("`{name}` is set, and `backend` does not speak TLS");
            clash(name, message, "write rediss for redis in `backend`, or leave this out")
        })
        .collect()
}

/// Settings of sentinels that nothing would heed, or that are half of what is needed.
fn sentinels(settings: &Settings) -> Vec<Clash> {
    let user = !settings.backend_sentinel_user.is_empty();
    let password = settings.backend_sentinel_password.is_some();
    let file = settings.backend_sentinel_password_file.is_some();
    let given = [
        ("backend_sentinel_user", user),
        ("backend_sentinel_password", password),
        ("backend_sentinel_password_file", file),
    ];
    let is_sentinel = stores(settings).any(|(_, url)| matches!(url.place, Place::Sentinel(..)));
    if !is_sentinel {
        let given = given.into_iter().filter(|(_, given)| *given);
        let of = |name| {
            let message = format!("`{name}` is set, and `backend` names no sentinels");
            clash(name, message, "write redis+sentinel:// in `backend`, or leave this out")
        };
        return given.map(|(name, _)| of(name)).collect();
    }
    let mut found = Vec::new();
    if password && file {
        let message =
            "`backend_sentinel_password` and `backend_sentinel_password_file` are both set";
        found.push(clash("backend_sentinel_password_file", message, "keep one of them"));
    }
    if user && !password && !file {
        let message = "`backend_sentinel_user` is set without a password, whom no sentinel knows";
        let help = "set backend_sentinel_password_file or backend_sentinel_password";
        found.push(clash("backend_sentinel_user", message, help));
    }
    found
}
