//! The outcome of a request as a protocol reports it, and the rules that classify an answer.
//!
//! | the upstream's answer | outcome |
//! |---|---|
//! | a status or code in [`OverloadAnswers`] | [`RequestOutcome::Dropped`] |
//! | any other 429, 5xx or gRPC error | [`RequestOutcome::Ignored`] |
//! | an incomplete answer, or one without a latency | [`RequestOutcome::Ignored`] |
//! | all others | [`RequestOutcome::Success`] |
//!
//! Guarantees:
//! - A quick refusal (429, 5xx, gRPC error) is never a success, so it never lowers the min RTT.
//!
//! Not covered:
//! - Other 4xx statuses: they are successes unless the list contains them.

use std::ops::RangeInclusive;

use super::RequestOutcome;
use crate::units::Nanos;

/// The HTTP status of a refusal because of too many requests.
const TOO_MANY_REQUESTS: u16 = 429;
/// The gRPC code of success.
const GRPC_OK: u8 = 0;
/// The lowest HTTP status of [`OverloadAnswers`].
const FIRST_STATUS: u16 = 400;

/// The outcome of a request, as a protocol reports it at the end of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReportedOutcome {
    /// The protocol knows the outcome, such as a disconnect of the client.
    Known(RequestOutcome),
    /// The upstream answered. The rules of the concurrency limit decide the outcome.
    Answered(UpstreamAnswer),
}

impl From<RequestOutcome> for ReportedOutcome {
    fn from(outcome: RequestOutcome) -> Self {
        Self::Known(outcome)
    }
}

/// The parts of an upstream's answer that can show an overload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct UpstreamAnswer {
    /// The HTTP status.
    pub http: Option<u16>,
    /// The gRPC code, from the trailers, or from the headers of an answer without a message.
    pub grpc: Option<u8>,
    /// `true` if the answer is complete and its latency is known.
    pub has_latency: bool,
    /// The time that the upstream asks clients to wait before a retry.
    pub retry_after: Option<Nanos>,
}

impl UpstreamAnswer {
    /// A complete answer with the HTTP status `status`.
    #[must_use]
    pub const fn with_http_status(status: u16) -> Self {
        Self { http: Some(status), grpc: None, has_latency: true, retry_after: None }
    }
}

/// The effect of an upstream's `Retry-After` on an adaptive limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RetryAfterRule {
    /// No effect.
    #[default]
    Ignore,
    /// After an answer that means overload, the limit does not grow for the time in `Retry-After`.
    Honour,
}

/// The answers of an upstream that mean overload: HTTP statuses from 400 to 599, and gRPC codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OverloadAnswers {
    /// Bit n is set for status 400 + n.
    http: [u64; 4],
    /// Bit n is set for code n.
    grpc: u32,
}

impl OverloadAnswers {
    /// No answer.
    pub const NONE: Self = Self { http: [0; 4], grpc: 0 };

    /// The default: 429, all 5xx, and the gRPC codes `RESOURCE_EXHAUSTED` and `UNAVAILABLE`.
    pub const DEFAULT: Self = Self { http: [1 << 29, !0 << 36, !0, 0xff], grpc: 1 << 8 | 1 << 14 };

    /// Adds HTTP statuses. Those outside 400 to 599 have no effect.
    #[must_use]
    pub fn with_http(mut self, statuses: RangeInclusive<u16>) -> Self {
        for status in statuses {
            if let Some((word, bit)) = status_bit(status)
                && let Some(bits) = self.http.get_mut(word)
            {
                *bits |= bit;
            }
        }
        self
    }

    /// Adds a gRPC code from 1 to 16. Other codes have no effect.
    #[must_use]
    pub const fn with_grpc(self, code: u8) -> Self {
        let bit = if 0 < code && code <= 16 { 1 << code } else { 0 };
        Self { grpc: self.grpc | bit, ..self }
    }

    /// Returns the HTTP statuses in the list, ascending.
    pub fn http_statuses(self) -> impl Iterator<Item = u16> {
        (FIRST_STATUS..600).filter(move |status| {
            self.contains(&UpstreamAnswer { http: Some(*status), ..UpstreamAnswer::default() })
        })
    }

    /// Returns the gRPC codes in the list, ascending.
    pub fn grpc_codes(self) -> impl Iterator<Item = u8> {
        (1..=16).filter(move |code| self.grpc & 1 << code != 0)
    }

    /// Returns `true` if the answer's status or code is in the list.
    #[must_use]
    pub fn contains(&self, answer: &UpstreamAnswer) -> bool {
        let status = answer.http.and_then(status_bit);
        let has_status = status
            .is_some_and(|(word, bit)| self.http.get(word).is_some_and(|bits| bits & bit != 0));
        let code = answer.grpc.and_then(|code| 1_u32.checked_shl(code.into()));
        has_status || code.is_some_and(|bit| self.grpc & bit != 0)
    }

    /// The outcome of a request, by the table of this module.
    #[must_use]
    pub fn classify(&self, reported: ReportedOutcome) -> RequestOutcome {
        match reported {
            ReportedOutcome::Known(outcome) => outcome,
            ReportedOutcome::Answered(answer) if self.contains(&answer) => RequestOutcome::Dropped,
            ReportedOutcome::Answered(answer) if answer.is_served() => RequestOutcome::Success,
            ReportedOutcome::Answered(_) => RequestOutcome::Ignored,
        }
    }
}

impl Default for OverloadAnswers {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl ReportedOutcome {
    /// The time that the upstream asks clients to wait before a retry.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Nanos> {
        match self {
            Self::Known(_) => None,
            Self::Answered(answer) => answer.retry_after,
        }
    }
}

impl UpstreamAnswer {
    /// Returns `true` if the upstream served the request completely.
    fn is_served(&self) -> bool {
        let is_http_served = self
            .http
            .is_none_or(|status| (100..500).contains(&status) && status != TOO_MANY_REQUESTS);
        self.has_latency && is_http_served && self.grpc.is_none_or(|code| code == GRPC_OK)
    }
}

/// The position of a status in the list: the index of a word, and a bit of the word.
fn status_bit(status: u16) -> Option<(usize, u64)> {
    let number = status.checked_sub(FIRST_STATUS).filter(|number| *number < 200)?;
    Some((usize::from(number / 64), 1 << (number % 64)))
}
