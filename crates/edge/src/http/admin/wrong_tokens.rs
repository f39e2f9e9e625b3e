//! Slows down clients that guess tokens of the admin port.
//!
//! Guarantees:
//! - The reply to a wrong token waits for [`DELAY`]. At most [`MAX_DELAYED`] replies wait.
//! - Further wrong tokens get status 429 at once, so that others find a connection.
//! - A request with a valid token, or without a token, never waits.
//! - Wrong tokens are counted, and logged once a minute with an address.
//!
//! Not covered:
//! - Tokens that are easy to guess: a token has at least 16 characters.

use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use crate::telemetry::event::{Event as _, WrongAdminToken};
use crate::telemetry::reason_log::{DueLine, ReasonLog};

/// The time for which the reply to a wrong token waits.
const DELAY: Duration = Duration::from_secs(1);

/// The largest number of waiting replies: half of the connections of the admin port.
const MAX_DELAYED: usize = 32;

/// The wrong tokens of one admin port.
#[derive(Debug)]
pub struct WrongTokens {
    slots: Semaphore,
    log: Mutex<ReasonLog>,
}

impl Default for WrongTokens {
    fn default() -> Self {
        Self { slots: Semaphore::new(MAX_DELAYED), log: Mutex::new(ReasonLog::new()) }
    }
}

/// The error for a wrong token while the replies to many others wait.
#[derive(Debug)]
pub(super) struct TooManyWrongTokens;

impl WrongTokens {
    /// Records a wrong token of the client at `address`, and delays its reply.
    ///
    /// # Errors
    /// [`TooManyWrongTokens`] at once, if the replies to many others wait.
    pub(super) async fn delay(&self, address: Option<IpAddr>) -> Result<(), TooManyWrongTokens> {
        WrongAdminToken.emit();
        let due = self.log.lock().count("wrong admin token", Instant::now());
        if let Some(DueLine { times }) = due {
            let address = address.map_or_else(|| "unknown".to_owned(), |known| known.to_string());
            tracing::warn!(%address, times, "a client sent a wrong admin token");
        }
        let _slot = self.slots.try_acquire().map_err(|_| TooManyWrongTokens)?;
        sleep(DELAY).await;
        Ok(())
    }
}
