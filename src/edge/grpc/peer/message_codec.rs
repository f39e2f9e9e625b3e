//! Converts forwarded releases and renewals between the engine's types and the protobuf messages,
//! without I/O. Rejects invalid protobuf messages.

use std::borrow::Cow;
use std::net::IpAddr;

use super::api::{self, Letter};
use crate::engine::fleet::forwarding::{IdState, PermitEvent, PermitUpdate};
use crate::engine::validate_id;
use crate::kernel::concurrency::RequestOutcome;
use crate::kernel::units::Nanos;

pub(super) fn encode(update: &PermitUpdate<'_>) -> Letter {
    let (about, request_outcome, rtt) = match update.event {
        PermitEvent::Released(outcome, rtt) => (api::About::Ended, Some(outcome), rtt),
        PermitEvent::ReleasedUnknown(outcome, rtt) => {
            (api::About::UnknownEverywhere, Some(outcome), rtt)
        }
        PermitEvent::Renewed => (api::About::GoesOn, None, None),
    };
    let outcome = match request_outcome {
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
    Letter {
        id: update.id.clone().into_owned(),
        about: about.into(),
        outcome: outcome.into(),
        rtt_ns: rtt.map(|rtt| rtt.0),
        source,
    }
}

pub(super) fn decode(letter: &Letter) -> Option<PermitUpdate<'_>> {
    validate_id(&letter.id).ok()?;
    let rtt = letter.rtt_ns.map(Nanos);
    let request_outcome = || match letter.outcome() {
        api::Outcome::Success => Some(RequestOutcome::Success),
        api::Outcome::Ignored => Some(RequestOutcome::Ignored),
        api::Outcome::Dropped => Some(RequestOutcome::Dropped),
        api::Outcome::Unspecified => None,
    };
    let event = match letter.about() {
        api::About::Ended => PermitEvent::Released(request_outcome()?, rtt),
        api::About::UnknownEverywhere => PermitEvent::ReleasedUnknown(request_outcome()?, rtt),
        api::About::GoesOn => PermitEvent::Renewed,
        api::About::Unspecified => return None,
    };
    Some(PermitUpdate {
        id: Cow::Borrowed(&letter.id),
        event,
        source: parse_source(&letter.source)?,
    })
}

/// Parses an optional IP address. Returns `None` for invalid bytes, `Some(None)` for no bytes.
#[expect(clippy::option_option, reason = "`Some(None)` is a message without an address")]
fn parse_source(bytes: &[u8]) -> Option<Option<IpAddr>> {
    if bytes.is_empty() {
        return Some(None);
    }
    let ipv4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let address = ipv4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
    address.ok().map(Some)
}

pub(super) const fn encode_result(state: IdState) -> api::Answer {
    match state {
        IdState::HadPermits => api::Answer::Held,
        IdState::NoPermits => api::Answer::HeldNothing,
        IdState::Unknown => api::Answer::Unknown,
    }
}

/// Decodes a receiver's result for one message. An unknown number becomes [`IdState::Unknown`].
pub(super) fn decode_result(result: i32) -> IdState {
    match api::Answer::try_from(result) {
        Ok(api::Answer::Held) => IdState::HadPermits,
        Ok(api::Answer::HeldNothing) => IdState::NoPermits,
        Ok(api::Answer::Unknown | api::Answer::Malformed) | Err(_) => IdState::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef";

    #[test]
    fn forwarded_releases_survive_encoding_and_decoding() {
        let (rtt, outcomes) = (
            Some(Nanos(7)),
            [RequestOutcome::Success, RequestOutcome::Ignored, RequestOutcome::Dropped],
        );
        let ends = outcomes.into_iter().flat_map(|how| {
            [
                PermitEvent::Released(how, rtt),
                PermitEvent::Released(how, None),
                PermitEvent::ReleasedUnknown(how, rtt),
            ]
        });
        for about in ends.chain([PermitEvent::Renewed]) {
            for source in ["", "192.0.2.1", "2001:db8::1"] {
                let told =
                    PermitUpdate { id: ID.into(), event: about, source: source.parse().ok() };
                assert_eq!(decode(&encode(&told)), Some(told));
            }
        }
    }

    #[test]
    fn malformed_forwarded_releases_are_rejected() {
        let told = PermitUpdate::release(ID, None, RequestOutcome::Success, None);
        let spoilt: [fn(&mut Letter); 7] = [
            |letter| letter.id.truncate(15),
            |letter| letter.id.push(' '),
            |letter| letter.about = 0,
            |letter| letter.about = 9,
            |letter| letter.outcome = 0,
            |letter| letter.outcome = 9,
            |letter| letter.source = vec![1; 5],
        ];
        for spoil in spoilt {
            let mut letter = encode(&told);
            spoil(&mut letter);
            assert_eq!(decode(&letter), None, "{letter:?}");
        }
    }
}
