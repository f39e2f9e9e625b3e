//! One connection to one Redis process, for those that charge over it.
//!
//! Guarantees: there is a connection that is ready, or calls fail at once; a call is sent once, and
//! sent on only where a node of a Cluster said that it did not run it; what is answered over a
//! connection ends that one at most, never the one that follows it; after one that was of no use there is
//! [`Link::trouble`] until the next has lasted, and where Redis refuses what it is to count, for want of memory or
//! because it takes no writes, until no call was refused so any more for a while: what is one key's own is no such
//! refusal. Where none can be had, what the process says of itself is why.
//! Leaves out: making and watching it ([`super::keep`]); deadlines of single calls.

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

/// What the client says of what it was asked, written or not, where it is ended before its connection is closed.
const GONE: &str = "channel closed";

/// How often one call is sent on: a slot that moves is at its second node then, and may move again.
pub(super) const MOST_REDIRECTS: usize = 5;

/// What the task that keeps a connection and those who use it share.
#[derive(Debug, Default)]
pub(super) struct Link {
    live: ArcSwapOption<Live>,
    pub(super) breaker: Breaker,
    /// What the process said of itself when there was to be a connection; nothing where none said anything.
    refused: Mutex<Option<Cause>>,
    /// Why the connection before was of no use, or this one is of little, until it has lasted.
    doubt: Mutex<Option<Cause>>,
}

/// A connection that is ready: Redis knows the scripts.
#[derive(Debug)]
pub(super) struct Live {
    pub(super) client: Client,
    /// What Redis calls [`CHARGE`].
    digest: String,
    /// What Redis calls [`BORROW`].
    borrow_digest: String,
    /// What Redis calls [`HEARTBEAT`].
    heartbeat_digest: String,
    /// What Redis calls [`HOLD`].
    hold_digest: String,
    /// What Redis calls [`ACQUIRE`].
    acquire_digest: String,
    /// What Redis calls [`TELL`].
    tell_digest: String,
    /// What the process calls this run of it; empty where it does not say.
    run_id: String,
    /// Where the process is.
    at: At,
    cluster: Option<Weak<Cluster>>,
    /// It answered what only another connection can mend.
    useless: Notify,
    /// What that was, the first time.
    spoiled: OnceLock<Cause>,
    /// It refused a call for what no other connection mends.
    refused: Notify,
    /// Why it last did, until somebody is told.
    refusing: Mutex<Option<Refusing>>,
    /// It answered a call as it should, and none was refused so since.
    has_served: AtomicBool,
    served: Notify,
    /// A call over it was given up.
    doubted: Notify,
    /// It refused to let go what it counted, and has not done so since.
    keeps_all: AtomicBool,
    lets_go: Notify,
}

/// Why Redis refuses calls over every connection alike.
#[derive(Debug)]
pub(super) struct Refusing {
    pub(super) what: Refused,
    pub(super) cause: Cause,
    /// What it said.
    pub(super) why: String,
}

/// What Redis refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// To count.
    Count,
    /// To let go in time what it counted.
    Expiry,
}

/// A script.
#[derive(Clone, Copy)]
pub(super) struct Script<'s> {
    pub(super) text: &'s str,
    /// What Redis calls it; none of one that is sent whole.
    pub(super) digest: Option<&'s str>,
    /// Whether it has an answer for whatever lives under its keys, so that an error is the store's and no key's.
    pub(super) takes_any: bool,
}

/// A call whose bytes are shared by all that it is sent to.
struct Shared<'s> {
    script: Script<'s>,
    keys: Vec<Bytes>,
    args: Vec<Bytes>,
}

/// The node that a call is sent on to.
pub(super) struct Next {
    pub(super) live: Arc<Live>,
    /// Whether each command must say before that it was sent on.
    pub(super) asks: bool,
}

impl<'s> Script<'s> {
    /// One that knows only what it wrote itself.
    const fn new(text: &'s str, digest: &'s str) -> Self {
        Self { text, digest: Some(digest), takes_any: false }
    }
}

impl Link {
    /// The connection.
    ///
    /// # Errors
    /// Why there is nothing to wait for.
    pub(super) fn live(&self) -> Result<Arc<Live>, Cause> {
        let none = || self.refused.lock().unwrap_or(Cause::Unreachable);
        let live = self.live.load_full().ok_or_else(none)?;
        if self.breaker.is_open() { Err(Cause::BreakerOpen) } else { Ok(live) }
    }

    /// Why calls are not answered just now, as far as is known: one that may not write takes every new
    /// connection as gladly as the last.
    pub(super) fn trouble(&self) -> Option<Cause> {
        self.live().err().or_else(|| *self.doubt.lock())
    }

    /// There is a connection.
    pub(super) fn set(&self, live: Arc<Live>) {
        self.breaker.close();
        *self.refused.lock() = None;
        self.live.store(Some(live));
    }

    /// There is none any more.
    pub(super) fn lose(&self) {
        let lost = self.live.swap(None);
        if let Some(cause) = lost.and_then(|live| live.spoiled.get().copied()) {
            self.mistrust(cause);
        }
    }

    /// There is none, and could not be had for this.
    pub(super) fn cannot_be_had(&self, error: &Error) {
        *self.refused.lock() = refusal(error);
    }

    /// Calls are not answered, though there may be a connection.
    pub(super) fn mistrust(&self, cause: Cause) {
        *self.doubt.lock() = Some(cause);
    }

    /// The connection has lasted.
    pub(super) fn believe(&self) {
        *self.doubt.lock() = None;
    }

    /// Learns from how a call ended.
    pub(super) fn saw(&self, failed: Option<Cause>) {
        match failed {
            Some(Cause::Late) => slow(self.breaker.late()),
            Some(Cause::Unreachable | Cause::Cut) => {}
            _ => self.breaker.in_time(),
        }
    }
}

impl Link {
    /// Probes were late, one after the other.
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
    /// Over `client`, once Redis knows the scripts.
    ///
    /// # Errors
    /// It does not take one.
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

    /// Returns once a call was answered as it should be, at once if one was and nobody has been told;
    /// what was answered before one was refused does not count.
    pub(super) async fn served(&self) {
        loop {
            self.served.notified().await;
            if self.has_served.load(Relaxed) {
                return;
            }
        }
    }

    /// Returns why a call was refused for what no other connection mends, at once if one was and nobody has been
    /// told.
    pub(super) async fn refused(&self) -> Refusing {
        loop {
            self.refused.notified().await;
            let refusing = self.refusing.lock().take();
            if let Some(refusing) = refusing {
                return refusing;
            }
        }
    }

    /// A call over it was given up before it was answered.
    pub(super) fn doubt(&self) {
        self.doubted.notify_one();
    }

    /// Returns once a call was given up, at once if one was and nobody has been told.
    pub(super) async fn doubted(&self) {
        self.doubted.notified().await;
    }

    /// Returns once an answer came that only another connection can mend.
    pub(super) async fn useless(&self) {
        self.useless.notified().await;
    }

    /// Learns from how a call that was answered over it ended. Many that were under way say the same
    /// of this connection, and nothing of the next.
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

    /// Why a call that was answered over it failed, which it learns from. An error that has no name here is the store's
    /// where `is_no_keys`; else something under one key may have made it.
    pub(super) fn failed(&self, error: &Error, is_no_keys: bool) -> Cause {
        let cause = cause(error);
        if refuses_writes(error) || (is_no_keys && cause == Cause::Failing) {
            self.refuses(Refusing { what: Refused::Count, cause, why: in_words(error) });
        } else {
            self.saw(Some(cause));
        }
        cause
    }

    /// What it counted it keeps for ever, for this. The connection stays: it counts over it as over any other.
    pub(super) fn keeps_all(&self, error: &Error) {
        let (what, cause) = (Refused::Expiry, cause(error));
        self.keeps_all.store(true, Relaxed);
        self.refuses(Refusing { what, cause, why: in_words(error) });
    }

    /// It lets go again what it counts, in time.
    pub(super) fn lets_go(&self) {
        if self.keeps_all.load(Relaxed) && self.keeps_all.swap(false, Relaxed) {
            self.lets_go.notify_one();
        }
    }

    /// Returns when it does.
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
        // Read first: a store by every call would be fought over by every core.
        if !self.has_served.load(Relaxed) && !self.has_served.swap(true, Relaxed) {
            self.served.notify_one();
        }
    }

    /// Runs the script, once: a Redis that does not know it, and a node of a Cluster that sends us on
    /// to another, have not run it.
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

    /// Runs [`BORROW`], as [`Live::call`] does.
    pub(super) async fn borrow(
        &self,
        keys: Vec<Vec<u8>>,
        args: Vec<Vec<u8>>,
    ) -> Result<Vec<i64>, Cause> {
        let shared = |texts: Vec<Vec<u8>>| texts.into_iter().map(Bytes::from).collect();
        let script = Script::new(BORROW, &self.borrow_digest);
        packed(&self.script(script, shared(keys), shared(args)).await?)
    }

    /// Runs [`HEARTBEAT`], as [`Live::call`] does.
    pub(super) async fn heartbeat(
        &self,
        keys: Vec<Vec<u8>>,
        args: Vec<Vec<u8>>,
    ) -> Result<Vec<i64>, Cause> {
        let shared = |texts: Vec<Vec<u8>>| texts.into_iter().map(Bytes::from).collect();
        let script = Script::new(HEARTBEAT, &self.heartbeat_digest);
        packed(&self.script(script, shared(keys), shared(args)).await?)
    }

    /// Runs [`ACQUIRE`], as [`Live::call`] does.
    pub(super) async fn acquire(
        &self,
        keys: Vec<Vec<u8>>,
        args: Vec<Vec<u8>>,
    ) -> Result<Vec<i64>, Cause> {
        let shared = |texts: Vec<Vec<u8>>| texts.into_iter().map(Bytes::from).collect();
        let script = Script::new(ACQUIRE, &self.acquire_digest);
        integers(self.script(script, shared(keys), shared(args)).await?)
    }

    /// Runs [`TELL`], as [`Live::call`] does.
    pub(super) async fn tell(
        &self,
        keys: Vec<Vec<u8>>,
        args: Vec<Vec<u8>>,
    ) -> Result<Vec<i64>, Cause> {
        let shared = |texts: Vec<Vec<u8>>| texts.into_iter().map(Bytes::from).collect();
        let script = Script::new(TELL, &self.tell_digest);
        integers(self.script(script, shared(keys), shared(args)).await?)
    }

    /// What the process calls this run of it: another one after each restart.
    pub(super) fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Runs [`HOLD`], as [`Live::call`] does.
    pub(super) async fn hold(
        &self,
        (keys, args): (Vec<Vec<u8>>, Vec<Vec<u8>>),
    ) -> Result<Vec<i64>, Cause> {
        let script = Script::new(HOLD, &self.hold_digest);
        let bytes = |all: Vec<Vec<u8>>| all.into_iter().map(Bytes::from).collect();
        let (keys, args) = (bytes(keys), bytes(args));
        integers(self.script(script, keys, args).await?)
    }

    /// As [`Live::call`], any script and whatever it answers.
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

    /// The client, for what needs no script.
    pub(super) const fn client(&self) -> &Client {
        &self.client
    }

    /// What is answered by the node that has the keys, and over which connection, if that is another.
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

    /// As [`Live::run`], at a node that takes over the keys' slot.
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

    /// The node that `error` names, if it names one that we have; it was answered over this connection.
    pub(super) fn next(&self, error: &Error) -> Option<Next> {
        let redirect = Redirect::of(error, self.at.host())?;
        let cluster = self.cluster.as_ref().and_then(Weak::upgrade)?;
        Some(Next { live: cluster.follow(&redirect)?, asks: redirect.asks })
    }
}

/// What the process calls this run of it; empty where it does not say, or not to us: then nobody learns
/// of a restart from us, and who knows the name is believed.
///
/// # Errors
/// It did not answer, and may have a name.
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

/// Whether the process answered that it will not.
pub(super) fn is_refused(error: &Error) -> bool {
    matches!(cause(error), Cause::NotPermitted | Cause::Failing)
}

/// Says that the next command was sent on.
pub(super) async fn ask(pipeline: &Pipeline<Client>) -> Result<(), Error> {
    // On one connection, with nobody's command between: it holds for one.
    pipeline.custom(command("ASKING"), Vec::<Value>::new()).await
}

fn command(name: &'static str) -> CustomCommand {
    CustomCommand::new_static(name, ClusterHash::FirstKey, false)
}

impl Live {
    /// As [`Live::call`], a script that is seldom run, whole. The connection is not condemned by it: one
    /// that may not run it can still count. One that takes no write of it takes none of counters.
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

/// The integers that are packed in one text.
fn packed(reply: &Value) -> Result<Vec<i64>, Cause> {
    reply.as_bytes().and_then(codec::integers).ok_or(Cause::NotUnderstood)
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

/// What a process that was reached says against being connected to, if that is why it failed.
pub(super) fn refusal(error: &Error) -> Option<Cause> {
    Some(cause(error))
        .filter(|said| matches!(said, Cause::NotPermitted | Cause::Loading | Cause::OutOfMemory))
}

/// Whether it is what Redis answers to every write, whatever is written: it has no memory, cannot save what it has,
/// or has too few replicas.
fn refuses_writes(error: &Error) -> bool {
    let said = without_arguments(error);
    ["OOM ", "MISCONF ", "NOREPLICAS "].iter().any(|word| said.contains(word))
}

/// Why a call failed.
pub(super) fn cause(error: &Error) -> Cause {
    tracing::debug!(kind = ?error.kind(), error = %in_words(error), "a call to redis failed");
    let said = |word: &str| without_arguments(error).contains(word);
    match error.kind() {
        ErrorKind::IO => Cause::Cut,
        ErrorKind::Unknown if error.details() == GONE => Cause::Cut,
        // The client gives up so what it has not written when its connection is closed.
        ErrorKind::Canceled | ErrorKind::Routing => Cause::Unreachable,
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
