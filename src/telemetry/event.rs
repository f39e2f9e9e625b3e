//! One struct per thing that happens.
//!
//! Guarantees: `emit` counts in [`METRICS`]; `count` counts in any other set; both cost a few
//! relaxed additions to memory that the calling thread mostly has to itself.
//! Leaves out: names, units and labels, which are in [`super::metrics`].

use super::metrics::{METRICS, Metrics};
use crate::kernel::decision::{Cause, Reason, Verdict};
use crate::kernel::units::{Hits, Nanos, Revision};

/// A question was decided.
#[derive(Clone, Copy, Debug)]
pub struct Decided<R> {
    /// The verdict, global shadow mode applied.
    pub verdict: Verdict,
    /// Whether global shadow mode turned a denial into an admission.
    pub shadowed: bool,
    /// One per descriptor.
    pub reasons: R,
    /// How many descriptors were admitted beyond `near_limit_ratio` of their limit.
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

/// A ceiling turned a request away, or would have.
#[derive(Clone, Copy, Debug)]
pub struct CeilingReached {
    /// Why: one of [`CeilingReached::REASONS`].
    pub reason: Reason,
    /// Whether it was turned away; otherwise shadow mode let it pass.
    pub enforced: bool,
}

impl CeilingReached {
    /// Every reason that a ceiling has.
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

/// Something became of what a request's id holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdSeen(pub IdEvent);

/// What became of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdEvent {
    /// It holds permits from now on.
    Acquired,
    /// It held permits already, and got no others.
    Taken,
    /// Its release had come first: what it would have held was given back.
    Over,
    /// It was seen alive.
    Renewed,
    /// It gave back what it held.
    Released,
    /// It was released, and had been turned away or met no ceiling.
    HeldNothing,
    /// It was released before it held anything, which is remembered.
    Early,
    /// The same, and there was no room to remember it.
    Refused,
    /// Its deadline took back what it held.
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

    /// The event as metrics spell it.
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

/// A question that was read was answered or refused.
#[derive(Clone, Copy, Debug)]
pub struct Answered {
    /// When the message was decoded.
    pub came: Nanos,
    /// When its reply was there, not yet encoded.
    pub at: Nanos,
    /// How long it waited in queues of ceilings meanwhile: that is how long the requests before it took, and no time of ours.
    pub queued: Nanos,
}

impl Answered {
    /// Counts this in the process's metrics, with the question's span where that is sampled.
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

/// An edge was asked something, and what came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// By which protocol.
    pub protocol: Protocol,
    /// What came of it.
    pub outcome: Outcome,
}

impl Asked {
    /// Counts this in the process's metrics, and says it of the question's span.
    pub fn emit(self) {
        super::trace::outcome(self.outcome);
        self.count(&METRICS);
    }

    /// Counts this in `metrics`.
    pub fn count(self, metrics: &Metrics) {
        metrics.asked(self);
    }
}

/// The protocols of the edges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// `ShouldRateLimit`.
    Grpc,
    /// `/json`.
    Json,
    /// `Check` of Envoy's `ext_authz`.
    ExtAuthz,
    /// `/check` for NGINX's `auth_request`.
    Nginx,
    /// Streams of `ext_proc`.
    ExtProc,
    /// Entries of Envoy's access log.
    AccessLog,
    /// Our own service, `sluicegate.v1.Permits`.
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

    /// The protocol as metrics spell it.
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

/// What an edge answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// May pass.
    Admit,
    /// May not.
    Deny,
    /// Refused: no domain.
    EmptyDomain,
    /// Refused: no descriptors.
    NoDescriptors,
    /// Refused: nothing is loaded.
    NoConfig,
    /// Refused: too many descriptors.
    TooManyDescriptors,
    /// Refused: too many entries in all descriptors together.
    TooManyEntries,
    /// Refused: a key or value is too long.
    EntryTooLong,
    /// Refused: `hits_addend` of 2^63 and more.
    HitsTooLarge,
    /// Refused: an override's unit is not one.
    UnknownUnit,
    /// Refused: a refund while refunds are off.
    RefundsAreOff,
    /// Refused: a reserved word without an id that is one.
    BadId,
    /// Refused: the store of counters did not answer, and a limit says `error` then.
    BackendDown,
    /// Not asked: no descriptor can be made of the request.
    NothingToAsk,
    /// Refused: no hooks are set.
    NoHooks,
    /// Refused: another hook is named than those that are set.
    UnknownHook,
    /// Refused: cannot be read.
    Malformed,
    /// Refused: more bytes than a message may have.
    TooLarge,
    /// Refused: as many requests are held by connections as may be.
    TooMany,
    /// Refused: did not arrive in time.
    Late,
    /// Decided, but the protocol cannot express the answer.
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

    /// The outcome as metrics spell it.
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

/// A configuration was taken into use.
#[derive(Clone, Copy, Debug)]
pub struct Loaded {
    /// Its number.
    pub revision: Revision,
    /// When, since the Unix epoch.
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

/// What becomes of this replica's share of a ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShareEvent {
    /// It grew.
    Grown,
    /// It grew by what others had to let go first.
    HandedOver,
    /// It shrank.
    Shrunk,
    /// Its term was over before an answer came.
    Fenced,
    /// There is none and the store does not answer: `on_backend_failure` counts.
    Outage,
}

impl ShareEvent {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Grown, Self::HandedOver, Self::Shrunk, Self::Fenced, Self::Outage];

    /// The value of the label.
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

/// What becomes of permits of ceilings that the store counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrictEvent {
    /// The store granted one.
    Admitted,
    /// The ceiling is reached.
    Full,
    /// The store may have forgotten who holds what, and grants none for a while.
    Closed,
    /// The store did not answer: `on_backend_failure` counts.
    Failed,
    /// It was told that one is still held.
    Renewed,
    /// It was told, and had not known.
    PutBack,
    /// It took one back.
    Released,
}

impl StrictEvent {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Admitted,
        Self::Full,
        Self::Closed,
        Self::Failed,
        Self::Renewed,
        Self::PutBack,
        Self::Released,
    ];

    /// The value of the label.
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

/// A configuration was refused; the last good one stays.
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

/// A new key met the ceiling on live keys.
#[derive(Clone, Copy, Debug)]
pub struct StoreFull {
    /// What `when_full` made of it.
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

/// Denials were answered from memory.
#[derive(Clone, Copy, Debug)]
pub struct Remembered {
    /// How many.
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

/// Hits that were admitted here in an outage came to an end.
#[derive(Clone, Copy, Debug)]
pub struct HitsOwed {
    /// How many.
    pub hits: Hits,
    /// Which.
    pub outcome: OwedOutcome,
}

/// What became of hits that were owed to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwedOutcome {
    /// The store was charged with them.
    Charged,
    /// Their window was over, their debt had drained, or the store's counter was full.
    Rested,
    /// There was no room to remember them, or the store's answer did not come.
    Lost,
}

impl OwedOutcome {
    /// Every outcome, in the order of their discriminants.
    pub const ALL: [Self; 3] = [Self::Charged, Self::Rested, Self::Lost];

    /// The outcome as metrics spell it.
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

/// Hits of leases began or ended to be held here.
#[derive(Clone, Copy, Debug)]
pub struct LeasedHits {
    /// How many.
    pub hits: Hits,
    /// Which.
    pub end: LeaseEnd,
}

/// What became of hits of leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseEnd {
    /// The store lent them.
    Borrowed,
    /// They went back unspent.
    GivenBack,
    /// Their lease ended with them unspent.
    Expired,
}

impl LeaseEnd {
    /// Every one, in the order of their discriminants.
    pub const ALL: [Self; 3] = [Self::Borrowed, Self::GivenBack, Self::Expired];

    /// As metrics spell it.
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

/// A script was sent to the store that takes messages about leases, one or several.
#[derive(Clone, Copy, Debug)]
pub struct LeaseCalled {
    /// How many messages, each about one key.
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

/// The store of counters did not answer a charge.
#[derive(Clone, Copy, Debug)]
pub struct BackendFailed {
    /// Why.
    pub cause: Cause,
    /// How many charges.
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

/// A script was sent to the store of counters.
#[derive(Clone, Copy, Debug)]
pub struct Called {
    /// How many questions travel in it.
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

/// A datagram came to the port for releases.
#[derive(Clone, Copy, Debug)]
pub struct DatagramCame {
    /// What it was.
    pub outcome: Datagram,
}

/// What a datagram was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datagram {
    /// A release.
    Read,
    /// From an address that is not in `syslog_from`; not looked at.
    Foreign,
    /// Longer than any release.
    TooLong,
    /// Anything else.
    Malformed,
}

impl Datagram {
    /// Every outcome, in the order of their discriminants.
    pub const ALL: [Self; 4] = [Self::Read, Self::Foreign, Self::TooLong, Self::Malformed];

    /// The outcome as metrics spell it.
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
