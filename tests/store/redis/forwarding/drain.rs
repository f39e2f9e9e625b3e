//! Releases that a draining replica forwards.

use std::net::TcpStream;

use super::{PeerFleet, Protocol, id};
use crate::support::waiting::until;

/// A busy machine may resume the owner after the draining replica has given up.
#[test]
fn a_draining_replica_forwards_its_pending_releases() {
    assert!((0..5).any(|_| is_each_pending_release_forwarded()));
}

fn is_each_pending_release_forwarded() -> bool {
    let mut scene = PeerFleet::of(2);
    let owners: Vec<_> =
        (0..50).map(|number| scene.acquire(Protocol::Nginx, 0, &id(number))).collect();
    // The owner is stopped, so the first forwarded release stays in flight and the others wait in
    // the queue.
    scene.fleet[0].signal("STOP");
    for (number, owner) in owners.iter().enumerate() {
        scene.release(Protocol::ExtAuthz, 1, &id(number), owner);
    }
    scene.fleet[1].terminate();
    let address = scene.fleet[1].http;
    let is_shut = || match TcpStream::connect(address) {
        Ok(_) => Err("open".to_owned()),
        Err(_) => Ok(()),
    };
    until("it asks nobody in any more", is_shut).unwrap();
    scene.fleet[0].signal("CONT");
    assert!(scene.fleet[1].ended().unwrap().success());
    scene.in_flight(0) == 0
}
