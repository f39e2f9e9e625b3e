//! Where YAML 1.1, which the base language's reader speaks, parts from YAML 1.2.

use sluicegate::config::diagnostic::Code;
use sluicegate::config::raw;

fn is_read(text: &str) -> bool {
    match raw::read("a.yaml", text.as_bytes()) {
        Ok(_) => true,
        Err(found) => {
            assert_eq!(found[0].code, Code::Syntax, "{text:?} {found:?}");
            false
        }
    }
}

#[test]
fn a_tab_may_not_stand_where_a_line_or_an_item_starts() {
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
fn a_tab_may_stand_anywhere_else() {
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
fn a_comment_may_follow_a_bracket_or_a_quote_at_once() {
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
fn comments_that_follow_at_once_are_read_however_many_there_are() {
    let lines =
        (0..5_000).map(|number| format!("- key: 'k{number}'#c [{{\n  value: \"]#v\"#c '\n"));
    let text = format!("domain: d\ndescriptors:\n{}", lines.collect::<String>());
    let (file, ..) = raw::read("a.yaml", text.as_bytes()).unwrap();
    assert_eq!(file.descriptors.len(), 5_000);
    let last = &file.descriptors[4_999];
    assert_eq!((last.key.value.as_str(), last.value.value.as_str()), ("k4999", "]#v"));
}

/// What the base language's reader takes; docs/compat.md tells of it.
#[test]
fn a_quoted_text_left_of_its_block_and_a_tab_in_brackets_in_a_block_are_refused() {
    for text in [
        "domain: d\ndescriptors:\n  - key: \"a\n  b\"\n",
        "domain: d\ndescriptors:\n  - key: 'a\nb'\n",
        "domain: d\ndescriptors: [\n\t{key: k}]\n",
    ] {
        assert!(!is_read(text), "{text:?}");
    }
    // The same with spaces, and further in.
    for text in [
        "domain: d\ndescriptors:\n  - key: \"a\n      b\"\n",
        "domain: d\ndescriptors: [\n  {key: k}]\n",
    ] {
        assert!(is_read(text), "{text:?}");
    }
}

#[test]
fn unquoted_texts_in_brackets_have_no_question_mark_and_start_with_no_colon() {
    for text in ["{domain: a?b}", "{domain: :d}", "domain: d\nmetadata: {a:[b]}", "{domain: ?d}"] {
        assert!(!is_read(text), "{text:?}");
    }
    for text in ["{domain: 'a?b'}", "domain: a?b", "domain: :d", "{\"domain\":d}", "{\"domain\":}"]
    {
        assert!(is_read(text), "{text:?}");
    }
}

#[test]
fn a_word_with_a_colon_before_a_comma_is_one_word() {
    let text = "domain: d\ndescriptors:\n- metadata: {a:, b: 1, c:}\n";
    let (mut file, ..) = raw::read("a.yaml", text.as_bytes()).unwrap();
    let metadata = file.descriptors.remove(0).metadata.unwrap().value;
    assert_eq!(metadata.keys().collect::<Vec<_>>(), ["a:", "b", "c:"]);
    assert!(metadata["a:"].is_null());
}

#[test]
fn escapes_and_anchors_are_those_of_yaml_1_1() {
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
fn directives_are_version_1_1_and_tag() {
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
fn a_null_spelt_large_is_an_empty_rate_limit_and_a_small_one_is_none() {
    for (null, some) in [("null", false), ("~", false), ("", false), ("Null", true), ("NULL", true)]
    {
        let text = format!("domain: d\ndescriptors:\n- key: k\n  rate_limit: {null}\n");
        let (file, ..) = raw::read("a.yaml", text.as_bytes()).unwrap();
        assert_eq!(file.descriptors[0].rate_limit.is_some(), some, "{null}");
    }
}
