//! Tests that an unreadable field hides no other error, and causes no false one.

use super::{findings, line, load};

/// Six blocks, each with one wrong value. The second of each pair has a misspelt field before it.
const BLOCKS: [(&str, &str, &str); 6] = [
    (
        "- key: a\n  rate_limit: {unit: minutes, requests_per_unit: 1}\n",
        "- key: a\n  rate_limit: {unit: minutes, request_per_unit: 1}\n",
        "E24 invalid unit",
    ),
    (
        "- key: b\n  rate_limit: {requests_per_unit: 1, per: 5x, name: b}\n",
        "- key: b\n  rate_limit: {requests_per_unit: 1, per: 5x, nam: b}\n",
        "E31 ",
    ),
    (
        "- key: c\n  rate_limit: {unit: day, strategy: gcr, requests_per_unit: 1}\n",
        "- key: c\n  rate_limit: {units: day, strategy: gcr, requests_per_unit: 1}\n",
        "E29 `strategy: gcr`",
    ),
    (
        "- key: e\n  concurrency: {limit: 1, max_duration: 9}\n",
        "- key: e\n  concurrency: {limits: 1, max_duration: 9}\n",
        "E31 `max_duration: 9`",
    ),
    (
        "- key: f\n  concurrency: {limit: 1, max_duration: 1s, queue: {size: 0, timeout: 1s}}\n",
        "- key: f\n  concurrency: {limit: 1, max_duration: 1s, queue: {size: 0, time: 1s}}\n",
        "",
    ),
    (
        "- key: g\n  rate_limit: {unit: day, requests_per_unit: 1, calendar: {time_zone: Berlin}}\n",
        "- key: g\n  rate_limit: {unit: day, request: 1, calendar: {time_zone: Berlin}}\n",
        "E36 unknown time zone",
    ),
];

#[test]
fn misspelt_field_hides_no_error_of_its_block() {
    for (_, misspelt, error) in BLOCKS {
        let found = findings(misspelt);
        assert!(found.iter().any(|one| one.contains(" E09 ")), "{misspelt}: {found:#?}");
        assert!(found.iter().any(|one| one.contains(error)), "{misspelt}: {found:#?}");
    }
}

/// The misspelling in one block changes only findings of this block.
#[test]
fn misspelt_field_hides_no_error_of_other_blocks() {
    let valid_names = BLOCKS.map(|(right, ..)| right);
    let errors = |blocks: [&str; 6]| {
        let found = findings(&blocks.concat());
        found.into_iter().filter(|one| one.contains(" E")).collect::<Vec<_>>()
    };
    let all = errors(valid_names);
    assert_eq!(all.len(), 6, "{all:#?}");
    for at in 0..BLOCKS.len() {
        let mut blocks = valid_names;
        blocks[at] = BLOCKS[at].1;
        let own_lines = [3 + 2 * at, 4 + 2 * at].map(|number| format!("{number}:"));
        let is_other = |one: &&String| !own_lines.iter().any(|line| one.starts_with(line));
        let found = errors(blocks);
        let (found, all): (Vec<_>, Vec<_>) =
            (found.iter().filter(is_other).collect(), all.iter().filter(is_other).collect());
        assert_eq!(found, all, "{}", blocks[at]);
    }
}

/// Each block is valid except for one unreadable field, which other validations may need.
#[test]
fn unreadable_field_causes_no_finding_about_a_missing_field() {
    let blocks = [
        "- ky: a\n",
        "- {key: a, value: x}\n- {key: a, vale: x}\n- {key: a, value: [x]}\n",
        "- {key: a, value: x, share_threshold: true, vlue: 'x*'}\n",
        "- key: a\n  rate_limits: {}\n  shadow_mode: true\n",
        "- key: a\n  rate_limit: {unitt: day, requests_per_unit: 1}\n",
        "- key: a\n  rate_limit: {unit: [day], requests_per_unit: 1}\n",
        "- key: a\n  rate_limit: {unit: day, requests_per_unit: 1.5, strategy: gcra}\n",
        "- key: a\n  rate_limit: {unit: day, requests: 3, strategy: gcra}\n",
        "- key: a\n  rate_limit: {unit: day, requests: 3}\n",
        "- key: a\n  rate_limit: {unit: day, requests_per_unit: 9, burst: 2, stratgy: gcra}\n",
        "- key: a\n  rate_limit: {unit: day, requests_per_unit: 9, mode: leased, max_overshot: 1}\n",
        "- key: a\n  rate_limit: {unit: day, requests_per_unit: 9, moode: leased, lease_hits: 1}\n",
        "- key: a\n  rate_limit: {unit: day, requests_per_unit: 9, calendar: {zone: UTC}}\n",
        "- key: a\n  concurrency: {lmit: 9}\n",
        "- key: a\n  concurrency: {limit: 9, max_duration: 1s, queue: {size: 9, time: 1s}}\n",
        "- key: a\n  concurrency: {limit: 9, max_durations: 1s, mode: local}\n",
        "- key: a\n  budget: {amont: 5 tokens, unit: day}\n",
        "- key: a\n  budget: {amount: [5 tokens], unit: day}\n",
        "- key: a\n  budget: {amount: 5 tokens, unti: day}\n",
        "- key: a\n  budget: {amount: 5 tokens, unti: day, calendar: {time_zone: UTC}}\n",
        "- key: a\n  budget: {amount: 5 tokens, unit: day, calender: {time_zone: UTC}}\n",
        "- key: a\n  budget: {prepaid: true, ofs: usd}\n",
        "- key: a\n  budget: {prepayed: true, of: usd}\n",
        "- key: a\n  budget: {amount: 5 usd, unit: day}\nusages: {prices: p}\n",
        "- key: a\n  budget: {amount: 5 usd, unit: day}\nusage: {price: p}\n",
        "- ky: a\n  descriptors: [{key: b, budget: {amount: 5 tokens, unit: day}}]\ncolocate: a\n",
    ];
    for block in blocks {
        let found = findings(block);
        let is_reader_finding =
            |one: &String| ["E09", "E11", "E12", "E13"].iter().any(|code| one.contains(code));
        assert!(!found.is_empty() && found.iter().all(is_reader_finding), "{block}: {found:#?}");
    }
}

#[test]
fn misspelt_domain_or_defaults_hide_no_other_error() {
    let descriptors =
        "descriptors:\n- key: a\n  rate_limit: {unit: minutes, requests_per_unit: 1}\n";
    let usage = "domain: d\nusage: {estimates: learn}\n";
    let defaults = "domain: d\ndefaults: {strateg: gcra}\n";
    for head in ["domian: d\n", "domain: [d]\n", defaults, usage] {
        let text = format!("{head}{descriptors}");
        let found: Vec<_> =
            load(&[("a.yaml", &text)], false).unwrap_err().iter().map(line).collect();
        assert_eq!(found.len(), 2, "{head}: {found:#?}");
        assert!(found[1].contains("E24 invalid unit `minutes`"), "{head}: {found:#?}");
    }
}
