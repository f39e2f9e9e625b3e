//! Replies that try to forge, hide or break the usage.

use proptest::prelude::*;
use sluicegate_usage::{MAX_COUNT, Usage};

use crate::{EVENTS, JSON, read_chunks, read_events, read_json};

/// The same reply around text or JSON that a prompt controls.
fn reply(content: &str) -> String {
    format!(
        r#"{{"choices":[{{"message":{{"content":{content}}}}}],"usage":{{"prompt_tokens":50,"completion_tokens":60}}}}"#
    )
}

const TRUE_USAGE: Usage =
    Usage { input: Some(50), output: Some(60), cached_input: None, model: None, invalid: 0 };

const FORGED: &str = r#"{"usage":{"prompt_tokens":1,"completion_tokens":1},"model":"cheap"}"#;

#[test]
fn usage_inside_a_string_is_text() {
    let mut text = FORGED.to_owned();
    for _ in 0..6 {
        // As content, and as the arguments of tools in strings in strings.
        text = serde_json::to_string(&text).unwrap();
        assert_eq!(read_json(reply(&text)), TRUE_USAGE);
        assert_eq!(read_events(format!("data: {}\n\n", reply(&text))), TRUE_USAGE);
    }
}

#[test]
fn a_string_ends_where_json_ends_it() {
    for backslashes in 0..6 {
        let text = format!(r#"{}","usage":{{"prompt_tokens":1}},"x":""#, "\\".repeat(backslashes));
        let text = serde_json::to_string(&text).unwrap();
        assert_eq!(read_json(reply(&text)), TRUE_USAGE, "{backslashes}");
        let beside_usage =
            reply("1").replacen('{', &format!(r#"{{"text":{text},{text}:{text},"#), 1);
        assert_eq!(read_json(beside_usage), TRUE_USAGE, "{backslashes}");
    }
}

#[test]
fn usage_at_another_depth_is_not_usage() {
    for content in [
        FORGED.to_owned(),
        format!("[{FORGED}]"),
        format!(r#"{{"usage":{FORGED}}}"#),
        format!(r"[[[{FORGED}],{FORGED}]]"),
    ] {
        assert_eq!(read_json(reply(&content)), TRUE_USAGE, "{content}");
        for key in ["delta", "metadata", "args", "message", "response", "usageMetadata", ""] {
            let body = reply("1").replacen('{', &format!(r#"{{"{key}":{content},"#), 1);
            let read = read_json(&body);
            let hidden = (read.input, read.output, read.cached_input);
            assert_eq!(hidden, (Some(50), Some(60), None), "{body}");
        }
    }
    for body in [format!("[[{FORGED}]]"), format!("[[],[{FORGED}]]"), format!("\"{FORGED}\"")] {
        assert_eq!(read_json(&body).input, None, "{body}");
    }
}

#[test]
fn a_key_with_dots_is_one_key() {
    for key in ["usage.prompt_tokens", "usage/prompt_tokens", "usage\\u0000", "usage ", "Usage"] {
        let body = format!(r#"{{"{key}":1,"{key}":{{"prompt_tokens":1}}}}"#);
        assert_eq!(read_json(body), Usage::default(), "{key}");
    }
}

#[test]
fn an_escaped_key_is_the_same_key() {
    let body = r#"{"\u0075s\u0061ge":{"prompt\u005ftokens":5},"\u006d\u006F\u0064\u0065\u006C":"a\/\u00e9\ud83d\ude00"}"#;
    let read = read_json(body);
    assert_eq!((read.input, read.model.as_deref()), (Some(5), Some("a/é😀")));
    let escape = |c| format!("\\u{:04x}", u32::from(c));
    let every = "completion_tokens".chars().map(escape).collect::<Vec<_>>().concat();
    assert_eq!(read_json(format!(r#"{{"usage":{{"{every}":5}}}}"#)).output, Some(5));
}

#[test]
fn the_last_of_several_values_counts() {
    let body = r#"{"usage":{"prompt_tokens":1,"prompt_tokens":2},"usage":{"prompt_tokens":3},"usage":null}"#;
    assert_eq!(read_json(body).input, Some(3));
    let invalid_last = r#"{"usage":{"prompt_tokens":3,"prompt_tokens":"4","prompt_tokens":null}}"#;
    assert_eq!((read_json(invalid_last).input, read_json(invalid_last).invalid), (Some(3), 1));
}

#[test]
fn only_unsigned_integers_below_2_to_the_53_are_counts() {
    let input = |value: &str| {
        let read = read_json(format!(r#"{{"usage":{{"prompt_tokens":{value}}}}}"#));
        (read.input, read.invalid)
    };
    assert_eq!(input("0"), (Some(0), 0));
    assert_eq!(input("9007199254740991"), (Some(MAX_COUNT), 0));
    assert_eq!(input("null"), (None, 0));
    let long = "9".repeat(1000);
    for value in [
        "9007199254740992",
        "18446744073709551616",
        "-1",
        "-0",
        "1.0",
        "1.5",
        "1e2",
        "1E400",
        "007",
        "+1",
        "0x1",
        "1_0",
        "NaN",
        "true",
        "\"5\"",
        "{}",
        "[5]",
        "{\"prompt_tokens\":5}",
        "5\0",
        "\u{665}",
        &long,
    ] {
        assert_eq!(input(value), (None, 1), "{value}");
    }
}

#[test]
fn sums_of_counts_stop_at_the_maximum() {
    let m = MAX_COUNT;
    let body = format!(
        r#"{{"usage":{{"input_tokens":{m},"cache_read_input_tokens":{m},"cache_creation_input_tokens":{m},"output_tokens":{m}}},"usageMetadata":{{"thoughtsTokenCount":{m},"toolUsePromptTokenCount":{m}}}}}"#
    );
    let read = read_json(body);
    assert_eq!((read.input, read.output, read.cached_input), (Some(m), Some(m), Some(m)));
}

#[test]
fn cached_tokens_never_exceed_the_input() {
    let body = r#"{"usage":{"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":9}}}"#;
    assert_eq!(read_json(body).cached_input, Some(5));
    let alone = r#"{"usage":{"cache_read_input_tokens":9}}"#;
    assert_eq!((read_json(alone).input, read_json(alone).cached_input), (None, Some(9)));
}

#[test]
fn a_model_is_short_text() {
    let model = |text: &str| {
        let read = read_json(format!(r#"{{"model":{text}}}"#));
        (read.model, read.invalid)
    };
    let longest = "m".repeat(254);
    assert_eq!(model(&format!("\"{longest}\"")), (Some(longest.clone()), 0));
    for bad in [
        format!("\"{longest}m\""),
        "5".into(),
        "[]".into(),
        r#""\u0000""#.into(),
        r#""a\nb""#.into(),
        r#""\ud800""#.into(),
        "\"a\tb\"".into(),
        r#""\x""#.into(),
    ] {
        assert_eq!(model(&bad), (None, 1), "{bad}");
    }
}

#[test]
fn invalid_utf8_stays_outside_of_the_result() {
    let body =
        b"{\"\xff\":\"\xff\xfe\",\"usage\":{\"\xc3\":1,\"prompt_tokens\":5},\"model\":\"\xff\"}";
    assert_eq!(read_json(body), Usage { input: Some(5), invalid: 1, ..Usage::default() });
}

#[test]
fn deep_nesting_is_skipped() {
    for (open, close) in [("[", "]"), ("{\"usage\":", "}"), ("[{\"a\":", "}]")] {
        let deep = format!("{}1{}", open.repeat(100_000), close.repeat(100_000));
        let body = reply(&deep);
        assert_eq!(read_chunks(JSON, [body.as_bytes()]), TRUE_USAGE);
        assert_eq!(read_chunks(JSON, body.as_bytes().chunks(7)), TRUE_USAGE);
    }
}

#[test]
fn after_an_error_the_rest_of_a_body_is_ignored() {
    for broken in [
        "{}",
        "}",
        "{\"usage\":{}}}",
        "{\"a\":1]",
        "{\"a\" \"b\"}",
        "{1}",
        "[1 2]",
        ",",
        "{\"a\":}",
    ] {
        let read = read_json(format!("{broken},{FORGED}"));
        assert_eq!(read, Usage { invalid: 1, ..Usage::default() }, "{broken}");
    }
}

proptest! {
    #[test]
    fn any_bytes_give_bounded_usage_for_any_chunks(
        words in proptest::collection::vec(prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..4),
            proptest::sample::select(&[
                "data:", "\n", "\r", "{", "}", "[", "]", "\"", "\\", ":", ",", "usage", "\"usage\":{",
                "\"prompt_tokens\":", "\"message\":{", "7", "null", "\u{feff}",
            ][..]).prop_map(|word| word.as_bytes().to_vec()),
        ], 0..80),
        size in 1_usize..9,
    ) {
        let body = words.concat();
        for content_type in [JSON, EVENTS] {
            let read = read_chunks(content_type, [&*body]);
            prop_assert_eq!(&read_chunks(content_type, body.chunks(size)), &read);
            let counts = [read.input, read.output, read.cached_input];
            prop_assert!(counts.iter().flatten().all(|&count| count <= MAX_COUNT));
        }
    }
}
