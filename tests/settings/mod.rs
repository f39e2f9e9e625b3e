//! Tests of settings from flags, environment variables and the settings file.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod cli;
mod doors;
mod hooks;
mod shipped;

use sluicegate::config::settings::{Doors, Loaded, Problem, read};

fn pairs(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
}

fn file(text: &str) -> Doors {
    Doors { file: Some(("server.yaml".to_owned(), text.to_owned())), ..Doors::default() }
}

fn environment(variables: &[(&str, &str)]) -> Doors {
    Doors { environment: pairs(variables), ..Doors::default() }
}

fn flags(flags: &[(&str, &str)]) -> Doors {
    let flags = pairs(flags).into_iter().map(|(flag, text)| (flag, vec![text])).collect();
    Doors { flags, ..Doors::default() }
}

fn load_valid(doors: &Doors) -> Loaded {
    read(doors).unwrap_or_else(|problems| panic!("{}", messages(&problems).join("\n")))
}

fn read_errors(doors: &Doors) -> Vec<String> {
    messages(&read(doors).expect_err("these doors hold an error"))
}

fn messages(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}
