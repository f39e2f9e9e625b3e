//! What a ceiling that two rate limit filters ask learns of its upstream.

use std::io::Read as _;
use std::net::TcpStream;

use super::envoy::Shipped;
use super::in_flight::{Scene, over_all};
use super::visits::Visit;
use crate::http1;

/// A client that has the head of an answer and a part of its body, and the upstream that gave them.
fn answered_in_part(scene: &Scene) -> (TcpStream, Visit) {
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

fn has_measured(scene: &Scene) -> bool {
    let shown = http1::get(scene.service.admin, "/permits", &[]).unwrap().text();
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    shown["busiest"][0]["rtt_us"].is_u64()
}

/// An answer has its status from its head on. What was cut ends sooner than the upstream answers, and would pass for quick.
#[test]
fn with_rls_alone_an_answer_that_was_cut_is_no_measurement_and_one_that_was_whole_is() {
    let scene = Scene::changed(Shipped::RlsConcurrency, &over_all("limit: 9"), |_| {});
    let (client, _visit) = answered_in_part(&scene);
    drop(client);
    scene.holds(0);
    assert!(!has_measured(&scene), "of a client that left");
    let (_client, visit) = answered_in_part(&scene);
    visit.reset();
    scene.holds(0);
    assert!(!has_measured(&scene), "of an upstream that broke off");
    let client = scene.send();
    scene.upstream.next().answer();
    assert_eq!(client.join().unwrap().unwrap().status, 200);
    scene.holds(0);
    assert!(has_measured(&scene));
}
