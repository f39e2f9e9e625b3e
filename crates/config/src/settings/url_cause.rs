//! Explains store URLs that other programs accept, and this one does not.
//!
//! Guarantees:
//! - The text has only the scheme and known parameter names: other parts may be a password.

use super::postgres_url;

/// The schemes of other programs, each with the scheme to write.
const SCHEMES: [(&str, &str); 14] = [
    ("redis+tls", "rediss"),
    ("redis+ssl", "rediss"),
    ("redis-sentinel", "redis+sentinel"),
    ("rediss-sentinel", "rediss+sentinel"),
    ("sentinel", "redis+sentinel"),
    ("redis-cluster", "redis+cluster"),
    ("rediss-cluster", "rediss+cluster"),
    ("redis-socket", "redis+unix"),
    ("redis+socket", "redis+unix"),
    ("unix", "redis+unix"),
    ("keydb", "redis"),
    ("dragonfly", "redis"),
    ("garnet", "redis"),
    ("postgis", "postgres"),
];

/// Databases that are no store, by scheme.
const OTHER_STORES: [&str; 8] =
    ["http", "https", "memcached", "mongodb", "mysql", "mariadb", "sqlite", "sqlite3"];

/// Parameters of other programs in Redis URLs, each with the fix.
const REDIS_PARAMETERS: [(&str, &str); 16] = [
    ("db", "write the number of the database after the host: `redis://host/1`"),
    ("database", "write the number of the database after the host: `redis://host/1`"),
    ("ssl", "write `rediss://` for TLS"),
    ("tls", "write `rediss://` for TLS"),
    ("sslmode", "write `rediss://` for TLS; `sslmode` is for PostgreSQL"),
    ("ssl_cert_reqs", "remove it: certificates are always verified"),
    ("ssl_ca_certs", "set `store.tls.ca_file`"),
    ("username", "write the user before the host: `redis://user:password@host`"),
    ("password", "write the password before the host, or set `store.password_file`"),
    ("timeout", "set `store.timeout`"),
    ("socket_timeout", "set `store.timeout`"),
    ("connect_timeout", "remove it: a connection attempt takes at most a second"),
    ("pgbouncer", "remove it: it is for PostgreSQL"),
    ("max_connections", "remove it: one connection is enough"),
    ("pool_size", "remove it: one connection is enough"),
    ("protocol", "remove it: Sluicegate uses RESP2"),
];

/// Parameters of other programs in PostgreSQL URLs, each with the fix.
const POSTGRES_PARAMETERS: [(&str, &str); 13] = [
    ("sslrootcert", "set `store.tls.ca_file`"),
    ("sslcert", "set `store.tls.cert_file`"),
    ("sslkey", "set `store.tls.key_file`"),
    ("sslaccept", "remove it: certificates are always verified"),
    ("sslpassword", "remove it: write the key without a password to `store.tls.key_file`"),
    ("ssl", "write `sslmode=require`"),
    ("schema", "write `options=-csearch_path%3Dname`"),
    ("currentSchema", "write `options=-csearch_path%3Dname`"),
    ("connection_limit", "set `store.postgres.connections`"),
    ("pool_timeout", "remove it: `store.timeout` bounds each check"),
    ("pool_max_conns", "set `store.postgres.connections`"),
    ("statement_cache_size", "set `store.postgres.prepare`"),
    ("prepareThreshold", "set `store.postgres.prepare`"),
];

/// Returns the cause for which `text` is no URL of a store, with the fix.
pub(super) fn cause_of(text: &str) -> Option<String> {
    if text.starts_with("jdbc:postgresql:") {
        return Some(
            "is a URL for Java; write `postgres://user:password@host/database`".to_owned(),
        );
    }
    let (scheme, rest) = text.split_once("://")?;
    let lower = scheme.to_ascii_lowercase();
    let (kind, driver) = lower.split_once('+').unwrap_or((&lower, ""));
    if matches!(kind, "postgres" | "postgresql") && !driver.is_empty() {
        return Some("names a driver in the scheme; write `postgres://`".to_owned());
    }
    if let Some((_, write)) = SCHEMES.into_iter().find(|(known, _)| *known == lower) {
        return Some(format!("has a scheme of other programs; write `{write}://`"));
    }
    if OTHER_STORES.contains(&kind) {
        return Some("is no store; write the URL of a Redis or PostgreSQL".to_owned());
    }
    let is_postgres = matches!(&*lower, "postgres" | "postgresql");
    let is_redis = kind.starts_with("redis") || kind.starts_with("valkey");
    match () {
        () if (is_postgres || is_redis) && lower != scheme => {
            Some("has a scheme with capital letters; write it in lower case".to_owned())
        }
        () if is_postgres => postgres_cause(rest),
        () if is_redis => redis_cause(rest, driver == "unix"),
        () => None,
    }
}

fn redis_cause(rest: &str, is_socket: bool) -> Option<String> {
    let known = parameter_cause(rest, &REDIS_PARAMETERS);
    let has_query = rest.rsplit_once('?').is_some_and(|(_, query)| !query.contains('@'));
    let other = || {
        let fix = "has parameters, which Redis URLs do not have; remove the text from `?` on";
        (has_query && !is_socket).then(|| fix.to_owned())
    };
    known.filter(|_| !is_socket).or_else(other)
}

fn postgres_cause(rest: &str) -> Option<String> {
    let mode = parameters(rest).find(|(name, _)| *name == "sslmode").map(|(_, mode)| mode);
    match mode {
        Some("prefer" | "allow") => {
            let problem = "has an `sslmode` that hides whether TLS is on";
            return Some(format!("{problem}; write `sslmode=require` or `sslmode=disable`"));
        }
        Some(mode) if !postgres_url::is_ssl_mode(mode) => {
            return Some("has an unknown `sslmode`; write `require` or `disable`".to_owned());
        }
        _ => {}
    }
    parameter_cause(rest, &POSTGRES_PARAMETERS)
}

fn parameter_cause(rest: &str, known: &[(&str, &str)]) -> Option<String> {
    parameters(rest).find_map(|(name, _)| {
        let (name, fix) = known.iter().find(|(known, _)| *known == name)?;
        Some(format!("has the parameter `{name}`; {fix}"))
    })
}

fn parameters(rest: &str) -> impl Iterator<Item = (&str, &str)> {
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}
