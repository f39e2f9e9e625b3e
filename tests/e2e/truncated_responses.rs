//! Tests of the latency that two rate limit filters measure for truncated responses.

use std::io::Read as _;
use std::net::TcpStream;

use super::envoy::Shipped;
use super::in_flight::{EnvoyScene, limit_all_requests};
use super::stepwise_upstream::Visit;
use crate::support::http1;

/// Sends a request and a part of its response. Returns the client and the upstream connection.
fn answered_in_part(scene: &EnvoyScene) -> (TcpStream, Visit) {
    let mut client = scene.connect();
    let mut visit = scene.upstream.next();
    visit.begin();
    let (mut came, mut part) = (Vec::new(), [0; 4096]);
    while !came.ends_with(b"ok\r\n") {
        let got = client.read(&mut part).unwrap();
        assert!(0 < got, "{}", String::from_utf8_lossy(&came));
        came.extend_from_slice(&part[..got]);
    }
    (client, visit)
}

fn has_measured(scene: &EnvoyScene) -> bool {
    let shown = http1::get(scene.service.admin, "/permits", &[]).unwrap().text();
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    shown["busiest"][0]["rtt_us"].is_u64()
}

/// A truncated response has a good status and ends early, so its latency would wrongly be short.
#[test]
fn only_complete_responses_are_measured() {
    let scene =
        EnvoyScene::changed(Shipped::RlsConcurrency, &limit_all_requests("limit: 9"), |_| {});
    let (client, _visit) = answered_in_part(&scene);
    drop(client);
    scene.expect_in_flight(0);
    assert!(!has_measured(&scene), "of a client that left");
    let (_client, visit) = answered_in_part(&scene);
    visit.reset();
    scene.expect_in_flight(0);
    assert!(!has_measured(&scene), "of an upstream that broke off");
    let client = scene.send();
    scene.upstream.next().answer();
    assert_eq!(client.join().unwrap().unwrap().status, 200);
    scene.expect_in_flight(0);
    assert!(has_measured(&scene));
}
