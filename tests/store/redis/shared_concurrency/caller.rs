//! Callers that acquire and release permits, and the test backend.

use std::time::{Duration, Instant};

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use tokio::time::{sleep, timeout};
use tonic::transport::Channel;

use super::scene_faults::FAULT_DURATION;
use super::{Caller, SHARE_EXPIRY, send_check};
use crate::support::waiting::{PATIENCE, now};

/// The usual timeout of a caller, shorter than the stop of a replica.
const TIMEOUT: Duration = Duration::from_millis(500);

/// The longer timeout of some callers, which still wait when a stopped replica resumes.
const LONG_TIMEOUT: Duration = FAULT_DURATION.saturating_add(TIMEOUT);

/// The longest duration of a normal request (`SHORT_REQUEST`), and of a request that outlives the
/// share of its replica (`LONG_REQUEST`). Even after the full timeout of its caller, each ends
/// before `MAX_DURATION`, so no permit expires early on an idle machine.
const SHORT_REQUEST: Duration = Duration::from_millis(100);

const LONG_REQUEST: Duration = Duration::from_millis(1_500);

/// The result of an acquire. A failed call counts as denied.
#[derive(PartialEq, Eq)]
enum AcquireResult {
    Allowed,
    Denied,
    TimedOut,
}

impl Caller {
    pub(super) async fn run(mut self) {
        while !self.inside.is_finished() {
            let channel = self.channels[self.at].lock().clone();
            let Some(channel) = channel else {
                sleep(Duration::from_millis(20)).await;
                continue;
            };
            let id = format!("{:016x}{:016x}", self.dice.roll(), self.dice.roll());
            let asked = now();
            let result = self.acquire(channel.clone(), &id).await;
            if result == AcquireResult::Allowed {
                self.run_request(asked).await;
            }
            if result != AcquireResult::Denied {
                // Releases the id after a timeout too, as a proxy does: the replica may have
                // granted the permit.
                let _ = timeout(PATIENCE, send_check(channel, "sluicegate.release", &id)).await;
                self.inside.record_release(asked);
            }
            if result != AcquireResult::Allowed {
                sleep(Duration::from_millis(4 + self.dice.up_to(8))).await;
            }
        }
    }

    /// Acquires a permit for `id`. A reply after the timeout counts as a timeout, even if the
    /// machine delayed this task.
    async fn acquire(&self, channel: Channel, id: &str) -> AcquireResult {
        let (limit, asked) = (if self.is_patient { LONG_TIMEOUT } else { TIMEOUT }, now());
        match timeout(limit, send_check(channel, "sluicegate.acquire", id)).await {
            Err(_) => AcquireResult::TimedOut,
            Ok(_) if limit < asked.elapsed() => AcquireResult::TimedOut,
            Ok(Some(Code::Ok)) => AcquireResult::Allowed,
            Ok(_) => AcquireResult::Denied,
        }
    }

    /// Returns `true` if the replica was stopped and resumed between the acquire and its reply.
    fn was_stopped_since(&self, acquire_started: Instant) -> bool {
        self.stops[self.at]
            .lock()
            .is_some_and(|(from, until)| acquire_started < from && until <= now())
    }

    async fn run_request(&mut self, asked: Instant) {
        let outlives = self.dice.once_in(8) && !self.is_patient;
        let (least, most) = if outlives {
            (SHARE_EXPIRY, LONG_REQUEST)
        } else {
            (Duration::from_millis(5), SHORT_REQUEST)
        };
        let spread = u64::try_from(most.saturating_sub(least).as_millis()).unwrap();
        let duration = least + Duration::from_millis(self.dice.up_to(spread));
        let request = self.inside.enter(asked, self.was_stopped_since(asked));
        self.inside.wait(request, duration).await;
        self.inside.leave(request);
    }
}
