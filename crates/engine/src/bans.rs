//! Bans keys that a limit with a `penalty` denies repeatedly.
//!
//! | step | where |
//! |---|---|
//! | a limit denies a check: one strike | `strike`, then `charge_strike` |
//! | the strike counter of the key in the store is used up: the ban begins | `begin_ban` |
//! | the ban spreads with the heartbeats of the membership | `list::BanList::page`, `apply` |
//! | a check of the key is denied without a store call | `find_bans` |
//! | an operator lifts the ban, at all replicas | `lift_bans` |
//!
//! A strike is an ordinary charge of a sliding log, so the fleet counts strikes exactly. A second
//! counter has a hit while the key is banned. It tells replicas that have just started, and makes a
//! ban begin once.
//!
//! Guarantees:
//! - Denial number `after` within `within` begins the ban, and none before it.
//! - A check without a limit with `penalty` makes no store call more. No reply waits for a strike.
//! - A banned check charges nothing, also while the store is unavailable.
//! - The lists of bans and of waiting strikes are bounded in number and bytes.
//! - A ban from another replica needs a limit with `penalty` here, and is no longer than its `for`.
//! - A reload that removes a limit or its `penalty` ends the bans.
//!
//! Not covered:
//! - A store that is unavailable or full bans nobody: its strikes are lost.
//! - After a restart of all replicas, a ban continues with the next denial of its key.
//! - A check with a refund is decided by its limits alone.

mod calls;
pub(crate) mod list;
mod strikes;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use crate::config::Config;
use crate::config::descriptor_text::{borrow_entries, parse_entries};
use crate::config::penalty::Penalty;
use crate::kernel::units::Nanos;
use crate::store::Charge;
pub use calls::LiftError;
pub use list::BanChange;
use list::{BanList, BanName};
pub use list::{MAX_BAN_NAME_BYTES, MAX_BANS};

/// The largest number of strikes that wait for the store. Further ones are lost.
pub const MAX_WAITING_STRIKES: usize = 1_024;

/// The bans of the fleet, and the strikes that wait for the store.
#[derive(Debug, Default)]
pub(crate) struct Bans {
    /// The number of bans in the list, also lifted ones. Without any, checks do not lock the list.
    count: AtomicUsize,
    list: RwLock<BanList>,
    waiting: Mutex<VecDeque<Strike>>,
    has_strikes: Notify,
}

/// A denial by a limit with a penalty.
#[derive(Debug)]
pub(crate) struct Strike {
    name: BanName,
    /// The charge of the limit that denied.
    charge: Charge,
    penalty: Penalty,
}

/// A ban that applies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ban {
    /// The domain.
    pub domain: Box<str>,
    /// The descriptor as text, with values as `telemetry.descriptor_values` selects.
    pub descriptor: String,
    /// The path of the rule.
    pub rule: Box<str>,
    /// The path of the limit: that of the rule and, in a list `rate_limits`, the limit's name.
    pub limit: String,
    /// The end, by this replica's clock.
    pub until: Nanos,
}

impl Bans {
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Relaxed) == 0
    }

    fn change<T>(&self, change: impl FnOnce(&mut BanList) -> T) -> T {
        let mut list = self.list.write();
        let changed = change(&mut list);
        self.count.store(list.len(), Relaxed);
        changed
    }

    /// Queues a strike. Returns `false` if too many wait.
    fn add_strike(&self, strike: Strike) -> bool {
        let mut waiting = self.waiting.lock();
        let has_room = waiting.len() < MAX_WAITING_STRIKES;
        if has_room {
            waiting.push_back(strike);
            self.has_strikes.notify_one();
        }
        has_room
    }

    fn take_strikes(&self, most: usize) -> Vec<Strike> {
        let mut waiting = self.waiting.lock();
        let count = most.min(waiting.len());
        waiting.drain(..count).collect()
    }
}

/// The paths of a ban: of its rule, and of its limit.
struct BanPaths {
    rule: Box<str>,
    limit: String,
}

/// Returns the paths of a ban; `None` without such a limit.
fn ban_paths(config: &Config, name: &BanName) -> Option<BanPaths> {
    let entries = parse_entries(&name.descriptor).ok()?;
    let domain = config.domains.get(&name.domain)?;
    let (rule, _) = domain.tree.rule_and_key(borrow_entries(&entries).into_iter())?;
    let is_named = |own: Option<&str>| own.unwrap_or_default() == &*name.limit;
    let limit = rule.limits.iter().find(|limit| is_named(limit.name.as_deref()))?;
    Some(BanPaths { rule: (&*rule.path).into(), limit: rule.path_of(limit).into_owned() })
}
