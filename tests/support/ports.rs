//! Ports for what cannot be told to take any and say which, and ports where nobody listens.
//!
//! They lie below those that the system hands out by itself, to connections and to whoever asks for any: else another
//! test's connection could be there first, or somebody else listen where nobody is to.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

use super::dice::Dice;

/// Above the ports that are known by number, and below the least that Linux and macOS hand out: 32,768 and 49,152.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// Counted on from a place of its own, for other runs of the tests count as well.
static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| {
    AtomicU16::new(u16::try_from(Dice::new(super::dice::seed()).up_to(u64::from(COUNT))).unwrap())
});

/// An address of loopback at which nobody listens, another one at each call.
pub fn free() -> SocketAddr {
    let turn = |_| FIRST + NEXT.fetch_add(1, Relaxed) % COUNT;
    let mut ports = (0..COUNT).map(turn).map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    ports.find(|address| TcpListener::bind(address).is_ok()).expect("every port is taken")
}

#[test]
fn ports_differ_and_nobody_listens_there() {
    let (one, other) = (free(), free());
    assert_ne!(one, other);
    assert!(TcpListener::bind(one).is_ok() && TcpListener::bind(other).is_ok());
}
