//! Releases of places by datagrams: what the stock `access_log` of NGINX sends when a request ends.
//!
//! Guarantees: a datagram is a release to the letter or is dropped and counted; one from an address
//! that is not trusted is not looked at. None is answered.
//! Leaves out: a datagram that is lost, whose place `max_duration` frees.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UdpSocket;

use crate::config::settings::Networks;
use crate::engine::peers::{Told, is_name};
use crate::engine::{Engine, check_id};
use crate::kernel::concurrency::Outcome;
use crate::kernel::units::Nanos;
use crate::telemetry::event::{Datagram, DatagramCame};

/// The longest release: an id of 128, an owner, and the times of some forty attempts.
pub const LONGEST: usize = 512;

/// The pause after a failed receive: without it a broken socket spins.
const PAUSE: Duration = Duration::from_millis(100);

/// How much longer than NGINX's time, which is in milliseconds and cut, the time from here to here may
/// be and still be the better measurement: beyond it a slow client had its part in it.
const COARSE: Nanos = Nanos(1_500_000);
/// What is cut off on average.
const CUT: Nanos = Nanos(500_000);

/// What the client closed before there was an answer; NGINX's own.
const CLIENT_LEFT: u16 = 499;

/// What a release says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended<'d> {
    /// The request's id.
    pub id: &'d str,
    /// Who holds its place, where that is said.
    pub owner: Option<&'d str>,
    /// How it went.
    pub outcome: Outcome,
    /// How long the upstream took, to the millisecond; `None` where none was asked.
    pub rtt: Option<Nanos>,
}

/// Takes releases from `socket` for ever.
pub async fn serve(socket: UdpSocket, engine: Arc<Engine>, from: Networks) {
    // One byte more than a release has: what fills it is too long.
    let mut buffer = [0; LONGEST + 1];
    loop {
        match socket.recv_from(&mut buffer).await {
            Ok((length, source)) => {
                let source = source.ip().to_canonical();
                let outcome = match buffer.get(..length) {
                    _ if !from.contain(source) => Datagram::Foreign,
                    Some(datagram) if length <= LONGEST => take(&engine, source, datagram),
                    _ => Datagram::TooLong,
                };
                DatagramCame { outcome }.emit();
            }
            Err(error) => {
                tracing::warn!(%error, "a release could not be received");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn take(engine: &Engine, source: IpAddr, datagram: &[u8]) -> Datagram {
    let Some(Ended { id, owner, outcome, rtt }) = ended(datagram) else {
        return Datagram::Malformed;
    };
    let rtt = rtt.map(|rtt| refined(rtt, engine.held_for(id)));
    engine.tell(Told::ended(id, Some(source), outcome, rtt), owner);
    Datagram::Read
}

/// The better of NGINX's time and our own.
#[must_use]
pub fn refined(nginx: Nanos, own: Option<Nanos>) -> Nanos {
    own.filter(|own| *own <= nginx.plus(COARSE)).unwrap_or_else(|| nginx.plus(CUT))
}

/// Reads `<190>Nov 20 15:55:25 sluicegate: id=… status=200 done=OK owner=… rtt=0.012`, with or without the owner, and
/// nothing else.
#[must_use]
pub fn ended(datagram: &[u8]) -> Option<Ended<'_>> {
    let mut fields = message(std::str::from_utf8(datagram).ok()?)?.splitn(4, ' ');
    let mut field = |name: &str| fields.next()?.strip_prefix(name);
    let id = field("id=").filter(|id| check_id(id).is_ok())?;
    let status = field("status=")?;
    let status: u16 = (status.len() == 3).then(|| whole(status)).flatten()?;
    let complete = match field("done=")? {
        "OK" => true,
        "" => false,
        _ => return None,
    };
    let (owner, rtt) = owned(fields.next()?)?;
    let rtt = last_time(rtt.strip_prefix("rtt=")?).ok()?;
    let outcome = match status {
        _ if rtt.is_none() => Outcome::Ignored,
        500.. => Outcome::Dropped,
        100..500 if complete && status != CLIENT_LEFT => Outcome::Success,
        _ => Outcome::Ignored,
    };
    Some(Ended { id, owner, outcome, rtt })
}

/// The owner before the rest. NGINX writes nothing, or `-`, where nobody is named.
fn owned(text: &str) -> Option<(Option<&str>, &str)> {
    let Some(text) = text.strip_prefix("owner=") else { return Some((None, text)) };
    let (owner, rest) = text.split_once(' ')?;
    match owner {
        "" | "-" => Some((None, rest)),
        owner => is_name(owner).then_some((Some(owner), rest)),
    }
}

/// What stands behind the priority, the date and the tag. Source: RFC 3164, section 4.1, as NGINX
/// writes it with `nohostname`.
fn message(text: &str) -> Option<&str> {
    let (priority, text) = text.strip_prefix('<')?.split_once('>')?;
    let (date, text) = text.split_at_checked("Nov 20 15:55:25".len())?;
    let is_priority = whole::<u16>(priority).is_some_and(|number| number <= 191);
    let is_date = date.bytes().enumerate().all(|(at, byte)| match at {
        0..3 => byte.is_ascii_alphabetic(),
        3 | 6 => byte == b' ',
        4 => byte == b' ' || byte.is_ascii_digit(),
        9 | 12 => byte == b':',
        _ => byte.is_ascii_digit(),
    });
    text.strip_prefix(" sluicegate: ").filter(|_| is_priority && is_date)
}

/// The last of NGINX's times: one for each attempt, after `, ` or ` : `; `-` where none was made.
fn last_time(text: &str) -> Result<Option<Nanos>, NoTime> {
    let mut last = None;
    for part in text.split(" : ").flat_map(|group| group.split(", ")) {
        last = match part {
            "-" => last,
            time => Some(seconds(time).ok_or(NoTime)?),
        };
    }
    Ok(last)
}

/// What stands where a time should.
struct NoTime;

/// `1.234` in seconds.
fn seconds(text: &str) -> Option<Nanos> {
    let (whole_seconds, milliseconds) = text.split_once('.')?;
    if milliseconds.len() != 3 {
        return None;
    }
    let seconds = whole::<u64>(whole_seconds)?.checked_mul(Nanos::SECOND.0)?;
    let rest = whole::<u64>(milliseconds)?.checked_mul(Nanos::MILLI.0)?;
    seconds.checked_add(rest).map(Nanos)
}

/// Digits alone: `parse` takes a sign as well.
fn whole<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}
