//! One call of [`super::CHARGE_SCRIPT`] for several checks, and the split of its reply among them.
//!
//! Guarantees:
//! - The code is pure: no I/O and no clock.
//! - The results are those of one call per check, one after the other, at one instant.
//! - The script decides the checks with [`ChargeMode::Each`](crate::store::ChargeMode) first. Among
//!   them, and among the others, the order is kept.
//! - A key that several [`ChargeMode::Each`](crate::store::ChargeMode) checks share is sent once.
//! - Equal records (a record is an encoded charge with its limit) are sent once.
//! - A reply whose length does not fit the call is rejected as a whole.
//!
//! Not covered:
//! - Choosing the checks that share a call (`batch`).
//! - The conversion of results into outcomes (`codec`).

use std::collections::HashMap;
use std::ops::Range;

use smallvec::SmallVec;

use super::codec::{InvalidReply, PackedCheck, RawChargeResult};
use crate::kernel::rate::limit::Tick;
use crate::kernel::units::Nanos;

/// The most charges in a call. The plan (the list of charges for the script) has at most 8,000
/// bytes, and a charge needs up to six.
pub const MAX_CHARGES: usize = 1_300;

/// The arguments of a call of the charge script, and the order of the results in its reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChargeCall {
    /// KEYS: the counters.
    pub keys: Vec<Vec<u8>>,
    /// ARGV: the instant, the plan, and the records (each an encoded charge), as in `head.lua`.
    pub args: Vec<Vec<u8>>,
    /// The charge to which each result of the reply belongs, in the order of the reply.
    whose: Vec<ChargeRef>,
    /// The number of charges of each check.
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
    /// the given instant, rounded down to microseconds, or without one the clock of Redis. Cost:
    /// O(charges).
    #[must_use]
    pub fn encode(mut checks: Vec<PackedCheck>, at: Option<Nanos>) -> Self {
        let now = at.map_or_else(Vec::new, |at| Tick::Micro.floor(at).to_string().into_bytes());
        if let [PackedCheck { rule: 0, charges }] = checks.as_mut_slice()
            && let [charge] = charges.as_mut_slice()
        {
            let charge = std::mem::take(charge);
            return Self {
                keys: vec![charge.key],
                args: vec![now, Vec::new(), charge.record.into_vec()],
                whose: vec![ChargeRef { check: 0, charge: 0 }],
                charges_per_check: SmallVec::from_elem(1, 1),
            };
        }
        let plan = ChargePlan::of(&checks);
        let mut args = vec![now, plan.bytes()];
        args.extend(plan.records.into_iter().map(<[u8]>::to_vec));
        let (keys, whose) = (plan.keys, plan.whose);
        let sizes = checks.iter().map(|question| question.charges.len()).collect();
        let mut key =
            |whose: ChargeRef| std::mem::take(&mut checks[whose.check].charges[whose.charge].key);
        Self {
            keys: keys.into_iter().map(&mut key).collect(),
            args,
            whose,
            charges_per_check: sizes,
        }
    }

    /// Returns the number of checks in this call.
    #[must_use]
    pub fn check_count(&self) -> usize {
        self.charges_per_check.len()
    }

    /// Splits `reply` into the results of each check, in the order of the checks.
    ///
    /// # Errors
    /// The script cannot have sent this reply to this call.
    pub fn split_reply(&self, reply: &[i64]) -> Result<Vec<CheckResults>, InvalidReply> {
        let refused = || InvalidReply::new("one to three integers for each charge", reply);
        let mut results_by_check: Vec<CheckResults> = self
            .charges_per_check
            .iter()
            .map(|size| SmallVec::from_elem(RawChargeResult::default(), *size))
            .collect();
        let (mut rest, mut before) = (reply, None);
        for whose in &self.whose {
            let result = RawChargeResult::read(&mut rest, before.as_ref()).ok_or_else(refused)?;
            results_by_check[whose.check][whose.charge] = result;
            before = Some(result);
        }
        if rest.is_empty() { Ok(results_by_check) } else { Err(refused()) }
    }
}

/// The order of charges and keys in the script call, and the distinct records.
#[derive(Default)]
struct ChargePlan<'q> {
    records: Vec<&'q [u8]>,
    /// For each of KEYS, a charge with this key.
    keys: Vec<ChargeRef>,
    whose: Vec<ChargeRef>,
    /// The number of keys, from the first on, that the script reads with one `MGET`.
    prefetched_keys: usize,
    parts: Vec<PlanPart>,
}

/// The number in the plan for a part with one charge for each of several keys, all with the same
/// record.
const SAME_RECORD_RULE: u16 = 16;

/// A part of the plan: consecutive charges of one of three kinds:
/// - independent charges of one key,
/// - independent charges of several keys with the same record,
/// - the charges of one all-or-nothing check.
struct PlanPart {
    rule: u16,
    /// The range of the charges of this part in the plan's list of charges.
    charges: Range<usize>,
    records: SmallVec<[u16; 1]>,
}

/// The charges of [`ChargeMode::Each`](crate::store::ChargeMode) checks to one key.
struct KeyCharges {
    whose: SmallVec<[ChargeRef; 1]>,
    records: SmallVec<[u16; 1]>,
}

impl KeyCharges {
    /// Returns `true` if both keys have a single charge, with the same record.
    fn has_same_record(&self, other: &Self) -> bool {
        self.whose.len() == 1 && other.whose.len() == 1 && self.records == other.records
    }
}

impl<'q> ChargePlan<'q> {
    fn of(checks: &'q [PackedCheck]) -> Self {
        let (mut plan, mut numbers) = (Self::default(), RecordNumbers::default());
        let mut runs = group_by_key(checks, &mut numbers);
        // Sort charges with the same record together, because the script then unpacks the record
        // once. Keys that the script reads before writing come first, because one `MGET` reads
        // them.
        let is_read = |run: &KeyCharges| numbers.is_read_first(run.records[0]);
        runs.sort_by_key(|run| (!is_read(run), run.records[0], run.whose.len() != 1));
        plan.prefetched_keys = runs.iter().filter(|run| is_read(run)).count();
        plan.keys.extend(runs.iter().map(|run| run.whose[0]));
        for alike in runs.chunk_by(KeyCharges::has_same_record) {
            let whose = alike.iter().flat_map(|run| run.whose.iter().copied());
            let rule = if alike[0].whose.len() == 1 { SAME_RECORD_RULE } else { 0 };
            plan.push(rule, whose, alike[0].records.clone());
        }
        for (question, packed) in checks.iter().enumerate().filter(|(_, asked)| asked.rule != 0) {
            let whose =
                (0..packed.charges.len()).map(|charge| ChargeRef { check: question, charge });
            plan.keys.extend(whose.clone());
            let records = packed.charges.iter().map(|charge| numbers.number(&charge.record));
            plan.push(packed.rule, whose, records.collect());
        }
        plan.records = numbers.records;
        plan
    }

    fn push(
        &mut self,
        rule: u16,
        whose: impl IntoIterator<Item = ChargeRef>,
        records: SmallVec<[u16; 1]>,
    ) {
        let from = self.whose.len();
        self.whose.extend(whose);
        self.parts.push(PlanPart { rule, charges: from..self.whose.len(), records });
    }

    /// Encodes the plan in the script's format (see `head.lua`).
    fn bytes(&self) -> Vec<u8> {
        if self.records.len() == 1
            && matches!(*self.parts, [PlanPart { rule: SAME_RECORD_RULE, .. }])
        {
            return Vec::new();
        }
        let number = |count: usize| u16::try_from(count).unwrap_or(u16::MAX);
        let mut numbers = vec![number(self.prefetched_keys)];
        for part in &self.parts {
            numbers.extend([part.rule, number(part.charges.len())]);
            numbers.extend(&part.records);
        }
        numbers.into_iter().flat_map(u16::to_le_bytes).collect()
    }
}

/// Groups the charges of [`ChargeMode::Each`](crate::store::ChargeMode) checks by key, in the given
/// order.
fn group_by_key<'q>(
    questions: &'q [PackedCheck],
    numbers: &mut RecordNumbers<'q>,
) -> Vec<KeyCharges> {
    let mut runs: Vec<KeyCharges> = Vec::new();
    let mut run_index_by_key: HashMap<&[u8], usize> = HashMap::new();
    for (question, packed) in questions.iter().enumerate().filter(|(_, asked)| asked.rule == 0) {
        for (charge, its) in packed.charges.iter().enumerate() {
            let (whose, record) =
                (ChargeRef { check: question, charge }, numbers.number(&its.record));
            let run_index = *run_index_by_key.entry(&its.key).or_insert(runs.len());
            if let Some(run) = runs.get_mut(run_index) {
                run.whose.push(whose);
                run.records.push(record);
            } else {
                let whose = SmallVec::from_elem(whose, 1);
                runs.push(KeyCharges { whose, records: SmallVec::from_elem(record, 1) });
            }
        }
    }
    runs
}

/// The distinct records, numbered from 1.
#[derive(Default)]
struct RecordNumbers<'q> {
    records: Vec<&'q [u8]>,
    number_by_record: HashMap<&'q [u8], u16>,
    latest: u16,
}

impl<'q> RecordNumbers<'q> {
    fn number(&mut self, record: &'q [u8]) -> u16 {
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

    fn record(&self, number: u16) -> Option<&'q [u8]> {
        self.records.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// Returns `true` if the script reads the key before it writes: for GCRA and for the sliding
    /// window.
    fn is_read_first(&self, number: u16) -> bool {
        matches!(self.record(number).and_then(<[u8]>::first), Some(1 | 4))
    }
}
