//! What a limits file means, letter for letter.

use serde_json::{Value, json};
use sluicegate::config::NOT_FINITE;
use sluicegate::config::diagnostic::Diagnostics;
use sluicegate::config::raw::{self, Descriptor, File, RateLimit};

fn read(text: &str) -> File {
    raw::read("a.yaml", text.as_bytes()).unwrap_or_else(|found| panic!("{text}\n{found:#?}")).0
}

fn warnings(text: &str) -> Diagnostics {
    raw::read("a.yaml", text.as_bytes()).unwrap().2
}

fn refused(text: &str) -> Vec<String> {
    let found = raw::read("a.yaml", text.as_bytes()).expect_err(text);
    found
        .iter()
        .map(|one| format!("{} {}:{}", one.code.name(), one.place.line, one.place.column))
        .collect()
}

/// The one descriptor of a file whose domain is `d`; `body` is indented by two.
fn descriptor(body: &str) -> Descriptor {
    let mut file = read(&format!("domain: d\ndescriptors:\n- key: k\n{body}"));
    assert_eq!(file.descriptors.len(), 1);
    file.descriptors.remove(0)
}

fn limit(flow: &str) -> RateLimit {
    descriptor(&format!("  rate_limit: {flow}\n")).rate_limit.unwrap()
}

fn metadata(flow: &str) -> Value {
    descriptor(&format!("  metadata: {flow}\n")).metadata.map_or(Value::Null, |m| m.value.into())
}

#[test]
fn integers_are_those_of_yaml_1_1() {
    for (text, value) in [
        ("010", 8),
        ("0x10", 16),
        ("0X1f", 31),
        ("0b101", 5),
        ("0o17", 15),
        ("1_000", 1000),
        ("1__0", 10),
        ("0x_1_0", 16),
        ("+7", 7),
        ("-0", 0),
        ("00", 0),
        ("!!int '12'", 12),
        ("4294967295", u32::MAX),
        ("~", 0),
    ] {
        let read = limit(&format!("{{requests_per_unit: {text}}}")).requests_per_unit;
        assert_eq!(read.value, value, "{text}");
    }
}

#[test]
fn integers_outside_of_32_bits_and_other_types_are_refused() {
    for text in ["-1", "4294967296", "'5'", "many", "{name: 1}", "0o8", "1e", "1:30", "yes"] {
        let file = format!("domain: d\ndescriptors:\n- rate_limit: {{requests_per_unit: {text}}}");
        assert_eq!(refused(&file), ["E13 3:35"], "{text}");
    }
}

#[test]
fn booleans_have_eleven_spellings_each_and_quoted_ones_are_text() {
    for text in ["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"] {
        assert!(descriptor(&format!("  shadow_mode: {text}\n")).shadow_mode, "{text}");
    }
    for text in ["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF", "~"] {
        assert!(!descriptor(&format!("  shadow_mode: {text}\n")).shadow_mode, "{text}");
    }
    for text in ["'true'", "1", "TrUe", "t", "\"yes\"", "!!str on", "!x true", "{}"] {
        let file = format!("domain: d\ndescriptors:\n- shadow_mode: {text}");
        assert_eq!(refused(&file).len(), 1, "{text}");
    }
}

#[test]
fn a_plain_word_used_as_text_keeps_its_source() {
    for text in ["5", "on", "2020-01-01", "50.0.0.5", "010", "07", "0x0A", "1:30", "1e", "0b2"] {
        assert_eq!(descriptor(&format!("  value: {text}\n")).value.value, text);
    }
    for (text, value) in [
        ("~", ""),
        ("", ""),
        ("Null", ""),
        ("'~'", "~"),
        ("nil", "nil"),
        ("!!str 1.5", "1.5"),
        ("!!binary aGk=", "hi"),
        ("!x 1.5", "1.5"),
        ("! 1.5", "1.5"),
        ("\"\\u00e9\\x41\"", "éA"),
        ("'it''s'", "it's"),
    ] {
        assert_eq!(descriptor(&format!("  value: {text}\n")).value.value, value, "{text}");
    }
}

#[test]
fn fractions_and_integers_beyond_64_bits_are_refused_wherever_they_stand() {
    for text in ["1.5", "1e5", "1.", ".5", "08", "09", ".inf", ".NaN", "9223372036854775808"] {
        let file = format!("domain: d\ndescriptors:\n- value: {text}");
        assert_eq!(refused(&file), ["E12 3:10"], "{text}");
        let misplaced = refused(&format!("domain: d\nunit: {text}"));
        assert_eq!(misplaced, ["W01 2:1", "E12 2:7"], "{text}");
    }
}

#[test]
fn the_last_of_two_equal_keys_wins_and_blocks_join_field_by_field() {
    let joined = descriptor("  rate_limit: {unit: day}\n  rate_limit: {requests_per_unit: 3}\n");
    let joined = joined.rate_limit.unwrap();
    assert_eq!((joined.unit.value.as_str(), joined.requests_per_unit.value), ("day", 3));
    assert_eq!(descriptor("  value: a\n  value: b\n").value.value, "b");
    assert_eq!(descriptor("  value: a\n  value:\n").value.value, "");
    assert!(descriptor("  rate_limit: {unit: day}\n  rate_limit: ~\n").rate_limit.is_none());
    let lists = limit("{replaces: [{name: a}, {name: b}], replaces: [{name: c}]}").replaces;
    assert_eq!(lists.iter().map(|name| name.value.as_str()).collect::<Vec<_>>(), ["c"]);
}

#[test]
fn what_an_overwritten_block_holds_escapes_the_first_pass() {
    let text = "  rate_limit: {bogus: 1, domain: 1.5, requests_per_unit: 7.9}\n";
    let joined = descriptor(&format!("{text}  rate_limit: {{unit: day}}\n"));
    assert_eq!(joined.rate_limit.unwrap().requests_per_unit.value, 7);
}

#[test]
fn a_merge_key_is_applied_where_it_stands() {
    let text = |body: &str| {
        format!(
            "domain: d\nmetadata: [&x {{unit: day, requests_per_unit: 1}}, &y {{unit: hour, name: n}}]\n\
             descriptors:\n- key: k\n  rate_limit: {{{body}}}\n"
        )
    };
    for (body, unit, name) in [
        ("unit: year, <<: *x", "day", ""),
        ("<<: *x, unit: year", "year", ""),
        ("<<: *x, <<: *y", "hour", "n"),
        ("<<: [*x, *y]", "day", "n"),
        ("<<: [*y, *x]", "hour", "n"),
        ("<<: *y, name: ~", "hour", ""),
        ("<<: {unit: week}", "week", ""),
    ] {
        let file = read(&text(body));
        let limit = file.descriptors[0].rate_limit.as_ref().unwrap();
        assert_eq!((limit.unit.value.as_str(), limit.name.value.as_str()), (unit, name), "{body}");
    }
}

#[test]
fn only_a_plain_merge_key_merges() {
    let keys = ["\"<<\"", "'<<'", "!!str <<"];
    for key in keys {
        let text = format!("domain: d\n{key}: {{key: k}}\n");
        assert_eq!(refused(&text)[0].split(' ').next(), Some("E09"), "{key}");
    }
    assert_eq!(refused("domain: d\n<<: 5\n"), ["E06 2:5"]);
    assert_eq!(read("<<: {domain: d}\n").domain.value, "d");
    assert_eq!(read("!!merge <<: {domain: d}\n").domain.value, "d");
}

#[test]
fn metadata_follows_the_types_of_yaml_and_its_keys_the_base_language() {
    assert_eq!(
        metadata("{i: 0x10, f: 2.5, e: 1e3, t: yes, n: ~, d: 2020-01-01, b: !!binary aGk=}"),
        json!({"i": 16, "f": 2.5, "e": 1000.0, "t": true, "n": null, "d": "2020-01-01", "b": "hi"})
    );
    assert_eq!(
        metadata("{0x10: 1, yes: 2, 1.50: 3, ~: 4, y: 5}"),
        json!({"0x10": 1, "yes": 2, "1.50": 3, "": 4, "y": 5})
    );
    assert_eq!(
        metadata("{a: {0x10: 1, yes: 2, 1.50: 3, ~: 4, off: 5, 1000000.0: 6, 1e-5: 7}}"),
        json!({"a": {"16": 1, "true": 2, "1.5": 3, "<nil>": 4, "false": 5, "1e+06": 6, "1e-05": 7}})
    );
    assert_eq!(
        metadata("{b: !!set {p, q}, c: !!omap [x: 1], d: !!float 5, e: !foo 1}"),
        json!({"b": {"p": null, "q": null}, "c": [{"x": 1}], "d": 5.0, "e": "1"})
    );
}

#[test]
fn two_metadata_blocks_join_at_the_first_level_only() {
    let joined = descriptor("  metadata: {a: {x: 1}, b: 1}\n  metadata: {a: {z: 2}}\n").metadata;
    assert_eq!(Value::from(joined.unwrap().value), json!({"a": {"z": 2}, "b": 1}));
    assert!(descriptor("  metadata: {a: 1}\n  metadata: ~\n").metadata.is_none());
}

#[test]
fn metadata_that_json_cannot_express_is_marked_and_told() {
    let marked = |number: &str| format!("{NOT_FINITE}{number}");
    assert_eq!(
        metadata("{a: [.inf, -.INF, .nan]}"),
        json!({"a": [marked("inf"), marked("-inf"), marked("NaN")]})
    );
    let told = warnings("domain: d\ndescriptors:\n- metadata: {a: .inf}\n");
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].code.name(), "W04");
}

#[test]
fn every_problem_of_a_file_is_told_at_once_in_the_order_of_the_text() {
    let text = "domain: [d]\n\
                descriptors:\n\
                - key: k\n  shadow_mode: maybe\n  bogus: 1\n  rate_limit: {requests_per_unit: x}\n\
                - key: !!int z\n  value: 1.5\n  burst: 3\n";
    let all = ["E11 1:10", "E13 4:16", "E09 5:3", "E13 6:35", "E07 7:14", "E12 8:10", "E10 9:3"];
    assert_eq!(refused(text), all);
}

#[test]
fn after_a_syntax_error_only_that_one_is_told() {
    assert_eq!(refused("domain: d\nbogus: 1\ndescriptors: *none\n"), ["E01 3:14"]);
}

#[test]
fn our_own_words_are_read_in_their_places() {
    let file = read(
        "domain: d\ncharge: all_or_nothing\n\
         defaults: {strategy: gcra, on_backend_failure: local, mode: strict, max_overshoot: 2%}\n\
         descriptors:\n- key: k\n  concurrency: {limit: 64, adaptive: {policy: gradient}}\n  \
         rate_limit: {requests_per_unit: 5, per: 90s, strategy: gcra, burst: 50, mode: leased, \
         max_overshoot: 0, on_backend_failure: deny, \
         calendar: {time_zone: Europe/Berlin, starts_on: 15}}\n",
    );
    let defaults = file.defaults.unwrap();
    assert_eq!(file.charge.unwrap().value, "all_or_nothing");
    assert_eq!(defaults.strategy.unwrap().value, "gcra");
    assert_eq!(defaults.max_overshoot.unwrap().value, "2%");
    let ceiling = file.descriptors[0].concurrency.as_ref().unwrap();
    assert_eq!(ceiling.limit.as_ref().unwrap().value, 64);
    let adaptive = ceiling.adaptive.as_ref().unwrap();
    assert_eq!(adaptive.policy.as_ref().unwrap().value, "gradient");
    let limit = file.descriptors[0].rate_limit.as_ref().unwrap();
    assert_eq!(limit.per.as_ref().unwrap().value, "90s");
    assert_eq!(limit.burst.as_ref().unwrap().value, 50);
    assert_eq!(limit.max_overshoot.as_ref().unwrap().value, "0");
    let calendar = limit.calendar.as_ref().unwrap();
    assert_eq!(calendar.time_zone.as_ref().unwrap().value, "Europe/Berlin");
    assert_eq!(calendar.starts_on.as_ref().unwrap().value, "15");
}

#[test]
fn a_span_is_the_value_itself() {
    let text = "domain: d\ndescriptors:\n  - key: \"k\"\n    value: a b # why\n";
    let file = read(text);
    let of = |span: sluicegate::config::diagnostic::Span| &text[span.start..span.end];
    assert_eq!(of(file.domain.span), "d");
    assert_eq!(of(file.descriptors[0].span), "key");
    assert_eq!(of(file.descriptors[0].key.span), "\"k\"");
    assert_eq!(of(file.descriptors[0].value.span), "a b");
}

#[test]
fn a_document_that_is_not_read_is_told_of_and_one_of_nothing_is_not() {
    let found = |text: &str| {
        let (_, _, findings) = raw::read("a.yaml", text.as_bytes()).unwrap();
        findings.iter().map(|one| one.code.name()).collect::<Vec<_>>()
    };
    for text in [
        "domain: d\n---\n: : : [\n",
        "domain: d\n...\nbogus: [\n",
        "{domain: d}\n--- x",
        "domain: d\n---\n# nothing\n---\ndomain: e\n",
        "domain: d\n%YAML 1.1\n---\ndomain: e\n",
        "domain: d\n...\n%YAML x\n---\ndomain: e\n",
        "---\n---\ndomain: e\n",
    ] {
        assert_eq!(found(text), ["W06"], "{text:?}");
    }
    for text in
        ["domain: d\n---\n", "domain: d\n...\n", "domain: d\n--- # nothing\n", "---\ndomain: d\n"]
    {
        assert_eq!(found(text), [""; 0], "{text:?}");
    }
}

#[test]
fn only_the_first_document_is_read() {
    for text in ["domain: d\n---\n: : : [\n", "domain: d\n...\nbogus: [\n", "{domain: d}\n--- x"] {
        assert_eq!(read(text).domain.value, "d");
    }
    assert_eq!(read("---\n---\ndomain: d\n").domain.value, "");
    assert_eq!(read("# nothing\n").domain.value, "");
    assert_eq!(read("").domain.value, "");
}

#[test]
fn encodings_and_line_ends_do_not_matter() {
    let text = "domain: größe\ndescriptors:\n- key: k\n";
    let units: Vec<u16> = std::iter::once(0xFEFF).chain(text.encode_utf16()).collect();
    let little: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
    let big: Vec<u8> = units.iter().flat_map(|unit| unit.to_be_bytes()).collect();
    let marked = format!("\u{FEFF}{text}").into_bytes();
    let windows = text.replace('\n', "\r\n").into_bytes();
    let old_mac = text.replace('\n', "\r").into_bytes();
    for bytes in [little, big, marked, windows, old_mac] {
        let (file, source, _) = raw::read("a.yaml", &bytes).unwrap();
        assert_eq!(file.domain.value, "größe");
        let place = source.place(file.descriptors[0].key.span);
        assert_eq!((place.line, place.column), (3, 8));
    }
}
