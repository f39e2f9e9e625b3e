//! Tests of the decoding of incoming checks: size limits and memory bounds.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use proptest::prelude::*;
use prost::Message as _;
use sluicegate::edge::grpc::rls_codec::decode_request;
use sluicegate::edge::http::json;
use sluicegate::engine::CheckError;

use crate::edge::request;

/// The maximum size of a message or a body, in bytes.
const MAX_MESSAGE_BYTES: usize = 4 << 20;
/// The memory bound of decoding, in bytes: the message size, and as much again for 1,000
/// descriptors with 10,000 entries.
const MAX_ALLOCATED_BYTES: u64 = 2 * MAX_MESSAGE_BYTES as u64;

/// Returns `head`, then `part` repeated up to the maximum size.
fn filled(head: &[u8], part: &[u8]) -> Vec<u8> {
    [head, &part.repeat((MAX_MESSAGE_BYTES - head.len()) / part.len())].concat()
}

/// Encodes one descriptor, with its length as a four-byte varint.
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
fn decoding_a_message_takes_bounded_memory() {
    let empty = filled(b"\n\x01d", b"\x12\0");
    let in_one = descriptor_of(&b"\n\0".repeat(2_000_000));
    let in_many = filled(b"\n\x01d", &descriptor_of(&b"\n\0".repeat(2_000)));
    // Unknown field 99 as a group that contains a string.
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
            let refused = decode_request(&message).is_ok_and(|arrived| arrived.is_err());
            assert!(refused, "{what}");
        });
        assert!(made.bytes_max < MAX_ALLOCATED_BYTES, "{what}: {made:?}");
    }
}

#[test]
fn parsing_a_json_body_takes_bounded_memory() {
    let empty = filled(br#"{"domain":"d","descriptors":["#, b"{},");
    let entries = filled(br#"{"descriptors":[{"entries":["#, b"{},");
    for (what, body) in [("empty descriptors", empty), ("empty entries", entries)] {
        let made = allocation_counter::measure(|| {
            let why = json::parse_request(&body).unwrap_err();
            assert!(matches!(why, json::JsonRequestError::TooManyObjects(_)), "{what}: {why}");
        });
        assert!(made.bytes_max < MAX_ALLOCATED_BYTES, "{what}: {made:?}");
    }
}

#[test]
fn descriptors_and_entries_above_the_limit_are_rejected() {
    let read = |descriptors: Vec<RateLimitDescriptor>| {
        let request = request(descriptors);
        let read = decode_request(&request.encode_to_vec()).unwrap();
        read.map(|read| assert_eq!(read, request))
    };
    assert_eq!(read(vec![with_entries(10); 1_000]), Ok(()));
    let many = CheckError::TooManyDescriptors { got: 1_001, most: 1_000 };
    assert_eq!(read(vec![with_entries(9); 1_001]), Err(many));
    let mut one_more = vec![with_entries(10); 1_000];
    one_more[999] = with_entries(11);
    assert_eq!(read(one_more), Err(CheckError::TooManyEntries { got: 10_001, most: 10_000 }));
}

/// Valid and invalid pieces of Protobuf messages, which the random test concatenates.
const PIECES: &[&[u8]] = &[
    b"\n\x01d",
    b"\x12\0",
    b"\x12\x02\n\0",
    b"\x12\x08\n\x06\n\x01k\x12\x01v",
    b"\x12\x08\n\0\n\0\n\0\n\0",
    b"\x18\x05",
    // Unknown field 99 as a varint, a string, a group start and a group end; then the end of
    // another group.
    b"\x98\x06\x01",
    b"\x9a\x06\x02\x12\0",
    b"\x9b\x06",
    b"\x9c\x06",
    b"\xa4\x06",
    // Invalid: the field of descriptors as a varint, field number 0, wire type 7, a length beyond
    // the end.
    b"\x10\x01",
    b"\x02\0",
    b"\x17",
    b"\x12\xff\xff\xff\x0f",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(2_000) })]

    #[test]
    fn decoding_matches_prost_up_to_the_size_limits(
        pieces in prop::collection::vec((prop::sample::select(PIECES), prop::sample::select(&[1, 1, 1, 999, 2_700])), 0..6),
    ) {
        let message: Vec<u8> = pieces.iter().flat_map(|(piece, times)| piece.repeat(*times)).collect();
        let arrived = decode_request(&message);
        let Ok(decoded) = RateLimitRequest::decode(&*message) else {
            prop_assert!(!matches!(arrived, Ok(Ok(_))));
            return Ok(());
        };
        let descriptors = decoded.descriptors.len();
        let entries = decoded.descriptors.iter().map(|descriptor| descriptor.entries.len()).sum();
        let expected = match (descriptors, entries) {
            (1_001.., _) => Err(CheckError::TooManyDescriptors { got: descriptors, most: 1_000 }),
            (_, 10_001..) => Err(CheckError::TooManyEntries { got: entries, most: 10_000 }),
            _ => Ok(decoded),
        };
        prop_assert_eq!(arrived, Ok(expected));
    }
}

#[test]
fn unknown_fields_do_not_count_as_descriptors() {
    let good = request(vec![with_entries(1)]).encode_to_vec();
    // Unknown field 99 as a varint, 8 bytes, 4 bytes, a string, and a group that contains
    // descriptors.
    let group = [&b"\x9b\x06"[..], &b"\x12\0".repeat(2_000), b"\x9c\x06"].concat();
    let unknown: [&[u8]; 5] =
        [b"\x98\x06\xff\x01", b"\x99\x0612345678", b"\x9d\x061234", b"\x9a\x06\x02\x12\0", &group];
    let message = [&unknown.concat()[..], &good].concat();
    assert_eq!(decode_request(&message).unwrap().unwrap().descriptors.len(), 1);
}

#[test]
fn long_invalid_messages_are_errors() {
    for byte in [0x00, 0x07, 0x12, 0x9c, 0xff] {
        assert!(decode_request(&[byte; 3_000]).is_err(), "{byte:#x}");
    }
}

#[test]
fn braces_in_strings_are_not_counted_as_objects() {
    let value = r#"{\"{\\"#.repeat(6_000);
    let body = format!(
        r#"{{"domain":"d","descriptors":[{{"entries":[{{"key":"k","value":"{value}"}}]}}]}}"#
    );
    let read = json::parse_request(body.as_bytes()).unwrap();
    assert_eq!(read.descriptors[0].entries[0].value, r#"{"{\"#.repeat(6_000));
}
