//! Envoys that are killed or replaced while they have requests in flight.
//!
//! Guarantees:
//! - A request of a killed Envoy counts for `max_duration`, as if the upstream did not notice.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::super::super::envoy::{Envoy, Launch, replace_once};
use super::super::changes::hot_restart_launch;
use super::recording_upstream::Request;
use super::{Fleet, KEY, REJECTED, configuration, fleet_page, proxies_of};
use crate::support::http1;
use crate::support::ports;
use crate::support::waiting::{Ends, now, until};

const LIMIT: usize = 4;
const MAX_DURATION: Duration = Duration::from_secs(2);

fn limit() -> String {
    format!("limit: {LIMIT}, max_duration: {MAX_DURATION:?}, on_store_failure: deny")
}

/// Sends requests until `is_over`. Each one passes or is rejected.
fn send_until(fleet: &Fleet, is_over: &AtomicBool) {
    while !is_over.load(Relaxed) {
        let request = fleet.upstream.new_request(&10);
        let reply = http1::get(fleet.ingress(0), "/", &request.headers(KEY)).unwrap();
        assert!([200, REJECTED].contains(&reply.status), "{reply:?}");
    }
}

/// The flags of an Envoy, and of the one that replaces it.
struct HotRestart {
    home: TempDir,
    text: String,
}

impl HotRestart {
    /// Adds a fixed port: only its listener is handed to the next epoch.
    fn new(mut text: String) -> Self {
        let listen = |port: u16| {
            format!("{{address: 127.0.0.1, port_value: {port}}}}}\n      filter_chains")
        };
        replace_once(&mut text, &listen(0), &listen(ports::free().port()));
        Self { home: tempfile::tempdir().unwrap(), text }
    }

    fn start_parent(&self) -> Envoy {
        let path = self.home.path().join("base_id");
        self.start(&hot_restart_launch(&["--base-id-path", path.to_str().unwrap()]))
    }

    fn start_child(&self) -> Envoy {
        let base_id = std::fs::read_to_string(self.home.path().join("base_id")).unwrap();
        self.start(&hot_restart_launch(&["--base-id", base_id.trim(), "--restart-epoch", "1"]))
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
    let mut fleet = Fleet::start(&limit(), (1, 2));
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
    let mut fleet = Fleet::start(&limit, (1, 2));
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
    let mut fleet = Fleet::start(&limit(), (1, 0));
    let restart = HotRestart::new(configuration(fleet.upstream.address, fleet.services[0].grpc));
    fleet.add_envoy(restart.start_parent());
    let is_over = AtomicBool::new(false);
    let child = std::thread::scope(|scope| {
        let _ends = Ends(&is_over);
        let held = [0, 0].map(|envoy| {
            let fleet = &fleet;
            scope.spawn(move || fleet.get_held_until_allowed(envoy))
        });
        fleet.upstream.wait_for_in_flight(2);
        for _ in 0..3 {
            scope.spawn(|| send_until(&fleet, &is_over));
        }
        let child = restart.start_child();
        until("two proxies in /fleet", || {
            let page = fleet_page(&fleet.services[0]);
            if proxies_of(&page).len() == 2 { Ok(()) } else { Err(page.to_string()) }
        })
        .unwrap();
        fleet.upstream.release(2);
        for client in held {
            client.join().unwrap();
        }
        child
    });
    let mut parent = std::mem::replace(&mut fleet.envoys[0], child);
    let status = parent.ended();
    assert!(status.success(), "{status}\n{}", parent.log());
    fleet.fill_and_empty(LIMIT, &[0]);
    let most = fleet.upstream.most_in_flight();
    assert!((3..=LIMIT).contains(&most), "{most} requests in flight");
    fleet.wait_until_idle(1);
}
