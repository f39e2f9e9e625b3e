//! Opens a connection that can run the scripts, also behind a proxy.
//!
//! Guarantees:
//! - A proxy that closes the connection after an unknown command is found in the second attempt.
//! - A server whose scripts cannot run gives no connection.
//!
//! Not covered:
//! - A proxy that forwards all commands, also scripts without keys: the settings must name it.

use std::time::Duration;

use fred::bytes::Bytes;
use fred::clients::Client;
use fred::error::{Error, ErrorKind};
use fred::interfaces::{ClientLike as _, LuaInterface as _};
use fred::types::{InfoKind, Value};
use tokio::time::{sleep, timeout};

use super::call_error::is_refused;
use super::client::{
    CONNECT_TIMEOUT, OpenedClient, ServerAddress, describe_error, run_command, without_arguments,
};
use super::connection::LiveConnection;
use super::options::{ProxyMode, RedisOptions};
use super::script::{LoadedScript, digest_of};
use super::server_location::ServerLocation;

/// A proxy such as twemproxy or Codis.
pub(super) const SCRIPT_PROXY: &str = "a proxy that does not forward SCRIPT";

/// A proxy such as Envoy, or one that the settings name.
pub(super) const KEY_PROXY: &str = "a proxy that routes each call by its first key";

/// The pause before the second direct connection to a server that closed the first one.
const PROXY_PAUSE: Duration = Duration::from_millis(50);

/// Parts of the errors of a connection that the server closed.
const CLOSED_TEXTS: [&str; 4] =
    ["reset by peer", "unexpected end of file", "broken pipe", "connection was closed"];

const CLOSED_WHILE_LOADING: &str = "the connection was closed while loading the scripts";

/// Opens a connection to the server at `location`.
///
/// # Errors
/// The server is unreachable, or cannot run the scripts.
pub(super) async fn open_connection(
    location: &ServerLocation,
    options: &RedisOptions,
) -> Result<(ServerAddress, OpenedClient, LiveConnection), Error> {
    let address = location.resolve().await?;
    let mode = match location {
        ServerLocation::Fixed(_) => options.proxy,
        // The nodes of a Cluster and the primary of sentinels are no proxies.
        ServerLocation::Node(..) | ServerLocation::Sentinel(_) => ProxyMode::Off,
    };
    if mode == ProxyMode::On {
        return open_behind_proxy(address, KEY_PROXY, options).await;
    }
    let opened = open_directly(&address, location, options).await;
    let opened = match opened {
        // A Redis that stops also closes the connection, but not twice in a row.
        Err(error) if mode == ProxyMode::Auto && is_closed(&error) => {
            sleep(PROXY_PAUSE).await;
            open_directly(&address, location, options).await
        }
        opened => opened,
    };
    match opened {
        Err(error) if mode == ProxyMode::Auto && is_proxy_error(&error) => {
            let kind = proxy_kind(&error);
            let opened = open_behind_proxy(address, kind, options).await;
            opened.map_err(|second| if second.details().starts_with(kind) { second } else { error })
        }
        opened => opened.map(|(opened, live)| (address, opened, live)),
    }
}

async fn open_directly(
    address: &ServerAddress,
    location: &ServerLocation,
    options: &RedisOptions,
) -> Result<(OpenedClient, LiveConnection), Error> {
    let mut opened = OpenedClient::new(address, options.login()).await?;
    if let ServerLocation::Sentinel(_) = location {
        check_primary(&opened).await?;
    }
    let live = load_scripts(&mut opened, address, location).await?;
    Ok((opened, live))
}

async fn load_scripts(
    opened: &mut OpenedClient,
    address: &ServerAddress,
    location: &ServerLocation,
) -> Result<LiveConnection, Error> {
    let client = opened.client().clone();
    let live = load_scripts_over(client, address.clone());
    let live = tokio::select! {
        biased;
        live = timeout(CONNECT_TIMEOUT, live) => live.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Timeout, "timed out: no reply while loading the scripts"))
        }),
        () = opened.wait_closed() => Err(Error::new(ErrorKind::IO, CLOSED_WHILE_LOADING)),
    };
    let mut live = live?;
    live.cluster = location.cluster();
    Ok(live)
}

/// Loads the scripts over the connection of `client`. A user who may not load them sends the
/// text of a script with its first call.
///
/// # Errors
/// Redis does not know `SCRIPT`, or did not reply.
async fn load_scripts_over(client: Client, at: ServerAddress) -> Result<LiveConnection, Error> {
    let (run_id, info_refusal) = query_run_id(&client).await?;
    for script in LoadedScript::ALL {
        match client.script_load::<String, _>(script.text()).await {
            Err(error) if is_script_denied(&error) => {
                verify_scripts(&client).await?;
                break;
            }
            loaded => drop(loaded?),
        }
    }
    verify_keyless_script(&client).await?;
    let mut live = LiveConnection::new(client, at);
    (live.run_id, live.info_refusal) = (run_id, info_refusal);
    Ok(live)
}

/// Returns the `run_id` of the Redis process, and the error if Redis refused `INFO`. The `run_id` is
/// empty if Redis does not report it, or if the ACL user may not run `INFO`. This replica then
/// detects no restart of Redis by itself, and relies on the `run_id` that other replicas send.
///
/// # Errors
/// Redis did not reply, so its `run_id` is unknown.
async fn query_run_id(client: &Client) -> Result<(String, Option<String>), Error> {
    let info: String = match client.info(Some(InfoKind::Server)).await {
        Err(error) if is_unknown_command(&error) => return Err(error),
        Err(error) if is_refused(&error) => {
            return Ok((String::new(), Some(describe_error(&error))));
        }
        reply => reply?,
    };
    let run_id = info.lines().find_map(|line| line.strip_prefix("run_id:"));
    Ok((run_id.unwrap_or_default().trim().to_owned(), None))
}

async fn open_behind_proxy(
    address: ServerAddress,
    kind: &'static str,
    options: &RedisOptions,
) -> Result<(ServerAddress, OpenedClient, LiveConnection), Error> {
    let mut opened = OpenedClient::behind_proxy(&address, options.login()).await?;
    let client = opened.client().clone();
    let reply = tokio::select! {
        biased;
        reply = timeout(CONNECT_TIMEOUT, verify_eval(&client, &options.key_prefix)) => {
            reply.unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Timeout, "timed out: no reply to EVAL"))
            })
        }
        () = opened.wait_closed() => Err(Error::new(ErrorKind::IO, "closed the connection")),
    };
    reply.map_err(|error| {
        let text = format!("{kind}, and not EVAL: {}", describe_error(&error));
        Error::new(error.kind().clone(), text)
    })?;
    let mut live = LiveConnection::new(client, address.clone());
    live.proxy = Some(kind);
    Ok((address, opened, live))
}

/// Verifies that a proxy forwards `EVAL`.
async fn verify_eval(client: &Client, key_prefix: &str) -> Result<(), Error> {
    let key = format!("{key_prefix}sg:probe");
    client.eval::<Value, _, _, _>("return 1", vec![key], Vec::<String>::new()).await.map(drop)
}

/// Returns the kind of proxy with this error, in words for logs and `doctor`.
pub(super) fn proxy_kind(error: &Error) -> &'static str {
    if is_routing_error(error) { KEY_PROXY } else { SCRIPT_PROXY }
}

/// Returns `true` if the server is a proxy, or closed the connection at this moment.
pub(super) fn is_proxy_error(error: &Error) -> bool {
    is_unknown_command(error) || is_routing_error(error) || is_closed(error)
}

/// Returns `true` if the server closed an open connection.
fn is_closed(error: &Error) -> bool {
    let text = describe_error(error).to_ascii_lowercase();
    let is_closed = |part: &&str| text.contains(*part);
    *error.kind() == ErrorKind::Canceled || CLOSED_TEXTS.iter().any(is_closed)
}

/// Returns an error if Redis is not a primary: sentinels name a new primary shortly before its
/// promotion, and the old primary for some time after its failure.
async fn check_primary(opened: &OpenedClient) -> Result<(), Error> {
    let Value::Array(role) = run_command(opened.client(), &["ROLE"]).await? else {
        return Err(Error::new(ErrorKind::Protocol, "invalid reply to ROLE"));
    };
    match role.first().and_then(Value::as_string) {
        Some(role) if role == "master" => Ok(()),
        _ => Err(Error::new(
            ErrorKind::Routing,
            "failover: the server that the sentinels name is not a primary yet",
        )),
    }
}

/// Verifies that a user who may not load scripts may run them.
pub(super) async fn verify_scripts(client: &Client) -> Result<(), Error> {
    let (keys, args) = (Vec::<Bytes>::new(), Vec::<Bytes>::new());
    match client.evalsha::<Value, _, _, _>(digest_of(""), keys.clone(), args.clone()).await {
        Err(error) if error.details().starts_with("NOSCRIPT") => {}
        reply => drop(reply?),
    }
    client.eval::<Value, _, _, _>("return 1", keys, args).await.map(drop)
}

/// Verifies that a script without keys runs. A proxy cannot route it.
pub(super) async fn verify_keyless_script(client: &Client) -> Result<(), Error> {
    let (keys, args) = (Vec::<Bytes>::new(), Vec::<Bytes>::new());
    match client.eval::<Value, _, _, _>("return 1", keys, args).await {
        Err(error) if is_routing_error(&error) => Err(error),
        // A server without `EVAL`, or a user without the right to it, may still run loaded scripts.
        _ => Ok(()),
    }
}

/// Returns `true` for the error of a proxy such as Envoy to a script without keys.
pub(super) fn is_routing_error(error: &Error) -> bool {
    let text = without_arguments(error);
    ["wrong number of arguments", "not an integer"].iter().any(|part| text.contains(part))
}

/// Returns `true` if the ACL of Redis denies `SCRIPT`.
pub(super) fn is_script_denied(error: &Error) -> bool {
    without_arguments(error).starts_with("NOPERM") && error.details().contains("script")
}

/// Returns `true` if the server does not know a command: a proxy such as twemproxy, Codis or Envoy.
pub(super) fn is_unknown_command(error: &Error) -> bool {
    let text = without_arguments(error).to_ascii_lowercase();
    ["unknown command", "unsupported command", "not supported", "is not allowed", "invalid command"]
        .iter()
        .any(|part| text.contains(part))
}
