//! The events that metrics count, one type each.
//!
//! Guarantees:
//! - The method `emit` counts an event in [`METRICS`], the metrics of this process.
//! - The method `count` counts an event in any other [`Metrics`].
//! - Counting costs a few relaxed atomic additions, mostly to memory of the calling thread.
//!
//! Not covered:
//! - Names, units and labels of metrics (see [`super::metrics`]).

use super::metrics::{METRICS, Metrics};
use crate::kernel::decision::{Reason, StoreFailure, Verdict};
use crate::kernel::units::{Hits, Nanos, Revision};

/// A check was decided.
#[derive(Clone, Copy, Debug)]
pub struct CheckDecided<R> {
    /// The overall verdict, after global shadow mode.
    pub verdict: Verdict,
    /// `true` if global shadow mode turned a denial into an allowed check.
    pub is_shadowed: bool,
    /// One reason for each descriptor.
    pub reasons: R,
    /// The number of descriptors that were allowed beyond `telemetry.metrics.near_limit_ratio` of
    /// their limit.
    pub near_limit: u64,
}

impl<R: Iterator<Item = Reason>> CheckDecided<R> {
    /// Counts this event in the metrics of the process, [`METRICS`].
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this event in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.count_check(self.verdict, self.is_shadowed, self.reasons, self.near_limit);
    }
}

/// A concurrency limit rejected a request, or would have without shadow mode.
#[derive(Clone, Copy, Debug)]
pub struct ConcurrencyLimitExceeded {
    /// The reason of the rejection, one of [`Self::REASONS`].
    pub reason: Reason,
    /// `false` if shadow mode allowed the request.
    pub is_enforced: bool,
}

impl ConcurrencyLimitExceeded {
    /// Every reason of a rejection by a concurrency limit.
    pub const REASONS: [Reason; 4] = [
        Reason::ConcurrencyLimitReached,
        Reason::QueueFull,
        Reason::QueueTimeout,
        Reason::TooManyBuckets,
    ];

    /// Counts this event in the metrics of the process, [`METRICS`].
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this event in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.count_limit_exceeded(self);
    }
}

/// An event in the life cycle of a request id happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermitIdObserved(pub PermitIdEvent);

/// An event in the life cycle of a request id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermitIdEvent {
    /// The request id acquired permits.
    Acquired,
    /// A second acquire with the same request id was rejected, because the id already waits for
    /// permits or has them.
    InUse,
    /// An acquire came after an early release of the same request id, so its permits were released
    /// at once.
    AlreadyReleased,
    /// The permits were renewed, because the request is still in flight.
    Renewed,
    /// The permits of the request id were released.
    Released,
    /// A release arrived for a request id without permits, whose request was rejected or matched no
    /// concurrency limit.
    WithoutPermits,
    /// A release came before its acquire, and is remembered as an early release.
    EarlyRelease,
    /// A release came before its acquire, and was dropped because the permit registry is full.
    EarlyReleaseDropped,
    /// The permits were released at their deadline, because no release or renewal arrived.
    Expired,
}

impl PermitIdEvent {
    /// Every event, in the order of the enum.
    pub const ALL: [Self; 9] = [
        Self::Acquired,
        Self::InUse,
        Self::AlreadyReleased,
        Self::Renewed,
        Self::Released,
        Self::WithoutPermits,
        Self::EarlyRelease,
        Self::EarlyReleaseDropped,
        Self::Expired,
    ];

    /// Returns the name of this variant in the metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Acquired => "acquired",
            Self::InUse => "taken",
            Self::AlreadyReleased => "over",
            Self::Renewed => "renewed",
            Self::Released => "released",
            Self::WithoutPermits => "held_nothing",
            Self::EarlyRelease => "early",
            Self::EarlyReleaseDropped => "refused",
            Self::Expired => "expired",
        }
    }
}

impl PermitIdObserved {
    /// Counts this event in the metrics of the process, [`METRICS`].
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this event in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.count_permit_id(self);
    }
}

/// A decoded check received its reply, which may be an error.
#[derive(Clone, Copy, Debug)]
pub struct CheckAnswered {
    /// The instant at which the message was decoded, since the Unix epoch.
    pub received_at: Nanos,
    /// The instant at which the reply was ready to be encoded, since the Unix epoch.
    pub replied_at: Nanos,
    /// The time in queues of concurrency limits. This time is subtracted, because it measures the
    /// requests in flight and not Sluicegate.
    pub queue_time: Nanos,
}

impl CheckAnswered {
    /// Counts the duration of the check in the metrics of the process. If the check's span is
    /// sampled, the span becomes the exemplar of the histogram bucket.
    pub fn emit(self) {
        self.count(&METRICS);
        if let Some(traced) = super::trace::sampled_span_ids() {
            METRICS.record_exemplar(self, traced);
        }
    }

    /// Counts this event in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.count_duration(self.duration());
    }

    pub(super) const fn duration(self) -> Nanos {
        self.replied_at.since(self.received_at).since(self.queue_time)
    }
}

/// A request of any protocol was completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestCompleted {
    /// The protocol of the request.
    pub protocol: Protocol,
    /// The outcome of the request.
    pub outcome: EdgeOutcome,
}

impl RequestCompleted {
    /// Counts this event in the metrics of the process, and sets the outcome of the current span.
    pub fn emit(self) {
        super::trace::set_outcome(self.outcome);
        self.count(&METRICS);
    }

    /// Counts this event in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.count_request(self);
    }
}

/// A protocol of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// Envoy's gRPC method `ShouldRateLimit`.
    Grpc,
    /// The HTTP endpoint `/json`.
    Json,
    /// `Check` of Envoy's `ext_authz` filter.
    ExtAuthz,
    /// The HTTP endpoint `/check` for NGINX's `auth_request`.
    Nginx,
    /// Streams of Envoy's `ext_proc` filter.
    ExtProc,
    /// Entries of Envoy's access log.
    AccessLog,
    /// This project's own service, `sluicegate.v1.Permits`.
    Permits,
}

impl Protocol {
    /// Every protocol, in the order of the enum.
    pub const ALL: [Self; 7] = [
        Self::Grpc,
        Self::Json,
        Self::ExtAuthz,
        Self::Nginx,
        Self::ExtProc,
        Self::AccessLog,
        Self::Permits,
    ];

    /// Returns the name of this variant in the metric's label.
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

/// The outcome of a request in any protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EdgeOutcome {
    /// The request was allowed.
    Allow,
    /// The request was denied.
    Deny,
    /// Refused: the check has no domain.
    EmptyDomain,
    /// Refused: the check has no descriptors.
    NoDescriptors,
    /// Refused: no configuration is loaded.
    NoConfig,
    /// Refused: the check has too many descriptors.
    TooManyDescriptors,
    /// Refused: the descriptors of the check have too many entries in total.
    TooManyEntries,
    /// Refused: a descriptor key or value is too long.
    EntryTooLong,
    /// Refused: `hits_addend` is 2^63 or more.
    HitsTooLarge,
    /// Refused: the unit of a limit override is unknown.
    UnknownUnit,
    /// Refused: the check is a refund, and refunds are disabled.
    RefundsDisabled,
    /// Refused: a reserved descriptor key has an invalid request id as its value.
    BadId,
    /// Refused: the store is unavailable, and the limit's fallback is `error`.
    StoreUnavailable,
    /// Allowed without a check: the hook makes no descriptor of the request.
    NothingToCheck,
    /// Refused: no hooks are configured.
    NoHooks,
    /// Refused: the request names an unknown hook.
    UnknownHook,
    /// Refused: the message cannot be decoded.
    Malformed,
    /// Refused: the message is larger than the maximum.
    TooLarge,
    /// Refused: the maximum number of open `/hold` requests is reached.
    TooManyHolds,
    /// Refused: the message was incomplete at its deadline.
    ReadTimeout,
    /// The check was decided, but the protocol cannot express the decision.
    Unrepresentable,
}

impl EdgeOutcome {
    /// Every variant, in the order of the enum.
    pub const ALL: [Self; 21] = [
        Self::Allow,
        Self::Deny,
        Self::EmptyDomain,
        Self::NoDescriptors,
        Self::NoConfig,
        Self::TooManyDescriptors,
        Self::TooManyEntries,
        Self::EntryTooLong,
        Self::HitsTooLarge,
        Self::UnknownUnit,
        Self::RefundsDisabled,
        Self::BadId,
        Self::StoreUnavailable,
        Self::NothingToCheck,
        Self::NoHooks,
        Self::UnknownHook,
        Self::Malformed,
        Self::TooLarge,
        Self::TooManyHolds,
        Self::ReadTimeout,
        Self::Unrepresentable,
    ];

    /// Returns the name of this variant in the metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "admit",
            Self::Deny => "deny",
            Self::EmptyDomain => "empty_domain",
            Self::NoDescriptors => "no_descriptors",
            Self::NoConfig => "no_config",
            Self::TooManyDescriptors => "too_many_descriptors",
            Self::TooManyEntries => "too_many_entries",
            Self::EntryTooLong => "entry_too_long",
            Self::HitsTooLarge => "hits_too_large",
            Self::UnknownUnit => "unknown_unit",
            Self::RefundsDisabled => "refunds_are_off",
            Self::BadId => "bad_id",
            Self::StoreUnavailable => "backend_down",
            Self::NothingToCheck => "nothing_to_ask",
            Self::NoHooks => "no_hooks",
            Self::UnknownHook => "unknown_hook",
            Self::Malformed => "malformed",
            Self::TooLarge => "too_large",
            Self::TooManyHolds => "too_many",
            Self::ReadTimeout => "late",
            Self::Unrepresentable => "inexpressible",
        }
    }
}

/// A configuration was loaded.
#[derive(Clone, Copy, Debug)]
pub struct ConfigLoaded {
    /// The revision of the configuration.
    pub revision: Revision,
    /// The instant of the load, since the Unix epoch.
    pub loaded_at: Nanos,
}

impl ConfigLoaded {
    /// Counts this event in the metrics of the process, [`METRICS`].
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this event in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.record_load(self);
    }
}

/// A change of this replica's share of a shared concurrency limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareEvent {
    /// The replica's share grew without a handoff.
    Grown,
    /// The replica's share grew after a handoff from other replicas.
    HandedOver,
    /// The replica's share shrank.
    Shrunk,
    /// The replica's share expired before the store replied.
    Fenced,
    /// The replica has no share and the store is unavailable, so `on_backend_failure` applies.
    Outage,
}

impl ShareEvent {
    /// Every event, in the order of the enum.
    pub const ALL: [Self; 5] =
        [Self::Grown, Self::HandedOver, Self::Shrunk, Self::Fenced, Self::Outage];

    /// Returns the name of this variant in the metric's label.
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

    /// Counts this event in the metrics of the process, [`METRICS`].
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this event in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.count_share_event(self);
    }
}

/// An event of permits of strict concurrency limits, which the store counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrictPermitEvent {
    /// The store granted a permit.
    Granted,
    /// The store granted no permit, because the limit is reached.
    LimitReached,
    /// The store may have lost the list of permits, so it grants none for a limited time.
    GrantsPaused,
    /// The store did not reply, so `on_backend_failure` applies.
    NoReply,
    /// A heartbeat reported a permit that is still in use.
    Renewed,
    /// A heartbeat reported a permit that the store did not know.
    Restored,
    /// The store released a permit.
    Released,
}

impl StrictPermitEvent {
    /// Every event, in the order of the enum.
    pub const ALL: [Self; 7] = [
        Self::Granted,
        Self::LimitReached,
        Self::GrantsPaused,
        Self::NoReply,
        Self::Renewed,
        Self::Restored,
        Self::Released,
    ];

    /// Returns the name of this variant in the metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "admitted",
            Self::LimitReached => "full",
            Self::GrantsPaused => "closed",
            Self::NoReply => "failed",
            Self::Renewed => "renewed",
            Self::Restored => "put_back",
            Self::Released => "released",
        }
    }

    /// Counts this event for `permits` permits in the metrics of the process.
    pub fn emit(self, permits: u64) {
        self.count(permits, &METRICS);
    }

    /// Counts this event for `permits` permits in `metrics`.
    pub fn count(self, permits: u64, metrics: &Metrics) {
        metrics.count_strict_permits(self, permits);
    }
}

/// A configuration was invalid, and the previous revision stays in use.
#[derive(Clone, Copy, Debug)]
pub struct ConfigRejected;

impl ConfigRejected {
    /// Counts this event in the metrics of the process, [`METRICS`].
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this event in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.record_rejected_load();
    }
}

/// The memory store had no room for a new key.
#[derive(Clone, Copy, Debug)]
pub struct MemoryStoreFull {
    /// The verdict that the setting `store.when_full` selects.
    pub verdict: Verdict,
}

impl MemoryStoreFull {
    /// Counts this event in the metrics of the process, [`METRICS`].
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this event in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.count_memory_full(self.verdict);
    }
}

/// The deny cache answered denials without a store call.
#[derive(Clone, Copy, Debug)]
pub struct DenialsFromCache {
    /// The number of denials from the deny cache.
    pub denials: u64,
}

impl DenialsFromCache {
    /// Counts this event in the metrics of the process, [`METRICS`].
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this event in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.count_cached_denials(self.denials);
    }
}

/// Fallback debt ended: hits that this replica allowed during a store outage.
#[derive(Clone, Copy, Debug)]
pub struct FallbackDebtEnded {
    /// The number of hits.
    pub hits: Hits,
    /// The way in which the fallback debt ended.
    pub outcome: FallbackDebtOutcome,
}

/// The ways in which fallback debt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallbackDebtOutcome {
    /// The hits were charged to the store.
    Charged,
    /// The hits were not charged, because they would no longer count, or because the counter in the
    /// store is at its limit.
    NotNeeded,
    /// The hits were not charged, because this replica had too many debts, or because the store did
    /// not confirm the charge.
    Lost,
}

impl FallbackDebtOutcome {
    /// Every variant, in the order of the enum.
    pub const ALL: [Self; 3] = [Self::Charged, Self::NotNeeded, Self::Lost];

    /// Returns the name of this variant in the metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Charged => "charged",
            Self::NotNeeded => "rested",
            Self::Lost => "lost",
        }
    }
}

impl FallbackDebtEnded {
    /// Counts this event in the metrics of the process, [`METRICS`].
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this event in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.count_fallback_debt(self);
    }
}

/// Hits were borrowed, returned or lost by expiry of their lease.
#[derive(Clone, Copy, Debug)]
pub struct LeasedHits {
    /// The number of hits.
    pub hits: Hits,
    /// The event of the hits: borrowed, returned or expired.
    pub event: LeasedHitsEvent,
}

/// An event of leased hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeasedHitsEvent {
    /// The replica borrowed hits from the store.
    Borrowed,
    /// The replica returned unspent hits to the store.
    Returned,
    /// The lease expired with unspent hits.
    Expired,
}

impl LeasedHitsEvent {
    /// Every event, in the order of the enum.
    pub const ALL: [Self; 3] = [Self::Borrowed, Self::Returned, Self::Expired];

    /// Returns the name of this variant in the metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Borrowed => "borrowed",
            Self::Returned => "given_back",
            Self::Expired => "expired",
        }
    }
}

impl LeasedHits {
    /// Counts this event in the metrics of the process, [`METRICS`].
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this event in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.count_leased_hits(self);
    }
}

/// A script call with lease messages was sent to the store.
#[derive(Clone, Copy, Debug)]
pub struct LeaseCallSent {
    /// The number of lease messages, one for each counter.
    pub messages: usize,
}

impl LeaseCallSent {
    /// Counts this event in the metrics of the process, [`METRICS`].
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this event in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.count_lease_call(self);
    }
}

/// Charges failed, because the store did not reply or replied with an error.
#[derive(Clone, Copy, Debug)]
pub struct ChargesFailed {
    /// The cause of the failure.
    pub cause: StoreFailure,
    /// The number of failed charges.
    pub charges: u64,
}

impl ChargesFailed {
    /// Counts this event in the metrics of the process, [`METRICS`].
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this event in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.count_failed_charges(self);
    }
}

/// A script call with checks was sent to the store.
#[derive(Clone, Copy, Debug)]
pub struct StoreCallSent {
    /// The number of checks in the call.
    pub checks: usize,
}

impl StoreCallSent {
    /// Counts this event in the metrics of the process, [`METRICS`].
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this event in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.count_store_call(self);
    }
}

/// A datagram arrived at `listen.syslog_port`.
#[derive(Clone, Copy, Debug)]
pub struct DatagramReceived {
    /// The classification of the datagram.
    pub kind: DatagramKind,
}

/// The classification of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DatagramKind {
    /// The datagram is a release of permits.
    Release,
    /// The sender's address is outside the setting `listen.syslog_from`, so the content is not
    /// parsed.
    UntrustedSource,
    /// The datagram is longer than any release.
    TooLong,
    /// The datagram cannot be parsed as a release.
    Malformed,
}

impl DatagramKind {
    /// Every variant, in the order of the enum.
    pub const ALL: [Self; 4] =
        [Self::Release, Self::UntrustedSource, Self::TooLong, Self::Malformed];

    /// Returns the name of this variant in the metric's label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Release => "read",
            Self::UntrustedSource => "foreign",
            Self::TooLong => "too_long",
            Self::Malformed => "malformed",
        }
    }
}

impl DatagramReceived {
    /// Counts this event in the metrics of the process, [`METRICS`].
    pub fn emit(self) {
        self.count(&METRICS);
    }

    /// Counts this event in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.count_datagram(self.kind);
    }
}
