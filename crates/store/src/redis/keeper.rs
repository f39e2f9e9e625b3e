//! The task that keeps one connection to Redis open.
//!
//! Guarantees:
//! - A lost connection is replaced at once; later attempts have jittered pauses and never stop.
//! - A connection to a read-only, loading or demoted Redis is replaced in the same way.
//! - No command of the old connection is sent on the new one.
//! - The address of the primary is looked up again for every new connection.
//! - A connection without replies is replaced after [`CONNECT_TIMEOUT`].
//! - Each reason for an outage is logged at once and then once a minute, until a call succeeds.
//! - Refused writes are logged in the same way, but the connection stays open.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use fred::interfaces::ClientLike as _;
use fred::types::Value;
use tokio::time::{Instant, sleep, timeout};

use super::StoreFailure;
use super::client::{CONNECT_TIMEOUT, OpenedClient, ServerAddress, describe_error};
use super::connect_help::connect_help;
use super::connection::LiveConnection;
use super::connection_signals::{RefusedOperation, StoreRefusal};
use super::link::Link;
use super::open::{KEY_PROXY, SCRIPT_PROXY, open_connection};
use super::options::RedisOptions;
use super::server_location::ServerLocation;
use crate::backoff::Backoff;
use crate::breaker::LATE_REPLIES_TO_OPEN;
use crate::telemetry::reason_log::{DueLine, ReasonLog};

/// The longest pause between two probes of a slow Redis.
const PROBE_PAUSE: Duration = Duration::from_millis(100);

/// The time without a refused write after which Redis accepts writes again. Each replica writes its
/// membership record once a second; a successful read proves nothing.
const WRITES_PROVEN_AFTER: Duration = Duration::from_secs(3);

/// Keeps the connection of `link` open; never returns.
pub(super) async fn keep_link(
    link: Arc<Link>,
    location: ServerLocation,
    options: Arc<RedisOptions>,
    jitter: u64,
) {
    let mut pauses = Backoff::new(jitter);
    let mut outage_log = OutageLog::default();
    loop {
        match open_connection(&location, &options).await {
            Ok((address, opened, live)) => {
                let live = Arc::new(live);
                let _counted = options.connection_counter.count_open();
                link.set_connection(Arc::clone(&live));
                outage_log.log_proxy(live.proxy(), &address);
                outage_log.log_info_refusal(live.info_refusal());
                outage_log.log_connected(&address);
                let mut watch =
                    ConnectionWatch { link: &link, live: &live, opened, location: &location };
                let reason =
                    watch.wait_useless(&address, &options, &mut pauses, &mut outage_log).await;
                link.clear_connection();
                outage_log.log_lost(reason, &address);
            }
            Err(error) => {
                link.set_connect_failure(&error);
                let help = connect_help(&error, &options);
                let address = location.known_address();
                outage_log.log_unavailable(&describe_error(&error), address, help.as_deref());
            }
        }
        location.request_slot_query();
        sleep(pauses.next_pause()).await;
    }
}

#[derive(Debug, Default)]
struct OutageLog {
    /// The reasons of the current outage.
    reasons: ReasonLog,
    is_available: bool,
    is_info_refused: bool,
    is_proxied: bool,
}

impl OutageLog {
    /// Returns `true` if the end of an outage is not logged yet.
    fn is_outage_logged(&self) -> bool {
        self.reasons.is_begin_logged()
    }

    fn log_recovered(&mut self, address: &ServerAddress) {
        tracing::info!(addr = %address, "redis is available");
        self.is_available = true;
        self.reasons.end();
    }

    /// Logs the first connection. A later connection proves nothing: Redis may be read-only.
    fn log_connected(&mut self, address: &ServerAddress) {
        if !self.is_available && !self.is_outage_logged() {
            self.log_recovered(address);
        }
    }

    fn log_lost(&mut self, reason: &'static str, address: &ServerAddress) {
        if let Some(DueLine { times }) = self.reasons.count(reason, Instant::now()) {
            tracing::warn!(addr = %address, error = reason, times, "redis connection lost, retrying");
        }
    }

    fn log_refused(&mut self, refusal: &StoreRefusal, address: &ServerAddress) {
        let is_expiry = refusal.operation == RefusedOperation::Expiry;
        let reason = if is_expiry { "EXPIRE" } else { refusal.cause.as_str() };
        let Some(DueLine { times }) = self.reasons.count(reason, Instant::now()) else { return };
        if is_expiry {
            tracing::warn!(error = %refusal.message, addr = %address, times, "redis rejected EXPIRE, so counters never expire: allow EXPIRE for this user");
        } else if refusal.cause == StoreFailure::OutOfMemory {
            tracing::warn!(addr = %address, times, "redis is out of memory (maxmemory), using on_store_failure");
        } else {
            tracing::warn!(error = %refusal.message, addr = %address, times, "redis rejected a command, using on_store_failure");
        }
    }

    fn log_unavailable(
        &mut self,
        reason: &str,
        address: Option<&ServerAddress>,
        help: Option<&str>,
    ) {
        if let Some(DueLine { times }) = self.reasons.count(reason, Instant::now()) {
            let (address, help) =
                (address.map(tracing::field::display), help.or_else(|| help_for(reason)));
            tracing::warn!(error = %reason, addr = address, times, help, "redis unavailable, retrying");
        }
    }

    /// Logs a proxy once, until a connection is direct.
    fn log_proxy(&mut self, kind: Option<&str>, address: &ServerAddress) {
        if let Some(kind) = kind.filter(|_| !self.is_proxied) {
            tracing::warn!(
                addr = %address,
                "redis is behind {kind}: each call has one counter, and restarts of redis go unnoticed"
            );
        }
        self.is_proxied = kind.is_some();
    }

    /// Logs a refused `INFO` once, until a connection may run it.
    fn log_info_refusal(&mut self, error: Option<&str>) {
        if let Some(error) = error.filter(|_| !self.is_info_refused) {
            tracing::warn!(
                error,
                "redis rejected INFO, so restarts go unnoticed: allow INFO for this user"
            );
        }
        self.is_info_refused = error.is_some();
    }
}

/// Returns the fix for a Redis user who may not run the scripts, and for a proxy.
fn help_for(reason: &str) -> Option<&'static str> {
    if [SCRIPT_PROXY, KEY_PROXY].iter().any(|kind| reason.starts_with(kind)) {
        return Some("let the proxy forward EVAL and EVALSHA, or set store.url to redis itself");
    }
    let is_refused = reason.starts_with("NOPERM") && reason.contains("'eval");
    is_refused.then_some("allow EVAL and EVALSHA for this user: +@scripting")
}

struct ConnectionWatch<'a> {
    link: &'a Link,
    live: &'a LiveConnection,
    opened: OpenedClient,
    location: &'a ServerLocation,
}

impl ConnectionWatch<'_> {
    async fn wait_useless(
        &mut self,
        address: &ServerAddress,
        options: &RedisOptions,
        pauses: &mut Backoff,
        outage_log: &mut OutageLog,
    ) -> &'static str {
        let deadline = options.call_timeout;
        let mut reauthentication = pin!(self.opened.reauthenticate(options.login(), address));
        let mut proof_timer = pin!(sleep(CONNECT_TIMEOUT));
        let mut is_proven = false;
        let mut sentinel_pauses = pauses.clone();
        let mut moved = pin!(self.location.wait_moved(address, &mut sentinel_pauses));
        let mut probes = Box::pin(probe_after_abandoned_calls(self.link, self.live, deadline));
        loop {
            tokio::select! {
                () = self.opened.wait_closed() => return "the connection was closed",
                () = &mut reauthentication => {}
                () = self.live.signals.wait_useless() => return "redis is read-only or not ready",
                () = &mut probes => {}
                () = &mut moved => return "failover: the sentinels name another primary",
                refusal = self.live.signals.wait_refused() => {
                    is_proven = false;
                    proof_timer.set(sleep(WRITES_PROVEN_AFTER));
                    self.link.set_recent_failure(refusal.cause);
                    outage_log.log_refused(&refusal, address);
                }
                // `INCRBY` succeeds even while `EXPIRE` is refused, so only a time without a
                // refused `EXPIRE` proves the recovery.
                () = self.live.signals.wait_expiry_accepted() => proof_timer.set(sleep(WRITES_PROVEN_AFTER)),
                () = &mut proof_timer, if !is_proven && !self.live.signals.is_refusing_expiry() => {
                    is_proven = true;
                    pauses.reset();
                    self.link.clear_recent_failure();
                }
                // A read-only Redis also connects, so only a successful call ends the outage.
                () = self.live.signals.wait_served(), if is_proven && outage_log.is_outage_logged() => outage_log.log_recovered(address),
                () = self.link.breaker.wait_opened() => {
                    self.location.request_slot_query();
                    tokio::select! {
                        () = &mut moved => return "failover: the sentinels name another primary",
                        is_responsive = wait_responsive(self.live, deadline, pauses) => if !is_responsive {
                            return "redis timed out";
                        },
                    }
                    self.link.breaker.close();
                    tracing::info!(addr = %address, "redis responds in time again, resuming calls");
                }
            }
        }
    }
}

/// Probes Redis after a caller abandoned a call; never returns. An abandoned call reports no
/// failure to the circuit breaker, but Redis replies to the probe after the call. So
/// [`LATE_REPLIES_TO_OPEN`] late probes in a row open the breaker, like late calls.
async fn probe_after_abandoned_calls(link: &Link, live: &LiveConnection, deadline: Duration) {
    loop {
        live.signals.wait_abandoned().await;
        let mut late = 0;
        while late < LATE_REPLIES_TO_OPEN
            && timeout(deadline, live.client.ping::<Value>(None)).await.is_err()
        {
            late += 1;
        }
        if late == LATE_REPLIES_TO_OPEN {
            link.open_breaker();
        }
    }
}

/// Probes until Redis replies in time (`true`), or sends no reply for too long (`false`). Sends one
/// probe at a time; a probe charges nothing.
async fn wait_responsive(live: &LiveConnection, deadline: Duration, pauses: &mut Backoff) -> bool {
    loop {
        let mut probe = pin!(live.client.ping::<Value>(None));
        match timeout(deadline, &mut probe).await {
            Ok(reply) => return reply.is_ok(),
            Err(_elapsed) => match timeout(CONNECT_TIMEOUT, probe).await {
                Ok(Ok(_late)) => {}
                Ok(Err(_)) | Err(_) => return false,
            },
        }
        sleep(pauses.random_below(PROBE_PAUSE)).await;
    }
}
