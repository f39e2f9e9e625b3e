//! Sends the lines of statistics over TCP or UDP, or to the log.
//!
//! Guarantees:
//! - Up to [`MAX_WAITING_BYTES`] bytes of unsent lines are queued. Further lines are dropped, with
//!   a warning.
//! - After a TCP connection broke, only a partly sent line is sent again, as a whole.
//! - A datagram is sent again if the operating system reports that the receiver refused it.
//!
//! Not covered:
//! - Data that the operating system had accepted before a TCP connection broke. Such data is lost.
//! - Datagrams in transit when a remote host refuses one. These datagrams are lost.
//! - If a refusal is reported while a datagram is sent, this datagram may arrive twice.

use std::collections::VecDeque;
use std::fmt;
use std::io::Write as _;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpStream, UdpSocket, lookup_host};
use tokio::time::timeout;

use crate::config::settings::{HostPort, Settings, StatsSink};

const MAX_WAITING_BYTES: usize = 4 << 20;
/// The timeout of one attempt to send statistics, or of one lookup of the receiver's host name.
const SEND_TIMEOUT: Duration = Duration::from_secs(3);
/// The maximum size of one write to a TCP connection, in bytes.
const MAX_WRITE_BYTES: usize = 64 << 10;
/// The maximum size of a datagram with several lines, in bytes: one Ethernet frame.
const MAX_DATAGRAM_BYTES: usize = 1432;
/// The maximum size of a datagram with one line, in bytes: 65,535 without the IP and UDP headers.
const MAX_LINE_BYTES: usize = 65_507;

pub(super) struct StatsSender {
    pub(super) destination: StatsDestination,
    waiting: VecDeque<String>,
    bytes: usize,
    is_failing: bool,
}

pub(super) enum StatsDestination {
    Log,
    Tcp(HostPort, Option<TcpStream>),
    Udp(HostPort, Option<UdpSocket>),
}

impl StatsSender {
    pub(super) fn from_settings(settings: &Settings) -> Self {
        let to = match (&settings.compat.stats.address, settings.compat.stats.sink) {
            (None, _) | (_, StatsSink::Log | StatsSink::None) => StatsDestination::Log,
            (Some(at), StatsSink::Statsd) => StatsDestination::Tcp(at.clone(), None),
            (Some(at), _) => StatsDestination::Udp(at.clone(), None),
        };
        Self { destination: to, waiting: VecDeque::new(), bytes: 0, is_failing: false }
    }

    pub(super) fn enqueue(&mut self, lines: Vec<String>) {
        let mut dropped = 0_u64;
        for line in lines {
            if MAX_WAITING_BYTES < self.bytes + line.len() {
                dropped += 1;
                continue;
            }
            self.bytes += line.len() + 1;
            self.waiting.push_back(line + "\n");
        }
        if dropped != 0 {
            tracing::warn!(dropped, "statistics dropped, the send queue is full");
        }
    }

    /// Sends the queued lines of statistics until an error occurs.
    pub(super) async fn send(&mut self) {
        let can_prove_delivery = self.destination.can_prove_delivery();
        let sent = timeout(SEND_TIMEOUT, self.destination.send(&mut self.waiting)).await;
        let error = match sent {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error),
            Err(_) => Some(std::io::ErrorKind::TimedOut.into()),
        };
        self.bytes = self.waiting.iter().map(String::len).sum();
        if let Some(error) = &error {
            self.destination.close();
            if !self.is_failing {
                tracing::warn!(to = %self.destination, %error, "failed to send statistics, retrying");
            }
        }
        self.is_failing = error.is_some() || (self.is_failing && !can_prove_delivery);
    }
}

impl fmt::Display for StatsDestination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log => f.write_str("the log"),
            Self::Tcp(at, _) => write!(f, "{}:{} (tcp)", at.host, at.port),
            Self::Udp(at, _) => write!(f, "{}:{} (udp)", at.host, at.port),
        }
    }
}

impl StatsDestination {
    pub(super) async fn send(&mut self, waiting: &mut VecDeque<String>) -> std::io::Result<()> {
        match self {
            Self::Log => {
                let text: String = waiting.iter().map(String::as_str).collect();
                std::io::stderr().lock().write_all(text.as_bytes())?;
                waiting.clear();
            }
            // An error or a timeout drops `stream`, and so closes the connection.
            Self::Tcp(at, connection) => {
                let mut stream = match connection.take().filter(is_open) {
                    Some(stream) => stream,
                    None => TcpStream::connect((at.host.as_str(), at.port)).await?,
                };
                write_lines(&mut stream, waiting).await?;
                *connection = Some(stream);
            }
            Self::Udp(at, held) => {
                let socket = match held.take() {
                    Some(socket) => socket,
                    None => connect_udp(at).await?,
                };
                send_datagrams(&socket, waiting).await?;
                *held = Some(socket);
            }
        }
        Ok(())
    }

    /// Resolves the receiver's host name again, and opens a new UDP socket. The new source port
    /// avoids stale NAT entries. If the lookup fails, nothing changes.
    pub(super) async fn resolve_again(&mut self) {
        let Self::Udp(at, Some(socket)) = self else { return };
        if let Ok(Ok(replacement)) = timeout(SEND_TIMEOUT, connect_udp(at)).await {
            *socket = replacement;
        }
    }

    /// Returns `true` if a successful send would prove that a receiver exists. The
    /// first datagram of a socket proves nothing, because a refusal arrives later.
    const fn can_prove_delivery(&self) -> bool {
        !matches!(self, Self::Udp(_, None))
    }

    fn close(&mut self) {
        match self {
            Self::Log => {}
            Self::Tcp(_, stream) => *stream = None,
            Self::Udp(_, socket) => *socket = None,
        }
    }
}

/// Returns `true` if the receiver has not closed the connection. Discards data that the receiver
/// sent.
fn is_open(stream: &TcpStream) -> bool {
    match stream.try_read(&mut [0; 64]) {
        Ok(length) => length != 0,
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    }
}

/// Writes the queued lines. Removes a line from the queue only after the operating system has
/// accepted all of it.
async fn write_lines(to: &mut TcpStream, waiting: &mut VecDeque<String>) -> std::io::Result<()> {
    let mut partial_len = 0;
    while let Some((text, _)) = next_packet(waiting, MAX_WRITE_BYTES) {
        let rest = text.as_bytes().get(partial_len..).unwrap_or_default();
        let taken = to.write(rest).await?;
        if taken == 0 {
            return Err(std::io::ErrorKind::WriteZero.into());
        }
        partial_len = remove_sent(waiting, partial_len + taken);
    }
    Ok(())
}

/// Removes the queued lines that end within the first `taken` bytes. Returns the number of accepted
/// bytes of the next line.
fn remove_sent(waiting: &mut VecDeque<String>, mut taken: usize) -> usize {
    while let Some(length) = waiting.front().map(String::len).filter(|length| *length <= taken) {
        taken -= length;
        waiting.pop_front();
    }
    taken
}

async fn send_datagrams(to: &UdpSocket, waiting: &mut VecDeque<String>) -> std::io::Result<()> {
    while let Some((text, lines)) = next_packet(waiting, MAX_DATAGRAM_BYTES) {
        let text = text.trim_end();
        if MAX_LINE_BYTES < text.len() {
            tracing::warn!(bytes = text.len(), "statistic dropped, too long for a datagram");
        } else {
            to.send(text.as_bytes()).await?;
            // The operating system reports a refused datagram after the send: at once for this
            // host, at the next datagram for a remote host.
            to.take_error()?.map_or(Ok(()), Err)?;
        }
        waiting.drain(..lines);
    }
    Ok(())
}

/// Joins queued lines up to the given number of bytes, but at least one line. Also returns the
/// number of lines.
fn next_packet(waiting: &VecDeque<String>, max_bytes: usize) -> Option<(String, usize)> {
    let mut lines = waiting.iter();
    let (mut packet, mut count) = (lines.next()?.clone(), 1);
    for line in lines {
        if max_bytes < packet.len() + line.len() {
            break;
        }
        packet.push_str(line);
        count += 1;
    }
    Some((packet, count))
}

async fn connect_udp(at: &HostPort) -> std::io::Result<UdpSocket> {
    let found = lookup_host((at.host.as_str(), at.port)).await?.next();
    let address = found.ok_or(std::io::ErrorKind::NotFound)?;
    let local_address = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = UdpSocket::bind(local_address).await?;
    socket.connect(address).await?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use socket2::SockRef;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;
    use tokio::task::yield_now;

    use super::*;

    const DEADLINE: Duration = Duration::from_secs(180);
    /// A wait that is long enough to show that a send is blocked.
    const MOMENT: Duration = Duration::from_millis(100);

    fn address(of: SocketAddr) -> HostPort {
        HostPort { host: of.ip().to_string(), port: of.port() }
    }

    fn sink(to: StatsDestination) -> StatsSender {
        StatsSender { destination: to, waiting: VecDeque::new(), bytes: 0, is_failing: false }
    }

    fn joined(waiting: &VecDeque<String>) -> String {
        waiting.iter().map(String::as_str).collect()
    }

    /// Returns the text and the source port of the next datagram.
    async fn receive_datagram(socket: &UdpSocket) -> (String, u16) {
        let mut bytes = [0; 2_048];
        let (length, from) =
            timeout(DEADLINE, socket.recv_from(&mut bytes)).await.expect("in time").unwrap();
        (String::from_utf8(bytes[..length].to_vec()).unwrap(), from.port())
    }

    #[test]
    fn statistics_share_datagrams_of_up_to_1432_bytes() {
        // StatsD recommends 1432 bytes for fast Ethernet
        // (docs/metric_types.md, "Multi-Metric Packets").
        let of = |its: [usize; 3]| -> Vec<usize> {
            let mut waiting: VecDeque<_> = its.map(|length| "x".repeat(length)).into();
            let next = || {
                let (packet, lines) = next_packet(&waiting, MAX_DATAGRAM_BYTES)?;
                waiting.drain(..lines);
                Some(packet.len())
            };
            std::iter::from_fn(next).collect()
        };
        assert_eq!(of([700, 732, 1]), [1_432, 1]);
        assert_eq!(of([700, 733, 1]), [700, 734]);
        // A single line that is longer than 1432 bytes is still sent.
        assert_eq!(of([1_433, 1_431, 1]), [1_433, 1_432]);
    }

    #[tokio::test]
    async fn a_send_timeout_keeps_exactly_the_unsent_statistics() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        // The buffers of both sides are far smaller than the data.
        SockRef::from(&listener).set_recv_buffer_size(64 << 10).unwrap();
        let sender = TcpStream::connect(at).await.unwrap();
        SockRef::from(&sender).set_send_buffer_size(64 << 10).unwrap();
        let (mut receiver, _) = listener.accept().await.unwrap();
        let lines = (0..4_096).map(|nth| format!("{nth}:{}|c\n", "1".repeat(1_024)));
        let mut waiting: VecDeque<_> = lines.collect();
        let all = joined(&waiting);
        let mut to = StatsDestination::Tcp(address(at), Some(sender));
        assert!(timeout(MOMENT, to.send(&mut waiting)).await.is_err(), "nobody reads");
        // The timeout has closed the connection, so the receiver reads everything that the
        // operating system had accepted.
        let mut taken = String::new();
        timeout(DEADLINE, receiver.read_to_string(&mut taken)).await.expect("in time").unwrap();
        let (whole, partial) = taken.split_at(taken.rfind('\n').map_or(0, |end| end + 1));
        assert!(waiting.front().is_some_and(|line| line.starts_with(partial)));
        let both = whole.to_owned() + &joined(&waiting);
        assert!(both == all, "{} bytes of {}: lost, or there twice", both.len(), all.len());
    }

    #[tokio::test]
    async fn statistics_reconnect_after_the_receiver_closed_the_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut sink = sink(StatsDestination::Tcp(address(listener.local_addr().unwrap()), None));
        for line in ["a:1|c", "b:2|c"] {
            sink.enqueue(vec![line.to_owned()]);
            sink.send().await;
            let accepted = timeout(DEADLINE, listener.accept()).await.expect("it calls again");
            let (mut stream, mut bytes) = (accepted.unwrap().0, [0; 6]);
            timeout(DEADLINE, stream.read_exact(&mut bytes)).await.expect("in time").unwrap();
            assert_eq!(&bytes[..], format!("{line}\n").as_bytes());
            drop(stream);
            let StatsDestination::Tcp(_, Some(held)) = &sink.destination else {
                panic!("the connection is kept")
            };
            timeout(DEADLINE, held.readable()).await.expect("the end comes").unwrap();
        }
    }

    #[tokio::test]
    async fn a_refused_datagram_is_sent_again_when_a_receiver_listens() {
        // This socket accepts only its own datagrams. For all other senders, the port is closed.
        let nobody = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let at = nobody.local_addr().unwrap();
        nobody.connect(at).await.unwrap();
        let mut sink = sink(StatsDestination::Udp(address(at), None));
        let until_refused = async {
            while !sink.is_failing {
                if sink.waiting.is_empty() {
                    sink.enqueue(vec!["a:1|c".to_owned()]);
                }
                sink.send().await;
                yield_now().await;
            }
        };
        timeout(DEADLINE, until_refused).await.expect("it is noticed");
        assert_eq!(sink.waiting, ["a:1|c\n"]);
        drop(nobody);
        let somebody = UdpSocket::bind(at).await.unwrap();
        sink.send().await;
        assert_eq!(receive_datagram(&somebody).await.0, "a:1|c");
        assert!(sink.waiting.is_empty());
        // `is_failing` stays set, so that a new outage is logged only after this one has certainly
        // ended.
        assert!(sink.is_failing, "one datagram proves nothing");
        sink.enqueue(vec!["b:1|c".to_owned()]);
        sink.send().await;
        assert_eq!(receive_datagram(&somebody).await.0, "b:1|c");
        assert!(!sink.is_failing);
    }

    #[tokio::test]
    async fn an_oversized_statistic_is_dropped_and_others_are_sent() {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut sink = sink(StatsDestination::Udp(address(socket.local_addr().unwrap()), None));
        sink.enqueue(vec!["x".repeat(MAX_LINE_BYTES + 1), "a:1|c".to_owned()]);
        sink.send().await;
        assert_eq!(receive_datagram(&socket).await.0, "a:1|c");
        assert!(sink.waiting.is_empty() && !sink.is_failing);
    }

    #[tokio::test]
    async fn a_repeated_host_lookup_opens_a_new_source_port() {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let mut sink = sink(StatsDestination::Udp(address(socket.local_addr().unwrap()), None));
        sink.destination.resolve_again().await;
        let mut ports = Vec::new();
        for line in ["a:1|c", "b:1|c"] {
            sink.enqueue(vec![line.to_owned()]);
            sink.send().await;
            let (text, port) = receive_datagram(&socket).await;
            assert_eq!(text, line);
            ports.push(port);
            sink.destination.resolve_again().await;
        }
        assert_ne!(ports[0], ports[1]);
    }
}
