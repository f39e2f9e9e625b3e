//! Reads the environment variables of envoyproxy/ratelimit for Redis, and translates them to store
//! settings.

use super::env_reader::EnvReader;
use crate::config::settings::{RedisUrl, encode_percent};

struct StoreVariables {
    socket_type: &'static str,
    kind: &'static str,
    url: &'static str,
    auth: &'static str,
    sentinel_auth: &'static str,
    tls: &'static str,
    on_empty: &'static str,
    parallelism: &'static str,
}

const MAIN: StoreVariables = StoreVariables {
    socket_type: "REDIS_SOCKET_TYPE",
    kind: "REDIS_TYPE",
    url: "REDIS_URL",
    auth: "REDIS_AUTH",
    sentinel_auth: "REDIS_SENTINEL_AUTH",
    tls: "REDIS_TLS",
    on_empty: "REDIS_POOL_ON_EMPTY_BEHAVIOR",
    parallelism: "REDIS_CLUSTER_PIPELINE_PARALLELISM",
};

const PER_SECOND: StoreVariables = StoreVariables {
    socket_type: "REDIS_PERSECOND_SOCKET_TYPE",
    kind: "REDIS_PERSECOND_TYPE",
    url: "REDIS_PERSECOND_URL",
    auth: "REDIS_PERSECOND_AUTH",
    sentinel_auth: "REDIS_PERSECOND_SENTINEL_AUTH",
    tls: "REDIS_PERSECOND_TLS",
    on_empty: "REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR",
    parallelism: "REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM",
};

/// The default connection timeout of envoyproxy/ratelimit.
const DEFAULT_TIMEOUT_NANOS: u64 = 10_000_000_000;
const MIN_TIMEOUT_NANOS: u64 = 1_000_000;

pub(super) fn read(reader: &mut EnvReader<'_>) {
    match reader.text("BACKEND_TYPE") {
        "redis" | "" => {}
        // The setting `store.url` selects the store.
        _ if reader.is_setting_overridden("store.url") => {}
        "memcache" => {
            return reader.add_error(
                "BACKEND_TYPE",
                "must be redis, because memcached is not supported: set BACKEND_TYPE=redis and \
                 REDIS_URL, or set SLUICEGATE_STORE_URL=memory for separate counters in each \
                 replica",
            );
        }
        _ => return reader.add_error("BACKEND_TYPE", "must be redis"),
    }
    reader.put("BACKEND_TYPE", "compat.store.key_format", "compat".to_owned());
    reader.put_flag("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "store.required_for_health");
    read_timeout(reader);
    let has_second_store = reader.flag("REDIS_PERSECOND");
    let mut stores = vec![(&MAIN, "store.url")];
    if has_second_store {
        stores.push((&PER_SECOND, "compat.store.per_second_url"));
    }
    for (names, setting) in &stores {
        if !reader.is_setting_overridden(setting) {
            read_store(reader, names, setting);
        }
    }
    let stores: Vec<_> = stores.into_iter().map(|(names, _)| names).collect();
    read_passwords(reader, &stores);
    read_tls(reader, &stores);
}

/// Reads the timeout for Redis, which in Sluicegate applies to each command.
fn read_timeout(reader: &mut EnvReader<'_>) {
    let op_timeout = reader.nanos("REDIS_OP_TIMEOUT");
    let variable = if op_timeout == 0 { "REDIS_TIMEOUT" } else { "REDIS_OP_TIMEOUT" };
    let nanos = match reader.nanos(variable) {
        0 => {
            reader.add_note(variable, "is 0, but every command needs a timeout; using 10s");
            DEFAULT_TIMEOUT_NANOS
        }
        nanos if nanos < MIN_TIMEOUT_NANOS => {
            reader.add_note(variable, "is too short for a reply; using 1ms");
            MIN_TIMEOUT_NANOS
        }
        nanos => nanos,
    };
    reader.put(variable, "store.timeout", format!("{nanos}ns"));
    let second_timeout = reader.nanos("REDIS_PERSECOND_TIMEOUT");
    if reader.is_set("REDIS_PERSECOND_TIMEOUT") && second_timeout != nanos {
        let line = "no effect: REDIS_TIMEOUT is the timeout of both stores";
        reader.add_note("REDIS_PERSECOND_TIMEOUT", line);
    }
}

fn read_store(reader: &mut EnvReader<'_>, names: &StoreVariables, setting: &'static str) {
    let on_empty = reader.text(names.on_empty).to_uppercase();
    if on_empty == "CREATE" || on_empty == "ERROR" {
        let why = "must be WAIT, because CREATE and ERROR are not supported";
        return reader.add_error(names.on_empty, why);
    }
    match store_url(reader, names) {
        Ok(url) if RedisUrl::new(&url).is_none() => {
            let why = "must be host:port or redis://user:password@host:port/database, with a \
                       number as the port and the database";
            reader.add_error(names.url, why);
        }
        Ok(url) => reader.put(names.url, setting, url),
        Err((variable, why)) => reader.add_error(variable, &why),
    }
}

type VariableError = (&'static str, String);

/// Returns the URL of the store in the syntax of the setting `store.url`.
fn store_url(reader: &EnvReader<'_>, names: &StoreVariables) -> Result<String, VariableError> {
    let text = reader.text(names.url);
    let kind = reader.text(names.kind).to_uppercase();
    let items: Vec<&str> = text.split(',').collect();
    let tls = if reader.flag(names.tls) { "rediss" } else { "redis" };
    match &*kind {
        "SINGLE" => single_url(reader, names, tls, text),
        "SENTINEL" => {
            let [primary, sentinels @ ..] = &items[..] else {
                return Err(missing_sentinels(names));
            };
            if sentinels.is_empty() {
                return Err(missing_sentinels(names));
            }
            let nodes = parse_addresses(sentinels, names)?;
            let credentials = credentials_prefix(reader, names, &nodes);
            let hosts = join_hosts(&nodes);
            let primary = primary.rsplit('@').next().unwrap_or(primary);
            Ok(format!(
                "{tls}+sentinel://{credentials}{hosts}/{primary}{}",
                database_suffix(&nodes)
            ))
        }
        "CLUSTER" if reader.int(names.parallelism) < 0 => {
            Err((names.parallelism, "must be 0 or a positive whole number".to_owned()))
        }
        "CLUSTER" => {
            let nodes = parse_addresses(&items, names)?;
            Ok(format!(
                "{tls}+cluster://{}{}",
                credentials_prefix(reader, names, &nodes),
                join_hosts(&nodes)
            ))
        }
        _ => Err((names.kind, "must be SINGLE, SENTINEL or CLUSTER".to_owned())),
    }
}

fn missing_sentinels(names: &StoreVariables) -> VariableError {
    let why = "must be the name of the primary and at least one sentinel, separated by commas";
    (names.url, why.to_owned())
}

/// Returns the error for a list of addresses without the variable that says its kind. Shows the
/// list only if it contains no credentials.
fn unexpected_list(names: &StoreVariables, list: &str) -> VariableError {
    let has_only_hosts = RedisUrl::new(&format!("redis+cluster://{list}")).is_some();
    let shown = if has_only_hosts && !list.contains('@') { list } else { "…" };
    let why = format!(
        "must be SENTINEL or CLUSTER, because {} is the list `{shown}`; for SENTINEL, its first \
         item is the name of the primary",
        names.url
    );
    (names.kind, why)
}

fn single_url(
    reader: &EnvReader<'_>,
    names: &StoreVariables,
    tls: &str,
    text: &str,
) -> Result<String, VariableError> {
    let is_unix = reader.text(names.socket_type) == "unix" && !text.contains("://");
    if !is_unix && text.contains(',') {
        return Err(unexpected_list(names, text));
    }
    if !is_unix {
        let nodes = parse_addresses(&[text], names)?;
        let credentials = credentials_prefix(reader, names, &nodes);
        return Ok(format!(
            "{tls}://{credentials}{}{}",
            join_hosts(&nodes),
            database_suffix(&nodes)
        ));
    }
    if tls == "rediss" {
        return Err((names.tls, "must be false for a Unix socket".to_owned()));
    }
    if !text.starts_with('/') {
        let why = format!(
            "must be the absolute path of a socket; for host:port set {}=tcp",
            names.socket_type
        );
        return Err((names.url, why));
    }
    Ok(format!(
        "redis+unix://{}{}",
        credentials_prefix(reader, names, &[]),
        encode_percent(text, "/")
    ))
}

struct UrlAddress {
    credentials: Option<String>,
    host: String,
    database: String,
}

/// Parses Redis addresses, each as `host:port` or `redis://user:password@host:port/0`.
fn parse_addresses(
    items: &[&str],
    names: &StoreVariables,
) -> Result<Vec<UrlAddress>, VariableError> {
    let node = |item: &&str| {
        let Some(rest) = item.strip_prefix("redis://") else {
            if item.contains("://") {
                let why =
                    format!("must be host:port or redis://host:port; for TLS, set {}", names.tls);
                return Err((names.url, why));
            }
            let host = (*item).to_owned();
            return Ok(UrlAddress { credentials: None, host, database: String::new() });
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (credentials, host) = match authority.rsplit_once('@') {
            Some((credentials, host)) => (Some(credentials.to_owned()), host),
            None => (None, authority),
        };
        let query_database = query.split('&').find_map(|pair| pair.strip_prefix("db="));
        let database = query_database.unwrap_or(path).to_owned();
        Ok(UrlAddress { credentials, host: host.to_owned(), database })
    };
    items.iter().map(node).collect()
}

fn join_hosts(nodes: &[UrlAddress]) -> String {
    nodes.iter().map(|node| node.host.as_str()).collect::<Vec<_>>().join(",")
}

fn database_suffix(nodes: &[UrlAddress]) -> String {
    let node_with_database = nodes.iter().find(|node| !node.database.is_empty());
    node_with_database.map(|node| format!("/{}", node.database)).unwrap_or_default()
}

/// Returns the Redis credentials as `user:password@`. `REDIS_AUTH` takes precedence over
/// `REDIS_URL`.
fn credentials_prefix(
    reader: &EnvReader<'_>,
    names: &StoreVariables,
    nodes: &[UrlAddress],
) -> String {
    let auth = reader.text(names.auth);
    if auth.is_empty() {
        let url_credentials = nodes.iter().find_map(|node| node.credentials.as_ref());
        return url_credentials.map(|credentials| format!("{credentials}@")).unwrap_or_default();
    }
    let (user, password) = split_credentials(auth);
    format!("{}:{}@", encode_percent(user, ""), encode_percent(password, ""))
}

/// Splits `user:password` at the first colon. Without a colon, the whole text is the password.
fn split_credentials(auth: &str) -> (&str, &str) {
    auth.split_once(':').unwrap_or(("", auth))
}

/// Returns the stores whose URL comes from Sluicegate's own settings, so that their TLS and
/// Sentinel use is unknown here.
fn overridden_stores(reader: &EnvReader<'_>) -> impl Iterator<Item = &'static StoreVariables> {
    let all = [(&MAIN, "store.url"), (&PER_SECOND, "compat.store.per_second_url")];
    all.into_iter()
        .filter(|(_, setting)| reader.is_setting_overridden(setting))
        .map(|(names, _)| names)
}

fn read_passwords(reader: &mut EnvReader<'_>, stores: &[&StoreVariables]) {
    if reader.flag("REDIS_AWS_IAM_AUTH") {
        let why =
            "is not supported: write the token to a file, and set REDIS_AUTH_FILE to its path";
        reader.add_error("REDIS_AWS_IAM_AUTH", why);
    }
    if !reader.text("REDIS_AUTH_FILE").is_empty() {
        if reader.text("REDIS_AUTH").is_empty() {
            reader.put_text("REDIS_AUTH_FILE", "store.password_file");
        } else {
            reader.add_note("REDIS_AUTH_FILE", "no effect: REDIS_AUTH is set");
        }
    }
    let by_sentinels =
        |names: &&&StoreVariables| reader.text(names.kind).eq_ignore_ascii_case("sentinel");
    let mut auths: Vec<_> =
        stores.iter().filter(by_sentinels).map(|names| names.sentinel_auth).collect();
    if auths.is_empty() {
        let set_auths = overridden_stores(reader).map(|names| names.sentinel_auth);
        auths.extend(set_auths.filter(|auth| !reader.text(auth).is_empty()).take(1));
    }
    let Some(&first_auth) = auths.first() else { return };
    let auth = reader.text(first_auth).to_owned();
    if auths.iter().any(|auth_variable| reader.text(auth_variable) != auth) {
        let why = "must equal REDIS_SENTINEL_AUTH, because all sentinels use one password";
        reader.add_error(auths[1], why);
    }
    let (user, password) = split_credentials(&auth);
    let (user, password) = (user.to_owned(), password.to_owned());
    reader.put(first_auth, "store.sentinel.user", user);
    reader.put(first_auth, "compat.store.sentinel_password", password);
}

fn read_tls(reader: &mut EnvReader<'_>, stores: &[&StoreVariables]) {
    let files = [
        ("REDIS_TLS_CLIENT_CERT", "store.tls.cert_file"),
        ("REDIS_TLS_CLIENT_KEY", "store.tls.key_file"),
        ("REDIS_TLS_CACERT", "store.tls.ca_file"),
    ];
    if overridden_stores(reader).next().is_none()
        && !stores.iter().any(|names| reader.flag(names.tls))
    {
        let why = "no effect: REDIS_TLS is false, so connections to Redis use no TLS";
        return reader.note_unused(&files.map(|(variable, _)| variable), why);
    }
    for (variable, setting) in files {
        reader.put_text(variable, setting);
    }
    reader.put_presence("REDIS_TLS_CACERT", "compat.system_cas");
    reader.put_flag("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "compat.store.any_server_name");
}
