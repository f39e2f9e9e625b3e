//! Blocks of checks: their texts and descriptors, each stored once.

use std::collections::HashMap;

use fnv::FnvBuildHasher;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use crate::kernel::decision::{Check, Cost, Descriptor, LimitOverride};
use crate::kernel::units::{Hits, Nanos, Unit};

/// The number of checks at which a block is full.
const MAX_CHECKS: usize = 8_192;
/// The size at which a block is full, in bytes before compression.
const MAX_BYTES: usize = 512 << 10;
/// The largest size of one check, in bytes.
const MAX_CHECK_BYTES: usize = 1 << 20;

/// The decision of a recorded check, before global shadow mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CheckOutcome {
    /// The check was allowed.
    Allow,
    /// The check was denied.
    Deny,
    /// The check got no decision, because the store did not reply.
    Failed,
    /// The decision is unknown: an access log does not contain it.
    Unknown,
}

/// The decision of one recorded check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedDecision<'a> {
    /// The instant of the decision, since the Unix epoch.
    pub time: Nanos,
    /// The decision.
    pub outcome: CheckOutcome,
    /// The path of the rule that denied, if one did.
    pub denied_by: Option<&'a str>,
}

/// A block as it is encoded.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct EncodedBlock {
    /// The instant of the first check, since the Unix epoch.
    start: Nanos,
    texts: Vec<String>,
    descriptors: Vec<DescriptorEntries>,
    checks: Vec<EncodedCheck>,
}

/// The entries of a descriptor: keys and values, as numbers of texts.
type DescriptorEntries = Vec<(u32, u32)>;

#[derive(Debug, Serialize, Deserialize)]
struct EncodedCheck {
    /// The time since the check before, in nanoseconds.
    delay: u64,
    domain: u32,
    descriptors: Vec<EncodedDescriptor>,
    outcome: CheckOutcome,
    denied_by: Option<u32>,
}

#[derive(Debug, Serialize, Deserialize)]
struct EncodedDescriptor {
    entries: u32,
    cost: EncodedCost,
    limit: Option<(u32, EncodedUnit)>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum EncodedCost {
    OneHit,
    Charge(u64),
    Refund(u64),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum EncodedUnit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

/// Collects checks until the block is full.
#[derive(Debug, Default)]
pub struct BlockBuilder {
    block: EncodedBlock,
    text_numbers: HashMap<String, u32, FnvBuildHasher>,
    descriptor_numbers: HashMap<DescriptorEntries, u32, FnvBuildHasher>,
    bytes: usize,
    last: Nanos,
}

impl BlockBuilder {
    /// Adds a check. A time before the last one counts as the last one. Returns `false` if the
    /// check is larger than 1 MiB; it is not added then.
    pub fn add(&mut self, check: &Check<'_>, decision: RecordedDecision<'_>) -> bool {
        if MAX_CHECK_BYTES < size_of_check(check) {
            return false;
        }
        if self.block.checks.is_empty() {
            self.last = self.last.max(decision.time);
            self.block.start = self.last;
        }
        let time = self.last.max(decision.time);
        let check = EncodedCheck {
            delay: time.since(self.last).0,
            domain: self.text_number(check.domain),
            descriptors: check.descriptors.iter().map(|one| self.encode(one)).collect(),
            outcome: decision.outcome,
            denied_by: decision.denied_by.map(|path| self.text_number(path)),
        };
        self.last = time;
        self.bytes += 16 + 8 * check.descriptors.len();
        self.block.checks.push(check);
        true
    }

    /// Returns `true` if the block has no checks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.block.checks.is_empty()
    }

    /// Returns `true` if the block must be written before the next check.
    #[must_use]
    pub fn is_full(&self) -> bool {
        MAX_CHECKS <= self.block.checks.len() || MAX_BYTES <= self.bytes
    }

    /// Returns the number of checks in the block.
    #[must_use]
    pub fn checks(&self) -> u64 {
        self.block.checks.len() as u64
    }

    /// Returns the collected block, and continues with an empty one.
    #[must_use]
    pub fn take(&mut self) -> Self {
        let next = Self { last: self.last, ..Self::default() };
        std::mem::replace(self, next)
    }

    pub(super) const fn encoded(&self) -> &EncodedBlock {
        &self.block
    }

    fn encode(&mut self, descriptor: &Descriptor<'_>) -> EncodedDescriptor {
        let number =
            |&(key, value): &(&str, &str)| (self.text_number(key), self.text_number(value));
        let entries: DescriptorEntries = descriptor.entries.iter().map(number).collect();
        EncodedDescriptor {
            entries: self.descriptor_number(entries),
            cost: EncodedCost::from(descriptor.cost),
            limit: descriptor.limit.map(|limit| (limit.requests, EncodedUnit::from(limit.unit))),
        }
    }

    fn text_number(&mut self, text: &str) -> u32 {
        if let Some(number) = self.text_numbers.get(text) {
            return *number;
        }
        // A full block has far fewer texts than 2^32.
        let number = u32::try_from(self.block.texts.len()).unwrap_or(u32::MAX);
        self.block.texts.push(text.to_owned());
        self.text_numbers.insert(text.to_owned(), number);
        self.bytes += text.len() + 2;
        number
    }

    fn descriptor_number(&mut self, entries: DescriptorEntries) -> u32 {
        if let Some(number) = self.descriptor_numbers.get(&entries) {
            return *number;
        }
        let number = u32::try_from(self.block.descriptors.len()).unwrap_or(u32::MAX);
        self.bytes += 1 + 6 * entries.len();
        self.block.descriptors.push(entries.clone());
        self.descriptor_numbers.insert(entries, number);
        number
    }
}

fn size_of_check(check: &Check<'_>) -> usize {
    let descriptors = check.descriptors.iter();
    let entries = descriptors.flat_map(|descriptor| &descriptor.entries);
    check.domain.len()
        + 16 * check.descriptors.len()
        + entries.map(|(key, value)| key.len() + value.len() + 12).sum::<usize>()
}

/// A decoded block. All its numbers are valid.
#[derive(Debug)]
pub struct RecordedBlock(EncodedBlock);

impl RecordedBlock {
    /// Validates the numbers of a block. Returns `None` if one is out of range.
    pub(super) fn new(block: EncodedBlock) -> Option<Self> {
        let is_text = |number: u32| (number as usize) < block.texts.len();
        let has_texts =
            |entries: &DescriptorEntries| entries.iter().all(|&(k, v)| is_text(k) && is_text(v));
        let is_valid = |check: &EncodedCheck| {
            let mut descriptors = check.descriptors.iter();
            is_text(check.domain)
                && check.denied_by.is_none_or(is_text)
                && descriptors.all(|one| (one.entries as usize) < block.descriptors.len())
        };
        let all_valid =
            block.descriptors.iter().all(has_texts) && block.checks.iter().all(is_valid);
        all_valid.then_some(Self(block))
    }

    /// Returns the number of checks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.checks.len()
    }

    /// Returns `true` if the block has no checks.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.checks.is_empty()
    }

    /// Replaces each text for which `replace` returns another one. Equal texts become one text.
    pub fn replace_texts(&mut self, replace: impl Fn(&str) -> Option<String>) {
        for text in &mut self.0.texts {
            if let Some(other) = replace(text) {
                *text = other;
            }
        }
    }

    /// Returns the checks with their decisions, in order. A check of 0 hits is a peek.
    pub fn checks(&self) -> impl Iterator<Item = (Check<'_>, RecordedDecision<'_>)> {
        let mut time = self.0.start;
        self.0.checks.iter().map(move |check| {
            time = time.plus(Nanos(check.delay));
            let denied_by = check.denied_by.map(|number| self.text(number));
            (self.decode(check), RecordedDecision { time, outcome: check.outcome, denied_by })
        })
    }

    fn decode(&self, check: &EncodedCheck) -> Check<'_> {
        let descriptors = check.descriptors.iter().map(|one| Descriptor {
            entries: self.entries(one.entries),
            cost: one.cost.into(),
            limit: one.limit.map(|(requests, unit)| LimitOverride { requests, unit: unit.into() }),
        });
        Check { domain: self.text(check.domain), descriptors: descriptors.collect() }
    }

    fn entries(&self, number: u32) -> SmallVec<[(&str, &str); 4]> {
        let entries = self.0.descriptors.get(number as usize).into_iter().flatten();
        entries.map(|&(key, value)| (self.text(key), self.text(value))).collect()
    }

    fn text(&self, number: u32) -> &str {
        self.0.texts.get(number as usize).map_or("", |text| text)
    }
}

impl From<Cost> for EncodedCost {
    fn from(cost: Cost) -> Self {
        match cost {
            Cost::Charge(Hits(1)) => Self::OneHit,
            Cost::Charge(Hits(hits)) => Self::Charge(hits),
            Cost::Refund(Hits(hits)) => Self::Refund(hits),
        }
    }
}

impl From<EncodedCost> for Cost {
    fn from(cost: EncodedCost) -> Self {
        match cost {
            EncodedCost::OneHit => Self::Charge(Hits(1)),
            EncodedCost::Charge(hits) => Self::Charge(Hits(hits)),
            EncodedCost::Refund(hits) => Self::Refund(Hits(hits)),
        }
    }
}

macro_rules! encode_units {
    ($($unit:ident),*) => {
        impl From<Unit> for EncodedUnit {
            fn from(unit: Unit) -> Self {
                match unit { $(Unit::$unit => Self::$unit),* }
            }
        }

        impl From<EncodedUnit> for Unit {
            fn from(unit: EncodedUnit) -> Self {
                match unit { $(EncodedUnit::$unit => Self::$unit),* }
            }
        }
    };
}

encode_units!(Second, Minute, Hour, Day, Week, Month, Year);
