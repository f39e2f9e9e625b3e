//! The law of cures: what a message about a setting suggests is accepted at its place.

use sluicegate::config::settings::{
    Setting, SettingProblem, Settings, SettingsInput, Shape, read, setting_blocks, table,
};

use super::{environment, file, flags};

/// The ways to write a setting.
#[derive(Clone, Copy, Debug)]
enum Source {
    File,
    Variable,
    Flag,
}

const SOURCES: [Source; 3] = [Source::File, Source::Variable, Source::Flag];

/// `value` at the nested `name` in a file: `{store: {url: value}}`.
fn nested(name: &str, value: &str) -> SettingsInput {
    let line = name.rsplit('.').fold(value.to_owned(), |inner, key| format!("{{{key}: {inner}}}"));
    file(&line)
}

/// The spelling of the setting at the source, as messages show it.
fn spelling(row: &Setting, source: Source) -> String {
    match source {
        Source::File => format!("`{}`", row.name),
        Source::Variable => row.variable.clone(),
        Source::Flag => format!("--{}", row.flag),
    }
}

/// A name with one mistake, at the source.
fn misspelled(row: &Setting, source: Source, change: fn(&str) -> String) -> String {
    match source {
        Source::File => change(row.name),
        Source::Variable => format!("SLUICEGATE_{}", change(&row.variable["SLUICEGATE_".len()..])),
        Source::Flag => change(&row.flag),
    }
}

fn input(source: Source, name: &str, value: &str) -> SettingsInput {
    match source {
        Source::File => nested(name, value),
        Source::Variable => environment(&[(name, value)]),
        Source::Flag => flags(&[(name, value)]),
    }
}

fn problems(input: &SettingsInput) -> Vec<SettingProblem> {
    read(input).map_or_else(|problems| problems, |loaded| loaded.warnings)
}

/// Asserts that the default of the setting is accepted at the source.
fn assert_default_is_accepted(row: &Setting, source: Source) {
    let shown = row.show(&Settings::default());
    let plain = if row.shape == Shape::Block { &shown } else { shown.trim_matches('"') };
    let items = || shown.trim_matches(['[', ']']).split(", ").filter(|item| !item.is_empty());
    let input = match source {
        Source::File => nested(row.name, &shown),
        Source::Variable if row.shape == Shape::Many => {
            environment(&[(&row.variable, &items().collect::<Vec<_>>().join(":"))])
        }
        Source::Variable => environment(&[(&row.variable, plain)]),
        Source::Flag if row.shape == Shape::Many => SettingsInput {
            flags: vec![(row.flag.clone(), items().map(str::to_owned).collect())],
            ..SettingsInput::default()
        },
        Source::Flag => flags(&[(&row.flag, plain)]),
    };
    let left = problems(&input);
    assert!(left.is_empty(), "{}: {shown}: {left:?}", row.name);
}

#[test]
fn every_suggested_name_is_accepted_at_its_place() {
    let changes: [fn(&str) -> String; 4] = [
        |name| name[..name.len() - 1].to_owned(),
        |name| format!("{name}s"),
        |name| name.replacen('e', "", 1),
        |name| name.rsplit(['.', '-']).next().unwrap_or(name).to_owned(),
    ];
    let mut applied = 0;
    // Each name has one of the mistakes in one of the sources: all of them take a minute.
    for (number, row) in table().iter().enumerate() {
        let (source, change) = (SOURCES[number % 3], changes[number / 3 % 4]);
        let wrong = misspelled(row, source, change);
        for problem in problems(&input(source, &wrong, "1")) {
            let Some(help) = problem.help.filter(|_| problem.message.contains("unknown setting"))
            else {
                continue;
            };
            let name = help.strip_prefix("did you mean ").unwrap().trim_end_matches('?');
            let found = table().iter().find(|row| spelling(row, source) == name);
            if let Some(found) = found {
                assert_default_is_accepted(found, source);
            } else {
                let block = name.trim_matches('`');
                let is_block = setting_blocks().iter().any(|known| known.name == block);
                assert!(is_block, "{wrong}: {help}");
                assert_eq!(problems(&nested(block, "")), [], "{wrong}: {help}");
            }
            applied += 1;
        }
    }
    assert!(80 < applied, "only {applied}");
}

#[test]
fn every_suggested_word_is_accepted_at_its_setting() {
    let mut applied = 0;
    for row in table().iter().filter(|row| !row.choices.is_empty()) {
        for word in row.choices {
            for wrong in
                [format!("{word}x"), word[..word.len() - 1].to_owned(), word.to_uppercase()]
            {
                for problem in problems(&nested(row.name, &wrong)) {
                    let Some(help) = problem.help else { continue };
                    let Some(near) = help.strip_prefix("did you mean `") else { continue };
                    let near = near.trim_end_matches("`?");
                    let left = problems(&nested(row.name, near));
                    // Another setting may be needed for an effect.
                    let is_refused = left.iter().any(|one| one.message.contains(" takes "));
                    assert!(!is_refused, "{}: {help}: {left:?}", row.name);
                    applied += 1;
                }
            }
        }
    }
    assert!(30 < applied, "only {applied}");
}

#[test]
fn every_suggested_nesting_is_accepted() {
    for row in table() {
        let [problem] = &problems(&file(&format!("{}: 1", row.name)))[..] else {
            assert!(!row.name.contains('.'), "{}", row.name);
            continue;
        };
        if !row.name.contains('.') {
            continue;
        }
        let help = problem.help.as_ref().unwrap();
        let line = help.strip_prefix("write `").unwrap().trim_end_matches('`');
        let left = problems(&file(&line.replace('…', &row.show(&Settings::default()))));
        assert_eq!(left, [], "{help}");
    }
    for block in setting_blocks() {
        let [problem] = &problems(&nested(block.name, "1"))[..] else { panic!("{}", block.name) };
        let help = problem.help.as_ref().unwrap();
        let line = help.strip_prefix("write for example `").unwrap().trim_end_matches('`');
        let name: Vec<_> =
            line.split(['{', ' ', ':', '}', '…']).filter(|key| !key.is_empty()).collect();
        let row = table().iter().find(|row| row.name == name.join(".")).unwrap();
        let left = problems(&file(&line.replace('…', &row.show(&Settings::default()))));
        assert_eq!(left, [], "{help}");
    }
}

/// Texts of every kind. Each setting takes some of them.
const TEXTS: &[&str] = &[
    "true",
    "1",
    "17",
    "300s",
    "7",
    "a",
    "a=b",
    "/a",
    "/a/b",
    "127.0.0.9",
    "10.0.0.0/8",
    "host:1",
    "a.b",
    "0.5",
    "https://a.b",
    "redis://a:1",
    "long-enough-secret",
    "X-Name",
    "[]",
    "udp",
];

#[test]
fn every_fix_of_a_conflict_names_settings_and_values_that_exist() {
    let mut seen = std::collections::BTreeSet::new();
    for row in table() {
        for text in TEXTS.iter().chain(row.choices) {
            for problem in problems(&nested(row.name, text)) {
                seen.extend(problem.help);
            }
        }
    }
    for help in &seen {
        let words = help.split([' ', ',', ';', '`']).map(|word| word.trim_end_matches([':', '.']));
        for name in words.filter(|word| is_setting_like(word)) {
            let is_known = table().iter().any(|row| row.name == name)
                || setting_blocks().iter().any(|block| block.name == name);
            assert!(is_known, "{name}: {help}");
        }
        for line in help.split('`').skip(1).step_by(2).filter(|line| line.contains(": ")) {
            let Some((name, value)) = line.split_once(": ") else { continue };
            if value.contains('…') || !table().iter().any(|row| row.name == name) {
                continue;
            }
            let left = problems(&nested(name, value));
            assert!(!left.iter().any(|one| one.message.contains(" takes ")), "{help}: {left:?}");
        }
    }
    assert!(20 < seen.len(), "{seen:?}");
}

/// Returns `true` for words such as `store.tls.ca_file`, whose first part is a block.
fn is_setting_like(word: &str) -> bool {
    let first = word.split_once('.').map(|(first, _)| first);
    first.is_some_and(|first| setting_blocks().iter().any(|block| block.name == first))
        && word.rsplit_once('.').is_some_and(|(_, end)| end != "yaml")
}
