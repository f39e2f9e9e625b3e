//! Tests of settings from flags, environment variables and the settings file.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cures;
mod hooks;
mod read;
mod shipped;

use sluicegate::config::settings::{LoadedSettings, SettingProblem, SettingsInput, read};

fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

fn file(text: &str) -> SettingsInput {
    SettingsInput {
        file: Some(("server.yaml".to_owned(), text.to_owned())),
        ..SettingsInput::default()
    }
}

/// A file with these lines, whose names have dots: `store.url: memory` becomes
/// `store: {url: memory}`. The lines are sorted by name.
fn dotted(text: &str) -> SettingsInput {
    let mut lines: Vec<_> = text.lines().filter_map(|line| line.split_once(':')).collect();
    lines.sort_by_key(|(name, _)| *name);
    let (mut yaml, mut open) = (String::new(), Vec::new());
    for (name, value) in lines {
        let mut blocks: Vec<_> = name.split('.').collect();
        let key = blocks.pop().unwrap();
        let same = blocks.iter().zip(&open).take_while(|(block, open)| block == open).count();
        for (depth, block) in blocks.iter().enumerate().skip(same) {
            yaml.extend(["  ".repeat(depth).as_str(), block, ":\n"]);
        }
        yaml.extend(["  ".repeat(blocks.len()).as_str(), key, ":", value, "\n"]);
        open = blocks;
    }
    file(&yaml)
}

fn environment(variables: &[(&str, &str)]) -> SettingsInput {
    SettingsInput { environment: pairs(variables), ..SettingsInput::default() }
}

fn flags(flags: &[(&str, &str)]) -> SettingsInput {
    let flags = pairs(flags).into_iter().map(|(flag, text)| (flag, vec![text])).collect();
    SettingsInput { flags, ..SettingsInput::default() }
}

fn load_valid(input: &SettingsInput) -> LoadedSettings {
    read(input).unwrap_or_else(|problems| panic!("{}", messages(&problems).join("\n")))
}

fn read_errors(input: &SettingsInput) -> Vec<String> {
    messages(&read(input).expect_err("these doors hold an error"))
}

fn messages(problems: &[SettingProblem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}
