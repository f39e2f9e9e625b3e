//! Writes to Envoy's log.
//!
//! Guarantees:
//! - Every thread may write.
//! - Before Envoy loaded the module, as in unit tests, messages are dropped.

use std::sync::OnceLock;

/// A log level, with Envoy's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum LogLevel {
    Warn = 3,
    Error = 4,
    Critical = 5,
}

static WRITER: OnceLock<fn(LogLevel, &str)> = OnceLock::new();

/// Sets the function that writes a message. Only the first call has an effect.
pub(crate) fn set_writer(writer: fn(LogLevel, &str)) {
    WRITER.get_or_init(|| writer);
}

/// Writes one message.
pub(crate) fn write(level: LogLevel, message: &str) {
    if let Some(writer) = WRITER.get() {
        writer(level, message);
    }
}
