//! Applies every fix for a word of another product, and validates the file again.

use super::super::field_name::FieldName;
use super::super::limits_block::LimitsBlock;
use super::table::FOREIGN_WORDS;
use super::{Meaning, table};
use crate::diagnostic::Severity;
use crate::kernel::units::Revision;
use crate::load;
use crate::resolve::keywords::SYNONYMS;
use crate::settings::find_setting;

/// A file with a place for the word, and the places of a line that a fix may name.
struct Template {
    block: LimitsBlock,
    /// `@F`, `@D`, `@R`, `@C` and `@A` are the ends of the file, the descriptor, its rate limit, its
    /// concurrency limit and its `adaptive` block. `@W` is the place of the word.
    text: &'static str,
}

const TEMPLATES: &[Template] = &[
    Template {
        block: LimitsBlock::RateLimit,
        text: "{domain: d, descriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 5@W}@D}]@F}",
    },
    Template {
        block: LimitsBlock::RateLimit,
        text: "{domain: d, descriptors: [{key: k, rate_limit: {unit: minute@W}@D}]@F}",
    },
    Template {
        block: LimitsBlock::RateLimit,
        text: "{domain: d, descriptors: [{key: k, rate_limit: {requests_per_unit: 5@W}@D}]@F}",
    },
    Template {
        block: LimitsBlock::RateLimit,
        text: "{domain: d, descriptors: [{key: k, rate_limit: {per: 90s, requests_per_unit: 5@W}@D}]@F}",
    },
    Template {
        block: LimitsBlock::Descriptor,
        text: "{domain: d, descriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 5@R}@W}]@F}",
    },
    Template {
        block: LimitsBlock::Descriptor,
        text: "{domain: d, descriptors: [{key: k, rate_limits: [{unit: minute, requests_per_unit: 5@R}]@W}]@F}",
    },
    Template { block: LimitsBlock::Descriptor, text: "{domain: d, descriptors: [{key: k@W}]@F}" },
    Template {
        block: LimitsBlock::Descriptor,
        text: "{domain: d, descriptors: [{rate_limit: {unit: minute, requests_per_unit: 5@R}@W}]@F}",
    },
    Template {
        block: LimitsBlock::Descriptor,
        text: "{domain: d, descriptors: [{key: k, concurrency: {limit: 5, adaptive: {min: 1@A}@C}@W}]@F}",
    },
    Template { block: LimitsBlock::File, text: "{domain: d@W}" },
    Template { block: LimitsBlock::File, text: "{domain: d, descriptors: [{key: k@D}]@W}" },
    Template {
        block: LimitsBlock::File,
        text: "{descriptors: [{key: k@D}, {key: l, rate_limit: {unit: day, requests_per_unit: 5}}]@W}",
    },
    Template {
        block: LimitsBlock::Defaults,
        text: "{domain: d, defaults: {on_excess: charge@W}, descriptors: [{key: k@D}]@F}",
    },
    Template {
        block: LimitsBlock::Concurrency,
        text: "{domain: d, descriptors: [{key: k, concurrency: {limit: 5@W}@D}]@F}",
    },
    Template {
        block: LimitsBlock::Concurrency,
        text: "{domain: d, descriptors: [{key: k, concurrency: {max_duration: 5s@W}@D}]@F}",
    },
    Template {
        block: LimitsBlock::Adaptive,
        text: "{domain: d, descriptors: [{key: k, concurrency: {limit: 5, adaptive: {algorithm: aimd@W}@C}@D}]@F}",
    },
    Template {
        block: LimitsBlock::Calendar,
        text: "{domain: d, descriptors: [{key: k, rate_limit: {unit: week, requests_per_unit: 5, calendar: {time_zone: UTC@W}}}]}",
    },
    Template {
        block: LimitsBlock::Calendar,
        text: "{domain: d, descriptors: [{key: k, rate_limit: {unit: week, requests_per_unit: 5, calendar: {@W}}}]}",
    },
];

const VALUES: &[&str] = &[
    "5",
    "60s",
    "1500",
    "0",
    "-1",
    "x y: z",
    "fixed_window",
    "token-bucket",
    "true",
    "10r/m",
    "[a, b]",
    "{a: 1}",
    "~",
];

impl Template {
    /// Returns the file with `word: value` at `@W`, or without it.
    fn fill(&self, word: Option<(&str, &str)>) -> String {
        let line = word.map_or_else(String::new, |(word, value)| format!(", {word}: {value}"));
        without_marks(&self.text.replace("@W", &line))
    }

    /// Returns the file with the lines of the fix.
    fn apply(&self, fix: &str) -> String {
        let (lines, rest) = lines_of(fix);
        let own = match self.block {
            LimitsBlock::RateLimit => "@R",
            LimitsBlock::Descriptor => "@D",
            LimitsBlock::File => "@F",
            _ => "@W",
        };
        // The block of the word is also the target of fixes that name it.
        let text = self.text.replace("@W", &format!("{own}@W"));
        let target = match rest {
            "" | " instead of `unit`" => "@W",
            " in `rate_limit`"
            | " in an item of `rate_limits`"
            | " in `rate_limit` instead of `unit`"
            | " in an item of `rate_limits` instead of `unit`" => "@R",
            " in a descriptor" | " beside `rate_limit`" => "@D",
            " at the top of the file" => "@F",
            " in `concurrency`" => "@C",
            " in `adaptive`" => "@A",
            other => panic!("the fix has an unknown place: {other:?} in {fix}"),
        };
        assert!(text.contains(target), "{fix}: no {target} in {text}");
        let text = if rest.ends_with(" instead of `unit`") {
            text.replace("unit: minute, ", "").replace("unit: minute", "")
        } else {
            text
        };
        let added = format!(", {}", lines.join(", "));
        without_marks(&text.replace(target, &added))
    }
}

fn without_marks(text: &str) -> String {
    let marks = ["@W", "@F", "@D", "@R", "@C", "@A"];
    let text = marks.iter().fold(text.to_owned(), |text, mark| text.replace(mark, ""));
    text.replace("{, ", "{")
}

/// Returns the lines of a fix such as "write `a: 1` and `b: 2` in `rate_limit`", and the rest.
fn lines_of(fix: &str) -> (Vec<&str>, &str) {
    let mut rest = fix.strip_prefix("write ").unwrap_or_else(|| panic!("not a line: {fix}"));
    let mut lines = Vec::new();
    loop {
        let (line, after) = rest.strip_prefix('`').and_then(|text| text.split_once('`')).unwrap();
        lines.push(line);
        rest = after;
        match rest.strip_prefix(" and ") {
            Some(more) => rest = more,
            None => return (lines, rest),
        }
    }
}

/// Returns the codes of the errors in the file.
fn errors(text: &str) -> Vec<&'static str> {
    let found = match load([("t.yaml", text.as_bytes())], Revision::default(), false) {
        Ok((_, warnings)) => warnings,
        Err(found) => found,
    };
    let is_error = |one: &&crate::diagnostic::Diagnostic| one.code.severity() == Severity::Error;
    found.iter().filter(is_error).map(|one| one.code.name()).collect()
}

/// Returns the fix that is printed for `word` at the place of the template.
fn printed_fix(template: &Template, word: &str, value: &str) -> Option<String> {
    let text = template.fill(Some((word, value)));
    let found = load([("t.yaml", text.as_bytes())], Revision::default(), false).err()?;
    let about = format!("`{word}`");
    found
        .iter()
        .find(|one| matches!(one.code.name(), "E09" | "E10") && one.message.contains(&about))
        .map(|one| one.help.clone().unwrap_or_else(|| panic!("{text}: no fix")))
}

#[test]
fn every_printed_fix_is_accepted_at_its_place() {
    let (mut applied, mut refused) = (0, Vec::new());
    for (number, template) in TEMPLATES.iter().enumerate() {
        let before = errors(&template.fill(None));
        let words = FOREIGN_WORDS.iter().flat_map(|row| row.words);
        let own = FieldName::ALL.iter().map(|field| field.as_str());
        for (at, word) in words.copied().chain(own).enumerate() {
            // Every value at every place would take minutes.
            let values = if number == 0 && at % 3 == 0 { VALUES } else { &VALUES[..1] };
            for value in values {
                let Some(fix) = printed_fix(template, word, value) else { continue };
                let shown = format!("{}: {word}: {value}: {fix}", template.text);
                if let Some(setting) = fix.strip_prefix("use the setting `") {
                    let name = setting.split('`').next().unwrap();
                    assert!(find_setting(name).is_some(), "{shown}");
                } else if fix.starts_with("remove it") {
                    assert!(
                        !fix.contains("`rate_limit` has") || template.text.contains("rate_limit"),
                        "{shown}"
                    );
                } else if let Some(field) = fix.strip_prefix("did you mean `") {
                    let field = FieldName::from_name(field.trim_end_matches("`?")).unwrap();
                    assert!(template.block.field_names().contains(&field), "{shown}");
                } else if let Some(place) = fix.strip_prefix("move it to ") {
                    assert_moved(word, place, &shown);
                } else if fix.starts_with("write ") {
                    let fixed = template.apply(&fix);
                    let found = errors(&fixed);
                    // The fix does not concern other errors, such as a missing unit.
                    let lacks_count = !fixed.contains("requests_per_unit");
                    let is_known =
                        |code: &&str| before.contains(code) || **code == *"E34" && lacks_count;
                    if !found.iter().all(is_known) {
                        refused.push(format!("{shown}\n{fixed}\n{found:?}"));
                    }
                } else {
                    assert_eq!(fix, template.block.describe_fields(), "{shown}");
                }
                applied += 1;
            }
        }
    }
    assert!(refused.is_empty(), "{} refused:\n{}", refused.len(), refused.join("\n"));
    assert!(5_000 < applied, "only {applied} fixes");
}

/// Asserts that each block of `place` has the field.
fn assert_moved(word: &str, place: &str, shown: &str) {
    let (place, word) = match place.split_once(", and write `") {
        Some((place, word)) => (place, word.trim_end_matches('`')),
        None => (place, word),
    };
    let field = FieldName::from_name(word).unwrap();
    for block in place.split(" or ") {
        let block = LimitsBlock::ALL.into_iter().find(|known| known.title() == block);
        assert!(block.unwrap().field_names().contains(&field), "{shown}");
    }
}

#[test]
fn words_about_rates_never_lead_to_concurrency() {
    let rate_blocks = [LimitsBlock::RateLimit, LimitsBlock::File, LimitsBlock::Defaults];
    for row in FOREIGN_WORDS.iter().filter(|row| is_about_rates(row)) {
        for template in TEMPLATES.iter().filter(|one| rate_blocks.contains(&one.block)) {
            for word in row.words {
                let Some(fix) = printed_fix(template, word, "5") else { continue };
                assert!(!fix.contains("concurrency") && !fix.contains("adaptive"), "{word}: {fix}");
            }
        }
    }
}

fn is_about_rates(row: &table::ForeignWord) -> bool {
    matches!(row.meaning, Meaning::Fields(LimitsBlock::RateLimit, _) | Meaning::Rate)
}

#[test]
fn words_are_in_the_form_that_the_search_uses() {
    for word in FOREIGN_WORDS.iter().flat_map(|row| row.words) {
        assert_eq!(&super::normalized(word), word);
    }
}

/// The fields with keywords, in a file that accepts each of their keywords.
const KEYWORD_FIELDS: &[(&str, &str)] = &[
    ("unit", "rate_limit: {unit: @, requests_per_unit: 5}"),
    ("strategy", "rate_limit: {strategy: @, unit: minute, requests_per_unit: 5}"),
    ("mode", "rate_limit: {mode: @, max_overshoot: 2, unit: minute, requests_per_unit: 500}"),
    ("on_store_failure", "rate_limit: {on_store_failure: @, unit: minute, requests_per_unit: 5}"),
    ("algorithm", "concurrency: {limit: 5, adaptive: {algorithm: @}}"),
    ("mode", "concurrency: {limit: 5, mode: @}"),
    ("on_store_failure", "concurrency: {limit: 5, on_store_failure: @}"),
];

#[test]
fn every_suggested_keyword_is_accepted_at_its_field() {
    for (field, line) in KEYWORD_FIELDS {
        for word in SYNONYMS.iter().flat_map(|(words, _)| *words) {
            let file = |word: &str| {
                format!("{{domain: d, descriptors: [{{key: k, {}}}]}}", line.replace('@', word))
            };
            let text = file(&format!("'{word}'"));
            let Err(found) = load([("t.yaml", text.as_bytes())], Revision::default(), false) else {
                continue;
            };
            let help = found.iter().find_map(|one| one.help.clone()).unwrap();
            let Some(near) = help.strip_prefix("did you mean `") else { continue };
            let fixed = file(near.trim_end_matches("`?"));
            let left = errors(&fixed);
            // `leased` also needs a `max_overshoot`, and other modes refuse one.
            assert!(
                left.is_empty() || *field == "mode" && left == ["E32"],
                "{text}: {help}: {left:?}"
            );
        }
    }
}
