//! The connection to one Redis process, which all callers share.
//!
//! Guarantees:
//! - While there is no connection, calls fail at once.
//! - A call is sent once. It is repeated only after a redirect, because the redirecting node did
//!   not run it.
//! - An invalid reply ends at most the connection that received it, never a later connection.
//! - [`Link::outage_cause`] reports a failed connection until a new connection has been stable for
//!   a while.
//! - [`Link::outage_cause`] reports refused writes until no write was refused for a while.
//! - An error that concerns the value of a single key is not a refused write.
//! - If Redis refused the connection, calls fail with the error that Redis returned.
//!
//! Not covered:
//! - Opening and watching the connection ([`super::keeper`]).
//! - Timeouts of single calls.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};

use arc_swap::ArcSwapOption;
use fred::bytes::Bytes;
use fred::error::{Error, ErrorKind};
use fred::interfaces::LuaInterface as _;
use fred::types::{ClusterHash, CustomCommand, InfoKind, Value};
use fred::{
    clients::{Client, Pipeline},
    interfaces::ClientLike as _,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::client::{ServerAddress, describe_error, without_arguments};
use super::cluster::{ClusterConnections, Redirect};
use super::open::{is_script_denied, is_unknown_command, verify_keyless_script, verify_scripts};
use super::script::LoadedScript;
use super::{StoreFailure, codec};
use crate::breaker::Breaker;

/// The client library's error for pending commands, sent or not, when its task is aborted before
/// the connection closes.
const CLIENT_STOPPED: &str = "channel closed";

/// The client library's error for a command after the connection closed. It is never sent.
const CONNECTION_CLOSED: &str = "Failed to send command to router.";

/// The most redirects of one call. A slot that moved needs one redirect, and it may move again.
pub(super) const MAX_REDIRECTS: usize = 5;

/// The current connection to one Redis process. The keeper task replaces it, and callers use it.
#[derive(Debug, Default)]
pub(super) struct Link {
    connection: ArcSwapOption<LiveConnection>,
    pub(super) breaker: Breaker,
    /// The cause for which Redis refused the last connection attempt. `None` if no process replied.
    connect_failure: Mutex<Option<StoreFailure>>,
    /// Why the previous connection failed, or why Redis refuses calls on this one. Cleared after a
    /// connection was stable for a while.
    recent_failure: Mutex<Option<StoreFailure>>,
    /// True if the last connection is to a proxy.
    is_proxied: AtomicBool,
}

/// A connection that can run the scripts.
#[derive(Debug)]
pub(super) struct LiveConnection {
    pub(super) client: Client,
    /// The SHA-1 of each script, in the order of [`LoadedScript`].
    digests: [String; LoadedScript::ALL.len()],
    /// The `run_id` from `INFO server`. Empty if Redis does not report it.
    run_id: String,
    /// The error of `INFO server`, if Redis refused it.
    info_refusal: Option<String>,
    at: ServerAddress,
    cluster: Option<Weak<ClusterConnections>>,
    /// The kind of proxy that routes each call by its first key to one of several servers.
    proxy: Option<&'static str>,
    /// Notified when a reply shows that the connection must be replaced.
    useless_notify: Notify,
    /// The store failure of the first reply for which the connection must be replaced.
    useless_cause: OnceLock<StoreFailure>,
    /// Notified when Redis refuses a call for a reason that a new connection would not change.
    refusal_notify: Notify,
    /// The last refusal that a new connection would not change, until the keeper task takes it.
    last_refusal: Mutex<Option<StoreRefusal>>,
    /// True if a call succeeded, and no call was refused since.
    has_served: AtomicBool,
    served_notify: Notify,
    /// Notified when a caller abandons a call.
    abandoned_notify: Notify,
    /// True while Redis refuses `EXPIRE`. Counters written meanwhile never expire.
    is_refusing_expiry: AtomicBool,
    expiry_notify: Notify,
}

/// A refused call. Every other connection to this Redis would get the same refusal.
#[derive(Debug)]
pub(super) struct StoreRefusal {
    pub(super) operation: RefusedOperation,
    pub(super) cause: StoreFailure,
    pub(super) message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefusedOperation {
    Count,
    /// Setting the expiry of a counter.
    Expiry,
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

impl Link {
    /// Returns the current connection.
    ///
    /// # Errors
    /// There is no connection, or the circuit breaker is open.
    pub(super) fn connection(&self) -> Result<Arc<LiveConnection>, StoreFailure> {
        let none = || self.connect_failure.lock().unwrap_or(StoreFailure::Unreachable);
        let live = self.connection.load_full().ok_or_else(none)?;
        if self.breaker.is_open() { Err(StoreFailure::BreakerOpen) } else { Ok(live) }
    }

    /// Returns why calls fail now, if known. An open connection does not prove that calls succeed:
    /// a read-only Redis accepts connections, too.
    pub(super) fn outage_cause(&self) -> Option<StoreFailure> {
        self.connection().err().or_else(|| *self.recent_failure.lock())
    }

    pub(super) fn set_connection(&self, live: Arc<LiveConnection>) {
        self.breaker.close();
        *self.connect_failure.lock() = None;
        self.is_proxied.store(live.proxy.is_some(), Relaxed);
        self.connection.store(Some(live));
    }

    /// Returns `true` if a proxy may route each key to another server.
    pub(super) fn is_proxied(&self) -> bool {
        self.is_proxied.load(Relaxed)
    }

    pub(super) fn clear_connection(&self) {
        let lost = self.connection.swap(None);
        if let Some(cause) = lost.and_then(|live| live.useless_cause.get().copied()) {
            self.set_recent_failure(cause);
        }
    }

    /// Stores why a connection attempt failed.
    pub(super) fn set_connect_failure(&self, error: &Error) {
        *self.connect_failure.lock() = connect_refusal(error);
    }

    /// Records that calls fail for `cause`, even if there is a connection.
    pub(super) fn set_recent_failure(&self, cause: StoreFailure) {
        *self.recent_failure.lock() = Some(cause);
    }

    /// Forgets the last failure, because the connection was stable for a while.
    pub(super) fn clear_recent_failure(&self) {
        *self.recent_failure.lock() = None;
    }

    /// Updates the circuit breaker with the result of a call.
    pub(super) fn record_result(&self, failed: Option<StoreFailure>) {
        match failed {
            Some(StoreFailure::TimedOut) => log_if_opened(self.breaker.record_late()),
            Some(StoreFailure::Unreachable | StoreFailure::ConnectionLost) => {}
            _ => self.breaker.record_timely(),
        }
    }
}

impl Link {
    /// Opens the circuit breaker after a series of late probes.
    pub(super) fn open_breaker(&self) {
        log_if_opened(self.breaker.open());
    }
}

fn log_if_opened(opened: bool) {
    if opened {
        tracing::warn!("redis timed out repeatedly, pausing calls until it responds in time");
    }
}

impl LiveConnection {
    /// Loads the scripts over the connection of `client`. A user who may not load them sends the
    /// text of a script with its first call.
    ///
    /// # Errors
    /// Redis does not know `SCRIPT`, or did not reply.
    pub(super) async fn load(
        client: Client,
        at: ServerAddress,
        cluster: Option<Weak<ClusterConnections>>,
    ) -> Result<Self, Error> {
        let (run_id, info_refusal) = query_run_id(&client).await?;
        for script in LoadedScript::ALL {
            match client.script_load::<String, _>(script.text()).await {
                Err(error) if is_script_denied(&error) => {
                    verify_scripts(&client).await?;
                    break;
                }
                loaded => drop(loaded?),
            }
        }
        verify_keyless_script(&client).await?;
        let mut live = Self::new(client, at);
        (live.run_id, live.info_refusal, live.cluster) = (run_id, info_refusal, cluster);
        Ok(live)
    }

    /// Uses the connection of `client` to a proxy of the given kind. Only `EVAL` and `EVALSHA` are
    /// used.
    ///
    /// # Errors
    /// The proxy does not forward `EVAL`.
    pub(super) async fn behind_proxy(
        client: Client,
        at: ServerAddress,
        (kind, key_prefix): (&'static str, &str),
    ) -> Result<Self, Error> {
        let key = format!("{key_prefix}sg:probe");
        client.eval::<Value, _, _, _>("return 1", vec![key], Vec::<String>::new()).await?;
        Ok(Self { proxy: Some(kind), ..Self::new(client, at) })
    }

    fn new(client: Client, at: ServerAddress) -> Self {
        Self {
            client,
            digests: LoadedScript::ALL.map(LoadedScript::digest),
            run_id: String::new(),
            info_refusal: None,
            at,
            cluster: None,
            proxy: None,
            useless_notify: Notify::new(),
            useless_cause: OnceLock::new(),
            refusal_notify: Notify::new(),
            last_refusal: Mutex::default(),
            has_served: AtomicBool::new(false),
            served_notify: Notify::new(),
            abandoned_notify: Notify::new(),
            is_refusing_expiry: AtomicBool::new(false),
            expiry_notify: Notify::new(),
        }
    }

    /// Returns the kind of proxy, if there is one.
    pub(super) const fn proxy(&self) -> Option<&'static str> {
        self.proxy
    }

    /// Waits until a call succeeds. Returns at once if a call succeeded since the last wait and no
    /// call was refused after it.
    pub(super) async fn wait_served(&self) {
        loop {
            self.served_notify.notified().await;
            if self.has_served.load(Relaxed) {
                return;
            }
        }
    }

    /// Waits for a refused call that a new connection would not change, and returns the refusal.
    /// Returns at once if there was a refusal since the last wait.
    pub(super) async fn wait_refused(&self) -> StoreRefusal {
        loop {
            self.refusal_notify.notified().await;
            let refusing = self.last_refusal.lock().take();
            if let Some(refusing) = refusing {
                return refusing;
            }
        }
    }

    pub(super) fn record_abandoned(&self) {
        self.abandoned_notify.notify_one();
    }

    /// Waits until a caller abandons a call. Returns at once if a call was abandoned since the last
    /// wait.
    pub(super) async fn wait_abandoned(&self) {
        self.abandoned_notify.notified().await;
    }

    /// Waits for a reply that shows that the connection must be replaced.
    pub(super) async fn wait_useless(&self) {
        self.useless_notify.notified().await;
    }

    /// Records the result of a call. Several calls in flight may report the same failure, and it
    /// concerns only this connection, not a later one.
    pub(super) fn record_result(&self, failed: Option<StoreFailure>) {
        match failed {
            None => self.record_success(),
            Some(
                cause @ (StoreFailure::ReadOnly
                | StoreFailure::Loading
                | StoreFailure::NotPermitted),
            ) => {
                self.useless_cause.get_or_init(|| cause);
                self.useless_notify.notify_one();
            }
            Some(_) => {}
        }
    }

    /// Classifies and records the error of a call. If `is_no_keys` is true, an error of no known
    /// class concerns the store; else it concerns the value of a single key.
    pub(super) fn record_error(&self, error: &Error, is_no_keys: bool) -> StoreFailure {
        let cause = classify_error(error);
        if is_write_refusal(error) || (is_no_keys && cause == StoreFailure::Other) {
            self.record_refusal(StoreRefusal {
                operation: RefusedOperation::Count,
                cause,
                message: describe_error(error),
            });
        } else {
            self.record_result(Some(cause));
        }
        cause
    }

    /// Records that Redis refused `EXPIRE`, so that a counter never expires. The connection stays
    /// open, because another connection would get the same reply.
    pub(super) fn record_refused_expiry(&self, error: &Error) {
        let (what, cause) = (RefusedOperation::Expiry, classify_error(error));
        self.is_refusing_expiry.store(true, Relaxed);
        self.record_refusal(StoreRefusal {
            operation: what,
            cause,
            message: describe_error(error),
        });
    }

    /// Records that Redis accepted `EXPIRE`.
    pub(super) fn record_accepted_expiry(&self) {
        if self.is_refusing_expiry.load(Relaxed) && self.is_refusing_expiry.swap(false, Relaxed) {
            self.expiry_notify.notify_one();
        }
    }

    /// Waits until Redis accepts `EXPIRE` again.
    pub(super) async fn wait_expiry_accepted(&self) {
        self.expiry_notify.notified().await;
    }

    pub(super) fn is_refusing_expiry(&self) -> bool {
        self.is_refusing_expiry.load(Relaxed)
    }

    fn record_refusal(&self, refusing: StoreRefusal) {
        self.has_served.store(false, Relaxed);
        *self.last_refusal.lock() = Some(refusing);
        self.refusal_notify.notify_one();
    }

    fn record_success(&self) {
        // Load before the swap: if every call wrote, the cache line would move between cores each
        // time.
        if !self.has_served.load(Relaxed) && !self.has_served.swap(true, Relaxed) {
            self.served_notify.notify_one();
        }
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
        let answer = answer.inspect(|_| at.record_result(None));
        answer.map_err(|error| at.record_error(&error, script.accepts_any_value))
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

/// Returns the `run_id` of the Redis process, and the error if Redis refused `INFO`. The `run_id` is
/// empty if Redis does not report it, or if the ACL user may not run `INFO`. This replica then
/// detects no restart of Redis by itself, and relies on the `run_id` that other replicas send.
///
/// # Errors
/// Redis did not reply, so its `run_id` is unknown.
async fn query_run_id(client: &Client) -> Result<(String, Option<String>), Error> {
    let info: String = match client.info(Some(InfoKind::Server)).await {
        Err(error) if is_unknown_command(&error) => return Err(error),
        Err(error) if is_refused(&error) => {
            return Ok((String::new(), Some(describe_error(&error))));
        }
        reply => reply?,
    };
    let run_id = info.lines().find_map(|line| line.strip_prefix("run_id:"));
    Ok((run_id.unwrap_or_default().trim().to_owned(), None))
}

/// Returns `true` if the error is a reply in which Redis refuses the command.
pub(super) fn is_refused(error: &Error) -> bool {
    matches!(classify_error(error), StoreFailure::NotPermitted | StoreFailure::Other)
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
        let answer = answer.inspect(|_| at.record_result(None));
        answer.map_err(|error| {
            if is_write_refusal(&error) {
                at.record_error(&error, false)
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

/// Returns the cause if Redis replied and refused the connection; `None` if Redis did not reply.
pub(super) fn connect_refusal(error: &Error) -> Option<StoreFailure> {
    Some(classify_error(error)).filter(|said| {
        matches!(
            said,
            StoreFailure::NotPermitted | StoreFailure::Loading | StoreFailure::OutOfMemory
        )
    })
}

/// Returns `true` for an error that Redis returns to every write: it is out of memory, cannot
/// persist, or has too few Redis replicas.
fn is_write_refusal(error: &Error) -> bool {
    let details = without_arguments(error);
    ["OOM ", "MISCONF ", "NOREPLICAS "].iter().any(|word| details.contains(word))
}

pub(super) fn classify_error(error: &Error) -> StoreFailure {
    tracing::debug!(kind = ?error.kind(), error = %describe_error(error), "redis call failed");
    let contains = |word: &str| without_arguments(error).contains(word);
    match error.kind() {
        ErrorKind::IO => StoreFailure::ConnectionLost,
        ErrorKind::Unknown if error.details() == CLIENT_STOPPED => StoreFailure::ConnectionLost,
        ErrorKind::Unknown if error.details() == CONNECTION_CLOSED => StoreFailure::Unreachable,
        // The client library reports this for commands that it had not sent when the connection
        // closed.
        ErrorKind::Canceled | ErrorKind::Routing => StoreFailure::Unreachable,
        ErrorKind::Timeout => StoreFailure::TimedOut,
        ErrorKind::Backpressure => StoreFailure::Overloaded,
        ErrorKind::Parse | ErrorKind::Protocol | ErrorKind::NotFound => StoreFailure::InvalidReply,
        // The slot moves to a node to which this process is not connected yet.
        _ if contains("MOVED") || contains("ASK ") || contains("TRYAGAIN") => {
            StoreFailure::Unreachable
        }
        _ if contains("READONLY") => StoreFailure::ReadOnly,
        _ if contains("LOADING") || contains("MASTERDOWN") || contains("CLUSTERDOWN") => {
            StoreFailure::Loading
        }
        _ if contains("WRONGTYPE") => StoreFailure::WrongType,
        _ if contains("OOM ") => StoreFailure::OutOfMemory,
        _ if contains("NOAUTH") || contains("NOPERM") || contains("WRONGPASS") => {
            StoreFailure::NotPermitted
        }
        _ => StoreFailure::Other,
    }
}
