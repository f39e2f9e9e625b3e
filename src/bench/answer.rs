//! The result of one check of a bench.

use std::fmt;

use serde::Deserialize;
use tonic::Code;

use crate::kernel::units::Nanos;

/// The result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AnswerCode {
    /// The check was allowed.
    Allow,
    /// The check was denied.
    Deny,
    /// No reply within the call timeout.
    Timeout,
    /// The connection failed, or the bytes of the reply break the protocol.
    TransportError,
    /// A reply without a decision, such as a page of HTML.
    NoDecision,
    /// The number of a gRPC status other than `OK`.
    Grpc(i32),
    /// An HTTP status without a decision.
    Http(u16),
}

/// The part of a decision in JSON that a bench reads.
#[derive(Deserialize)]
struct JsonDecision {
    #[serde(rename = "overallCode")]
    overall_code: String,
}

impl AnswerCode {
    /// Returns `true` for a decision.
    #[must_use]
    pub const fn is_decision(self) -> bool {
        matches!(self, Self::Allow | Self::Deny)
    }

    /// Reads a reply over HTTP: status 200 with `OK`, or 429 with `OVER_LIMIT`.
    #[must_use]
    pub fn from_http(status: u16, body: &[u8]) -> Self {
        let decision = serde_json::from_slice::<JsonDecision>(body).ok();
        match (status, decision.as_ref().map(|it| &*it.overall_code)) {
            (200, Some("OK")) => Self::Allow,
            (429, Some("OVER_LIMIT")) => Self::Deny,
            (200, _) => Self::NoDecision,
            (status, _) => Self::Http(status),
        }
    }
}

impl fmt::Display for AnswerCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Allow => f.write_str("allow"),
            Self::Deny => f.write_str("deny"),
            Self::Timeout => f.write_str("timeout"),
            Self::TransportError => f.write_str("transport error"),
            Self::NoDecision => f.write_str("no decision"),
            Self::Grpc(number) => write!(f, "gRPC {:?}", Code::from(*number)),
            Self::Http(status) => write!(f, "HTTP {status}"),
        }
    }
}

/// The result of a check of one key, with its times since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyedAnswer {
    /// The number of the key.
    pub key: u32,
    /// The time before the check was sent.
    pub sent: Nanos,
    /// The time after the reply, or after the end of the wait for it.
    pub replied: Nanos,
    /// The result.
    pub code: AnswerCode,
}
