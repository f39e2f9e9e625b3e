//! The binary interface of Envoy's dynamic modules, for HTTP filters. The only unsafe code.
//!
//! This file has Envoy's functions for streams. The child modules have its functions for configs,
//! and the hooks, which Envoy calls.
//!
//! Guarantees:
//! - Envoy's functions are found at run time, so the module loads in every Envoy.
//! - A missing function rejects the module with a message.
//!
//! Not covered:
//! - Signatures, which Envoy does not report: Envoy 1.38 to 1.40 are tested.
//!
//! Source: `source/extensions/dynamic_modules/abi/abi.h` of Envoy. [`EnvoyStream`] documents the
//! meaning of each function.
#![allow(unsafe_code)]

mod config;
mod hooks;

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::OnceLock;

use sluicegate_descriptors::filter_config::RouteFilterConfig;
use smallvec::SmallVec;

use crate::log::LogLevel;
use crate::stream::{
    CounterId, CounterSink, EnvoyStream, HeaderMap, HeaderValue, LocalResponse, WakeFn,
};

/// An object of Envoy.
type Handle = *mut c_void;

/// The number of the attribute `response.code_details`.
const RESPONSE_CODE_DETAILS: u32 = 16;

/// The number of the attribute `source.address`.
const SOURCE_ADDRESS: u32 = 24;

/// The source `Dynamic` of metadata.
const DYNAMIC_METADATA: u32 = 0;

/// Bytes of the module or of Envoy.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct Buffer {
    data: *const u8,
    length: usize,
}

/// A header of the module.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct HeaderPair {
    name: Buffer,
    value: Buffer,
}

macro_rules! callbacks {
    (
        $(#[$attribute:meta])*
        struct $table:ident { $($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)* }
    ) => {
        $(#[$attribute])*
        #[derive(Debug)]
        struct $table {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $table {
            /// Finds all functions.
            ///
            /// # Errors
            /// The names of the missing functions.
            fn find() -> Result<Self, Vec<&'static str>> {
                $(
                    let name = concat!("envoy_dynamic_module_callback_", stringify!($name), "\0");
                    // SAFETY: a null pointer is `None`. Envoy's function of this name has this type
                    // in all tested versions.
                    let $name = unsafe {
                        std::mem::transmute::<
                            $crate::abi::Handle,
                            Option<unsafe extern "C" fn($($argument),*) $(-> $result)?>,
                        >($crate::abi::find_symbol(name))
                    };
                )*
                match ($($name,)*) {
                    ($(Some($name),)*) => Ok(Self { $($name,)* }),
                    _ => {
                        let found = [$((stringify!($name), $name.is_some()),)*];
                        let missing = found.into_iter().filter(|(_, is_found)| !is_found);
                        Err(missing.map(|(name, _)| name).collect())
                    }
                }
            }
        }
    };
}
use callbacks;

callbacks! {
    /// Envoy's functions, by their names without the prefix.
    struct Callbacks {
        get_most_specific_route_config: fn(Handle) -> *const c_void;
        http_filter_config_define_counter: fn(Handle, Buffer, *const Buffer, usize, *mut usize) -> u32;
        http_filter_continue_decoding: fn(Handle);
        http_filter_get_attribute_string: fn(Handle, u32, *mut Buffer) -> bool;
        http_filter_increment_counter: fn(Handle, usize, *const Buffer, usize, u64) -> u32;
        http_filter_scheduler_commit: fn(Handle, u64);
        http_filter_scheduler_delete: fn(Handle);
        http_filter_scheduler_new: fn(Handle) -> Handle;
        http_get_header: fn(Handle, u32, Buffer, *mut Buffer, usize, *mut usize) -> bool;
        http_get_metadata_string: fn(Handle, u32, Buffer, Buffer, *mut Buffer) -> bool;
        http_send_response: fn(Handle, u32, *const HeaderPair, usize, Buffer, Buffer);
        http_set_dynamic_metadata_string: fn(Handle, Buffer, Buffer, Buffer);
        http_set_header: fn(Handle, u32, Buffer, Buffer) -> bool;
        is_validation_mode: fn() -> bool;
        log: fn(u32, Buffer);
    }
}

static CALLBACKS: OnceLock<Callbacks> = OnceLock::new();

/// Finds a function of Envoy by its name, which must end with a zero byte.
fn find_symbol(name: &str) -> Handle {
    let name = CStr::from_bytes_with_nul(name.as_bytes()).unwrap_or_default();
    // SAFETY: `name` ends with a zero byte, and `dlsym` only reads it.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

impl Buffer {
    const EMPTY: Self = Self { data: ptr::null(), length: 0 };

    const fn new(text: &str) -> Self {
        Self { data: text.as_ptr(), length: text.len() }
    }

    /// Returns the bytes.
    ///
    /// # Safety
    /// The buffer must be valid for `'b`.
    const unsafe fn bytes<'b>(self) -> &'b [u8] {
        if self.data.is_null() {
            return &[];
        }
        // SAFETY: the caller guarantees `length` bytes for `'b`.
        unsafe { std::slice::from_raw_parts(self.data, self.length) }
    }
}

/// A stream during one hook. Envoy's values are borrowed from it, so none outlives a change.
struct AbiStream {
    callbacks: &'static Callbacks,
    handle: Handle,
}

impl AbiStream {
    fn attribute(&self, number: u32) -> Option<&[u8]> {
        let mut value = Buffer::EMPTY;
        let get = self.callbacks.http_filter_get_attribute_string;
        // SAFETY: as in `header`.
        unsafe { get(self.handle, number, &raw mut value).then(|| value.bytes()) }
    }
}

impl CounterSink for AbiStream {
    fn increment(&self, counter: CounterId, labels: &[&str], value: u64) {
        let add = self.callbacks.http_filter_increment_counter;
        // SAFETY: the stream exists during the hook. `config_new` defined the counter.
        unsafe { increment_counter(add, self.handle, (counter, labels, value)) }
    }
}

impl EnvoyStream for AbiStream {
    fn header(&self, map: HeaderMap, name: &str, index: usize) -> Option<HeaderValue<'_>> {
        let (mut value, mut count) = (Buffer::EMPTY, 0);
        let (name, map) = (Buffer::new(name), map as u32);
        let get = self.callbacks.http_get_header;
        // SAFETY: all pointers are valid during the call. The value is valid until the next change,
        // which needs `&mut self`.
        let bytes = unsafe {
            get(self.handle, map, name, &raw mut value, index, &raw mut count)
                .then(|| value.bytes())?
        };
        Some(HeaderValue { bytes, count })
    }

    fn source_address(&self) -> Option<&[u8]> {
        self.attribute(SOURCE_ADDRESS)
    }

    fn response_code_details(&self) -> Option<&[u8]> {
        self.attribute(RESPONSE_CODE_DETAILS)
    }

    fn metadata_text(&self, namespace: &str, key: &str) -> Option<&[u8]> {
        let mut value = Buffer::EMPTY;
        let (namespace, key) = (Buffer::new(namespace), Buffer::new(key));
        let get = self.callbacks.http_get_metadata_string;
        // SAFETY: as in `header`.
        unsafe {
            get(self.handle, DYNAMIC_METADATA, namespace, key, &raw mut value)
                .then(|| value.bytes())
        }
    }

    fn route_config(&self) -> Option<&RouteFilterConfig> {
        // SAFETY: the pointer is null or comes from `per_route_config_new` of this module. The
        // stream's route keeps it alive during the hook.
        unsafe {
            let config = (self.callbacks.get_most_specific_route_config)(self.handle);
            config.cast::<RouteFilterConfig>().as_ref()
        }
    }

    fn set_metadata(&mut self, namespace: &str, key: &str, value: &str) {
        let [namespace, key, value] = [namespace, key, value].map(Buffer::new);
        // SAFETY: Envoy copies the texts.
        unsafe {
            (self.callbacks.http_set_dynamic_metadata_string)(self.handle, namespace, key, value);
        }
    }

    fn set_response_header(&mut self, name: &str, value: &str) {
        let (set, map) = (self.callbacks.http_set_header, HeaderMap::Response as u32);
        // SAFETY: Envoy copies the texts.
        let _is_set = unsafe { set(self.handle, map, Buffer::new(name), Buffer::new(value)) };
    }

    fn wake_fn(&self) -> Option<WakeFn> {
        // SAFETY: this runs on the stream's worker, as Envoy requires.
        let handle = unsafe { (self.callbacks.http_filter_scheduler_new)(self.handle) };
        let scheduler = Scheduler {
            commit: self.callbacks.http_filter_scheduler_commit,
            delete: self.callbacks.http_filter_scheduler_delete,
            handle,
        };
        (!handle.is_null()).then(|| -> WakeFn { Box::new(move || scheduler.commit()) })
    }

    fn send_response(self, response: &LocalResponse<'_>) {
        let pair = |(name, value): &(&'static str, String)| HeaderPair {
            name: Buffer::new(name),
            value: Buffer::new(value),
        };
        let headers: SmallVec<[HeaderPair; 8]> = response.headers.iter().map(pair).collect();
        let (body, details) = (Buffer::new(response.body), Buffer::new(response.details));
        let (send, status) = (self.callbacks.http_send_response, response.status.into());
        // SAFETY: Envoy copies the texts. `self` ends here, so nothing uses the stream later.
        unsafe {
            send(self.handle, status, headers.as_ptr(), headers.len(), body, details);
        }
    }

    fn continue_decoding(self) {
        // SAFETY: `self` ends here, so nothing uses the stream later.
        unsafe { (self.callbacks.http_filter_continue_decoding)(self.handle) }
    }
}

/// Makes Envoy call a hook of a stream or config. Envoy ignores it after their end.
struct Scheduler {
    commit: unsafe extern "C" fn(Handle, u64),
    delete: unsafe extern "C" fn(Handle),
    handle: Handle,
}

// SAFETY: Envoy allows commit and delete on any thread.
unsafe impl Send for Scheduler {}

// SAFETY: Envoy allows commits on several threads at once.
unsafe impl Sync for Scheduler {}

impl Scheduler {
    fn commit(&self) {
        // SAFETY: the scheduler exists until it is dropped.
        unsafe { (self.commit)(self.handle, 0) }
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // SAFETY: the module owns the scheduler, and deletes it once.
        unsafe { (self.delete)(self.handle) }
    }
}

/// A function of Envoy that adds to a counter.
type IncrementFn = unsafe extern "C" fn(Handle, usize, *const Buffer, usize, u64) -> u32;

/// Adds to a counter of a stream or config.
///
/// # Safety
/// `handle` must exist, and be of the type that `add` takes.
unsafe fn increment_counter(
    add: IncrementFn,
    handle: Handle,
    (CounterId(id), labels, value): (CounterId, &[&str], u64),
) {
    let labels: SmallVec<[Buffer; 2]> = labels.iter().map(|label| Buffer::new(label)).collect();
    // SAFETY: the labels are valid during the call. An unknown counter is only an error.
    let _status = unsafe { add(handle, id, labels.as_ptr(), labels.len(), value) };
}

fn write_log(level: LogLevel, message: &str) {
    if let Some(callbacks) = CALLBACKS.get() {
        // SAFETY: Envoy copies the message. Any thread may log.
        unsafe { (callbacks.log)(level as u32, Buffer::new(message)) }
    }
}
