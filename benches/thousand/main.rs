//! Fleets of 1, 10, 100 and 1,000 replicas in virtual time: messages, CPU of the store, times to converge, errors.
//!
//! `cargo bench --bench thousand` prints the table, checks the laws, and ends with an error if one is broken. It also
//! plays runs with one rule omitted, whose broken law it must find. A number after `--` is the seed. `-- --plot` also
//! draws `docs/pictures/thousand.svg`.
//!
//! Each replica has 5 Envoys, 100 shared keys, and 8 permits of each of two shared concurrency limits. The store is the
//! kernel's own code in this process. Its CPU time does not include Redis, Lua, or the network: only ratios count.

#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::print_stdout)]
#![allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]

#[path = "../../tests/support/dice.rs"]
#[allow(dead_code, reason = "made for the tests, which use the rest")]
mod dice;
mod figures;
mod flaw;
mod laws;
mod oracle;
mod plot;
mod replica;
mod store;
mod world;

use std::process::ExitCode;

use figures::{Event, Figures};
use flaw::Flaw;
use world::World;

const SIZES: [u32; 4] = [1, 10, 100, 1_000];
const SEED: u64 = 42;

fn main() -> ExitCode {
    let seed = std::env::args().find_map(|argument| argument.parse().ok()).unwrap_or(SEED);
    let fleets = SIZES.map(|replicas| World::new(replicas, seed, Flaw::No, cpu_time).run());
    print_table(&fleets);
    if std::env::args().any(|argument| argument == "--plot") {
        let picture = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/pictures/thousand.svg");
        std::fs::write(picture, plot::svg(&fleets)).unwrap();
    }
    let mut broken = laws::broken_laws(&fleets, true);
    for flaw in Flaw::ALL {
        let found = World::new(30, seed, flaw, cpu_time).run().broken_law();
        println!("{flaw:?}: {}", found.as_deref().unwrap_or("not found"));
        broken.extend(found.is_none().then(|| format!("{flaw:?} was not found")));
    }
    for what in &broken {
        println!("BROKEN: {what}");
    }
    if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The CPU time of this thread, in nanoseconds.
fn cpu_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn print_table(fleets: &[Figures]) {
    let print = |what: &str, figure: &dyn Fn(&Figures) -> f64, digits: usize| {
        print!("| {what} |");
        for fleet in fleets {
            print!(" {:.digits$} |", figure(fleet));
        }
        println!();
    };
    print("replicas", &|fleet| f64::from(fleet.replicas), 0);
    for law in &laws::LAWS {
        print(law.what, &law.figure, 0);
    }
    print("CPU of the store, ms/s", &Figures::cpu_per_second, 2);
    print("CPU of shares, busiest second, ms", &|fleet| fleet.busiest.cpu as f64 / 1e6, 2);
    for event in Event::ALL {
        print(&format!("converged after {event:?}, s"), &|fleet| fleet.converged_after(event), 2);
    }
    print("permits in use / limit", &|fleet| fleet.permits, 3);
    print("hits outstanding / max_overshoot", &|fleet| fleet.outstanding, 3);
    print("hits of one key lost in the failover", &|fleet| fleet.lost as f64, 0);
}
