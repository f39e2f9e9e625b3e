//! Compares the decisions of two configurations for one recording.
//!
//! Guarantees:
//! - Only checks that reserve, or charge at least one hit, are counted. Peeks and refunds change no count.
//! - `newly_denied` are checks that the old limits allow and the new limits deny.
//! - An id of a table that the recording hides is in no report.
//!
//! Not covered:
//! - Rules in shadow mode: they deny nothing.

use std::collections::HashMap;
use std::io::Read;

use super::engine::{ReplayEngine, ReplayedDecision};
use super::warnings::{missing_tables, new_patterns, recording_warnings};
use crate::config::Config;
use crate::config::descriptor_text::format_entries;
use crate::kernel::decision::{Check, Cost, Verdict};
use crate::kernel::units::{Hits, Nanos};
use crate::recording::block::RecordedBlock;
use crate::recording::hashed_values::HashedValues;
use crate::recording::{
    CheckOutcome, RecordedBudgets, RecordedCall, RecordingEnd, RecordingError, RecordingHeader,
    RecordingReader,
};

/// The largest number of keys that are counted separately.
pub const MAX_KEYS: usize = 100_000;

/// The name of the rule if a limit of the request denied.
const REQUEST_LIMIT: &str = "limit of the request";

/// The result of a replay.
#[derive(Debug)]
pub struct Comparison {
    /// The header of the recording.
    pub header: RecordingHeader,
    /// The end of the recording; `None` if it was interrupted.
    pub end: Option<RecordingEnd>,
    /// The checks that are counted: those that reserve, or charge at least one hit.
    pub checks: u64,
    /// The time from the first to the last check.
    pub duration: Nanos,
    /// The agreement with the recorded decisions.
    pub recorded: Agreement,
    /// The checks that the old limits deny.
    pub old_denied: u64,
    /// The comparison with the new limits, if there are any.
    pub new: Option<Changes>,
    /// Remarks about the validity of the result.
    pub warnings: Vec<String>,
}

/// The agreement of the old limits with the recorded decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Agreement {
    /// The checks with a recorded decision, including peeks and refunds.
    pub known: u64,
    /// The checks that the old limits decide as recorded.
    pub equal: u64,
}

/// The checks whose verdict changes.
#[derive(Debug, Default)]
pub struct Changes {
    /// The checks that the new limits deny.
    pub denied: u64,
    /// The checks that only the new limits deny.
    pub newly_denied: u64,
    /// The checks that only the old limits deny.
    pub newly_allowed: u64,
    /// The changed checks of each rule: the new rule that denies, or the old rule that denied.
    pub rules: HashMap<String, ChangedChecks>,
    /// The changed checks of each descriptor that denied.
    pub keys: HashMap<String, ChangedChecks>,
    /// The changed checks of further keys, above [`MAX_KEYS`].
    pub other_keys: ChangedChecks,
}

/// Numbers of changed checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangedChecks {
    /// Checks that only the new limits deny.
    pub newly_denied: u64,
    /// Checks that only the old limits deny.
    pub newly_allowed: u64,
}

/// The old and the new limits of a replay, with their tables.
#[derive(Debug)]
pub struct ReplayLimits {
    /// The limits in force, for comparison.
    pub old: Config,
    /// The changed limits, if any.
    pub new: Option<Config>,
}

/// Replays the recording `input` with both configurations.
///
/// # Errors
/// The recording cannot be read or is malformed.
pub fn compare(input: impl Read, limits: ReplayLimits) -> Result<Comparison, RecordingError> {
    let mut reader = RecordingReader::open(input)?;
    let header = reader.header().clone();
    let mut replay = Replay::new(&header, limits);
    while let Some(block) = reader.next_block()? {
        replay.run_block(block);
    }
    Ok(replay.finish(header, reader.end()))
}

struct Replay {
    old: ReplayEngine,
    new: Option<(ReplayEngine, Changes)>,
    hashed_values: Option<HashedValues>,
    checks: u64,
    invalid: u64,
    old_denied: u64,
    recorded: Agreement,
    first: Option<Nanos>,
    last: Nanos,
    unmatched_patterns: Vec<String>,
    missing_tables: Vec<String>,
}

impl Replay {
    fn new(header: &RecordingHeader, ReplayLimits { old, new }: ReplayLimits) -> Self {
        let hashed_values =
            header.salt.map(|salt| HashedValues::named_by(salt, [&old].into_iter().chain(&new)));
        let unmatched_patterns = match (&new, header.salt) {
            (Some(new), Some(_)) => new_patterns(&old, new),
            _ => Vec::new(),
        };
        let missing_tables = missing_tables([&old].into_iter().chain(&new));
        Self {
            old: ReplayEngine::new(old, header),
            new: new.map(|new| (ReplayEngine::new(new, header), Changes::default())),
            hashed_values,
            checks: 0,
            invalid: 0,
            old_denied: 0,
            recorded: Agreement::default(),
            first: None,
            last: header.started_at,
            unmatched_patterns,
            missing_tables,
        }
    }

    fn run_block(&mut self, mut block: RecordedBlock) {
        if let Some(hashed_values) = &self.hashed_values {
            block.replace_texts(|text| hashed_values.restore(text));
        }
        for call in block.calls() {
            if call.budgets.is_check() {
                self.run_check(&call);
                continue;
            }
            self.old.end_call(&call);
            if let Some((engine, _)) = &mut self.new {
                engine.end_call(&call);
            }
        }
    }

    fn run_check(&mut self, call: &RecordedCall<'_>) {
        let RecordedCall { check, decision: recorded, budgets } = call;
        self.first.get_or_insert(recorded.time);
        self.last = self.last.max(recorded.time);
        let Some(old) = self.old.decide_call(call) else {
            self.invalid += 1;
            return;
        };
        self.recorded.add(recorded.outcome, old.verdict);
        let counts = matches!(budgets, RecordedBudgets::Reserve(_))
            || check.descriptors.iter().any(|one| is_charge(one.cost));
        self.checks += u64::from(counts);
        self.old_denied += u64::from(counts && old.verdict == Verdict::Deny);
        if let Some((engine, changes)) = &mut self.new
            && let Some(new) = engine.decide_call(call)
            && counts
        {
            changes.add(check, (&old, &new), self.hashed_values.as_ref());
        }
    }

    fn finish(self, header: RecordingHeader, end: Option<RecordingEnd>) -> Comparison {
        let warnings = self.warnings(&header, end);
        Comparison {
            header,
            end,
            checks: self.checks,
            duration: self.last.since(self.first.unwrap_or(self.last)),
            recorded: self.recorded,
            old_denied: self.old_denied,
            new: self.new.map(|(_, changes)| changes),
            warnings,
        }
    }

    fn warnings(&self, header: &RecordingHeader, end: Option<RecordingEnd>) -> Vec<String> {
        let mut warnings = recording_warnings(header, end);
        let full = self.old.times_full() + self.new.as_ref().map_or(0, |new| new.0.times_full());
        if full != 0 {
            warnings.push(format!("{full} checks denied: too many keys for one replay"));
        }
        if self.invalid != 0 {
            warnings.push(format!("{} invalid checks skipped", self.invalid));
        }
        warnings.extend(self.unmatched_patterns.iter().map(|pattern| {
            format!(
                "pattern `{pattern}` of the new limits matches no hashed value; record with \
                 --keys clear"
            )
        }));
        warnings.extend(self.missing_tables.iter().cloned());
        warnings
    }
}

const fn is_charge(cost: Cost) -> bool {
    matches!(cost, Cost::Charge(Hits(1..)))
}

impl Agreement {
    fn add(&mut self, recorded: CheckOutcome, verdict: Verdict) {
        let recorded = match recorded {
            CheckOutcome::Allow => Verdict::Allow,
            CheckOutcome::Deny => Verdict::Deny,
            CheckOutcome::Failed | CheckOutcome::Unknown => return,
        };
        self.known += 1;
        self.equal += u64::from(recorded == verdict);
    }
}

impl Changes {
    fn add(
        &mut self,
        check: &Check<'_>,
        (old, new): (&ReplayedDecision, &ReplayedDecision),
        hashed_values: Option<&HashedValues>,
    ) {
        self.denied += u64::from(new.verdict == Verdict::Deny);
        let (denial, one) = match (old.verdict, new.verdict) {
            (Verdict::Allow, Verdict::Deny) => {
                self.newly_denied += 1;
                (new, ChangedChecks { newly_denied: 1, newly_allowed: 0 })
            }
            (Verdict::Deny, Verdict::Allow) => {
                self.newly_allowed += 1;
                (old, ChangedChecks { newly_denied: 0, newly_allowed: 1 })
            }
            _ => return,
        };
        let rule = denial.denied_by.as_deref().unwrap_or(REQUEST_LIMIT);
        count_change(&mut self.rules, rule.to_owned()).add(one);
        let key = denied_key(check, denial, hashed_values);
        if self.keys.len() < MAX_KEYS || self.keys.contains_key(&key) {
            count_change(&mut self.keys, key).add(one);
        } else {
            self.other_keys.add(one);
        }
    }
}

fn count_change(changes: &mut HashMap<String, ChangedChecks>, name: String) -> &mut ChangedChecks {
    changes.entry(name).or_default()
}

impl ChangedChecks {
    const fn add(&mut self, other: Self) {
        self.newly_denied += other.newly_denied;
        self.newly_allowed += other.newly_allowed;
    }

    /// Returns the number of all changed checks.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.newly_denied + self.newly_allowed
    }
}

/// Returns the domain and the entries of the first descriptor that denied; of a budget, those of its key.
fn denied_key(
    check: &Check<'_>,
    denial: &ReplayedDecision,
    hashed_values: Option<&HashedValues>,
) -> String {
    let denied = denial.denied_key.and_then(|(index, length)| {
        check.descriptors.get(index).map(|one| one.entries.iter().copied().take(length))
    });
    let entries = denied.into_iter().flatten();
    let shown: Vec<_> = entries
        .map(|(key, value)| (key, hashed_values.map_or(value.into(), |known| known.hide(value))))
        .collect();
    let entries = format_entries(shown.iter().map(|(key, value)| (*key, &**value)));
    // Keys come from clients, and a terminal must not interpret them.
    let printable = |text: &str| text.replace(char::is_control, "\u{fffd}");
    format!("{}: {}", printable(check.domain), printable(&entries))
}
