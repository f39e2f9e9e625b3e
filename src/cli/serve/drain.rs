//! From the signal to the end: told to stop, the process leaves without failing a request.
//!
//! 1. SIGTERM or SIGINT: health says `NOT_SERVING`, and questions are answered as before.
//! 2. After `drain_delay`, when load balancers have looked elsewhere: GOAWAY, no new calls.
//! 3. Calls under way finish, for `drain_timeout` at most. A second signal ends the wait.
//!
//! SIGHUP is an end where `on_hangup: stop` says so; otherwise it reloads. It is heard from the first moment on either way: who
//! does not hear it dies of it.

use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::config::settings::OnHangup;
use crate::edge::health::{Health, Ready};
use crate::source::Reload;

/// The phases of the end, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Not ending.
    Serving,
    /// Take no new calls, finish those under way.
    Finishing,
}

/// The signals that end the process.
pub(super) struct Ends {
    terminate: Signal,
    interrupt: Signal,
    hangup: Option<Signal>,
}

/// The hangups that ask for a load; none where they end the process.
pub(super) struct Hangups(Option<Signal>);

impl Hangups {
    /// Asks `reload` at each, from the first that came.
    pub(super) async fn ask(self, reload: Reload) {
        let Some(mut hangups) = self.0 else { return std::future::pending().await };
        while hangups.recv().await.is_some() {
            reload.now();
        }
    }
}

impl Ends {
    /// # Errors
    /// When the system refuses a handler.
    pub(super) fn listen(on_hangup: OnHangup) -> std::io::Result<(Self, Hangups)> {
        let hangups = Some(signal(SignalKind::hangup())?);
        let (hangup, hangups) = match on_hangup {
            OnHangup::Stop => (hangups, None),
            OnHangup::Reload => (None, hangups),
        };
        let terminate = signal(SignalKind::terminate())?;
        let interrupt = signal(SignalKind::interrupt())?;
        Ok((Self { terminate, interrupt, hangup }, Hangups(hangups)))
    }

    /// The next one.
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

/// How long the phases take.
#[derive(Clone, Copy)]
pub(super) struct Times {
    pub(super) delay: Duration,
    pub(super) finish: Duration,
}

/// Waits for the signal and leads through the phases; returns when the process must end, finished
/// or not.
pub(super) async fn lead(
    mut ends: Ends,
    health: Health,
    phase: watch::Sender<Phase>,
    times: Times,
) {
    let cause = ends.next().await;
    tracing::info!(signal = cause, delay = ?times.delay, "draining: health says NOT_SERVING");
    health.set(Ready::Draining);
    tokio::select! {
        () = tokio::time::sleep(times.delay) => {}
        again = ends.next() => tracing::info!(signal = again, "drain delay cut short"),
    }
    tracing::info!(at_most = ?times.finish, "finishing calls under way");
    phase.send_replace(Phase::Finishing);
    tokio::select! {
        () = tokio::time::sleep(times.finish) => {
            tracing::warn!(after = ?times.finish, "calls are still under way; ending without them");
        }
        again = ends.next() => {
            tracing::warn!(signal = again, "told again to stop; ending with calls under way");
        }
    }
}

/// Resolves when calls under way are to be finished.
pub(super) async fn finishing(mut phase: watch::Receiver<Phase>) {
    // A sender that is gone means that the process is ending as well.
    drop(phase.wait_for(|phase| *phase == Phase::Finishing).await);
}
