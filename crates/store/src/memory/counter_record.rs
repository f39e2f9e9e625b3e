//! The complete state of one counter, as the file store saves it.

use std::borrow::Cow;

use super::key_hash::KeyHash;
use crate::kernel::rate::fixed_window::WindowCount;
use crate::kernel::rate::gcra::{Gcra, Tat};
use crate::kernel::rate::sliding_log::ArrivalLog;
use crate::kernel::rate::sliding_window::WindowPair;
use crate::kernel::units::Nanos;

/// A counter: the hash of its key, and its state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CounterRecord<'a> {
    pub(crate) hash: KeyHash,
    pub(crate) state: CounterState<'a>,
}

/// The state of a counter. An instant is the time at which the counter becomes empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CounterState<'a> {
    /// The debt, in units of this limit.
    Gcra(Gcra, Tat),
    FixedWindow(WindowCount, Nanos),
    SlidingWindow(WindowPair, Nanos),
    SlidingLog(Cow<'a, ArrivalLog>, Nanos),
}

impl CounterState<'_> {
    /// Returns `true` if the counter is empty at `now`, so that it need not be restored.
    pub(crate) fn is_empty(&self, now: Nanos) -> bool {
        match self {
            Self::Gcra(gcra, tat) => gcra.is_empty(tat, now),
            Self::FixedWindow(_, empty_at)
            | Self::SlidingWindow(_, empty_at)
            | Self::SlidingLog(_, empty_at) => *empty_at <= now,
        }
    }
}
