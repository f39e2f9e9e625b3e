//! The law of printed settings: reading a printed value gives the same value, unless the value hides
//! a secret.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::print_config;
use crate::settings::value::Shape;
use crate::settings::{LoadedSettings, Setting, Settings, file, find_setting, table};

/// Texts of every kind. Each setting takes some of them.
const TEXTS: &[&str] = &[
    "",
    "0",
    "1",
    "2",
    "17",
    "8081",
    "65535",
    "4294967295",
    "18446744073709551615",
    "1_000_000",
    "0.5",
    "1",
    "0.1",
    "0.30000001",
    "1e-7",
    "true",
    "false",
    "memory",
    "always",
    "80%",
    "0.5%",
    "100%",
    "1ns",
    "1500us",
    "90000ms",
    "90s",
    "100m",
    "36h",
    "7d",
    "250ms",
    "null",
    "~",
    "yes",
    "0x10",
    "1e3",
    "a",
    "a b",
    "# a",
    "a#b",
    "a: b",
    "'a'",
    "\"a\"",
    "\\",
    "a\\nb",
    "ä",
    "%",
    "%41",
    "{}",
    "[]",
    "a=b",
    "a=b,c=d e",
    "a=",
    "X-Limit",
    "/a/b",
    "/with blank/ä%41.yaml",
    "C:\\a",
    "127.0.0.1",
    "::",
    "::1",
    "10.0.0.0/8, ::1",
    "host:1",
    "[2001:db8::1]:443",
    "redis.shop:6379",
    "redis.shop",
    "file:///var/lib/sluicegate",
    "file:///a%20b/%25",
    "redis://a",
    "redis://[::1]:1/5",
    "redis://u%40%25%3A@a:1/2",
    "redis://u:p@a:1/2",
    "rediss://a",
    "redis+sentinel://a,b:1/main/3",
    "rediss+cluster://u@a:1,[::1]:7",
    "redis+unix:///run/r%25%40 s.sock?db=4",
    "postgres://u@a",
    "postgresql://u%40%2F@a:1,[::1]:7/d%3Fb?sslmode=require",
    "postgres://u@a/d?connect_timeout=3&application_name=a%20b&keepalives=0&sslmode=verify-full",
    "postgres://u@a,b/d?target_session_attrs=read-write&load_balance_hosts=random",
    "postgres://u@%2Frun%2Fpg:7/d?options=-c%20geqo%3Doff",
    "postgres:///d?user=u&host=/run/a,b&port=1,2",
    "postgres://u:p%3F@a:1/d?connect_timeout=3",
    "postgres://a/d?user=u&password=p",
    "https://a.b",
    "http://a:1/",
    "https://a.b/secret?key=1",
    r#"[{"name":"e","domain":"d","descriptors":[[{"remote_address":{}}]]}]"#,
    r#"[{"pattern":"^a\\.(.*)$","name":"b.\"$1\"","tags":[["k","v"]]}]"#,
];

/// Returns the settings with one changed value, if the setting takes these texts.
fn changed(row: &Setting, texts: &[&str]) -> Option<Settings> {
    let mut settings = Settings::default();
    row.assign(&mut settings, texts)?;
    Some(settings)
}

/// Reads the text of a `server.yaml` without comparing its settings with each other.
fn read_back(text: &str) -> Settings {
    let mut settings = Settings::default();
    for entry in file::read_entries(text).unwrap_or_else(|_| panic!("not YAML:\n{text}")) {
        let row = find_setting(&entry.name).unwrap_or_else(|| panic!("{}", entry.name));
        let texts = entry.node.texts(row.shape).unwrap_or_else(|| panic!("no texts:\n{text}"));
        let texts: Vec<&str> = texts.iter().map(AsRef::as_ref).collect();
        let assigned = row.assign(&mut settings, &texts);
        assert!(assigned.is_some(), "{}: refused {texts:?}\n{text}", row.name);
    }
    settings
}

/// The YAML of one setting, with the blocks around it.
fn yaml_of(row: &Setting, settings: &Settings) -> String {
    let mut keys = row.name.rsplit('.');
    let last = format!("{}: {}", keys.next().unwrap(), row.show(settings));
    keys.fold(last, |inner, block| format!("{block}: {{{inner}}}"))
}

/// Asserts the law for one value. Returns `true` if the setting takes the texts and hides no secret.
fn keeps_value(row: &Setting, texts: &[&str]) -> bool {
    let Some(settings) = changed(row, texts) else { return false };
    if row.hides_secret(&settings) {
        return false;
    }
    let printed = yaml_of(row, &settings);
    assert_eq!(read_back(&printed), settings, "{}: {texts:?}: {printed}", row.name);
    true
}

/// The lists of texts that a setting of this shape may have.
fn candidates<'t>(row: &Setting, texts: &[&'t str]) -> Vec<Vec<&'t str>> {
    let alone = texts.iter().map(|text| vec![*text]);
    let pairs = texts.windows(2).map(<[&str]>::to_vec);
    if row.shape == Shape::Many { alone.chain(pairs).collect() } else { alone.collect() }
}

#[test]
fn every_setting_reads_its_printed_value() {
    let mut kept: BTreeMap<&str, usize> = BTreeMap::new();
    for row in table() {
        let words = row.schema.pointer("/items/enum").and_then(|words| words.as_array());
        let words: Vec<&str> =
            words.into_iter().flatten().filter_map(|word| word.as_str()).collect();
        let texts = [TEXTS, row.choices, &words].concat();
        let count = candidates(row, &texts).iter().filter(|texts| keeps_value(row, texts)).count();
        kept.insert(row.name, count);
    }
    let few = kept.iter().filter(|(name, count)| {
        let row = find_setting(name).unwrap();
        **count < 2 && !row.hidden && row.show(&Settings::default()) != "[]"
    });
    let few: Vec<_> = few.collect();
    assert!(few.is_empty(), "no value of these settings was tested: {few:?}");
}

#[test]
fn the_whole_printed_config_reads_as_the_same_settings() {
    for skip in (0..TEXTS.len()).step_by(9) {
        let mut settings = Settings::default();
        for row in table() {
            let texts = TEXTS.iter().cycle().skip(skip).take(TEXTS.len());
            let taken =
                texts.filter_map(|text| changed(row, &[*text]).map(|_| *text)).find(|text| {
                    changed(row, &[*text]).is_some_and(|settings| !row.hides_secret(&settings))
                });
            if let Some(text) = taken {
                row.assign(&mut settings, &[text]);
            }
        }
        let loaded = LoadedSettings { settings, origins: BTreeMap::new(), warnings: Vec::new() };
        assert_eq!(read_back(&print_config(&loaded)), loaded.settings);
    }
}

#[test]
fn a_printed_value_without_its_secret_says_so() {
    for (name, text, shown) in [
        ("store.url", "redis://u:p@a:1/2", "redis://a:1"),
        ("store.url", "postgres://u:p@a:1/d?connect_timeout=3", "postgres://a:1"),
        ("events.url", "https://a.b/secret", "https://a.b"),
        ("admin.token", "0123456789abcdef", "(set, not shown)"),
        ("compat.xds.headers", "authorization=secret", "(set, not shown)"),
    ] {
        let row = find_setting(name).unwrap();
        let settings = changed(row, &[text]).unwrap();
        let loaded = LoadedSettings { settings, origins: BTreeMap::new(), warnings: Vec::new() };
        let printed = print_config(&loaded);
        let line = printed.lines().find(|line| line.contains("; its secret is not shown")).unwrap();
        assert!(line.contains(&format!("\"{shown}\"")), "{line}");
        assert!(!printed.contains("secret\"") && !printed.contains("u:p"), "{line}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn every_setting_reads_its_printed_text(text in "\\PC{0,20}", word in "[ -~]{0,40}") {
        for row in table() {
            keeps_value(row, &[&text]);
            keeps_value(row, &[&word]);
        }
    }

    #[test]
    fn every_duration_and_number_reads_its_printed_text(number: u64, unit in "(ns|us|ms|s|m|h|d|%|)") {
        let text = format!("{number}{unit}");
        let fraction = format!("0.{number}");
        for row in table() {
            keeps_value(row, &[&text]);
            keeps_value(row, &[&fraction]);
        }
    }

    #[test]
    fn every_url_of_a_store_reads_its_printed_text(
        user in "[ -~]{1,12}", database in "[ -~]{1,12}", host in "[a-z]{1,9}(:[1-9][0-9]{0,3})?",
        seconds in 1u32..99, tls: bool,
    ) {
        let (user, database) = (encode(&user), encode(&database));
        let mode = if tls { "require" } else { "disable" };
        let row = find_setting("store.url").unwrap();
        let parameters = format!("connect_timeout={seconds}&sslmode={mode}&application_name={user}");
        assert!(keeps_value(row, &[&format!("postgres://{user}@{host}/{database}?{parameters}")]));
        assert!(keeps_value(row, &[&format!("redis://{user}@{host}/7")]));
        assert!(keeps_value(row, &[&format!("redis+unix://{user}@/{database}.sock")])
            || database.contains("%3F") || database.contains("%23"));
    }
}

fn encode(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect::<Vec<_>>().concat()
}
