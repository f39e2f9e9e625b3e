//! One call of [`super::CHARGE_SCRIPT`] for several checks, and the split of its reply among them.
//!
//! Guarantees:
//! - The results are those of one call per check, one after the other, at one instant.
//! - Checks with [`ChargeMode::Each`](crate::ChargeMode) come first; otherwise the order is
//!   kept.
//! - A key that several of these checks share is sent once.
//! - Equal records (a record is an encoded charge) are sent once.
//! - A reply whose length does not fit the call is rejected as a whole.

use std::collections::HashMap;
use std::ops::Range;

use smallvec::SmallVec;

use super::codec::{InvalidReply, PackedCheck, RawChargeResult};
use crate::kernel::rate::limit::Tick;
use crate::kernel::units::Nanos;

/// The most charges in a call: a charge needs up to six of the 8,000 bytes of the plan (the list of
/// charges for the script).
pub const MAX_CHARGES: usize = 1_300;

/// The arguments of a call of the charge script, and the order of the results in its reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChargeCall {
    /// KEYS: the counters.
    pub keys: Vec<Vec<u8>>,
    /// ARGV: the instant, the plan, and the records (each an encoded charge), as in `head.lua`.
    pub args: Vec<Vec<u8>>,
    /// The charge of each result, in the order of the reply.
    charge_refs: Vec<ChargeRef>,
    charges_per_check: SmallVec<[usize; 1]>,
}

/// The results of one check, one per charge, in order.
pub type CheckResults = SmallVec<[RawChargeResult; 1]>;

/// The indexes of a charge: of its check in the call, and of the charge in the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ChargeRef {
    check: usize,
    charge: usize,
}

impl ChargeCall {
    /// Encodes one call for several checks with at most [`MAX_CHARGES`] charges. The script uses
    /// the instant `at`, rounded down to microseconds; without it, the clock of Redis. Cost:
    /// O(charges).
    #[must_use]
    pub fn encode(mut checks: Vec<PackedCheck>, at: Option<Nanos>) -> Self {
        let now = at.map_or_else(Vec::new, |at| Tick::Micro.floor(at).to_string().into_bytes());
        if let [PackedCheck { mode: 0, charges }] = checks.as_mut_slice()
            && let [charge] = charges.as_mut_slice()
        {
            let charge = std::mem::take(charge);
            return Self {
                keys: vec![charge.key],
                args: vec![now, Vec::new(), charge.record.into_vec()],
                charge_refs: vec![ChargeRef { check: 0, charge: 0 }],
                charges_per_check: SmallVec::from_elem(1, 1),
            };
        }
        let plan = ChargePlan::of(&checks);
        let mut args = vec![now, plan.bytes()];
        args.extend(plan.records.into_iter().map(<[u8]>::to_vec));
        let (keys, charge_refs) = (plan.keys, plan.charge_refs);
        let charges_per_check = checks.iter().map(|check| check.charges.len()).collect();
        let mut take_key =
            |at: ChargeRef| std::mem::take(&mut checks[at.check].charges[at.charge].key);
        let keys = keys.into_iter().map(&mut take_key).collect();
        Self { keys, args, charge_refs, charges_per_check }
    }

    /// Returns the number of checks in this call.
    #[must_use]
    pub fn check_count(&self) -> usize {
        self.charges_per_check.len()
    }

    /// Splits `reply` into the results of each check, in the order of the checks.
    ///
    /// # Errors
    /// Fails if the script cannot have sent this reply to this call.
    pub fn split_reply(&self, reply: &[i64]) -> Result<Vec<CheckResults>, InvalidReply> {
        let invalid = || InvalidReply::new("one to three integers for each charge", reply);
        let mut results_by_check: Vec<CheckResults> = self
            .charges_per_check
            .iter()
            .map(|count| SmallVec::from_elem(RawChargeResult::default(), *count))
            .collect();
        let (mut rest, mut previous) = (reply, None);
        for charge_ref in &self.charge_refs {
            let result = RawChargeResult::read(&mut rest, previous.as_ref()).ok_or_else(invalid)?;
            results_by_check[charge_ref.check][charge_ref.charge] = result;
            previous = Some(result);
        }
        if rest.is_empty() { Ok(results_by_check) } else { Err(invalid()) }
    }
}

/// The order of charges and keys in the script call, and the distinct records.
#[derive(Default)]
struct ChargePlan<'c> {
    records: Vec<&'c [u8]>,
    /// For each of KEYS, a charge with this key.
    keys: Vec<ChargeRef>,
    charge_refs: Vec<ChargeRef>,
    /// The number of keys, from the first on, that the script reads with one `MGET`.
    prefetched_keys: usize,
    parts: Vec<PlanPart>,
}

/// The mode number of a part with one charge for each of several keys, all with the same record.
const SAME_RECORD_MODE: u16 = 16;

/// A part of the plan: consecutive charges of one key, of several keys with the same record, or of
/// one all-or-nothing check.
struct PlanPart {
    mode: u16,
    /// The range of this part's charges in [`ChargePlan::charge_refs`].
    charges: Range<usize>,
    records: SmallVec<[u16; 1]>,
}

/// The charges of [`ChargeMode::Each`](crate::ChargeMode) checks to one key.
struct KeyCharges {
    charge_refs: SmallVec<[ChargeRef; 1]>,
    records: SmallVec<[u16; 1]>,
}

impl KeyCharges {
    /// Returns `true` if both keys have a single charge, with the same record.
    fn has_same_record(&self, other: &Self) -> bool {
        self.charge_refs.len() == 1 && other.charge_refs.len() == 1 && self.records == other.records
    }
}

impl<'c> ChargePlan<'c> {
    fn of(checks: &'c [PackedCheck]) -> Self {
        let (mut plan, mut numbers) = (Self::default(), RecordNumbers::default());
        let mut groups = group_by_key(checks, &mut numbers);
        // Charges with the same record are adjacent, because the script then unpacks the record
        // once. Keys that the script reads before writing come first: one `MGET` reads them.
        let is_read = |group: &KeyCharges| numbers.is_read_first(group.records[0]);
        groups
            .sort_by_key(|group| (!is_read(group), group.records[0], group.charge_refs.len() != 1));
        plan.prefetched_keys = groups.iter().filter(|group| is_read(group)).count();
        plan.keys.extend(groups.iter().map(|group| group.charge_refs[0]));
        for equal in groups.chunk_by(KeyCharges::has_same_record) {
            let charge_refs = equal.iter().flat_map(|group| group.charge_refs.iter().copied());
            let mode = if equal[0].charge_refs.len() == 1 { SAME_RECORD_MODE } else { 0 };
            plan.push(mode, charge_refs, equal[0].records.clone());
        }
        for (check, packed) in checks.iter().enumerate().filter(|(_, packed)| packed.mode != 0) {
            let charge_refs = (0..packed.charges.len()).map(|charge| ChargeRef { check, charge });
            plan.keys.extend(charge_refs.clone());
            let records = packed.charges.iter().map(|charge| numbers.number(&charge.record));
            plan.push(packed.mode, charge_refs, records.collect());
        }
        plan.records = numbers.records;
        plan
    }

    fn push(
        &mut self,
        mode: u16,
        charge_refs: impl IntoIterator<Item = ChargeRef>,
        records: SmallVec<[u16; 1]>,
    ) {
        let start = self.charge_refs.len();
        self.charge_refs.extend(charge_refs);
        self.parts.push(PlanPart { mode, charges: start..self.charge_refs.len(), records });
    }

    /// Encodes the plan in the script's format (see `head.lua`).
    fn bytes(&self) -> Vec<u8> {
        if self.records.len() == 1
            && matches!(*self.parts, [PlanPart { mode: SAME_RECORD_MODE, .. }])
        {
            return Vec::new();
        }
        let number = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
        let mut numbers = vec![number(self.prefetched_keys)];
        for part in &self.parts {
            numbers.extend([part.mode, number(part.charges.len())]);
            numbers.extend(&part.records);
        }
        numbers.into_iter().flat_map(u16::to_le_bytes).collect()
    }
}

/// Groups the charges of [`ChargeMode::Each`](crate::ChargeMode) checks by key, in order.
fn group_by_key<'c>(checks: &'c [PackedCheck], numbers: &mut RecordNumbers<'c>) -> Vec<KeyCharges> {
    let mut groups: Vec<KeyCharges> = Vec::new();
    let mut group_index_by_key: HashMap<&[u8], usize> = HashMap::new();
    for (check, packed) in checks.iter().enumerate().filter(|(_, packed)| packed.mode == 0) {
        for (charge, packed_charge) in packed.charges.iter().enumerate() {
            let charge_ref = ChargeRef { check, charge };
            let record = numbers.number(&packed_charge.record);
            let group_index = *group_index_by_key.entry(&packed_charge.key).or_insert(groups.len());
            if let Some(group) = groups.get_mut(group_index) {
                group.charge_refs.push(charge_ref);
                group.records.push(record);
            } else {
                let charge_refs = SmallVec::from_elem(charge_ref, 1);
                groups.push(KeyCharges { charge_refs, records: SmallVec::from_elem(record, 1) });
            }
        }
    }
    groups
}

/// The distinct records, numbered from 1.
#[derive(Default)]
struct RecordNumbers<'c> {
    records: Vec<&'c [u8]>,
    number_by_record: HashMap<&'c [u8], u16>,
    latest: u16,
}

impl<'c> RecordNumbers<'c> {
    fn number(&mut self, record: &'c [u8]) -> u16 {
        // Fast path: most records equal the previous record.
        if self.record(self.latest) == Some(record) {
            return self.latest;
        }
        let next = u16::try_from(self.records.len()).unwrap_or(u16::MAX).saturating_add(1);
        self.latest = *self.number_by_record.entry(record).or_insert(next);
        if self.latest == next {
            self.records.push(record);
        }
        self.latest
    }

    fn record(&self, number: u16) -> Option<&'c [u8]> {
        self.records.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// Returns `true` if the script reads the key before it writes: GCRA and the sliding window.
    fn is_read_first(&self, number: u16) -> bool {
        matches!(self.record(number).and_then(<[u8]>::first), Some(1 | 4))
    }
}
