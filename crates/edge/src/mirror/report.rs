//! The results of the mirror, for the admin page `/mirror` and the metrics.
//!
//! Guarantees:
//! - At most [`MAX_RULES`] rules are counted separately. Further ones are counted as `other`.
//! - At most [`MAX_LAST`] different checks are kept: the latest.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::comparison::DescriptorPair;
use crate::config::settings::Percentage;
use crate::kernel::units::Nanos;
use crate::telemetry::cloud_events::format_time;
use crate::telemetry::event::MirrorOutcome;
use crate::telemetry::metrics::MirrorDifferences;

const MAX_RULES: usize = 1_000;

const MAX_LAST: usize = 100;

/// The name of all rules beyond [`MAX_RULES`].
const OTHER: &str = "other";

/// The results of the mirror since the start of the process.
#[derive(Debug)]
pub struct MirrorReport {
    to: String,
    sample: Percentage,
    checks: [AtomicU64; MirrorOutcome::ALL.len()],
    differences: Mutex<Differences>,
}

#[derive(Debug, Default)]
struct Differences {
    /// The number of denials by this service alone, and by the other service alone.
    rules: BTreeMap<String, [u64; 2]>,
    last: VecDeque<DifferentCheck>,
}

/// The number of mirrored checks by outcome.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckCounts {
    pub(super) equal: u64,
    pub(super) different: u64,
    pub(super) failed: u64,
    pub(super) dropped: u64,
}

/// A check that the services decided differently.
#[derive(Clone, Debug)]
pub(super) struct DifferentCheck {
    pub(super) at: Nanos,
    pub(super) domain: String,
    /// The overall codes of this and of the other service.
    pub(super) overall: [Code; 2],
    pub(super) descriptors: Vec<DifferentDescriptor>,
}

#[derive(Clone, Debug)]
pub(super) struct DifferentDescriptor {
    pub(super) rule: String,
    pub(super) descriptor: String,
    pub(super) pair: DescriptorPair,
}

impl MirrorReport {
    pub(super) fn new(to: String, sample: Percentage) -> Self {
        Self { to, sample, checks: Default::default(), differences: Mutex::default() }
    }

    pub(super) fn to(&self) -> &str {
        &self.to
    }

    pub(super) fn count(&self, outcome: MirrorOutcome) {
        self.checks[outcome as usize].fetch_add(1, Relaxed);
    }

    pub(super) fn checks(&self) -> CheckCounts {
        let count = |outcome: MirrorOutcome| self.checks[outcome as usize].load(Relaxed);
        CheckCounts {
            equal: count(MirrorOutcome::Equal),
            different: count(MirrorOutcome::Different),
            failed: count(MirrorOutcome::Failed),
            dropped: count(MirrorOutcome::Dropped),
        }
    }

    pub(super) fn record(&self, check: DifferentCheck) {
        let mut differences = self.differences.lock();
        for DifferentDescriptor { rule, pair, .. } in &check.descriptors {
            let denied = match (pair.ours.code, pair.theirs.code) {
                (ours, theirs) if ours == theirs => check.overall,
                codes => codes.into(),
            };
            differences.count(rule, denied.map(|code| code == Code::OverLimit));
        }
        if differences.last.len() == MAX_LAST {
            differences.last.pop_back();
        }
        differences.last.push_front(check);
    }

    /// Returns the differences of each rule.
    #[must_use]
    pub fn differences(&self) -> Vec<MirrorDifferences> {
        let differences = self.differences.lock();
        let rules =
            differences.rules.iter().map(|(rule, [ours_deny, theirs_deny])| MirrorDifferences {
                rule: rule.as_str().into(),
                ours_deny: *ours_deny,
                theirs_deny: *theirs_deny,
            });
        rules.collect()
    }

    /// Returns the admin page `/mirror`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let checks = self.checks();
        let rules = self.differences();
        let rules = rules.iter().map(|one| {
            let (rule, ours, theirs) = (&*one.rule, one.ours_deny, one.theirs_deny);
            json!({"rule": rule, "ours_deny": ours, "theirs_deny": theirs})
        });
        json!({
            "to": self.to,
            "sample": self.sample.to_string(),
            "checks": {
                "equal": checks.equal,
                "different": checks.different,
                "failed": checks.failed,
                "dropped": checks.dropped,
            },
            "rules": rules.collect::<Value>(),
            "last": self.differences.lock().last.iter().map(check_json).collect::<Value>(),
        })
    }
}

impl Differences {
    fn count(&mut self, rule: &str, [ours, theirs]: [bool; 2]) {
        let has_room = self.rules.contains_key(rule) || self.rules.len() < MAX_RULES;
        let counts = self.rules.entry(if has_room { rule } else { OTHER }.to_owned()).or_default();
        counts[0] += u64::from(ours && !theirs);
        counts[1] += u64::from(theirs && !ours);
    }
}

fn check_json(check: &DifferentCheck) -> Value {
    let [ours, theirs] = check.overall.map(|code| code.as_str_name());
    json!({
        "at": format_time(check.at),
        "domain": check.domain,
        "ours": ours,
        "theirs": theirs,
        "descriptors": check.descriptors.iter().map(descriptor_json).collect::<Value>(),
    })
}

fn descriptor_json(DifferentDescriptor { rule, descriptor, pair }: &DifferentDescriptor) -> Value {
    json!({
        "rule": rule,
        "descriptor": descriptor,
        "ours": pair.ours.code.as_str_name(),
        "theirs": pair.theirs.code.as_str_name(),
        "ours_remaining": pair.ours.remaining,
        "theirs_remaining": pair.theirs.remaining,
    })
}
