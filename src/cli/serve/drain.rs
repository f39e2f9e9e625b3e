//! Shuts the process down without failing a request.
//!
//! 1. SIGTERM or SIGINT: health checks report `NOT_SERVING`. Checks are still decided.
//! 2. After `listen.drain_delay`, when load balancers have reacted: listeners send GOAWAY and
//!    accept no new calls.
//! 3. Requests in flight finish within `listen.drain_timeout`. A second signal ends the wait.
//!
//! SIGHUP shuts the process down with `compat.listen.like_ratelimit`, and otherwise reloads the
//! configuration. Its handler is installed first, because the default action of SIGHUP ends the
//! process.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::edge::health::{Health, Readiness};
use crate::source::ReloadRequest;

/// The phases of a shutdown, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum DrainPhase {
    Serving,
    /// Listeners accept no new calls, and requests in flight finish.
    Finishing,
}

pub(super) struct ShutdownSignals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Option<Signal>,
}

/// The effect of SIGHUP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OnHangup {
    Reload,
    Stop,
}

/// The SIGHUP signals that reload the configuration. `None` if SIGHUP ends the process.
pub(super) struct ReloadSignals(Option<Signal>);

impl ReloadSignals {
    /// Requests a reload of the configuration at each SIGHUP, including those during startup. Never
    /// returns.
    pub(super) async fn trigger_reloads(self, reload: ReloadRequest) {
        let Some(mut hangups) = self.0 else { return std::future::pending().await };
        while hangups.recv().await.is_some() {
            reload.request();
        }
    }
}

impl ShutdownSignals {
    /// Installs the signal handlers.
    ///
    /// # Errors
    /// The operating system refuses a signal handler.
    pub(super) fn install(on_hangup: OnHangup) -> std::io::Result<(Self, ReloadSignals)> {
        let hangups = Some(signal(SignalKind::hangup())?);
        let (hangup, hangups) = match on_hangup {
            OnHangup::Stop => (hangups, None),
            OnHangup::Reload => (None, hangups),
        };
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        Ok((Self { terminate, interrupt, hangup }, ReloadSignals(hangups)))
    }

    /// Waits for the next shutdown signal, and returns its name.
    pub(super) async fn next(&mut self) -> &'static str {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = hangup => "SIGHUP",
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct DrainTimes {
    pub(super) delay: Duration,
    pub(super) finish: Duration,
}

/// Waits for the first shutdown signal, then drains. Returns when the process must end, even if
/// requests are still in flight.
pub(super) async fn run_drain(
    mut signals: ShutdownSignals,
    health: Health,
    phase: watch::Sender<DrainPhase>,
    times: DrainTimes,
) {
    let cause = signals.next().await;
    tracing::info!(signal = cause, delay = ?times.delay, "draining, health checks report NOT_SERVING");
    health.set_readiness(Readiness::Draining);
    tokio::select! {
        () = tokio::time::sleep(times.delay) => {}
        again = signals.next() => tracing::info!(signal = again, "drain delay ended by another signal"),
    }
    tracing::info!(timeout = ?times.finish, "draining, waiting for calls in flight");
    phase.send_replace(DrainPhase::Finishing);
    tokio::select! {
        () = tokio::time::sleep(times.finish) => {
            tracing::warn!(timeout = ?times.finish, "drain timeout exceeded, exiting with calls in flight");
        }
        again = signals.next() => {
            tracing::warn!(signal = again, "another signal received, exiting with calls in flight");
        }
    }
}

pub(super) async fn wait_until_finishing(mut phase: watch::Receiver<DrainPhase>) {
    // An error means that the sender is dropped, and so that the process ends.
    drop(phase.wait_for(|phase| *phase == DrainPhase::Finishing).await);
}
