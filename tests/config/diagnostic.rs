//! Tests of the text and the JSON form of findings.

use sluicegate::config::diagnostic::{Code, Diagnostics, Severity, SourceText, Span};
use sluicegate::config::{load, raw};
use sluicegate::kernel::units::Revision;

#[test]
fn finding_text_shows_line_caret_and_fix() {
    let text = "domain: d\ndescriptors:\n  - key: k\n    ratelimit: {}\n";
    let found = raw::read("limits/a.yaml", text.as_bytes()).unwrap_err().diagnostics;
    assert_eq!(
        found[0].to_string(),
        "limits/a.yaml:4:5 error[E09] unknown field `ratelimit`\n    \
         4 |     ratelimit: {}\n      |     ^^^^^^^^^ did you mean `rate_limit`?"
    );
}

#[test]
fn finding_json_has_stable_field_names() {
    let found = raw::read("a.yaml", b"Domain: d\n").unwrap_err().diagnostics;
    let json = serde_json::to_value(&found[0]).unwrap();
    let expected = serde_json::json!({
        "severity": "error", "code": "E09", "file": "a.yaml", "line": 1, "column": 1,
        "message": "unknown field `Domain`", "help": "did you mean `domain`?",
    });
    assert_eq!(json, expected);
}

#[test]
fn line_and_column_count_characters_and_every_line_ending() {
    let source = SourceText::new("a", "é: x\r\nb\rccc\nd");
    for (at, line, column) in [(0, 1, 1), (4, 1, 4), (7, 2, 1), (9, 3, 1), (11, 3, 3), (13, 4, 1)] {
        let place = source.locate(Span { start: at, end: at + 1 });
        assert_eq!((place.line, place.column), (line, column), "byte {at}");
    }
}

#[test]
fn invalid_byte_spans_map_to_valid_lines_and_columns() {
    let source = SourceText::new("a", "x\né");
    let place = source.locate(Span { start: 99, end: 100 });
    assert_eq!((place.line, place.column, place.width), (2, 2, 1));
    let inside = source.locate(Span { start: 3, end: 3 });
    assert_eq!((inside.line, inside.column), (2, 1));
}

#[test]
fn long_source_lines_are_truncated_around_the_finding() {
    let text = format!("{{domain: d, {}bogus: 1}}", "metadata: {}, ".repeat(10_000));
    let found = raw::read("a.json", text.as_bytes()).unwrap_err().diagnostics;
    let bogus = found.iter().find(|one| one.code == Code::UnknownKey).unwrap();
    assert!(bogus.location.text.len() < 300);
    let shown = bogus.to_string();
    let (line, caret) = (shown.lines().nth(1).unwrap(), shown.lines().nth(2).unwrap());
    assert_eq!(line.find("bogus"), caret.find('^'));
}

#[test]
fn displayed_source_lines_contain_no_escape_characters() {
    let found = raw::read("a.yaml", b"domain: \x1b[31md\n").unwrap_err().diagnostics;
    assert!(!found[0].to_string().contains('\u{1b}'));
}

fn found(texts: &[&str]) -> Diagnostics {
    let texts = texts.iter().map(|text| ("a.yaml", text.as_bytes()));
    load(texts, Revision(1), false).unwrap_err()
}

#[test]
fn diagnostic_messages_contain_no_control_characters() {
    let domain = r#"domain: "\e[2J\ad""#;
    for texts in [
        &[r#""\e[2J\e[H0 findings": 1"#][..],
        &[r#""x\n::stop-commands::y": 1"#],
        &[r#"{domain: d, descriptors: [{key: k, "valu\e": v}]}"#],
        &[
            r#"{domain: d, descriptors: [{key: k, rate_limit: {unit: "\e[2J\r", requests_per_unit: 1}}]}"#,
        ],
        &[r#"{domain: d, descriptors: [{key: "k\e\n"}, {key: "k\e\n"}]}"#],
        &[domain, domain],
    ] {
        let found = found(texts);
        assert!(found.iter().any(|one| one.message.contains('\u{fffd}')), "{texts:?}: {found}");
        for one in &found {
            let shown = [Some(&one.message), one.help.as_ref()].into_iter().flatten();
            for shown in shown {
                assert!(!shown.contains(char::is_control), "{texts:?}: {shown:?}");
            }
        }
    }
}

#[test]
fn errors_in_multi_line_text_show_line_column_and_fix() {
    let fix = "indent all keys of a block equally, and write a space after each colon";
    let limit = "rate_limit:\n    unit:minute\n    requests_per_unit: 5";
    for (text, line, column, width) in [
        ("domain: d\ndescriptors:\n- key: a\n     value: b\n".to_owned(), 4, 6, 5),
        (format!("domain: d\ndescriptors:\n- key: a\n  {limit}\n"), 6, 5, 17),
        ("domain:shop\ndescriptors: []\n".to_owned(), 2, 1, 11),
        ("domain: d\ndescriptors:\n- key: a\n    - value: b\n".to_owned(), 4, 7, 5),
    ] {
        let found = raw::read("a.yaml", text.as_bytes()).unwrap_err().diagnostics;
        let place = &found[0].location;
        assert_eq!((place.line, place.column, place.width), (line, column, width), "{found}");
        assert_eq!(found[0].help.as_deref(), Some(fix), "{found}");
    }
    for text in ["domain: a: b: c\n", "domain: d\ndescriptors:\n- key: a\n  x: see b: c\n"] {
        let found = raw::read("a.yaml", text.as_bytes()).unwrap_err().diagnostics;
        let fix = "quote a text that contains `: `";
        assert_eq!(found[0].help.as_deref(), Some(fix), "{found}");
    }
}

#[test]
fn diagnostic_codes_are_unique_and_encode_severity() {
    let mut names: Vec<_> = Code::ALL.iter().map(|code| code.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Code::ALL.len());
    for code in Code::ALL {
        let severity = match code.name().as_bytes()[0] {
            b'N' => Severity::Note,
            b'W' => Severity::Warning,
            _ => Severity::Error,
        };
        assert_eq!(code.severity(), severity, "{}", code.name());
    }
}

#[test]
fn misspelt_yaml_key_suggests_a_field_of_its_block() {
    for (text, word) in [("rate_limit: {pey: 1s}", "per"), ("pey: k", "key")] {
        let text = format!("domain: d\ndescriptors:\n- {text}\n");
        let found = raw::read("a.yaml", text.as_bytes()).unwrap_err().diagnostics;
        assert_eq!(found[0].help.as_deref(), Some(format!("did you mean `{word}`?").as_str()));
    }
}
