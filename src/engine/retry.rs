//! When a denied question may come again.
//!
//! Guarantees: asked as a whole after the wait it passes, if nobody else came: what it was charged itself is waited for. No
//! wait is said where its hits on one counter never pass together. Of a question whose denial is remembered, what was not asked is
//! taken to pass. Cost: no allocation for up to two descriptors.
//! Leaves out: when one limit passes (`kernel::rate`) and which of them must (`kernel::decision`).

use smallvec::SmallVec;

use super::Statuses;
use super::local::Local;
use super::plan::{Part, Plan};
use crate::backend::{Charge, Rule};
use crate::kernel::decision::{self, Cost, Finding, Reason, Verdict};
use crate::kernel::rate::{Room, Strategy};
use crate::kernel::units::{Hits, Nanos};

/// A charge and what was found.
#[derive(Clone, Copy)]
struct Charged<'p> {
    place: usize,
    charge: &'p Charge,
    finding: &'p Finding,
    /// What it was counted under; nothing where it was not.
    strategy: Option<Strategy>,
}

/// The wait after which `plan`, which came to `statuses`, would pass if nobody else came; `None` when none helps.
pub(super) fn wait(
    plan: &Plan<'_>,
    statuses: &Statuses,
    local: Option<&Local>,
    quota_for_all: bool,
) -> Option<Nanos> {
    let findings = statuses.iter().map(|status| &status.finding);
    let mut waits: SmallVec<[_; 2]> =
        findings.map(|finding| (finding.standing.group, finding.passes_in())).collect();
    // Where all is charged or nothing, those that denied say it all, and so does one alone.
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

/// The charges of `plan`.
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

/// Says how long each of the charges that one counter was asked for, in order, has to wait for itself and for those before it.
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
        // What never passes costs nothing, but in a window.
        if wait.is_some() || matches!(strategy, Strategy::FixedWindow(_)) {
            before = together;
        }
        let own = one.finding.passes_in();
        // The counter itself knows better than what it left does.
        let is_known = same.len() == 1 && one.finding.verdict == Verdict::Deny;
        if !one.finding.standing.shadow && !is_known {
            say(one.place, own.zip(wait).map(|(own, wait)| own.max(wait)));
        }
    }
}

/// What the counter had left after its last charge, by `strategy`: of another number of hits nothing is known.
fn left((last, room): (Strategy, Room), strategy: Strategy) -> Room {
    if last == strategy { room } else { Room { remaining: Hits(0), ..room } }
}
