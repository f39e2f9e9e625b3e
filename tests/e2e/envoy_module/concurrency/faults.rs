//! Envoys that are killed or replaced while they have requests in flight.
//!
//! Guarantees:
//! - A request of a killed Envoy counts for `max_duration`, as if the upstream did not notice.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tempfile::TempDir;

use super::super::super::envoy::{Envoy, Launch, replace_once};
use super::super::changes::hot_restart_launch;
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

#[test]
fn another_envoy_gets_the_limit_after_the_expiry_of_a_dead_one() {
    let mut fleet = Fleet::start(&limit(), (1, 2));
    let held: Vec<_> = (0..2).map(|_| fleet.upstream.new_request(&"until released")).collect();
    let ingress = fleet.ingress(0);
    let sent = now();
    std::thread::scope(|scope| {
        let ask = |headers: [(&str, &str); 3]| {
            until("a response or the end", || match http1::get(ingress, "/", &headers) {
                Ok(reply) => Err(reply.status.to_string()),
                Err(_) => Ok(()),
            })
        };
        for request in &held {
            scope.spawn(move || ask(request.headers(KEY)).unwrap());
        }
        fleet.upstream.wait_for_in_flight(2);
        for request in &held {
            fleet.upstream.end_at(request.id, sent + MAX_DURATION);
        }
        fleet.envoys[0].kill();
    });
    fleet.envoys.remove(0);
    fleet.fill_and_empty(LIMIT, &[0]);
    let most = fleet.upstream.most_in_flight();
    assert!(most <= LIMIT, "{most} requests in flight");
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
