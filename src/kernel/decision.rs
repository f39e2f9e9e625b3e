//! What is asked, what is answered, and how the answers of one question's descriptors combine.
//!
//! Guarantees: every verdict has a [`Reason`] from a closed list; the verdict of a question depends
//! on its findings alone, never on their timing.
//! Leaves out: finding the limit of a descriptor (`engine::plan`) and counting (`rate`).

use std::sync::Arc;

use smallvec::SmallVec;

use super::rate::{Room, Step};
use super::units::{Hits, Nanos, Unit};

/// One question: may these hits pass?
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// Envoy's domain.
    pub domain: &'a str,
    /// Each is matched and decided on its own.
    pub descriptors: SmallVec<[Descriptor<'a>; 2]>,
}

/// Envoy's descriptor: ordered entries, what they cost, and perhaps a limit of their own.
#[derive(Clone, Debug)]
pub struct Descriptor<'a> {
    /// Ordered `(key, value)` pairs.
    pub entries: SmallVec<[(&'a str, &'a str); 4]>,
    /// What the question costs here.
    pub cost: Cost,
    /// A limit carried in the request.
    pub limit: Option<Override>,
}

/// What a question puts to a counter, or takes from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Put these hits to the counter; zero peeks.
    Charge(Hits),
    /// Give these hits back.
    Refund(Hits),
}

/// A limit carried in a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Override {
    /// Requests per unit.
    pub requests: u32,
    /// The unit.
    pub unit: Unit,
}

/// Admit or deny.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// May pass.
    Admit,
    /// May not.
    Deny,
}

/// Why a descriptor was answered as it was: the closed list behind metrics, logs and headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reason {
    /// No rule matches, or the rule that matches has no limit.
    NoLimit,
    /// The rule says `unlimited`.
    Unlimited,
    /// Another rule of this question replaces this one.
    Replaced,
    /// An operator holds the limit at one answer: neither asked nor charged.
    Frozen,
    /// Counted and within the limit.
    WithinLimit,
    /// Hits were given back.
    Refunded,
    /// Counted and over the limit.
    OverLimit,
    /// More hits than the limit could ever admit.
    LargerThanLimit,
    /// Not asked and not charged; or not answered, where it may be charged, and without a word of its own (`on_backend_failure: error`):
    /// another limit of the question is known to deny it.
    NotAsked,
    /// The store of counters is full and this key is new: `when_full` decided.
    StoreFull,
    /// The store did not answer: `on_backend_failure: allow`.
    BackendDownAllowed,
    /// The store did not answer: `on_backend_failure: deny`.
    BackendDownDenied,
    /// The store did not answer: this replica's part decided, `on_backend_failure: local`.
    BackendDownLocal,
    /// The ceiling on requests in flight is reached, and nobody waits there.
    CeilingReached,
    /// The ceiling is reached, and so is the size of its queue.
    QueueFull,
    /// Waited in a ceiling's queue, and no permit came in time.
    QueueTimeout,
    /// There are as many buckets of ceilings as may be, `max_buckets`, and none was found that is idle.
    TooManyBuckets,
}

impl Reason {
    /// Every reason, in the order of their documentation.
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

    /// The reason as metrics, logs and headers spell it.
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

    /// Whether the store did not answer, and `on_backend_failure` did.
    #[must_use]
    pub const fn is_degraded(self) -> bool {
        matches!(self, Self::BackendDownAllowed | Self::BackendDownDenied | Self::BackendDownLocal)
    }
}

/// Why the store did not answer a charge: the closed list behind metrics, logs and errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// There is no connection.
    Unreachable,
    /// The connection was lost before the answer came. The charge may be made all the same.
    Cut,
    /// No answer within the deadline. The charge may be made all the same, later.
    Late,
    /// It waited for another question's message, which brought nothing in time, and was not sent.
    Unsent,
    /// Too many answers were late in a row, and it is not asked until it answers in time again.
    BreakerOpen,
    /// More calls are under way than the connection holds.
    Overloaded,
    /// An answer that is not one of ours.
    NotUnderstood,
    /// The time of the store lies outside the windows that were planned, twice.
    Stale,
    /// It is a replica, or may not write.
    ReadOnly,
    /// It is still reading its data, or its primary is gone.
    Loading,
    /// Something else lives under the key.
    WrongType,
    /// It has no memory left.
    OutOfMemory,
    /// It does not let us: user, password or rights.
    NotPermitted,
    /// Any other error.
    Failing,
}

impl Cause {
    /// Every cause, in the order of their discriminants.
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

    /// The cause as metrics, logs and errors spell it.
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

    /// Whether the store may have made a charge that failed for this, or can never make it. To charge it
    /// again would count it twice, as often as the store is a little late.
    #[must_use]
    pub const fn may_be_charged(self) -> bool {
        matches!(self, Self::Cut | Self::Late | Self::NotUnderstood | Self::WrongType)
    }
}

/// How a denial of one limit bears on the whole question.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Whose denials are weighed together.
    pub group: Group,
    /// A denial is reported and not enforced: to the group it is an admission.
    pub shadow: bool,
}

/// Whose denials are weighed together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Group {
    /// A denial denies the question.
    #[default]
    Enforced,
    /// A denial denies only when every limit of this group denies.
    Quota,
    /// Takes no part: unlimited.
    Aside,
}

impl Standing {
    /// What a counter's denial comes to.
    #[must_use]
    pub const fn verdict(self, denied: bool) -> Verdict {
        if denied && !self.shadow { Verdict::Deny } else { Verdict::Admit }
    }
}

/// The limit that decided a descriptor, as answers show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Requests per unit.
    pub requests: u32,
    /// The unit, where the period is one.
    pub unit: Option<Unit>,
    /// The period. For a calendar's window its nominal length.
    pub period: Nanos,
    /// The rule's name.
    pub name: Option<Arc<str>>,
}

/// What was found for one descriptor.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Admit or deny, shadow mode applied.
    pub verdict: Verdict,
    /// Why.
    pub reason: Reason,
    /// How a denial bears on the question.
    pub standing: Standing,
    /// The limit that decided, if one did.
    pub limit: Option<Shown>,
    /// What its counter has left.
    pub room: Room,
    /// On a denial: wait until these hits pass. `None` when waiting does not help.
    pub retry_after: Option<Nanos>,
}

impl Finding {
    /// A descriptor that no counter decided.
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

    /// The finding that a counter's step means under `limit`.
    ///
    /// `Stale` cannot be answered and is denied; the engine asks again before it comes to this.
    #[must_use]
    pub fn of_step(step: Step, limit: Shown, standing: Standing) -> Self {
        let mut finding = Self::settled(Reason::NoLimit, standing.group);
        (finding.standing, finding.limit) = (standing, Some(limit));
        finding.learn(step);
        finding
    }

    /// Becomes what a counter's step means under its limit and standing.
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

    /// Becomes a verdict that no counter gave, under its limit and standing.
    pub fn rule(&mut self, verdict: Verdict, reason: Reason) {
        (self.reason, self.room, self.retry_after) = (reason, Room::default(), None);
        self.verdict = self.standing.verdict(verdict == Verdict::Deny);
    }

    /// The wait after which this passes, as its counter said when it answered; `None` when none helps.
    #[must_use]
    pub const fn passes_in(&self) -> Option<Nanos> {
        match self.verdict {
            Verdict::Admit => Some(Nanos(0)),
            Verdict::Deny => self.retry_after,
        }
    }

    /// Whether a counter said what is left.
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

    /// The limit, where headers may be of it: one that let pass uncounted knows of no hits that are left, and would
    /// say none.
    #[must_use]
    pub fn told(&self) -> Option<&Shown> {
        let is_told = self.is_counted() || self.verdict == Verdict::Deny;
        self.limit.as_ref().filter(|_| is_told)
    }

    /// Whether the counter itself said no, whatever shadow mode made of it.
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

/// The verdict of a whole question over its descriptors' verdicts.
///
/// Denied when an enforced limit denies, or when there is a quota group and all of it denies.
/// With `quota_for_all` every descriptor but the unlimited ones is in that group, those without a
/// rule included.
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

/// The wait after which a denied question would pass if nobody else came, over those of its limits; `None` when none
/// helps.
///
/// Every enforced limit must pass, and of a quota group one member is enough.
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

/// Which finding the reference's three headers describe, of those that may be [told](Finding::told).
///
/// Scanning in order: a strictly smaller remaining than the best so far wins; an over-limit one
/// outside the quota group always wins, so the last such one does.
/// Source: `reference` §2.12.
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
