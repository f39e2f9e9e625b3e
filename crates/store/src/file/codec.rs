//! The binary format of saved counters, version 1.
//!
//! A record is a tag, the hash of the key, and the state. All numbers are little-endian.
//!
//! | tag | state |
//! |---|---|
//! | 1 (GCRA) | requests u32, period u64 ns, burst u32, on excess u8, TAT u64 ticks + u32 |
//! | 2 (fixed window) | start u64 ns, count u64, empty at u64 ns |
//! | 3 (sliding window) | start u64 ns, previous u32, current u32, empty at u64 ns |
//! | 4 (sliding log) | empty at u64 ns, arrivals u32, for each: microsecond u64, hits u32 |
//!
//! Guarantees:
//! - A decoded record equals the encoded one.
//! - Invalid bytes are an error.

use std::borrow::Cow;
use std::num::NonZeroU64;

use super::saved_time::SavedTime;
use crate::kernel::rate::fixed_window::WindowCount;
use crate::kernel::rate::gcra::{Gcra, Tat};
use crate::kernel::rate::on_excess::OnExcess;
use crate::kernel::rate::sliding_log::ArrivalLog;
use crate::kernel::rate::sliding_window::WindowPair;
use crate::kernel::units::Nanos;
use crate::memory::counter_record::{CounterRecord, CounterState};
use crate::memory::key_hash::KeyHash;

/// The version of this format.
pub(super) const FORMAT_VERSION: u32 = 1;

/// The length of an encoded [`SavedTime`].
pub(super) const TIME_LEN: usize = 16;

const GCRA: u8 = 1;
const FIXED_WINDOW: u8 = 2;
const SLIDING_WINDOW: u8 = 3;
const SLIDING_LOG: u8 = 4;

/// The bytes are not in this format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct InvalidRecord;

pub(super) fn encode_time(time: SavedTime) -> [u8; TIME_LEN] {
    let mut bytes = [0; TIME_LEN];
    let (store, wall) = bytes.split_at_mut(TIME_LEN / 2);
    store.copy_from_slice(&time.store.0.to_le_bytes());
    wall.copy_from_slice(&time.wall.0.to_le_bytes());
    bytes
}

pub(super) fn encode_record(record: &CounterRecord<'_>, out: &mut Vec<u8>) {
    let tag = match record.state {
        CounterState::Gcra(..) => GCRA,
        CounterState::FixedWindow(..) => FIXED_WINDOW,
        CounterState::SlidingWindow(..) => SLIDING_WINDOW,
        CounterState::SlidingLog(..) => SLIDING_LOG,
    };
    out.push(tag);
    put_u64(out, record.hash.position);
    put_u64(out, record.hash.tag.get());
    match &record.state {
        CounterState::Gcra(gcra, tat) => encode_gcra(gcra, *tat, out),
        CounterState::FixedWindow(WindowCount { start, count }, empty_at) => {
            put_u64(out, start.0);
            put_u64(out, *count);
            put_u64(out, empty_at.0);
        }
        CounterState::SlidingWindow(WindowPair { start, prev, cur }, empty_at) => {
            put_u64(out, start.0);
            put_u32(out, *prev);
            put_u32(out, *cur);
            put_u64(out, empty_at.0);
        }
        CounterState::SlidingLog(log, empty_at) => {
            put_u64(out, empty_at.0);
            // A log has at most as many arrivals as its limit, which is a u32.
            put_u32(out, u32::try_from(log.arrivals().len()).unwrap_or(u32::MAX));
            for (at, hits) in log.arrivals() {
                put_u64(out, at);
                put_u32(out, hits);
            }
        }
    }
}

fn encode_gcra(gcra: &Gcra, tat: Tat, out: &mut Vec<u8>) {
    let rate = gcra.refill_rate();
    put_u32(out, rate.hits);
    put_u64(out, gcra.tick().nanos(rate.ticks.get()).0);
    put_u32(out, gcra.burst());
    out.push(u8::from(gcra.on_excess().is_charge()));
    put_u64(out, tat.whole);
    put_u32(out, tat.frac);
}

fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_u32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// Reads encoded values from the start of a slice.
pub(super) struct Decoder<'b>(pub(super) &'b [u8]);

impl Decoder<'_> {
    pub(super) fn time(&mut self) -> Result<SavedTime, InvalidRecord> {
        Ok(SavedTime { store: Nanos(self.u64()?), wall: Nanos(self.u64()?) })
    }

    /// Returns the next record; `None` at the end.
    pub(super) fn record(&mut self) -> Result<Option<CounterRecord<'static>>, InvalidRecord> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.u8()?;
        let position = self.u64()?;
        let hash = KeyHash { position, tag: NonZeroU64::new(self.u64()?).ok_or(InvalidRecord)? };
        let state = match tag {
            GCRA => self.gcra()?,
            FIXED_WINDOW => {
                let state = WindowCount { start: Nanos(self.u64()?), count: self.u64()? };
                CounterState::FixedWindow(state, Nanos(self.u64()?))
            }
            SLIDING_WINDOW => {
                let start = Nanos(self.u64()?);
                let state = WindowPair { start, prev: self.u32()?, cur: self.u32()? };
                CounterState::SlidingWindow(state, Nanos(self.u64()?))
            }
            SLIDING_LOG => self.sliding_log()?,
            _ => return Err(InvalidRecord),
        };
        Ok(Some(CounterRecord { hash, state }))
    }

    pub(super) fn u64(&mut self) -> Result<u64, InvalidRecord> {
        self.take().map(u64::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, InvalidRecord> {
        self.take().map(u32::from_le_bytes)
    }

    fn u8(&mut self) -> Result<u8, InvalidRecord> {
        self.take().map(u8::from_le_bytes)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], InvalidRecord> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(InvalidRecord)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn gcra(&mut self) -> Result<CounterState<'static>, InvalidRecord> {
        let (requests, period, burst) = (self.u32()?, Nanos(self.u64()?), self.u32()?);
        let on_excess = match self.u8()? {
            0 => OnExcess::ByStrategy,
            1 => OnExcess::Charge,
            _ => return Err(InvalidRecord),
        };
        let limit = Gcra::with_on_excess(requests, period, burst, on_excess);
        let tat = Tat { whole: self.u64()?, frac: self.u32()? };
        Ok(CounterState::Gcra(limit.map_err(|_| InvalidRecord)?, tat))
    }

    fn sliding_log(&mut self) -> Result<CounterState<'static>, InvalidRecord> {
        let empty_at = Nanos(self.u64()?);
        let count = self.u32()?;
        let arrivals: Result<Vec<_>, _> =
            (0..count).map(|_| Ok((self.u64()?, self.u32()?))).collect();
        let log = ArrivalLog::from_arrivals(arrivals?).ok_or(InvalidRecord)?;
        Ok(CounterState::SlidingLog(Cow::Owned(log), empty_at))
    }
}

#[cfg(test)]
mod tests;
