//! Counting what passed per group, and holding the counts against the pinned ones.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Counts of one group.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub passed: usize,
    pub failed: usize,
    /// Cannot be replayed so far.
    pub not_yet: usize,
    /// Answered otherwise on purpose.
    pub differs: usize,
    /// Replayed for information: the recording shows a defect.
    pub information: usize,
}

/// Every group's counts as a table.
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

/// The pinned counts: `group passes`, one per line, `#` before a comment.
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

/// What to say of the counts against the pins: what fails, and what could be pinned higher.
pub fn against(
    pins: &BTreeMap<String, usize>,
    tallies: &BTreeMap<String, Tally>,
) -> [Vec<String>; 2] {
    let gone = pins.keys().filter(|group| !tallies.contains_key(*group));
    let mut fallen: Vec<_> = gone.map(|group| format!("{group} is pinned and not there")).collect();
    let mut risen = Vec::new();
    for (group, tally) in tallies {
        let pinned = pins.get(group).copied().unwrap_or_default();
        if tally.passed < pinned {
            fallen.push(format!("{group}: {} passed, {pinned} are pinned", tally.passed));
        } else if pinned < tally.passed {
            risen.push(format!("{group} {}", tally.passed));
        }
    }
    [fallen, risen]
}

#[test]
fn a_count_below_its_pin_and_a_group_that_is_gone_are_told_apart_from_one_above() {
    let tally = |passed| Tally { passed, ..Tally::default() };
    let tallies = [("a".to_owned(), tally(2)), ("b".to_owned(), tally(5))].into();
    let [fallen, risen] = against(&pins("# counts\na 3\nb 4\nc 1\n"), &tallies);
    assert_eq!((fallen.len(), risen), (2, vec!["b 5".to_owned()]));
}
