//! Reads the environment variables of envoyproxy/ratelimit for Redis, and translates them to store
//! settings.

use super::env_reader::EnvReader;

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

const HEX_DIGITS: &[u8; 16] = b"0123456789ABCDEF";

/// The default connection timeout of envoyproxy/ratelimit, in nanoseconds.
const DEFAULT_TIMEOUT_NANOS: u64 = 10_000_000_000;
/// The shortest usable timeout of a store call, in nanoseconds.
const MIN_TIMEOUT_NANOS: u64 = 1_000_000;

pub(super) fn read(reading: &mut EnvReader<'_>) {
    match reading.text("BACKEND_TYPE") {
        "redis" | "" => {}
        // The setting `store.url` selects the store, so `BACKEND_TYPE` does not matter.
        _ if reading.is_setting_overridden("store.url") => {}
        "memcache" => {
            return reading.add_error(
                "BACKEND_TYPE",
                "names memcached, which this service does not count in: memcached counts racily and \
                 admits whatever it cannot answer. Set BACKEND_TYPE=redis and REDIS_URL, or \
                 SLUICEGATE_STORE_URL=memory for counters of each replica's own",
            );
        }
        _ => return reading.add_error("BACKEND_TYPE", "takes redis"),
    }
    reading.put("BACKEND_TYPE", "compat.store.key_format", "compat".to_owned());
    reading.put_flag("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "store.required_for_health");
    read_timeout(reading);
    let has_second_store = reading.flag("REDIS_PERSECOND");
    let mut stores = vec![(&MAIN, "store.url")];
    if has_second_store {
        stores.push((&PER_SECOND, "compat.store.per_second_url"));
    }
    for (names, setting) in &stores {
        if !reading.is_setting_overridden(setting) {
            read_store(reading, names, setting);
        }
    }
    let stores: Vec<_> = stores.into_iter().map(|(names, _)| names).collect();
    read_passwords(reading, &stores);
    read_tls(reading, &stores);
}

/// Reads the timeout for Redis. In Sluicegate it applies to each command, and not only to the
/// connection.
fn read_timeout(reading: &mut EnvReader<'_>) {
    let op_timeout = reading.nanos("REDIS_OP_TIMEOUT");
    let variable = if op_timeout == 0 { "REDIS_TIMEOUT" } else { "REDIS_OP_TIMEOUT" };
    let nanos = match reading.nanos(variable) {
        0 => {
            reading.add_note(
                variable,
                "bounds every command here, so there must be one; 10s is taken",
            );
            DEFAULT_TIMEOUT_NANOS
        }
        nanos if nanos < MIN_TIMEOUT_NANOS => {
            reading.add_note(variable, "leaves no time to answer; 1ms is taken");
            MIN_TIMEOUT_NANOS
        }
        nanos => nanos,
    };
    reading.put(variable, "store.deadline", format!("{nanos}ns"));
    let second_timeout = reading.nanos("REDIS_PERSECOND_TIMEOUT");
    if reading.is_set("REDIS_PERSECOND_TIMEOUT") && second_timeout != nanos {
        let line = "one deadline is kept for both stores, that of REDIS_TIMEOUT";
        reading.add_note("REDIS_PERSECOND_TIMEOUT", line);
    }
}

fn read_store(reading: &mut EnvReader<'_>, names: &StoreVariables, setting: &'static str) {
    let on_empty = reading.text(names.on_empty).to_uppercase();
    if on_empty == "CREATE" || on_empty == "ERROR" {
        return reading
            .add_error(names.on_empty, "takes WAIT: CREATE and ERROR are no longer to be had");
    }
    match store_url(reading, names) {
        Ok(url) => reading.put(names.url, setting, url),
        Err((variable, why)) => reading.add_error(variable, why),
    }
}

type VariableError = (&'static str, &'static str);

/// Returns the URL of the store in the syntax of the setting `store.url`.
fn store_url(reading: &EnvReader<'_>, names: &StoreVariables) -> Result<String, VariableError> {
    let text = reading.text(names.url);
    let kind = reading.text(names.kind).to_uppercase();
    let items: Vec<&str> = text.split(',').collect();
    let tls = if reading.flag(names.tls) { "rediss" } else { "redis" };
    match &*kind {
        "SINGLE" => single_url(reading, names, tls, text),
        "SENTINEL" => {
            let [primary, sentinels @ ..] = &items[..] else {
                return Err(missing_sentinels(names));
            };
            if sentinels.is_empty() {
                return Err(missing_sentinels(names));
            }
            let nodes = parse_addresses(sentinels, names)?;
            let who = credentials_prefix(reading, names, &nodes);
            let hosts = join_hosts(&nodes);
            let primary = primary.rsplit('@').next().unwrap_or(primary);
            Ok(format!("{tls}+sentinel://{who}{hosts}/{primary}{}", database_suffix(&nodes)))
        }
        "CLUSTER" if reading.int(names.parallelism) < 0 => {
            Err((names.parallelism, "takes a whole number from 0"))
        }
        "CLUSTER" => {
            let nodes = parse_addresses(&items, names)?;
            Ok(format!(
                "{tls}+cluster://{}{}",
                credentials_prefix(reading, names, &nodes),
                join_hosts(&nodes)
            ))
        }
        _ => Err((names.kind, "takes SINGLE, SENTINEL or CLUSTER")),
    }
}

const fn missing_sentinels(names: &StoreVariables) -> VariableError {
    (names.url, "must be the primary's name and at least one sentinel, with commas between them")
}

fn single_url(
    reading: &EnvReader<'_>,
    names: &StoreVariables,
    tls: &str,
    text: &str,
) -> Result<String, VariableError> {
    let is_unix = reading.text(names.socket_type) == "unix" && !text.contains("://");
    if !is_unix {
        let nodes = parse_addresses(&[text], names)?;
        let who = credentials_prefix(reading, names, &nodes);
        return Ok(format!("{tls}://{who}{}{}", join_hosts(&nodes), database_suffix(&nodes)));
    }
    if tls == "rediss" {
        return Err((names.tls, "has no meaning for a Unix socket; set it to false"));
    }
    if !text.starts_with('/') {
        let why = "must be the absolute path of a socket; for host:port set REDIS_SOCKET_TYPE=tcp";
        return Err((names.url, why));
    }
    Ok(format!(
        "redis+unix://{}{}",
        credentials_prefix(reading, names, &[]),
        percent_encode(text, "/")
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
                return Err((
                    names.url,
                    "understands redis:// and no other scheme; REDIS_TLS asks for TLS",
                ));
            }
            let host = (*item).to_owned();
            return Ok(UrlAddress { credentials: None, host, database: String::new() });
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (who, host) = match authority.rsplit_once('@') {
            Some((who, host)) => (Some(who.to_owned()), host),
            None => (None, authority),
        };
        let by_query = query.split('&').find_map(|pair| pair.strip_prefix("db="));
        let database = by_query.unwrap_or(path).to_owned();
        Ok(UrlAddress { credentials: who, host: host.to_owned(), database })
    };
    items.iter().map(node).collect()
}

fn join_hosts(nodes: &[UrlAddress]) -> String {
    nodes.iter().map(|node| node.host.as_str()).collect::<Vec<_>>().join(",")
}

fn database_suffix(nodes: &[UrlAddress]) -> String {
    let named = nodes.iter().find(|node| !node.database.is_empty());
    named.map(|node| format!("/{}", node.database)).unwrap_or_default()
}

/// Returns the Redis credentials as `user:password@`. `REDIS_AUTH` takes precedence over the
/// credentials in `REDIS_URL`.
fn credentials_prefix(
    reading: &EnvReader<'_>,
    names: &StoreVariables,
    nodes: &[UrlAddress],
) -> String {
    let auth = reading.text(names.auth);
    if auth.is_empty() {
        let written = nodes.iter().find_map(|node| node.credentials.as_ref());
        return written.map(|who| format!("{who}@")).unwrap_or_default();
    }
    let (user, password) = split_credentials(auth);
    format!("{}:{}@", percent_encode(user, ""), percent_encode(password, ""))
}

/// Splits `user:password` at the first colon. Without a colon, the whole text is the password.
fn split_credentials(auth: &str) -> (&str, &str) {
    auth.split_once(':').unwrap_or(("", auth))
}

/// Percent-encodes `text`, except letters, digits, `-._~` and the characters in `plain`.
fn percent_encode(text: &str, plain: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        let c = char::from(byte);
        if c.is_ascii_alphanumeric() || "-._~".contains(c) || byte.is_ascii() && plain.contains(c) {
            escaped.push(c);
        } else {
            escaped.push('%');
            escaped.extend(
                [byte >> 4, byte & 15].map(|half| char::from(HEX_DIGITS[usize::from(half)])),
            );
        }
    }
    escaped
}

/// Returns the stores whose URL comes from Sluicegate's own settings. Here it is unknown whether
/// these URLs use TLS or Sentinel.
fn overridden_stores(reading: &EnvReader<'_>) -> impl Iterator<Item = &'static StoreVariables> {
    let all = [(&MAIN, "store.url"), (&PER_SECOND, "compat.store.per_second_url")];
    all.into_iter()
        .filter(|(_, setting)| reading.is_setting_overridden(setting))
        .map(|(names, _)| names)
}

fn read_passwords(reading: &mut EnvReader<'_>, stores: &[&StoreVariables]) {
    if reading.flag("REDIS_AWS_IAM_AUTH") {
        let why = "is not to be had: let something write the token to a file and name that in REDIS_AUTH_FILE";
        reading.add_error("REDIS_AWS_IAM_AUTH", why);
    }
    if !reading.text("REDIS_AUTH_FILE").is_empty() {
        if reading.text("REDIS_AUTH").is_empty() {
            reading.put_text("REDIS_AUTH_FILE", "store.password_file");
        } else {
            reading.add_note("REDIS_AUTH_FILE", "REDIS_AUTH has the password");
        }
    }
    let by_sentinels =
        |names: &&&StoreVariables| reading.text(names.kind).eq_ignore_ascii_case("sentinel");
    let mut auths: Vec<_> =
        stores.iter().filter(by_sentinels).map(|names| names.sentinel_auth).collect();
    if auths.is_empty() {
        let set_auths = overridden_stores(reading).map(|names| names.sentinel_auth);
        auths.extend(set_auths.filter(|auth| !reading.text(auth).is_empty()).take(1));
    }
    let Some(&first) = auths.first() else { return };
    let auth = reading.text(first).to_owned();
    if auths.iter().any(|other| reading.text(other) != auth) {
        let why = "must be REDIS_SENTINEL_AUTH's: one password is kept for all sentinels";
        reading.add_error(auths[1], why);
    }
    let (user, password) = split_credentials(&auth);
    let (user, password) = (user.to_owned(), password.to_owned());
    reading.put(first, "store.sentinel.user", user);
    reading.put(first, "compat.store.sentinel_password", password);
}

fn read_tls(reading: &mut EnvReader<'_>, stores: &[&StoreVariables]) {
    let files = [
        ("REDIS_TLS_CLIENT_CERT", "store.tls.cert_file"),
        ("REDIS_TLS_CLIENT_KEY", "store.tls.key_file"),
        ("REDIS_TLS_CACERT", "store.tls.ca_file"),
    ];
    if overridden_stores(reading).next().is_none()
        && !stores.iter().any(|names| reading.flag(names.tls))
    {
        let why = "REDIS_TLS is not on, so Redis is spoken to in plain text";
        return reading.note_unused(&files.map(|(variable, _)| variable), why);
    }
    for (variable, setting) in files {
        reading.put_text(variable, setting);
    }
    reading.put_presence("REDIS_TLS_CACERT", "compat.store.system_cas");
    reading.put_flag("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "compat.store.any_server_name");
}
