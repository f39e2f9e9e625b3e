//! The workers: each has one connection and runs one transaction at a time.
//!
//! Guarantees:
//! - A worker reconnects after each error, with jittered pauses, and never stops.
//! - After repeated late replies the breaker opens; a timely probe closes it.
//! - Each reason of an outage is logged at once and then once a minute.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep, timeout};

use super::super::StoreFailure;
use super::connect::{ConnectError, describe_error};
use super::options::{PostgresOptions, Preparation};
use super::pooler;
use super::queue::{CallQueue, QueuedCall, StoreOperation};
use super::rows::lock_number;
use super::session::Session;
use super::transaction::{failure_of, is_lost_statement};
use crate::backoff::Backoff;
use crate::breaker::Breaker;
use crate::telemetry::event::{Event as _, StoreCallSent};
use crate::telemetry::reason_log::{DueLine, ReasonLog};

/// The timeout of a transaction, after which its connection is replaced.
const TRANSACTION_TIMEOUT: Duration = Duration::from_secs(4);

/// The age from which a lost connection is replaced without a growing pause.
const STABLE_CONNECTION_AGE: Duration = Duration::from_secs(1);

/// The most turns of the runtime for which a batch waits.
const MAX_YIELDS: usize = 100;

/// The pause between two probes while the breaker is open.
const PROBE_PAUSE: Duration = Duration::from_millis(100);

/// The state that callers and workers share.
#[derive(Debug)]
pub(super) struct Shared {
    /// One queue for each worker.
    queues: Vec<CallQueue>,
    pub(super) breaker: Breaker,
    pub(super) options: PostgresOptions,
    connect_failure: Mutex<StoreFailure>,
    /// Whether a pooler may use another server connection for each transaction.
    is_pooled: OnceCell<bool>,
    /// True after a statement was lost.
    has_lost_statement: AtomicBool,
    /// The number of callers that start several calls at present.
    open_batches: AtomicUsize,
    outage: Mutex<OutageLog>,
}

impl Shared {
    pub(super) fn new(options: PostgresOptions) -> Self {
        Self {
            queues: (0..options.connections.max(1)).map(|_| CallQueue::default()).collect(),
            breaker: Breaker::default(),
            options,
            connect_failure: Mutex::new(StoreFailure::Unreachable),
            is_pooled: OnceCell::new(),
            has_lost_statement: AtomicBool::new(false),
            open_batches: AtomicUsize::new(0),
            outage: Mutex::default(),
        }
    }

    /// Opens a connection. With `prepare: auto`, the first one finds out whether statements can be
    /// prepared.
    pub(super) async fn open_session(&self) -> Result<Session, ConnectError> {
        let prepare = match self.options.prepare {
            Preparation::Always => true,
            Preparation::Never => false,
            Preparation::Auto => {
                let probe = || async {
                    let is_pooled = pooler::is_pooled(&self.options).await?;
                    if is_pooled {
                        log_pooler();
                    }
                    Ok(is_pooled)
                };
                let is_pooled = *self.is_pooled.get_or_try_init(probe).await?;
                !is_pooled && !self.has_lost_statement.load(SeqCst)
            }
        };
        Session::open(&self.options, prepare).await
    }

    /// Returns `true` if this error shows a pooler, and the transaction can be repeated without
    /// prepared statements.
    fn note_lost_statement(&self, error: &tokio_postgres::Error) -> bool {
        let is_lost = self.options.prepare == Preparation::Auto && is_lost_statement(error);
        if is_lost && !self.has_lost_statement.swap(true, SeqCst) {
            log_pooler();
        }
        is_lost
    }

    /// Queues a call, and waits for its reply.
    ///
    /// All calls for one key go to the same worker while it is connected. So a hot key has large
    /// batches, and the connections of one replica do not wait for each other's lock.
    pub(super) async fn call<O: StoreOperation>(
        &self,
        operation: O,
        longest: Duration,
    ) -> Result<O::Reply, StoreFailure> {
        let key = operation.keys().last().map_or(0, |key| lock_number(key));
        let first = usize::try_from(key.cast_unsigned() % self.queues.len() as u64).unwrap_or(0);
        let (before, after) = self.queues.split_at(first);
        let open = after.iter().chain(before).find(|queue| queue.is_connected());
        let reply = match open {
            Some(queue) => queue.call(operation, longest).await,
            None => Err(*self.connect_failure.lock()),
        };
        self.record(&reply);
        reply
    }

    /// Runs `begin`, which starts several calls, and lets the workers wait until all are queued.
    pub(super) fn start_together(&self, begin: &mut dyn FnMut()) {
        self.open_batches.fetch_add(1, SeqCst);
        begin();
        self.open_batches.fetch_sub(1, SeqCst);
    }

    /// Waits while calls are started, for a bounded number of turns of the runtime.
    async fn wait_for_open_batches(&self) {
        for _ in 0..MAX_YIELDS {
            // At least once: callers that got replies from the last batch may be about to call
            // again.
            tokio::task::yield_now().await;
            if self.open_batches.load(SeqCst) == 0 {
                return;
            }
        }
    }

    /// Returns the cause for which calls fail at present.
    pub(super) fn current_failure(&self) -> Option<StoreFailure> {
        if !self.queues.iter().any(CallQueue::is_connected) {
            return Some(*self.connect_failure.lock());
        }
        self.breaker.is_open().then_some(StoreFailure::BreakerOpen)
    }

    /// Records the time of a reply for the breaker.
    fn record<T>(&self, reply: &Result<T, StoreFailure>) {
        match reply {
            Err(StoreFailure::TimedOut) => {
                if self.breaker.record_late() {
                    tracing::warn!(
                        deadline = ?self.options.call_timeout,
                        "postgres timed out repeatedly, using on_store_failure"
                    );
                }
            }
            Err(_) => {}
            Ok(_) => self.breaker.record_timely(),
        }
    }
}

/// Runs all workers; never returns.
pub(super) async fn run_workers(shared: Arc<Shared>) {
    let workers = shared.queues.iter().enumerate().map(|(number, queue)| {
        let seed = shared.options.jitter_seed.wrapping_add(number as u64);
        keep_connected(&shared, queue, Backoff::new(seed))
    });
    join_all(workers).await;
}

async fn keep_connected(shared: &Shared, queue: &CallQueue, mut pauses: Backoff) {
    loop {
        match shared.open_session().await {
            Ok(mut session) => {
                let _counted = shared.options.connection_counter.count_open();
                queue.set_connected(true);
                shared.breaker.close();
                shared.outage.lock().log_connected();
                let opened_at = Instant::now();
                let reason = serve(shared, queue, &mut session).await;
                queue.set_connected(false);
                if STABLE_CONNECTION_AGE <= opened_at.elapsed() {
                    pauses.reset();
                }
                shared.outage.lock().log_lost(&reason);
            }
            Err(error) => {
                *shared.connect_failure.lock() = match error {
                    ConnectError::Refused(_) => StoreFailure::Unreachable,
                    ConnectError::WrongSchema(_) => StoreFailure::NotPermitted,
                };
                shared.outage.lock().log_unavailable(&error.to_string());
            }
        }
        queue.fail_all(StoreFailure::Unsent).await;
        sleep(pauses.next_pause()).await;
    }
}

/// Runs transactions until one fails. Returns the reason.
async fn serve(shared: &Shared, queue: &CallQueue, session: &mut Session) -> String {
    loop {
        let probe = async {
            while !shared.breaker.is_open() {
                shared.breaker.wait_opened().await;
            }
            sleep(PROBE_PAUSE).await;
        };
        tokio::select! {
            Some(first) = queue.next_call() => {
                shared.wait_for_open_batches().await;
                let calls = queue.fill_batch(first).await;
                if let Err(reason) = run_batch(shared, session, calls).await {
                    return reason;
                }
            }
            () = probe => {
                if let Err(reason) = probe_server(shared, session).await {
                    return reason;
                }
            }
            () = session.connection.wait_closed() => return "connection closed".to_owned(),
        }
    }
}

async fn run_batch(
    shared: &Shared,
    session: &mut Session,
    mut calls: Vec<Box<dyn QueuedCall>>,
) -> Result<(), String> {
    if calls.is_empty() {
        return Ok(());
    }
    StoreCallSent { checks: calls.len() }.emit();
    let transaction = run_once_or_twice(shared, session, &mut calls);
    let (result, failure) = match timeout(TRANSACTION_TIMEOUT, transaction).await {
        Ok(Ok(())) => (Ok(()), Ok(())),
        Ok(Err(error)) => (Err(describe_error(&error)), Err(failure_of(&error))),
        Err(_elapsed) => (Err("no reply within 4s".to_owned()), Err(StoreFailure::ConnectionLost)),
    };
    for call in calls {
        call.finish(failure);
    }
    result
}

/// Applies all calls, and leaves those in `calls` to which no reply was sent. Repeats if a pooler lost a
/// prepared statement, because the transaction then had no effect.
async fn run_once_or_twice(
    shared: &Shared,
    session: &mut Session,
    calls: &mut Vec<Box<dyn QueuedCall>>,
) -> Result<(), tokio_postgres::Error> {
    match session.run_calls(calls).await {
        Err(error) if shared.note_lost_statement(&error) => {
            session.stop_preparing().await?;
            session.run_calls(calls).await
        }
        result => result,
    }
}

fn log_pooler() {
    tracing::info!(
        "a pooler gives each transaction another server connection: statements are not prepared"
    );
}

async fn probe_server(shared: &Shared, session: &Session) -> Result<(), String> {
    let started = Instant::now();
    let probe = session.client.simple_query("SELECT 1");
    match timeout(TRANSACTION_TIMEOUT, probe).await {
        Ok(Ok(_)) if started.elapsed() <= shared.options.call_timeout => {
            if shared.breaker.is_open() {
                shared.breaker.close();
                tracing::info!("postgres replies in time again");
            }
            Ok(())
        }
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(describe_error(&error)),
        Err(_elapsed) => Err("no reply within 4s".to_owned()),
    }
}

/// The log of outages, common to all workers.
#[derive(Debug, Default)]
struct OutageLog {
    reasons: ReasonLog,
    is_available: bool,
}

impl OutageLog {
    fn log_connected(&mut self) {
        if !self.is_available || self.reasons.is_begin_logged() {
            tracing::info!("postgres is available");
            self.is_available = true;
            self.reasons.end();
        }
    }

    fn log_lost(&mut self, reason: &str) {
        if let Some(DueLine { times }) = self.reasons.count(reason, Instant::now()) {
            tracing::warn!(error = reason, times, "postgres connection lost, retrying");
        }
    }

    fn log_unavailable(&mut self, reason: &str) {
        if let Some(DueLine { times }) = self.reasons.count(reason, Instant::now()) {
            tracing::warn!(error = reason, times, "postgres unavailable, retrying");
        }
    }
}
