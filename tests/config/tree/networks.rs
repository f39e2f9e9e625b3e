//! Tests of networks in limits files: the longest prefix first, with one counter per address,
//! prefix or network.

use std::net::{IpAddr, Ipv6Addr};

use proptest::prelude::*;
use sluicegate::config::Config;
use sluicegate::config::explain::explain;
use sluicegate::kernel::units::{Hits, Nanos};

use super::super::{findings, load, load_clean};

const LIMIT: &str = "rate_limit: {unit: day, requests_per_unit: 3}";

/// The path of the rule of `key=value` without the domain, and the value in its counter key.
fn matched(config: &Config, key: &str, value: &str) -> Option<(String, String)> {
    let (rule, entries) = config.domains["d"].tree.rule_and_key([(key, value)].into_iter())?;
    let path = rule.path.strip_prefix("d.").unwrap_or(&rule.path);
    Some((path.to_owned(), entries[0].1.to_string()))
}

fn rules(fields: &[&str]) -> Config {
    let rule = |fields: &&str| format!("- {{key: remote_address, {fields}, {LIMIT}}}\n");
    load_clean(&fields.iter().map(rule).collect::<String>())
}

#[test]
fn the_longest_prefix_matches_after_the_exact_value() {
    let config = rules(&[
        "network: 10.0.0.0/8",
        "network: 0.0.0.0/0",
        "network: 10.1.0.0/16, counter_per: network",
        "value: 10.1.2.3",
        "value: '10.1.2.*'",
        "network: 2001:DB8::/32, counter_per: /64",
        "value: ''",
    ]);
    for (value, rule, counter) in [
        ("10.1.2.3", "_10.1.2.3", "10.1.2.3"),
        ("::ffff:10.1.2.3", "_10.1.2.3", "10.1.2.3"),
        ("10.1.2.4", "_10.1.0.0/16", "10.1.0.0/16"),
        ("::ffff:a01:204", "_10.1.0.0/16", "10.1.0.0/16"),
        ("10.2.0.1", "_10.0.0.0/8", "10.2.0.1"),
        ("::FFFF:10.2.0.1", "_10.0.0.0/8", "10.2.0.1"),
        ("192.0.2.7", "_0.0.0.0/0", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "_2001:db8::/32", "2001:db8:1:2::/64"),
        ("2001:0DB8:0001:0002::9", "_2001:db8::/32", "2001:db8:1:2::/64"),
        ("2001:db9:0:0::9", "", "2001:db9::9"),
        ("64:ff9b::10.1.2.3", "", "64:ff9b::a01:203"),
        ("no address", "", "no address"),
    ] {
        let expected = (format!("remote_address{rule}"), counter.to_owned());
        assert_eq!(matched(&config, "remote_address", value), Some(expected), "{value}");
    }
}

#[test]
fn networks_of_other_keys_and_levels_do_not_matter() {
    let config = load_clean(&format!(
        "- {{key: ip, network: 10.0.0.0/8, {LIMIT}}}\n- {{key: remote_address, {LIMIT}}}\n\
         - key: path\n  descriptors:\n  - {{key: ip, network: 10.0.0.0/9, {LIMIT}}}\n"
    ));
    // Without a network for the key, a value is only text.
    let text = ("remote_address".to_owned(), "::ffff:10.0.0.1".to_owned());
    assert_eq!(matched(&config, "remote_address", "::ffff:10.0.0.1"), Some(text));
    assert_eq!(matched(&config, "ip", "11.0.0.1"), None);
    let tree = &config.domains["d"].tree;
    let nested = tree.lookup([("path", "/"), ("ip", "::ffff:10.0.0.1")]).unwrap();
    assert_eq!(&*nested.rule.path, "d.path.ip_10.0.0.0/9");
    assert!(tree.lookup([("path", "/"), ("ip", "10.128.0.1")]).is_none());
    // A network has no match as text.
    assert_eq!(matched(&config, "ip", "10.0.0.0/8"), None);
}

#[test]
fn descriptors_below_a_network_match() {
    let config = load_clean(&format!(
        "- key: ip\n  network: 10.0.0.0/8\n  counter_per: network\n  descriptors:\n  - {{key: path, {LIMIT}}}\n"
    ));
    let tree = &config.domains["d"].tree;
    let entries = [("ip", "10.1.2.3"), ("path", "/")];
    let (rule, key) = tree.rule_and_key(entries.into_iter()).unwrap();
    assert_eq!((&*rule.path, &*key[0].1), ("d.ip_10.0.0.0/8.path", "10.0.0.0/8"));
}

#[test]
fn concurrency_limits_count_by_network() {
    let config = load_clean(
        "- {key: ip, network: 2001:db8::/32, counter_per: /64, concurrency: {limit: 2, max_duration: 5s}}\n",
    );
    let found = config.domains["d"].tree.lookup_concurrency_limit([("ip", "2001:db8::1:2:3:4")]);
    assert_eq!(found.unwrap().shared[0].1, "2001:db8::/64");
}

#[test]
fn explain_shows_the_networks_around_an_address() {
    let config = rules(&["network: 10.0.0.0/8", "network: 10.1.0.0/16", "network: 11.0.0.0/8"]);
    let steps =
        explain(&config, "d", &[vec![("remote_address", "::ffff:10.1.2.3")]], Hits(1), Nanos(0));
    let tried = steps.descriptors[0].steps[0].candidates.iter();
    let tried: Vec<_> =
        tried.map(|one| format!("{} {} {}", one.kind, one.name, one.verdict)).collect();
    assert_eq!(
        tried,
        [
            "exact remote_address_10.1.2.3 absent",
            "network remote_address_10.1.0.0/16 matched",
            "network remote_address_10.0.0.0/8 outranked",
            "bare key remote_address absent",
        ]
    );
}

/// The findings of one descriptor with these fields, each with its help.
fn problems(fields: &str) -> Vec<String> {
    let text = format!("domain: d\ndescriptors:\n- {{key: ip, {fields}, {LIMIT}}}\n");
    let found = load(&[("a.yaml", &text)], false).unwrap_err();
    let describe = |one: &sluicegate::config::diagnostic::Diagnostic| {
        format!("{} {}; {}", one.code.name(), one.message, one.help.as_deref().unwrap_or_default())
    };
    found.iter().map(describe).collect()
}

#[test]
fn errors_of_a_network_name_the_fix() {
    for (fields, expected) in [
        (
            "network: 10.1.2.3/8",
            "E29 `network: 10.1.2.3/8` has bits after the prefix; write `10.0.0.0/8`, which contains this address",
        ),
        (
            "network: 10.0.0.0/33",
            "E29 `network: 10.0.0.0/33` has an invalid prefix length; write a whole number from 0 to 32 after the `/`",
        ),
        (
            "network: '::/129'",
            "E29 `network: ::/129` has an invalid prefix length; write a whole number from 0 to 128 after the `/`",
        ),
        (
            "network: 10.0.0.1",
            "E29 `network: 10.0.0.1` has no prefix length; write `value: 10.0.0.1` for one address, or a network such as `10.0.0.0/8`",
        ),
        (
            "network: office",
            "E29 `network: office` is no IP network; write an address and a prefix length, such as `10.0.0.0/8`",
        ),
        (
            "network: '::ffff:10.0.0.0/104'",
            "E29 `network: ::ffff:10.0.0.0/104` has IPv4-mapped addresses, which count as IPv4; write `10.0.0.0/8`",
        ),
        (
            "network: 10.0.0.0/8, value: 10.0.0.1",
            "E32 `network` and `value` exclude each other; keep `network` for all its addresses, or `value` for one text",
        ),
        (
            "counter_per: /64",
            "E32 `counter_per` needs `network`; add `network: 10.0.0.0/8`, or remove it",
        ),
        (
            "network: 10.0.0.0/8, counter_per: /64",
            "E29 `counter_per: /64` is longer than the 32 bits of an address in `10.0.0.0/8`; write `address`, `network`, or a prefix from `/8` to `/32`",
        ),
        (
            "network: 2001:db8::/48, counter_per: /32",
            "E29 `counter_per: /32` is larger than the network `2001:db8::/48`; write `address`, `network`, or a prefix from `/48` to `/128`",
        ),
        (
            "network: 10.0.0.0/8, counter_per: 24",
            "E29 `counter_per: 24` is no prefix length; write `address`, `network`, or a prefix from `/8` to `/32`",
        ),
        (
            "network: 10.0.0.0/8, share_threshold: true",
            "E28 `share_threshold` needs a `*` in the value, but `ip` has none; write `counter_per: network` for one counter of all addresses",
        ),
    ] {
        assert_eq!(problems(fields), [expected], "{fields}");
    }
}

#[test]
fn a_network_is_written_once_on_a_level() {
    let network = |text: &str| format!("- {{key: ip, {text}, {LIMIT}}}\n");
    for second in ["network: 2001:DB8:0::/32", "value: '2001:db8::/32'"] {
        let found = findings(&(network("network: '2001:db8::/32'") + &network(second)));
        assert!(
            found[0].contains("E23 duplicate descriptor composite key `d.ip_2001:"),
            "{found:?}"
        );
    }
    assert!(
        findings("- {key: 'ip*', network: 10.0.0.0/8}\n")
            .iter()
            .any(|one| one.contains("without `*`"))
    );
}

/// Networks of few bits, so that random addresses are in several of them.
fn network() -> impl Strategy<Value = (u128, u8, u8)> {
    (any::<u128>(), 0..6_u8, 0..8_u8)
        .prop_map(|(address, prefix, more)| (address, prefix, (prefix + more).min(128)))
}

fn mask(address: u128, bits: u8) -> u128 {
    address & u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)
}

proptest! {
    /// Proxies send the texts of counter keys, which must name the same counters.
    #[test]
    fn a_match_is_the_longest_network_and_its_counter_text_stays(
        networks in prop::collection::vec(network(), 1..12), address in any::<u128>(),
    ) {
        // IPv4-mapped addresses are no IPv6 addresses here.
        prop_assume!(Ipv6Addr::from_bits(address).to_ipv4_mapped().is_none());
        let mut seen = std::collections::HashSet::new();
        let networks: Vec<_> = networks.into_iter().map(|(at, bits, counter)| (mask(at, bits), bits, counter))
            .filter(|(at, bits, _)| seen.insert((*at, *bits))).collect();
        let fields: Vec<_> = networks.iter().map(|(at, bits, counter)| {
            format!("network: '{}/{bits}', counter_per: /{counter}", Ipv6Addr::from_bits(*at))
        }).collect();
        let config = rules(&fields.iter().map(String::as_str).collect::<Vec<_>>());
        let around = networks.iter().filter(|(at, bits, _)| mask(address, *bits) == *at);
        let longest = around.max_by_key(|(_, bits, _)| *bits);
        let expected = longest.map(|(at, bits, counter)| {
            let shared = Ipv6Addr::from_bits(mask(address, *counter));
            (format!("remote_address_{}/{bits}", Ipv6Addr::from_bits(*at)), format!("{shared}/{counter}"))
        });
        let text = IpAddr::from(Ipv6Addr::from_bits(address)).to_string();
        let found = matched(&config, "remote_address", &text);
        prop_assert_eq!(&found, &expected);
        if let Some((_, counter)) = &expected {
            prop_assert_eq!(&matched(&config, "remote_address", counter), &expected);
        }
    }
}
