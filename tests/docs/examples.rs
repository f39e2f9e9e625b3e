//! Tests of the examples in `docs/` and the README: limits, settings, commands and checks.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;

use sluicegate::cli::args::{self, Command};
use sluicegate::config::diagnostic::{Diagnostic, Severity};
use sluicegate::config::load;
use sluicegate::config::settings::{self, SettingsInput};
use sluicegate::edge::grpc::convert;
use sluicegate::edge::{ReplyOptions, http};
use sluicegate::kernel::units::Revision;

use super::{Block, bare, blocks, page, printed, root, rows};
use crate::support::http1;
use crate::support::service::Service;

/// Findings that the first line of a code block declares, such as `# check: E09, W01`. Blocks of the
/// README declare none, and may have notes.
fn expected(text: &str) -> &str {
    text.lines().next().and_then(|line| line.strip_prefix("# check: ")).unwrap_or_default()
}

#[test]
fn documented_limits_have_exactly_their_declared_findings() {
    let examples: Vec<_> = blocks("yaml").into_iter().filter(|b| is_limits(&b.text)).collect();
    assert!(5 < examples.len(), "{} examples", examples.len());
    for Block { place, text, .. } in examples {
        let found = match load([(&*place, text.as_bytes())], Revision(1), false) {
            Ok((config, warnings)) => {
                assert!(!config.domains.is_empty());
                warnings
            }
            Err(found) => found,
        };
        let is_readme = place.starts_with("README.md:");
        let is_expected = |one: &&Diagnostic| !is_readme || one.severity() != Severity::Note;
        let codes: Vec<_> = found.iter().filter(is_expected).map(|one| one.code.name()).collect();
        let texts: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(codes.join(", "), expected(&text), "{place}\n{}", texts.join("\n"));
    }
}

fn is_limits(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("domain:"))
}

#[test]
fn documented_descriptors_match_the_rules_in_their_table() {
    let text = page("docs/limits.md");
    let (above, below) = text.split_once("| asked | met |").unwrap();
    let example = above.rsplit("```yaml\n").next().unwrap().split("```").next().unwrap();
    let (config, _) = load([("docs/limits.md", example.as_bytes())], Revision(1), false).unwrap();
    for row in rows(&format!("| asked | met |{below}"), "asked") {
        let entries = bare(&row[0]).split(", ").map(|entry| entry.split_once('=').unwrap());
        let met = config.domains["shop"].tree.lookup(entries).map(|met| met.rule.path.to_string());
        assert_eq!(met.as_deref().unwrap_or("none"), bare(&row[1]), "{}", row[0]);
    }
}

#[test]
fn documented_descriptors_meet_the_budgets_in_their_table() {
    let text = page("docs/limits.md");
    let (above, below) = text.split_once("| reserved by | budgets |").unwrap();
    let example = above.rsplit("```yaml\n").next().unwrap().split("```").next().unwrap();
    let (config, _) = load([("docs/limits.md", example.as_bytes())], Revision(1), false).unwrap();
    let rows = rows(&format!("| reserved by | budgets |{below}"), "reserved by");
    assert_eq!(rows.len(), 4);
    for row in rows {
        let entries = bare(&row[0]).split(", ").map(|entry| entry.split_once('=').unwrap());
        let entries: Vec<_> = entries.collect();
        let met = config.domains["llm"].tree.lookup_budgets(&entries);
        let met: Vec<_> = met.iter().map(|met| format!("`{}`", met.rule.path)).collect();
        let met = if met.is_empty() { "none".to_owned() } else { met.join(", ") };
        assert_eq!(met, row[1], "{}", row[0]);
    }
}

#[test]
fn other_documented_yaml_matches_shipped_files_or_settings() {
    for Block { place, text, .. } in blocks("yaml").into_iter().filter(|b| !is_limits(&b.text)) {
        match text.lines().next() {
            Some(line) if line.starts_with("# config/envoy/") => {
                let file = fs::read_to_string(root().join(&line[2..])).unwrap();
                let shipped: BTreeSet<_> = file.lines().map(str::trim).collect();
                let missing = text.lines().skip(1).find(|line| !shipped.contains(line.trim()));
                assert_eq!(missing, None, "{place}: not in the file");
            }
            Some("# server.yaml") => {
                let input =
                    SettingsInput { file: Some((place.clone(), text)), ..SettingsInput::default() };
                let problems = settings::read(&input).map_or_else(|p| p, |read| read.warnings);
                assert_eq!(problems, [], "{place}");
            }
            // Chart values and Kubernetes objects are validated in `crate::chart`.
            Some(line) if line == "# values.yaml" || line.starts_with("apiVersion:") => {}
            _ => panic!("{place}: a block that no test reads"),
        }
    }
}

/// Headers that ingress-nginx sets by default. Source: docs/with/ingress-nginx.md.
const BY_INGRESS: [&str; 2] = ["X-Original-Method", "X-Real-IP"];

#[test]
fn nginx_examples_override_every_header_that_clients_control() {
    let hooks = page("docs/hooks.md");
    let listed = rows(&hooks, "header").into_iter().map(|row| bare(&row[0]).to_owned());
    let ours: Vec<_> = listed.take_while(|name| name != "Host").collect();
    assert_eq!(ours.len(), 5, "NGINX must set the first five: {ours:?}");
    let mut checked = 0;
    for (place, text) in examples_of_nginx() {
        let sets = |name: &str| {
            text.lines().any(|line| line.trim().starts_with(&format!("proxy_set_header {name} ")))
        };
        let by_itself =
            |name: &str| text.contains("kubernetes.io/auth-url:") && BY_INGRESS.contains(&name);
        let missing = ours.iter().find(|name| !sets(name) && !by_itself(name));
        assert_eq!(missing, None, "{place}: not set, so that a client can send it");
        checked += 1;
    }
    assert_eq!(checked, 3, "rate_limit.conf, concurrency.conf, ingress-nginx.md");
}

/// ingress-nginx rejects snippets unless both options are set:
/// <https://github.com/kubernetes/ingress-nginx/issues/12648>.
#[test]
fn ingress_nginx_page_names_both_snippet_options() {
    let page = page("docs/with/ingress-nginx.md");
    for switch in ["`allow-snippet-annotations: \"true\"`", "`annotations-risk-level: Critical`"] {
        assert!(page.contains(switch), "{switch}");
    }
}

/// Shipped files and documented code blocks that configure NGINX to call `/check`, with their
/// names.
fn examples_of_nginx() -> impl Iterator<Item = (String, String)> {
    let files = fs::read_dir(root().join("config/nginx")).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        (path.display().to_string(), fs::read_to_string(path).unwrap())
    });
    let languages = ["yaml", "nginx", "conf", "text", ""];
    let shown = languages.into_iter().flat_map(blocks).map(|block| (block.place, block.text));
    let asks = |line: &str| {
        let line = line.trim().trim_end_matches(';');
        line.ends_with("/check") && (line.starts_with("proxy_pass ") || line.contains("auth-url:"))
    };
    files.chain(shown).filter(move |(_, text)| text.lines().any(asks))
}

#[test]
fn every_documented_command_parses() {
    let consoles: Vec<_> = blocks("console").into_iter().chain(blocks("sh")).collect();
    let mut read = 0;
    for Block { place, text, .. } in consoles {
        // The README runs commands with cargo before it installs `sluicegate`.
        let text = text.replace("\\\n", " ").replace("cargo run --release --", "sluicegate");
        for line in text.lines() {
            let words = words(line.strip_prefix("$ ").unwrap_or(line));
            let Some(at) = words.iter().position(|word| starts_program(word)) else { continue };
            assert_parses(&words[at..], &format!("{place}: {line}"));
            read += 1;
        }
    }
    assert!(5 < read, "{read} commands");
}

fn starts_program(word: &str) -> bool {
    word == "sluicegate" || word.ends_with("/sluicegate")
}

fn assert_parses(words: &[String], place: &str) {
    let argv: Vec<OsString> = words.iter().map(OsString::from).collect();
    let cli = args::parse(argv).unwrap_or_else(|error| panic!("{place}: {error}"));
    if let Command::Serve(serve) = cli.command {
        let input = SettingsInput { flags: serve.flags.given, ..SettingsInput::default() };
        let problems = settings::read(&input).map_or_else(|p| p, |read| read.warnings);
        assert_eq!(problems, [], "{place}");
    }
}

#[test]
fn documented_command_output_matches_real_output() {
    let mut ran = 0;
    for Block { place, text, .. } in blocks("console") {
        let Some((command, shown)) = text.strip_prefix("$ ").and_then(|t| t.split_once('\n'))
        else {
            continue;
        };
        let words = words(command);
        // Skips `serve`, whose output every test that starts a process verifies.
        if words[1] == "serve" {
            continue;
        }
        let printed = printed(&words);
        assert_eq!(printed.lines().count(), shown.lines().count(), "{place}\n{printed}");
        for (printed, shown) in printed.lines().zip(shown.lines()) {
            let same = shown.strip_suffix('…').map_or(printed == shown, |s| printed.starts_with(s));
            assert!(same, "{place}: {printed}");
        }
        ran += 1;
    }
    assert!(0 < ran);
}

/// Splits a shell command into arguments, up to a comment or an operator.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '\'' || c == '"' => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            None if c == ' ' => words.extend(word.take()),
            None if "#|&;>".contains(c) && word.is_none() => break,
            _ => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[test]
fn every_documented_json_check_is_valid() {
    let mut checked = 0;
    let reporting = ReplyOptions { allow_negative_hits: true, ..ReplyOptions::default() };
    for Block { place, text, .. } in blocks("console") {
        // The JSON body of a `curl` command may span several lines.
        let words = words(&text.replace('\n', " "));
        let bodies = words.iter().zip(&words[1..]).filter(|(flag, _)| *flag == "-d");
        for (_, body) in bodies {
            let request = http::json::parse_request(body.as_bytes()).expect(&place);
            assert!(convert::to_check(&request, &reporting).is_ok(), "{place}: {body}");
            checked += 1;
        }
    }
    assert!(0 < checked);
}

#[test]
fn documented_decision_matches_the_shipped_limits() {
    let page = page("docs/reference/headers-and-statuses.md");
    let (above, below) = page.split_once("```json\n").unwrap();
    let command = words(above.rsplit("```console\n").next().unwrap().lines().next().unwrap());
    let body = command.last().unwrap();
    let shipped = ["--settings", "config/start.yaml"].map(str::to_owned);
    let service = Service::start(&root().join("config/limits"), &shipped).unwrap();
    let reply = http1::call(service.http, "POST", "/json", &[], Some(body.as_bytes())).unwrap();
    let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
    assert_eq!(read(below.split("```").next().unwrap()), read(&reply.text()));
}
