//! The connection to one Redis process, which all callers share.
//!
//! Guarantees:
//! - A call is sent once. It is repeated only after a redirect, because the redirecting node did
//!   not run it.
//! - An invalid reply ends at most the connection that received it, never a later connection.
//! - An error that concerns the value of a single key is not a refused write.
//!
//! Not covered:
//! - Opening the connection ([`super::open`]).
//! - Watching it ([`super::keeper`]), and replacing it ([`super::link`]).
//! - Timeouts of single calls.

use std::fmt::Debug;
use std::sync::{Arc, Weak};

use fred::bytes::Bytes;
use fred::error::Error;
use fred::interfaces::LuaInterface as _;
use fred::types::{ClusterHash, CustomCommand, Value};
use fred::{
    clients::{Client, Pipeline},
    interfaces::ClientLike as _,
};

use super::call_error::{classify_error, is_write_refusal};
use super::client::ServerAddress;
use super::connection_signals::ConnectionSignals;
use super::redirect::Redirect;
use super::script::LoadedScript;
use super::{StoreFailure, codec};

/// The most redirects of one call. A slot that moved needs one redirect, and it may move again.
pub(super) const MAX_REDIRECTS: usize = 5;

/// A connection that can run the scripts.
#[derive(Debug)]
pub(super) struct LiveConnection {
    pub(super) client: Client,
    /// The SHA-1 of each script, in the order of [`LoadedScript`].
    digests: [String; LoadedScript::ALL.len()],
    /// The `run_id` from `INFO server`. Empty if Redis does not report it.
    pub(super) run_id: String,
    /// The error of `INFO server`, if Redis refused it.
    pub(super) info_refusal: Option<String>,
    at: ServerAddress,
    pub(super) cluster: Option<Weak<dyn ClusterNodes>>,
    /// The kind of proxy that routes each call by its first key to one of several servers.
    pub(super) proxy: Option<&'static str>,
    pub(super) signals: ConnectionSignals,
}

/// The Cluster that a connection belongs to.
pub(super) trait ClusterNodes: Debug + Send + Sync {
    /// Returns the connection to the target of `redirect`; `None` if it is not connected yet.
    fn connection_to(&self, redirect: &Redirect) -> Option<Arc<LiveConnection>>;
    /// Requests a slot query, because another node may own the slots now.
    fn request_query(&self);
}

#[derive(Clone, Copy)]
pub(super) struct RedisScript<'s> {
    pub(super) text: &'s str,
    /// The SHA-1 of the script text, for `EVALSHA`. `None` sends the whole text with `EVAL`.
    pub(super) digest: Option<&'s str>,
    /// True if the script accepts any value under its keys. Its errors then concern the whole
    /// store, not a single key.
    pub(super) accepts_any_value: bool,
}

/// A script call. All redirects of the call share its bytes.
struct ScriptCall<'s> {
    script: RedisScript<'s>,
    keys: Vec<Bytes>,
    args: Vec<Bytes>,
}

/// The node to which a Cluster redirects a call.
pub(super) struct RedirectTarget {
    pub(super) live: Arc<LiveConnection>,
    /// True if each command must follow an `ASKING` command.
    pub(super) needs_asking: bool,
}

impl LiveConnection {
    /// Wraps the open connection of `client`. The caller has verified that scripts run on it.
    pub(super) fn new(client: Client, at: ServerAddress) -> Self {
        Self {
            client,
            digests: LoadedScript::ALL.map(LoadedScript::digest),
            run_id: String::new(),
            info_refusal: None,
            at,
            cluster: None,
            proxy: None,
            signals: ConnectionSignals::default(),
        }
    }

    /// Returns the kind of proxy, if there is one.
    pub(super) const fn proxy(&self) -> Option<&'static str> {
        self.proxy
    }

    /// Runs a loaded script once. A retry follows only `NOSCRIPT` or
    /// a Cluster redirect: in both cases the script has not run.
    pub(super) async fn run(
        &self,
        script: LoadedScript,
        keys: Vec<Vec<u8>>,
        args: Vec<Vec<u8>>,
    ) -> Result<Vec<i64>, StoreFailure> {
        let shared = |texts: Vec<Vec<u8>>| texts.into_iter().map(Bytes::from).collect();
        let loaded = RedisScript {
            text: script.text(),
            digest: Some(&self.digests[script as usize]),
            accepts_any_value: script == LoadedScript::Charge,
        };
        let reply = self.run_script(loaded, shared(keys), shared(args)).await?;
        if script.has_packed_reply() { decode_packed(&reply) } else { decode_list(reply) }
    }

    pub(super) fn info_refusal(&self) -> Option<&str> {
        self.info_refusal.as_deref()
    }

    pub(super) fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Runs any script once, like [`LiveConnection::run`], and returns its raw reply.
    pub(super) async fn run_script(
        &self,
        script: RedisScript<'_>,
        keys: Vec<Bytes>,
        args: Vec<Bytes>,
    ) -> Result<Value, StoreFailure> {
        let (answer, other) = self.run_with_redirects(&ScriptCall { script, keys, args }).await;
        let at = other.as_deref().unwrap_or(self);
        let answer = answer.inspect(|_| at.signals.record_result(None));
        answer.map_err(|error| at.signals.record_error(&error, script.accepts_any_value))
    }

    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    /// Runs the call at the node that owns the keys, and follows redirects. If that node is another
    /// one, also returns its connection.
    async fn run_with_redirects(
        &self,
        call: &ScriptCall<'_>,
    ) -> (Result<Value, Error>, Option<Arc<Self>>) {
        let (mut answer, mut other) = (self.run_once(call).await, None::<Arc<Self>>);
        for _ in 0..MAX_REDIRECTS {
            let Err(error) = &answer else { break };
            let at = other.as_deref().unwrap_or(self);
            let Some(RedirectTarget { live, needs_asking: asks }) = at.redirect_target(error)
            else {
                break;
            };
            answer = if asks { live.run_asking(call).await } else { live.run_once(call).await };
            other = Some(live);
        }
        (answer, other)
    }

    async fn run_once(&self, call: &ScriptCall<'_>) -> Result<Value, Error> {
        if let Some(digest) = call.script.digest {
            match self.client.evalsha(digest, call.keys.clone(), call.args.clone()).await {
                Err(error) if error.details().starts_with("NOSCRIPT") => {}
                answer => return answer,
            }
        }
        self.client.eval(call.script.text, call.keys.clone(), call.args.clone()).await
    }

    /// Like [`LiveConnection::run_once`], after an `ASK` redirect: sends `ASKING` first, because
    /// this node still imports the keys' slot.
    async fn run_asking(&self, call: &ScriptCall<'_>) -> Result<Value, Error> {
        let both = self.client.pipeline();
        queue_asking(&both).await?;
        let count = i64::try_from(call.keys.len()).unwrap_or(i64::MAX);
        let rest = call.keys.iter().chain(&call.args).cloned().map(Value::Bytes);
        let head = [Value::from(call.script.text), Value::from(count)];
        let parts = head.into_iter().chain(rest).collect();
        let () = both.custom::<(), Value>(command("EVAL"), parts).await?;
        both.last().await
    }

    /// Returns the node to which `error` redirects, if this process is connected to it. The error
    /// must come from this connection.
    pub(super) fn redirect_target(&self, error: &Error) -> Option<RedirectTarget> {
        let redirect = Redirect::parse(error, self.at.host())?;
        let cluster = self.cluster.as_ref().and_then(Weak::upgrade)?;
        Some(RedirectTarget {
            live: cluster.connection_to(&redirect)?,
            needs_asking: redirect.is_ask,
        })
    }
}

/// Queues `ASKING`, which allows the next command to use a slot that the node still imports.
pub(super) async fn queue_asking(pipeline: &Pipeline<Client>) -> Result<(), Error> {
    // A pipeline contains no commands of other callers, so `ASKING` applies to the next command of
    // this pipeline.
    pipeline.custom(command("ASKING"), Vec::<Value>::new()).await
}

fn command(name: &'static str) -> CustomCommand {
    CustomCommand::new_static(name, ClusterHash::FirstKey, false)
}

impl LiveConnection {
    /// Like [`LiveConnection::run`], for a rarely used script, whose text is sent with each
    /// call. Most failures are not recorded, because a user without the right to run this script
    /// may still charge counters. A refused write is recorded, because Redis then refuses charges,
    /// too.
    pub(super) async fn eval_rare_script<const N: usize>(
        &self,
        script: &str,
        key: String,
        args: [String; N],
    ) -> Result<Value, StoreFailure> {
        let script = RedisScript { text: script, digest: None, accepts_any_value: false };
        let (keys, args) = (vec![Bytes::from(key)], args.map(Bytes::from).into());
        let (answer, other) = self.run_with_redirects(&ScriptCall { script, keys, args }).await;
        let at = other.as_deref().unwrap_or(self);
        let answer = answer.inspect(|_| at.signals.record_result(None));
        answer.map_err(|error| {
            if is_write_refusal(&error) {
                at.signals.record_error(&error, false)
            } else {
                classify_error(&error)
            }
        })
    }
}

/// Decodes a reply of integers that are packed into one string as doubles.
fn decode_packed(reply: &Value) -> Result<Vec<i64>, StoreFailure> {
    reply.as_bytes().and_then(codec::decode_doubles).ok_or(StoreFailure::InvalidReply)
}

/// Decodes a reply that is a list of integers; rejects values of other types.
fn decode_list(reply: Value) -> Result<Vec<i64>, StoreFailure> {
    let Value::Array(values) = reply else { return Err(StoreFailure::InvalidReply) };
    let integer = |value| match value {
        Value::Integer(integer) => Ok(integer),
        _ => Err(StoreFailure::InvalidReply),
    };
    values.into_iter().map(integer).collect()
}
