//! Types of a check and its decision, and the rules that combine the descriptors' decisions.
//!
//! Guarantees:
//! - Every verdict has a [`Reason`] from a closed list.
//! - The verdict of a check depends on its descriptors' decisions alone, never on timing.

mod rule_verdict;

use std::sync::Arc;

use smallvec::SmallVec;

use super::rate::{CounterDecision, Headroom};
use super::units::{Hits, Nanos, Unit};
pub use rule_verdict::RuleVerdict;

/// A check: one rate limit request from a proxy.
#[derive(Clone, Debug)]
pub struct Check<'a> {
    /// Envoy's domain.
    pub domain: &'a str,
    /// Descriptors, each matched and decided separately.
    pub descriptors: SmallVec<[Descriptor<'a>; 2]>,
}

impl<'a> Check<'a> {
    /// Returns the value of the first entry with this key, in any descriptor.
    #[must_use]
    pub fn value_of(&self, key: &str) -> Option<&'a str> {
        let mut entries = self.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
        entries.find(|(name, _)| *name == key).map(|(_, value)| *value)
    }
}

/// An Envoy descriptor: ordered entries, hits, and an optional limit override.
#[derive(Clone, Debug)]
pub struct Descriptor<'a> {
    /// Ordered `(key, value)` pairs.
    pub entries: SmallVec<[(&'a str, &'a str); 4]>,
    /// The hits that this descriptor adds or refunds.
    pub cost: Cost,
    /// A limit from the request; it overrides the configured one.
    pub limit: Option<LimitOverride>,
}

/// The change that a check makes to a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Adds hits; 0 hits only peek.
    Charge(Hits),
    /// Refunds hits.
    Refund(Hits),
}

/// A limit carried in the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitOverride {
    /// Requests per unit.
    pub requests: u32,
    /// The unit of time.
    pub unit: Unit,
}

/// Allow or deny.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request may pass.
    Allow,
    /// The request is over a limit.
    Deny,
}

crate::named_enum! {
    /// The reason for a descriptor's verdict: the closed list that metrics, logs and headers use.
    pub enum Reason {
        /// No rule matches, or the matching rule has no limit.
        NoLimit = "no_limit",
        /// The rule says `unlimited`.
        Unlimited = "unlimited",
        /// Another rule of this check replaces this rule.
        Replaced = "replaced",
        /// An operator forced the decision; no counter was read or charged.
        Forced = "forced",
        /// Counted and within the limit.
        WithinLimit = "within_limit",
        /// Hits were refunded.
        Refunded = "refunded",
        /// Counted and over the limit.
        OverLimit = "over_limit",
        /// The key is banned by the limit's `penalty`; no counter was read or charged.
        Banned = "banned",
        /// The check has more hits than the limit can ever allow.
        LargerThanLimit = "larger_than_limit",
        /// Another limit is known to deny the check, so this limit was not charged.
        ///
        /// Also used for a limit with `on_store_failure: error`
        /// whose store call failed. That limit may have been charged.
        Skipped = "skipped",
        /// The memory store is full and has no counter for this key: `when_full` decided. For a budget:
        /// the store is full, or the budget has 65,536 requests in flight.
        StoreFull = "store_full",
        /// The store call failed: `on_store_failure: allow`.
        StoreDownAllowed = "store_unavailable_allowed",
        /// The store call failed: `on_store_failure: deny`.
        StoreDownDenied = "store_unavailable_denied",
        /// The store call failed: the local share decided (`on_store_failure: local`).
        StoreDownLocal = "store_unavailable_local",
        /// The concurrency limit is reached and it has no queue.
        ConcurrencyLimitReached = "concurrency_limit_reached",
        /// The concurrency limit is reached and its queue is full.
        QueueFull = "queue_full",
        /// The request waited in the queue and got no permit before the queue timeout.
        QueueTimeout = "queue_timeout",
        /// The number of buckets reached `max_buckets` and no bucket was idle.
        TooManyBuckets = "too_many_buckets",
        /// The budget is spent until its next period or top-up.
        BudgetSpent = "budget_spent",
        /// Requests in flight hold the rest of the budget.
        BudgetHeld = "budget_held",
        /// The estimated cost is above the budget of a whole period.
        LargerThanBudget = "larger_than_budget",
        /// The id of a reserve is in flight, or has ended: one id is for one request.
        RepeatedId = "repeated_id",
        /// The model of the request has no price, so a budget of money cannot be kept.
        NoPrice = "no_price",
    }
}

impl Reason {
    /// Returns `true` if the store call failed and `on_store_failure` decided.
    #[must_use]
    pub const fn is_fallback(self) -> bool {
        matches!(self, Self::StoreDownAllowed | Self::StoreDownDenied | Self::StoreDownLocal)
    }
}

crate::named_enum! {
    /// The cause of a failed store call: the closed list that metrics, logs and errors use.
    pub enum StoreFailure {
        /// No connection to the store.
        Unreachable = "unreachable",
        /// The connection was lost before the reply arrived. The store may have made the charge.
        ConnectionLost = "connection_lost",
        /// No reply before the deadline. The store may have made the charge, or may still make it.
        TimedOut = "timed_out",
        /// The charge was never sent: its check waited for another check's store call, which failed or
        /// took too long.
        Unsent = "unsent",
        /// The circuit breaker is open after repeated
        /// timeouts; it closes once the store replies in time.
        BreakerOpen = "breaker_open",
        /// The connection has too many calls in flight.
        Overloaded = "overloaded",
        /// The reply has an unexpected format.
        InvalidReply = "invalid_reply",
        /// By the store's clock, the planned calendar windows were not open, twice in a row.
        OutsideWindows = "outside_windows",
        /// The store is a read-only Redis replica.
        ReadOnly = "read_only",
        /// The store is still loading its data, or it lost its primary.
        Loading = "loading",
        /// The key has a value of another type.
        WrongType = "wrong_type",
        /// The store is out of memory.
        OutOfMemory = "out_of_memory",
        /// The store rejected the user, the password or the command (permissions).
        NotPermitted = "not_permitted",
        /// The charge was made in memory, and cannot be saved in the file.
        NotSaved = "not_saved",
        /// Any other error.
        Other = "other",
    }
}

impl StoreFailure {
    /// Returns `true` if the charge must not be repeated.
    ///
    /// The store may already have made it (`ConnectionLost`, `TimedOut`, `InvalidReply`), and a
    /// second charge would count the hits twice. With `WrongType` no charge can succeed.
    #[must_use]
    pub const fn is_unsafe_to_repeat(self) -> bool {
        matches!(self, Self::ConnectionLost | Self::TimedOut | Self::InvalidReply | Self::WrongType)
    }
}

/// The effect of one limit's denial on the verdict of the check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Enforcement {
    /// The role of the limit's verdict in the verdict of the check.
    pub group: VoteGroup,
    /// Shadow mode: a denial is reported, but counts as an allow.
    pub shadow: bool,
}

/// The role of a limit's verdict in the verdict of the check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VoteGroup {
    /// A denial by this limit alone denies the check.
    #[default]
    Enforced,
    /// The quota group: the check is denied only if every limit of this group denies.
    Quota,
    /// The verdict is ignored, because the rule of the descriptor says `unlimited`.
    Unlimited,
}

impl Enforcement {
    /// Returns the verdict of a limit that `denied` the hits or not; in shadow mode always allow.
    #[must_use]
    pub const fn enforced_verdict(self, denied: bool) -> Verdict {
        if denied && !self.shadow { Verdict::Deny } else { Verdict::Allow }
    }
}

/// The limit that decided a descriptor, as responses to the proxy show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedLimit {
    /// Requests per period.
    pub requests: u32,
    /// The unit, if the period is exactly one unit.
    pub unit: Option<Unit>,
    /// The period. A calendar window has its nominal length.
    pub period: Nanos,
    /// The rule's name.
    pub name: Option<Arc<str>>,
}

/// The decision for one descriptor.
#[derive(Clone, Debug)]
pub struct DescriptorDecision {
    /// Allow or deny, after shadow mode.
    pub verdict: Verdict,
    /// `true` if the limit denied, before shadow mode.
    pub is_denied: bool,
    /// The reason for the verdict.
    pub reason: Reason,
    /// The effect of a denial on the check.
    pub enforcement: Enforcement,
    /// The limit that decided, if one did.
    pub limit: Option<AppliedLimit>,
    /// The remaining hits and the reset-after of the limit's counter.
    pub headroom: Headroom,
    /// On a denial: the time until the descriptor's hits would be allowed. `None` if they never
    /// would be.
    pub retry_after: Option<Nanos>,
}

impl DescriptorDecision {
    /// Creates an allow for a descriptor whose hits no counter counts.
    #[must_use]
    pub const fn uncounted(reason: Reason, group: VoteGroup) -> Self {
        Self {
            verdict: Verdict::Allow,
            is_denied: false,
            reason,
            enforcement: Enforcement { group, shadow: false },
            limit: None,
            headroom: Headroom { remaining: Hits(0), reset_after: Nanos(0) },
            retry_after: None,
        }
    }

    /// Sets the verdict, reason and headroom from `result`, the counter's result.
    /// [`CounterDecision::OutsideWindows`] becomes a denial, but the engine plans and charges such
    /// a check again.
    #[inline]
    pub fn apply_counter(&mut self, result: CounterDecision) {
        (self.reason, self.headroom, self.retry_after) = match result {
            CounterDecision::Allow(room) => (Reason::WithinLimit, room, None),
            CounterDecision::Deny { retry_after, headroom: room } => {
                (Reason::OverLimit, room, Some(retry_after))
            }
            CounterDecision::ExceedsLimit(room) => (Reason::LargerThanLimit, room, None),
            CounterDecision::OutsideWindows => (Reason::OverLimit, Headroom::default(), None),
        };
        self.is_denied = self.reason != Reason::WithinLimit;
        self.verdict = self.enforcement.enforced_verdict(self.is_denied);
    }

    /// Sets a verdict that no counter made, for example by the store fallback.
    pub fn set_verdict(&mut self, verdict: Verdict, reason: Reason) {
        (self.reason, self.headroom, self.retry_after) = (reason, Headroom::default(), None);
        self.is_denied = verdict == Verdict::Deny;
        self.verdict = self.enforcement.enforced_verdict(self.is_denied);
    }

    /// Denies because of a ban that ends after `left`.
    pub fn ban(&mut self, left: Nanos) {
        self.set_verdict(Verdict::Deny, Reason::Banned);
        self.headroom.reset_after = left;
        self.retry_after = Some(left);
    }

    /// Returns the time from the counter's reply until the descriptor's hits are allowed; `None`
    /// means never.
    #[must_use]
    pub const fn time_until_allowed(&self) -> Option<Nanos> {
        match self.verdict {
            Verdict::Allow => Some(Nanos(0)),
            Verdict::Deny => self.retry_after,
        }
    }

    /// Returns `true` if the headroom comes from a counter or a local share.
    #[must_use]
    pub const fn is_counted(&self) -> bool {
        matches!(
            self.reason,
            Reason::WithinLimit
                | Reason::Refunded
                | Reason::OverLimit
                | Reason::LargerThanLimit
                | Reason::StoreDownLocal
        )
    }

    /// Returns the limit if response headers may report it. If a request was allowed without
    /// counting, its remaining hits are unknown, not 0.
    #[must_use]
    pub fn header_limit(&self) -> Option<&AppliedLimit> {
        let is_reported = self.is_counted() || self.verdict == Verdict::Deny;
        self.limit.as_ref().filter(|_| is_reported)
    }
}

/// Combines the descriptors' verdicts into the verdict of the check. The check is denied if an
/// enforced limit denies, or if all limits of the quota group deny. With `quota_for_all`, every
/// descriptor is in the quota group, also one without a rule. Only unlimited descriptors are left
/// out.
pub fn combine(votes: impl Iterator<Item = (VoteGroup, Verdict)>, quota_for_all: bool) -> Verdict {
    let (mut quota, mut quota_denies) = (false, true);
    for (group, verdict) in votes {
        let denies = verdict == Verdict::Deny;
        match group {
            VoteGroup::Unlimited => {}
            VoteGroup::Enforced if !quota_for_all => {
                if denies {
                    return Verdict::Deny;
                }
            }
            VoteGroup::Enforced | VoteGroup::Quota => {
                quota = true;
                quota_denies &= denies;
            }
        }
    }
    if quota && quota_denies { Verdict::Deny } else { Verdict::Allow }
}

/// Combines the waits of the limits into the time until the whole check would be allowed. The time
/// assumes no other traffic. `None` means that waiting never helps. Every enforced limit must pass;
/// in the quota group one limit is enough.
pub fn combined_wait(
    waits: impl Iterator<Item = (VoteGroup, Option<Nanos>)>,
    quota_for_all: bool,
) -> Option<Nanos> {
    let (mut all, mut quota, mut shortest) = (Nanos(0), false, None);
    for (group, wait) in waits {
        match group {
            VoteGroup::Unlimited => {}
            VoteGroup::Enforced if !quota_for_all => all = all.max(wait?),
            VoteGroup::Enforced | VoteGroup::Quota => {
                quota = true;
                shortest = shortest.into_iter().chain(wait).min();
            }
        }
    }
    if quota { shortest.map(|shortest: Nanos| shortest.max(all)) } else { Some(all) }
}

/// Returns the index of the decision that the three headers of envoyproxy/ratelimit describe.
///
/// The search considers only limits that headers may report (see
/// [`DescriptorDecision::header_limit`]). The smallest `remaining` wins; among equals, the first
/// one. A denial outside the quota group wins over both; among several such denials, the last one.
/// envoyproxy/ratelimit has the same order.
#[must_use]
pub fn binding_index<'f>(
    decisions: impl Iterator<Item = &'f DescriptorDecision>,
    quota_for_all: bool,
) -> Option<usize> {
    let mut best = (None, u64::from(u32::MAX));
    for (index, decision) in decisions.enumerate() {
        if decision.header_limit().is_none() {
            continue;
        }
        let quota = quota_for_all || decision.enforcement.group == VoteGroup::Quota;
        if decision.headroom.remaining.0 < best.1 {
            best = (Some(index), decision.headroom.remaining.0);
        }
        if decision.verdict == Verdict::Deny && !quota {
            best = (Some(index), 0);
        }
    }
    best.0
}
