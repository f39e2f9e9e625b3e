//! The hooks that the module exports to Envoy.
//!
//! Guarantees:
//! - Every hook catches panics.
//! - A hook keeps its filter alive, because Envoy may destroy the filter within the hook.

use std::ffi::{c_char, c_void};
use std::ptr;
use std::rc::Rc;
use std::sync::Arc;

use sluicegate_descriptors::filter_config::RouteFilterConfig;

use super::config::{ConfigCounters, ConfiguredFilter, schedule_fn};
use super::{AbiStream, Buffer, CALLBACKS, Callbacks, Handle, HeaderPair, find_symbol, write_log};
use crate::config_text::to_json;
use crate::filter::StreamFilter;
use crate::guard;
use crate::log::{self, LogLevel};
use crate::module::{ConfigError, EnvoyConfig, FilterModule, RunMode, read_route_config};
use crate::stream::{CounterId, HeadersStatus};

/// The result `Continue` of hooks for bodies and trailers.
const CONTINUE: u32 = 0;

/// The result `Success` of functions for statistics.
const SUCCESS: u32 = 0;

/// Runs a hook of one stream with its filter.
fn run_stream_hook<T: Copy>(
    name: &'static str,
    (handle, filter): (Handle, *const c_void),
    last_resort: T,
    on_panic: impl FnOnce(AbiStream, &StreamFilter) -> T,
    hook: impl FnOnce(AbiStream, &StreamFilter) -> T,
) -> T {
    let Some(callbacks) = CALLBACKS.get().filter(|_| !filter.is_null()) else { return last_resort };
    let filter = filter.cast::<StreamFilter>();
    // SAFETY: the pointer comes from `filter_new`, and `filter_destroy` was not called yet. All hooks
    // of a stream run on one thread.
    let filter = unsafe {
        Rc::increment_strong_count(filter);
        Rc::from_raw(filter)
    };
    let stream = || AbiStream { callbacks, handle };
    guard::run(name, last_resort, || on_panic(stream(), &filter), || hook(stream(), &filter))
}

/// Runs a hook for a config, and returns the config that it makes for Envoy to keep.
fn make_config<C>(
    name: &'static str,
    texts: [Buffer; 2],
    make: impl FnOnce(&'static Callbacks, &str, &str) -> Result<C, ConfigError>,
) -> *const c_void {
    let config = guard::run(
        name,
        None,
        || None,
        || {
            let callbacks = CALLBACKS.get()?;
            // SAFETY: Envoy keeps both texts during the hook.
            let [name, config] = texts.map(|text| unsafe { text.bytes() });
            let result = make(callbacks, &String::from_utf8_lossy(name), &to_json(config));
            result.inspect_err(log_rejection).ok()
        },
    );
    config.map_or(ptr::null(), |config| Box::into_raw(Box::new(config)).cast_const().cast())
}

fn log_rejection(error: &ConfigError) {
    log::write(LogLevel::Error, &format!("sluicegate: filter config rejected: {error}"));
}

/// Takes a config that [`make_config`] made, and drops it after `close`.
fn drop_config<C>(name: &'static str, config: *const c_void, close: impl FnOnce(&C)) {
    if config.is_null() {
        return;
    }
    // SAFETY: Envoy returns the pointer once, and does not use it later.
    let config = unsafe { Box::from_raw(config.cast_mut().cast::<C>()) };
    guard::run(name, (), || (), move || close(&config));
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_program_init() -> *const c_char {
    let is_1_40 = !find_symbol("envoy_dynamic_module_callback_log_v2\0").is_null();
    let version = if is_1_40 { c"v0.2.0" } else { c"v0.1.0" };
    match Callbacks::find() {
        Ok(callbacks) => {
            CALLBACKS.get_or_init(|| callbacks);
            log::set_writer(write_log);
            guard::log_first_panic();
            version.as_ptr()
        }
        Err(missing) => {
            let message = format!(
                "sluicegate: this Envoy cannot run the module, which needs Envoy 1.38 to 1.40; \
                 missing functions: {}\n",
                missing.join(", ")
            );
            // Envoy's log function may be among them.
            let _is_written = std::io::Write::write_all(&mut std::io::stderr(), message.as_bytes());
            ptr::null()
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_config_new(
    handle: Handle,
    name: Buffer,
    config: Buffer,
) -> *const c_void {
    make_config("config_new", [name, config], |callbacks, name, json| {
        let define = callbacks.http_filter_config_define_counter;
        let mut define = |name: &str, labels: &[&str]| {
            let labels: Vec<Buffer> = labels.iter().map(|label| Buffer::new(label)).collect();
            let (name, mut id) = (Buffer::new(name), 0);
            // SAFETY: Envoy copies the texts. This runs only within `config_new`.
            let status =
                unsafe { define(handle, name, labels.as_ptr(), labels.len(), &raw mut id) };
            (status == SUCCESS).then_some(CounterId(id))
        };
        // SAFETY: the function has no arguments.
        let is_validation = unsafe { (callbacks.is_validation_mode)() };
        let mode = if is_validation { RunMode::Validate } else { RunMode::Serve };
        // SAFETY: Envoy keeps the config until `config_destroy`.
        let schedule = unsafe { schedule_fn(handle) };
        let envoy = EnvoyConfig { mode, define: &mut define, schedule };
        let module = Arc::new(FilterModule::new(name, json, envoy)?);
        Ok(ConfiguredFilter { module, handle })
    })
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_config_scheduled(
    handle: Handle,
    config: *const c_void,
    _event: u64,
) {
    // SAFETY: the pointer is null or comes from `config_new`, and Envoy keeps the config in the hook.
    let config = unsafe { config.cast::<ConfiguredFilter>().as_ref() };
    let Some(config) = config else { return };
    // SAFETY: as above.
    let Some(counters) = (unsafe { ConfigCounters::new(handle) }) else { return };
    guard::run("config_scheduled", (), || (), || config.module.add_events(&counters));
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_config_destroy(config: *const c_void) {
    drop_config::<ConfiguredFilter>("config_destroy", config, |config| {
        // SAFETY: Envoy's config exists until the end of this hook.
        if let Some(counters) = unsafe { ConfigCounters::new(config.handle) } {
            config.module.close(&counters);
        }
    });
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_per_route_config_new(
    name: Buffer,
    config: Buffer,
) -> *const c_void {
    make_config("route_config_new", [name, config], |_, name, json| read_route_config(name, json))
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_per_route_config_destroy(config: *const c_void) {
    drop_config::<RouteFilterConfig>("route_config_destroy", config, |_| ());
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_new(
    config: *const c_void,
    _: Handle,
) -> *const c_void {
    // SAFETY: the pointer comes from `config_new`, and Envoy keeps the config during the hook.
    let Some(config) = (unsafe { config.cast::<ConfiguredFilter>().as_ref() }) else {
        return ptr::null();
    };
    let module = || Arc::clone(&config.module);
    let filter = guard::run(
        "filter_new",
        None,
        || Some(StreamFilter::broken(module())),
        || Some(StreamFilter::new(module())),
    );
    filter.map_or(ptr::null(), |filter| Rc::into_raw(Rc::new(filter)).cast())
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_request_headers(
    stream: Handle,
    filter: *const c_void,
    _is_end: bool,
) -> HeadersStatus {
    let on_panic = |stream, filter: &StreamFilter| filter.after_request_panic(stream);
    run_stream_hook(
        "request_headers",
        (stream, filter),
        HeadersStatus::Continue,
        on_panic,
        |stream, filter| filter.on_request_headers(stream),
    )
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_response_headers(
    stream: Handle,
    filter: *const c_void,
    is_end: bool,
) -> HeadersStatus {
    let on_panic = |stream, filter: &StreamFilter| filter.after_panic(&stream);
    run_stream_hook("response_headers", (stream, filter), (), on_panic, |stream, filter| {
        filter.on_response_headers(stream, is_end);
    });
    HeadersStatus::Continue
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_response_body(
    stream: Handle,
    filter: *const c_void,
    is_end: bool,
) -> u32 {
    let on_panic = |stream, filter: &StreamFilter| filter.after_panic(&stream);
    run_stream_hook("response_body", (stream, filter), (), on_panic, |_, filter| {
        filter.on_response_body(is_end);
    });
    CONTINUE
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_response_trailers(
    stream: Handle,
    filter: *const c_void,
) -> u32 {
    let on_panic = |stream, filter: &StreamFilter| filter.after_panic(&stream);
    run_stream_hook("response_trailers", (stream, filter), (), on_panic, |stream, filter| {
        filter.on_response_trailers(&stream);
    });
    CONTINUE
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_scheduled(
    stream: Handle,
    filter: *const c_void,
    _event: u64,
) {
    let on_panic = |stream, filter: &StreamFilter| filter.after_scheduled_panic(stream);
    run_stream_hook("scheduled", (stream, filter), (), on_panic, |stream, filter| {
        filter.on_scheduled(stream);
    });
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_stream_complete(
    stream: Handle,
    filter: *const c_void,
) {
    let on_panic = |stream, filter: &StreamFilter| filter.after_panic(&stream);
    run_stream_hook("stream_complete", (stream, filter), (), on_panic, |stream, filter| {
        filter.on_stream_complete(&stream);
    });
}

#[unsafe(no_mangle)]
extern "C" fn envoy_dynamic_module_on_http_filter_destroy(filter: *const c_void) {
    if !filter.is_null() {
        let filter = filter.cast::<StreamFilter>();
        // SAFETY: Envoy returns the pointer once. A hook that runs now has its own reference.
        guard::run("destroy", (), || (), || drop(unsafe { Rc::from_raw(filter) }));
    }
}

/// Hooks that Envoy requires, and that do nothing here.
macro_rules! unused_hooks {
    ($($name:ident($($argument:ty),*) $(-> $result:ty = $value:expr)?;)*) => {$(
        #[unsafe(no_mangle)]
        extern "C" fn $name($(_: $argument),*) $(-> $result)? { $($value)? }
    )*};
}

unused_hooks! {
    envoy_dynamic_module_on_http_filter_request_body(Handle, *const c_void, bool) -> u32 = CONTINUE;
    envoy_dynamic_module_on_http_filter_request_trailers(Handle, *const c_void) -> u32 = CONTINUE;
    envoy_dynamic_module_on_http_filter_http_callout_done(Handle, *const c_void, u64, u32, *const HeaderPair, usize, *const Buffer, usize);
    envoy_dynamic_module_on_http_filter_http_stream_headers(Handle, *const c_void, u64, *const HeaderPair, usize, bool);
    envoy_dynamic_module_on_http_filter_http_stream_data(Handle, *const c_void, u64, *const Buffer, usize, bool);
    envoy_dynamic_module_on_http_filter_http_stream_trailers(Handle, *const c_void, u64, *const HeaderPair, usize);
    envoy_dynamic_module_on_http_filter_http_stream_complete(Handle, *const c_void, u64);
    envoy_dynamic_module_on_http_filter_http_stream_reset(Handle, *const c_void, u64, u32);
    envoy_dynamic_module_on_http_filter_downstream_above_write_buffer_high_watermark(Handle, *const c_void);
    envoy_dynamic_module_on_http_filter_downstream_below_write_buffer_low_watermark(Handle, *const c_void);
}
