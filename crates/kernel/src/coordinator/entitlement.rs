//! The permits that each replica should get under classes and fair parts: its *entitlement*.
//!
//! The permits go to the classes in their order, to each as far as its part of the limit reaches above
//! the classes before it. If they do not suffice for a class, each of its customers gets at most one
//! common level, for each unit of its weight. At that level, the [`DemandCurve`] of a replica gives its
//! permits.
//!
//! | limit 100, `critical` 100 %, `batch` 50 % | worked row |
//! |---|---|
//! | A: `batch` wants 100; B: `critical` wants 30 | B gets 30 of 100; `batch` gets the 20 from 30 to 50 |
//! | a replica uses ⌊share·50 %⌋ permits for `batch` | A needs a share of 40 for them |
//!
//! Guarantees:
//! - Entitlements of a permit or more sum to the limit at most, rounded to the nearest permit.
//! - A replica with a smaller entitlement counts as one permit, also above the limit.
//! - Under the entitlements, a customer with less than the level of its class gets all that it could use.
//!
//! Not covered:
//! - The division of what nobody is entitled to, and turns; see [`super::split`].
//! - Safety: an entitlement is only a demand. A replica that lies takes no permit that another one uses.

use super::demand_curve::{DemandCurve, MOST_LEVEL, UNITS_PER_PERMIT};
use crate::concurrency::ClassParts;
use crate::units::Share;

/// The entitlement of one replica, in units of demand.
#[derive(Clone, Copy, Debug, Default)]
struct Entitlement {
    /// The permits that its requests may use.
    used: u64,
    /// The share that it needs for them.
    share: u64,
}

/// Returns the entitlements of replicas with these curves, in their order.
///
/// Cost: O(replicas) for each class, with 27 iterations if the limit does not cover all demand.
#[must_use]
pub fn entitlements(curves: &[DemandCurve], limit: Share, parts: &ClassParts) -> Vec<Share> {
    let mut entitled = vec![Entitlement::default(); curves.len()];
    let mut used: u64 = 0;
    for (class, percent) in (0_u32..).zip(parts.percents()) {
        let percent = u64::from(*percent);
        let part = (limit.0.saturating_mul(percent) / 100).max(limit.0.min(1));
        let left = part.saturating_mul(UNITS_PER_PERMIT).saturating_sub(used);
        // At level 0, nobody gets anything.
        let level = class_level(curves, class, left);
        for (one, curve) in entitled.iter_mut().zip(curves) {
            let more = level.map_or(0, |level| curve.at(class, level));
            if 0 < more {
                one.used = one.used.saturating_add(more);
                one.share = one.share.max(needed_share(one.used, percent));
                used = used.saturating_add(more);
            }
        }
    }
    whole_permits(&entitled)
}

/// Returns the share of which a class with this part may use `used`. Each part is at least one permit.
fn needed_share(used: u64, percent: u64) -> u64 {
    if used <= UNITS_PER_PERMIT { used } else { used.saturating_mul(100).div_ceil(percent.max(1)) }
}

/// Returns the largest level at which the customers of `class` get at most `left`; `None` if nothing is
/// left.
fn class_level(curves: &[DemandCurve], class: u32, left: u64) -> Option<u32> {
    let fits = |level: u32| {
        let demand = curves.iter().map(|curve| curve.at(class, level));
        demand.fold(0, u64::saturating_add) <= left
    };
    if left == 0 {
        return None;
    }
    if fits(MOST_LEVEL) {
        return Some(MOST_LEVEL);
    }
    let (mut fitting, mut above) = (0, MOST_LEVEL);
    while 1 < above.saturating_sub(fitting) {
        let middle = fitting.saturating_add(above.saturating_sub(fitting) / 2);
        if fits(middle) { fitting = middle } else { above = middle }
    }
    Some(fitting)
}

/// Rounds the shares to permits. Their sum is rounded, not each one: else many small shares would add up
/// to far more than the limit.
fn whole_permits(entitled: &[Entitlement]) -> Vec<Share> {
    let mut sum: u64 = 0;
    let mut permits = Vec::with_capacity(entitled.len());
    for one in entitled {
        let before = rounded(sum);
        sum = sum.saturating_add(one.share);
        let least = one.share.min(1);
        permits.push(Share(rounded(sum).saturating_sub(before).max(least)));
    }
    permits
}

const fn rounded(units: u64) -> u64 {
    units.saturating_add(UNITS_PER_PERMIT / 2) / UNITS_PER_PERMIT
}
