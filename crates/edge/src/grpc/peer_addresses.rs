//! Counts the open connections of the gRPC port by the address of the proxy.
//!
//! Guarantees:
//! - At most [`MAX_ADDRESSES`] addresses are counted; connections of further ones are left out.
//! - A closed connection is no longer counted.
//!
//! Not covered:
//! - Connections of a Unix socket, which have no address.
//! - Proxies behind a load balancer or a network address translation: they share its address.

use std::collections::BTreeMap;
use std::net::IpAddr;

use parking_lot::Mutex;
use tonic::transport::server::TcpConnectInfo;

/// The largest number of addresses.
pub const MAX_ADDRESSES: usize = 10_000;

/// The open connections of this process. A static as [`METRICS`](crate::telemetry::metrics).
static CONNECTIONS: Mutex<BTreeMap<IpAddr, u64>> = Mutex::new(BTreeMap::new());

/// Counts a connection until it is dropped.
#[derive(Debug)]
pub(super) struct CountedConnection(Option<IpAddr>);

impl CountedConnection {
    pub(super) fn new(connection: &TcpConnectInfo) -> Self {
        let address = connection.remote_addr().map(|peer| peer.ip().to_canonical());
        Self(address.filter(|address| add(&mut CONNECTIONS.lock(), *address)))
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        if let Some(address) = self.0 {
            remove(&mut CONNECTIONS.lock(), address);
        }
    }
}

/// Returns the `max` addresses with the most open connections, and their numbers.
#[must_use]
pub fn busiest_addresses(max: usize) -> Vec<(IpAddr, u64)> {
    let mut all: Vec<_> =
        CONNECTIONS.lock().iter().map(|(address, count)| (*address, *count)).collect();
    all.sort_by_key(|(address, count)| (std::cmp::Reverse(*count), *address));
    all.truncate(max);
    all
}

/// Counts a connection. Returns `false` if the address is new and there are too many.
fn add(connections: &mut BTreeMap<IpAddr, u64>, address: IpAddr) -> bool {
    if connections.len() >= MAX_ADDRESSES && !connections.contains_key(&address) {
        return false;
    }
    *connections.entry(address).or_default() += 1;
    true
}

fn remove(connections: &mut BTreeMap<IpAddr, u64>, address: IpAddr) {
    if let Some(count) = connections.get_mut(&address) {
        *count = count.saturating_sub(1);
        if *count == 0 {
            connections.remove(&address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_removed_with_its_last_connection() {
        let mut connections = BTreeMap::new();
        let address = IpAddr::from([10, 0, 0, 7]);
        assert!(add(&mut connections, address) && add(&mut connections, address));
        remove(&mut connections, address);
        assert_eq!(connections.get(&address), Some(&1));
        remove(&mut connections, address);
        assert!(connections.is_empty());
    }
}
