//! The one connection to Redis, and the task that keeps it.
//!
//! Guarantees: there is a connection that is ready, or calls fail at once; a connection that was
//! lost, or that answers what only another can mend, is replaced as a whole, at once and then with
//! jittered pauses, for ever: nothing that was sent or waited on the old one is sent on the new one.
//! A silent connection is replaced after [`PATIENCE`].
//! Leaves out: deadlines of single calls.
//!
//! The client's own reconnecting is not used: it holds back what it could not send and sends it
//! later, when its caller has long had another answer.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use fred::bytes::Bytes;
use fred::clients::Client;
use fred::error::{Error, ErrorKind};
use fred::interfaces::{ClientLike as _, LuaInterface as _};
use fred::types::config::{Config, ConnectionConfig, Server, ServerConfig, TcpConfig};
use fred::types::{ConnectHandle, Value};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::breaker::Breaker;
use super::{CHARGE, Cause, Options, Place};

/// How long a connection may take to be made, and a probe to be answered, before another is tried.
const PATIENCE: Duration = Duration::from_secs(1);

/// The longest pause between two attempts: short, because one attempt costs next to nothing, and
/// jittered, because replicas lose their Redis together.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// The longest pause after the first loss.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// The longest pause between two probes of a slow Redis.
const PROBE_PAUSE: Duration = Duration::from_millis(100);

/// Calls that the client holds before it refuses more.
const MOST_CALLS: usize = 16_384;

/// What the task that keeps the connection and those who use it share.
#[derive(Debug, Default)]
pub(super) struct Link {
    live: ArcSwapOption<Live>,
    breaker: Breaker,
    /// This connection answers what only another can mend.
    useless: Notify,
}

/// A connection that is ready: Redis knows the script.
#[derive(Debug)]
pub(super) struct Live {
    client: Client,
    /// What Redis calls the script.
    digest: String,
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
    /// Runs the script, once: a Redis that does not know it has not run it.
    pub(super) async fn call(
        &self,
        keys: Vec<Vec<u8>>,
        args: Vec<Vec<u8>>,
    ) -> Result<Vec<i64>, Cause> {
        let shared = |texts: Vec<Vec<u8>>| texts.into_iter().map(Bytes::from).collect::<Vec<_>>();
        let (keys, args) = (shared(keys), shared(args));
        let known = self.client.evalsha(self.digest.as_str(), keys.clone(), args.clone()).await;
        let answer = match known {
            Err(error) if error.details().starts_with("NOSCRIPT") => {
                self.client.eval(CHARGE, keys, args).await
            }
            answer => answer,
        };
        integers(answer.map_err(|error| cause(&error))?)
    }
}

impl Live {
    /// Runs a script that is seldom run, whole.
    pub(super) async fn run<const N: usize>(
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
    let said = |word: &str| error.details().contains(word);
    match error.kind() {
        ErrorKind::IO | ErrorKind::Canceled | ErrorKind::Routing => Cause::Unreachable,
        ErrorKind::Timeout => Cause::Late,
        ErrorKind::Backpressure => Cause::Overloaded,
        ErrorKind::Parse | ErrorKind::Protocol | ErrorKind::NotFound => Cause::NotUnderstood,
        _ if said("READONLY") => Cause::ReadOnly,
        _ if said("LOADING") || said("MASTERDOWN") || said("CLUSTERDOWN") => Cause::Loading,
        _ if said("WRONGTYPE") => Cause::WrongType,
        _ if said("OOM ") => Cause::OutOfMemory,
        _ if said("NOAUTH") || said("NOPERM") || said("WRONGPASS") => Cause::NotPermitted,
        _ => Cause::Failing,
    }
}

/// Keeps `link` connected; never ends.
pub(super) async fn keep(link: Arc<Link>, options: Options) {
    let mut pauses = Pauses { jitter: options.jitter, longest: FIRST_PAUSE };
    let mut said = String::new();
    loop {
        match open(&options).await {
            Ok((live, mut task)) => {
                let live = Arc::new(live);
                link.breaker.close();
                link.live.store(Some(Arc::clone(&live)));
                tracing::info!("redis answers");
                let why = watch(&link, &live, &mut task, options.deadline, &mut pauses).await;
                link.live.store(None);
                task.abort();
                tracing::warn!(why, "redis is lost: on_backend_failure answers until it is back");
                said.clear();
            }
            Err(error) => {
                // Once for each new reason: an outage of an hour is not ten thousand lines.
                let why = error.to_string();
                if why != said {
                    tracing::warn!(error = %why, "redis cannot be had: on_backend_failure answers");
                    said = why;
                }
            }
        }
        sleep(pauses.next()).await;
    }
}

/// A connection that is ready, and the task that drives it.
async fn open(options: &Options) -> Result<(Live, ConnectHandle), Error> {
    let client = Client::new(config(options), None, Some(tuning()), None);
    let mut task = None;
    let connected = {
        let mut waiting = pin!(client.wait_for_connect());
        let begin = async {
            task = Some(client.connect());
            std::future::pending::<()>().await;
        };
        let both = async {
            // The waiting first: what it waits for is said once.
            tokio::select! {
                biased;
                connected = &mut waiting => connected,
                () = begin => Err(Error::new(ErrorKind::Canceled, "not begun")),
            }
        };
        timeout(PATIENCE, both).await
    };
    let task = task.ok_or_else(|| Error::new(ErrorKind::Canceled, "not begun"))?;
    let ready = match connected {
        Ok(Ok(())) => timeout(PATIENCE, client.script_load::<String, _>(CHARGE)).await,
        Ok(Err(error)) => Ok(Err(error)),
        Err(elapsed) => Err(elapsed),
    };
    match ready {
        Ok(Ok(digest)) => Ok((Live { client, digest }, task)),
        Ok(Err(error)) => {
            task.abort();
            Err(error)
        }
        Err(_elapsed) => {
            task.abort();
            Err(Error::new(ErrorKind::Timeout, "no answer within a second"))
        }
    }
}

fn config(options: &Options) -> Config {
    let server = match &options.place {
        Place::Tcp(host, port) => {
            ServerConfig::Centralized { server: Server::new(host.clone(), *port) }
        }
        Place::Unix(path) => ServerConfig::Unix { path: path.clone() },
    };
    Config {
        server,
        username: options.user.clone(),
        password: options.password.as_ref().map(|password| password.0.clone()),
        database: Some(options.database).filter(|number| *number != 0),
        ..Config::default()
    }
}

fn tuning() -> ConnectionConfig {
    ConnectionConfig {
        connection_timeout: PATIENCE,
        internal_command_timeout: PATIENCE,
        // A charge that may have been made is not made again.
        max_command_attempts: 1,
        max_command_buffer_len: MOST_CALLS,
        tcp: TcpConfig { nodelay: Some(true), ..TcpConfig::default() },
        ..ConnectionConfig::default()
    }
}

/// Returns why the connection is of no use any more.
async fn watch(
    link: &Link,
    live: &Live,
    task: &mut ConnectHandle,
    deadline: Duration,
    pauses: &mut Pauses,
) -> &'static str {
    let mut proves_itself = pin!(sleep(PATIENCE));
    let mut is_proven = false;
    loop {
        tokio::select! {
            _ended = &mut *task => return "the connection was closed",
            () = link.useless.notified() => return "it may not write, or is not ready",
            () = &mut proves_itself, if !is_proven => {
                is_proven = true;
                pauses.longest = FIRST_PAUSE;
            }
            () = link.breaker.opened() => {
                if !answers_again(live, deadline, pauses).await {
                    return "it was silent";
                }
                link.breaker.close();
                tracing::info!("redis answers in time again");
            }
        }
    }
}

/// Whether Redis answers in time again: returns when it does, or when it is silent. One probe at a
/// time, and a probe charges nothing.
async fn answers_again(live: &Live, deadline: Duration, pauses: &mut Pauses) -> bool {
    loop {
        let mut probe = pin!(live.client.ping::<Value>(None));
        match timeout(deadline, &mut probe).await {
            Ok(answer) => return answer.is_ok(),
            Err(_elapsed) => match timeout(PATIENCE, probe).await {
                Ok(Ok(_late)) => {}
                Ok(Err(_)) | Err(_) => return false,
            },
        }
        sleep(pauses.up_to(PROBE_PAUSE)).await;
    }
}

/// Pauses of random lengths that double, and start anew after a connection that lasted.
struct Pauses {
    jitter: u64,
    longest: Duration,
}

impl Pauses {
    fn next(&mut self) -> Duration {
        let longest = self.longest;
        self.longest = (longest * 2).min(LONGEST_PAUSE);
        self.up_to(longest)
    }

    /// Source: Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014.
    fn up_to(&mut self, longest: Duration) -> Duration {
        self.jitter = self.jitter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.jitter;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let micros = u64::try_from(longest.as_micros()).unwrap_or(u64::MAX).max(1);
        Duration::from_micros((mixed ^ (mixed >> 31)) % micros)
    }
}
