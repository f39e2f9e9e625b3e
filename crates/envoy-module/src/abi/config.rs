//! Envoy's object of one filter config.
//!
//! Guarantees:
//! - Envoy 1.38, which lacks these functions, still loads the module.
//! - A scheduler is deleted once. It may outlive its config: a commit then does nothing.
//!
//! Not covered:
//! - Additions to counters on threads that are not Envoy's.

use std::sync::{Arc, OnceLock};

use super::{Buffer, Handle, Scheduler, callbacks, increment_counter};
use crate::additions::ScheduleFn;
use crate::module::FilterModule;
use crate::stream::{CounterId, CounterSink};

callbacks! {
    /// Envoy's functions for counters outside of streams, since Envoy 1.39.
    #[expect(clippy::struct_field_names, reason = "the names are Envoy's")]
    struct ConfigCallbacks {
        http_filter_config_increment_counter: fn(Handle, usize, *const Buffer, usize, u64) -> u32;
        http_filter_config_scheduler_commit: fn(Handle, u64);
        http_filter_config_scheduler_delete: fn(Handle);
        http_filter_config_scheduler_new: fn(Handle) -> Handle;
    }
}

static CALLBACKS: OnceLock<Option<ConfigCallbacks>> = OnceLock::new();

/// The object that Envoy keeps for a filter config.
pub(super) struct ConfiguredFilter {
    pub(super) module: Arc<FilterModule>,
    /// Envoy's object.
    pub(super) handle: Handle,
}

/// The counters of a config during one of its hooks.
pub(super) struct ConfigCounters {
    callbacks: &'static ConfigCallbacks,
    handle: Handle,
}

impl ConfigCounters {
    /// Returns `None` if Envoy cannot add to counters outside of streams.
    ///
    /// # Safety
    /// The config must exist until the result is dropped.
    pub(super) unsafe fn new(handle: Handle) -> Option<Self> {
        Some(Self { callbacks: callbacks()?, handle })
    }
}

impl CounterSink for ConfigCounters {
    fn increment(&self, counter: CounterId, labels: &[&str], value: u64) {
        let add = self.callbacks.http_filter_config_increment_counter;
        // SAFETY: the config exists. Its `config_new` defined the counter.
        unsafe { increment_counter(add, self.handle, (counter, labels, value)) }
    }
}

/// Returns a function that makes Envoy call the hook `config_scheduled`, or `None` if Envoy cannot
/// add to counters there.
///
/// # Safety
/// The config must exist during the call.
pub(super) unsafe fn schedule_fn(handle: Handle) -> Option<ScheduleFn> {
    let callbacks = callbacks()?;
    // SAFETY: the config exists.
    let handle = unsafe { (callbacks.http_filter_config_scheduler_new)(handle) };
    let scheduler = Scheduler {
        commit: callbacks.http_filter_config_scheduler_commit,
        delete: callbacks.http_filter_config_scheduler_delete,
        handle,
    };
    (!handle.is_null()).then(|| -> ScheduleFn { Arc::new(move || scheduler.commit()) })
}

fn callbacks() -> Option<&'static ConfigCallbacks> {
    CALLBACKS.get_or_init(|| ConfigCallbacks::find().ok()).as_ref()
}
