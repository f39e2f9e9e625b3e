//! Tests of `docs/reference/cli.md`, generated from the help texts and from real output.
//!
//! Guarantees:
//! - Every command is listed, with its help text.
//! - `validate`, `explain`, `ask` and `doctor` are shown with what they print.
//! - No line of a help text has more than 100 columns.

use std::fmt::Write as _;
use std::fs;

use clap::CommandFactory as _;
use sluicegate::cli::args;

use super::super::printed;
use super::{assert_page, root};
use crate::support::process::Process;
use crate::support::service::Service;

const COLUMNS: usize = 100;

const HEAD: &str = "\
# Commands

Exit codes of all commands: 0 is success or yes, 1 is errors or no, 2 is a failure of the command.
";

/// A file with four errors, one of them a misspelt field.
const BAD_FILE: &str = "\
domain: shop
descriptors:
- key: api_key
  rate_limit: {unit: minutes, request_per_unit: 60}
- key: path
  value: /cart
  rate_limit: {per: 90 seconds, requests_per_unit: 5}
- key: path
  value: /cart
";

/// Runs a command and returns its output. `hide` replaces texts that differ between runs.
fn screen(command: &str, hide: &[(&str, &str)]) -> String {
    let words: Vec<_> = command.split(' ').map(str::to_owned).collect();
    let mut text = printed(&words);
    let mut command = command.to_owned();
    for (real, shown) in hide {
        text = text.replace(real, shown);
        command = command.replace(real, shown);
    }
    format!("```text\n$ {command}\n{}\n```\n", text.trim_end())
}

/// The help of the command `name`, such as `fleet start`. `serve` and its relatives refer to the list
/// of settings instead of showing a flag for each.
fn help(name: &str, command: &clap::Command) -> String {
    let has_settings = command.get_arguments().any(|arg| arg.get_id() == "store.url");
    let mut command = command.clone().bin_name(format!("sluicegate {name}"));
    if has_settings {
        command = command.mut_args(|arg| {
            let is_setting = arg.get_help_heading().is_some();
            arg.hide(is_setting)
        });
    }
    let text = command.term_width(COLUMNS).render_help().to_string();
    let settings = if has_settings {
        "Each setting is a flag, too: see [Settings](settings.md).\n\n"
    } else {
        ""
    };
    format!("{settings}```text\n{}\n```\n", text.trim_end())
}

fn generated_page() -> String {
    let mut page = HEAD.to_owned();
    let mut cli = args::Cli::command().term_width(COLUMNS);
    let help_text = cli.render_help().to_string();
    write!(page, "\n```text\n$ sluicegate --help\n{}\n```\n", help_text.trim_end()).unwrap();
    cli.build();
    for (name, command) in commands(&cli) {
        write!(page, "\n## {name}\n\n{}", help(&name, command)).unwrap();
        for example in examples(&name) {
            write!(page, "\n{example}").unwrap();
        }
    }
    page
}

/// All commands with their names, each before its own commands.
fn commands(cli: &clap::Command) -> Vec<(String, &clap::Command)> {
    let mut named = Vec::new();
    for command in cli.get_subcommands().filter(|command| command.get_name() != "help") {
        let name = command.get_name().to_owned();
        named.push((name.clone(), command));
        let nested = command.get_subcommands().filter(|nested| nested.get_name() != "help");
        named.extend(nested.map(|nested| (format!("{name} {}", nested.get_name()), nested)));
    }
    named
}

/// Real output of a command.
fn examples(command: &str) -> Vec<String> {
    match command {
        "validate" => vec![validate_example()],
        "explain" => vec![screen(
            "sluicegate explain --limits config/limits --domain shop --descriptor api_key=alice",
            &[],
        )],
        "ask" => ask_examples(),
        "doctor" => doctor_examples(),
        _ => Vec::new(),
    }
}

fn validate_example() -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shop.yaml");
    fs::write(&path, BAD_FILE).unwrap();
    screen(
        &format!("sluicegate validate {}", path.display()),
        &[(&path.display().to_string(), "limits/shop.yaml")],
    )
}

fn ask_examples() -> Vec<String> {
    let settings = ["--settings", "config/start.yaml"].map(str::to_owned);
    let service = Service::start(&root().join("config/limits"), &settings).unwrap();
    let address = service.grpc.to_string();
    let command = format!("sluicegate ask --address {address} --domain shop --descriptor");
    let hide = [(&*format!(" --address {address}"), "")];
    let allowed = screen(&format!("{command} api_key=alice"), &hide);
    let denied = screen(&format!("{command} path=/checkout --hits 300"), &hide);
    vec![allowed, denied]
}

fn doctor_examples() -> Vec<String> {
    let redis = Process::redis(&[]);
    let address = redis.address();
    let command = format!("sluicegate doctor --store-url redis://{address}");
    let hide = [(&*address, "127.0.0.1:6379")];
    let reachable = screen(&command, &hide);
    drop(redis);
    vec![reachable, screen(&command, &hide)]
}

#[test]
fn commands_page_matches_the_commands() {
    assert_page("docs/reference/cli.md", &generated_page());
}

#[test]
fn help_texts_fit_in_100_columns() {
    let mut cli = args::Cli::command().term_width(COLUMNS);
    cli.build();
    for (_, command) in commands(&cli) {
        let text = command.clone().term_width(COLUMNS).render_help().to_string();
        for line in text.lines().filter(|line| !line.contains("://")) {
            assert!(line.chars().count() <= COLUMNS, "{line}");
        }
    }
}
