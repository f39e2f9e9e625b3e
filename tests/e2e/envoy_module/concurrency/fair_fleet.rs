//! Classes over a fleet of Envoys: a flood at one of them leaves the permits to the first class.
//!
//! Without classes, each Envoy would get a third of the limit, because each wants more than that.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::super::super::envoy::{Envoy, replace_once};
use super::super::launch;
use super::{Fleet, KEY, SHARED};
use crate::support::http1;
use crate::support::service::sluicegate;
use crate::support::waiting::{Ends, until};

const LIMIT: usize = 12;

const ENVOYS: usize = 3;

/// The requests of the first class. Two permits are left: an Envoy without entitlement keeps one, and the
/// other Envoys differ by one.
const CRITICAL: usize = LIMIT - 2;

/// The clients of the flood.
const FLOOD: usize = 24;

/// A fleet of three Envoys, which send the class of a request.
fn start() -> Fleet {
    let limit = format!(
        "limit: {LIMIT}, mode: shared, max_duration: 1m, \
         classes: {{by: tier, up_to: {{critical: 100%, batch: 50%}}}}"
    );
    let mut fleet = Fleet::start(SHARED, &limit, (2, 0));
    // Nothing is in flight yet, so the limit need not wait for `max_duration`.
    let mut end_wait = sluicegate();
    end_wait.args(["fleet", "start", "--yes", "--store-url", &fleet.setup.redis.url()]);
    assert!(end_wait.output().unwrap().status.success());
    for number in 0..ENVOYS {
        let (upstream, service) = (fleet.upstream.address, fleet.services[number % 2].grpc);
        let mut text = fleet.setup.configuration(upstream, service);
        let first = "- - request_headers: {header_name: x-api-key, descriptor_key: api_key}";
        let class = "- - request_headers: {header_name: x-tier, descriptor_key: tier}";
        replace_once(&mut text, first, &format!("{first}\n{}{class}", " ".repeat(28)));
        fleet.add_envoy(Envoy::launch(text, 0, &launch("1.40")));
    }
    fleet
}

/// Sends a request of a class. Returns `true` if the upstream served it.
fn send(fleet: &Fleet, envoy: usize, tier: &str, hold: &str) -> bool {
    let request = fleet.upstream.new_request(&hold);
    let headers = [&request.headers(KEY)[..], &[("x-tier", tier)]].concat();
    http1::get(fleet.ingress(envoy), "/", &headers).unwrap().status == 200
}

#[test]
fn a_flood_of_batch_at_one_envoy_leaves_the_permits_to_critical() {
    let fleet = start();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&is_over);
        for _ in 0..FLOOD {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    send(&fleet, 0, "batch", "20");
                }
            });
        }
        for client in 0..CRITICAL {
            let (fleet, envoy) = (&fleet, 1 + client % 2);
            scope.spawn(move || {
                until("a permit for critical", || {
                    let is_served = send(fleet, envoy, "critical", "until released");
                    if is_served { Ok(()) } else { Err("rejected".to_owned()) }
                })
                .unwrap();
            });
        }
        until("permits for critical", || match fleet.upstream.held() {
            held if held == CRITICAL => Ok(()),
            held => Err(held.to_string()),
        })
        .unwrap();
        is_over.store(true, Relaxed);
        fleet.upstream.release(CRITICAL);
    });
    assert!(fleet.upstream.most_in_flight() <= LIMIT);
}
