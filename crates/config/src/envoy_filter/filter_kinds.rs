//! The filters of Envoy that send checks, and the effects of their failure modes.
//!
//! Guarantees:
//! - Each filter has the defaults of Envoy.
//!
//! Not covered:
//! - Reading the config of a filter (see `super::failure_mode`).

/// A kind of Envoy's filters that sends checks.
pub(super) struct FilterKind {
    /// The end of `@type`.
    pub(super) type_name: &'static str,
    /// The field of the failure mode, in both spellings. Its default is `false`.
    pub(super) fields: [&'static str; 2],
    /// The value with which the filter fails open.
    pub(super) open_value: bool,
    /// `true` for Envoy's clients of the rate limit service, which read their own `timeout` only.
    pub(super) is_rate_limit: bool,
    pub(super) effects: FailureEffects,
}

/// The failure modes of a filter: their settings and effects.
pub(super) struct FailureEffects {
    pub(super) name: &'static str,
    pub(super) open_setting: &'static str,
    pub(super) closed_setting: &'static str,
    /// The effect on requests that wait for a permit, if the filter fails open.
    pub(super) queue_effect: &'static str,
    /// Requests, or connections of a network filter.
    pub(super) subjects: &'static str,
    /// The effect on them without a reply, if the filter fails closed.
    pub(super) refusal: Refusal,
}

/// The effect of a filter that fails closed.
#[derive(Clone, Copy)]
pub(super) enum Refusal {
    /// The requests get this HTTP status, unless `status_on_error` has another.
    Status(u16),
    Closed,
    /// The calls get an error of the protocol.
    ProtocolError,
}

pub(super) const MODULE: FailureEffects = FailureEffects {
    name: "Sluicegate filter",
    open_setting: "failure: allow",
    closed_setting: "failure: deny",
    queue_effect: "",
    subjects: "requests",
    refusal: Refusal::Status(503),
};

/// The queues of these filters are in Sluicegate.
const REMOTE_QUEUE: &str = "; a killed replica lets its whole queue through";

pub(super) const FILTERS: [FilterKind; 6] = [
    FilterKind {
        type_name: ".http.ratelimit.v3.RateLimit",
        fields: ["failure_mode_deny", "failureModeDeny"],
        open_value: false,
        is_rate_limit: true,
        effects: FailureEffects {
            name: "rate limit filter",
            open_setting: "failure_mode_deny: false",
            closed_setting: "failure_mode_deny: true",
            queue_effect: REMOTE_QUEUE,
            subjects: "requests",
            refusal: Refusal::Status(500),
        },
    },
    FilterKind {
        type_name: ".http.ext_authz.v3.ExtAuthz",
        fields: ["failure_mode_allow", "failureModeAllow"],
        open_value: true,
        is_rate_limit: false,
        effects: FailureEffects {
            name: "ext_authz filter",
            open_setting: "failure_mode_allow: true",
            closed_setting: "failure_mode_allow: false",
            queue_effect: REMOTE_QUEUE,
            subjects: "requests",
            refusal: Refusal::Status(403),
        },
    },
    FilterKind {
        type_name: ".http.ext_proc.v3.ExternalProcessor",
        fields: ["failure_mode_allow", "failureModeAllow"],
        open_value: true,
        is_rate_limit: false,
        effects: FailureEffects {
            name: "ext_proc filter",
            open_setting: "failure_mode_allow: true",
            closed_setting: "failure_mode_allow: false",
            queue_effect: REMOTE_QUEUE,
            subjects: "requests",
            refusal: Refusal::Status(500),
        },
    },
    FilterKind {
        type_name: ".network.ratelimit.v3.RateLimit",
        fields: ["failure_mode_deny", "failureModeDeny"],
        open_value: false,
        is_rate_limit: true,
        effects: FailureEffects {
            name: "network rate limit filter",
            open_setting: "failure_mode_deny: false",
            closed_setting: "failure_mode_deny: true",
            queue_effect: "",
            subjects: "connections",
            refusal: Refusal::Closed,
        },
    },
    FilterKind {
        type_name: ".network.thrift_proxy.filters.ratelimit.v3.RateLimit",
        fields: ["failure_mode_deny", "failureModeDeny"],
        open_value: false,
        is_rate_limit: true,
        effects: FailureEffects {
            name: "Thrift rate limit filter",
            open_setting: "failure_mode_deny: false",
            closed_setting: "failure_mode_deny: true",
            queue_effect: "",
            subjects: "calls",
            refusal: Refusal::ProtocolError,
        },
    },
    FilterKind {
        type_name: ".network.ext_authz.v3.ExtAuthz",
        fields: ["failure_mode_allow", "failureModeAllow"],
        open_value: true,
        is_rate_limit: false,
        effects: FailureEffects {
            name: "network ext_authz filter",
            open_setting: "failure_mode_allow: true",
            closed_setting: "failure_mode_allow: false",
            queue_effect: "",
            subjects: "connections",
            refusal: Refusal::Closed,
        },
    },
];
