//! What settings have to do with each other.
//!
//! Guarantees: a setting that nothing would heed, because of what another one says, is an error.
//! Leaves out: what one value alone is refused for ([`super::value`]).

use super::{Backend, Place, RedisUrl, Settings};

/// What is wrong, about which setting, and what would cure it.
pub(super) struct Clash {
    pub(super) setting: &'static str,
    pub(super) message: String,
    pub(super) help: &'static str,
}

/// Everything that does not go together.
pub(super) fn clashes(settings: &Settings) -> Vec<Clash> {
    let found = [admin(settings), password(settings), user(settings), identity(settings)];
    let found = found.into_iter().flatten().chain(tls(settings)).chain(sentinels(settings));
    found.collect()
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
    match &settings.backend {
        Backend::Memory => Some(clash(
            name,
            "`backend_password_file` is for a Redis, and `backend` names none",
            "leave it out: nothing would heed it",
        )),
        Backend::Redis(url) if url.password.is_some() => Some(clash(
            name,
            "`backend` has a password and `backend_password_file` names another",
            "keep one of them",
        )),
        Backend::Redis(_) => None,
    }
}

fn user(settings: &Settings) -> Option<Clash> {
    let Backend::Redis(RedisUrl { user: Some(_), password: None, .. }) = &settings.backend else {
        return None;
    };
    settings.backend_password_file.is_none().then(|| {
        let message = "`backend` names a user without a password, whom no Redis knows";
        clash("backend", message, "write user:password@, or set backend_password_file")
    })
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
    if matches!(&settings.backend, Backend::Redis(url) if url.tls) {
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
    let is_sentinel = matches!(&settings.backend, Backend::Redis(url) if matches!(url.place, Place::Sentinel(..)));
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
