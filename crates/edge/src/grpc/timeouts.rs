//! The timeouts of connections and of their messages.
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
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The time limit for receiving one message. Long, because a client that sends thousands of
/// messages at once may need seconds for each.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(15);

/// The timeouts of one gRPC port. The default values are the constants of this module.
#[derive(Clone, Copy, Debug)]
pub struct GrpcTimeouts {
    /// See [`PING_INTERVAL`].
    pub ping_interval: Duration,
    /// See [`IDLE_PING_INTERVAL`]. At least `ping_interval`.
    pub idle_ping_interval: Duration,
    /// See [`PERMIT_STREAM_PONG_TIMEOUT`].
    pub permit_stream_pong: Duration,
    /// See [`PONG_TIMEOUT`].
    pub pong: Duration,
    /// The timeout of the TLS handshake, and then of the HTTP/2 preface.
    pub handshake: Duration,
    /// The time limit for receiving one message.
    pub message: Duration,
}

impl Default for GrpcTimeouts {
    fn default() -> Self {
        Self {
            ping_interval: PING_INTERVAL,
            idle_ping_interval: IDLE_PING_INTERVAL,
            permit_stream_pong: PERMIT_STREAM_PONG_TIMEOUT,
            pong: PONG_TIMEOUT,
            handshake: HANDSHAKE_TIMEOUT,
            message: MESSAGE_TIMEOUT,
        }
    }
}

impl GrpcTimeouts {
    /// The idle timeout of a connection with a permit stream, after the HTTP/2 preface.
    pub(super) const fn permit_connection_idle_timeout(&self) -> Duration {
        self.ping_interval.saturating_add(self.permit_stream_pong)
    }

    /// The idle timeout of a connection without permit streams, after the HTTP/2 preface.
    pub(super) const fn idle(&self) -> Duration {
        self.idle_ping_interval.saturating_add(self.pong)
    }
}
