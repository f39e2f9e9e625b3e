//! The lines of server-sent events, by section 9.2.6 of the HTML standard.

use sluicegate_usage::Usage;

use crate::read_events;

const FIVE: Usage =
    Usage { input: Some(5), output: None, cached_input: None, model: None, invalid: 0 };

fn event(json: &str) -> String {
    format!("data: {json}\n\n")
}

#[test]
fn every_line_end_ends_a_line() {
    for end in ["\n", "\r\n", "\r"] {
        let body = format!(
            ": comment{end}event: x{end}id: 1{end}data: {{\"usage\":{{\"prompt_tokens\"{end}\
             data: :5}}}}{end}{end}data: [DONE]{end}{end}"
        );
        assert_eq!(read_events(body), FIVE, "{end:?}");
    }
}

#[test]
fn several_data_lines_are_one_json_text() {
    let pretty =
        "data: {\ndata:\ndata\ndata:  \"usage\": {\ndata: \"prompt_tokens\":5\ndata:}}\n\n";
    assert_eq!(read_events(pretty), FIVE);
    let split_number = "data: {\"usage\":{\"prompt_tokens\":5\ndata:0}}\n\n";
    assert_eq!(read_events(split_number), Usage { invalid: 1, ..FIVE });
    let split_by_name = "data: {\"usage\":{\"prompt_tokens\":5\ndata\ndata:0}}\n\n";
    assert_eq!(read_events(split_by_name), Usage { invalid: 1, ..FIVE });
}

#[test]
fn one_byte_order_mark_is_skipped() {
    let five = event(r#"{"usage":{"prompt_tokens":5}}"#);
    assert_eq!(read_events(format!("\u{feff}{five}")), FIVE);
    assert_eq!(read_events(format!("\u{feff}\n\n{five}")), FIVE);
    assert_eq!(read_events(format!("\u{feff}\u{feff}{five}")), Usage::default());
    assert_eq!(read_events(format!("\n\u{feff}{five}")), Usage::default());
    assert_eq!(read_events([b"\xEF\xBB".as_slice(), five.as_bytes()].concat()), Usage::default());
}

#[test]
fn other_fields_are_not_data() {
    let five = r#" {"usage":{"prompt_tokens":5}}"#;
    for name in ["", "dat", "data ", " data", "datas", "Data", "event", "\0data", "id"] {
        assert_eq!(read_events(format!("{name}:{five}\n\n")), Usage::default(), "{name:?}");
    }
    assert_eq!(read_events(format!("data{five}\n\n")), Usage::default(), "no colon");
}

#[test]
fn a_bad_event_does_not_hide_the_next_one() {
    let five = event(r#"{"usage":{"prompt_tokens":5}}"#);
    for bad in
        ["{", "{\"a", "{\"usage\":{", "[[", "\"", "{\"usage\":{\"prompt_tokens\":1", "hello", ""]
    {
        let read = read_events(event(bad) + &five);
        assert_eq!(read, FIVE, "{bad}");
    }
    for broken in ["}", "{]", "{\"usage\" 1}", "{} {}"] {
        let read = read_events(event(broken) + &five);
        assert_eq!(read, Usage { invalid: 1, ..FIVE }, "{broken}");
    }
}

#[test]
fn the_last_event_needs_no_empty_line() {
    assert_eq!(read_events(r#"data: {"usage":{"prompt_tokens":5}}"#), FIVE);
}
