//! The bounds of the streams and records of one peer: the holder of a client certificate, or an
//! address.
//!
//! Guarantees:
//! - A peer has at most [`MAX_PEER_STREAMS`] of the [`MAX_PROXY_STREAMS`] streams.
//! - At most [`MAX_PEER_STREAMS`] proxies of a peer are in the store's list of replicas.
//! - A peer has at most [`MAX_PEER_RECORDS`] of the [`MAX_RECORDS`] shares and permits.
//! - A peer has at most [`MAX_PEER_LEASES`] of the [`MAX_LEASES`] leases.
//! - What a peer used is free again when its streams and records have ended.
//!
//! Not covered:
//! - The rate of messages: see `engine::proxies::registry`.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;

/// The largest number of open streams of proxies.
pub const MAX_PROXY_STREAMS: usize = 4_096;

/// The largest number of open streams of one peer, and of its proxies that the store lists.
pub const MAX_PEER_STREAMS: usize = 256;

/// The largest number of shares and permits of all proxies of this replica.
pub const MAX_RECORDS: usize = 131_072;

/// The largest number of shares and permits of one peer. An Envoy has at most 10,000 buckets.
pub const MAX_PEER_RECORDS: usize = 16_384;

/// The largest number of leases of all proxies of this replica: one proxy and one counter each.
pub const MAX_LEASES: usize = 524_288;

/// The largest number of leases of one peer. An Envoy has about 15,000 with the default `memory`.
pub const MAX_PEER_LEASES: usize = 262_144;

/// The part of an IPv6 address that names a peer: a host has all addresses with this prefix.
const IPV6_PREFIX_BITS: u32 = 64;

/// The peer of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PeerKey {
    /// The SHA-256 of a verified client certificate.
    Certificate([u8; 32]),
    /// The address of a client without a certificate; of IPv6, the first 64 bits.
    Address(IpAddr),
    /// The clients of the Unix socket.
    UnixSocket,
}

impl PeerKey {
    /// Returns the peer with this address.
    #[must_use]
    pub fn of_address(address: IpAddr) -> Self {
        let network = |address: std::net::Ipv6Addr| {
            let host_bits = 128_u32.saturating_sub(IPV6_PREFIX_BITS);
            (address.to_bits() >> host_bits << host_bits).into()
        };
        Self::Address(match address.to_canonical() {
            IpAddr::V6(address) => IpAddr::V6(network(address)),
            address @ IpAddr::V4(_) => address,
        })
    }
}

/// A number of things in use, of one peer and of all.
#[derive(Debug, Default)]
struct InUse {
    streams: AtomicUsize,
    members: AtomicUsize,
    records: AtomicUsize,
    leases: AtomicUsize,
}

/// The peers with streams or records.
#[derive(Debug, Default)]
pub(super) struct Peers {
    all: Arc<InUse>,
    by_key: Mutex<HashMap<PeerKey, Arc<InUse>>>,
}

/// The use of one peer.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    all: Arc<InUse>,
    own: Arc<InUse>,
}

/// The right to serve one stream. Dropping it ends the right.
#[derive(Debug)]
pub struct StreamSlot(Peer);

impl Drop for StreamSlot {
    fn drop(&mut self) {
        give_back(&self.0.all.streams, 1);
        give_back(&self.0.own.streams, 1);
    }
}

impl StreamSlot {
    pub(super) const fn peer(&self) -> &Peer {
        &self.0
    }
}

impl Peers {
    /// Returns the right to serve one more stream of the peer; `None` at one of the bounds.
    pub(super) fn open_stream(&self, key: PeerKey) -> Option<StreamSlot> {
        let mut by_key = self.by_key.lock();
        by_key.retain(|_, own| 1 < Arc::strong_count(own));
        let own = by_key.entry(key).or_default();
        let peer = Peer { all: Arc::clone(&self.all), own: Arc::clone(own) };
        let (own, all) = (&peer.own.streams, &peer.all.streams);
        take_both((own, MAX_PEER_STREAMS), (all, MAX_PROXY_STREAMS)).then_some(())?;
        Some(StreamSlot(peer))
    }

    /// Returns the number of shares and permits of all peers.
    pub(super) fn records(&self) -> usize {
        self.all.records.load(Relaxed)
    }
}

impl Peer {
    /// Takes the place of one record. Returns `false` at one of the bounds.
    pub(super) fn add_record(&self) -> bool {
        let (own, all) = (&self.own.records, &self.all.records);
        take_both((own, MAX_PEER_RECORDS), (all, MAX_RECORDS))
    }

    /// Takes the place of one lease. Returns `false` at one of the bounds.
    pub(super) fn add_lease(&self) -> bool {
        take_both((&self.own.leases, MAX_PEER_LEASES), (&self.all.leases, MAX_LEASES))
    }

    /// Frees the places of `count` leases.
    pub(super) fn remove_leases(&self, count: usize) {
        give_back(&self.all.leases, count);
        give_back(&self.own.leases, count);
    }

    /// Takes a place in the store's list of replicas. Returns `false` if the peer has no more.
    pub(super) fn add_member(&self) -> bool {
        take(&self.own.members, MAX_PEER_STREAMS)
    }

    /// Frees a place in the store's list of replicas.
    pub(super) fn remove_member(&self) {
        give_back(&self.own.members, 1);
    }

    /// Frees the places of `count` records.
    pub(super) fn remove_records(&self, count: usize) {
        give_back(&self.all.records, count);
        give_back(&self.own.records, count);
    }

    /// Returns `true` if both are the same peer.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.own, &other.own)
    }
}

/// Takes one of each, or none. Each number comes with its bound.
fn take_both(own: (&AtomicUsize, usize), all: (&AtomicUsize, usize)) -> bool {
    if !take(own.0, own.1) {
        return false;
    }
    let has_place = take(all.0, all.1);
    if !has_place {
        give_back(own.0, 1);
    }
    has_place
}

fn take(in_use: &AtomicUsize, most: usize) -> bool {
    let one_more = |count: usize| (count < most).then(|| count.saturating_add(1));
    in_use.fetch_update(Relaxed, Relaxed, one_more).is_ok()
}

fn give_back(in_use: &AtomicUsize, count: usize) {
    // The closure always returns a value.
    let _before = in_use.fetch_update(Relaxed, Relaxed, |used| Some(used.saturating_sub(count)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> PeerKey {
        PeerKey::of_address(text.parse().unwrap())
    }

    #[test]
    fn one_address_cannot_take_all_streams() {
        let peers = Peers::default();
        let slots: Vec<_> =
            (0..MAX_PEER_STREAMS).map_while(|_| peers.open_stream(address("192.0.2.1"))).collect();
        assert_eq!(slots.len(), MAX_PEER_STREAMS);
        assert!(peers.open_stream(address("192.0.2.1")).is_none());
        assert!(peers.open_stream(address("::ffff:192.0.2.1")).is_none(), "the same address");
        assert!(peers.open_stream(address("192.0.2.2")).is_some());
        drop(slots);
        assert!(peers.open_stream(address("192.0.2.1")).is_some());
    }

    #[test]
    fn an_ipv6_host_is_one_peer() {
        assert_eq!(address("2001:db8::1"), address("2001:db8::ffff:1"));
        assert_ne!(address("2001:db8::1"), address("2001:db8:0:1::1"));
    }

    #[test]
    fn the_records_of_a_peer_are_bounded() {
        let peers = Peers::default();
        let slot = peers.open_stream(address("192.0.2.1")).unwrap();
        let taken = (0..MAX_PEER_RECORDS).filter(|_| slot.peer().add_record()).count();
        assert_eq!((taken, peers.records()), (MAX_PEER_RECORDS, MAX_PEER_RECORDS));
        assert!(!slot.peer().add_record());
        slot.peer().remove_records(1);
        assert!(slot.peer().add_record());
    }
}
