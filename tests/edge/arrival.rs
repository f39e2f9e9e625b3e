//! A question as it arrives: what one message can make the process hold.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use proptest::prelude::*;
use prost::Message as _;
use sluicegate::edge::grpc::arrival::arrived;
use sluicegate::edge::http::json;
use sluicegate::engine::Refusal;

use super::request;

/// The largest message and body, in bytes.
const LONGEST: usize = 4 << 20;
/// What is made of one may take as much again, and what a thousand descriptors with ten thousand entries are.
const MOST: u64 = 2 * LONGEST as u64;

/// `head`, and then `part` as often as fits.
fn filled(head: &[u8], part: &[u8]) -> Vec<u8> {
    [head, &part.repeat((LONGEST - head.len()) / part.len())].concat()
}

/// One descriptor of so many bytes: its tag and its length in four bytes of varint.
fn descriptor_of(content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap();
    let mut head = vec![0x12];
    head.extend([0, 7, 14].map(|shift| u8::try_from(length >> shift & 0x7f).unwrap() | 0x80));
    head.push(u8::try_from(length >> 21).unwrap());
    [&head, content].concat()
}

fn with_entries(entries: usize) -> RateLimitDescriptor {
    let entry = Entry { key: "k".into(), value: "v".into() };
    RateLimitDescriptor { entries: vec![entry; entries], ..RateLimitDescriptor::default() }
}

#[test]
fn what_is_made_of_a_message_takes_little_more_memory_than_its_bytes() {
    let empty = filled(b"\n\x01d", b"\x12\0");
    let in_one = descriptor_of(&b"\n\0".repeat(2_000_000));
    let in_many = filled(b"\n\x01d", &descriptor_of(&b"\n\0".repeat(2_000)));
    // Field 99 as a group, with an unknown text in it.
    let behind_a_group = filled(b"\x9b\x06\x0a\x01x\x9c\x06", b"\x12\0");
    let cut_off = [&empty[..], b"\x12\x7f"].concat();
    for (what, message) in [
        ("empty descriptors", empty),
        ("empty entries in one descriptor", in_one),
        ("empty entries in many", in_many),
        ("empty descriptors behind a group", behind_a_group),
        ("a message that ends in the middle", cut_off),
    ] {
        let made = allocation_counter::measure(|| {
            let refused = arrived(&message).is_ok_and(|arrived| arrived.is_err());
            assert!(refused, "{what}");
        });
        assert!(made.bytes_max < MOST, "{what}: {made:?}");
    }
}

#[test]
fn what_is_made_of_a_body_takes_little_more_memory_than_its_bytes() {
    let empty = filled(br#"{"domain":"d","descriptors":["#, b"{},");
    let entries = filled(br#"{"descriptors":[{"entries":["#, b"{},");
    for (what, body) in [("empty descriptors", empty), ("empty entries", entries)] {
        let made = allocation_counter::measure(|| {
            let why = json::request(&body).unwrap_err();
            assert!(matches!(why, json::Unreadable::TooManyObjects(_)), "{what}: {why}");
        });
        assert!(made.bytes_max < MOST, "{what}: {made:?}");
    }
}

#[test]
fn as_many_as_may_be_are_read_and_one_more_is_refused_by_its_number() {
    let read = |descriptors: Vec<RateLimitDescriptor>| {
        let request = request(descriptors);
        let read = arrived(&request.encode_to_vec()).unwrap();
        read.map(|read| assert_eq!(read, request))
    };
    assert_eq!(read(vec![with_entries(10); 1_000]), Ok(()));
    let many = Refusal::TooManyDescriptors { got: 1_001, most: 1_000 };
    assert_eq!(read(vec![with_entries(9); 1_001]), Err(many));
    let mut one_more = vec![with_entries(10); 1_000];
    one_more[999] = with_entries(11);
    assert_eq!(read(one_more), Err(Refusal::TooManyEntries { got: 10_001, most: 10_000 }));
}

/// Pieces of messages, sound and not.
const PIECES: &[&[u8]] = &[
    b"\n\x01d",
    b"\x12\0",
    b"\x12\x02\n\0",
    b"\x12\x08\n\x06\n\x01k\x12\x01v",
    b"\x12\x08\n\0\n\0\n\0\n\0",
    b"\x18\x05",
    // Field 99 as a number, as a text, as a group's begin and end; the end of another group.
    b"\x98\x06\x01",
    b"\x9a\x06\x02\x12\0",
    b"\x9b\x06",
    b"\x9c\x06",
    b"\xa4\x06",
    // A number where descriptors stand, no field, no type, a length beyond the end.
    b"\x10\x01",
    b"\x02\0",
    b"\x17",
    b"\x12\xff\xff\xff\x0f",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn what_arrives_is_what_a_decoder_makes_of_it_or_is_refused_by_its_number(
        pieces in prop::collection::vec((prop::sample::select(PIECES), prop::sample::select(&[1, 1, 1, 999, 2_700])), 0..6),
    ) {
        let message: Vec<u8> = pieces.iter().flat_map(|(piece, times)| piece.repeat(*times)).collect();
        let arrived = arrived(&message);
        let Ok(decoded) = RateLimitRequest::decode(&*message) else {
            prop_assert!(!matches!(arrived, Ok(Ok(_))));
            return Ok(());
        };
        let descriptors = decoded.descriptors.len();
        let entries = decoded.descriptors.iter().map(|descriptor| descriptor.entries.len()).sum();
        let expected = match (descriptors, entries) {
            (1_001.., _) => Err(Refusal::TooManyDescriptors { got: descriptors, most: 1_000 }),
            (_, 10_001..) => Err(Refusal::TooManyEntries { got: entries, most: 10_000 }),
            _ => Ok(decoded),
        };
        prop_assert_eq!(arrived, Ok(expected));
    }
}

#[test]
fn fields_that_nobody_knows_count_for_nothing() {
    let good = request(vec![with_entries(1)]).encode_to_vec();
    // Field 99 as a number, as eight bytes, as four, as a text, and as a group of what would be descriptors elsewhere.
    let group = [&b"\x9b\x06"[..], &b"\x12\0".repeat(2_000), b"\x9c\x06"].concat();
    let unknown: [&[u8]; 5] =
        [b"\x98\x06\xff\x01", b"\x99\x0612345678", b"\x9d\x061234", b"\x9a\x06\x02\x12\0", &group];
    let message = [&unknown.concat()[..], &good].concat();
    assert_eq!(arrived(&message).unwrap().unwrap().descriptors.len(), 1);
}

#[test]
fn what_is_no_message_is_an_error_however_long_it_is() {
    for byte in [0x00, 0x07, 0x12, 0x9c, 0xff] {
        assert!(arrived(&[byte; 3_000]).is_err(), "{byte:#x}");
    }
}

#[test]
fn braces_in_a_text_are_no_objects() {
    let value = r#"{\"{\\"#.repeat(6_000);
    let body = format!(
        r#"{{"domain":"d","descriptors":[{{"entries":[{{"key":"k","value":"{value}"}}]}}]}}"#
    );
    let read = json::request(body.as_bytes()).unwrap();
    assert_eq!(read.descriptors[0].entries[0].value, r#"{"{\"#.repeat(6_000));
}
