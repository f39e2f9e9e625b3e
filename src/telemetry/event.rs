//! The events that metrics count, one type each.
//!
//! Guarantees:
//! - `emit` counts in [`METRICS`]; `count` counts in any other set.
//! - Both cost a few relaxed additions, mostly to memory of the calling thread.
//!
//! Not covered:
//! - Names, units and labels of metrics (see [`super::metrics`]).

use super::metrics::{METRICS, Metrics};
use crate::kernel::decision::{Cause, Reason, Verdict};
use crate::kernel::units::{Hits, Nanos, Revision};

/// A check was decided.
#[derive(Clone, Copy, Debug)]
pub struct Decided<R> {
    /// The overall verdict, after global shadow mode.
    pub verdict: Verdict,
    /// `true` if global shadow mode turned a denial into an allowed check.
    pub shadowed: bool,
    /// One reason for each descriptor.
    pub reasons: R,
    /// The number of descriptors that were allowed beyond `near_limit_ratio` of their limit.
    pub near: u64,
}

impl<R: Iterator<Item = Reason>> Decided<R> {
    /// Counts this in the process's metrics.
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.decided(self.verdict, self.shadowed, self.reasons, self.near);
    }
}

/// A concurrency limit rejected a request, or would have without shadow mode.
#[derive(Clone, Copy, Debug)]
pub struct CeilingReached {
    /// One of [`Self::REASONS`].
    pub reason: Reason,
    /// `false` if shadow mode allowed the request.
    pub enforced: bool,
}

impl CeilingReached {
    /// Every reason of a rejection by a concurrency limit.
    pub const REASONS: [Reason; 4] =
        [Reason::CeilingReached, Reason::QueueFull, Reason::QueueTimeout, Reason::TooManyBuckets];

    /// Counts this in the process's metrics.
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.ceiling_reached(self);
    }
}

/// A counted event of a request id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdSeen(pub IdEvent);

/// An event in the life cycle of a request id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdEvent {
    /// The id acquired permits.
    Acquired,
    /// A second acquire was rejected, because the id waits or has permits already.
    Taken,
    /// The release came before the acquire, so its permits were released at once.
    Over,
    /// The deadline was extended, because the request is still active.
    Renewed,
    /// The permits were released.
    Released,
    /// A release without permits: the request was rejected or matched no concurrency limit.
    HeldNothing,
    /// The release came before the acquire and is remembered.
    Early,
    /// The release came before the acquire and could not be remembered: the table is full.
    Refused,
    /// The deadline released the permits.
    Expired,
}

impl IdEvent {
    /// Every event, in the order of their discriminants.
    pub const ALL: [Self; 9] = [
        Self::Acquired,
        Self::Taken,
        Self::Over,
        Self::Renewed,
        Self::Released,
        Self::HeldNothing,
        Self::Early,
        Self::Refused,
        Self::Expired,
    ];

    /// The value of the metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acquired => "acquired",
            Self::Taken => "taken",
            Self::Over => "over",
            Self::Renewed => "renewed",
            Self::Released => "released",
            Self::HeldNothing => "held_nothing",
            Self::Early => "early",
            Self::Refused => "refused",
            Self::Expired => "expired",
        }
    }
}

impl IdSeen {
    /// Counts this in the process's metrics.
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.id_seen(self);
    }
}

/// A decoded check received its reply, which may be an error.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    /// The instant at which the message was decoded, since the Unix epoch.
    pub came: Nanos,
    /// The instant at which the reply was ready to be encoded, since the Unix epoch.
    pub at: Nanos,
    /// The time in queues of concurrency limits. It is subtracted, because it measures the
    /// requests in flight and not this service.
    pub queued: Nanos,
}

impl Answered {
    /// Counts this in the process's metrics. A sampled span becomes the bucket's exemplar.
    pub fn emit(self) {
        self.count(&METRICS);
        if let Some(traced) = super::trace::sampled() {
            METRICS.exemplify(self, traced);
        }
    }

    /// Counts this in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.answered(self.took());
    }

    pub(super) const fn took(self) -> Nanos {
        self.at.since(self.came).since(self.queued)
    }
}

/// A request of any protocol was completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The protocol of the request.
    pub protocol: Protocol,
    /// The outcome of the request.
    pub outcome: Outcome,
}

impl Asked {
    /// Counts this in the process's metrics and sets the outcome of the current span.
    pub fn emit(self) {
        super::trace::outcome(self.outcome);
        self.count(&METRICS);
    }

    /// Counts this in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.asked(self);
    }
}

/// A protocol of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// `ShouldRateLimit`.
    Grpc,
    /// `/json`.
    Json,
    /// `Check` of Envoy's `ext_authz` filter.
    ExtAuthz,
    /// `/check` for NGINX's `auth_request`.
    Nginx,
    /// Streams of `ext_proc`.
    ExtProc,
    /// Entries of Envoy's access log.
    AccessLog,
    /// This project's own service, `sluicegate.v1.Permits`.
    Permits,
}

impl Protocol {
    /// Every protocol, in the order of their discriminants.
    pub const ALL: [Self; 7] = [
        Self::Grpc,
        Self::Json,
        Self::ExtAuthz,
        Self::Nginx,
        Self::ExtProc,
        Self::AccessLog,
        Self::Permits,
    ];

    /// The value of the metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Grpc => "grpc",
            Self::Json => "json",
            Self::ExtAuthz => "ext_authz",
            Self::Nginx => "nginx",
            Self::ExtProc => "ext_proc",
            Self::AccessLog => "access_log",
            Self::Permits => "permits",
        }
    }
}

/// The outcome of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Allowed.
    Admit,
    /// Denied.
    Deny,
    /// Refused: no domain.
    EmptyDomain,
    /// Refused: no descriptors.
    NoDescriptors,
    /// Refused: no configuration is loaded.
    NoConfig,
    /// Refused: too many descriptors.
    TooManyDescriptors,
    /// Refused: the descriptors have too many entries in total.
    TooManyEntries,
    /// Refused: a key or value is too long.
    EntryTooLong,
    /// Refused: `hits_addend` is 2^63 or more.
    HitsTooLarge,
    /// Refused: the unit of a limit override is unknown.
    UnknownUnit,
    /// Refused: a refund, and refunds are disabled.
    RefundsAreOff,
    /// Refused: a reserved key has an invalid id.
    BadId,
    /// Refused: the store is unavailable, and the limit's fallback is `error`.
    BackendDown,
    /// Allowed without a check: the hook makes no descriptor of the request.
    NothingToAsk,
    /// Refused: no hooks are configured.
    NoHooks,
    /// Refused: the request names an unknown hook.
    UnknownHook,
    /// Refused: the message cannot be decoded.
    Malformed,
    /// Refused: the message is larger than the maximum.
    TooLarge,
    /// Refused: the maximum number of open `/hold` requests is reached.
    TooMany,
    /// Refused: the message was incomplete at its deadline.
    Late,
    /// Decided, but the protocol cannot express the decision.
    Inexpressible,
}

impl Outcome {
    /// Every outcome, in the order of their discriminants.
    pub const ALL: [Self; 21] = [
        Self::Admit,
        Self::Deny,
        Self::EmptyDomain,
        Self::NoDescriptors,
        Self::NoConfig,
        Self::TooManyDescriptors,
        Self::TooManyEntries,
        Self::EntryTooLong,
        Self::HitsTooLarge,
        Self::UnknownUnit,
        Self::RefundsAreOff,
        Self::BadId,
        Self::BackendDown,
        Self::NothingToAsk,
        Self::NoHooks,
        Self::UnknownHook,
        Self::Malformed,
        Self::TooLarge,
        Self::TooMany,
        Self::Late,
        Self::Inexpressible,
    ];

    /// The value of the metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Admit => "admit",
            Self::Deny => "deny",
            Self::EmptyDomain => "empty_domain",
            Self::NoDescriptors => "no_descriptors",
            Self::NoConfig => "no_config",
            Self::TooManyDescriptors => "too_many_descriptors",
            Self::TooManyEntries => "too_many_entries",
            Self::EntryTooLong => "entry_too_long",
            Self::HitsTooLarge => "hits_too_large",
            Self::UnknownUnit => "unknown_unit",
            Self::RefundsAreOff => "refunds_are_off",
            Self::BadId => "bad_id",
            Self::BackendDown => "backend_down",
            Self::NothingToAsk => "nothing_to_ask",
            Self::NoHooks => "no_hooks",
            Self::UnknownHook => "unknown_hook",
            Self::Malformed => "malformed",
            Self::TooLarge => "too_large",
            Self::TooMany => "too_many",
            Self::Late => "late",
            Self::Inexpressible => "inexpressible",
        }
    }
}

/// A configuration was loaded.
#[derive(Clone, Copy, Debug)]
pub struct Loaded {
    /// The revision of the configuration.
    pub revision: Revision,
    /// The instant of the load, since the Unix epoch.
    pub at: Nanos,
}

impl Loaded {
    /// Counts this in the process's metrics.
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.loaded(self);
    }
}

/// A change of this replica's share of a concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareEvent {
    /// The share grew without a handoff.
    Grown,
    /// The share grew after a handoff from other replicas.
    HandedOver,
    /// The share shrank.
    Shrunk,
    /// The share expired before the store replied.
    Fenced,
    /// The replica has no share and the store is unavailable, so `on_backend_failure` applies.
    Outage,
}

impl ShareEvent {
    /// Every event, in the order of their discriminants.
    pub const ALL: [Self; 5] =
        [Self::Grown, Self::HandedOver, Self::Shrunk, Self::Fenced, Self::Outage];

    /// The value of the metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Grown => "grown",
            Self::HandedOver => "handed_over",
            Self::Shrunk => "shrunk",
            Self::Fenced => "fenced",
            Self::Outage => "outage",
        }
    }

    /// Counts this in the process's metrics.
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.share_moved(self);
    }
}

/// An event of permits of strict concurrency limits, which the store counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrictEvent {
    /// The store granted a permit.
    Admitted,
    /// The store granted none: the limit is reached.
    Full,
    /// The store may have lost the list of permits, so it grants none for a limited time.
    Closed,
    /// The store did not reply, so `on_backend_failure` applies.
    Failed,
    /// A heartbeat reported a permit that is still in use.
    Renewed,
    /// A heartbeat reported a permit that the store did not know.
    PutBack,
    /// The store released a permit.
    Released,
}

impl StrictEvent {
    /// Every event, in the order of their discriminants.
    pub const ALL: [Self; 7] = [
        Self::Admitted,
        Self::Full,
        Self::Closed,
        Self::Failed,
        Self::Renewed,
        Self::PutBack,
        Self::Released,
    ];

    /// The value of the metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Admitted => "admitted",
            Self::Full => "full",
            Self::Closed => "closed",
            Self::Failed => "failed",
            Self::Renewed => "renewed",
            Self::PutBack => "put_back",
            Self::Released => "released",
        }
    }

    /// Counts `permits` of this in the process's metrics.
    pub fn emit(self, permits: u64) {
        self.count(permits, &METRICS);
    }

    /// Counts `permits` of this in `metrics`.
    pub fn count(self, permits: u64, metrics: &Metrics) {
        metrics.permits_seen(self, permits);
    }
}

/// A configuration was invalid, and the previous revision stays in force.
#[derive(Clone, Copy, Debug)]
pub struct LoadRefused;

impl LoadRefused {
    /// Counts this in the process's metrics.
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.load_refused();
    }
}

/// The memory store had no room for a new key.
#[derive(Clone, Copy, Debug)]
pub struct StoreFull {
    /// The verdict that `when_full` sets.
    pub verdict: Verdict,
}

impl StoreFull {
    /// Counts this in the process's metrics.
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.store_full(self.verdict);
    }
}

/// The deny cache answered denials without a store call.
#[derive(Clone, Copy, Debug)]
pub struct Remembered {
    /// The number of denials.
    pub denials: u64,
}

impl Remembered {
    /// Counts this in the process's metrics.
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.remembered(self.denials);
    }
}

/// Fallback debt ended: hits that this replica allowed during a store outage.
#[derive(Clone, Copy, Debug)]
pub struct HitsOwed {
    /// The number of hits.
    pub hits: Hits,
    /// The end of the debt.
    pub outcome: OwedOutcome,
}

/// The end of fallback debt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwedOutcome {
    /// The hits were charged to the store.
    Charged,
    /// Not charged: the hits expired or drained, or the counter in the store is full.
    Rested,
    /// The table of debts was full, or the store did not confirm the charge.
    Lost,
}

impl OwedOutcome {
    /// Every outcome, in the order of their discriminants.
    pub const ALL: [Self; 3] = [Self::Charged, Self::Rested, Self::Lost];

    /// The value of the metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Charged => "charged",
            Self::Rested => "rested",
            Self::Lost => "lost",
        }
    }
}

impl HitsOwed {
    /// Counts this in the process's metrics.
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.hits_owed(self);
    }
}

/// Hits were borrowed, returned or lost by expiry of their lease.
#[derive(Clone, Copy, Debug)]
pub struct LeasedHits {
    /// The number of hits.
    pub hits: Hits,
    /// The event.
    pub end: LeaseEnd,
}

/// An event of leased hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEnd {
    /// The replica borrowed hits from the store.
    Borrowed,
    /// The replica returned unspent hits to the store.
    GivenBack,
    /// The lease expired with unspent hits.
    Expired,
}

impl LeaseEnd {
    /// Every event, in the order of their discriminants.
    pub const ALL: [Self; 3] = [Self::Borrowed, Self::GivenBack, Self::Expired];

    /// The value of the metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Borrowed => "borrowed",
            Self::GivenBack => "given_back",
            Self::Expired => "expired",
        }
    }
}

impl LeasedHits {
    /// Counts this in the process's metrics.
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.leased_hits(self);
    }
}

/// A script call with lease messages was sent to the store.
#[derive(Clone, Copy, Debug)]
pub struct LeaseCalled {
    /// The number of messages, one for each key.
    pub messages: usize,
}

impl LeaseCalled {
    /// Counts this in the process's metrics.
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.lease_called(self);
    }
}

/// Charges failed, because the store did not reply or replied with an error.
#[derive(Clone, Copy, Debug)]
pub struct BackendFailed {
    /// The cause of the failure.
    pub cause: Cause,
    /// The number of failed charges.
    pub charges: u64,
}

impl BackendFailed {
    /// Counts this in the process's metrics.
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.backend_failed(self);
    }
}

/// A script call with checks was sent to the store.
#[derive(Clone, Copy, Debug)]
pub struct Called {
    /// The number of checks in the call.
    pub questions: usize,
}

impl Called {
    /// Counts this in the process's metrics.
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.called(self);
    }
}

/// A datagram arrived at `syslog_port`.
#[derive(Clone, Copy, Debug)]
pub struct DatagramCame {
    /// The classification of the datagram.
    pub outcome: Datagram,
}

/// The classification of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datagram {
    /// A release.
    Read,
    /// From an address outside `syslog_from`; the content is not parsed.
    Foreign,
    /// Longer than any release.
    TooLong,
    /// Anything else.
    Malformed,
}

impl Datagram {
    /// Every outcome, in the order of their discriminants.
    pub const ALL: [Self; 4] = [Self::Read, Self::Foreign, Self::TooLong, Self::Malformed];

    /// The value of the metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Foreign => "foreign",
            Self::TooLong => "too_long",
            Self::Malformed => "malformed",
        }
    }
}

impl DatagramCame {
    /// Counts this in the process's metrics.
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.datagram_came(self.outcome);
    }
}
