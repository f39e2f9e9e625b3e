//! Reads the fields of Envoy's filters that decide about requests without a reply.
//!
//! Guarantees:
//! - A missing field has Envoy's default.
//!
//! Not covered:
//! - Values that Envoy's runtime changes later.

use super::super::diagnostic::{Code, Findings, Span};
use super::super::hooks::filter_config::FailureMode;
use super::super::manifest::field;
use super::super::yaml::{ScalarValue, YamlId, YamlTree};
use super::filter_kinds::{FailureEffects, FilterKind, Refusal};

/// The share of requests for which a filter fails closed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum FailureShare {
    Open,
    Closed,
    /// Closed for this percentage of requests, above 0 and below 100.
    ClosedFor(f64),
}

impl From<FailureMode> for FailureShare {
    fn from(mode: FailureMode) -> Self {
        match mode {
            FailureMode::Allow => Self::Open,
            FailureMode::Deny => Self::Closed,
        }
    }
}

/// The names of the HTTP statuses that Envoy's enum `StatusCode` has from 400.
const STATUS_NAMES: &[(&str, u16)] = &[
    ("BadRequest", 400),
    ("Unauthorized", 401),
    ("Forbidden", 403),
    ("NotFound", 404),
    ("RequestTimeout", 408),
    ("Conflict", 409),
    ("TooManyRequests", 429),
    ("InternalServerError", 500),
    ("NotImplemented", 501),
    ("BadGateway", 502),
    ("ServiceUnavailable", 503),
    ("GatewayTimeout", 504),
];

/// The config of one filter.
pub(super) struct FilterReader<'t> {
    pub(super) tree: &'t YamlTree<'t>,
    pub(super) node: YamlId,
    pub(super) filter: &'t FilterKind,
}

impl FilterReader<'_> {
    /// Returns the failure mode, and the field that decides it.
    pub(super) fn failure(&self) -> (FailureShare, Option<YamlId>) {
        let names = ["failure_mode_deny_percent", "failureModeDenyPercent"];
        let percent = self.field(self.node, names).filter(|_| self.filter.is_rate_limit);
        if let Some(node) = percent {
            return (self.share(node), Some(node));
        }
        let value = self.field(self.node, self.filter.fields);
        let is_true = matches!(self.scalar(value), Some((_, ScalarValue::Bool(true))));
        let is_open = is_true == self.filter.open_value;
        (if is_open { FailureShare::Open } else { FailureShare::Closed }, value)
    }

    /// Returns the share in a `RuntimeFractionalPercent`.
    fn share(&self, node: YamlId) -> FailureShare {
        let value = self.field(node, ["default_value", "defaultValue"]);
        let part = |name| value.and_then(|value| self.field(value, [name, name]));
        let numerator = match self.scalar(part("numerator")) {
            Some((text, _)) => text.parse::<u32>().unwrap_or(0),
            None => 0,
        };
        let denominator = match self.scalar(part("denominator")) {
            Some(("TEN_THOUSAND" | "1", _)) => 10_000,
            Some(("MILLION" | "2", _)) => 1_000_000,
            _ => 100,
        };
        match numerator {
            0 => FailureShare::Open,
            numerator if denominator <= numerator => FailureShare::Closed,
            numerator => {
                FailureShare::ClosedFor(f64::from(numerator) * 100.0 / f64::from(denominator))
            }
        }
    }

    /// Returns the effect of a filter that fails closed, with its `status_on_error`.
    pub(super) fn refusal(&self) -> Refusal {
        let Refusal::Status(default) = self.filter.effects.refusal else {
            return self.filter.effects.refusal;
        };
        let status = self.field(self.node, ["status_on_error", "statusOnError"]);
        let code = status.and_then(|status| self.field(status, ["code", "code"]));
        let named = |text: &str| STATUS_NAMES.iter().find(|(name, _)| *name == text);
        let code = self
            .scalar(code)
            .and_then(|(text, _)| text.parse().ok().or_else(|| named(text).map(|(_, code)| *code)));
        // Envoy ignores a status below 400, as of `rate_limited_status`.
        Refusal::Status(code.filter(|code| 400 <= *code).unwrap_or(default))
    }

    /// Returns the place, message and fix of a timeout that the filter does not read.
    pub(super) fn unread_timeout(&self) -> Option<(YamlId, String, String)> {
        if !self.filter.is_rate_limit {
            return None;
        }
        let service = self.field(self.node, ["rate_limit_service", "rateLimitService"])?;
        let grpc = self.field(service, ["grpc_service", "grpcService"])?;
        let unread = self.field(grpc, ["timeout", "timeout"])?;
        let (unread_text, _) = self.scalar(Some(unread))?;
        match self.scalar(self.field(self.node, ["timeout", "timeout"])) {
            None => Some((
                unread,
                "the filter's `timeout` is missing, so Envoy waits 20 ms; `grpc_service.timeout` \
                 does not count"
                    .to_owned(),
                format!("write `timeout: {unread_text}` beside `rate_limit_service`"),
            )),
            Some((text, _)) if text == unread_text => None,
            Some((text, _)) => Some((
                unread,
                format!(
                    "Envoy waits {text}, the filter's `timeout`; `grpc_service.timeout` does not count"
                ),
                "remove it".to_owned(),
            )),
        }
    }

    fn field(&self, node: YamlId, names: [&str; 2]) -> Option<YamlId> {
        let node = self.tree.target(node);
        let found = names.iter().find_map(|name| field(self.tree, node, name));
        found.map(|found| self.tree.target(found))
    }

    fn scalar(&self, node: Option<YamlId>) -> Option<(&str, ScalarValue)> {
        self.tree.scalar(node?)
    }
}

impl FailureEffects {
    /// Adds the note about the effect of this failure mode.
    pub(super) fn explain(&self, failure: FailureShare, at: Span, findings: &mut Findings) {
        let Self { name, open_setting, closed_setting, queue_effect, subjects, refusal } = self;
        let passing = format!("{subjects} pass without a limit{queue_effect}");
        let refused = refusal.describe(subjects);
        let (code, message, opposite) = match failure {
            FailureShare::Open => (
                Code::FailsOpen,
                format!("this {name} fails open: without a reply, {passing}"),
                closed_setting,
            ),
            FailureShare::Closed => (
                Code::FailsClosed,
                format!("this {name} fails closed: without a reply, {refused}; limits hold"),
                open_setting,
            ),
            FailureShare::ClosedFor(percent) => (
                Code::FailsOpen,
                format!(
                    "this {name} fails closed for {percent} % of {subjects}: without a reply, \
                     these {}, and the others pass without a limit{queue_effect}",
                    refusal.verb()
                ),
                &"failure_mode_deny_percent: {default_value: {numerator: 100}}",
            ),
        };
        let help = format!("for the opposite, set `{opposite}`");
        findings.add_with_help(code, at, message, help);
    }
}

impl Refusal {
    fn describe(self, subjects: &str) -> String {
        let closes = matches!(self, Self::Closed);
        let and_denials = if closes { ", as after a denial" } else { "" };
        format!("{subjects} {}{and_denials}", self.verb())
    }

    fn verb(self) -> String {
        match self {
            Self::Status(status) => format!("get {status}"),
            Self::Closed => "are closed".to_owned(),
            Self::ProtocolError => "get an error".to_owned(),
        }
    }
}
