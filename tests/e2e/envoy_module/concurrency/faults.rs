//! Envoys that are killed or replaced while they have requests in flight.
//!
//! Guarantees:
//! - A request of a killed Envoy counts for `max_duration`, as if the upstream did not notice.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::super::super::envoy::{Envoy, Launch, replace_once};
use super::super::changes::hot_restart_launch;
use super::recording_upstream::Request;
use super::{Fleet, KEY, REJECTED, SHARED, STRICT, fleet_page, proxies_of, wait_for_permit};
use crate::support::http1;
use crate::support::ports;
use crate::support::waiting::{Ends, now, until};

const LIMIT: usize = 4;
const MAX_DURATION: Duration = Duration::from_secs(1);

/// The seconds from the start of a new Envoy to the end of its parent, until the test can end its
/// requests before.
const PARENT_SECONDS: [u32; 5] = [3, 6, 12, 24, 48];

fn limit() -> String {
    format!("limit: {LIMIT}, max_duration: {MAX_DURATION:?}, on_store_failure: deny")
}

/// Sends requests until `is_over`. Each one passes or is rejected.
fn send_until(fleet: &Fleet, ingress: SocketAddr, is_over: &AtomicBool) {
    while !is_over.load(Relaxed) {
        let request = fleet.upstream.new_request(&10);
        let reply = http1::get(ingress, "/", &request.headers(KEY)).unwrap();
        assert!([200, REJECTED].contains(&reply.status), "{reply:?}");
    }
}

/// The flags of an Envoy, and of the one that replaces it.
struct HotRestart {
    home: TempDir,
    text: String,
    parent_seconds: u32,
}

impl HotRestart {
    /// Adds a fixed port: only its listener is handed to the next epoch.
    fn new(mut text: String, parent_seconds: u32) -> Self {
        let listen = |port: u16| {
            format!("{{address: 127.0.0.1, port_value: {port}}}}}\n      filter_chains")
        };
        replace_once(&mut text, &listen(0), &listen(ports::free().port()));
        Self { home: tempfile::tempdir().unwrap(), text, parent_seconds }
    }

    fn start_parent(&self) -> Envoy {
        let path = self.home.path().join("base_id");
        let flags = ["--base-id-path", path.to_str().unwrap()];
        self.start(&hot_restart_launch(self.parent_seconds, &flags))
    }

    fn start_child(&self) -> Envoy {
        let base_id = std::fs::read_to_string(self.home.path().join("base_id")).unwrap();
        let flags = ["--base-id", base_id.trim(), "--restart-epoch", "1"];
        self.start(&hot_restart_launch(self.parent_seconds, &flags))
    }

    fn start(&self, launch: &Launch) -> Envoy {
        Envoy::launch(self.text.clone(), 0, launch)
    }
}

/// Kills the first Envoy while it has two requests in flight. Returns them, with the instant before
/// they were sent.
fn kill_with_two_requests(fleet: &mut Fleet) -> ([Request; 2], Instant) {
    let held = [(); 2].map(|()| fleet.upstream.new_request(&"until released"));
    let (mut envoy, sent) = (fleet.envoys.remove(0), now());
    let ingress = envoy.ingress;
    let ask = |headers: [(&str, &str); 3]| {
        until("the end of Envoy", || match http1::get(ingress, "/", &headers) {
            Ok(reply) => Err(reply.status.to_string()),
            Err(_) => Ok(()),
        })
        .unwrap();
    };
    std::thread::scope(|scope| {
        for request in &held {
            scope.spawn(|| ask(request.headers(KEY)));
        }
        fleet.upstream.wait_for_in_flight(2);
        envoy.kill();
    });
    (held, sent)
}

#[test]
fn another_envoy_gets_the_limit_after_the_expiry_of_a_dead_one() {
    let mut fleet = Fleet::start(SHARED, &limit(), (1, 2));
    let (held, sent) = kill_with_two_requests(&mut fleet);
    for request in held {
        fleet.upstream.end_at(request.id, sent + MAX_DURATION);
    }
    fleet.fill_and_empty(LIMIT, &[0]);
    let most = fleet.upstream.most_in_flight();
    assert!(most <= LIMIT, "{most} requests in flight");
    fleet.wait_until_idle(1);
}

/// Sluicegate frees the permits of a strict limit after three heartbeats without a report.
#[test]
fn the_permits_of_a_dead_envoy_are_free_after_three_heartbeats() {
    let limit = format!("limit: {LIMIT}, mode: strict, max_duration: 5m, on_store_failure: deny");
    let mut fleet = Fleet::start(STRICT, &limit, (1, 2));
    let (held, _) = kill_with_two_requests(&mut fleet);
    for request in held {
        fleet.upstream.end_at(request.id, now());
    }
    fleet.fill_and_empty(LIMIT, &[0]);
    assert_eq!(fleet.upstream.most_in_flight(), LIMIT);
    fleet.wait_until_idle(1);
}

#[test]
fn hot_restart_keeps_the_limit_and_completes_requests_in_flight() {
    let is_complete = PARENT_SECONDS.into_iter().any(replace_with_two_requests);
    assert!(is_complete, "each parent ended before its requests");
}

/// Replaces an Envoy that has two requests in flight. Returns `false` if it ended before they did:
/// on a busy machine, the test may be late.
fn replace_with_two_requests(parent_seconds: u32) -> bool {
    let mut fleet = Fleet::start(SHARED, &limit(), (1, 0));
    let text = fleet.setup.configuration(fleet.upstream.address, fleet.services[0].grpc);
    let restart = HotRestart::new(text, parent_seconds);
    let mut parent = restart.start_parent();
    wait_for_permit(&parent);
    let ingress = parent.ingress;
    let is_over = AtomicBool::new(false);
    let (child, statuses) = std::thread::scope(|scope| {
        let _ends = Ends(&is_over);
        let held = [(); 2].map(|()| {
            let request = fleet.upstream.new_request(&"until released");
            scope.spawn(move || {
                let reply = http1::get(ingress, "/", &request.headers(KEY));
                reply.map(|reply| reply.status).ok()
            })
        });
        fleet.upstream.wait_for_in_flight(2);
        for _ in 0..3 {
            scope.spawn(|| send_until(&fleet, ingress, &is_over));
        }
        let child = restart.start_child();
        until("two proxies in /fleet", || {
            let page = fleet_page(&fleet.services[0]);
            let is_ended = parent.has_ended();
            if is_ended || proxies_of(&page).len() == 2 { Ok(()) } else { Err(page.to_string()) }
        })
        .unwrap();
        fleet.upstream.release(2);
        (child, held.map(|client| client.join().unwrap()))
    });
    let is_late = parent.has_ended();
    if is_late && statuses != [Some(200); 2] {
        return false;
    }
    assert_eq!(statuses, [Some(200); 2]);
    fleet.envoys.push(child);
    let status = parent.ended();
    assert!(status.success(), "{status}\n{}", parent.log());
    fleet.fill_and_empty(LIMIT, &[0]);
    let most = fleet.upstream.most_in_flight();
    assert!((3..=LIMIT).contains(&most), "{most} requests in flight");
    fleet.wait_until_idle(1);
    true
}
