//! The law of cures: a fix that is printed for a value of a wrong type is accepted at its place.

use super::{line, load};
use sluicegate::config::diagnostic::{Diagnostic, Severity};

/// A block of a limits file, with the fields that it needs.
struct Place {
    /// `@` is the place of the fields.
    file: &'static str,
    needed: &'static [(&'static str, &'static str)],
    fields: &'static [&'static str],
}

const PLACES: &[Place] = &[
    Place {
        file: "{@}",
        needed: &[("domain", "d"), ("descriptors", "[{key: k}]")],
        fields: &["domain", "descriptors", "charge", "colocate", "defaults", "usage"],
    },
    Place {
        file: "{domain: d, descriptors: [{key: k}], defaults: {@}}",
        needed: &[],
        fields: &["strategy", "on_excess", "mode", "max_overshoot", "on_store_failure"],
    },
    Place {
        file: "{domain: d, descriptors: [{@}]}",
        needed: &[("key", "k")],
        fields: &[
            "key",
            "value",
            "network",
            "rate_limit",
            "rate_limits",
            "descriptors",
            "shadow_mode",
            "quota_mode",
            "detailed_metric",
            "value_to_metric",
            "metadata",
            "concurrency",
            "budget",
        ],
    },
    Place {
        file: "{domain: d, descriptors: [{key: k, budget: {@}}]}",
        needed: &[("unit", "month"), ("amount", "2M tokens")],
        // `prepaid: true` needs other fields than `prepaid: false`.
        fields: &["amount", "unit", "calendar", "warn_at", "on_store_failure"],
    },
    Place {
        file: "{domain: d, descriptors: [{key: k, budget: {unit: day, amount: 5 tokens}}], usage: {@}}",
        needed: &[],
        fields: &["estimate", "at_most", "time_limit", "on_expiry", "prices", "model"],
    },
    Place {
        file: "{domain: d, descriptors: [{key: k, value: a*, rate_limit: {unit: day, requests_per_unit: 5}, @}]}",
        needed: &[],
        fields: &["share_threshold"],
    },
    Place {
        file: "{domain: d, descriptors: [{key: k, rate_limit: {@}}]}",
        needed: &[("unit", "minute"), ("requests_per_unit", "500")],
        fields: &[
            "unit",
            "requests_per_unit",
            "unlimited",
            "name",
            "replaces",
            "strategy",
            "on_excess",
            "mode",
            "on_store_failure",
            "calendar",
        ],
    },
    Place {
        file: "{domain: d, descriptors: [{key: k, rate_limit: {@}}]}",
        needed: &[("unit", "minute"), ("requests_per_unit", "500"), ("strategy", "gcra")],
        fields: &["burst"],
    },
    Place {
        file: "{domain: d, descriptors: [{key: k, rate_limit: {mode: leased, max_overshoot: 100%, @}}]}",
        needed: &[("unit", "minute"), ("requests_per_unit", "4000000000")],
        fields: &["lease_hits"],
    },
    Place {
        file: "{domain: d, descriptors: [{key: k, rate_limit: {unit: week, requests_per_unit: 5, calendar: {@}}}]}",
        needed: &[("time_zone", "UTC")],
        fields: &["time_zone", "starts_on", "starts_at"],
    },
    Place {
        file: "{domain: d, descriptors: [{key: k, concurrency: {max_duration: 5s, @}}]}",
        needed: &[("limit", "64")],
        fields: &["limit", "adaptive", "mode", "on_store_failure", "queue", "reject"],
    },
    Place {
        file: "{domain: d, descriptors: [{key: k, concurrency: {limit: 1, max_duration: 5s, adaptive: {algorithm: aimd, @}}}]}",
        needed: &[],
        fields: &["max", "overloaded_by", "paused_by", "increase", "window", "aggregate"],
    },
    Place {
        file: "{domain: d, descriptors: [{key: k, concurrency: {limit: 1000, max_duration: 5s, adaptive: {@}}}]}",
        needed: &[],
        fields: &["min"],
    },
    Place {
        file: "{domain: d, descriptors: [{key: k, concurrency: {limit: 64, max_duration: 5s, queue: {@}}}]}",
        needed: &[("size", "10"), ("timeout", "1s")],
        fields: &["size", "timeout"],
    },
    Place {
        file: "{domain: d, descriptors: [{key: k, concurrency: {limit: 64, max_duration: 5s, reject: {@}}}]}",
        needed: &[],
        fields: &["status", "retry_after", "body"],
    },
];

const VALUES: &[&str] = &[
    "'5'",
    "'true'",
    "'false'",
    "'1'",
    "'0'",
    "5",
    "500",
    "true",
    "yes please",
    "1k",
    "'1,000'",
    "10m",
    "10 requests",
    "10r/s",
    "'10/m'",
    "5k/h",
    "unlimited",
    "-1",
    "-7",
    "1.5",
    "1e9",
    "5000000000",
    "99999999999999999999",
    "enabled",
    "disabled",
    "fixed_window",
    "[]",
    "[5]",
    "[5, 6]",
    "['5', x]",
    "[a b, 'c: d']",
    "[true]",
    "[false, true]",
    "[no]",
    "[[1]]",
    "[{a: 1}]",
    "[~]",
    "{a: 1}",
    "{}",
    "!!binary aGk=",
];

impl Place {
    /// Returns the file with `line` instead of the line of the same field, and of those in
    /// `without`.
    fn fill(&self, field: &str, line: &str, without: &[&str]) -> String {
        let is_kept =
            |name: &str| name != field && !without.contains(&name) && !is_line_of(line, name);
        let needed = self.needed.iter().filter(|(name, _)| is_kept(name));
        let mut lines: Vec<_> = needed.map(|(name, value)| format!("{name}: {value}")).collect();
        lines.extend((!line.is_empty()).then(|| line.to_owned()));
        self.file.replace('@', &lines.join(", "))
    }
}

fn is_line_of(lines: &str, name: &str) -> bool {
    lines.split(", ").any(|line| line.starts_with(&format!("{name}: ")))
}

fn errors(text: &str) -> Vec<Diagnostic> {
    let (Ok((_, found)) | Err(found)) = load(&[("t.yaml", text)], false);
    found.iter().filter(|one| one.code.severity() == Severity::Error).cloned().collect()
}

/// Returns the file after the fix, if the fix names lines or a change of the value.
fn apply(place: &Place, field: &str, value: &str, fix: &str) -> Option<String> {
    let lines: Vec<_> = fix.split('`').skip(1).step_by(2).collect();
    let fill = |line: &str| place.fill(field, line, &[]);
    Some(match fix {
        "remove it" => fill(""),
        _ if fix.starts_with("remove it, or write `unlimited: true`") => fill(""),
        "remove the quotes" => fill(&format!("{field}: {}", value.trim_matches('\''))),
        "put `- ` before its first key" => fill(&format!("{field}: [{value}]")),
        "write `unlimited: true` instead of `requests_per_unit` and `unit`" => {
            place.fill(field, lines[0], &["unit", "requests_per_unit"])
        }
        _ if fix.starts_with("write a descriptor for each value: ") => {
            let descriptors: Vec<_> =
                lines.iter().map(|line| format!("{{key: k, {line}}}")).collect();
            format!("{{domain: d, descriptors: [{}]}}", descriptors.join(", "))
        }
        // Each alternative is applied.
        _ if fix.contains(", or `") => return lines.iter().map(|line| fill(line)).next_back(),
        _ if fix.contains(": ") && lines.iter().all(|line| line.contains(": ")) => {
            fill(&lines.join(", "))
        }
        "for several limits, use the list `rate_limits`"
        | "write one value, without `[` and `]`"
        | "write a descriptor for each value"
        | "write one key; for further entries of a descriptor, nest `descriptors`" => return None,
        other => panic!("the test cannot apply this fix: {other}"),
    })
}

#[test]
fn every_fix_of_a_wrong_type_is_accepted_at_its_place() {
    let (mut applied, mut refused) = (0, Vec::new());
    for place in PLACES {
        for (field, value) in
            place.fields.iter().flat_map(|field| VALUES.iter().map(move |value| (*field, *value)))
        {
            let text = place.fill(field, &format!("{field}: {value}"), &[]);
            let found = errors(&text);
            let about = format!("`{field}` must be ");
            let mismatch =
                found.iter().find(|one| one.code.name() == "E13" && one.message.contains(&about));
            let Some(fix) = mismatch.and_then(|one| one.help.clone()) else { continue };
            let Some(fixed) = apply(place, field, value, &fix) else { continue };
            applied += 1;
            // The keys inside a mapping are not those of the field; they have errors of their own.
            let is_own = |one: &&Diagnostic| !matches!(one.code.name(), "E09" | "E10");
            let left: Vec<_> = errors(&fixed).iter().filter(is_own).map(line).collect();
            if !left.is_empty() {
                refused.push(format!("{text}\n{fix}\n{fixed}\n{left:?}"));
            }
        }
    }
    assert!(refused.is_empty(), "{} refused:\n{}", refused.len(), refused.join("\n\n"));
    assert!(150 < applied, "only {applied} fixes");
}
