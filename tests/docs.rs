//! What `docs/` and the README say holds for the code beside them.
//!
//! Guarantees: every example loads and is found fault with only where it says so, every command is
//! one that the command line reads, every table names exactly what the code has, every link leads
//! somewhere.
//! Leaves out: sentences. Whoever changes what they say changes them.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use sluicegate::cli::args::{self, Command};
use sluicegate::cli::{self, Terminal};
use sluicegate::config::diagnostic::Code;
use sluicegate::config::load;
use sluicegate::config::settings::{self, Doors, table};
use sluicegate::edge::grpc::convert;
use sluicegate::edge::{Reporting, http};
use sluicegate::kernel::decision::Reason;
use sluicegate::kernel::units::Revision;
use sluicegate::telemetry::event::Outcome;
use sluicegate::telemetry::metrics::{Gauges, Metrics};

/// A page and its text.
struct Page {
    name: String,
    text: String,
}

/// A fenced block: where, its language and its text.
struct Block {
    place: String,
    language: String,
    text: String,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn pages() -> Vec<Page> {
    let listed = fs::read_dir(root().join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = listed.chain([root().join("README.md")]).collect();
    paths.sort();
    let read = |path: PathBuf| Page {
        name: path.strip_prefix(root()).unwrap().display().to_string(),
        text: fs::read_to_string(&path).unwrap(),
    };
    paths.into_iter().map(read).collect()
}

fn page(name: &str) -> String {
    pages().into_iter().find(|page| page.name == name).expect(name).text
}

fn blocks(wanted: &str) -> Vec<Block> {
    let found = pages().into_iter().flat_map(|page| blocks_of(&page));
    found.filter(|block| block.language == wanted).collect()
}

fn blocks_of(page: &Page) -> Vec<Block> {
    let (mut blocks, mut open) = (Vec::new(), None::<Block>);
    for (number, line) in page.text.lines().enumerate() {
        match (line.strip_prefix("```"), open.take()) {
            (Some(_), Some(block)) => blocks.push(block),
            (Some(language), None) => {
                let place = format!("{}:{}", page.name, number + 2);
                open = Some(Block { place, language: language.to_owned(), text: String::new() });
            }
            (None, Some(mut block)) => {
                block.text.extend([line, "\n"]);
                open = Some(block);
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{} ends within a block", page.name);
    blocks
}

/// The rows of the table whose header's first cell is `head`, cells trimmed.
fn rows(text: &str, head: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| {
        let inner = line.trim().trim_matches('|').replace("\\|", "\u{0}");
        inner.split('|').map(|cell| cell.trim().replace('\u{0}', "|")).collect::<Vec<_>>()
    };
    let lines = text.lines().skip_while(|line| !line.starts_with(&format!("| {head} |")));
    let rows: Vec<_> = lines.skip(2).take_while(|line| line.starts_with('|')).map(cells).collect();
    assert!(!rows.is_empty(), "no table under `{head}`");
    rows
}

fn bare(cell: &str) -> &str {
    cell.trim_matches('`')
}

/// The rows of a table of names, in their order.
fn names(text: &str, head: &str) -> Vec<String> {
    rows(text, head).iter().map(|row| bare(&row[0]).to_owned()).collect()
}

/// What a block says of itself in its first line: `# check: E09, W01`.
fn expected(text: &str) -> &str {
    text.lines().next().and_then(|line| line.strip_prefix("# check: ")).unwrap_or_default()
}

#[test]
fn every_example_of_limits_is_found_fault_with_only_where_it_says_so() {
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
        let codes: Vec<_> = found.iter().map(|one| one.code.name()).collect();
        let said: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(codes.join(", "), expected(&text), "{place}\n{}", said.join("\n"));
    }
}

fn is_limits(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("domain:"))
}

#[test]
fn every_descriptor_meets_the_limit_that_its_table_says() {
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
fn every_other_yaml_block_is_of_a_file_that_is_shipped_or_of_settings() {
    let envoy = fs::read_to_string(root().join("config/envoy/rls.yaml")).unwrap();
    let shipped: BTreeSet<_> = envoy.lines().map(str::trim).collect();
    for Block { place, text, .. } in blocks("yaml").into_iter().filter(|b| !is_limits(&b.text)) {
        match text.lines().next() {
            Some("# config/envoy/rls.yaml") => {
                let missing = text.lines().skip(1).find(|line| !shipped.contains(line.trim()));
                assert_eq!(missing, None, "{place}: not in config/envoy/rls.yaml");
            }
            Some("# server.yaml") => {
                let doors = Doors { file: Some((place.clone(), text)), ..Doors::default() };
                let problems = settings::read(&doors).map_or_else(|p| p, |read| read.warnings);
                assert_eq!(problems, [], "{place}");
            }
            _ => panic!("{place}: a block that no test reads"),
        }
    }
}

#[test]
fn every_command_is_one_that_the_command_line_reads() {
    let consoles: Vec<_> = blocks("console").into_iter().chain(blocks("sh")).collect();
    let mut read = 0;
    for Block { place, text, .. } in consoles {
        for line in text.replace("\\\n", " ").lines() {
            let words = words(line.strip_prefix("$ ").unwrap_or(line));
            let Some(at) = words.iter().position(|word| starts_program(word)) else { continue };
            is_read(&words[at..], &format!("{place}: {line}"));
            read += 1;
        }
    }
    assert!(5 < read, "{read} commands");
}

fn starts_program(word: &str) -> bool {
    word == "sluicegate" || word.ends_with("/sluicegate")
}

fn is_read(words: &[String], place: &str) {
    let argv: Vec<OsString> = words.iter().map(OsString::from).collect();
    let cli = args::parse(argv).unwrap_or_else(|error| panic!("{place}: {error}"));
    if let Command::Serve(serve) = cli.command {
        let doors = Doors { flags: serve.flags.given, ..Doors::default() };
        let problems = settings::read(&doors).map_or_else(|p| p, |read| read.warnings);
        assert_eq!(problems, [], "{place}");
    }
}

#[test]
fn what_commands_are_shown_to_print_is_what_they_print() {
    let mut ran = 0;
    for Block { place, text, .. } in blocks("console") {
        let Some((command, shown)) = text.strip_prefix("$ ").and_then(|t| t.split_once('\n'))
        else {
            continue;
        };
        let words = words(command);
        // What `serve` prints is asked of the real process, by every test that starts one.
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

fn printed(words: &[String]) -> String {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let argv = words.iter().map(OsString::from).collect();
    cli::run(argv, [], &mut Terminal { out: &mut out, err: &mut err });
    String::from_utf8([out, err].concat()).unwrap()
}

/// A shell's words, up to a comment or an operator; quotes hold words together.
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
fn every_question_is_one_that_json_reads() {
    let mut asked = 0;
    let reporting = Reporting { negative_hits: true, ..Reporting::default() };
    for Block { place, text, .. } in blocks("console") {
        // A body may go over several lines.
        let words = words(&text.replace('\n', " "));
        let bodies = words.iter().zip(&words[1..]).filter(|(flag, _)| *flag == "-d");
        for (_, body) in bodies {
            let request = http::json::request(body.as_bytes()).expect(&place);
            assert!(convert::question(&request, &reporting).is_ok(), "{place}: {body}");
            asked += 1;
        }
    }
    assert!(0 < asked);
}

#[test]
fn every_diagnostic_is_in_the_table_under_its_title_and_has_a_cure() {
    let rows = rows(&page("docs/limits.md"), "code");
    let told: BTreeMap<_, _> = rows.iter().map(|row| (bare(&row[0]), &*row[1])).collect();
    let known: BTreeMap<_, _> = Code::ALL.iter().map(|c| (c.name(), c.title())).collect();
    assert_eq!(told, known);
    assert_eq!(rows.len(), told.len(), "a code twice");
    assert!(rows.iter().all(|row| row.len() == 3 && !row[2].is_empty()), "a code without a cure");
}

#[test]
fn every_metric_is_in_the_table_with_its_type_and_the_bound_of_its_labels() {
    let rows = rows(&page("docs/answers.md"), "metric");
    let told: BTreeSet<_> =
        rows.iter().map(|row| (bare(&row[0]).to_owned(), row[1].clone(), row[3].clone())).collect();
    assert_eq!(told, families(&Metrics::new().page(Gauges::default()).to_string()));
    assert_eq!(rows.len(), told.len(), "a metric twice");
}

/// Name, type and labels of every family: `` `protocol` 2 × `outcome` 14 ``.
fn families(page: &str) -> BTreeSet<(String, String, String)> {
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let family =
        |(name, kind): (&str, &str)| (name.to_owned(), kind.to_owned(), labels(page, name));
    types.map(family).collect()
}

fn labels(page: &str, name: &str) -> String {
    let mut order: Vec<&str> = Vec::new();
    let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let own =
        |line: &&str| line.split(['{', ' ']).next().unwrap().trim_end_matches("_bucket") == name;
    for line in page.lines().filter(own) {
        let Some((_, rest)) = line.split_once('{') else { continue };
        for (label, value) in
            rest.split('}').next().unwrap().split(',').filter_map(|pair| pair.split_once('='))
        {
            if values.entry(label).or_default().is_empty() {
                order.push(label);
            }
            values.entry(label).or_default().insert(value);
        }
    }
    let shown: Vec<_> =
        order.iter().map(|label| format!("`{label}` {}", values[label].len())).collect();
    if shown.is_empty() { "none".to_owned() } else { shown.join(" × ") }
}

#[test]
fn every_outcome_and_every_reason_has_a_row() {
    let page = page("docs/answers.md");
    let outcomes: Vec<_> = Outcome::ALL.iter().map(|one| one.as_str()).collect();
    assert_eq!(names(&page, "outcome"), outcomes);
    let reasons: Vec<_> = Reason::ALL.iter().map(|one| one.as_str()).collect();
    assert_eq!(names(&page, "reason"), reasons);
}

#[test]
fn every_setting_that_is_named_exists() {
    let ours =
        ["--settings", "--print-config", "--format", "--warnings-as-errors", "--server", "--a-b-c"];
    for Page { name, text } in pages() {
        for (at, _) in text.match_indices("`--") {
            let flag = text[at + 1..].split(['`', ' ', '=']).next().unwrap();
            let known = table().iter().any(|row| format!("--{}", row.flag) == flag);
            assert!(known || ours.contains(&flag), "{name}: {flag}");
        }
        for (at, _) in text.match_indices("`SLUICEGATE_") {
            let variable = text[at + 1..].split(['`', '=']).next().unwrap();
            let known = table().iter().any(|row| row.variable == variable);
            assert!(known || variable.contains("A_B_C"), "{name}: {variable}");
        }
    }
}

#[test]
fn every_link_leads_somewhere() {
    for Page { name, text } in pages() {
        let links = text.match_indices("](").map(|(at, _)| &text[at + 2..]);
        for link in links.filter_map(|rest| rest.split(')').next()) {
            if !link.contains("://") {
                let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
                assert!(leads(&name, file, anchor), "{name}: {link} leads nowhere");
            }
        }
    }
}

fn leads(from: &str, file: &str, anchor: &str) -> bool {
    let folder = Path::new(from).parent().unwrap();
    let path = if file.is_empty() { root().join(from) } else { root().join(folder).join(file) };
    let headings = |text: String| {
        text.lines().filter(|line| line.starts_with('#')).map(slug).any(|slug| slug == anchor)
    };
    path.exists() && (anchor.is_empty() || fs::read_to_string(path).is_ok_and(headings))
}

/// A heading's anchor as code hosts make it.
fn slug(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || *c == ' ' || *c == '-' || *c == '_';
    let text = heading.trim_start_matches('#').trim().to_lowercase();
    text.chars().filter(kept).map(|c| if c == ' ' { '-' } else { c }).collect()
}
