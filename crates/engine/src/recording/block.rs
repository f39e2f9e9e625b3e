//! Blocks of calls: their texts and descriptors, each stored once.

use std::collections::HashMap;

use fnv::FnvBuildHasher;
use smallvec::SmallVec;

use super::call::{RecordedBudgets, RecordedCall, RecordedDecision};
use super::encoded_block::{
    BlockError, DescriptorEntries, EncodedBlock, EncodedCheck, EncodedCost, EncodedDescriptor,
    EncodedUnit, MAX_CHECK_BYTES, MAX_CHECKS, MAX_ENTRIES, MAX_EXPANDED_BYTES, size_of_check,
};
use crate::kernel::decision::{Check, Descriptor, LimitOverride};
use crate::kernel::units::Nanos;

/// The size at which a block is full, in bytes before compression.
const MAX_BYTES: usize = 512 << 10;

/// Collects calls until the block is full.
#[derive(Debug, Default)]
pub struct BlockBuilder {
    block: EncodedBlock,
    text_numbers: HashMap<String, u32, FnvBuildHasher>,
    descriptor_numbers: HashMap<DescriptorEntries, u32, FnvBuildHasher>,
    bytes: usize,
    /// The size of all calls, with their texts in full.
    expanded_bytes: usize,
    last: Nanos,
}

impl BlockBuilder {
    /// Adds a call. A time before the last one counts as the last one. Returns `false` if the
    /// call is larger than 1 MiB, or a descriptor has more than 256 entries; it is not added then.
    pub fn add(
        &mut self,
        check: &Check<'_>,
        decision: RecordedDecision<'_>,
        budgets: RecordedBudgets<impl AsRef<str>>,
    ) -> bool {
        let size = size_of_check(check) + budgets.id().map_or(0, |id| id.as_ref().len());
        let has_long_descriptor =
            check.descriptors.iter().any(|one| MAX_ENTRIES < one.entries.len());
        if MAX_CHECK_BYTES < size || has_long_descriptor {
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
            budgets: budgets.map_id(|id| self.text_number(id.as_ref())),
        };
        self.last = time;
        self.bytes += 24 + 12 * check.descriptors.len();
        self.expanded_bytes += size;
        self.block.checks.push(check);
        true
    }

    /// Returns `true` if the block has no calls.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.block.checks.is_empty()
    }

    /// Returns `true` if the block must be written before the next call.
    #[must_use]
    pub fn is_full(&self) -> bool {
        MAX_CHECKS <= self.block.checks.len()
            || MAX_BYTES <= self.bytes
            || MAX_EXPANDED_BYTES < self.expanded_bytes + MAX_CHECK_BYTES
    }

    /// Returns the number of calls in the block.
    #[must_use]
    pub fn calls(&self) -> u64 {
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

/// A decoded block. All its numbers are valid, and its size is bounded.
#[derive(Debug)]
pub struct RecordedBlock(EncodedBlock);

impl RecordedBlock {
    /// Validates the numbers and the sizes of a block.
    pub(super) fn new(block: EncodedBlock) -> Result<Self, BlockError> {
        block.validate().map(|()| Self(block))
    }

    /// Returns the number of calls.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.checks.len()
    }

    /// Returns `true` if the block has no calls.
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

    /// Returns the calls, in order.
    pub fn calls(&self) -> impl Iterator<Item = RecordedCall<'_>> {
        let mut time = self.0.start;
        self.0.checks.iter().map(move |check| {
            time = time.plus(Nanos(check.delay));
            let denied_by = check.denied_by.map(|number| self.text(number));
            RecordedCall {
                check: self.decode(check),
                decision: RecordedDecision { time, outcome: check.outcome, denied_by },
                budgets: check.budgets.clone().map_id(|number| self.text(number)),
            }
        })
    }

    /// Returns the checks with their decisions, in order. A check of 0 hits is a peek.
    pub fn checks(&self) -> impl Iterator<Item = (Check<'_>, RecordedDecision<'_>)> {
        let checks = self.calls().filter(|call| call.budgets.is_check());
        checks.map(|call| (call.check, call.decision))
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
