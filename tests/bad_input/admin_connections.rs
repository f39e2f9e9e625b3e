//! Tests of a client that opens very many connections to the admin port.
//!
//! Guarantees:
//! - Checks over HTTP and gRPC succeed meanwhile.
//! - The memory of the process grows by less than 64 MB.
//! - The port refuses connections above its maximum, and serves again afterwards.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

use super::{Fixture, LIMITS, k};
use crate::support::http1;
use crate::support::waiting::{PATIENCE, now, until};

/// Connections that send nothing. Fewer if the limit on open files is lower.
const SILENT: u64 = 10_000;

/// Connections that send [`REQUESTS`] requests and never read a reply.
const UNREAD: u64 = 1_000;

/// Their replies, 70 MB, are larger than the buffers of both sockets.
const REQUESTS: usize = 200;

/// Files that other tests of this process may have open.
const OTHER_FILES: u64 = 1_000;

/// The largest number of open connections of the admin port.
const ADMITTED: u64 = 64;

/// The timeouts of the admin port for an idle connection and for unread replies, at least.
const TIMEOUT: Duration = Duration::from_secs(30);

const MAX_GROWTH_KB: u64 = 64_000;

/// Checks of each protocol in each phase of an attack.
const CHECKS: u64 = 10;

const GOOD: &[u8] = br#"{"domain":"d","descriptors":[{"entries":[{"key":"k","value":"good"}]}]}"#;

const OPEN: &str = "sluicegate_connections_open{port=\"admin\"}";
const REFUSED: &str = "sluicegate_connections_refused_total{port=\"admin\"}";

#[test]
fn ten_thousand_silent_connections_to_the_admin_port_are_harmless() {
    let count = SILENT.min(raise_open_file_limit(SILENT + OTHER_FILES) - OTHER_FILES);
    assert_harmless(LIMITS, count, connect);
}

#[test]
fn unread_replies_of_the_admin_port_are_harmless() {
    raise_open_file_limit(UNREAD + OTHER_FILES);
    let requests = "GET /rules HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(REQUESTS);
    assert_harmless(&many_rules(), UNREAD, |admin| {
        let mut stream = connect_with_small_buffers(admin);
        // Fails, like `peek`, if the port refused the connection and closed it.
        let _ = stream.write_all(requests.as_bytes());
        let mut reply = [0; 12];
        if let Ok(12) = stream.peek(&mut reply) {
            assert!([b"HTTP/1.1 200", b"HTTP/1.1 503"].contains(&&reply), "{reply:?}");
        }
        stream
    });
}

/// [`LIMITS`], and enough further rules for the largest reply of `/rules`.
fn many_rules() -> String {
    (0..1_000).fold(LIMITS.to_owned(), |mut text, rule| {
        let limit = "rate_limit: {unit: day, requests_per_unit: 1}";
        let _ = writeln!(text, "- key: rule-{rule}\n  {limit}");
        text
    })
}

/// Opens `count` connections to the admin port with `open`, and asserts the guarantees of this
/// module while they are open.
fn assert_harmless(limits: &str, count: u64, open: impl Fn(SocketAddr) -> TcpStream + Sync) {
    let mut fixture = Fixture::with(limits, &[]);
    let admin = fixture.service.admin;
    assert_checks_succeed(&fixture, 0);
    let before = memory_kb(&fixture, "VmRSS:");
    let began = now();
    let open_all = || (0..count).map(|_| open(admin)).collect::<Vec<_>>();
    let mut attackers = std::thread::scope(|scope| {
        let attackers = scope.spawn(open_all);
        assert_checks_succeed(&fixture, 1);
        attackers.join().unwrap()
    });
    // On a slow machine, the first connections have timed out. Others replace them.
    wait_until_full(&fixture, || {
        let replaced = attackers.len().min(usize::try_from(ADMITTED).unwrap());
        attackers.drain(..replaced);
        attackers.extend((0..replaced).map(|_| open(admin)));
    });
    // A connection that timed out made room for another one.
    let rounds = began.elapsed().as_secs() / TIMEOUT.as_secs() + 1;
    let refused = fixture.metric(REFUSED);
    assert!(count - rounds * ADMITTED <= refused, "{refused} of {count} were refused");
    assert_checks_succeed(&fixture, 2);
    let grown = memory_kb(&fixture, "VmHWM:").saturating_sub(before);
    assert!(grown < MAX_GROWTH_KB, "{count} connections: {grown} kB more than {before} kB");
    drop(attackers);
    until("the admin port serves", || match http1::get(admin, "/config", &[]) {
        Ok(reply) if reply.status == 200 => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
    assert!(fixture.service.is_alive(), "{}", fixture.service.log());
}

/// Sends checks in the given phase of the test. Each one charges one hit of the limit of 100.
fn assert_checks_succeed(fixture: &Fixture, phase: u32) {
    let sent = phase * u32::try_from(2 * CHECKS).unwrap();
    for check in 0..u32::try_from(CHECKS).unwrap() {
        let reply = fixture.json(GOOD);
        assert_eq!(reply.status, 200, "phase {phase}: {}", reply.text());
        let status = &fixture.check(vec![k("good")]).statuses[0];
        assert_eq!(status.limit_remaining, 98 - sent - 2 * check, "phase {phase}");
    }
}

/// Waits until the port has [`ADMITTED`] open connections and refuses another one. Calls `attack`
/// after each other state.
fn wait_until_full(fixture: &Fixture, mut attack: impl FnMut()) {
    let refusal = until("a full admin port", || {
        let reply = http1::get(fixture.service.admin, "/config", &[]);
        let reply = reply.map_err(|error| error.to_string())?;
        match (reply.status, fixture.metric(OPEN)) {
            (503, ADMITTED) => Ok(reply.text()),
            state => {
                attack();
                Err(format!("{state:?}"))
            }
        }
    });
    let refusal = refusal.unwrap();
    assert!(refusal.contains("too many connections: the maximum is 64"), "{refusal}");
}

fn connect(admin: SocketAddr) -> TcpStream {
    connect_socket(Socket::new(Domain::IPV4, Type::STREAM, None).unwrap(), admin)
}

/// Connects with a small receive buffer. The segment size also limits the service's send buffer.
fn connect_with_small_buffers(admin: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    socket.set_tcp_mss(536).unwrap();
    connect_socket(socket, admin)
}

fn connect_socket(socket: Socket, admin: SocketAddr) -> TcpStream {
    socket.connect_timeout(&admin.into(), PATIENCE).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket.set_write_timeout(Some(PATIENCE)).unwrap();
    // A reset at the end: otherwise each connection would occupy a port for a minute.
    socket.set_linger(Some(Duration::ZERO)).unwrap();
    socket.into()
}

/// Raises the limit on open files of this process to `wanted`, or as far as possible. Returns it.
fn raise_open_file_limit(wanted: u64) -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let limit = wanted.min(maximum.unwrap_or(wanted)).max(current.unwrap_or(wanted));
    setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum }).unwrap();
    assert!(2 * OTHER_FILES <= limit, "only {limit} open files are allowed: raise ulimit -n");
    limit
}

/// Memory of the process in kB: `VmRSS:` now, `VmHWM:` at most so far (proc(5)).
pub(super) fn memory_kb(fixture: &Fixture, field: &str) -> u64 {
    let path = format!("/proc/{}/status", fixture.service.id());
    let status = std::fs::read_to_string(path).unwrap();
    let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_suffix(" kB"));
    value.unwrap().trim().parse().unwrap()
}
