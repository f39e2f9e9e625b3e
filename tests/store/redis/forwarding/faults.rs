//! Replicas that crash, hang, restart or are unreachable for their peers.

use std::io::Write as _;
use std::net::TcpStream;

use super::{NODES, PeerFleet, Protocol, id, metric, peer_events, wait_for_count};
use crate::support::waiting::{PATIENCE, until};

#[test]
fn restarted_owner_ignores_releases_for_its_previous_incarnation() {
    let mut scene = PeerFleet::of(2);
    let (first, second) = (id(1), id(2));
    let old = scene.acquire(Protocol::Rls, 0, &first);
    scene.fleet[0].kill();
    let port = scene.peer_address(0).port().to_string();
    scene.fleet[0] = scene.serve(NODES[0], &["--listen-peer-port", &port]);
    // Acquires the same id again. A release for the previous incarnation of the owner must not
    // release this permit.
    let new = scene.acquire(Protocol::Rls, 0, &first);
    scene.acquire(Protocol::Rls, 0, &second);
    assert_ne!(old, new);
    scene.release(Protocol::Rls, 1, &first, &old);
    wait_for_count(&scene.fleet[1], "timed_out", 1);
    assert_eq!(scene.in_flight(0), 2, "the old owner is gone, and its deadline was the end");
    scene.wait_until_peers_known();
    scene.release(Protocol::Rls, 1, &first, &new);
    scene.release(Protocol::Rls, 1, &second, "");
    scene.wait_until_idle(0);
    assert_eq!(peer_events(&scene.fleet[1], "timed_out"), 1, "only the first one");
    scene.assert_early_releases_only_after_slow_searches(1);
}

#[test]
fn hung_replica_delays_only_its_own_releases() {
    let scene = PeerFleet::of(3);
    let [hung, well, nobodys, early] = [1, 2, 3, 4].map(id);
    let (at_hung, at_well) =
        (scene.acquire(Protocol::Rls, 0, &hung), scene.acquire(Protocol::Rls, 2, &well));
    scene.acquire(Protocol::Rls, 2, &nobodys);
    scene.fleet[0].signal("STOP");
    scene.release(Protocol::Rls, 1, &hung, &at_hung);
    scene.release(Protocol::Rls, 1, &well, &at_well);
    scene.release(Protocol::Rls, 1, &nobodys, "");
    scene.wait_until_idle(2);
    // The others did not wait until the release to the hung replica timed out.
    assert_eq!(peer_events(&scene.fleet[1], "timed_out"), 0);
    // An unresponsive replica does not prevent the others from remembering an early release.
    assert!(!scene.release_by_api(1, &early, ""));
    until("two remember it", || {
        match [1, 2].map(|at| metric(&scene.fleet[at], "sluicegate_early_releases")) {
            [(1..), (1..)] => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .unwrap();
    scene.fleet[0].signal("CONT");
    scene.wait_until_idle(0);
    assert_eq!(peer_events(&scene.fleet[1], "dropped"), 0);
}

#[test]
fn killed_replica_loses_only_its_own_releases() {
    let mut scene = PeerFleet::of(3);
    let [gone, well] = [1, 2].map(id);
    let (at_gone, at_well) =
        (scene.acquire(Protocol::Rls, 0, &gone), scene.acquire(Protocol::Rls, 2, &well));
    scene.fleet[0].kill();
    scene.release(Protocol::Rls, 1, &gone, &at_gone);
    scene.release(Protocol::Rls, 1, &well, &at_well);
    scene.wait_until_idle(2);
    wait_for_count(&scene.fleet[1], "timed_out", 1);
    let log = scene.fleet[1].log();
    assert!(log.contains("failed to forward releases"), "{log}");
}

#[test]
fn releases_with_unknown_owners_time_out_and_malformed_owners_are_ignored() {
    let scene = PeerFleet::of(2);
    let (first, second) = (id(1), id(2));
    scene.acquire(Protocol::Rls, 0, &first);
    scene.acquire(Protocol::Rls, 0, &second);
    scene.release(Protocol::Rls, 1, &first, "0123456789abcdef");
    wait_for_count(&scene.fleet[1], "timed_out", 1);
    assert_eq!(scene.in_flight(0), 2);
    scene.release(Protocol::Rls, 1, &first, "nobody");
    scene.release(Protocol::ExtAuthz, 1, &second, "../../etc/passwd");
    scene.wait_until_idle(0);
}

#[test]
fn peers_outside_the_allowed_networks_are_not_called() {
    let (inside, outside) = ("127.0.0.1/32", "127.0.0.0/8");
    let home = vec!["--fleet-peers-networks", inside];
    let abroad = vec!["--listen-peer-host", "127.0.0.2", "--fleet-peers-networks", outside];
    let scene = PeerFleet::each(&[abroad, home]);
    let (first, second) = (id(1), id(2));
    let owner = scene.acquire(Protocol::Rls, 0, &first);
    scene.release(Protocol::Rls, 1, &first, &owner);
    wait_for_count(&scene.fleet[1], "address_not_allowed", 1);
    assert_eq!((scene.in_flight(0), peer_events(&scene.fleet[0], "received")), (1, 0));
    assert!(scene.fleet[1].log().contains("`fleet.peers.networks`"), "{}", scene.fleet[1].log());
    // Forwarding in the opposite direction is allowed.
    let owner = scene.acquire(Protocol::Rls, 1, &second);
    scene.release(Protocol::Rls, 0, &second, &owner);
    scene.wait_until_idle(1);
}

#[test]
fn forwarding_resumes_after_a_replica_was_stopped() {
    let scene = PeerFleet::of(2);
    // If the sequence numbers restarted, they could not reach these 100 messages before a release
    // expires.
    for number in 0..100 {
        let owner = scene.acquire(Protocol::Rls, 0, &id(number));
        scene.release_by_api(1, &id(number), &owner);
        scene.wait_until_idle(0);
    }
    let owner = scene.acquire(Protocol::Rls, 0, &id(100));
    scene.fleet[0].signal("STOP");
    until("it is lost from sight", || {
        let seen = super::fleet_page(&scene.fleet[1]);
        if seen["live_replicas"].as_array().unwrap().len() == 1 {
            Ok(())
        } else {
            Err(seen.to_string())
        }
    })
    .unwrap();
    scene.fleet[0].signal("CONT");
    scene.wait_until_peers_known();
    scene.release(Protocol::Rls, 1, &id(100), &owner);
    scene.wait_until_idle(0);
    assert_eq!(peer_events(&scene.fleet[0], "rejected"), 0);
}

/// A new replica knows the peer addresses of the others at once. They accept its messages after
/// their next heartbeat.
#[test]
fn new_replica_forwards_releases_once_it_is_known() {
    let (mut scene, mut number) = (PeerFleet::of(1), 0);
    // If the heartbeat is late, the release times out, and another new replica follows.
    until("a new replica forwards a release", || {
        number += 1;
        let id = id(number);
        let owner = scene.acquire(Protocol::Rls, 0, &id);
        scene.fleet.truncate(1);
        scene.fleet.push(scene.serve(NODES[1], &[]));
        scene.release(Protocol::Rls, 1, &id, &owner);
        let ends = until("its end", || {
            match (scene.in_flight(0), peer_events(&scene.fleet[1], "timed_out")) {
                (0, 0) => Ok(Ok(())),
                (_, 1..) => Ok(Err(scene.fleet[1].log())),
                other => Err(format!("{other:?}")),
            }
        });
        // The owner ends a request whose release timed out.
        scene.release(Protocol::Rls, 0, &id, "");
        ends.unwrap()
    })
    .unwrap();
}

#[test]
fn forwarding_works_during_a_store_outage() {
    let mut scene = PeerFleet::of(2);
    let id = id(1);
    let owner = scene.acquire(Protocol::Rls, 0, &id);
    scene.store.kill();
    scene.release(Protocol::Rls, 1, &id, &owner);
    scene.wait_until_idle(0);
}

#[test]
fn garbage_on_the_peer_port_is_ignored() {
    let scene = PeerFleet::of(2);
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let long = vec![0xff; 1 << 20];
    for garbage in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 100], &long, &[&preface[..], &long].concat()]
    {
        let mut stream = TcpStream::connect(scene.peer_address(0)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        // The replica may close the connection before all bytes are written.
        let _ = stream.write_all(garbage);
    }
    let silent: Vec<_> =
        (0..100).map(|_| TcpStream::connect(scene.peer_address(0)).unwrap()).collect();
    let id = id(1);
    let owner = scene.acquire(Protocol::Rls, 0, &id);
    scene.release(Protocol::Rls, 1, &id, &owner);
    scene.wait_until_idle(0);
    drop(silent);
}
