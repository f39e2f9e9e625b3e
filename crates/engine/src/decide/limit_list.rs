//! Combines the limits of a list `rate_limits` into one status for their descriptor.
//!
//! A check counts each limit of a list as if it had its own descriptor. But a decision has one
//! status and one vote for each descriptor.
//!
//! Guarantees:
//! - A descriptor is denied if one of its limits denies, also in the quota group.
//! - The status of a descriptor is that of its tightest limit: a denial first, then the fewest
//!   remaining hits, then the longest reset-after.
//! - A limit without a count is the tightest only if it denies, or if no limit has a count.
//! - A check without lists is not copied.
//!
//! Not covered:
//! - `compat.limits.quota_mode` with `charge: all_or_nothing`: a list that denies may be charged.

use std::cmp::Reverse;
use std::iter::repeat;

use smallvec::SmallVec;

use crate::config::Rule;
use crate::decide::limit_plan::LimitPlan;
use crate::decide::plan::CheckPlan;
use crate::kernel::decision::{Check, Descriptor, VoteGroup};
use crate::kernel::units::Nanos;
use crate::{Decision, LimitStatus};

impl<'c> CheckPlan<'c> {
    /// Returns the planned limits, each with its descriptor.
    pub(crate) fn with_descriptors<'p, 'd, 'q>(
        &'p self,
        check: &'d Check<'q>,
    ) -> impl Iterator<Item = (&'p LimitPlan<'c>, &'d Descriptor<'q>)> {
        let counts = check.descriptors.iter().zip(self.limit_counts());
        let descriptors =
            counts.flat_map(|(descriptor, count)| std::iter::repeat_n(descriptor, count));
        self.limits.iter().zip(descriptors)
    }

    /// Records that the last `count` planned limits belong to the descriptor `index`.
    pub(crate) fn group_last(&mut self, count: usize, index: usize) {
        self.counts.resize(index, 1);
        self.counts.push(u8::try_from(count).unwrap_or(u8::MAX));
    }

    /// Returns the number of planned limits of each descriptor. The iterator is endless.
    fn limit_counts(&self) -> impl Iterator<Item = usize> {
        self.counts.iter().copied().chain(repeat(1)).map(usize::from)
    }

    /// Returns the rule of each descriptor; `None` if no limit of the rule applies.
    pub(crate) fn rules(&self) -> impl Iterator<Item = Option<&Rule>> {
        let mut rest = &*self.limits;
        let lists = self.limit_counts().map_while(move |count| rest.split_off(..count));
        lists.map(|limits| limits.iter().find_map(LimitPlan::rule))
    }

    /// Returns the wait of each descriptor: the longest of its limits.
    pub(crate) fn fold_waits(&self, waits: Waits) -> Waits {
        if self.counts.is_empty() {
            return waits;
        }
        let mut rest = &*waits;
        let counts = self.limit_counts().map_while(|count| rest.split_off(..count));
        counts.filter_map(longest).collect()
    }

    /// Replaces the statuses of limits in `decision` by statuses of descriptors, and moves the
    /// statuses of limits to [`Decision::limit_statuses`].
    pub(crate) fn fold_statuses(&self, decision: &mut Decision) {
        if self.counts.is_empty() {
            return;
        }
        decision.limit_statuses = std::mem::take(&mut decision.statuses).into_vec();
        let mut rest = &*decision.limit_statuses;
        let counts = self.limit_counts().map_while(|count| rest.split_off(..count));
        decision.statuses = counts.filter_map(tightest).cloned().collect();
    }
}

/// The wait until each limit or descriptor allows the check, with its vote group. `None`: it never
/// allows the check.
pub(crate) type Waits = SmallVec<[(VoteGroup, Option<Nanos>); 2]>;

fn longest(waits: &[(VoteGroup, Option<Nanos>)]) -> Option<(VoteGroup, Option<Nanos>)> {
    let &(group, _) = waits.first()?;
    let longest = waits.iter().try_fold(Nanos(0), |longest, (_, wait)| Some(longest.max((*wait)?)));
    Some((group, longest))
}

fn tightest(statuses: &[LimitStatus]) -> Option<&LimitStatus> {
    statuses.iter().min_by_key(|LimitStatus { decision, .. }| {
        let headroom = decision.headroom;
        (
            !decision.is_denied,
            !decision.is_counted(),
            headroom.remaining,
            Reverse(headroom.reset_after),
        )
    })
}
