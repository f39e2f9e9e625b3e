//! One connection to one Redis process, shared by all callers.
//!
//! Guarantees:
//! - Calls fail at once while there is no connection.
//! - A call is sent once, and repeated only at a redirect: the first node ran nothing.
//! - A bad reply ends at most its own connection, never the next.
//! - [`Link::trouble`] reports a failed connection until the next one has lasted.
//! - [`Link::trouble`] reports refused writes until none was refused for a while.
//! - An error about one key's value is not a refused write.
//! - Without a connection, the error that Redis returned is the cause.
//!
//! Not covered:
//! - Opening and watching the connection ([`super::keep`]).
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

use super::breaker::Breaker;
use super::client::{At, in_words, without_arguments};
use super::cluster::{Cluster, Redirect};
use super::{ACQUIRE, BORROW, CHARGE, Cause, HEARTBEAT, HOLD, TELL, codec};

/// The client's error for every pending command, sent or not,
/// when its task is aborted before the connection closes.
const GONE: &str = "channel closed";

/// The most redirects of one call. A moving slot needs one redirect, and may move again.
pub(super) const MOST_REDIRECTS: usize = 5;

/// The state that the keeper task shares with callers.
#[derive(Debug, Default)]
pub(super) struct Link {
    live: ArcSwapOption<Live>,
    pub(super) breaker: Breaker,
    /// The error that Redis returned to the last connection attempt. `None` if no process replied.
    refused: Mutex<Option<Cause>>,
    /// Why the previous connection failed, or why this one
    /// refuses calls. Cleared after a connection has lasted.
    doubt: Mutex<Option<Cause>>,
}

/// A connection over which Redis has loaded the scripts.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) client: Client,
    digest: String,
    borrow_digest: String,
    heartbeat_digest: String,
    hold_digest: String,
    acquire_digest: String,
    tell_digest: String,
    /// The `run_id` from `INFO server`. Empty if Redis does not report it.
    run_id: String,
    at: At,
    cluster: Option<Weak<Cluster>>,
    /// Notified when a reply requires a new connection.
    useless: Notify,
    /// The first cause of such a reply.
    spoiled: OnceLock<Cause>,
    /// Notified when Redis refuses a call that it would refuse on any connection.
    refused: Notify,
    /// The last such refusal, until the keeper task takes it.
    refusing: Mutex<Option<Refusing>>,
    /// A call succeeded, and none was refused since.
    has_served: AtomicBool,
    served: Notify,
    /// Notified when a caller abandons a call.
    doubted: Notify,
    /// Redis refuses to set expiries, so counters stay forever.
    keeps_all: AtomicBool,
    lets_go: Notify,
}

/// A refusal that every connection to this Redis would get.
#[derive(Debug)]
pub(super) struct Refusing {
    pub(super) what: Refused,
    pub(super) cause: Cause,
    pub(super) why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    Count,
    /// Setting the expiry of a counter.
    Expiry,
}

#[derive(Clone, Copy)]
pub(super) struct Script<'s> {
    pub(super) text: &'s str,
    /// The SHA-1 of the text. `None` sends the whole text.
    pub(super) digest: Option<&'s str>,
    /// The script accepts any value under its keys. Its errors
    /// therefore come from the store, not from one key.
    pub(super) takes_any: bool,
}

/// A script call whose bytes are shared by all its redirects.
struct Shared<'s> {
    script: Script<'s>,
    keys: Vec<Bytes>,
    args: Vec<Bytes>,
}

/// The node that a call is redirected to.
pub(super) struct Next {
    pub(super) live: Arc<Live>,
    /// Each command needs an `ASKING` before it.
    pub(super) asks: bool,
}

impl<'s> Script<'s> {
    /// A script that fails on values that it did not write itself.
    const fn new(text: &'s str, digest: &'s str) -> Self {
        Self { text, digest: Some(digest), takes_any: false }
    }
}

impl Link {
    /// Returns the connection.
    ///
    /// # Errors
    /// There is no connection, or the breaker is open.
    pub(super) fn live(&self) -> Result<Arc<Live>, Cause> {
        let none = || self.refused.lock().unwrap_or(Cause::Unreachable);
        let live = self.live.load_full().ok_or_else(none)?;
        if self.breaker.is_open() { Err(Cause::BreakerOpen) } else { Ok(live) }
    }

    /// Returns why calls fail now, as far as known. A connection
    /// proves little: a read-only Redis accepts connections too.
    pub(super) fn trouble(&self) -> Option<Cause> {
        self.live().err().or_else(|| *self.doubt.lock())
    }

    pub(super) fn set(&self, live: Arc<Live>) {
        self.breaker.close();
        *self.refused.lock() = None;
        self.live.store(Some(live));
    }

    pub(super) fn lose(&self) {
        let lost = self.live.swap(None);
        if let Some(cause) = lost.and_then(|live| live.spoiled.get().copied()) {
            self.mistrust(cause);
        }
    }

    /// Stores why a connection attempt failed.
    pub(super) fn cannot_be_had(&self, error: &Error) {
        *self.refused.lock() = refusal(error);
    }

    /// Records that calls fail for `cause`, even if there is a connection.
    pub(super) fn mistrust(&self, cause: Cause) {
        *self.doubt.lock() = Some(cause);
    }

    /// Clears the doubt: the connection has lasted.
    pub(super) fn believe(&self) {
        *self.doubt.lock() = None;
    }

    /// Updates the breaker with the result of a call.
    pub(super) fn saw(&self, failed: Option<Cause>) {
        match failed {
            Some(Cause::Late) => slow(self.breaker.late()),
            Some(Cause::Unreachable | Cause::Cut) => {}
            _ => self.breaker.in_time(),
        }
    }
}

impl Link {
    /// Opens the breaker after a series of late probes.
    pub(super) fn is_silent(&self) {
        slow(self.breaker.open());
    }
}

fn slow(opened: bool) {
    if opened {
        tracing::warn!("redis is too slow: not asked until it answers in time again");
    }
}

impl Live {
    /// Loads the scripts over `client`.
    ///
    /// # Errors
    /// Redis rejected a script or did not reply.
    pub(super) async fn new(
        client: Client,
        at: At,
        cluster: Option<Weak<Cluster>>,
    ) -> Result<Self, Error> {
        let digest = client.script_load(CHARGE).await?;
        let borrow_digest = client.script_load(BORROW).await?;
        let heartbeat_digest = client.script_load(HEARTBEAT).await?;
        let run_id = run_id(&client).await?;
        let hold_digest = client.script_load(HOLD).await?;
        let acquire_digest = client.script_load(ACQUIRE).await?;
        let tell_digest = client.script_load(TELL).await?;
        Ok(Self {
            client,
            digest,
            borrow_digest,
            heartbeat_digest,
            hold_digest,
            acquire_digest,
            tell_digest,
            run_id,
            at,
            cluster,
            useless: Notify::new(),
            spoiled: OnceLock::new(),
            refused: Notify::new(),
            refusing: Mutex::default(),
            has_served: AtomicBool::new(false),
            served: Notify::new(),
            doubted: Notify::new(),
            keeps_all: AtomicBool::new(false),
            lets_go: Notify::new(),
        })
    }

    /// Waits until a call succeeds. Returns at once for a success
    /// that was not reported yet, unless a refusal followed it.
    pub(super) async fn served(&self) {
        loop {
            self.served.notified().await;
            if self.has_served.load(Relaxed) {
                return;
            }
        }
    }

    /// Waits until Redis refuses a call that it would refuse on any
    /// connection. Returns at once for a refusal that was not reported yet.
    pub(super) async fn refused(&self) -> Refusing {
        loop {
            self.refused.notified().await;
            let refusing = self.refusing.lock().take();
            if let Some(refusing) = refusing {
                return refusing;
            }
        }
    }

    pub(super) fn doubt(&self) {
        self.doubted.notify_one();
    }

    /// Waits until a caller abandons a call. Returns at once
    /// for an abandoned call that was not reported yet.
    pub(super) async fn doubted(&self) {
        self.doubted.notified().await;
    }

    /// Waits for a reply that requires a new connection.
    pub(super) async fn useless(&self) {
        self.useless.notified().await;
    }

    /// Records the result of a call. Several calls in flight may report the
    /// same failure. It concerns this connection only, not the next one.
    pub(super) fn saw(&self, failed: Option<Cause>) {
        match failed {
            None => self.serves(),
            Some(cause @ (Cause::ReadOnly | Cause::Loading | Cause::NotPermitted)) => {
                self.spoiled.get_or_init(|| cause);
                self.useless.notify_one();
            }
            Some(_) => {}
        }
    }

    /// Classifies and records the error of a call. `is_no_keys` states that an
    /// unclassified error comes from the store and not from one key's value.
    pub(super) fn failed(&self, error: &Error, is_no_keys: bool) -> Cause {
        let cause = cause(error);
        if refuses_writes(error) || (is_no_keys && cause == Cause::Failing) {
            self.refuses(Refusing { what: Refused::Count, cause, why: in_words(error) });
        } else {
            self.saw(Some(cause));
        }
        cause
    }

    /// Records that Redis refuses to set expiries, so counters stay forever. The
    /// connection stays open, because every other connection would get the same reply.
    pub(super) fn keeps_all(&self, error: &Error) {
        let (what, cause) = (Refused::Expiry, cause(error));
        self.keeps_all.store(true, Relaxed);
        self.refuses(Refusing { what, cause, why: in_words(error) });
    }

    /// Records that Redis sets expiries again.
    pub(super) fn lets_go(&self) {
        if self.keeps_all.load(Relaxed) && self.keeps_all.swap(false, Relaxed) {
            self.lets_go.notify_one();
        }
    }

    /// Waits until Redis sets expiries again.
    pub(super) async fn let_go(&self) {
        self.lets_go.notified().await;
    }

    pub(super) fn is_keeping_all(&self) -> bool {
        self.keeps_all.load(Relaxed)
    }

    fn refuses(&self, refusing: Refusing) {
        self.has_served.store(false, Relaxed);
        *self.refusing.lock() = Some(refusing);
        self.refused.notify_one();
    }

    fn serves(&self) {
        // Load first: a write by every call would bounce the cache line between cores.
        if !self.has_served.load(Relaxed) && !self.has_served.swap(true, Relaxed) {
            self.served.notify_one();
        }
    }

    /// Runs [`CHARGE`] once. A retry follows only `NOSCRIPT` or
    /// a Cluster redirect: in both cases the script has not run.
    pub(super) async fn call(
        &self,
        keys: Vec<Vec<u8>>,
        args: Vec<Vec<u8>>,
    ) -> Result<Vec<i64>, Cause> {
        let shared = |texts: Vec<Vec<u8>>| texts.into_iter().map(Bytes::from).collect();
        let digest = Some(&*self.digest);
        let script = Script { text: CHARGE, digest, takes_any: true };
        packed(&self.script(script, shared(keys), shared(args)).await?)
    }

    pub(super) async fn borrow(
        &self,
        keys: Vec<Vec<u8>>,
        args: Vec<Vec<u8>>,
    ) -> Result<Vec<i64>, Cause> {
        let shared = |texts: Vec<Vec<u8>>| texts.into_iter().map(Bytes::from).collect();
        let script = Script::new(BORROW, &self.borrow_digest);
        packed(&self.script(script, shared(keys), shared(args)).await?)
    }

    pub(super) async fn heartbeat(
        &self,
        keys: Vec<Vec<u8>>,
        args: Vec<Vec<u8>>,
    ) -> Result<Vec<i64>, Cause> {
        let shared = |texts: Vec<Vec<u8>>| texts.into_iter().map(Bytes::from).collect();
        let script = Script::new(HEARTBEAT, &self.heartbeat_digest);
        packed(&self.script(script, shared(keys), shared(args)).await?)
    }

    pub(super) async fn acquire(
        &self,
        keys: Vec<Vec<u8>>,
        args: Vec<Vec<u8>>,
    ) -> Result<Vec<i64>, Cause> {
        let shared = |texts: Vec<Vec<u8>>| texts.into_iter().map(Bytes::from).collect();
        let script = Script::new(ACQUIRE, &self.acquire_digest);
        integers(self.script(script, shared(keys), shared(args)).await?)
    }

    pub(super) async fn tell(
        &self,
        keys: Vec<Vec<u8>>,
        args: Vec<Vec<u8>>,
    ) -> Result<Vec<i64>, Cause> {
        let shared = |texts: Vec<Vec<u8>>| texts.into_iter().map(Bytes::from).collect();
        let script = Script::new(TELL, &self.tell_digest);
        integers(self.script(script, shared(keys), shared(args)).await?)
    }

    pub(super) fn run_id(&self) -> &str {
        &self.run_id
    }

    pub(super) async fn hold(
        &self,
        (keys, args): (Vec<Vec<u8>>, Vec<Vec<u8>>),
    ) -> Result<Vec<i64>, Cause> {
        let script = Script::new(HOLD, &self.hold_digest);
        let bytes = |all: Vec<Vec<u8>>| all.into_iter().map(Bytes::from).collect();
        let (keys, args) = (bytes(keys), bytes(args));
        integers(self.script(script, keys, args).await?)
    }

    /// Runs any script like [`Live::call`], and returns its raw reply.
    pub(super) async fn script(
        &self,
        script: Script<'_>,
        keys: Vec<Bytes>,
        args: Vec<Bytes>,
    ) -> Result<Value, Cause> {
        let (answer, other) = self.answer(&Shared { script, keys, args }).await;
        let at = other.as_deref().unwrap_or(self);
        let answer = answer.inspect(|_| at.saw(None));
        answer.map_err(|error| at.failed(&error, script.takes_any))
    }

    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    /// Runs the call at the node that owns the keys. Also
    /// returns that node's connection if it is not this one.
    async fn answer(&self, call: &Shared<'_>) -> (Result<Value, Error>, Option<Arc<Self>>) {
        let (mut answer, mut other) = (self.run(call).await, None::<Arc<Self>>);
        for _ in 0..MOST_REDIRECTS {
            let Err(error) = &answer else { break };
            let at = other.as_deref().unwrap_or(self);
            let Some(Next { live, asks }) = at.next(error) else { break };
            answer = if asks { live.run_asking(call).await } else { live.run(call).await };
            other = Some(live);
        }
        (answer, other)
    }

    async fn run(&self, call: &Shared<'_>) -> Result<Value, Error> {
        if let Some(digest) = call.script.digest {
            match self.client.evalsha(digest, call.keys.clone(), call.args.clone()).await {
                Err(error) if error.details().starts_with("NOSCRIPT") => {}
                answer => return answer,
            }
        }
        self.client.eval(call.script.text, call.keys.clone(), call.args.clone()).await
    }

    /// Like [`Live::run`], at the node that imports the keys' slot.
    async fn run_asking(&self, call: &Shared<'_>) -> Result<Value, Error> {
        let both = self.client.pipeline();
        ask(&both).await?;
        let count = i64::try_from(call.keys.len()).unwrap_or(i64::MAX);
        let rest = call.keys.iter().chain(&call.args).cloned().map(Value::Bytes);
        let head = [Value::from(call.script.text), Value::from(count)];
        let parts = head.into_iter().chain(rest).collect();
        let () = both.custom::<(), Value>(command("EVAL"), parts).await?;
        both.last().await
    }

    /// The node that `error` redirects to, if we are connected
    /// to it. The error must come from this connection.
    pub(super) fn next(&self, error: &Error) -> Option<Next> {
        let redirect = Redirect::of(error, self.at.host())?;
        let cluster = self.cluster.as_ref().and_then(Weak::upgrade)?;
        Some(Next { live: cluster.follow(&redirect)?, asks: redirect.asks })
    }
}

/// Returns the `run_id` of the process. Empty if Redis does not report it, or if our user may not
/// run `INFO`. Such a replica detects no restart, and accepts the name that other replicas report.
///
/// # Errors
/// Redis did not reply, so it may have a `run_id`.
async fn run_id(client: &Client) -> Result<String, Error> {
    let info: String = match client.info(Some(InfoKind::Server)).await {
        Err(error) if is_refused(&error) => {
            tracing::warn!(error = %in_words(&error), "redis does not say which run of it this is: let the user run INFO");
            String::new()
        }
        answer => answer?,
    };
    let run_id = info.lines().find_map(|line| line.strip_prefix("run_id:"));
    Ok(run_id.unwrap_or_default().trim().to_owned())
}

/// Returns `true` if Redis replied that it refuses the command.
pub(super) fn is_refused(error: &Error) -> bool {
    matches!(cause(error), Cause::NotPermitted | Cause::Failing)
}

/// Queues `ASKING`, which lets the next command reach a slot that is being imported.
pub(super) async fn ask(pipeline: &Pipeline<Client>) -> Result<(), Error> {
    // A pipeline uses one connection without commands of
    // other callers, so `ASKING` applies to the next one.
    pipeline.custom(command("ASKING"), Vec::<Value>::new()).await
}

fn command(name: &'static str) -> CustomCommand {
    CustomCommand::new_static(name, ClusterHash::FirstKey, false)
}

impl Live {
    /// Like [`Live::call`], for a rare script that is sent whole. Most failures
    /// do not affect the connection: a user without the right to run it can still
    /// count. A refused write does, because Redis then refuses counters too.
    pub(super) async fn eval<const N: usize>(
        &self,
        script: &str,
        key: String,
        args: [String; N],
    ) -> Result<Value, Cause> {
        let script = Script { text: script, digest: None, takes_any: false };
        let (keys, args) = (vec![Bytes::from(key)], args.map(Bytes::from).into());
        let (answer, other) = self.answer(&Shared { script, keys, args }).await;
        let at = other.as_deref().unwrap_or(self);
        let answer = answer.inspect(|_| at.saw(None));
        answer.map_err(|error| {
            if refuses_writes(&error) { at.failed(&error, false) } else { cause(&error) }
        })
    }
}

/// The integers of a reply that packs them into one string.
fn packed(reply: &Value) -> Result<Vec<i64>, Cause> {
    reply.as_bytes().and_then(codec::integers).ok_or(Cause::NotUnderstood)
}

/// The integers of a list reply; other types are rejected.
fn integers(reply: Value) -> Result<Vec<i64>, Cause> {
    let Value::Array(values) = reply else { return Err(Cause::NotUnderstood) };
    let integer = |value| match value {
        Value::Integer(integer) => Ok(integer),
        _ => Err(Cause::NotUnderstood),
    };
    values.into_iter().map(integer).collect()
}

/// The cause, if Redis was reached and refused the connection.
pub(super) fn refusal(error: &Error) -> Option<Cause> {
    Some(cause(error))
        .filter(|said| matches!(said, Cause::NotPermitted | Cause::Loading | Cause::OutOfMemory))
}

/// Returns `true` if Redis gives this reply to every write: it
/// is out of memory, cannot persist, or has too few replicas.
fn refuses_writes(error: &Error) -> bool {
    let said = without_arguments(error);
    ["OOM ", "MISCONF ", "NOREPLICAS "].iter().any(|word| said.contains(word))
}

pub(super) fn cause(error: &Error) -> Cause {
    tracing::debug!(kind = ?error.kind(), error = %in_words(error), "a call to redis failed");
    let said = |word: &str| without_arguments(error).contains(word);
    match error.kind() {
        ErrorKind::IO => Cause::Cut,
        ErrorKind::Unknown if error.details() == GONE => Cause::Cut,
        // The client reports this for commands that were not written when the connection closed.
        ErrorKind::Canceled | ErrorKind::Routing => Cause::Unreachable,
        ErrorKind::Timeout => Cause::Late,
        ErrorKind::Backpressure => Cause::Overloaded,
        ErrorKind::Parse | ErrorKind::Protocol | ErrorKind::NotFound => Cause::NotUnderstood,
        // The slot is moving to a node without a connection yet.
        _ if said("MOVED") || said("ASK ") || said("TRYAGAIN") => Cause::Unreachable,
        _ if said("READONLY") => Cause::ReadOnly,
        _ if said("LOADING") || said("MASTERDOWN") || said("CLUSTERDOWN") => Cause::Loading,
        _ if said("WRONGTYPE") => Cause::WrongType,
        _ if said("OOM ") => Cause::OutOfMemory,
        _ if said("NOAUTH") || said("NOPERM") || said("WRONGPASS") => Cause::NotPermitted,
        _ => Cause::Failing,
    }
}
