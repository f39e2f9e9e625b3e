//! Tests of the reference tables, names and links in `docs/`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use clap::CommandFactory as _;
use sluicegate::cli::args;
use sluicegate::config::settings::{self, ListenSettings, SettingsInput, table};
use sluicegate::edge::grpc::convert;
use sluicegate::engine::CheckError;
use sluicegate::kernel::decision::{Reason, StoreFailure};
use sluicegate::kernel::units::Nanos;
use sluicegate::telemetry::event::EdgeOutcome;

use super::{Page, bare, page, pages, printed, root, rows};

/// First cells of a Markdown table, in order.
fn names(text: &str, head: &str) -> Vec<String> {
    rows(text, head).iter().map(|row| bare(&row[0]).to_owned()).collect()
}

#[test]
fn every_outcome_reason_and_failure_cause_has_a_table_row() {
    let page = page("docs/reference/headers-and-statuses.md");
    let outcomes: Vec<_> = EdgeOutcome::ALL.iter().map(|one| one.as_str()).collect();
    assert_eq!(names(&page, "outcome"), outcomes);
    let reasons: Vec<_> = Reason::ALL.iter().map(|one| one.as_str()).collect();
    assert_eq!(names(&page, "reason"), reasons);
    let causes: Vec<_> = StoreFailure::ALL.iter().map(|one| one.as_str()).collect();
    assert_eq!(names(&super::page("docs/operations/store-outages.md"), "cause"), causes);
}

#[test]
fn every_refused_check_has_its_documented_grpc_code() {
    let (descriptor, got, most) = (0, 0, 0);
    let refusals = [
        (EdgeOutcome::EmptyDomain, CheckError::EmptyDomain),
        (EdgeOutcome::NoDescriptors, CheckError::NoDescriptors),
        (EdgeOutcome::NoConfig, CheckError::NoConfig),
        (EdgeOutcome::TooManyDescriptors, CheckError::TooManyDescriptors { got, most }),
        (EdgeOutcome::TooManyEntries, CheckError::TooManyEntries { got, most }),
        (EdgeOutcome::EntryTooLong, CheckError::EntryTooLong { descriptor, got, most }),
        (EdgeOutcome::HitsTooLarge, CheckError::HitsTooLarge { descriptor, got: 0 }),
        (EdgeOutcome::UnknownUnit, CheckError::UnknownUnit { descriptor, got: 0 }),
        (EdgeOutcome::RefundsDisabled, CheckError::RefundsDisabled { descriptor }),
        (EdgeOutcome::BadId, CheckError::BadId { descriptor, why: "" }),
        (EdgeOutcome::StoreUnavailable, CheckError::StoreUnavailable(StoreFailure::TimedOut)),
    ];
    let rows = rows(&page("docs/reference/headers-and-statuses.md"), "outcome");
    for (outcome, refusal) in refusals {
        let row = rows.iter().find(|row| bare(&row[0]) == outcome.as_str()).unwrap();
        let code = format!("({})", i32::from(convert::error_status(&refusal).code()));
        assert!(row[1].ends_with(&code), "{}: {code}", row[0]);
    }
}

#[test]
fn every_health_setting_has_a_table_column() {
    let page = page("docs/reference/headers-and-statuses.md");
    let head = page.lines().find(|line| line.starts_with("| asked | ready |")).unwrap();
    let moves = table().iter().filter(|row| row.name.ends_with(".required_for_health"));
    let columns: Vec<_> = moves.map(|row| format!("(`{}`)", row.name)).collect();
    assert_eq!(columns.len(), 2, "{columns:?}");
    for column in columns {
        assert!(head.contains(&column), "{column}: {head}");
    }
}

#[test]
fn settings_hidden_by_print_config_are_documented() {
    let page = page("docs/operations/operate-replicas.md");
    let line = page.lines().find(|line| line.contains("is itself a sound `server.yaml`")).unwrap();
    let urls = ["store.url", "compat.store.per_second_url"];
    let hidden = table().iter().filter(|row| row.hidden).map(|row| row.name).chain(urls);
    for name in hidden {
        assert!(line.contains(&format!("`{name}`")), "{name}");
    }
}

#[test]
fn every_documented_flag_and_variable_exists() {
    let cli = args::Cli::command();
    let nested = cli.get_subcommands().flat_map(clap::Command::get_subcommands);
    let commands = cli.get_subcommands().chain(nested);
    let arguments: Vec<_> = commands.flat_map(clap::Command::get_arguments).collect();
    let aliases = arguments.iter().flat_map(|arg| arg.get_visible_aliases().unwrap_or_default());
    let flags = arguments.iter().filter_map(|arg| arg.get_long()).chain(aliases);
    let flags: BTreeSet<_> = flags.chain(["a-b-c"]).collect();
    let variables: Vec<_> = table().iter().map(|row| &*row.variable).collect();
    for Page { name, text } in pages() {
        for flag in texts_after(&text, "`--") {
            assert!(flags.contains(flag), "{name}: --{flag}");
        }
        for word in texts_after(&text, "`SLUICEGATE_") {
            let known = variables.contains(&&*format!("SLUICEGATE_{word}"));
            assert!(known || word == "A_B_C" || word == "*", "{name}: SLUICEGATE_{word}");
        }
    }
}

/// Texts that follow `opening`, each up to a backtick, a space or `=`.
fn texts_after<'t>(text: &'t str, opening: &str) -> Vec<&'t str> {
    text.split(opening).skip(1).filter_map(|rest| rest.split(['`', ' ', '=']).next()).collect()
}

#[test]
fn every_served_http_path_is_documented() {
    let rows = rows(&page("docs/operations/operate-replicas.md"), "port");
    let served: BTreeSet<_> =
        ["mod.rs", "health_routes.rs"].iter().flat_map(|file| routes(file)).collect();
    let port = "listen.http_port";
    let setting = table().iter().find(|row| row.name == port).unwrap();
    assert_eq!(paths(&setting.doc), served, "the setting {port}");
    let row = rows.iter().find(|row| bare(&row[1]) == port).unwrap();
    assert_eq!(paths(&row[2]), served, "the row of {port}");
    let text = page("docs/operations/operate-replicas.md");
    for path in routes("admin.rs") {
        assert!(
            text.contains(&format!("`{path}`")),
            "docs/operations/operate-replicas.md does not name {path}"
        );
    }
}

/// HTTP routes in a source file of `crates/edge/src/http`, without `/debug/pprof`, which serves no data.
fn routes(file: &str) -> BTreeSet<String> {
    let text = fs::read_to_string(root().join("crates/edge/src/http").join(file)).unwrap();
    let quoted = [".route(\"", "const PATH: &str = \""].map(|opening| {
        text.split(opening).skip(1).filter_map(|rest| rest.split('"').next()).collect::<Vec<_>>()
    });
    let found = quoted.concat().into_iter().filter(|path| !path.starts_with("/debug/pprof"));
    found.map(str::to_owned).collect()
}

/// HTTP paths in backticks.
fn paths(text: &str) -> BTreeSet<String> {
    let coded = text.split('`').skip(1).step_by(2).filter(|word| word.starts_with('/'));
    coded.map(str::to_owned).collect()
}

/// Longest time from the end of draining to the exit. Source: docs/operations/operate-replicas.md.
const AFTER_THE_DRAIN: Nanos = Nanos::from_secs(10);

#[test]
fn docker_compose_grace_period_covers_the_drain() {
    let read = |name: &str| fs::read_to_string(root().join(name)).unwrap();
    let file = Some(("config/start.yaml".to_owned(), read("config/start.yaml")));
    let ListenSettings { drain_delay, drain_timeout, .. } =
        settings::read(&SettingsInput { file, ..SettingsInput::default() })
            .unwrap()
            .settings
            .listen;
    let leaving = Nanos(drain_delay.0 + drain_timeout.0 + AFTER_THE_DRAIN.0);
    let composed = read("docker-compose.yml");
    let periods = composed.lines().filter_map(|line| {
        line.trim().strip_prefix("stop_grace_period: ")?.strip_suffix('s')?.parse::<u64>().ok()
    });
    assert_eq!(periods.map(Nanos::from_secs).collect::<Vec<_>>(), [leaving]);
}

#[test]
fn every_shipped_envoy_configuration_is_linked() {
    let page = page("docs/with/envoy.md");
    let shipped = fs::read_dir(root().join("config/envoy")).unwrap();
    for name in shipped.map(|entry| entry.unwrap().file_name().into_string().unwrap()) {
        assert!(page.contains(&format!("](../../config/envoy/{name})")), "{name}");
    }
}

#[test]
fn every_setting_and_yaml_field_is_documented() {
    let all: String = pages().into_iter().map(|page| page.text).collect();
    for row in table() {
        assert!(all.contains(&format!("`{}", row.name)), "the setting `{}`", row.name);
    }
    let limits = page("docs/limits.md");
    let schema = printed(&["sluicegate", "schema", "limits"].map(str::to_owned));
    for word in properties(&serde_json::from_str(&schema).unwrap()) {
        assert!(limits.contains(&format!("`{word}`")), "the word `{word}`");
    }
}

/// All property names of a JSON Schema.
fn properties(schema: &serde_json::Value) -> BTreeSet<String> {
    let fields = schema.as_object().into_iter().flatten();
    let below = fields.clone().map(|(_, value)| value);
    let items = schema.as_array().into_iter().flatten();
    let inside = fields.filter(|(name, _)| *name == "properties");
    let names =
        inside.filter_map(|(_, value)| value.as_object()).flat_map(|map| map.keys().cloned());
    names.chain(below.chain(items).flat_map(properties)).collect()
}

#[test]
fn docs_summary_lists_every_page_once() {
    let listed = coded_links(&page("docs/SUMMARY.md"));
    let own = ["docs/SUMMARY.md", "README.md", "SECURITY.md"];
    let pages: BTreeSet<_> = pages().into_iter().map(|page| page.name).collect();
    let wanted = pages.iter().filter(|name| !own.contains(&&***name));
    let found: BTreeSet<_> = listed.iter().collect();
    assert_eq!(found, wanted.collect());
    assert_eq!(listed.len(), found.len(), "a page twice");
}

pub(super) fn coded_links(summary: &str) -> Vec<String> {
    let links = summary.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    links.map(|link| format!("docs/{link}")).collect()
}

#[test]
fn every_relative_link_resolves() {
    for Page { name, text } in pages() {
        let links = text.match_indices("](").map(|(at, _)| &text[at + 2..]);
        for link in links.filter_map(|rest| rest.split(')').next()) {
            if !link.contains("://") {
                let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
                assert!(resolves(&name, file, anchor), "{name}: {link} leads nowhere");
            }
        }
    }
}

fn resolves(from: &str, file: &str, anchor: &str) -> bool {
    let folder = Path::new(from).parent().unwrap();
    let path = if file.is_empty() { root().join(from) } else { root().join(folder).join(file) };
    let headings = |text: String| {
        text.lines().filter(|line| line.starts_with('#')).map(slug).any(|slug| slug == anchor)
    };
    path.exists() && (anchor.is_empty() || fs::read_to_string(path).is_ok_and(headings))
}

/// The anchor of a Markdown heading by GitHub's rules.
pub(super) fn slug(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || *c == ' ' || *c == '-' || *c == '_';
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars().filter(kept).map(|c| if c == ' ' { '-' } else { c }).collect()
}
