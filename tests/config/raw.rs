//! Tests of the values that the YAML reader takes from the text of a limits file.

use serde_json::{Value, json};
use sluicegate::config::NON_FINITE_PREFIX;
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
        .diagnostics
        .iter()
        .map(|one| format!("{} {}:{}", one.code.name(), one.location.line, one.location.column))
        .collect()
}

/// Reads a file with one descriptor. `body` is its YAML, indented by two spaces.
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
fn integers_follow_yaml_1_1() {
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
fn requests_per_unit_refuses_non_u32_values() {
    for text in ["-1", "4294967296", "'5'", "many", "{name: 1}", "0o8", "1e", "1:30", "yes"] {
        let file = format!("domain: d\ndescriptors:\n- rate_limit: {{requests_per_unit: {text}}}");
        assert_eq!(refused(&file), ["E13 3:35"], "{text}");
    }
}

#[test]
fn booleans_must_be_unquoted_yaml_1_1_words() {
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
fn unquoted_text_like_010_keeps_its_spelling() {
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
fn fractions_and_oversized_integers_are_refused_in_every_field() {
    for text in ["1.5", "1e5", "1.", ".5", "08", "09", ".inf", ".NaN", "9223372036854775808"] {
        let file = format!("domain: d\ndescriptors:\n- value: {text}");
        assert_eq!(refused(&file), ["E12 3:10"], "{text}");
        let misplaced = refused(&format!("domain: d\nunit: {text}"));
        assert_eq!(misplaced, ["W01 2:1", "E12 2:7"], "{text}");
    }
}

#[test]
fn fix_of_a_number_names_the_whole_number() {
    let help = |fields: &str| {
        let file = format!("domain: d\ndescriptors:\n- key: k\n{fields}");
        raw::read("a.yaml", file.as_bytes()).unwrap_err().diagnostics[0].help.clone().unwrap()
    };
    let requests = |number| help(&format!("  rate_limit: {{requests_per_unit: {number}}}"));
    assert_eq!(requests("1e3"), "write 1000");
    assert_eq!(requests("5.0"), "write 5");
    assert!(
        requests("2.5").starts_with("write a whole number; for fractions, use a longer period")
    );
    assert_eq!(requests("1e12"), "write a whole number up to 4294967295");
    assert_eq!(requests("9223372036854775808"), "write a whole number up to 4294967295");
    assert_eq!(help("  concurrency: {limit: 1e2}"), "write 100");
    assert_eq!(help("  concurrency: {limit: 0.5}"), "write a whole number up to 4294967295");
    assert_eq!(help("  value: 1.5"), "quote it if it is text: '1.5'");
}

#[test]
fn last_repeated_yaml_key_wins_and_blocks_merge() {
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
fn type_errors_in_an_overwritten_block_are_ignored() {
    let text = "  rate_limit: {bogus: 1, domain: 1.5, requests_per_unit: 7.9}\n";
    let joined = descriptor(&format!("{text}  rate_limit: {{unit: day}}\n"));
    assert_eq!(joined.rate_limit.unwrap().requests_per_unit.value, 7);
}

#[test]
fn merge_keys_apply_in_file_order() {
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
fn only_unquoted_yaml_merge_keys_merge() {
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
fn metadata_values_and_keys_convert_to_json() {
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
fn repeated_metadata_blocks_merge_at_top_level_only() {
    let joined = descriptor("  metadata: {a: {x: 1}, b: 1}\n  metadata: {a: {z: 2}}\n").metadata;
    assert_eq!(Value::from(joined.unwrap().value), json!({"a": {"z": 2}, "b": 1}));
    assert!(descriptor("  metadata: {a: 1}\n  metadata: ~\n").metadata.is_none());
}

#[test]
fn non_finite_metadata_is_marked_with_a_warning() {
    let marked = |number: &str| format!("{NON_FINITE_PREFIX}{number}");
    assert_eq!(
        metadata("{a: [.inf, -.INF, .nan]}"),
        json!({"a": [marked("inf"), marked("-inf"), marked("NaN")]})
    );
    let warnings = warnings("domain: d\ndescriptors:\n- metadata: {a: .inf}\n");
    assert_eq!(warnings.len(), 1);
    assert_eq!(warnings[0].code.name(), "W04");
}

#[test]
fn all_errors_are_reported_in_file_order() {
    let text = "domain: [d]\n\
                descriptors:\n\
                - key: k\n  shadow_mode: maybe\n  bogus: 1\n  rate_limit: {requests_per_unit: x}\n\
                - key: !!int z\n  value: 1.5\n  burst: 3\n";
    let all = ["E13 1:9", "E13 4:16", "E09 5:3", "E13 6:35", "E07 7:14", "E12 8:10", "E10 9:3"];
    assert_eq!(refused(text), all);
}

#[test]
fn syntax_error_hides_all_other_findings() {
    assert_eq!(refused("domain: d\nbogus: 1\ndescriptors: *none\n"), ["E01 3:14"]);
}

#[test]
fn sluicegate_fields_are_read_in_their_blocks() {
    let file = read(
        "domain: d\ncharge: all_or_nothing\n\
         defaults: {strategy: gcra, on_store_failure: local, mode: exact, max_overshoot: 2%}\n\
         descriptors:\n- key: k\n  concurrency: {limit: 64, adaptive: {algorithm: gradient}}\n  \
         rate_limit: {requests_per_unit: 5, per: 90s, strategy: gcra, burst: 50, mode: leased, \
         max_overshoot: 0, on_store_failure: deny, \
         calendar: {time_zone: Europe/Berlin, starts_on: 15}}\n",
    );
    let defaults = file.defaults.unwrap();
    assert_eq!(file.charge.unwrap().value, "all_or_nothing");
    assert_eq!(defaults.strategy.unwrap().value, "gcra");
    assert_eq!(defaults.max_overshoot.unwrap().value, "2%");
    let ceiling = file.descriptors[0].concurrency.as_ref().unwrap();
    assert_eq!(ceiling.limit.as_ref().unwrap().value, 64);
    let adaptive = ceiling.adaptive.as_ref().unwrap();
    assert_eq!(adaptive.algorithm.as_ref().unwrap().value, "gradient");
    let limit = file.descriptors[0].rate_limit.as_ref().unwrap();
    assert_eq!(limit.per.as_ref().unwrap().value, "90s");
    assert_eq!(limit.burst.as_ref().unwrap().value, 50);
    assert_eq!(limit.max_overshoot.as_ref().unwrap().value, "0");
    let calendar = limit.calendar.as_ref().unwrap();
    assert_eq!(calendar.time_zone.as_ref().unwrap().value, "Europe/Berlin");
    assert_eq!(calendar.starts_on.as_ref().unwrap().value, "15");
}

#[test]
fn byte_spans_cover_exactly_the_value() {
    let text = "domain: d\ndescriptors:\n  - key: \"k\"\n    value: a b # why\n";
    let file = read(text);
    let of = |span: sluicegate::config::diagnostic::Span| &text[span.start..span.end];
    assert_eq!(of(file.domain.span), "d");
    assert_eq!(of(file.descriptors[0].span), "key");
    assert_eq!(of(file.descriptors[0].key.span), "\"k\"");
    assert_eq!(of(file.descriptors[0].value.span), "a b");
}

#[test]
fn second_yaml_document_warns_unless_it_is_empty() {
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
fn only_the_first_yaml_document_is_read() {
    for text in ["domain: d\n---\n: : : [\n", "domain: d\n...\nbogus: [\n", "{domain: d}\n--- x"] {
        assert_eq!(read(text).domain.value, "d");
    }
    assert_eq!(read("---\n---\ndomain: d\n").domain.value, "");
    assert_eq!(read("# nothing\n").domain.value, "");
    assert_eq!(read("").domain.value, "");
}

#[test]
fn encodings_and_line_endings_read_the_same() {
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
        let place = source.locate(file.descriptors[0].key.span);
        assert_eq!((place.line, place.column), (3, 8));
    }
}
