//! Releases that do not name their owner.

use super::{ALL, OWNER, PeerFleet, Protocol, id, peer_events, wait_for_count};
use crate::store::redis::membership::fleet_page;
use crate::support::waiting::until;

#[test]
fn release_without_an_owner_searches_all_replicas() {
    let (scene, mut number) = (PeerFleet::of(3), 0);
    for protocol in ALL {
        // On a busy machine, the owner may reply after the search ended.
        until("a search finds the owner", || {
            number += 1;
            let (id, before) = (id(number), peer_events(&scene.fleet[1], "not_found"));
            scene.acquire(protocol, 0, &id);
            scene.release(protocol, 1, &id, "");
            scene.wait_until_idle(0);
            wait_for_count(&scene.fleet[1], "searched", u64::try_from(number).unwrap());
            match peer_events(&scene.fleet[1], "not_found") - before {
                0 => Ok(()),
                _ => Err(format!("{protocol:?} {}", scene.fleet[1].log())),
            }
        })
        .unwrap();
    }
    scene.assert_early_releases_only_after_slow_searches(1);
}

#[test]
fn release_of_an_unknown_id_is_remembered_by_all_replicas() {
    let scene = PeerFleet::of(3);
    for (number, protocol) in
        [Protocol::Rls, Protocol::ExtAuthz, Protocol::Nginx].into_iter().enumerate()
    {
        scene.release(protocol, 1, &id(number), "");
        let wanted = u64::try_from(number).unwrap() + 1;
        until("all remember it", || match scene.early_releases() {
            all if all == [wanted; 3] => Ok(()),
            other => Err(format!("{protocol:?} {other:?}")),
        })
        .unwrap();
    }
    assert!(!scene.release_by_api(1, &id(9), ""), "nothing was held");
    for at in 0..3 {
        scene.acquire(Protocol::Rls, at, &id(at));
        assert_eq!(scene.in_flight(at), 0, "it was over before");
    }
}

#[test]
fn denial_reply_names_the_replica_so_its_release_needs_no_search() {
    let scene = PeerFleet::of(2);
    let text = "domain: edge\ndescriptors:\n- key: upstream\n  value: all\n  \
                concurrency: {limit: 1, mode: local}\n";
    std::fs::write(scene.limits.path().join("edge.yaml"), text).unwrap();
    until("the smaller ceiling is in force", || {
        let revision = fleet_page(&scene.fleet[0])["live_replicas"][0]["revision"].as_u64();
        if revision == Some(2) { Ok(()) } else { Err(format!("{revision:?}")) }
    })
    .unwrap();
    let (first, denied) = (id(1), id(2));
    scene.acquire(Protocol::Rls, 0, &first);
    for number in 2..5 {
        let owner = scene.acquire(Protocol::Rls, 0, &id(number));
        scene.release(Protocol::Rls, 1, &id(number), &owner);
    }
    wait_for_count(&scene.fleet[1], "delivered", 3);
    assert_eq!((scene.in_flight(0), scene.early_releases()), (1, vec![0, 0]));
    assert_eq!(peer_events(&scene.fleet[1], "searched"), 0);
    let reply = scene.denial_headers(0, &denied);
    let headers: Vec<_> = reply.iter().map(String::as_str).collect();
    assert_eq!(headers, [OWNER], "ext_authz names it with a denial");
}
