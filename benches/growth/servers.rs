//! The server's CPU for a check, by connections and by checks in flight.

use std::process::Command;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::Curve;
use crate::service::{ARGUMENTS, LIMITS, Load, Server, tokio};

const TURNS: usize = 5;
const CALLS: u64 = 20_000;
const KEYS: u64 = 1_000;

pub fn curves() -> [Curve; 2] {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).unwrap();
    // Fewer than 10,000 if this process, or the server, may not open as many files.
    let most = maximum.map_or(10_000, |files| 10_000.min(files.saturating_sub(1_000)));
    let most = usize::try_from(most).unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("shop.yaml"), LIMITS).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    command.args(ARGUMENTS).arg("--listen-max-connections=10100");
    let server = Server::start(command.arg("--limits-paths").arg(dir.path()));
    let client = tokio(1);
    let cost = |load: &Load| {
        let cost = client.block_on(server.cpu_per_call_under(*load, CALLS));
        // The closed connections take CPU of the server, too.
        std::thread::sleep(Duration::from_millis(if load.connections < 100 { 0 } else { 1_500 }));
        cost
    };
    let load = |connections, in_flight| Load { connections, in_flight, ..Load::usual(KEYS) };
    cost(&load(4, 32));
    let connections = Curve::measure(
        ("connections", "up to one read and one write for each check"),
        TURNS,
        &[1, 10, 100, 1_000, most].map(|connections| load(connections, 128)),
        |load| load.connections as f64,
        cost,
    );
    let in_flight = Curve::measure(
        ("in flight", "falling: more checks for each read and write"),
        TURNS,
        &[1, 4, 16, 64, 250, 1_000].map(|in_flight| load(1, in_flight)),
        |load| load.in_flight as f64,
        cost,
    );
    [connections, in_flight]
}
