//! The timeouts of connections.
//!
//! Not covered:
//! - Timeouts of calls.

use std::time::Duration;

/// The time without received bytes after which the server sends an HTTP/2 ping on a connection with
/// a permit stream.
pub const PING_INTERVAL: Duration = Duration::from_millis(500);

/// As [`PING_INTERVAL`], on connections without a permit stream. Long, because ten thousand idle
/// connections would otherwise cost half a core.
pub const IDLE_PING_INTERVAL: Duration = Duration::from_secs(30);

/// The timeout for any byte after an HTTP/2 ping, on a connection with a permit stream.
///
/// A permit stream is a call whose end releases permits: `ext_proc` or `Permits.Session`. If a
/// proxy's machine fails, the operating system may keep its connection open for hours. With
/// this timeout, the permits of its requests are released after two seconds.
pub const PERMIT_STREAM_PONG_TIMEOUT: Duration = Duration::from_millis(1_500);

/// The timeout for any byte after an HTTP/2 ping, on a connection without permit streams. Long, so
/// that a proxy that was paused for some seconds keeps its connection.
///
/// With a permit stream, it is the timeout for the reply to a ping, even if other bytes arrive.
pub const PONG_TIMEOUT: Duration = Duration::from_secs(20);

/// The timeout of the TLS handshake, and then of the HTTP/2 preface.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
