//! Replies of the owner to releases and renewals through another replica.

use std::time::Duration;

use envoy_types::pb::envoy::data::accesslog::v3::AccessLogType;

use super::{PeerFleet, Protocol, id};
use crate::store::redis::metric;
use crate::support::waiting::{now, until};

#[test]
fn renewals_reach_the_owner_through_another_replica() {
    let scene = PeerFleet::of(2);
    let id = id(1);
    let owner = scene.acquire(Protocol::Permits, 0, &id);
    let mut sent = 0;
    until("the owner replies in time", || {
        sent += 1;
        if scene.renew(1, &id, &owner) { Ok(()) } else { Err(scene.fleet[1].log()) }
    })
    .unwrap();
    assert!(!scene.renew(1, &id, ""), "nobody is asked who is not named");
    let wait_for_renewals = |wanted: u64| {
        let renewed = r#"sluicegate_permit_ids_total{event="renewed"}"#;
        until("the owner renews", || match metric(&scene.fleet[0], renewed) {
            found if found == wanted => Ok(()),
            other => Err(other.to_string()),
        })
        .unwrap();
    };
    wait_for_renewals(sent);
    scene.log_entry(1, &id, &owner, AccessLogType::DownstreamPeriodic);
    wait_for_renewals(sent + 1);
    assert_eq!(scene.in_flight(0), 1);
}

#[test]
fn a_forwarded_release_takes_milliseconds() {
    let scene = PeerFleet::of(2);
    let (mut times, mut confirmed) = ([Vec::new(), Vec::new()], 0);
    // Alternates between the owner and the other replica: a busy machine delays both.
    for number in 0..200 {
        for (at, times) in times.iter_mut().enumerate() {
            let id = id(2 * number + at);
            let owner = scene.acquire(Protocol::Permits, 0, &id);
            let began = now();
            confirmed += usize::from(scene.release_by_api(at, &id, &owner));
            times.push(began.elapsed());
        }
    }
    let [local, forwarded] = times.map(|mut times| {
        times.sort_unstable();
        times[times.len() / 2]
    });
    println!("p50 at the owner: {local:?}, through another replica: {forwarded:?}");
    assert!(forwarded <= local * 4 + Duration::from_millis(5), "{forwarded:?} and {local:?}");
    assert!(300 <= confirmed, "most owners reply in time: {confirmed} of 400");
}
