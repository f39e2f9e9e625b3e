//! Starts a Redis primary with one Redis replica and three Redis Sentinels.

use std::fmt::Write as _;

use super::process::Process;
use super::resp::Value;
use crate::support::waiting::until;

/// Name of the primary in Redis Sentinel.
pub const NAME: &str = "shop";

/// `down-after-milliseconds` of the sentinels. A busy machine pauses no process for this long, so
/// the tests order each failover.
const DOWN_AFTER: u32 = 180_000;

/// `failover-timeout` of the sentinels: an ordered failover that takes longer is not repeated.
const FAILOVER_TIMEOUT: u32 = 180_000;

#[derive(Debug)]
pub struct Watched {
    pub primary: Process,
    pub replica: Process,
    pub sentinels: Vec<Process>,
}

impl Watched {
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// As [`Watched::start`], with additional flags for all processes.
    pub fn with(flags: &[&str]) -> Self {
        let at_once = ["--repl-diskless-sync-delay", "0"];
        let primary = Process::redis(&[&at_once, flags].concat());
        let port = primary.port.to_string();
        let follows = ["--replicaof", &format!("127.0.0.1 {port}")];
        let replica = Process::redis(&[&at_once, &follows[..], flags].concat());
        let configuration = configuration(&port);
        let sentinels = (0..3).map(|_| Process::sentinel(&configuration, flags)).collect();
        let watched = Self { primary, replica, sentinels };
        watched.wait_until_whole();
        watched
    }

    /// URL for `--store-url` after `scheme`, for example `redis+sentinel://user:password@`.
    pub fn url(&self, scheme: &str) -> String {
        let sentinels: Vec<_> = self.sentinels.iter().map(Process::address).collect();
        format!("{scheme}{}/{NAME}", sentinels.join(","))
    }

    /// Orders a failover to the Redis replica, from a sentinel that can reach it.
    pub fn fail_over(&self, sentinel: usize) {
        let starts = || match self.sentinels[sentinel].call(&["SENTINEL", "FAILOVER", NAME]) {
            Value::Text(text) if text == b"OK" => Ok(()),
            refused => Err(format!("{refused:?}")),
        };
        until("a failover starts", starts).unwrap();
    }

    /// Waits until every sentinel reports the former Redis replica as the primary. A sentinel that
    /// does not know it yet would demote it when the old primary returns.
    pub fn wait_until_named(&self) {
        let port = self.replica.port.to_string();
        for sentinel in &self.sentinels {
            let names = || match field(&sentinel.call(&["SENTINEL", "MASTER", NAME]), "port") {
                named if named == port => Ok(()),
                named => Err(named),
            };
            until("a sentinel names the new primary", names).unwrap();
        }
    }

    /// Waits until the former primary replicates from the new one.
    pub fn wait_until_swapped(&self) {
        let follows = || match self.replica.try_call(&["INFO", "replication"])?.text() {
            text if text.contains("role:master") && text.contains("state=online") => Ok(()),
            text => Err(text),
        };
        until("the old primary follows the new one", follows).unwrap();
    }

    /// Waits until replication works and each sentinel has discovered all other processes.
    pub fn wait_until_whole(&self) {
        let follows = || match self.replica.call(&["INFO", "replication"]).text() {
            text if text.contains("master_link_status:up") => Ok(()),
            text => Err(text),
        };
        until("the replica follows", follows).unwrap();
        for sentinel in &self.sentinels {
            let knows = || {
                let said = sentinel.call(&["SENTINEL", "MASTER", NAME]);
                let field = |name: &str| field(&said, name);
                let whole = field("num-other-sentinels") == "2" && field("num-slaves") == "1";
                if whole && field("flags") == "master" { Ok(()) } else { Err(format!("{said:?}")) }
            };
            until("the sentinels know each other", knows).unwrap();
        }
    }
}

/// Value of a field in Sentinel's reply, a flat list of names and values.
fn field(reply: &Value, name: &str) -> String {
    let texts: Vec<_> = reply.array().iter().map(Value::text).collect();
    texts.iter().position(|text| text == name).map_or_else(String::new, |at| texts[at + 1].clone())
}

fn configuration(port: &str) -> String {
    let mut text = format!("sentinel monitor {NAME} 127.0.0.1 {port} 2\n");
    let _ = writeln!(text, "sentinel down-after-milliseconds {NAME} {DOWN_AFTER}");
    let _ = writeln!(text, "sentinel failover-timeout {NAME} {FAILOVER_TIMEOUT}");
    text
}
