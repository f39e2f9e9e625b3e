//! Encodes calls to budgets for [`BUDGET_SCRIPT`](super::super::BUDGET_SCRIPT), and decodes the
//! replies.
//!
//! Guarantees:
//! - A budget and the deadlines of its holds have two keys in one Cluster slot.
//! - A reply that the script cannot have sent is rejected as a whole.
//!
//! Times are in whole microseconds. The longest time limit is 71 years, the longest period 142.

use smallvec::SmallVec;

use super::{InvalidReply, TAG_BYTES, counter_key, encode_double};
use crate::budgets::{BudgetAction, BudgetCall, BudgetOutcome, BudgetPart, BudgetReply};
use crate::kernel::budget::{
    Amount, BudgetPeriod, BudgetView, Denial, DenialCause, Ended, EndedHold, HoldId, KEPT_PERIODS,
    MAX_HOLDS, OnExpiry, PeriodUsage, Reserved,
};
use crate::kernel::rate::fixed_window::Windows;
use crate::kernel::rate::limit::{EXACT_BOUND, Tick};
use crate::kernel::units::Nanos;

/// The first byte after the prefix and the tag in the key of the deadlines; it differs in other
/// keys.
const DEADLINES: u8 = b'&';

/// The longest time limit in microseconds: twice as long after the year 2026 is below 2^53.
const MAX_TIME_LIMIT: u64 = 1 << 51;

/// The arguments of one script call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedBudgetCall {
    /// KEYS: each budget and its deadlines.
    pub keys: Vec<Vec<u8>>,
    /// ARGV, as `budgets.lua` documents it.
    pub args: Vec<Vec<u8>>,
}

impl PackedBudgetCall {
    pub(in super::super) fn budget_keys(&self) -> SmallVec<[&[u8]; 2]> {
        self.keys.iter().step_by(2).map(Vec::as_slice).collect()
    }
}

/// Encodes a call. The script uses the instant `at`, rounded down to microseconds; without it, the
/// clock of Redis. Amounts of 2^53 or more become 2^53 - 1.
#[must_use]
pub fn pack(call: &BudgetCall, prefix: &[u8], at: Option<Nanos>) -> PackedBudgetCall {
    let now = at.map_or_else(Vec::new, |at| Tick::Micro.floor(at).to_string().into_bytes());
    let mut packed = PackedBudgetCall { keys: Vec::new(), args: vec![now, encode_action(call)] };
    for part in &call.budgets {
        let budget = counter_key(&part.key, part.placement, prefix);
        let mut deadlines = budget.clone();
        deadlines.insert(prefix.len() + TAG_BYTES, DEADLINES);
        packed.keys.extend([budget, deadlines]);
        packed.args.push(encode_part(part));
    }
    packed
}

/// Decodes the reply to a call.
///
/// # Errors
/// Fails if the script cannot have sent this reply to this call.
pub fn read(call: &BudgetCall, reply: &[i64]) -> Result<BudgetReply, InvalidReply> {
    let mut rest = ReplyReader(reply);
    let decoded = rest.read_reply(call).filter(|_| rest.0.is_empty());
    decoded.ok_or_else(|| InvalidReply::new("an instant, the views and the outcome", reply))
}

fn encode_action(call: &BudgetCall) -> Vec<u8> {
    let code = match call.action {
        BudgetAction::Reserve => 0,
        BudgetAction::Settle => 1,
        BudgetAction::SettleHeld => 2,
        BudgetAction::Cancel => 3,
        BudgetAction::Renew => 4,
        BudgetAction::Charge => 5,
        BudgetAction::TopUp => 6,
        BudgetAction::Read => 7,
    };
    // Redis orders ids with equal deadlines by their bytes. Big-endian is the order of `HoldId`.
    let HoldId(high, low) = call.id;
    [&[code][..], &high.to_be_bytes(), &low.to_be_bytes()].concat()
}

fn encode_part(part: &BudgetPart) -> Vec<u8> {
    let terms = &part.terms;
    let (kind, period, starts) = match terms.period {
        BudgetPeriod::Each(Windows::Every(length)) => (0, Tick::Micro.floor(length), None),
        BudgetPeriod::Each(Windows::Calendar { starts }) => (1, 0, Some(starts)),
        BudgetPeriod::Prepaid => (2, 0, None),
    };
    let time_limit = Tick::Micro.floor(terms.time_limit).min(MAX_TIME_LIMIT);
    let numbers = [part.amount.0, terms.amount.0, time_limit, period];
    let mut bytes: Vec<u8> = numbers.into_iter().flat_map(encode_double).collect();
    bytes.extend([
        kind,
        u8::from(terms.is_enforced),
        u8::from(terms.on_expiry == OnExpiry::Charge),
    ]);
    let starts = starts.into_iter().flatten();
    bytes.extend(starts.flat_map(|start| encode_double(Tick::Micro.floor(start))));
    bytes
}

/// The rest of a reply. A method returns `None` if the script cannot have sent it.
struct ReplyReader<'r>(&'r [i64]);

impl ReplyReader<'_> {
    fn read_reply(&mut self, call: &BudgetCall) -> Option<BudgetReply> {
        let now = self.instant()?;
        let views = call.budgets.iter().map(|part| self.view(part)).collect::<Option<_>>()?;
        Some(BudgetReply { outcome: self.outcome(call)?, views, now })
    }

    fn outcome(&mut self, call: &BudgetCall) -> Option<BudgetOutcome> {
        let count = call.budgets.len();
        Some(match call.action {
            BudgetAction::Reserve => BudgetOutcome::Reserved(self.reserved(count)?),
            BudgetAction::Settle | BudgetAction::SettleHeld | BudgetAction::Cancel => {
                BudgetOutcome::Ended((0..count).map(|_| self.ended()).collect::<Option<_>>()?)
            }
            BudgetAction::Renew | BudgetAction::Charge => {
                BudgetOutcome::Changed((0..count).map(|_| self.flag()).collect::<Option<_>>()?)
            }
            BudgetAction::TopUp => BudgetOutcome::ToppedUp(self.top_ups(count)?),
            BudgetAction::Read => {
                BudgetOutcome::Read((0..count).map(|_| self.periods()).collect::<Option<_>>()?)
            }
        })
    }

    fn view(&mut self, part: &BudgetPart) -> Option<BudgetView> {
        let (usage, held, credit) = (self.usage()?, self.amount()?, self.amount()?);
        let open_holds = u32::try_from(self.natural()?).ok().filter(|open| *open <= MAX_HOLDS)?;
        let end = Some(self.instant()?).filter(|end| *end != Nanos(0));
        let is_possible = match part.terms.period {
            BudgetPeriod::Each(_) => end.is_none_or(|end| usage.start < end),
            BudgetPeriod::Prepaid => end.is_none(),
        };
        is_possible.then_some(BudgetView { usage, held, credit, open_holds, end })
    }

    fn reserved(&mut self, count: usize) -> Option<Reserved> {
        let [code, index, cause] = [self.natural()?, self.natural()?, self.natural()?];
        let index = usize::try_from(index).ok().filter(|index| *index < count)?;
        Some(match (code, index, cause) {
            (0, 0, 0) => Reserved::Held,
            (1, 0, 0) => Reserved::Repeated,
            (2, index, cause) => Reserved::Denied(Denial { index, cause: denial_cause(cause)? }),
            (3, 0, 0) => Reserved::Ended,
            _ => return None,
        })
    }

    fn ended(&mut self) -> Option<EndedHold> {
        let (ended, counted) = (self.natural()?, self.amount()?);
        let ended = match (ended, counted) {
            (0, _) => Ended::Now,
            (1, _) => Ended::Corrected,
            (2, _) => Ended::Before,
            (3, Amount(0)) => Ended::Unknown,
            _ => return None,
        };
        Some(EndedHold { ended, counted })
    }

    /// Reads the amounts of earlier top-ups.
    fn top_ups(&mut self, count: usize) -> Option<SmallVec<[Option<Amount>; 2]>> {
        let mut all = SmallVec::new();
        for _ in 0..count {
            let (is_new, known) = (self.flag()?, self.amount()?);
            if is_new && known != Amount(0) {
                return None;
            }
            all.push((!is_new).then_some(known));
        }
        Some(all)
    }

    /// Reads the usage of the last periods, in ascending order.
    fn periods(&mut self) -> Option<Vec<PeriodUsage>> {
        let count = usize::try_from(self.natural()?).ok().filter(|count| *count <= KEPT_PERIODS)?;
        let periods = (0..count).map(|_| self.usage()).collect::<Option<Vec<_>>>()?;
        periods.is_sorted_by(|a, b| a.start < b.start).then_some(periods)
    }

    fn usage(&mut self) -> Option<PeriodUsage> {
        Some(PeriodUsage {
            start: self.instant()?,
            settled: self.amount()?,
            requests: self.natural()?,
            expired: self.natural()?,
            excess: self.amount()?,
        })
    }

    fn flag(&mut self) -> Option<bool> {
        match self.natural()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }

    fn instant(&mut self) -> Option<Nanos> {
        self.natural().map(|micros| Tick::Micro.nanos(micros))
    }

    fn amount(&mut self) -> Option<Amount> {
        self.natural().map(Amount)
    }

    fn natural(&mut self) -> Option<u64> {
        let number = self.0.split_off_first()?;
        u64::try_from(*number).ok().filter(|number| *number < EXACT_BOUND)
    }
}

const fn denial_cause(code: u64) -> Option<DenialCause> {
    Some(match code {
        0 => DenialCause::ExceedsAmount,
        1 => DenialCause::Spent,
        2 => DenialCause::InFlight,
        3 => DenialCause::Full,
        4 => DenialCause::OutsidePeriods,
        _ => return None,
    })
}
