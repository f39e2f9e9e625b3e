//! Computes the retry-after of a denied check.
//!
//! Guarantees:
//! - A whole check that returns after the wait is allowed, if no other check came.
//! - The wait includes the hits that the denied check itself was charged.
//! - There is no retry-after if its hits on one counter can never fit together.
//! - Limits that a remembered denial skipped count as allowed.
//!
//! Not covered:
//! - The retry-after of one limit: see `kernel::rate`.
//! - The limits that must allow a check: see `kernel::decision`.
//!
//! Cost: no allocation for up to two descriptors.

use smallvec::SmallVec;

use super::Statuses;
use super::local::Local;
use super::plan::{Part, Plan};
use crate::backend::{Charge, Rule};
use crate::kernel::decision::{self, Cost, Finding, Reason, Verdict};
use crate::kernel::rate::{Room, Strategy};
use crate::kernel::units::{Hits, Nanos};

#[derive(Clone, Copy)]
struct Charged<'p> {
    place: usize,
    charge: &'p Charge,
    finding: &'p Finding,
    /// The strategy that counted the charge. `None` if it was not counted.
    strategy: Option<Strategy>,
}

/// Returns the wait after which `plan`, with the decisions `statuses`,
/// would be allowed if no other check came. `None` if no wait helps.
pub(super) fn wait(
    plan: &Plan<'_>,
    statuses: &Statuses,
    local: Option<&Local>,
    quota_for_all: bool,
) -> Option<Nanos> {
    let findings = statuses.iter().map(|status| &status.finding);
    let mut waits: SmallVec<[_; 2]> =
        findings.map(|finding| (finding.standing.group, finding.passes_in())).collect();
    // A denied all-or-nothing check was not charged, and a single charge has no earlier ones.
    if matches!(plan.charges.rule, Rule::Each) && 1 < plan.charges.list.len() {
        let mut charged = charged(plan, statuses, local);
        charged.sort_by(|a, b| a.charge.key.as_bytes().cmp(b.charge.key.as_bytes()));
        for same in charged.chunk_by(|a, b| a.charge.key == b.charge.key) {
            of_one_counter(same, |place, wait| {
                if let Some((_, waits)) = waits.get_mut(place) {
                    *waits = wait;
                }
            });
        }
    }
    decision::wait(waits.into_iter(), quota_for_all)
}

fn charged<'p>(
    plan: &'p Plan<'_>,
    statuses: &'p Statuses,
    local: Option<&Local>,
) -> SmallVec<[Charged<'p>; 2]> {
    let places = plan.parts.iter().zip(statuses).enumerate();
    let places = places.filter(|(_, (part, _))| Part::is_charged(part));
    let charged = places.zip(&plan.charges.list).map(|((place, (_, status)), charge)| {
        let finding = &status.finding;
        let strategy = match finding.reason {
            Reason::BackendDownLocal => local.and_then(|local| local.part_of(charge)),
            _ => finding.is_counted().then_some(charge.strategy),
        };
        Charged { place, charge, finding, strategy }
    });
    charged.collect()
}

/// Calls `say` with the wait of each charge to one
/// counter. A charge waits for the earlier ones too.
fn of_one_counter(same: &[Charged<'_>], mut say: impl FnMut(usize, Option<Nanos>)) {
    let counted = |one: &Charged<'_>| Some((one.strategy?, one.finding.room));
    let Some(last) = same.iter().rev().find_map(counted) else { return };
    let mut before = Hits(0);
    for one in same {
        let Some(strategy) = one.strategy else { continue };
        let hits = match one.charge.cost {
            Cost::Charge(hits) => hits,
            Cost::Refund(hits) => {
                before = before.less(hits);
                continue;
            }
        };
        let together = before.plus(hits);
        let wait = strategy.passes_in(left(last, strategy), together);
        // Hits that can never fit are not charged, except in a fixed window.
        if wait.is_some() || matches!(strategy, Strategy::FixedWindow(_)) {
            before = together;
        }
        let own = one.finding.passes_in();
        // The counter's own retry-after is more exact than one derived from its remaining hits.
        let is_known = same.len() == 1 && one.finding.verdict == Verdict::Deny;
        if !one.finding.standing.shadow && !is_known {
            say(one.place, own.zip(wait).map(|(own, wait)| own.max(wait)));
        }
    }
}

/// Returns the remaining hits of the counter after its last charge. Zero
/// for another strategy than that charge's, because its count is unknown.
fn left((last, room): (Strategy, Room), strategy: Strategy) -> Room {
    if last == strategy { room } else { Room { remaining: Hits(0), ..room } }
}
