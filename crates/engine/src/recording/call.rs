//! A recorded call: a check, or a call that ends or renews the holds of a request.

use serde::{Deserialize, Serialize};

use super::check_outcome::CheckOutcome;
use crate::budgets::RequestUsage;
use crate::kernel::decision::Check;
use crate::kernel::units::Nanos;

/// A recorded call.
#[derive(Clone, Debug)]
pub struct RecordedCall<'a> {
    /// The check. A call that ends or renews holds has only their domain and descriptors.
    pub check: Check<'a>,
    /// The decision. Of a call that ends or renews holds, only the time is known.
    pub decision: RecordedDecision<'a>,
    /// The use of budgets.
    pub budgets: RecordedBudgets<&'a str>,
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

/// The use of budgets by a recorded call. A request id is a text, or the number of one in a block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RecordedBudgets<Id> {
    /// A check that uses no budgets: a peek, or the part of a check without its reserve.
    Unused,
    /// A check that charges its hits to its budgets.
    Charge,
    /// A check that reserves.
    Reserve(RecordedReserve<Id>),
    /// The request with this id settles or cancels its holds.
    Settle(Id, RequestUsage),
    /// The request with this id renews its holds.
    Renew(Id),
}

/// A recorded reserve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedReserve<Id> {
    /// The request id.
    pub id: Id,
    /// The indexes of the descriptors whose budgets are reserved, ascending.
    pub covered: Vec<u32>,
    /// The largest number of tokens that the request may use, if it was known.
    pub tokens: Option<u64>,
    /// `true` if the request was admitted, so that its settle has its usage.
    pub is_admitted: bool,
}

impl<Id> RecordedBudgets<Id> {
    /// Returns `true` if the call is a check.
    #[must_use]
    pub const fn is_check(&self) -> bool {
        matches!(self, Self::Unused | Self::Charge | Self::Reserve(_))
    }

    pub(super) const fn id(&self) -> Option<&Id> {
        match self {
            Self::Unused | Self::Charge => None,
            Self::Reserve(RecordedReserve { id, .. }) | Self::Settle(id, _) | Self::Renew(id) => {
                Some(id)
            }
        }
    }

    /// Returns the same with another form of the request id.
    #[must_use]
    pub fn map_id<T>(self, map: impl FnOnce(Id) -> T) -> RecordedBudgets<T> {
        match self {
            Self::Unused => RecordedBudgets::Unused,
            Self::Charge => RecordedBudgets::Charge,
            Self::Reserve(RecordedReserve { id, covered, tokens, is_admitted }) => {
                let id = map(id);
                RecordedBudgets::Reserve(RecordedReserve { id, covered, tokens, is_admitted })
            }
            Self::Settle(id, usage) => RecordedBudgets::Settle(map(id), usage),
            Self::Renew(id) => RecordedBudgets::Renew(map(id)),
        }
    }
}

impl<Id> RecordedReserve<Id> {
    /// Returns the descriptors whose budgets are reserved.
    #[must_use]
    pub fn covered_part<'c>(&self, check: &Check<'c>) -> Check<'c> {
        let covered =
            self.covered.iter().filter_map(|&index| check.descriptors.get(index as usize));
        Check { domain: check.domain, descriptors: covered.cloned().collect() }
    }
}
