//! Which node of a Cluster has which slots, and asking for it.
//!
//! Guarantees: several nodes are asked at once, and the one that knows the newest epoch is believed:
//! a node that was cut off tells what is long over. Where no node that we have answers, the ones that
//! the settings name are asked.
//! Leaves out: what is done with it ([`super::cluster`]); replicas.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fred::clients::Client;
use fred::error::{Error, ErrorKind};
use fred::types::Value;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::client::{At, Opened, PATIENCE, run};
use super::connection::{Live, refusal};
use super::options::{Address, Options};
use super::pauses::Pauses;

/// Slots of a Cluster.
const ALL: usize = 16_384;

/// Nodes that are asked at once: enough that one which is behind is outvoted by age.
const ASKED: usize = 5;

/// How long those who have not answered yet are waited for once one has.
const STRAGGLERS: Duration = Duration::from_millis(100);

/// Who has which slots.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// By the first slot: the last one and whose they are.
    ranges: BTreeMap<u16, (u16, Address)>,
}

impl Slots {
    /// Who has the slot.
    pub(super) fn owner(&self, slot: u16) -> Option<&Address> {
        let (_, (last, owner)) = self.ranges.range(..=slot).next_back()?;
        (slot <= *last).then_some(owner)
    }

    /// Who has any, once for each range.
    pub(super) fn owners(&self) -> impl Iterator<Item = &Address> {
        self.ranges.values().map(|(_, owner)| owner)
    }

    /// Whether every slot has an owner.
    pub(super) fn are_all(&self) -> bool {
        self.count() == ALL
    }

    /// How many slots have one.
    fn count(&self) -> usize {
        self.ranges.iter().map(|(first, (last, _))| usize::from(last - first) + 1).sum()
    }

    /// What `CLUSTER SLOTS` said; `host` said it, and may not know what it is called.
    fn read(said: &Value, host: &str) -> Option<Self> {
        let Value::Array(ranges) = said else { return None };
        let ranges: Option<_> = ranges.iter().map(|range| range_of(range, host)).collect();
        Some(Self { ranges: ranges? })
    }
}

fn range_of(said: &Value, host: &str) -> Option<(u16, (u16, Address))> {
    let Value::Array(parts) = said else { return None };
    let number = |value: &Value| u16::try_from(value.as_i64()?).ok();
    let [first, last, Value::Array(owner), ..] = &parts[..] else { return None };
    let (first, last) = (number(first)?, number(last)?);
    let [name, port, ..] = &owner[..] else { return None };
    let name = name.as_string().filter(|name| !name.is_empty() && name != "?");
    let owner = Address { host: name.unwrap_or_else(|| host.to_owned()), port: number(port)? };
    (first <= last && usize::from(last) < ALL).then_some((first, (last, owner)))
}

/// What one node says.
struct Said {
    epoch: u64,
    slots: Slots,
}

impl Said {
    /// What makes one newer than another. Giving a slot to nobody's heir raises no epoch.
    fn age(&self) -> (u64, usize) {
        (self.epoch, self.slots.count())
    }
}

/// Who has which slots, by nodes that answer or else by `seeds`.
///
/// # Errors
/// Why they do not tell: what one of them says, or why the last is not reached.
pub(super) async fn look(
    mut answering: Vec<(Address, Arc<Live>)>,
    seeds: &[Address],
    options: &Arc<Options>,
    pauses: &mut Pauses,
) -> Result<Slots, Error> {
    let mut asked = JoinSet::new();
    while ASKED < answering.len() {
        let number = usize::try_from(pauses.number()).unwrap_or_default() % answering.len();
        answering.swap_remove(number);
    }
    for (address, live) in answering {
        asked.spawn(async move { say(&live.client, &address.host).await });
    }
    if let Ok(slots) = newest(asked).await {
        return Ok(slots);
    }
    let mut asked = JoinSet::new();
    for seed in seeds.iter().cloned() {
        let options = Arc::clone(options);
        asked.spawn(async move {
            let opened = Opened::new(&At::Tcp(seed.clone()), options.login()).await?;
            say(opened.client(), &seed.host).await
        });
    }
    newest(asked).await
}

async fn newest(mut asked: JoinSet<Result<Said, Error>>) -> Result<Slots, Error> {
    let mut newest: Option<Said> = None;
    let mut failed = Error::new(ErrorKind::IO, "none is reachable");
    loop {
        let wait = if newest.is_some() { STRAGGLERS } else { PATIENCE * 2 };
        match timeout(wait, asked.join_next()).await {
            Ok(Some(Ok(Ok(said)))) => {
                if newest.as_ref().is_none_or(|newest| newest.age() < said.age()) {
                    newest = Some(said);
                }
            }
            // One that was reached and will not says more than one that is away.
            Ok(Some(Ok(Err(error)))) if refusal(&failed).is_none() => failed = error,
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => break,
        }
    }
    newest.map(|said| said.slots).ok_or(failed)
}

async fn say(client: &Client, host: &str) -> Result<Said, Error> {
    let (info, slots) = (["CLUSTER", "INFO"], ["CLUSTER", "SLOTS"]);
    let (info, slots) = tokio::join!(run(client, &info), run(client, &slots));
    let slots = Slots::read(&slots?, host);
    let slots = slots.filter(|slots| !slots.ranges.is_empty());
    let refused = || Error::new(ErrorKind::Protocol, "an answer to CLUSTER SLOTS without slots");
    let slots = slots.ok_or_else(refused)?;
    // One that may not tell its epoch is believed least, not refused.
    let info = info.ok().and_then(|info| info.as_string()).unwrap_or_default();
    let epoch = info.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:"));
    let epoch = epoch.and_then(|epoch| epoch.trim().parse().ok()).unwrap_or_default();
    Ok(Said { epoch, slots })
}
