//! Reads and restores the counters of a shard, for the file store.

use std::borrow::Cow;

use super::{GcraCounter, Shard, ShardFull, WindowCounter};
use crate::kernel::rate::sliding_log;
use crate::kernel::units::Nanos;
use crate::memory::counter_record::{CounterRecord, CounterState};
use crate::memory::counters::{CapacitySource as _, CounterCapacity};
use crate::memory::gcra_limits::GcraLimits;
use crate::memory::table::CounterTable;

impl Shard {
    /// Lists all changes of counters from now on, for [`Shard::take_changes`].
    pub(in crate::memory) fn track_changes(&mut self) {
        self.gcra.track_changes();
        self.fixed_window.track_changes();
        self.sliding_window.track_changes();
        self.sliding_log.track_changes();
    }

    /// Calls `visit` for each counter that changed since the last call.
    pub(in crate::memory) fn take_changes(&mut self, visit: &mut dyn FnMut(CounterRecord<'_>)) {
        let limits = &self.gcra_limits;
        self.gcra.take_changes(|counter| visit_gcra(limits, counter, visit));
        self.fixed_window.take_changes(|counter| visit(counter.record(CounterState::FixedWindow)));
        self.sliding_window
            .take_changes(|counter| visit(counter.record(CounterState::SlidingWindow)));
        self.sliding_log.take_changes(|counter| visit(log_record(counter)));
    }

    /// Calls `visit` for each counter.
    pub(in crate::memory) fn visit_counters(&self, visit: &mut dyn FnMut(CounterRecord<'_>)) {
        let limits = &self.gcra_limits;
        self.gcra.iter().for_each(|counter| visit_gcra(limits, counter, visit));
        let (fixed, sliding) = (self.fixed_window.iter(), self.sliding_window.iter());
        fixed.for_each(|counter| visit(counter.record(CounterState::FixedWindow)));
        sliding.for_each(|counter| visit(counter.record(CounterState::SlidingWindow)));
        self.sliding_log.iter().for_each(|counter| visit(log_record(counter)));
    }

    /// Inserts a counter with this state, or replaces its state.
    pub(in crate::memory) fn restore(
        &mut self,
        record: CounterRecord<'_>,
        counters: &CounterCapacity,
    ) -> Result<(), ShardFull> {
        let hash = record.hash;
        match record.state {
            CounterState::Gcra(gcra, tat) => {
                if let Some(counter) = self.gcra.get_mut(hash) {
                    self.gcra_limits.remove_user(counter.limit_id);
                    (counter.tat, counter.limit_id) = (tat, self.gcra_limits.add_user(&gcra));
                    return Ok(());
                }
                if !counters.try_take() {
                    return Err(ShardFull);
                }
                let limit_id = self.gcra_limits.add_user(&gcra);
                self.gcra.insert(GcraCounter { hash, tat, limit_id });
                Ok(())
            }
            CounterState::FixedWindow(state, empty_at) => restore_window(
                &mut self.fixed_window,
                counters,
                WindowCounter { hash, state, empty_at },
            ),
            CounterState::SlidingWindow(state, empty_at) => {
                let counter = WindowCounter { hash, state, empty_at };
                restore_window(&mut self.sliding_window, counters, counter)
            }
            CounterState::SlidingLog(log, empty_at) => {
                let counter = WindowCounter { hash, state: log.into_owned(), empty_at };
                restore_window(&mut self.sliding_log, counters, counter)
            }
        }
    }
}

impl<S: Clone> WindowCounter<S> {
    fn record(
        &self,
        state: impl FnOnce(S, Nanos) -> CounterState<'static>,
    ) -> CounterRecord<'static> {
        CounterRecord { hash: self.hash, state: state(self.state.clone(), self.empty_at) }
    }
}

fn visit_gcra(
    limits: &GcraLimits,
    counter: &GcraCounter,
    visit: &mut dyn FnMut(CounterRecord<'_>),
) {
    if let Some(gcra) = limits.get(counter.limit_id) {
        visit(CounterRecord { hash: counter.hash, state: CounterState::Gcra(*gcra, counter.tat) });
    }
}

fn log_record(counter: &WindowCounter<sliding_log::ArrivalLog>) -> CounterRecord<'_> {
    let state = CounterState::SlidingLog(Cow::Borrowed(&counter.state), counter.empty_at);
    CounterRecord { hash: counter.hash, state }
}

fn restore_window<S>(
    table: &mut CounterTable<WindowCounter<S>>,
    counters: &CounterCapacity,
    restored: WindowCounter<S>,
) -> Result<(), ShardFull> {
    if let Some(counter) = table.get_mut(restored.hash) {
        *counter = restored;
        return Ok(());
    }
    if !counters.try_take() {
        return Err(ShardFull);
    }
    table.insert(restored);
    Ok(())
}
