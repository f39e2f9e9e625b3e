//! Receives permit releases in syslog datagrams that NGINX's `access_log` directive sends.
//!
//! Guarantees:
//! - A datagram that does not match the format of [`parse_release`] is dropped and counted.
//! - Datagrams from untrusted addresses are not parsed.
//!
//! Not covered: lost datagrams. Their permits expire after `max_duration`.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::Instant;

use crate::config::settings::Networks;
use crate::engine::fleet::forwarding::PermitUpdate;
use crate::engine::fleet::incarnation::is_incarnation_name;
use crate::engine::{Engine, validate_id};
use crate::kernel::concurrency::{ReportedOutcome, RequestOutcome, UpstreamAnswer};
use crate::kernel::units::Nanos;
use crate::telemetry::event::{DatagramKind, Event as _};
use crate::telemetry::reason_log::{DueLine, ReasonLog};

/// The largest accepted datagram: a request id of 128 bytes, an owner, and about forty response
/// times.
pub const MAX_DATAGRAM_BYTES: usize = 512;

/// The pause after a receive error, because a broken socket would otherwise cause a busy loop.
const RECEIVE_PAUSE: Duration = Duration::from_millis(100);

/// The largest difference by which Sluicegate's latency measurement may exceed NGINX's, which is
/// truncated to milliseconds. A larger difference is the time of a slow client.
const NGINX_TIME_TOLERANCE: Nanos = Nanos(1_500_000);
/// The mean error of NGINX's truncation to milliseconds.
const MEAN_TRUNCATION: Nanos = Nanos(500_000);

/// The status that NGINX logs if the client closed the connection before the response.
const CLIENT_CLOSED_REQUEST: u16 = 499;

/// A release of a request's permits, as NGINX logs it at the end of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyslogRelease<'d> {
    /// The request id.
    pub id: &'d str,
    /// The replica that owns the permits, if the datagram names it.
    pub owner: Option<&'d str>,
    /// The outcome of the request.
    pub outcome: ReportedOutcome,
    /// The upstream's latency, with a resolution of 1 ms. `None` if no upstream was called.
    pub rtt: Option<Nanos>,
}

/// Receives releases from `socket`. Never returns. Drops datagrams from addresses outside
/// `trusted`.
pub async fn serve(socket: UdpSocket, engine: Arc<Engine>, trusted: Networks) {
    // One byte more than the largest datagram, to detect a longer one.
    let mut buffer = [0; MAX_DATAGRAM_BYTES + 1];
    let mut errors = ReasonLog::new();
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((length, source)) => {
                let source = source.ip().to_canonical();
                let outcome = match buffer.get(..length) {
                    _ if !trusted.contains(source) => DatagramKind::UntrustedSource,
                    Some(datagram) if length <= MAX_DATAGRAM_BYTES => {
                        apply_datagram(&engine, source, datagram)
                    }
                    _ => DatagramKind::TooLong,
                };
                outcome.emit();
            }
            Err(error) => {
                if let Some(DueLine { times }) = errors.count(&error.to_string(), Instant::now()) {
                    tracing::warn!(%error, times, "failed to receive a syslog message, retrying");
                }
                tokio::time::sleep(RECEIVE_PAUSE).await;
            }
        }
    }
}

fn apply_datagram(engine: &Engine, source: IpAddr, datagram: &[u8]) -> DatagramKind {
    let Some(SyslogRelease { id, owner, outcome, rtt }) = parse_release(datagram) else {
        return DatagramKind::Malformed;
    };
    let rtt = rtt.map(|rtt| refine_rtt(rtt, engine.in_flight_for(id)));
    engine.apply_or_forward(PermitUpdate::release(id, Some(source), outcome, rtt), owner);
    DatagramKind::Release
}

/// Returns the more precise latency: Sluicegate's own `measured` latency, unless it is so much
/// longer than NGINX's that a slow client must have extended it.
#[must_use]
pub fn refine_rtt(nginx: Nanos, measured: Option<Nanos>) -> Nanos {
    measured
        .filter(|measured| *measured <= nginx.plus(NGINX_TIME_TOLERANCE))
        .unwrap_or_else(|| nginx.plus(MEAN_TRUNCATION))
}

/// Parses the release in a datagram, such as `<190>Nov 20 15:55:25 sluicegate: id=… status=200
/// done=OK owner=… rtt=0.012`. The owner is optional. Returns `None` for any other text.
#[must_use]
pub fn parse_release(datagram: &[u8]) -> Option<SyslogRelease<'_>> {
    let mut fields = strip_syslog_header(std::str::from_utf8(datagram).ok()?)?.splitn(4, ' ');
    let mut field = |name: &str| fields.next()?.strip_prefix(name);
    let id = field("id=").filter(|id| validate_id(id).is_ok())?;
    let status = field("status=")?;
    let status: u16 = (status.len() == 3).then(|| parse_digits(status)).flatten()?;
    let is_complete = match field("done=")? {
        "OK" => true,
        "" => false,
        _ => return None,
    };
    let (owner, rtt) = split_owner(fields.next()?)?;
    let rtt = parse_last_time(rtt.strip_prefix("rtt=")?).ok()?;
    let outcome = match status {
        _ if rtt.is_none() => RequestOutcome::Ignored.into(),
        CLIENT_CLOSED_REQUEST => RequestOutcome::Ignored.into(),
        _ => ReportedOutcome::Answered(UpstreamAnswer {
            http: Some(status),
            grpc: None,
            has_latency: is_complete,
            retry_after: None,
        }),
    };
    Some(SyslogRelease { id, owner, outcome, rtt })
}

/// Splits the optional field `owner=` from the text after it. Without an owner, NGINX writes no
/// value or `-`.
fn split_owner(text: &str) -> Option<(Option<&str>, &str)> {
    let Some(text) = text.strip_prefix("owner=") else { return Some((None, text)) };
    let (owner, rest) = text.split_once(' ')?;
    match owner {
        "" | "-" => Some((None, rest)),
        owner => is_incarnation_name(owner).then_some((Some(owner), rest)),
    }
}

/// Returns the text after the syslog priority, date and tag (RFC 3164, section 4.1). With NGINX's
/// option `nohostname`, the header has no host name.
fn strip_syslog_header(text: &str) -> Option<&str> {
    let (priority, text) = text.strip_prefix('<')?.split_once('>')?;
    let (date, text) = text.split_at_checked("Nov 20 15:55:25".len())?;
    let is_priority = parse_digits::<u16>(priority).is_some_and(|number| number <= 191);
    let is_date = date.bytes().enumerate().all(|(index, byte)| match index {
        0..3 => byte.is_ascii_alphabetic(),
        3 | 6 => byte == b' ',
        4 => byte == b' ' || byte.is_ascii_digit(),
        9 | 12 => byte == b':',
        _ => byte.is_ascii_digit(),
    });
    text.strip_prefix(" sluicegate: ").filter(|_| is_priority && is_date)
}

/// Returns the last time in NGINX's `$upstream_response_time`, which has one time for each upstream
/// attempt, separated by `, ` or ` : `. `-` means no attempt.
fn parse_last_time(text: &str) -> Result<Option<Nanos>, InvalidNginxTime> {
    let mut last = None;
    for time in text.split(" : ").flat_map(|group| group.split(", ")) {
        last = match time {
            "-" => last,
            time => Some(parse_seconds(time).ok_or(InvalidNginxTime)?),
        };
    }
    Ok(last)
}

struct InvalidNginxTime;

/// Parses seconds with three decimals, such as `1.234`.
fn parse_seconds(text: &str) -> Option<Nanos> {
    let (whole_seconds, milliseconds) = text.split_once('.')?;
    if milliseconds.len() != 3 {
        return None;
    }
    let seconds = parse_digits::<u64>(whole_seconds)?.checked_mul(Nanos::SECOND.0)?;
    let rest = parse_digits::<u64>(milliseconds)?.checked_mul(Nanos::MILLI.0)?;
    seconds.checked_add(rest).map(Nanos)
}

/// Parses decimal digits. Unlike `str::parse`, it rejects a sign.
fn parse_digits<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}
