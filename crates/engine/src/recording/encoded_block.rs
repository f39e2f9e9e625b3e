//! The encoded form of a block, and its bounds.
//!
//! Guarantees:
//! - A validated block has no number out of range.
//! - Its calls are bounded one by one, and together.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::call::{RecordedBudgets, RecordedReserve};
use super::check_outcome::CheckOutcome;
use crate::kernel::decision::{Check, Cost};
use crate::kernel::units::{Hits, Nanos, Unit};

/// The number of calls at which a block is full.
pub(super) const MAX_CHECKS: usize = 8_192;
/// The largest size of one call, in bytes.
pub(super) const MAX_CHECK_BYTES: usize = 1 << 20;
/// The largest size of all calls in a block, in bytes. Each call counts its texts in full, so
/// that a small file cannot hold an unlimited amount of work.
pub(super) const MAX_EXPANDED_BYTES: usize = 64 << 20;
/// The largest number of entries in a descriptor. A limits file has fewer levels of rules.
pub(super) const MAX_ENTRIES: usize = 256;

/// A block as it is encoded.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct EncodedBlock {
    /// The instant of the first call, since the Unix epoch.
    pub(super) start: Nanos,
    pub(super) texts: Vec<String>,
    pub(super) descriptors: Vec<DescriptorEntries>,
    /// The calls, each with its check.
    pub(super) checks: Vec<EncodedCheck>,
}

/// The entries of a descriptor: keys and values, as numbers of texts.
pub(super) type DescriptorEntries = Vec<(u32, u32)>;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct EncodedCheck {
    /// The time since the call before, in nanoseconds.
    pub(super) delay: u64,
    pub(super) domain: u32,
    pub(super) descriptors: Vec<EncodedDescriptor>,
    pub(super) outcome: CheckOutcome,
    pub(super) denied_by: Option<u32>,
    pub(super) budgets: RecordedBudgets<u32>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct EncodedDescriptor {
    pub(super) entries: u32,
    pub(super) cost: EncodedCost,
    pub(super) limit: Option<(u32, EncodedUnit)>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum EncodedCost {
    OneHit,
    Charge(u64),
    Refund(u64),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum EncodedUnit {
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl EncodedBlock {
    /// Validates the numbers and the sizes. A few bytes can encode a large check, because its
    /// descriptors are numbers.
    pub(super) fn validate(&self) -> Result<(), BlockError> {
        if MAX_CHECKS < self.checks.len() {
            return Err("a block with more than 8192 checks");
        }
        let sizes = self.descriptors.iter().map(|entries| self.size_of_entries(entries));
        let sizes: Vec<usize> = sizes.collect::<Result<_, _>>()?;
        let mut bytes = 0;
        for check in &self.checks {
            bytes += self.size_of_check(check, &sizes)?;
            if MAX_EXPANDED_BYTES < bytes {
                return Err("a block with more than 64 MiB of checks");
            }
        }
        Ok(())
    }

    fn text(&self, number: u32) -> Result<&str, BlockError> {
        self.texts.get(number as usize).map(|text| &**text).ok_or(NUMBER_OUT_OF_RANGE)
    }

    fn size_of_entries(&self, entries: &DescriptorEntries) -> Result<usize, BlockError> {
        if MAX_ENTRIES < entries.len() {
            return Err("a descriptor with more than 256 entries");
        }
        let mut texts = SmallVec::<[_; 4]>::new();
        for &(key, value) in entries {
            texts.push((self.text(key)?, self.text(value)?));
        }
        Ok(size_of_descriptor(texts.into_iter()))
    }

    /// Returns the size of a check, where `sizes` are those of the descriptors.
    fn size_of_check(&self, check: &EncodedCheck, sizes: &[usize]) -> Result<usize, BlockError> {
        let mut bytes = self.text(check.domain)?.len();
        check.denied_by.map_or(Ok(""), |number| self.text(number))?;
        bytes += check.budgets.id().map_or(Ok(""), |number| self.text(*number))?.len();
        if !covers_a_part(&check.budgets, check.descriptors.len()) {
            return Err("a reserve of a descriptor that its check lacks");
        }
        for descriptor in &check.descriptors {
            bytes += sizes.get(descriptor.entries as usize).ok_or(NUMBER_OUT_OF_RANGE)?;
            if MAX_CHECK_BYTES < bytes {
                return Err("a check above the maximum of 1 MiB");
            }
        }
        Ok(bytes)
    }
}

/// Returns `true` unless a reserve has an index out of range, or one index twice.
fn covers_a_part(budgets: &RecordedBudgets<u32>, descriptors: usize) -> bool {
    let RecordedBudgets::Reserve(RecordedReserve { covered, .. }) = budgets else { return true };
    covered.is_sorted_by(|one, next| one < next)
        && covered.last().is_none_or(|last| (*last as usize) < descriptors)
}

pub(super) fn size_of_check(check: &Check<'_>) -> usize {
    let descriptors = check.descriptors.iter();
    let sizes = descriptors.map(|one| size_of_descriptor(one.entries.iter().copied()));
    check.domain.len() + sizes.sum::<usize>()
}

fn size_of_descriptor<'a>(entries: impl Iterator<Item = (&'a str, &'a str)>) -> usize {
    16 + entries.map(|(key, value)| key.len() + value.len() + 12).sum::<usize>()
}

/// The reason why a block is malformed.
pub(super) type BlockError = &'static str;

const NUMBER_OUT_OF_RANGE: BlockError = "a block with a number out of range";

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::frame::{FrameKind, pack};
    use crate::recording::writer::pack_header;
    use crate::recording::{
        CheckOrder, RecordedPlanning, RecordingHeader, RecordingReader, percent::Percent,
    };

    fn block(entries: DescriptorEntries, (checks, descriptors): (usize, usize)) -> EncodedBlock {
        let check = |_| EncodedCheck {
            delay: 0,
            domain: 0,
            descriptors: (0..descriptors)
                .map(|_| EncodedDescriptor { entries: 0, cost: EncodedCost::OneHit, limit: None })
                .collect(),
            outcome: CheckOutcome::Allow,
            denied_by: None,
            budgets: RecordedBudgets::Charge,
        };
        EncodedBlock {
            start: Nanos(0),
            texts: vec!["d".to_owned()],
            descriptors: vec![entries],
            checks: (0..checks).map(check).collect(),
        }
    }

    /// Returns the bytes of a recording with this block, and the result of reading the block.
    fn read(block: &EncodedBlock) -> (usize, Result<(), String>) {
        let header = pack_header(&RecordingHeader {
            salt: None,
            sample: Percent::ALL,
            started_at: Nanos(0),
            order: CheckOrder::Decisions,
            planning: RecordedPlanning::default(),
        });
        let file = [&*header, &pack(FrameKind::Block, block).unwrap()].concat();
        let read = RecordingReader::open(&*file).unwrap().next_block();
        let at = format!("byte {}: ", header.len());
        let error = |error: crate::recording::RecordingError| error.to_string().replace(&at, "");
        (file.len(), read.map(|_| ()).map_err(error))
    }

    #[test]
    fn a_small_file_with_a_large_check_is_rejected() {
        // A descriptor has 16 + 256 * 14 bytes; 291 of them fit into 1 MiB.
        let entries = vec![(0, 0); MAX_ENTRIES];
        let (bytes, result) = read(&block(entries.clone(), (1, 700_000)));
        assert!(bytes < 16_384, "{bytes} bytes");
        let error = result.unwrap_err();
        assert!(error.starts_with("a check above the maximum of 1 MiB; "), "{error}");
        assert_eq!(read(&block(entries, (1, 291))).1, Ok(()));
    }

    #[test]
    fn a_deep_or_overfull_block_is_rejected() {
        let rejects = |block, why| {
            let error = read(&block).1.unwrap_err();
            assert!(error.starts_with(why), "{error}");
        };
        rejects(block(vec![(0, 0); 257], (1, 1)), "a descriptor with more than 256 entries; ");
        rejects(block(vec![(0, 0); 256], (8_192, 3)), "a block with more than 64 MiB of checks; ");
        rejects(block(vec![], (8_193, 1)), "a block with more than 8192 checks; ");
        rejects(block(vec![(0, 1)], (1, 1)), "a block with a number out of range; ");
    }

    #[test]
    fn a_reserve_or_settle_with_a_number_out_of_range_is_rejected() {
        let read_with = |budgets| {
            let mut block = block(vec![(0, 0)], (1, 2));
            block.checks[0].budgets = budgets;
            read(&block).1
        };
        let reserve = |id, covered: &[u32]| {
            let (covered, tokens, is_admitted) = (covered.to_vec(), Some(u64::MAX), true);
            read_with(RecordedBudgets::Reserve(RecordedReserve {
                id,
                covered,
                tokens,
                is_admitted,
            }))
        };
        assert_eq!(reserve(0, &[0, 1]), Ok(()));
        for covered in [&[2][..], &[0, u32::MAX], &[1, 1], &[1, 0]] {
            let error = reserve(0, covered).unwrap_err();
            assert!(
                error.starts_with("a reserve of a descriptor that its check lacks; "),
                "{error}"
            );
        }
        let usage = crate::budgets::RequestUsage::Unknown;
        let numbers = [
            reserve(1, &[0]),
            read_with(RecordedBudgets::Settle(1, usage)),
            read_with(RecordedBudgets::Renew(u32::MAX)),
        ];
        for read in numbers {
            assert!(read.unwrap_err().starts_with("a block with a number out of range; "));
        }
    }
}
