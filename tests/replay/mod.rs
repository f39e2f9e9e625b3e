//! Tests of replays and suggestions, against laws and independent counts.

mod budgets;
mod comparison;
mod suggestion;

use sluicegate::config::{Config, load};
use sluicegate::kernel::units::{Nanos, Revision};

use crate::recording::OwnedCheck;
use crate::support::dice::Dice;

/// A Sunday at 12:00:00 UTC, the start of every window up to an hour.
const START: Nanos = Nanos::from_secs(1_763_899_200);

fn config(descriptors: &str) -> Config {
    let file = format!("domain: d\ndescriptors:\n{descriptors}");
    load([("limits.yaml", file.as_bytes())], Revision(1), false).unwrap().0
}

/// Checks of the key `k` with few values, over ten minutes.
fn random_checks(dice: &mut Dice, count: u64) -> Vec<OwnedCheck> {
    let mut times: Vec<_> =
        (0..count).map(|_| START.plus(Nanos(dice.up_to(600_000_000_000)))).collect();
    times.sort_unstable();
    let values = ["ann", "bob", "cy", "dee"];
    let mut check = |time| OwnedCheck::of_entry(time, ("k", dice.pick(&values)), 1 + dice.up_to(2));
    times.into_iter().map(&mut check).collect()
}

/// Counts, for each check, whether a fixed window of a minute denies it. Independent of the engine:
/// a window that denies a check counts its hits all the same.
fn denied_by_fixed_window(checks: &[OwnedCheck], limit: u64) -> Vec<bool> {
    let mut windows = std::collections::HashMap::<_, u64>::new();
    let is_denied = |one: &OwnedCheck| {
        let (entries, cost, _) = &one.descriptors[0];
        let sluicegate::kernel::decision::Cost::Charge(hits) = cost else { return false };
        let used = windows.entry((entries.clone(), one.time.0 / 60_000_000_000)).or_default();
        *used += hits.0;
        limit < *used
    };
    checks.iter().map(is_denied).collect()
}
