//! Converts forwarded releases and renewals between the
//! engine's types and the protobuf messages, without I/O.
//!
//! Guarantees:
//! - Encoding and decoding a release or renewal returns an equal one.
//! - An invalid protobuf message is rejected.

use std::borrow::Cow;
use std::net::IpAddr;

use super::api::{self, Update};
use crate::engine::fleet::forwarding::{IdState, PermitEvent, PermitUpdate};
use crate::engine::validate_id;
use crate::kernel::concurrency::{
    OverloadAnswers, ReportedOutcome, RequestOutcome, UpstreamAnswer,
};
use crate::kernel::units::Nanos;

/// The largest number of releases and renewals in one batch.
pub const MAX_BATCH_MESSAGES: usize = 1_000;

pub(super) fn encode(update: &PermitUpdate<'_>) -> Update {
    let (event, reported, rtt) = match update.event {
        PermitEvent::Released(how, rtt) => (api::Event::Released, Some(how), rtt),
        PermitEvent::ReleasedUnknown(how, rtt) => (api::Event::ReleasedUnknown, Some(how), rtt),
        PermitEvent::Renewed => (api::Event::Renewed, None, None),
    };
    // A replica of an earlier version does not know the answer, so it gets the default outcome.
    let outcome = match reported.map(|reported| OverloadAnswers::DEFAULT.classify(reported)) {
        None => api::Outcome::Unspecified,
        Some(RequestOutcome::Success) => api::Outcome::Success,
        Some(RequestOutcome::Ignored) => api::Outcome::Ignored,
        Some(RequestOutcome::Dropped) => api::Outcome::Dropped,
    };
    let source = match update.source {
        None => Vec::new(),
        Some(IpAddr::V4(address)) => address.octets().to_vec(),
        Some(IpAddr::V6(address)) => address.octets().to_vec(),
    };
    Update {
        id: update.id.clone().into_owned(),
        event: event.into(),
        outcome: outcome.into(),
        rtt_ns: rtt.map(|rtt| rtt.0),
        source,
        answer: reported.and_then(encode_answer),
    }
}

fn encode_answer(reported: ReportedOutcome) -> Option<api::Answer> {
    let ReportedOutcome::Answered(answer) = reported else { return None };
    Some(api::Answer {
        http_status: answer.http.map(u32::from),
        grpc_status: answer.grpc.map(u32::from),
        has_latency: answer.has_latency,
        retry_after_ns: answer.retry_after.map(|wait| wait.0),
    })
}

fn decode_answer(answer: &api::Answer) -> UpstreamAnswer {
    UpstreamAnswer {
        http: answer.http_status.map(|status| u16::try_from(status).unwrap_or(u16::MAX)),
        grpc: answer.grpc_status.map(|code| u8::try_from(code).unwrap_or(u8::MAX)),
        has_latency: answer.has_latency,
        retry_after: answer.retry_after_ns.map(Nanos),
    }
}

pub(super) fn decode(message: &Update) -> Option<PermitUpdate<'_>> {
    validate_id(&message.id).ok()?;
    let rtt = message.rtt_ns.map(Nanos);
    let request_outcome = || {
        let outcome = match message.outcome() {
            api::Outcome::Success => RequestOutcome::Success,
            api::Outcome::Ignored => RequestOutcome::Ignored,
            api::Outcome::Dropped => RequestOutcome::Dropped,
            api::Outcome::Unspecified => return None,
        };
        let answer = message.answer.as_ref().map(decode_answer);
        Some(answer.map_or(ReportedOutcome::Known(outcome), ReportedOutcome::Answered))
    };
    let event = match message.event() {
        api::Event::Released => PermitEvent::Released(request_outcome()?, rtt),
        api::Event::ReleasedUnknown => PermitEvent::ReleasedUnknown(request_outcome()?, rtt),
        api::Event::Renewed => PermitEvent::Renewed,
        api::Event::Unspecified => return None,
    };
    Some(PermitUpdate {
        id: Cow::Borrowed(&message.id),
        event,
        source: parse_source(&message.source)?,
    })
}

/// Parses an optional IP address. `None` means that the bytes are
/// invalid, and `Some(None)` that there is no address.
#[expect(clippy::option_option, reason = "a message may have no address")]
fn parse_source(bytes: &[u8]) -> Option<Option<IpAddr>> {
    if bytes.is_empty() {
        return Some(None);
    }
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let address = four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
    address.ok().map(Some)
}

pub(super) const fn encode_result(found: IdState) -> api::IdState {
    match found {
        IdState::HadPermits => api::IdState::HadPermits,
        IdState::NoPermits => api::IdState::NoPermits,
        IdState::Unknown => api::IdState::Unknown,
    }
}

/// Converts the protobuf enum of a receiver's result. A number that the
/// enum does not contain becomes [`IdState::Unknown`].
pub(super) fn decode_result(state: i32) -> IdState {
    match api::IdState::try_from(state) {
        Ok(api::IdState::HadPermits) => IdState::HadPermits,
        Ok(api::IdState::NoPermits) => IdState::NoPermits,
        Ok(api::IdState::Unknown | api::IdState::Malformed) | Err(_) => IdState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef";

    fn answers() -> impl Iterator<Item = UpstreamAnswer> {
        let statuses = [(None, Some(14)), (Some(429), None), (Some(200), Some(0))];
        statuses.into_iter().flat_map(|(http, grpc)| {
            [(true, None), (false, Some(Nanos(7)))].map(|(has_latency, retry_after)| {
                UpstreamAnswer { http, grpc, has_latency, retry_after }
            })
        })
    }

    #[test]
    fn replicas_of_an_earlier_version_get_the_default_outcome() {
        for (status, outcome) in [
            (429, api::Outcome::Dropped),
            (503, api::Outcome::Dropped),
            (404, api::Outcome::Success),
        ] {
            let answer = ReportedOutcome::Answered(UpstreamAnswer::with_http_status(status));
            let message = encode(&PermitUpdate::release(ID, None, answer, None));
            assert_eq!(message.outcome(), outcome, "{status}");
        }
    }

    #[test]
    fn forwarded_releases_survive_encoding_and_decoding() {
        let (rtt, outcomes) = (
            Some(Nanos(7)),
            [RequestOutcome::Success, RequestOutcome::Ignored, RequestOutcome::Dropped]
                .map(ReportedOutcome::Known)
                .into_iter()
                .chain(answers().map(ReportedOutcome::Answered)),
        );
        let ends = outcomes.flat_map(|how| {
            [
                PermitEvent::Released(how, rtt),
                PermitEvent::Released(how, None),
                PermitEvent::ReleasedUnknown(how, rtt),
            ]
        });
        for event in ends.chain([PermitEvent::Renewed]) {
            for source in ["", "192.0.2.1", "2001:db8::1"] {
                let update = PermitUpdate { id: ID.into(), event, source: source.parse().ok() };
                assert_eq!(decode(&encode(&update)), Some(update));
            }
        }
    }

    #[test]
    fn malformed_forwarded_releases_are_rejected() {
        let update = PermitUpdate::release(ID, None, RequestOutcome::Success, None);
        let spoilt: [fn(&mut Update); 7] = [
            |message| message.id.truncate(15),
            |message| message.id.push(' '),
            |message| message.event = 0,
            |message| message.event = 9,
            |message| message.outcome = 0,
            |message| message.outcome = 9,
            |message| message.source = vec![1; 5],
        ];
        for spoil in spoilt {
            let mut message = encode(&update);
            spoil(&mut message);
            assert_eq!(decode(&message), None, "{message:?}");
        }
    }
}
