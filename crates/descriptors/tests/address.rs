//! Tests of addresses and networks as descriptor values, against RFC 5952 and RFC 4291.

#![allow(clippy::unwrap_used)]

use std::net::{IpAddr, Ipv6Addr};

use proptest::prelude::*;
use sluicegate_descriptors::address::{ClientAddress, Network, NetworkError};
use sluicegate_descriptors::{Action, PathSpelling, RequestAttributes, build_descriptors};

fn value(text: &str) -> Option<String> {
    ClientAddress::parse(text).map(|address| address.value().into_owned())
}

/// The right sides are the examples of RFC 5952, sections 2 to 5.
#[test]
fn an_address_has_one_text() {
    for (text, expected) in [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("::ffff:c000:207", "192.0.2.7"),
        ("0:0:0:0:0:FFFF:c000:0207", "192.0.2.7"),
        ("[::ffff:192.0.2.7]:443", "192.0.2.7"),
        ("192.0.2.7:65535", "192.0.2.7"),
        (" 192.0.2.7 ", "192.0.2.7"),
        ("2001:db8::1", "2001:db8::1"),
        ("2001:DB8::1", "2001:db8::1"),
        ("2001:0db8::0001", "2001:db8::1"),
        ("2001:db8:0:0:0:0:0:1", "2001:db8::1"),
        ("2001:db8:0:0:1:0:0:1", "2001:db8::1:0:0:1"),
        ("2001:db8:0:1:1:1:1:1", "2001:db8:0:1:1:1:1:1"),
        ("[2001:DB8::AAAA]", "2001:db8::aaaa"),
        ("fe80::1%eth0", "fe80::1"),
        ("[fe80::1%3]:80", "fe80::1"),
        ("64:ff9b::192.0.2.7", "64:ff9b::c000:207"),
    ] {
        assert_eq!(value(text).as_deref(), Some(expected), "{text}");
    }
}

#[test]
fn other_texts_are_no_address() {
    for text in [
        "",
        ":",
        "unix:",
        "/run/envoy.sock",
        "host",
        "host:80",
        "192.0.2",
        "192.0.2.07",
        "192.0.2.7%1",
        "192.0.2.7:",
        "192.0.2.7:65536",
        ":5000",
        "[::1",
        "::1]",
        "[::1]x",
        "[::1]:",
        "1.2.3.4, 5.6.7.8",
        "2001:db8::0:1:1:1:1:1",
        "1:2:3:4:5:6:7:8:9",
    ] {
        assert_eq!(value(text), None, "{text}");
    }
}

#[test]
fn networks_have_a_prefix_and_no_host_bits() {
    let network = |text: &str| Network::parse(text).map(|network| network.to_string());
    assert_eq!(network("10.0.0.0/8"), Ok("10.0.0.0/8".to_owned()));
    assert_eq!(network("2001:DB8:0::/48"), Ok("2001:db8::/48".to_owned()));
    assert_eq!(network("0.0.0.0/0"), Ok("0.0.0.0/0".to_owned()));
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let containing = |text, bits| Network::containing(ip(text), bits);
    assert_eq!(network("10.1.2.3"), Err(NetworkError::NoPrefix(ip("10.1.2.3"))));
    assert_eq!(network("10.1.2.3/8"), Err(NetworkError::HostBits(containing("10.0.0.0", 8))));
    assert_eq!(
        network("::ffff:10.0.0.0/104"),
        Err(NetworkError::Mapped(containing("10.0.0.0", 8)))
    );
    for bad in ["10.0.0.0/33", "10.0.0.0/", "10.0.0.0/+8", "10.0.0.0/-1", "10.0.0.0/999"] {
        assert_eq!(network(bad), Err(NetworkError::BadPrefix(32)), "{bad}");
    }
    assert_eq!(network("::/129"), Err(NetworkError::BadPrefix(128)));
    assert_eq!(network("host/8"), Err(NetworkError::BadAddress));
}

/// Envoy's source test of this action has the first two rows.
#[test]
fn masked_addresses_are_networks_as_in_envoy() {
    for (fields, address, expected) in [
        ("{}", "192.0.2.7", "192.0.2.7/32"),
        ("{}", "2001:db8::1", "2001:db8::1/128"),
        (r#"{"v4_prefix_mask_len": 24, "v6_prefix_mask_len": 64}"#, "192.0.2.7", "192.0.2.0/24"),
        (
            r#"{"v4_prefix_mask_len": 24.0, "v6_prefix_mask_len": 64}"#,
            "::ffff:192.0.2.7",
            "192.0.2.0/24",
        ),
        (r#"{"v6_prefix_mask_len": 64}"#, "[2001:db8:1:2:3:4:5:6]:1", "2001:db8:1:2::/64"),
        (r#"{"v4_prefix_mask_len": 0}"#, "192.0.2.7", "0.0.0.0/0"),
        (r#"{"v6_prefix_mask_len": 49}"#, "2001:db8:1:ffff::1", "2001:db8:1:8000::/49"),
    ] {
        let actions: Vec<Vec<Action>> =
            serde_json::from_str(&format!(r#"[[{{"masked_remote_address": {fields}}}]]"#)).unwrap();
        let request = RequestAttributes {
            first_header_value: &|_| None,
            joined_header_values: &|_| None,
            path: "/",
            remote_address: ClientAddress::parse(address),
            metadata: &|_| None,
        };
        let built = build_descriptors(&actions, PathSpelling::Raw, &request);
        assert_eq!(built[0][0], ("masked_remote_address", expected.into()), "{address}");
        let without = RequestAttributes { remote_address: None, ..request };
        assert!(build_descriptors(&actions, PathSpelling::Raw, &without).is_empty());
    }
}

fn spellings(bits: u128) -> Vec<String> {
    let address = Ipv6Addr::from_bits(bits);
    let segments = address.segments();
    let long = segments.map(|segment| format!("{segment:x}")).join(":");
    let padded = segments.map(|segment| format!("{segment:04X}")).join(":");
    vec![
        address.to_string(),
        address.to_string().to_uppercase(),
        long,
        padded.clone(),
        format!("[{padded}]:1"),
    ]
}

proptest! {
    #[test]
    fn every_spelling_of_an_address_has_one_value(high in any::<u64>(), low in any::<u64>(), mask in any::<u8>()) {
        // Whole segments of zeros are frequent in addresses.
        let keep = |at: u8| if mask & (1 << at) == 0 { 0 } else { 0xffff_u128 << (16 * u32::from(at)) };
        let bits = ((u128::from(high) << 64) | u128::from(low)) & (0..8).fold(0, |all, at| all | keep(at));
        for bits in [bits, 0xffff_0000_0000 | (bits & 0xffff_ffff)] {
            let expected = Ipv6Addr::from_bits(bits).to_canonical().to_string();
            for text in spellings(bits) {
                prop_assert_eq!(value(&text), Some(expected.clone()), "{}", text);
            }
            prop_assert_eq!(value(&expected), Some(expected.clone()));
        }
    }

    #[test]
    fn a_network_contains_the_addresses_of_its_prefix(bits in any::<u128>(), prefix_len in 0..=128_u8, changed in 0..128_u32) {
        let network = Network::containing(Ipv6Addr::from_bits(bits).into(), prefix_len);
        let other = Ipv6Addr::from_bits(bits ^ (1 << (127 - changed)));
        prop_assume!(IpAddr::V6(other).to_canonical() == IpAddr::V6(other));
        prop_assert_eq!(network.contains(other.into()), u32::from(prefix_len) <= changed);
    }
}
