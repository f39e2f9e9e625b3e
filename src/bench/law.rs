//! Compares the decisions of a server with a limit.
//!
//! The time of a decision is known only as an interval: between sending and reply. So there are two
//! laws for each key, which a correct server cannot break:
//!
//! - `fixed_window`: over are the hits allowed within one window above the limit; under are the hits
//!   denied within a window that had room.
//! - `gcra`: over are the allowed checks that a bucket of burst + rate × longest latency rejects; under
//!   are the checks that a bucket of burst − rate × longest latency allows, above those allowed.
//!
//! A check whose interval crosses a window's start counts as neither. A check without a decision may
//! have been charged.
//!
//! Guarantees:
//! - A correct server has no hits over. It has none under if no other client uses its counters.
//!
//! Not covered:
//! - A server whose clock differs from ours, for windows.
//! - The strategies `sliding_window` and `sliding_log`.

use std::collections::BTreeMap;

use super::answer::{AnswerCode, KeyedAnswer};
use crate::kernel::units::{Nanos, Unit};

/// The strategy of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LawStrategy {
    /// Windows of the unit's length, from the Unix epoch.
    FixedWindow,
    /// A bucket of `burst` hits that fills evenly.
    Gcra {
        /// Hits allowed at one instant.
        burst: u64,
    },
}

/// The limit of each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitLaw {
    /// Hits per unit.
    pub requests: u64,
    /// The unit.
    pub unit: Unit,
    /// The strategy.
    pub strategy: LawStrategy,
    /// Hits of each check.
    pub hits: u64,
}

/// The error of a server against its limit, in hits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LawError {
    /// Allowed hits.
    pub allowed: u64,
    /// Denied hits.
    pub denied: u64,
    /// Allowed above the limit.
    pub over: u64,
    /// Denied although the limit had room.
    pub under: u64,
}

/// Compares the decisions of all keys with the limit. Sorts the answers.
#[must_use]
pub fn law_error(law: &LimitLaw, answers: &mut [KeyedAnswer]) -> LawError {
    answers.sort_unstable_by_key(|answer| (answer.key, answer.sent));
    let mut error = LawError::default();
    for of_key in answers.chunk_by(|one, next| one.key == next.key) {
        error.allowed += law.hits * count(of_key, AnswerCode::Allow);
        error.denied += law.hits * count(of_key, AnswerCode::Deny);
        let (over, under) = match law.strategy {
            LawStrategy::FixedWindow => window_checks(law, of_key),
            LawStrategy::Gcra { burst } => bucket_checks(law, burst, of_key),
        };
        error.over += over;
        error.under += under;
    }
    error
}

fn count(answers: &[KeyedAnswer], code: AnswerCode) -> u64 {
    answers.iter().filter(|answer| answer.code == code).count() as u64
}

/// The checks of one key and window.
#[derive(Default)]
struct WindowChecks {
    allowed: u64,
    denied: u64,
    /// Allowed in this window or in a neighbour.
    allowed_nearby: u64,
    /// Without a decision, sent in this window.
    unknown: u64,
}

/// Returns the hits over and under in the windows of one key.
fn window_checks(law: &LimitLaw, answers: &[KeyedAnswer]) -> (u64, u64) {
    let length = law.unit.length().0;
    let mut windows = BTreeMap::<u64, WindowChecks>::new();
    for answer in answers {
        let (first, last) = (answer.sent.0 / length, answer.replied.0 / length);
        match answer.code {
            AnswerCode::Allow if first == last => windows.entry(first).or_default().allowed += 1,
            AnswerCode::Deny if first == last => windows.entry(first).or_default().denied += 1,
            AnswerCode::Deny => {}
            AnswerCode::Allow => {
                (first..=last).for_each(|it| windows.entry(it).or_default().allowed_nearby += 1);
            }
            _ => windows.entry(first).or_default().unknown += 1,
        }
    }
    let (mut over, mut under, mut unknown) = (0, 0, 0);
    for window in windows.values() {
        // A check without a reply may be charged at any later time.
        unknown += window.unknown;
        over += (window.allowed * law.hits).saturating_sub(law.requests);
        let charged = (window.allowed + window.allowed_nearby + unknown) * law.hits;
        let room = law.requests.saturating_sub(charged) / law.hits.max(1);
        under += window.denied.min(room) * law.hits;
    }
    (over, under)
}

/// Returns the hits over and under by the buckets of one key.
fn bucket_checks(law: &LimitLaw, burst: u64, answers: &[KeyedAnswer]) -> (u64, u64) {
    let decided = || answers.iter().filter(|answer| answer.code.is_decision());
    let slack = decided().map(|answer| answer.replied.since(answer.sent)).max();
    let slack = slack.unwrap_or(Nanos(0));
    let allowed = decided().filter(|answer| answer.code == AnswerCode::Allow);
    let allowed: Vec<_> = allowed.map(|answer| answer.sent).collect();
    let asked: Vec<_> = decided().map(|answer| answer.sent).collect();
    let unknown = (answers.len() - asked.len()) as u64;
    let (burst, refill) = (law.scaled(burst), law.refill(slack));
    let most = law.bucket_allows(burst.saturating_add(refill), &allowed);
    let least = law.bucket_allows(burst.saturating_sub(refill), &asked);
    let over = allowed.len() as u64 - most;
    let under = least.saturating_sub(allowed.len() as u64 + unknown);
    (over * law.hits, under * law.hits)
}

impl LimitLaw {
    /// Hits in units of 1 / `unit` nanoseconds, in which a refill is a whole number.
    const fn scaled(&self, hits: u64) -> u128 {
        hits as u128 * self.unit.length().0 as u128
    }

    const fn refill(&self, elapsed: Nanos) -> u128 {
        elapsed.0 as u128 * self.requests as u128
    }

    /// Returns the number of checks that a bucket allows at these times.
    fn bucket_allows(&self, burst: u128, times: &[Nanos]) -> u64 {
        let (mut level, mut last, mut allowed) = (burst, None, 0);
        for time in times {
            let elapsed = last.map_or(Nanos(0), |last| time.since(last));
            level = (level + self.refill(elapsed)).min(burst);
            last = Some(*time);
            if let Some(rest) = level.checked_sub(self.scaled(self.hits)) {
                (level, allowed) = (rest, allowed + 1);
            }
        }
        allowed
    }
}
