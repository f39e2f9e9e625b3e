//! Queries the nodes of a Cluster for its slot map.
//!
//! Guarantees:
//! - Several nodes are queried at once; the map with the newest configuration epoch is used.
//! - The outdated map of an isolated node is not used if another node replies.
//! - If no known node replies, the configured nodes are queried.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fred::clients::Client;
use fred::error::{Error, ErrorKind};
use fred::types::Value;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::call_error::connect_refusal;
use super::client::{CONNECT_TIMEOUT, OpenedClient, ServerAddress, run_command};
use super::connection::LiveConnection;
use super::options::{Address, RedisOptions};
use crate::backoff::Backoff;

const SLOT_COUNT: usize = 16_384;

/// The most nodes in one slot query; one of them probably has the newest configuration epoch.
const MAX_QUERIED: usize = 5;

/// The time to wait for further replies of nodes after the first reply.
const STRAGGLER_WAIT: Duration = Duration::from_millis(100);

/// The owner (primary) of each slot of a Cluster.
#[derive(Debug, Default)]
pub(super) struct SlotMap {
    /// Ranges of slots: from the first slot to the last slot and the owner.
    ranges: BTreeMap<u16, (u16, Address)>,
}

impl SlotMap {
    pub(super) fn owner(&self, slot: u16) -> Option<&Address> {
        let (_, (last, owner)) = self.ranges.range(..=slot).next_back()?;
        (slot <= *last).then_some(owner)
    }

    /// Returns the owner of each range of slots; an owner of several ranges is repeated.
    pub(super) fn owners(&self) -> impl Iterator<Item = &Address> {
        self.ranges.values().map(|(_, owner)| owner)
    }

    pub(super) fn is_complete(&self) -> bool {
        self.assigned_count() == SLOT_COUNT
    }

    fn assigned_count(&self) -> usize {
        self.ranges.iter().map(|(first, (last, _))| usize::from(last - first) + 1).sum()
    }

    /// Parses a reply to `CLUSTER SLOTS` from the node at `host`, which replaces a missing host
    /// name.
    fn parse(reply: &Value, host: &str) -> Option<Self> {
        let Value::Array(ranges) = reply else { return None };
        let ranges: Option<_> = ranges.iter().map(|range| parse_range(range, host)).collect();
        Some(Self { ranges: ranges? })
    }
}

fn parse_range(range: &Value, host: &str) -> Option<(u16, (u16, Address))> {
    let Value::Array(parts) = range else { return None };
    let number = |value: &Value| u16::try_from(value.as_i64()?).ok();
    let [first, last, Value::Array(owner), ..] = &parts[..] else { return None };
    let (first, last) = (number(first)?, number(last)?);
    let [name, port, ..] = &owner[..] else { return None };
    let name = name.as_string().filter(|name| !name.is_empty() && name != "?");
    let owner = Address { host: name.unwrap_or_else(|| host.to_owned()), port: number(port)? };
    (first <= last && usize::from(last) < SLOT_COUNT).then_some((first, (last, owner)))
}

struct SlotMapReply {
    epoch: u64,
    slots: SlotMap,
}

impl SlotMapReply {
    /// Returns the sort key of replies, the newest last. At equal epochs the map with more slots is
    /// newer, because assigning a free slot raises no epoch.
    fn freshness(&self) -> (u64, usize) {
        (self.epoch, self.slots.assigned_count())
    }
}

/// Returns the slot map from the connected nodes, or else from the configured nodes (`seeds`). If
/// no node returned a slot map, fails with the error of a node, or else the last connection error.
pub(super) async fn query_slot_map(
    mut connected_nodes: Vec<(Address, Arc<LiveConnection>)>,
    seeds: &[Address],
    options: &Arc<RedisOptions>,
    pauses: &mut Backoff,
) -> Result<SlotMap, Error> {
    let mut queries = JoinSet::new();
    while MAX_QUERIED < connected_nodes.len() {
        let index = usize::try_from(pauses.random()).unwrap_or_default() % connected_nodes.len();
        connected_nodes.swap_remove(index);
    }
    for (address, live) in connected_nodes {
        queries.spawn(async move { query_node(&live.client, &address.host).await });
    }
    if let Ok(slots) = newest_reply(queries).await {
        return Ok(slots);
    }
    let mut queries = JoinSet::new();
    for seed in seeds.iter().cloned() {
        let options = Arc::clone(options);
        queries.spawn(async move {
            let opened =
                OpenedClient::new(&ServerAddress::Tcp(seed.clone()), options.login()).await?;
            query_node(opened.client(), &seed.host).await
        });
    }
    newest_reply(queries).await
}

async fn newest_reply(mut queries: JoinSet<Result<SlotMapReply, Error>>) -> Result<SlotMap, Error> {
    let mut newest: Option<SlotMapReply> = None;
    let mut failure = Error::new(ErrorKind::IO, "no node of the cluster is reachable");
    loop {
        let wait = if newest.is_some() { STRAGGLER_WAIT } else { CONNECT_TIMEOUT * 2 };
        match timeout(wait, queries.join_next()).await {
            Ok(Some(Ok(Ok(reply)))) => {
                if newest.as_ref().is_none_or(|newest| newest.freshness() < reply.freshness()) {
                    newest = Some(reply);
                }
            }
            // An error that a node returned tells more than a connection error.
            Ok(Some(Ok(Err(error)))) if connect_refusal(&failure).is_none() => failure = error,
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => break,
        }
    }
    newest.map(|reply| reply.slots).ok_or(failure)
}

async fn query_node(client: &Client, host: &str) -> Result<SlotMapReply, Error> {
    let (info, slots) = (["CLUSTER", "INFO"], ["CLUSTER", "SLOTS"]);
    let (info, slots) = tokio::join!(run_command(client, &info), run_command(client, &slots));
    let slots = SlotMap::parse(&slots?, host);
    let slots = slots.filter(|slots| !slots.ranges.is_empty());
    let invalid = || Error::new(ErrorKind::Protocol, "the reply to CLUSTER SLOTS has no slots");
    let slots = slots.ok_or_else(invalid)?;
    // Use epoch 0, the oldest, for a node that does not report its configuration epoch.
    let info = info.ok().and_then(|info| info.as_string()).unwrap_or_default();
    let epoch = info.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:"));
    let epoch = epoch.and_then(|epoch| epoch.trim().parse().ok()).unwrap_or_default();
    Ok(SlotMapReply { epoch, slots })
}
