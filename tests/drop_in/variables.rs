//! Tests of the effect of every environment variable of envoyproxy/ratelimit.

mod cases;
mod defaults;
mod unknown;

use std::collections::{BTreeSet, HashMap};

use Effect::{Is, Notes, Stops};
use sluicegate::cli::ratelimit::parse::parse_variable;
use sluicegate::cli::ratelimit::table::{TABLE, VariableEffect};
use sluicegate::cli::ratelimit::{RatelimitSettings, read_environment};
use sluicegate::config::settings::{
    LoadedSettings, SettingsInput, StoreUrl, read as settle, table,
};

use self::cases::CASES;

enum Effect {
    /// The variable sets a setting: its name, and its value in `--print-config`.
    Is(&'static str, &'static str),
    /// Startup logs a note that contains this text.
    Notes(&'static str),
    /// Startup fails with an error that contains this text.
    Stops(&'static str),
}

/// A variable, its value, other variables that it needs, and its effect.
type Case = (&'static str, &'static str, &'static [(&'static str, &'static str)], Effect);

type Variables = &'static [(&'static str, &'static str)];

const XDS: Variables = &[("CONFIG_TYPE", "GRPC_XDS_SOTW")];

/// The environment variables of a test case, with a `RUNTIME_ROOT` that exists.
pub fn environment(variable: &str, text: &str, others: &[(&str, &str)]) -> HashMap<String, String> {
    let places = [("RUNTIME_ROOT", "/"), ("RUNTIME_SUBDIRECTORY", "tmp")];
    let all = places.into_iter().chain(others.iter().copied()).chain([(variable, text)]);
    all.map(|(name, text)| (name.to_owned(), text.to_owned())).collect()
}

fn settled(read: &RatelimitSettings) -> Result<LoadedSettings, String> {
    let input =
        SettingsInput { ratelimit_values: read.settings.clone(), ..SettingsInput::default() };
    settle(&input)
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}

fn wrong(&(variable, text, others, ref effect): &Case) -> Option<String> {
    let read = read_environment(environment(variable, text, others), &BTreeSet::new());
    let problem = match (&read, effect) {
        (Err(sentences), Stops(part)) => {
            (!sentences.iter().any(|it| it.contains(part))).then(|| sentences.join("\n"))
        }
        (Ok(_), Stops(_)) => Some("it starts".to_owned()),
        (Err(sentences), _) => Some(sentences.join("\n")),
        (Ok(read), Notes(part)) => {
            let is_wanted = |note: &sluicegate::cli::ratelimit::VariableNote| {
                note.variable == variable && note.line.contains(part)
            };
            (!read.notes.iter().any(is_wanted)).then(|| format!("{:?}", read.notes))
        }
        (Ok(read), Is(setting, shown)) => match settled(read) {
            Err(problems) => Some(problems),
            Ok(loaded) => {
                let row = table().iter().find(|row| row.name == *setting).unwrap();
                let is = row.show(&loaded.settings);
                (is != *shown).then(|| format!("`{setting}` is {is}"))
            }
        },
    };
    problem.map(|problem| format!("{variable}={text}: {problem}"))
}

#[test]
fn a_refused_header_value_is_not_printed() {
    let credential = "authorization:Basic user:open-sesame-please";
    let variable = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS";
    let Err(sentences) = read_environment(environment(variable, credential, XDS), &BTreeSet::new())
    else {
        panic!("taken")
    };
    let refused = sentences.join("\n");
    assert!(refused.contains("one colon in each") && !refused.contains("sesame"), "{refused}");
}

#[test]
fn an_error_about_the_second_redis_names_its_own_variables() {
    let others = [("REDIS_PERSECOND", "true"), ("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "h:1")];
    let read = environment("REDIS_PERSECOND_URL", "h:2", &others);
    let Err(errors) = read_environment(read, &BTreeSet::new()) else { panic!("taken") };
    assert!(errors.join("\n").contains("set REDIS_PERSECOND_SOCKET_TYPE=tcp"), "{errors:?}");
}

#[test]
fn redis_credentials_and_database_reach_the_store() {
    let tcp = [("REDIS_SOCKET_TYPE", "tcp"), ("REDIS_URL", "h:1")];
    for (variable, text, others, wanted) in [
        ("REDIS_URL", "redis://u:p@h:1/5", &tcp[..0], (Some("u"), Some("p"), 5)),
        ("REDIS_AUTH", "us er:p@ss:w", &tcp, (Some("us er"), Some("p@ss:w"), 0)),
    ] {
        let read = read_environment(environment(variable, text, others), &BTreeSet::new());
        let StoreUrl::Redis(url) = settled(&read.unwrap()).unwrap().settings.store.url else {
            panic!("{variable}")
        };
        assert_eq!((url.user.as_deref(), url.password.as_deref(), url.database), wanted);
    }
}

#[test]
fn every_variable_has_its_expected_effect() {
    let wrong: Vec<_> = CASES.iter().filter_map(wrong).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_variable_has_a_test_case_and_known_settings() {
    let tested: BTreeSet<_> = CASES.iter().map(|case| case.0).collect();
    let known: BTreeSet<_> = TABLE.iter().map(|row| row.name).collect();
    assert_eq!(known, tested);
    assert_eq!(known.len(), TABLE.len(), "a variable twice");
    for row in TABLE {
        assert!(
            row.default.is_empty() || parse_variable(row.kind, row.default).is_some(),
            "{}",
            row.name
        );
        let VariableEffect::Settings(names) = row.effect else { continue };
        for name in names.split(", ") {
            assert!(table().iter().any(|setting| setting.name == name), "{}: {name}", row.name);
        }
    }
}
