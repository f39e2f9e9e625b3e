//! Where the primary is, by those who watch it.
//!
//! Guarantees: all sentinels that are known are asked at once, and the one whose configuration is
//! the newest is believed, so that neither one that is dead nor one that is behind decides; answered
//! within twice [`PATIENCE`], once to connect and once to be told, or not at all. Known are those that
//! were named, and up to [`MOST_FOUND`] that these, or others found so, tell of.
//! Leaves out: whether it is a primary yet, which it says itself.

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

/// The longest pause between two looks while all is well: a primary that was replaced while it lives
/// takes charges that nobody will find again.
const LOOK: Duration = Duration::from_millis(500);

/// How long those who have not answered yet are waited for once one has.
const STRAGGLERS: Duration = Duration::from_millis(100);

/// Sentinels that were not named and are asked all the same: more than watch any primary.
const MOST_FOUND: usize = 16;

/// The sentinels, and connections to those that answer.
#[derive(Debug)]
pub(super) struct Watchers {
    options: Arc<Options>,
    sentinels: Arc<Sentinels>,
    known: parking_lot::Mutex<Vec<Arc<Watcher>>>,
}

/// One of them.
#[derive(Debug)]
struct Watcher {
    address: Address,
    /// Whether it was named; a stranger is forgotten once nobody who is believed tells of it.
    is_named: bool,
    opened: Mutex<Option<Opened>>,
}

/// What one sentinel says.
struct Said {
    teller: Address,
    epoch: u64,
    primary: Address,
    /// The others that watch it; none where it may not say.
    others: Option<Vec<Address>>,
}

impl Watchers {
    pub(super) fn new(options: Arc<Options>, sentinels: Sentinels) -> Self {
        let named = sentinels.addresses.iter().map(|address| Watcher::new(address, true));
        let known = parking_lot::Mutex::new(named.collect());
        Self { options, sentinels: Arc::new(sentinels), known }
    }

    /// Where the primary is.
    ///
    /// # Errors
    /// No sentinel answers, or none knows it.
    pub(super) async fn primary(&self) -> Result<Address, Error> {
        let mut asked = JoinSet::new();
        for watcher in self.known.lock().iter().map(Arc::clone) {
            let (options, sentinels) = (Arc::clone(&self.options), Arc::clone(&self.sentinels));
            asked.spawn(Box::pin(async move { ask(&watcher, &options, &sentinels).await }));
        }
        let mut newest: Option<Said> = None;
        let mut failed = Error::new(ErrorKind::Config, "no sentinels are named");
        loop {
            // Each of them gives up by then itself: it connects, and is asked.
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

    /// Knows those that were named and, of others, these, and who tells of them.
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

    /// Returns when the primary is not at `address` any more.
    pub(super) async fn leaves(&self, address: &Address, pauses: &mut Pauses) {
        loop {
            sleep(LOOK / 2 + pauses.up_to(LOOK / 2)).await;
            // Nobody who says otherwise: what is there is better than nothing.
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

/// What a sentinel says, over its connection or a new one.
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
    // Put back only now: a connection whose answers were not awaited would answer the next one.
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
    // One that may not tell its epoch is believed least, not refused.
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

/// A field of a list of names and values.
fn field(details: &Value, name: &str) -> Option<String> {
    let Value::Array(fields) = details else { return None };
    let at =
        fields.iter().step_by(2).position(|field| field.as_string().as_deref() == Some(name))?;
    fields.get(2 * at + 1)?.as_string()
}
