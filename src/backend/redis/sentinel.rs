//! Where the primary is, by those who watch it.
//!
//! Guarantees: all sentinels that were named are asked at once, and the one whose configuration is
//! the newest is believed, so that neither one that is dead nor one that is behind decides; answered
//! within [`PATIENCE`], or not at all.
//! Leaves out: whether it is a primary yet, which it says itself; sentinels that were not named.

use std::sync::Arc;
use std::time::Duration;

use fred::error::{Error, ErrorKind};
use fred::types::Value;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::client::{At, Opened, PATIENCE, run};
use super::options::{Address, Options, Sentinels};
use super::pauses::Pauses;

/// The longest pause between two looks while all is well: a primary that was replaced while it lives
/// takes charges that nobody will find again.
const LOOK: Duration = Duration::from_millis(500);

/// How long those who have not answered yet are waited for once one has.
const STRAGGLERS: Duration = Duration::from_millis(100);

/// The sentinels, and connections to those that answer.
#[derive(Debug)]
pub(super) struct Watchers {
    options: Arc<Options>,
    sentinels: Arc<Sentinels>,
    opened: Vec<Arc<Mutex<Option<Opened>>>>,
}

/// What one sentinel says.
struct Said {
    epoch: u64,
    primary: Address,
}

impl Watchers {
    pub(super) fn new(options: Arc<Options>, sentinels: Sentinels) -> Self {
        let opened = sentinels.addresses.iter().map(|_| Arc::default()).collect();
        Self { options, sentinels: Arc::new(sentinels), opened }
    }

    /// Where the primary is.
    ///
    /// # Errors
    /// No sentinel answers, or none knows it.
    pub(super) async fn primary(&self) -> Result<Address, Error> {
        let mut asked = JoinSet::new();
        for (number, opened) in self.opened.iter().enumerate() {
            let (options, sentinels) = (Arc::clone(&self.options), Arc::clone(&self.sentinels));
            let opened = Arc::clone(opened);
            asked.spawn(async move { ask(number, &opened, &options, &sentinels).await });
        }
        let mut newest: Option<Said> = None;
        let mut failed = Error::new(ErrorKind::Config, "no sentinels are named");
        loop {
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
        newest.map(|said| said.primary).ok_or(failed)
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

/// What the sentinel of this number says, over its connection or a new one.
async fn ask(
    number: usize,
    opened: &Mutex<Option<Opened>>,
    options: &Options,
    sentinels: &Sentinels,
) -> Result<Said, Error> {
    let missing = || Error::new(ErrorKind::Config, "no such sentinel");
    let address = sentinels.addresses.get(number).ok_or_else(missing)?;
    let of_it = |error: Error| {
        Error::new(error.kind().clone(), format!("sentinel {address}: {}", error.details()))
    };
    let mut opened = opened.lock().await;
    let connection = if let Some(connection) = opened.take() {
        connection
    } else {
        let at = At::Tcp(address.clone());
        Opened::new(&at, sentinels.login(options.tls.as_ref())).await.map_err(of_it)?
    };
    let said = say(&connection, &sentinels.primary).await.map_err(of_it)?;
    // Put back only now: a connection whose answers were not awaited would answer the next one.
    *opened = Some(connection);
    Ok(said)
}

async fn say(connection: &Opened, name: &str) -> Result<Said, Error> {
    let client = connection.client();
    let address = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", name];
    let details = ["SENTINEL", "MASTER", name];
    let (address, details) = tokio::join!(run(client, &address), run(client, &details));
    let unknown = || Error::new(ErrorKind::NotFound, format!("knows no primary called {name}"));
    let Value::Array(parts) = address? else { return Err(unknown()) };
    let mut parts = parts.iter().filter_map(Value::as_string);
    let (host, port) = (parts.next().ok_or_else(unknown)?, parts.next().ok_or_else(unknown)?);
    let port = port.parse().map_err(|_| unknown())?;
    // One that may not tell its epoch is believed least, not refused.
    let epoch = details.ok().and_then(|details| epoch(&details)).unwrap_or_default();
    Ok(Said { epoch, primary: Address { host, port } })
}

fn epoch(details: &Value) -> Option<u64> {
    let fields: Vec<_> = match details {
        Value::Array(fields) => fields.iter().map(Value::as_string).collect(),
        _ => return None,
    };
    let at = fields.iter().position(|field| field.as_deref() == Some("config-epoch"))?;
    fields.get(at + 1)?.as_deref()?.parse().ok()
}
