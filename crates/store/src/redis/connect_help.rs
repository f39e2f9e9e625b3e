//! Suggests a fix for a failed connection to Redis, in the names of the settings.
//!
//! Guarantees:
//! - No password is in the text.
//!
//! Not covered:
//! - Errors of certificates (see [`super::tls`]).

use fred::error::{Error, ErrorKind};

use super::client::without_arguments;
use super::options::RedisOptions;

/// Returns the suggested fix for `error`, with the setting and, in parentheses, the variable of
/// envoyproxy/ratelimit. Returns `None` if no fix is known.
pub(super) fn connect_help(error: &Error, options: &RedisOptions) -> Option<String> {
    let text = without_arguments(error);
    if options.tls.is_some() && *error.kind() == ErrorKind::Timeout {
        let help = "redis may not use TLS on this port: then write redis:// in store.url \
                    (REDIS_TLS=false)";
        return Some(help.to_owned());
    }
    if options.tls.is_none() && is_closed_by_server(error, text) {
        let help = "redis may require TLS on this port: then write rediss:// in store.url \
                    (REDIS_TLS=true)";
        return Some(help.to_owned());
    }
    if text.contains("NOAUTH") {
        let help = "set the password in store.url (REDIS_AUTH), or store.password_file \
                    (REDIS_AUTH_FILE)";
        return Some(help.to_owned());
    }
    text.contains("WRONGPASS").then(|| wrong_password_help(options.user.as_deref()))
}

fn is_closed_by_server(error: &Error, text: &str) -> bool {
    *error.kind() == ErrorKind::IO
        && ["reset by peer", "unexpected end of file"].iter().any(|part| text.contains(part))
}

/// Redis returns the same error for a wrong user and a wrong password. The text before the first
/// colon in `REDIS_AUTH` is the user, so a password with a colon is split.
fn wrong_password_help(user: Option<&str>) -> String {
    let set = "in store.url (REDIS_AUTH)";
    match user {
        Some(user) => format!(
            "`{user}` is the user {set}; if the password itself contains `:`, write `default:` \
             before it"
        ),
        None => format!("correct the password {set} or store.password_file (REDIS_AUTH_FILE)"),
    }
}
