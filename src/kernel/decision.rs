//! Types of a check and its decision, and the rules that combine the descriptors' decisions.
//!
//! Guarantees:
//! - Every verdict has a [`Reason`] from a closed list.
//! - The verdict of a check depends on its descriptors' decisions alone, never on timing.
//!
//! Not covered:
//! - Finding the limit of a descriptor (see `engine::plan`).
//! - Counting hits (see `rate`).

use std::sync::Arc;

use smallvec::SmallVec;

use super::rate::{Room, Step};
use super::units::{Hits, Nanos, Unit};

/// A check: one rate limit request from a proxy.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// Envoy's domain.
    pub domain: &'a str,
    /// Descriptors, each matched and decided separately.
    pub descriptors: SmallVec<[Descriptor<'a>; 2]>,
}

/// An Envoy descriptor: ordered entries, hits, and an optional limit override.
#[derive(Clone, Debug)]
pub struct Descriptor<'a> {
    /// Ordered `(key, value)` pairs.
    pub entries: SmallVec<[(&'a str, &'a str); 4]>,
    /// The hits that this descriptor adds or refunds.
    pub cost: Cost,
    /// A limit from the request; it overrides the configured one.
    pub limit: Option<Override>,
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
pub struct Override {
    /// Requests per unit.
    pub requests: u32,
    /// The unit of time.
    pub unit: Unit,
}

/// Allow or deny.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request may pass.
    Admit,
    /// The request is over a limit.
    Deny,
}

/// The reason for a descriptor's verdict: the closed list that metrics, logs and headers use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No rule matches, or the matching rule has no limit.
    NoLimit,
    /// The rule says `unlimited`.
    Unlimited,
    /// Another rule of this check replaces this rule.
    Replaced,
    /// An operator forced the decision; no counter was read or charged.
    Frozen,
    /// Counted and within the limit.
    WithinLimit,
    /// Hits were refunded.
    Refunded,
    /// Counted and over the limit.
    OverLimit,
    /// The check has more hits than the limit can ever allow.
    LargerThanLimit,
    /// Another limit is known to deny the check, so this limit was not charged.
    ///
    /// Also used for a limit with `on_backend_failure: error`
    /// whose store call failed. That limit may have been charged.
    NotAsked,
    /// The memory store is full and this key is new: `when_full` decided.
    StoreFull,
    /// The store call failed: `on_backend_failure: allow`.
    BackendDownAllowed,
    /// The store call failed: `on_backend_failure: deny`.
    BackendDownDenied,
    /// The store call failed: the local share decided (`on_backend_failure: local`).
    BackendDownLocal,
    /// The concurrency limit is reached and it has no queue.
    CeilingReached,
    /// The concurrency limit is reached and its queue is full.
    QueueFull,
    /// The request waited in the queue and got no permit before the queue timeout.
    QueueTimeout,
    /// The number of buckets reached `max_buckets` and no bucket was idle.
    TooManyBuckets,
}

impl Reason {
    /// Every reason, in declaration order.
    pub const ALL: [Self; 17] = [
        Self::NoLimit,
        Self::Unlimited,
        Self::Replaced,
        Self::Frozen,
        Self::WithinLimit,
        Self::Refunded,
        Self::OverLimit,
        Self::LargerThanLimit,
        Self::NotAsked,
        Self::StoreFull,
        Self::BackendDownAllowed,
        Self::BackendDownDenied,
        Self::BackendDownLocal,
        Self::CeilingReached,
        Self::QueueFull,
        Self::QueueTimeout,
        Self::TooManyBuckets,
    ];

    /// Returns the name used in metrics, logs and headers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoLimit => "no_limit",
            Self::Unlimited => "unlimited",
            Self::Replaced => "replaced",
            Self::Frozen => "frozen",
            Self::WithinLimit => "within_limit",
            Self::Refunded => "refunded",
            Self::OverLimit => "over_limit",
            Self::LargerThanLimit => "larger_than_limit",
            Self::NotAsked => "not_asked",
            Self::StoreFull => "store_full",
            Self::BackendDownAllowed => "backend_down_allowed",
            Self::BackendDownDenied => "backend_down_denied",
            Self::BackendDownLocal => "backend_down_local",
            Self::CeilingReached => "ceiling_reached",
            Self::QueueFull => "queue_full",
            Self::QueueTimeout => "queue_timeout",
            Self::TooManyBuckets => "too_many_buckets",
        }
    }

    /// Returns `true` if the store call failed and `on_backend_failure` decided.
    #[must_use]
    pub const fn is_degraded(self) -> bool {
        matches!(self, Self::BackendDownAllowed | Self::BackendDownDenied | Self::BackendDownLocal)
    }
}

/// Why a store call failed: the closed list that metrics, logs and errors use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// No connection to the store.
    Unreachable,
    /// The connection was lost before the reply arrived. The store may have made the charge.
    Cut,
    /// No reply before the deadline. The store may have made the charge, or may still make it.
    Late,
    /// Never sent: the check waited for another check's store call, which failed or took too long.
    Unsent,
    /// The circuit breaker is open after repeated
    /// timeouts; it closes once the store replies in time.
    BreakerOpen,
    /// The connection has too many calls in flight.
    Overloaded,
    /// The reply has an unexpected format.
    NotUnderstood,
    /// The store's clock was outside the planned calendar windows, twice in a row.
    Stale,
    /// The store is a read-only replica.
    ReadOnly,
    /// The store is still loading its data, or it lost its primary.
    Loading,
    /// The key has a value of another type.
    WrongType,
    /// The store is out of memory.
    OutOfMemory,
    /// The store rejected the user, the password or the command (permissions).
    NotPermitted,
    /// Any other error.
    Failing,
}

impl Cause {
    /// Every failure, in declaration order.
    pub const ALL: [Self; 14] = [
        Self::Unreachable,
        Self::Cut,
        Self::Late,
        Self::Unsent,
        Self::BreakerOpen,
        Self::Overloaded,
        Self::NotUnderstood,
        Self::Stale,
        Self::ReadOnly,
        Self::Loading,
        Self::WrongType,
        Self::OutOfMemory,
        Self::NotPermitted,
        Self::Failing,
    ];

    /// Returns the name used in metrics, logs and errors.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Cut => "cut",
            Self::Late => "late",
            Self::Unsent => "unsent",
            Self::BreakerOpen => "breaker_open",
            Self::Overloaded => "overloaded",
            Self::NotUnderstood => "not_understood",
            Self::Stale => "stale",
            Self::ReadOnly => "read_only",
            Self::Loading => "loading",
            Self::WrongType => "wrong_type",
            Self::OutOfMemory => "out_of_memory",
            Self::NotPermitted => "not_permitted",
            Self::Failing => "failing",
        }
    }

    /// Returns `true` if the charge must not be repeated.
    ///
    /// The store may already have made it (`Cut`, `Late`, `NotUnderstood`), and a second
    /// charge would count the hits twice. With `WrongType` no charge can succeed.
    #[must_use]
    pub const fn may_be_charged(self) -> bool {
        matches!(self, Self::Cut | Self::Late | Self::NotUnderstood | Self::WrongType)
    }
}

/// The effect of one limit's denial on the verdict of the check.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The group that this limit votes in.
    pub group: Group,
    /// Shadow mode: a denial is reported, and counts as an allow in the group.
    pub shadow: bool,
}

/// The group that a limit votes in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Group {
    /// One denial denies the check.
    #[default]
    Enforced,
    /// The check is denied only if every limit of this group denies.
    Quota,
    /// Ignored, because the descriptor is unlimited.
    Aside,
}

impl Standing {
    /// Returns the verdict after shadow mode.
    #[must_use]
    pub const fn verdict(self, denied: bool) -> Verdict {
        if denied && !self.shadow { Verdict::Deny } else { Verdict::Admit }
    }
}

/// The limit that decided a descriptor, as replies show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
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
pub struct Finding {
    /// Allow or deny, after shadow mode.
    pub verdict: Verdict,
    /// The reason for the verdict.
    pub reason: Reason,
    /// The effect of a denial on the check.
    pub standing: Standing,
    /// The limit that decided, if one did.
    pub limit: Option<Shown>,
    /// The hits that its counter has left, and when it resets.
    pub room: Room,
    /// On a denial: the time until these hits would be allowed. `None` if they never would be.
    pub retry_after: Option<Nanos>,
}

impl Finding {
    /// Creates a decision that no counter made.
    #[must_use]
    pub const fn settled(reason: Reason, group: Group) -> Self {
        Self {
            verdict: Verdict::Admit,
            reason,
            standing: Standing { group, shadow: false },
            limit: None,
            room: Room { remaining: Hits(0), reset_after: Nanos(0) },
            retry_after: None,
        }
    }

    /// Creates the decision for the counter result `step` under `limit`.
    ///
    /// A `Stale` result becomes a denial. The engine plans and charges again before it calls this.
    #[must_use]
    pub fn of_step(step: Step, limit: Shown, standing: Standing) -> Self {
        let mut finding = Self::settled(Reason::NoLimit, standing.group);
        (finding.standing, finding.limit) = (standing, Some(limit));
        finding.learn(step);
        finding
    }

    /// Sets the decision to the counter result `step`.
    #[inline]
    pub fn learn(&mut self, step: Step) {
        (self.reason, self.room, self.retry_after) = match step {
            Step::Admit(room) => (Reason::WithinLimit, room, None),
            Step::Deny { retry_after, room } => (Reason::OverLimit, room, Some(retry_after)),
            Step::Never(room) => (Reason::LargerThanLimit, room, None),
            Step::Stale => (Reason::OverLimit, Room::default(), None),
        };
        self.verdict = self.standing.verdict(self.reason != Reason::WithinLimit);
    }

    /// Sets a verdict that no counter made, for example by the store fallback.
    pub fn rule(&mut self, verdict: Verdict, reason: Reason) {
        (self.reason, self.room, self.retry_after) = (reason, Room::default(), None);
        self.verdict = self.standing.verdict(verdict == Verdict::Deny);
    }

    /// Returns the time until these hits are allowed,
    /// as of the counter's reply; `None` means never.
    #[must_use]
    pub const fn passes_in(&self) -> Option<Nanos> {
        match self.verdict {
            Verdict::Admit => Some(Nanos(0)),
            Verdict::Deny => self.retry_after,
        }
    }

    /// Returns `true` if `room` comes from a counter or a local share.
    #[must_use]
    pub const fn is_counted(&self) -> bool {
        matches!(
            self.reason,
            Reason::WithinLimit
                | Reason::Refunded
                | Reason::OverLimit
                | Reason::LargerThanLimit
                | Reason::BackendDownLocal
        )
    }

    /// Returns the limit if headers may report it.
    ///
    /// A request that was allowed without counting has no known remaining
    /// hits. Headers would report 0, so such a limit is left out.
    #[must_use]
    pub fn told(&self) -> Option<&Shown> {
        let is_told = self.is_counted() || self.verdict == Verdict::Deny;
        self.limit.as_ref().filter(|_| is_told)
    }

    /// Returns `true` if the counter was over its limit, even in shadow mode.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        match self.reason {
            Reason::OverLimit | Reason::LargerThanLimit => true,
            Reason::StoreFull | Reason::BackendDownDenied | Reason::BackendDownLocal => {
                matches!(self.verdict, Verdict::Deny)
            }
            _ => false,
        }
    }
}

/// Combines the descriptors' verdicts into the verdict of the check.
///
/// The check is denied if an enforced limit denies, or if all limits of the
/// quota group deny. With `quota_for_all`, every descriptor is in the quota
/// group, also one without a rule. Only unlimited descriptors are left out.
pub fn combine(votes: impl Iterator<Item = (Group, Verdict)>, quota_for_all: bool) -> Verdict {
    let (mut quota, mut quota_denies) = (false, true);
    for (group, verdict) in votes {
        let denies = verdict == Verdict::Deny;
        match group {
            Group::Aside => {}
            Group::Enforced if !quota_for_all => {
                if denies {
                    return Verdict::Deny;
                }
            }
            Group::Enforced | Group::Quota => {
                quota = true;
                quota_denies &= denies;
            }
        }
    }
    if quota && quota_denies { Verdict::Deny } else { Verdict::Admit }
}

/// Combines the waits of the limits into the time until the whole check would be allowed.
///
/// The time assumes no other traffic. `None` means that waiting never helps.
/// Every enforced limit must pass; in the quota group one limit is enough.
pub fn wait(
    waits: impl Iterator<Item = (Group, Option<Nanos>)>,
    quota_for_all: bool,
) -> Option<Nanos> {
    let (mut all, mut quota, mut shortest) = (Nanos(0), false, None);
    for (group, wait) in waits {
        match group {
            Group::Aside => {}
            Group::Enforced if !quota_for_all => all = all.max(wait?),
            Group::Enforced | Group::Quota => {
                quota = true;
                shortest = shortest.into_iter().chain(wait).min();
            }
        }
    }
    if quota { shortest.map(|shortest: Nanos| shortest.max(all)) } else { Some(all) }
}

/// Returns the index of the decision that the three headers of envoyproxy/ratelimit describe.
///
/// The scan considers only limits that headers may report (see [`Finding::told`]). A
/// strictly smaller `remaining` replaces the best so far. A denial outside the quota
/// group always replaces it, so the last such denial wins. Source: `reference` §2.12.
#[must_use]
pub fn binding<'f>(
    findings: impl Iterator<Item = &'f Finding>,
    quota_for_all: bool,
) -> Option<usize> {
    let mut best = (None, u64::from(u32::MAX));
    for (index, finding) in findings.enumerate() {
        if finding.told().is_none() {
            continue;
        }
        let quota = quota_for_all || finding.standing.group == Group::Quota;
        if finding.room.remaining.0 < best.1 {
            best = (Some(index), finding.room.remaining.0);
        }
        if finding.verdict == Verdict::Deny && !quota {
            best = (Some(index), 0);
        }
    }
    best.0
}
