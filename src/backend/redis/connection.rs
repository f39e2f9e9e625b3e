//! One connection to one Redis process, for those that charge over it.
//!
//! Guarantees: there is a connection that is ready, or calls fail at once; a call is sent once, and
//! sent on only where a node of a Cluster said that it did not run it.
//! Leaves out: making and watching it ([`super::keep`]); deadlines of single calls.

use std::sync::{Arc, Weak};

use arc_swap::ArcSwapOption;
use fred::bytes::Bytes;
use fred::error::{Error, ErrorKind};
use fred::interfaces::LuaInterface as _;
use fred::types::{ClusterHash, CustomCommand, Value};
use fred::{clients::Client, interfaces::ClientLike as _};
use tokio::sync::Notify;

use super::breaker::Breaker;
use super::cluster::{Cluster, Redirect};
use super::{BORROW, CHARGE, Cause};

/// How often one call is sent on: a slot that moves is at its second node then, and may move again.
const MOST_REDIRECTS: usize = 5;

/// What the task that keeps a connection and those who use it share.
#[derive(Debug, Default)]
pub(super) struct Link {
    live: ArcSwapOption<Live>,
    pub(super) breaker: Breaker,
    /// This connection answers what only another can mend.
    useless: Notify,
}

/// A connection that is ready: Redis knows the scripts.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) client: Client,
    charge: Script,
    borrow: Script,
    cluster: Option<Weak<Cluster>>,
}

/// A script that is run often.
#[derive(Debug)]
struct Script {
    text: &'static str,
    /// What Redis calls it.
    digest: String,
}

/// A call whose bytes are shared by all that it is sent to.
struct Shared<'s> {
    script: &'s Script,
    keys: Vec<Bytes>,
    args: Vec<Bytes>,
}

impl Link {
    /// The connection.
    ///
    /// # Errors
    /// Why there is nothing to wait for.
    pub(super) fn live(&self) -> Result<Arc<Live>, Cause> {
        let live = self.live.load_full().ok_or(Cause::Unreachable)?;
        if self.breaker.is_open() { Err(Cause::BreakerOpen) } else { Ok(live) }
    }

    /// There is a connection, or there is none any more.
    pub(super) fn set(&self, live: Option<Arc<Live>>) {
        if live.is_some() {
            self.breaker.close();
        }
        self.live.store(live);
    }

    /// Returns once an answer came that only another connection can mend.
    pub(super) async fn useless(&self) {
        self.useless.notified().await;
    }

    /// Learns from how a call ended.
    pub(super) fn saw(&self, failed: Option<Cause>) {
        match failed {
            Some(Cause::Late) => {
                if self.breaker.late() {
                    tracing::warn!("redis is too slow: not asked until it answers in time again");
                }
            }
            Some(Cause::ReadOnly | Cause::Loading | Cause::NotPermitted) => {
                self.useless.notify_one();
                self.breaker.in_time();
            }
            Some(Cause::Unreachable) => {}
            _ => self.breaker.in_time(),
        }
    }
}

impl Live {
    /// Over `client`, once Redis knows the scripts.
    ///
    /// # Errors
    /// It does not take one.
    pub(super) async fn new(client: Client, cluster: Option<Weak<Cluster>>) -> Result<Self, Error> {
        let charge = Script { text: CHARGE, digest: client.script_load(CHARGE).await? };
        let borrow = Script { text: BORROW, digest: client.script_load(BORROW).await? };
        Ok(Self { client, charge, borrow, cluster })
    }

    /// Runs [`CHARGE`].
    pub(super) async fn call(
        &self,
        keys: Vec<Vec<u8>>,
        args: Vec<Vec<u8>>,
    ) -> Result<Vec<i64>, Cause> {
        self.send(&self.charge, keys, args).await
    }

    /// Runs [`BORROW`].
    pub(super) async fn borrow(
        &self,
        keys: Vec<Vec<u8>>,
        args: Vec<Vec<u8>>,
    ) -> Result<Vec<i64>, Cause> {
        self.send(&self.borrow, keys, args).await
    }

    /// Runs a script, once: a Redis that does not know it, and a node of a Cluster that sends us on
    /// to another, have not run it.
    async fn send(
        &self,
        script: &Script,
        keys: Vec<Vec<u8>>,
        args: Vec<Vec<u8>>,
    ) -> Result<Vec<i64>, Cause> {
        let shared = |texts: Vec<Vec<u8>>| texts.into_iter().map(Bytes::from).collect();
        let call = Shared { script, keys: shared(keys), args: shared(args) };
        let answer = match self.run(&call).await {
            Err(error) => self.sent_on(&call, error).await,
            answer => answer,
        };
        integers(answer.map_err(|error| cause(&error))?)
    }

    async fn run(&self, call: &Shared<'_>) -> Result<Value, Error> {
        let (keys, args) = (call.keys.clone(), call.args.clone());
        match self.client.evalsha(call.script.digest.as_str(), keys, args).await {
            Err(error) if error.details().starts_with("NOSCRIPT") => {
                self.client.eval(call.script.text, call.keys.clone(), call.args.clone()).await
            }
            answer => answer,
        }
    }

    /// As [`Live::run`], at a node that takes over the keys' slot.
    async fn run_asking(&self, call: &Shared<'_>) -> Result<Value, Error> {
        // One after the other on one connection, with nobody's call between: it holds for one.
        let both = self.client.pipeline();
        let command = |name| CustomCommand::new_static(name, ClusterHash::FirstKey, false);
        let () = both.custom(command("ASKING"), Vec::<Value>::new()).await?;
        let count = i64::try_from(call.keys.len()).unwrap_or(i64::MAX);
        let rest = call.keys.iter().chain(&call.args).cloned().map(Value::Bytes);
        let parts =
            [Value::from(call.script.text), Value::from(count)].into_iter().chain(rest).collect();
        let () = both.custom::<(), Value>(command("EVAL"), parts).await?;
        both.last().await
    }

    /// What the node answers that `error` names, if it names one.
    async fn sent_on(&self, call: &Shared<'_>, mut error: Error) -> Result<Value, Error> {
        for _ in 0..MOST_REDIRECTS {
            let Some(redirect) = Redirect::of(&error) else { return Err(error) };
            let cluster = self.cluster.as_ref().and_then(Weak::upgrade);
            let Some(next) = cluster.and_then(|cluster| cluster.follow(&redirect)) else {
                return Err(error);
            };
            let answer =
                if redirect.asks { next.run_asking(call).await } else { next.run(call).await };
            match answer {
                Err(again) => error = again,
                answer => return answer,
            }
        }
        Err(error)
    }
}

impl Live {
    /// Runs a script that is seldom run, whole.
    pub(super) async fn eval<const N: usize>(
        &self,
        script: &str,
        key: String,
        args: [String; N],
    ) -> Result<Value, Cause> {
        let answer = self.client.eval(script, vec![key], args.to_vec()).await;
        answer.map_err(|error| cause(&error))
    }
}

/// A list of integers, and nothing that only looks like one.
fn integers(reply: Value) -> Result<Vec<i64>, Cause> {
    let Value::Array(values) = reply else { return Err(Cause::NotUnderstood) };
    let integer = |value| match value {
        Value::Integer(integer) => Ok(integer),
        _ => Err(Cause::NotUnderstood),
    };
    values.into_iter().map(integer).collect()
}

/// Why a call failed.
fn cause(error: &Error) -> Cause {
    tracing::debug!(%error, "a call to redis failed");
    let said = |word: &str| error.details().contains(word);
    match error.kind() {
        ErrorKind::IO | ErrorKind::Canceled | ErrorKind::Routing => Cause::Unreachable,
        ErrorKind::Timeout => Cause::Late,
        ErrorKind::Backpressure => Cause::Overloaded,
        ErrorKind::Parse | ErrorKind::Protocol | ErrorKind::NotFound => Cause::NotUnderstood,
        // Its slot is on its way to a node that we do not have yet.
        _ if said("MOVED") || said("ASK ") || said("TRYAGAIN") => Cause::Unreachable,
        _ if said("READONLY") => Cause::ReadOnly,
        _ if said("LOADING") || said("MASTERDOWN") || said("CLUSTERDOWN") => Cause::Loading,
        _ if said("WRONGTYPE") => Cause::WrongType,
        _ if said("OOM ") => Cause::OutOfMemory,
        _ if said("NOAUTH") || said("NOPERM") || said("WRONGPASS") => Cause::NotPermitted,
        _ => Cause::Failing,
    }
}
