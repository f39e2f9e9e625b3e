//! Tests of settings from flags, environment variables and the settings file.
#![allow(clippy::unwrap_used, clippy::expect_used)]

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
