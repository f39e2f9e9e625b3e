//! Stores permits by request id, for proxies that acquire and release in two calls.
//!
//! Guarantees:
//! - A request id gets permits once. While it waits for permits or has them, other acquires with it
//!   fail.
//! - An acquire that fails because its id is in use changes no counter.
//! - An early release is remembered for a bounded time. The later acquire is released at once.
//! - The release of a request that got no permits does not count as an early release.
//! - Early releases are bounded per source address. Beyond the bound, new ones are not remembered.
//!
//! Not covered:
//! - The format of the calls: see the protocols in `edge`.

mod calls;

use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;

use crate::RequestPermits;
use crate::kernel::concurrency::PermitRegistry;
use crate::kernel::concurrency::permit_registry::{EarlyReleaseLimits, ReleaseOutcome};
use crate::kernel::units::Nanos;
use crate::telemetry::event::{Event as _, PermitIdEvent};

/// The longest delay between the deadline of an id's permits and the removal of the id.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The default bounds on early releases. The lifetime is longer than a release can overtake its
/// acquire by. The numbers cover the requests that a proxy's clients cancel in that time.
pub(crate) const DEFAULT_BOUNDS: EarlyReleaseLimits =
    EarlyReleaseLimits { per_source: 50_000, total: 200_000, lifetime: Nanos::from_secs(10) };

/// Ids without permits are recorded only while fewer ids than this are stored.
const MAX_IDS: usize = 200_000;

/// The address that sent a release. All senders without an address share one bound on early
/// releases.
type ReleaseSource = Option<IpAddr>;

type IdRegister = PermitRegistry<Box<str>, ReleaseSource, RequestPermits>;

#[derive(Debug)]
pub(crate) struct PermitIds(Mutex<IdRegister>);

impl PermitIds {
    pub(crate) const fn new(bounds: EarlyReleaseLimits) -> Self {
        Self(Mutex::new(PermitRegistry::new(bounds)))
    }

    /// Reserves `id` for one acquire. Returns `None` if an acquire with the id waits, or the id has
    /// permits. Removes permits of the id that have expired.
    fn claim(&self, now: Nanos, id: Box<str>) -> Option<Box<str>> {
        let mut ids = self.0.lock();
        let holds = ids.value_mut(&id).map(|permits| permits.is_valid());
        if holds == Some(true) || !ids.claim(id.clone()) {
            return None;
        }
        // Also removes a record that the id has no permits. The release of the new acquire must not
        // find it.
        let before = holds.map(|_| ids.release(now, &id, &None));
        drop(ids);
        if matches!(&before, Some(ReleaseOutcome::Released(permits)) if !permits.is_empty()) {
            PermitIdEvent::Expired.emit();
        }
        Some(id)
    }
}

/// Records that `id` has no permits, for as long as an early release is remembered. The release of
/// a rejected request would otherwise count as an early release.
fn record_no_permits(ids: &mut IdRegister, now: Nanos, id: &str) {
    if ids.len() < MAX_IDS {
        let until = now.plus(ids.limits().lifetime);
        ids.acquire(now, id.into(), until, RequestPermits::default());
    }
}

/// Validates the format of a request id.
///
/// # Errors
/// The format of a valid request id.
pub fn validate_id(id: &str) -> Result<(), &'static str> {
    let sound = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_one = (16..=128).contains(&id.len()) && id.bytes().all(sound);
    if is_one { Ok(()) } else { Err("an id is 16 to 128 of 0-9A-Za-z._-") }
}
