//! A store whose network is lost: it runs in a network namespace of its own. Needs root.
//!
//! Unlike the faults of a proxy, nothing acknowledges what is sent: TCP itself waits, and sends again.

use std::process::{Child, Stdio};

use super::redis::faults::{FLAGS, LIMIT};
use super::redis::network::{Network, NetworkFault, watch_faults};
use super::redis::{limits, serve};
use crate::support::namespace::Namespace;
use crate::support::postgres::Postgres;
use crate::support::waiting::for_a_day_with_a_minute_left;

const FAULTS: [NetworkFault<Namespace>; 3] = [
    NetworkFault {
        what: "packets are lost both ways",
        promised: "no answer waits longer than the deadline",
        strike: Namespace::cut,
        fails: true,
    },
    NetworkFault {
        what: "packets to the store are lost",
        promised: "the same",
        strike: Namespace::cut_to_inside,
        fails: true,
    },
    NetworkFault {
        what: "packets from the store are lost",
        promised: "the same; charged hits stay",
        strike: Namespace::cut_from_inside,
        fails: true,
    },
];

impl Network for Namespace {
    fn heal(&self) {
        self.join();
    }
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Starts a Redis inside.
fn start_redis(network: &Namespace, home: &std::path::Path) -> Running {
    let mut command = network.command("redis-server");
    command.args(["--save", "", "--protected-mode", "no", "--bind"]);
    command.arg(network.address().to_string()).current_dir(home);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Running(command.spawn().unwrap())
}

#[test]
fn a_lost_network_to_redis_delays_no_decision_beyond_the_timeout() {
    for_a_day_with_a_minute_left();
    let (network, home, limits) = (Namespace::new(), tempfile::tempdir().unwrap(), limits(LIMIT));
    let _redis = start_redis(&network, home.path());
    let service = serve(limits.path(), &format!("redis://{}", network.address()), &FLAGS);
    watch_faults(&service, &network, &FAULTS);
}

#[test]
fn a_lost_network_to_postgres_delays_no_decision_beyond_the_timeout() {
    for_a_day_with_a_minute_left();
    let (network, limits) = (Namespace::new(), limits(LIMIT));
    let _server = Postgres::start_in(&network);
    let url = format!("postgres://postgres@{}/postgres", network.address());
    let service = serve(limits.path(), &url, &FLAGS);
    watch_faults(&service, &network, &FAULTS);
}
