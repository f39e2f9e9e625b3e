//! Permits of requests that fail, disconnect or end early.

use std::io::Read as _;

use super::{EnvoyScene, FALLING_LIMIT, lower_limit};
use crate::e2e::envoy::{Shipped, replace_once};
use crate::support::http1;
use crate::support::waiting::until;

/// If failures were measured, an upstream that fails immediately would look fast.
#[test]
fn failed_responses_lower_the_limit_and_are_not_measured() {
    let scene = EnvoyScene::with_limit(FALLING_LIMIT);
    lower_limit(&scene.service, &scene.upstream, || scene.send());
    let client = scene.send();
    scene.upstream.next().answer();
    assert_eq!(client.join().unwrap().unwrap().status, 200);
    scene.expect_in_flight(0);
    let page = http1::get(scene.service.metrics, "/metrics", &[]).unwrap().text();
    assert!(page.contains("sluicegate_concurrency_rtt_seconds{"), "of one that succeeded:\n{page}");
}

/// If Envoy permits a mode override, the service turns off later messages; otherwise it ends the
/// stream.
#[test]
fn request_without_concurrency_limit_closes_its_stream() {
    const UNLIMITED: &str = "- key: api_key\n  rate_limit: {unlimited: true}\n";
    for mode_override in ["allow_mode_override: true", "allow_mode_override: false"] {
        let scene = EnvoyScene::changed(Shipped::ExtProc, UNLIMITED, |text| {
            let both = format!("{mode_override}\n                      processing_mode:");
            replace_once(text, "processing_mode:", &both);
        });
        let client = scene.send();
        let visit = scene.upstream.next();
        let ended = || match scene.envoy.active_requests() {
            0 => Ok(()),
            open => Err(open.to_string()),
        };
        until("the stream's end before the request's", ended).unwrap();
        visit.answer();
        assert_eq!(client.join().unwrap().unwrap().status, 200, "{mode_override}");
    }
}

/// A race inside Envoy decides how the `ext_proc` stream ends, even after a successful request.
#[test]
fn every_completed_request_is_measured() {
    const EACH: &str = "- key: api_key\n  concurrency: {limit: 2}\n";
    const SHOW: [&str; 2] = ["response_header_mode: SEND", "response_header_mode: SKIP"];
    for show in SHOW {
        let scene =
            EnvoyScene::changed(Shipped::ExtProc, EACH, |text| replace_once(text, SHOW[0], show));
        for key in 0..20 {
            let (ingress, key) = (scene.envoy.ingress, key.to_string());
            let get = move || http1::get(ingress, "/", &[("x-api-key", key.as_str())]);
            let client = std::thread::spawn(get);
            scene.upstream.next().answer();
            assert_eq!(client.join().unwrap().unwrap().status, 200);
        }
        scene.expect_in_flight(0);
        let shown = http1::get(scene.service.admin, "/permits", &[]).unwrap().text();
        let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
        let buckets = shown["busiest"].as_array().unwrap();
        let measured = buckets.iter().filter(|bucket| bucket["rtt_us"].is_u64()).count();
        assert_eq!((buckets.len(), measured), (20, 20), "{show}: {shown:#}");
    }
}

#[test]
fn client_disconnect_releases_the_permit() {
    let scene = EnvoyScene::with_limit("limit: 1");
    for begun in [false, true] {
        let mut client = scene.connect();
        let mut visit = scene.upstream.next();
        if begun {
            visit.begin();
            assert!(0 < client.read(&mut [0; 1024]).unwrap());
        }
        scene.expect_in_flight(1);
        drop(client);
        scene.expect_in_flight(0);
    }
}

#[test]
fn upstream_reset_releases_the_permit() {
    let scene = EnvoyScene::with_limit("limit: 1");
    for begun in [false, true] {
        let client = scene.send();
        let mut visit = scene.upstream.next();
        if begun {
            visit.begin();
        }
        scene.expect_in_flight(1);
        visit.reset();
        scene.expect_in_flight(0);
        let status = client.join().unwrap().map_or(503, |reply| reply.status);
        // Envoy may see the reset before it forwards the response headers, and replies then itself.
        assert!(status == 503 || begun && [200, 502].contains(&status), "{status}");
    }
}

#[test]
fn killed_envoy_releases_all_permits() {
    let mut scene = EnvoyScene::with_limit("limit: 9");
    let _clients: Vec<_> = (0..5).map(|_| scene.connect()).collect();
    let _visits: Vec<_> = (0..5).map(|_| scene.upstream.next()).collect();
    scene.expect_in_flight(5);
    scene.envoy.kill();
    scene.expect_in_flight(0);
}

#[test]
fn replica_shutdown_fails_no_request() {
    let mut scene = EnvoyScene::with_limit("limit: 1");
    let client = scene.send();
    let visit = scene.upstream.next();
    scene.expect_in_flight(1);
    scene.service.terminate();
    let status = scene.service.ended().unwrap();
    assert_eq!(status.code(), Some(0), "{status}\n{}", scene.service.log());
    visit.answer();
    assert_eq!(client.join().unwrap().unwrap().status, 200);
}

#[test]
fn requests_succeed_without_a_replica() {
    let mut scene = EnvoyScene::with_limit("limit: 1");
    scene.service.terminate();
    scene.service.ended().unwrap();
    let clients = [scene.send(), scene.send()];
    for visit in [scene.upstream.next(), scene.upstream.next()] {
        visit.answer();
    }
    for client in clients {
        assert_eq!(client.join().unwrap().unwrap().status, 200);
    }
}
