//! Tests of YAML 1.1, which envoyproxy/ratelimit reads, where it differs from YAML 1.2.

use sluicegate::config::diagnostic::Code;
use sluicegate::config::raw;

fn is_read(text: &str) -> bool {
    match raw::read("a.yaml", text.as_bytes()) {
        Ok(_) => true,
        Err(found) => {
            let found = found.diagnostics;
            assert_eq!(found[0].code, Code::Syntax, "{text:?} {found:?}");
            false
        }
    }
}

#[test]
fn tabs_at_line_or_item_starts_are_refused() {
    for text in [
        "\tdomain: d\n",
        "\t\n",
        "domain: d\n\t\ndescriptors: []\n",
        "domain: d\n\t# c\ndescriptors: []\n",
        "domain: 'd'\n \t\ndescriptors: []\n",
        "domain: d\ndescriptors:\n\t- key: k\n",
        "domain: d\ndescriptors:\n-\tkey: k\n",
        "domain: d\ndescriptors:\n- \tkey: k\n",
        "domain: d\ndescriptors:\n- key: k\n\tvalue: v\n",
    ] {
        assert!(!is_read(text), "{text:?}");
    }
}

#[test]
fn tabs_elsewhere_are_accepted() {
    for text in [
        "domain:\td\n",
        "domain: d\t# c\n",
        "domain: d\n \t\ndescriptors: []\n",
        "domain: d #\tc\n#\tc\ndescriptors: []\n",
        "domain: |\n  a\tb\n",
        "{\n\t\"domain\": \"d\",\n\t\"descriptors\": [\n\t\t{\"key\": \"k\"}\n\t]\n}\n",
    ] {
        assert!(is_read(text), "{text:?}");
    }
}

#[test]
fn comments_may_directly_follow_brackets_and_quotes() {
    for text in [
        "domain: 'd'#c\ndescriptors: []#c\n",
        "domain: \"d\"#c",
        "domain: |#c\n  d\n",
        "domain: d\ndescriptors: [{key: 'k'}]#{[\n",
        "{#c\ndomain: d,#c\ndescriptors: [#c\n]}\n",
    ] {
        assert!(is_read(text), "{text:?}");
    }
    let (file, ..) = raw::read("a.yaml", b"domain: d#c\nvalue: ']#'#c\n").unwrap();
    assert_eq!(file.domain.value, "d#c");
}

#[test]
fn thousands_of_consecutive_comments_are_accepted() {
    let lines =
        (0..5_000).map(|number| format!("- key: 'k{number}'#c [{{\n  value: \"]#v\"#c '\n"));
    let text = format!("domain: d\ndescriptors:\n{}", lines.collect::<String>());
    let (file, ..) = raw::read("a.yaml", text.as_bytes()).unwrap();
    assert_eq!(file.descriptors.len(), 5_000);
    let last = &file.descriptors[4_999];
    assert_eq!((last.key.value.as_str(), last.value.value.as_str()), ("k4999", "]#v"));
}

/// Deliberate difference, documented in `docs/verify-compatibility.md`: envoyproxy/ratelimit accepts these files.
#[test]
fn outdented_quoted_text_and_tabs_in_brackets_are_refused() {
    for text in [
        "domain: d\ndescriptors:\n  - key: \"a\n  b\"\n",
        "domain: d\ndescriptors:\n  - key: 'a\nb'\n",
        "domain: d\ndescriptors: [\n\t{key: k}]\n",
    ] {
        assert!(!is_read(text), "{text:?}");
    }
    // With spaces instead of tabs, or deeper indentation, the same files are accepted.
    for text in [
        "domain: d\ndescriptors:\n  - key: \"a\n      b\"\n",
        "domain: d\ndescriptors: [\n  {key: k}]\n",
    ] {
        assert!(is_read(text), "{text:?}");
    }
}

#[test]
fn flow_text_refuses_question_marks_and_leading_colons() {
    for text in ["{domain: a?b}", "{domain: :d}", "domain: d\nmetadata: {a:[b]}", "{domain: ?d}"] {
        assert!(!is_read(text), "{text:?}");
    }
    for text in ["{domain: 'a?b'}", "domain: a?b", "domain: :d", "{\"domain\":d}", "{\"domain\":}"]
    {
        assert!(is_read(text), "{text:?}");
    }
}

#[test]
fn colon_directly_before_a_comma_belongs_to_the_key() {
    let text = "domain: d\ndescriptors:\n- metadata: {a:, b: 1, c:}\n";
    let (mut file, ..) = raw::read("a.yaml", text.as_bytes()).unwrap();
    let metadata = file.descriptors.remove(0).metadata.unwrap().value;
    assert_eq!(metadata.keys().collect::<Vec<_>>(), ["a:", "b", "c:"]);
    assert!(metadata["a:"].is_null());
}

#[test]
fn escapes_and_anchors_follow_yaml_1_1() {
    for text in [
        "domain: \"\\/\"",
        "domain: \"\\\\\\/\"",
        "domain: \"\\ud83d\\ude00\"",
        "domain: \"\\q\"",
        "domain: &a.b d",
        "domain: &é d",
        "domain: &a: d",
    ] {
        assert!(!is_read(text), "{text:?}");
    }
    for text in ["domain: \"\\U0001F600 \\\\/\"", "domain: &a-b_1 d\nvalue: *a-b_1\n"] {
        assert!(is_read(text), "{text:?}");
    }
}

#[test]
fn only_yaml_1_1_and_tag_directives_are_accepted() {
    for text in ["%YAML 1.1\n---\ndomain: d", "%TAG !e! tag:e.com,2000:\n---\ndomain: !e!x d"] {
        assert!(is_read(text), "{text:?}");
    }
    for text in ["%YAML 1.2\n---\n{}", "%YAML 1.0\n---\n{}", "%FOO\n---\n{}", "%YAML 1.1\n{}"] {
        assert!(!is_read(text), "{text:?}");
    }
    assert!(is_read("domain: d\n%YAML 1.2\n"));
    for text in ["domain: d\n%a: x\n", "domain: d\n%escriptors:\n- key: k\n"] {
        assert!(!is_read(text), "{text:?}");
    }
}

#[test]
fn capitalized_null_is_an_empty_rate_limit() {
    for (null, some) in [("null", false), ("~", false), ("", false), ("Null", true), ("NULL", true)]
    {
        let text = format!("domain: d\ndescriptors:\n- key: k\n  rate_limit: {null}\n");
        let (file, ..) = raw::read("a.yaml", text.as_bytes()).unwrap();
        assert_eq!(file.descriptors[0].rate_limit.is_some(), some, "{null}");
    }
}
