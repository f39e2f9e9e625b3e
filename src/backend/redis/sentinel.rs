//! Finds the primary through its sentinels.
//!
//! Guarantees:
//! - All known sentinels are queried at once; the newest configuration epoch wins.
//! - A dead or outdated sentinel does not affect the result.
//! - A query takes at most twice [`PATIENCE`]: once to connect, once to reply.
//! - Besides the configured sentinels, up to [`MOST_FOUND`] discovered ones are known.
//!
//! Not covered:
//! - Checking that the named process is a primary already, which `keep` does.

use std::sync::Arc;
use std::time::Duration;

use fred::error::{Error, ErrorKind};
use fred::types::Value;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::client::{At, Opened, PATIENCE, run, without_arguments};
use super::options::{Address, Options, Sentinels};
use super::pauses::Pauses;

/// The longest interval between two queries while all is well. A
/// replaced primary that still runs accepts charges that are lost later.
const LOOK: Duration = Duration::from_millis(500);

/// The time to wait for other replies after the first one.
const STRAGGLERS: Duration = Duration::from_millis(100);

/// The most sentinels that are discovered: more than watch any primary.
const MOST_FOUND: usize = 16;

/// The sentinels, and the connections to those with a recent reply.
#[derive(Debug)]
pub(super) struct Watchers {
    options: Arc<Options>,
    sentinels: Arc<Sentinels>,
    known: parking_lot::Mutex<Vec<Arc<Watcher>>>,
}

#[derive(Debug)]
struct Watcher {
    address: Address,
    /// The sentinel is in the settings. A discovered one
    /// is removed when the newest reply does not list it.
    is_named: bool,
    opened: Mutex<Option<Opened>>,
}

struct Said {
    teller: Address,
    epoch: u64,
    primary: Address,
    /// The other sentinels of this primary. `None` if our user may not list them.
    others: Option<Vec<Address>>,
}

impl Watchers {
    pub(super) fn new(options: Arc<Options>, sentinels: Sentinels) -> Self {
        let named = sentinels.addresses.iter().map(|address| Watcher::new(address, true));
        let known = parking_lot::Mutex::new(named.collect());
        Self { options, sentinels: Arc::new(sentinels), known }
    }

    /// Returns the address of the primary.
    ///
    /// # Errors
    /// No sentinel replied, or none knows the primary.
    pub(super) async fn primary(&self) -> Result<Address, Error> {
        let mut asked = JoinSet::new();
        for watcher in self.known.lock().iter().map(Arc::clone) {
            let (options, sentinels) = (Arc::clone(&self.options), Arc::clone(&self.sentinels));
            asked.spawn(Box::pin(async move { ask(&watcher, &options, &sentinels).await }));
        }
        let mut newest: Option<Said> = None;
        let mut failed = Error::new(ErrorKind::Config, "no sentinels are named");
        loop {
            // Each query ends by then: it has one timeout to connect and one to reply.
            let wait = if newest.is_some() { STRAGGLERS } else { PATIENCE * 2 };
            match timeout(wait, asked.join_next()).await {
                Ok(Some(Ok(Ok(said)))) => {
                    if newest.as_ref().is_none_or(|newest| newest.epoch < said.epoch) {
                        newest = Some(said);
                    }
                }
                Ok(Some(Ok(Err(error)))) => failed = error,
                Ok(Some(Err(_))) => {}
                Ok(None) | Err(_) => break,
            }
        }
        let newest = newest.ok_or(failed)?;
        if let Some(others) = &newest.others {
            self.learn(&newest.teller, others);
        }
        Ok(newest.primary)
    }

    /// Keeps the configured sentinels, `teller`, and `others`.
    fn learn(&self, teller: &Address, others: &[Address]) {
        let mut known = self.known.lock();
        let stays = |its: &Address| its == teller || others.contains(its);
        known.retain(|watcher| watcher.is_named || stays(&watcher.address));
        for address in others {
            let found = known.iter().filter(|watcher| !watcher.is_named).count();
            if found < MOST_FOUND && known.iter().all(|watcher| watcher.address != *address) {
                tracing::info!(sentinel = %address, "another sentinel was found");
                known.push(Watcher::new(address, false));
            }
        }
    }

    /// Waits until the sentinels name a primary other than `address`.
    pub(super) async fn leaves(&self, address: &Address, pauses: &mut Pauses) {
        loop {
            sleep(LOOK / 2 + pauses.up_to(LOOK / 2)).await;
            // Without a reply the current primary stays in use.
            if self.primary().await.is_ok_and(|now| now != *address) {
                return;
            }
        }
    }
}

impl Watcher {
    fn new(address: &Address, is_named: bool) -> Arc<Self> {
        Arc::new(Self { address: address.clone(), is_named, opened: Mutex::default() })
    }
}

/// Queries a sentinel over its connection, or over a new one.
async fn ask(watcher: &Watcher, options: &Options, sentinels: &Sentinels) -> Result<Said, Error> {
    let address = &watcher.address;
    let of_it = |error: Error| {
        let said = without_arguments(&error);
        Error::new(error.kind().clone(), format!("sentinel {address}: {said}"))
    };
    let mut opened = watcher.opened.lock().await;
    let connection = if let Some(connection) = opened.take() {
        connection
    } else {
        let at = At::Tcp(address.clone());
        Opened::new(&at, sentinels.login(options.tls.as_ref())).await.map_err(of_it)?
    };
    let said = Box::pin(say(&connection, address, &sentinels.primary));
    let said = said.await.map_err(of_it)?;
    // Only now: an abandoned reply on this connection would be taken for the next one.
    *opened = Some(connection);
    Ok(said)
}

async fn say(connection: &Opened, teller: &Address, name: &str) -> Result<Said, Error> {
    let client = connection.client();
    let address = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name];
    let (details, others) = (["SENTINEL", "MASTER", name], ["SENTINEL", "SENTINELS", name]);
    let (address, details, others) =
        tokio::join!(run(client, &address), run(client, &details), run(client, &others));
    let unknown = || Error::new(ErrorKind::NotFound, format!("knows no primary called {name}"));
    let Value::Array(parts) = address? else { return Err(unknown()) };
    let mut parts = parts.iter().filter_map(Value::as_string);
    let (host, port) = (parts.next().ok_or_else(unknown)?, parts.next().ok_or_else(unknown)?);
    let port = port.parse().map_err(|_| unknown())?;
    // A sentinel that does not report its epoch has the lowest priority.
    let epoch = details.ok().and_then(|details| epoch(&details)).unwrap_or_default();
    let others = others.ok().and_then(|others| addresses(&others));
    Ok(Said { teller: teller.clone(), epoch, primary: Address { host, port }, others })
}

fn addresses(others: &Value) -> Option<Vec<Address>> {
    let Value::Array(others) = others else { return None };
    let address = |details| {
        let port = field(details, "port")?.parse().ok().filter(|port| *port != 0)?;
        Some(Address { host: field(details, "ip")?, port })
    };
    Some(others.iter().filter_map(address).collect())
}

fn epoch(details: &Value) -> Option<u64> {
    field(details, "config-epoch")?.parse().ok()
}

/// A field of a flat list of names and values.
fn field(details: &Value, name: &str) -> Option<String> {
    let Value::Array(fields) = details else { return None };
    let at =
        fields.iter().step_by(2).position(|field| field.as_string().as_deref() == Some(name))?;
    fields.get(2 * at + 1)?.as_string()
}
