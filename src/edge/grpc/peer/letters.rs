//! Converts forwarded messages between the engine's types and the wire, without I/O.
//!
//! Guarantees:
//! - A converted message reads back as the same message.
//! - An invalid message is refused.

use std::borrow::Cow;
use std::net::IpAddr;

use super::api::{self, Letter};
use crate::engine::check_id;
use crate::engine::peers::{About, Found, Told};
use crate::kernel::concurrency::Outcome;
use crate::kernel::units::Nanos;

pub(super) fn written(told: &Told<'_>) -> Letter {
    let (about, how, rtt) = match told.about {
        About::Ended(how, rtt) => (api::About::Ended, Some(how), rtt),
        About::UnknownEverywhere(how, rtt) => (api::About::UnknownEverywhere, Some(how), rtt),
        About::GoesOn => (api::About::GoesOn, None, None),
    };
    let outcome = match how {
        None => api::Outcome::Unspecified,
        Some(Outcome::Success) => api::Outcome::Success,
        Some(Outcome::Ignored) => api::Outcome::Ignored,
        Some(Outcome::Dropped) => api::Outcome::Dropped,
    };
    let source = match told.source {
        None => Vec::new(),
        Some(IpAddr::V4(address)) => address.octets().to_vec(),
        Some(IpAddr::V6(address)) => address.octets().to_vec(),
    };
    Letter {
        id: told.id.clone().into_owned(),
        about: about.into(),
        outcome: outcome.into(),
        rtt_ns: rtt.map(|rtt| rtt.0),
        source,
    }
}

pub(super) fn read(letter: &Letter) -> Option<Told<'_>> {
    check_id(&letter.id).ok()?;
    let rtt = letter.rtt_ns.map(Nanos);
    let how = || match letter.outcome() {
        api::Outcome::Success => Some(Outcome::Success),
        api::Outcome::Ignored => Some(Outcome::Ignored),
        api::Outcome::Dropped => Some(Outcome::Dropped),
        api::Outcome::Unspecified => None,
    };
    let about = match letter.about() {
        api::About::Ended => About::Ended(how()?, rtt),
        api::About::UnknownEverywhere => About::UnknownEverywhere(how()?, rtt),
        api::About::GoesOn => About::GoesOn,
        api::About::Unspecified => return None,
    };
    Some(Told { id: Cow::Borrowed(&letter.id), about, source: source(&letter.source)? })
}

/// Parses an optional address; the outer `None` means that the bytes are invalid.
#[expect(clippy::option_option, reason = "none is an address that a letter may have")]
fn source(bytes: &[u8]) -> Option<Option<IpAddr>> {
    if bytes.is_empty() {
        return Some(None);
    }
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let address = four.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from));
    address.ok().map(Some)
}

pub(super) const fn answer(found: Found) -> api::Answer {
    match found {
        Found::Held => api::Answer::Held,
        Found::Nothing => api::Answer::HeldNothing,
        Found::Unknown => api::Answer::Unknown,
    }
}

/// Converts a wire value to a result; an unknown value is [`Found::Unknown`].
pub(super) fn found(answer: i32) -> Found {
    match api::Answer::try_from(answer) {
        Ok(api::Answer::Held) => Found::Held,
        Ok(api::Answer::HeldNothing) => Found::Nothing,
        Ok(api::Answer::Unknown | api::Answer::Malformed) | Err(_) => Found::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef";

    #[test]
    fn forwarded_releases_survive_encoding_and_decoding() {
        let (rtt, outcomes) =
            (Some(Nanos(7)), [Outcome::Success, Outcome::Ignored, Outcome::Dropped]);
        let ends = outcomes.into_iter().flat_map(|how| {
            [About::Ended(how, rtt), About::Ended(how, None), About::UnknownEverywhere(how, rtt)]
        });
        for about in ends.chain([About::GoesOn]) {
            for source in ["", "192.0.2.1", "2001:db8::1"] {
                let told = Told { id: ID.into(), about, source: source.parse().ok() };
                assert_eq!(read(&written(&told)), Some(told));
            }
        }
    }

    #[test]
    fn malformed_forwarded_releases_are_rejected() {
        let told = Told::ended(ID, None, Outcome::Success, None);
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
            let mut letter = written(&told);
            spoil(&mut letter);
            assert_eq!(read(&letter), None, "{letter:?}");
        }
    }
}
