//! The values of metric labels, as enums.
//!
//! Guarantees:
//! - Every label has a closed list of values.
//!
//! Not covered:
//! - Labels that the kernel defines: [`Reason`], [`RuleVerdict`] and
//!   [`StoreFailure`](crate::kernel::decision::StoreFailure).

use crate::kernel::budget::Ended;
use crate::kernel::decision::Reason;
pub use crate::kernel::decision::RuleVerdict;
use crate::kernel::named_enum;

/// The verdicts of checks in the order of [`Verdict`](crate::kernel::decision::Verdict), and then a
/// denial that global shadow mode allowed.
pub(super) const VERDICTS: [&str; 3] = ["allow", "deny", "shadow_deny"];

/// The position of a denial that global shadow mode allowed in [`VERDICTS`].
pub(super) const SHADOW_DENY: usize = 2;

/// Every reason of a rejection by a concurrency limit.
pub const CONCURRENCY_REASONS: [Reason; 4] = [
    Reason::ConcurrencyLimitReached,
    Reason::QueueFull,
    Reason::QueueTimeout,
    Reason::TooManyBuckets,
];

named_enum! {
    /// An event in the life cycle of a request id.
    pub enum PermitIdEvent {
        /// The request id acquired permits.
        Acquired = "acquired",
        /// A second acquire with the same request id was rejected, because the id already waits for
        /// permits or has them.
        InUse = "in_use",
        /// An acquire came after an early release of the same request id, so its permits were released
        /// at once.
        AlreadyReleased = "already_released",
        /// The permits were renewed, because the request is still in flight.
        Renewed = "renewed",
        /// The permits of the request id were released.
        Released = "released",
        /// A release arrived for a request id without permits, whose request was rejected or matched no
        /// concurrency limit.
        WithoutPermits = "without_permits",
        /// A release came before its acquire, and is remembered as an early release.
        EarlyRelease = "early_release",
        /// A release came before its acquire, and was dropped because the permit registry is full.
        EarlyReleaseDropped = "early_release_dropped",
        /// The permits were released at their deadline, because no release or renewal arrived.
        Expired = "expired",
    }
}

named_enum! {
    /// An event in the life of a request that uses budgets.
    pub enum BudgetEvent {
        /// A request reserved.
        Reserved = "reserved",
        /// A budget denied a request.
        Denied = "denied",
        /// A reserve was rejected, because its id is in flight or has ended.
        RepeatedId = "repeated_id",
        /// A request settled the amount that it used, or the held amount.
        Settled = "settled",
        /// A settle corrected the charge of a hold that had expired or was canceled.
        Corrected = "corrected",
        /// A settle had no hold, and was charged in full.
        Unreserved = "unreserved",
        /// A repeated settle changed nothing.
        RepeatedSettle = "repeated_settle",
        /// A hold was canceled.
        Canceled = "canceled",
        /// A settle met no budget.
        NoBudget = "no_budget",
        /// The store did not reply.
        StoreFailed = "store_failed",
    }
}

impl BudgetEvent {
    /// Returns the event of a settle or a cancel.
    #[must_use]
    pub const fn of_end(is_cancel: bool, ended: Ended) -> Self {
        match ended {
            Ended::Before => Self::RepeatedSettle,
            _ if is_cancel => Self::Canceled,
            Ended::Now => Self::Settled,
            Ended::Corrected => Self::Corrected,
            Ended::Unknown => Self::Unreserved,
        }
    }
}

named_enum! {
    /// A port that accepts connections.
    pub enum ListenPort {
        /// The gRPC port.
        Grpc = "grpc",
        /// The HTTP port for checks and health.
        Http = "http",
        /// The metrics port.
        Metrics = "metrics",
        /// The admin port.
        Admin = "admin",
        /// The port for other replicas.
        Peer = "peer",
    }
}

named_enum! {
    /// The cause of a connection that failed before its first request.
    pub enum ConnectionFailure {
        /// HTTP/1 at a gRPC port.
        Http1 = "http1",
        /// HTTP/2 or gRPC at a port for HTTP/1.
        Http2 = "http2",
        /// TLS at a port with plain text.
        Tls = "tls",
        /// Plain text at a port with TLS.
        PlainText = "plain_text",
        /// The PROXY protocol of a load balancer.
        ProxyProtocol = "proxy_protocol",
        /// The first bytes are of no known protocol.
        UnknownProtocol = "unknown_protocol",
        /// The client has no certificate, or an expired or untrusted one.
        ClientCertificate = "client_certificate",
        /// The client does not trust the certificate of this process.
        ServerCertificate = "server_certificate",
        /// The TLS handshake failed for another reason.
        TlsHandshake = "tls_handshake",
        /// The TLS handshake did not end in time.
        TlsTimeout = "tls_timeout",
    }
}

named_enum! {
    /// A protocol of the service.
    pub enum Protocol {
        /// Envoy's gRPC method `ShouldRateLimit`.
        Grpc = "grpc",
        /// The HTTP endpoint `/json`.
        Json = "json",
        /// `Check` of Envoy's `ext_authz` filter.
        ExtAuthz = "ext_authz",
        /// The HTTP endpoint `/check` for NGINX's `auth_request`.
        Nginx = "nginx",
        /// Streams of Envoy's `ext_proc` filter.
        ExtProc = "ext_proc",
        /// Entries of Envoy's access log.
        AccessLog = "access_log",
        /// This project's own service, `sluicegate.v1.Permits`.
        Permits = "permits",
        /// Checks of proxies that lease hits, in `sluicegate.v1.Leases`.
        Leases = "leases",
        /// This project's own service, `sluicegate.v1.Budgets`.
        Budgets = "budgets",
    }
}

named_enum! {
    /// The outcome of a request in any protocol.
    pub enum EdgeOutcome {
        /// The request was allowed.
        Allow = "allow",
        /// The request was denied.
        Deny = "deny",
        /// Refused: the check has no domain.
        EmptyDomain = "empty_domain",
        /// Refused: the check has no descriptors.
        NoDescriptors = "no_descriptors",
        /// Refused: no configuration is loaded.
        NoConfig = "no_config",
        /// Refused: the check has too many descriptors.
        TooManyDescriptors = "too_many_descriptors",
        /// Refused: the descriptors of the check have too many entries in total.
        TooManyEntries = "too_many_entries",
        /// Refused: a descriptor key or value is too long.
        EntryTooLong = "entry_too_long",
        /// Refused: `hits_addend` is 2^63 or more.
        HitsTooLarge = "hits_too_large",
        /// Refused: the unit of a limit override is unknown.
        UnknownUnit = "unknown_unit",
        /// Refused: the check is a refund, and refunds are disabled.
        RefundsDisabled = "refunds_disabled",
        /// Refused: a reserved descriptor key has an invalid request id as its value.
        BadId = "bad_id",
        /// Refused: the store is unavailable, and the limit's fallback is `error`.
        StoreUnavailable = "store_unavailable",
        /// Allowed without a check: the hook makes no descriptor of the request.
        NothingToCheck = "nothing_to_check",
        /// Refused: no hooks are configured.
        NoHooks = "no_hooks",
        /// Refused: the request names an unknown hook.
        UnknownHook = "unknown_hook",
        /// Refused: the message cannot be decoded.
        Malformed = "malformed",
        /// Refused: the message is larger than the maximum.
        TooLarge = "too_large",
        /// Refused: too many `/acquire` requests or streams are open, or the bodies in flight take
        /// too much memory.
        TooManyRequests = "too_many_requests",
        /// Refused: the message was incomplete at its deadline.
        ReadTimeout = "read_timeout",
        /// The check was decided, but the protocol cannot express the decision.
        Unrepresentable = "unrepresentable",
    }
}

named_enum! {
    /// A change of this replica's share of a shared concurrency limit.
    pub enum ShareEvent {
        /// The replica's share grew without a handoff.
        Grown = "grown",
        /// The replica's share grew after a handoff from other replicas.
        HandedOver = "handed_over",
        /// The replica's share shrank.
        Shrunk = "shrunk",
        /// The replica's share expired before the store replied.
        Fenced = "fenced",
        /// The replica has no share and the store is unavailable, so `on_store_failure` applies.
        Outage = "outage",
    }
}

named_enum! {
    /// An event of one concurrency limit. The first ones are the reasons of rejections, in the order
    /// of [`CONCURRENCY_REASONS`].
    pub enum LimitEvent {
        /// The limit was reached, and the request did not queue.
        ConcurrencyLimitReached = "concurrency_limit_reached",
        /// The limit was reached and its queue was full.
        QueueFull = "queue_full",
        /// No permit was free within the queue timeout.
        QueueTimeout = "queue_timeout",
        /// The largest number of buckets was reached.
        TooManyBuckets = "too_many_buckets",
        /// This replica's share expired before the store replied.
        Fenced = "fenced",
    }
}

named_enum! {
    /// An event of permits of strict concurrency limits, which the store counts.
    pub enum StrictPermitEvent {
        /// The store granted a permit.
        Granted = "granted",
        /// The store granted no permit, because the limit is reached.
        LimitReached = "limit_reached",
        /// The store may have lost the list of permits, so it grants none for a limited time.
        GrantsPaused = "grants_paused",
        /// The store did not reply, so `on_store_failure` applies.
        NoReply = "no_reply",
        /// A heartbeat reported a permit that is still in use.
        Renewed = "renewed",
        /// A heartbeat reported a permit that the store did not know.
        Restored = "restored",
        /// The store released a permit.
        Released = "released",
    }
}

named_enum! {
    /// The ways in which fallback debt ends.
    pub enum FallbackDebtOutcome {
        /// The hits were charged to the store.
        Charged = "charged",
        /// The hits were not charged, because they would no longer count, or because the counter in the
        /// store is at its limit.
        NotNeeded = "not_needed",
        /// The hits were not charged, because this replica had too many debts, or because the store did
        /// not confirm the charge.
        Lost = "lost",
    }
}

named_enum! {
    /// An event of leased hits.
    pub enum LeasedHitsEvent {
        /// The replica borrowed hits from the store.
        Borrowed = "borrowed",
        /// The replica returned unspent hits to the store.
        Returned = "returned",
        /// The lease expired with unspent hits.
        Expired = "expired",
    }
}

named_enum! {
    /// The kind of a message of a proxy that leases hits.
    pub enum ProxyMessageKind {
        /// The proxy introduced itself.
        Hello = "hello",
        /// The proxy asked for the rule of a descriptor.
        Rule = "rule",
        /// The proxy reported, returned or borrowed hits.
        Borrow = "borrow",
        /// The proxy charged hits without a lease.
        Charge = "charge",
        /// The proxy asked for a decision.
        Check = "check",
        /// The proxy reported its decisions.
        Usage = "usage",
        /// The proxy reported shares and permits of concurrency limits.
        Report = "report",
        /// The proxy acquired a permit of a strict concurrency limit.
        Acquire = "acquire",
    }
}

named_enum! {
    /// The classification of a datagram.
    pub enum DatagramKind {
        /// The datagram is a release of permits.
        Release = "release",
        /// The sender's address is outside the setting `listen.syslog_from`, so the content is not
        /// parsed.
        UntrustedSource = "untrusted_source",
        /// The datagram is longer than any release.
        TooLong = "too_long",
        /// The datagram cannot be parsed as a release.
        Malformed = "malformed",
    }
}

named_enum! {
    /// A step of a forwarded release, on the sending or on the receiving replica.
    pub enum ForwardingEvent {
        /// Another replica accepted the release.
        Delivered = "delivered",
        /// Another replica forwarded the release to this one.
        Received = "received",
        /// Another replica forwarded the release to this one, which does not know the request id.
        Unknown = "unknown",
        /// The release named no owner, so all replicas were queried.
        Searched = "searched",
        /// No queried replica knew the request id, so the release is remembered as an early release.
        NotFound = "not_found",
        /// The batch of the release was not authentic, not from a live replica, or a repetition.
        Rejected = "rejected",
        /// The batch of the release was addressed to another replica, or to an earlier incarnation of
        /// this one.
        WrongReplica = "wrong_replica",
        /// The release or its batch could not be decoded.
        Malformed = "malformed",
        /// The release was dropped, because the queue of releases to forward was full.
        Dropped = "dropped",
        /// The owner did not accept the release in time, or is no longer live.
        TimedOut = "timed_out",
        /// The address of the owner is outside the setting `fleet.peers.networks`.
        AddressNotAllowed = "address_not_allowed",
    }
}

named_enum! {
    /// The outcome of an attempt to send an event to another program.
    pub enum CloudEventOutcome {
        /// The receiver accepted the event.
        Sent = "sent",
        /// The attempt failed, and the event was sent again.
        Retried = "retried",
        /// The receiver refused the event with a status that a retry would not change.
        Refused = "refused",
        /// The event was dropped, because all attempts failed for ten minutes.
        Expired = "expired",
        /// The event was dropped, because the queue or the table of recent events was full, or at
        /// shutdown.
        Dropped = "dropped",
    }
}

named_enum! {
    /// An event of bans and of the strikes that lead to them.
    pub enum BanEvent {
        /// A ban began.
        Began = "began",
        /// An operator lifted a ban.
        Lifted = "lifted",
        /// A ban did not apply at this replica: the list is full, or the name of the key is too long.
        Refused = "refused",
        /// A strike was not counted: the store did not reply, or too many strikes waited.
        StrikeLost = "strike_lost",
    }
}

named_enum! {
    /// The outcome of a check that was sent to another rate limit service too.
    pub enum MirrorOutcome {
        /// Both services decided alike.
        Equal = "equal",
        /// The services decided differently.
        Different = "different",
        /// The other service did not reply in time, or replied with an error.
        Failed = "failed",
        /// The check was not sent, because too many waited.
        Dropped = "dropped",
    }
}
