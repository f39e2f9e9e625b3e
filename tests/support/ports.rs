//! Free ports for programs that cannot report a port of their own choice.
//!
//! Guarantees:
//! - Ports are below the ephemeral range, so no outgoing connection takes them.
//! - Nothing listens on a port when it is returned.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use super::dice::Dice;

/// The lowest port that is used. Ephemeral ports start at 32,768 on Linux and 49,152 on macOS.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// The next port to try. The random start avoids collisions with parallel test runs.
static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| {
    AtomicU16::new(u16::try_from(Dice::new(super::dice::seed()).up_to(u64::from(COUNT))).unwrap())
});

/// Returns a loopback address with a free port, different at each call.
pub fn free() -> SocketAddr {
    let turn = |_| FIRST + NEXT.fetch_add(1, Relaxed) % COUNT;
    let mut ports = (0..COUNT).map(turn).map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    ports.find(|address| TcpListener::bind(address).is_ok()).expect("every port is taken")
}

#[test]
fn free_ports_are_distinct_and_unused() {
    let (one, other) = (free(), free());
    assert_ne!(one, other);
    assert!(TcpListener::bind(one).is_ok() && TcpListener::bind(other).is_ok());
}
