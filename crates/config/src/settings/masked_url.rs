//! Masks invalid URLs, because a part of them may be a password.
//!
//! Guarantees:
//! - A text of only letters, digits and `+-._` stays: it may be a name such as `memory`.
//! - Of any other text, only the scheme stays, and the host with a numeric port if it follows an `@`.

/// Returns an invalid URL for an error message, with everything masked that may be a password. Without
/// an `@`, the text in the place of the host may be a password.
pub(super) fn masked(text: &str) -> String {
    let is_word = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-._".contains(&byte))
    };
    if is_word(text) {
        return text.to_owned();
    }
    let scheme = text.split_once("://").filter(|(scheme, _)| is_word(scheme));
    let scheme = scheme.map(|(scheme, _)| format!("{scheme}://")).unwrap_or_default();
    // If a `?` precedes the `@`, the text after the `?` may be a password that contains an `@`.
    let host = text.rsplit_once('@').filter(|(credentials, _)| !credentials.contains('?'));
    let host = host.and_then(|(_, host)| host.split(['/', '?']).next()).map(without_invalid_port);
    format!("{scheme}…{}", host.map(|host| format!("@{host}")).unwrap_or_default())
}

/// Returns the host and port of an invalid URL. An invalid port may be a part of a password, so it
/// is removed.
fn without_invalid_port(host: &str) -> &str {
    let end = if host.starts_with('[') { host.find(']').map(|at| at + 1) } else { host.find(':') };
    let (host_name, port) = host.split_at(end.unwrap_or(host.len()));
    let is_port = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    if port.strip_prefix(':').is_some_and(is_port) { host } else { host_name }
}
