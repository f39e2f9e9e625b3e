//! Counts passed scenarios per group and compares them with `pinned.txt`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub passed: usize,
    pub failed: usize,
    /// Scenarios that cannot be replayed yet.
    pub not_yet: usize,
    /// Scenarios with a deliberate difference from envoyproxy/ratelimit.
    pub differs: usize,
    /// Scenarios that are replayed but cannot fail, because the recording shows a defect of
    /// envoyproxy/ratelimit.
    pub information: usize,
}

pub fn table(tallies: &BTreeMap<String, Tally>) -> String {
    let mut text = String::new();
    let mut line = |name: &str, it: &Tally| {
        let counts = [it.passed, it.failed, it.not_yet, it.differs, it.information];
        let counts = counts.map(|count| format!("{count:>8}")).concat();
        let _ = writeln!(text, "{name:<24}{counts}");
    };
    let mut total = Tally::default();
    for (name, tally) in tallies {
        line(name, tally);
        total.passed += tally.passed;
        total.failed += tally.failed;
        total.not_yet += tally.not_yet;
        total.differs += tally.differs;
        total.information += tally.information;
    }
    line("all", &total);
    let head =
        ["passed", "failed", "not yet", "differs", "info"].map(|it| format!("{it:>8}")).concat();
    format!("{:<24}{head}\n{text}", "group")
}

/// Parses lines `group passes`: a scenario group and its pinned number of passes. `#` starts a
/// comment.
pub fn pins(text: &str) -> BTreeMap<String, usize> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    lines
        .filter(|line| !line.is_empty())
        .map(|line| {
            let (group, passes) = line.split_once(' ').expect("a line of pins: `group passes`");
            (group.to_owned(), passes.trim().parse().expect("passes are a number"))
        })
        .collect()
}

/// Returns the regressions, and the groups with more passes than pinned.
pub fn compare(
    pins: &BTreeMap<String, usize>,
    tallies: &BTreeMap<String, Tally>,
) -> [Vec<String>; 2] {
    let missing = pins.keys().filter(|group| !tallies.contains_key(*group));
    let mut regressions: Vec<_> =
        missing.map(|group| format!("{group} is pinned and not there")).collect();
    let mut improvements = Vec::new();
    for (group, tally) in tallies {
        let pinned = pins.get(group).copied().unwrap_or_default();
        if tally.passed < pinned {
            regressions.push(format!("{group}: {} passed, {pinned} are pinned", tally.passed));
        } else if pinned < tally.passed {
            improvements.push(format!("{group} {}", tally.passed));
        }
    }
    [regressions, improvements]
}

#[test]
fn missing_groups_and_fewer_passes_are_regressions() {
    let tally = |passed| Tally { passed, ..Tally::default() };
    let tallies = [("a".to_owned(), tally(2)), ("b".to_owned(), tally(5))].into();
    let [regressions, improvements] = compare(&pins("# counts\na 3\nb 4\nc 1\n"), &tallies);
    assert_eq!((regressions.len(), improvements), (2, vec!["b 5".to_owned()]));
}
