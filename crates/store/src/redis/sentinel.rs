//! Finds the primary through Redis Sentinel.
//!
//! Guarantees:
//! - All known sentinels are queried at once; the reply with the newest epoch is used.
//! - A sentinel that is dead or has an outdated configuration does not affect the result.
//! - A query takes at most twice [`CONNECT_TIMEOUT`]: once to connect, once to reply.
//! - Up to [`MAX_DISCOVERED`] sentinels that others list are queried, too.
//!
//! Not covered: the named process may not be a primary yet (see `keeper`).

use std::sync::Arc;
use std::time::Duration;

use fred::error::{Error, ErrorKind};
use fred::types::Value;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::client::{CONNECT_TIMEOUT, OpenedClient, ServerAddress, run_command, without_arguments};
use super::options::{Address, RedisOptions, SentinelOptions};
use crate::backoff::Backoff;

/// The longest interval between two queries while the primary replies; short, because a replaced
/// primary that still runs accepts charges that are lost later.
const QUERY_INTERVAL: Duration = Duration::from_millis(500);

/// The time to wait for further replies of sentinels after the first reply.
const STRAGGLER_WAIT: Duration = Duration::from_millis(100);

/// The most sentinels that are discovered from the replies of others. A primary usually has fewer.
const MAX_DISCOVERED: usize = 16;

/// The sentinels of a primary, with the connections to those that replied recently.
#[derive(Debug)]
pub(super) struct SentinelGroup {
    options: Arc<RedisOptions>,
    sentinels: Arc<SentinelOptions>,
    known: parking_lot::Mutex<Vec<Arc<SentinelClient>>>,
}

#[derive(Debug)]
struct SentinelClient {
    address: Address,
    /// True if the sentinel is in the settings. A discovered sentinel stays while it is listed.
    is_configured: bool,
    connection: Mutex<Option<OpenedClient>>,
}

struct SentinelReply {
    sentinel: Address,
    epoch: u64,
    primary: Address,
    /// The other sentinels of this primary; `None` if the ACL user may not list them.
    others: Option<Vec<Address>>,
}

impl SentinelGroup {
    pub(super) fn new(options: Arc<RedisOptions>, sentinels: SentinelOptions) -> Self {
        let configured =
            sentinels.addresses.iter().map(|address| SentinelClient::new(address, true));
        let known = parking_lot::Mutex::new(configured.collect());
        Self { options, sentinels: Arc::new(sentinels), known }
    }

    /// Returns the address of the primary. Fails if no sentinel replies, or none knows the primary.
    pub(super) async fn primary(&self) -> Result<Address, Error> {
        let mut queries = JoinSet::new();
        for sentinel in self.known.lock().iter().map(Arc::clone) {
            let (options, sentinels) = (Arc::clone(&self.options), Arc::clone(&self.sentinels));
            queries.spawn(Box::pin(async move {
                query_sentinel(&sentinel, &options, &sentinels).await
            }));
        }
        let mut newest: Option<SentinelReply> = None;
        let mut failure = Error::new(ErrorKind::Config, "no sentinels are configured");
        loop {
            // Each query may take one timeout to connect and one to reply.
            let wait = if newest.is_some() { STRAGGLER_WAIT } else { CONNECT_TIMEOUT * 2 };
            match timeout(wait, queries.join_next()).await {
                Ok(Some(Ok(Ok(reply)))) => {
                    if newest.as_ref().is_none_or(|newest| newest.epoch < reply.epoch) {
                        newest = Some(reply);
                    }
                }
                Ok(Some(Ok(Err(error)))) => failure = error,
                Ok(Some(Err(_))) => {}
                Ok(None) | Err(_) => break,
            }
        }
        let newest = newest.ok_or(failure)?;
        if let Some(others) = &newest.others {
            self.update_known(&newest.sentinel, others);
        }
        Ok(newest.primary)
    }

    /// Keeps the configured sentinels, the one that sent the newest reply, and the others that it
    /// listed.
    fn update_known(&self, replying_sentinel: &Address, others: &[Address]) {
        let mut known = self.known.lock();
        let is_listed =
            |address: &Address| address == replying_sentinel || others.contains(address);
        known.retain(|sentinel| sentinel.is_configured || is_listed(&sentinel.address));
        for address in others {
            let discovered = known.iter().filter(|sentinel| !sentinel.is_configured).count();
            let is_new = known.iter().all(|sentinel| sentinel.address != *address);
            if discovered < MAX_DISCOVERED && is_new {
                tracing::info!(sentinel = %address, "redis sentinel discovered");
                known.push(SentinelClient::new(address, false));
            }
        }
    }

    /// Waits until the sentinels name a primary other than `address`.
    pub(super) async fn wait_replaced(&self, address: &Address, pauses: &mut Backoff) {
        loop {
            sleep(QUERY_INTERVAL / 2 + pauses.random_below(QUERY_INTERVAL / 2)).await;
            // If no sentinel replies, the current primary stays in use.
            if self.primary().await.is_ok_and(|primary| primary != *address) {
                return;
            }
        }
    }
}

impl SentinelClient {
    fn new(address: &Address, is_configured: bool) -> Arc<Self> {
        let connection = Mutex::default();
        Arc::new(Self { address: address.clone(), is_configured, connection })
    }
}

/// Queries a sentinel over its connection, or over a new one.
async fn query_sentinel(
    sentinel: &SentinelClient,
    options: &RedisOptions,
    sentinels: &SentinelOptions,
) -> Result<SentinelReply, Error> {
    let address = &sentinel.address;
    let add_address = |error: Error| {
        let text = without_arguments(&error);
        Error::new(error.kind().clone(), format!("sentinel {address}: {text}"))
    };
    let mut opened = sentinel.connection.lock().await;
    let connection = if let Some(connection) = opened.take() {
        connection
    } else {
        let server = ServerAddress::Tcp(address.clone());
        let client = OpenedClient::new(&server, sentinels.login(options.tls.as_ref())).await;
        client.map_err(add_address)?
    };
    let reply = Box::pin(query_over(&connection, address, &sentinels.primary_name));
    let reply = reply.await.map_err(add_address)?;
    // Keep the connection only after all replies: the reply to an abandoned query would be taken
    // for the reply to the next query.
    *opened = Some(connection);
    Ok(reply)
}

async fn query_over(
    connection: &OpenedClient,
    sentinel: &Address,
    name: &str,
) -> Result<SentinelReply, Error> {
    let client = connection.client();
    let address = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name];
    let (details, others) = (["SENTINEL", "MASTER", name], ["SENTINEL", "SENTINELS", name]);
    let (address, details, others) = tokio::join!(
        run_command(client, &address),
        run_command(client, &details),
        run_command(client, &others)
    );
    let unknown = || {
        Error::new(
            ErrorKind::NotFound,
            format!("unknown primary `{name}`; check its name in store.url"),
        )
    };
    let Value::Array(parts) = address? else { return Err(unknown()) };
    let mut parts = parts.iter().filter_map(Value::as_string);
    let (host, port) = (parts.next().ok_or_else(unknown)?, parts.next().ok_or_else(unknown)?);
    let port = port.parse().map_err(|_| unknown())?;
    // Use epoch 0, the oldest, for a sentinel that does not report its configuration epoch.
    let epoch = details.ok().and_then(|details| parse_epoch(&details)).unwrap_or_default();
    let others = others.ok().and_then(|others| parse_addresses(&others));
    let primary = Address { host, port };
    Ok(SentinelReply { sentinel: sentinel.clone(), epoch, primary, others })
}

fn parse_addresses(others: &Value) -> Option<Vec<Address>> {
    let Value::Array(others) = others else { return None };
    let address = |details| {
        let port = field(details, "port")?.parse().ok().filter(|port| *port != 0)?;
        Some(Address { host: field(details, "ip")?, port })
    };
    Some(others.iter().filter_map(address).collect())
}

fn parse_epoch(details: &Value) -> Option<u64> {
    field(details, "config-epoch")?.parse().ok()
}

/// Returns the value of the field `name` from a flat list of names and values.
fn field(details: &Value, name: &str) -> Option<String> {
    let Value::Array(fields) = details else { return None };
    let position =
        fields.iter().step_by(2).position(|field| field.as_string().as_deref() == Some(name))?;
    fields.get(2 * position + 1)?.as_string()
}
