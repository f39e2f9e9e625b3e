//! Starts a real Redis Cluster on free ports.

use sluicegate::store::redis::Address;

use super::process::Process;
use super::resp::Value;
use crate::support::waiting::until;

#[derive(Debug)]
pub struct Cluster {
    /// The three primaries. Each owns a third of the slots, in order.
    pub primaries: Vec<Process>,
    /// One Redis replica for each primary, or none.
    pub replicas: Vec<Process>,
}

/// `cluster-node-timeout` in ms for clusters that fail over, as short as a busy machine allows.
const FAILOVER_NODE_TIMEOUT: &str = "3000";

/// `cluster-node-timeout` in ms for clusters that cannot fail over. A node that a busy machine
/// pauses for this long is reported as failed.
const NODE_TIMEOUT: &str = "30000";

const SLOTS: usize = 16_384;

impl Cluster {
    pub fn start() -> Self {
        Self::of(&[], false)
    }

    pub fn with_replicas() -> Self {
        Self::of(&[], true)
    }

    pub fn of(flags: &[&str], replicas: bool) -> Self {
        let node_timeout = if replicas { FAILOVER_NODE_TIMEOUT } else { NODE_TIMEOUT };
        let node = || {
            let cluster = [
                "--cluster-enabled",
                "yes",
                "--cluster-node-timeout",
                node_timeout,
                "--cluster-require-full-coverage",
                "no",
                "--cluster-replica-validity-factor",
                "0",
                "--repl-diskless-sync-delay",
                "0",
            ];
            Process::redis(&[&cluster, flags].concat())
        };
        let three = || (0..3).map(|_| node()).collect::<Vec<_>>();
        let cluster =
            Self { primaries: three(), replicas: if replicas { three() } else { Vec::new() } };
        cluster.join();
        cluster
    }

    /// URL of the cluster for the flag `--store-url`.
    pub fn url(&self) -> String {
        let nodes: Vec<_> = self.nodes().map(Process::address).collect();
        format!("redis+cluster://{}", nodes.join(","))
    }

    pub fn addresses(&self) -> Vec<Address> {
        let of = |node: &Process| Address { host: "127.0.0.1".to_owned(), port: node.port };
        self.nodes().map(of).collect()
    }

    pub fn nodes(&self) -> impl Iterator<Item = &Process> {
        self.primaries.iter().chain(&self.replicas)
    }

    /// Index of the primary that initially owns this slot.
    pub fn owner_of_slot(&self, slot: u16) -> usize {
        (0..self.primaries.len()).find(|&number| usize::from(slot) <= range(number).1).unwrap()
    }

    /// Waits until every Redis replica has acknowledged the writes of its primary.
    pub fn wait_for_replicas(&self) {
        for primary in &self.primaries {
            assert_eq!(primary.call(&["WAIT", "1", "120000"]).int(), 1);
        }
    }

    /// Moves a slot and its keys to another primary, as `redis-cli` does.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.wait_for_epochs();
        let slot = slot.to_string();
        let id = |number: usize| self.primaries[number].call(&["CLUSTER", "MYID"]).text();
        let (from, to, ids) = (&self.primaries[from], &self.primaries[to], [id(from), id(to)]);
        to.call_ok(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[0]]);
        from.call_ok(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[1]]);
        let port = to.port.to_string();
        loop {
            let Value::Array(keys) = from.call(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]) else {
                panic!("no list of keys")
            };
            let Some(Value::Text(key)) = keys.first() else { break };
            let parts = ["MIGRATE", "127.0.0.1", &port, "", "0", "120000"];
            let mut parts = parts.map(str::as_bytes);
            // The key is passed as bytes, because a counter key is binary.
            parts[3] = key;
            from.call_ok(&parts);
        }
        for node in [to, from] {
            node.call_ok(&["CLUSTER", "SETSLOT", &slot, "NODE", &ids[1]]);
        }
    }

    /// Waits until every primary knows the newest configuration epoch. Otherwise the next owner of a
    /// slot may take an epoch that is in use, and lose the slot when the collision is resolved.
    fn wait_for_epochs(&self) {
        let epoch_of = |node: &Process, name: &str| -> u64 {
            let info = node.call(&["CLUSTER", "INFO"]).text();
            info.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse().unwrap()
        };
        let agree = || {
            let own = self.primaries.iter().map(|node| epoch_of(node, "cluster_my_epoch:"));
            let newest = own.max().unwrap();
            let known = self.primaries.iter().map(|node| epoch_of(node, "cluster_current_epoch:"));
            let known: Vec<_> = known.collect();
            if known.iter().all(|&epoch| epoch == newest) {
                Ok(())
            } else {
                Err(format!("{known:?}"))
            }
        };
        until("the nodes know the newest epoch", agree).unwrap();
    }

    /// Starts the migration of a slot but moves no key. Redis redirects commands on missing keys to
    /// `to`.
    pub fn begin_to_move(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        let id = |number: usize| self.primaries[number].call(&["CLUSTER", "MYID"]).text();
        let (from, to, ids) = (&self.primaries[from], &self.primaries[to], [id(from), id(to)]);
        to.call_ok(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[0]]);
        from.call_ok(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[1]]);
    }

    fn join(&self) {
        for (number, primary) in self.primaries.iter().enumerate() {
            let (first, last) = range(number);
            let epoch = (number + 1).to_string();
            primary.call_ok(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch]);
            primary.call_ok(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
        }
        let first = &self.primaries[0];
        for other in self.nodes().skip(1) {
            let port = other.port.to_string();
            first.call_ok(&["CLUSTER", "MEET", "127.0.0.1", &port, other.bus()]);
        }
        self.wait_until_whole();
        for (primary, replica) in self.primaries.iter().zip(&self.replicas) {
            let id = primary.call(&["CLUSTER", "MYID"]).text();
            replica.call_ok(&["CLUSTER", "REPLICATE", &id]);
        }
        for replica in &self.replicas {
            let follows = || match replica.call(&["INFO", "replication"]).text() {
                text if text.contains("master_link_status:up") => Ok(()),
                text => Err(text),
            };
            until("the replica follows its primary", follows).unwrap();
        }
        self.wait_until_whole();
    }

    /// Waits until every node of the cluster knows all nodes and all slot owners.
    pub fn wait_until_whole(&self) {
        let count = self.nodes().count();
        for node in self.nodes() {
            let knows = || {
                let info = node.call(&["CLUSTER", "INFO"]).text();
                let known = info.contains(&format!("cluster_known_nodes:{count}\r"));
                let whole = info.contains("cluster_state:ok") && info.contains("_assigned:16384");
                let Value::Array(slots) = node.call(&["CLUSTER", "SLOTS"]) else { panic!() };
                if known && whole && slots.len() == 3 { Ok(()) } else { Err(info) }
            };
            until("the cluster is whole", knows).unwrap();
        }
    }
}

/// First and last slot of the primary with this index.
const fn range(number: usize) -> (usize, usize) {
    (SLOTS * number / 3, SLOTS * (number + 1) / 3 - 1)
}
