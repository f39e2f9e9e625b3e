//! A network namespace of the kernel, which a test can cut off from the machine. Needs root and `ip`.
//!
//! Guarantees:
//! - While it is cut off, packets disappear without any reply: neither end learns of it.
//! - A process of [`Namespace::command`] sees only this network.

use std::ffi::OsStr;
use std::net::Ipv4Addr;
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};

/// Nobody has this hardware address, so packets to it are lost.
const NOBODY: &str = "02:00:00:00:00:fe";

/// A namespace with one link to the machine. Drop removes both.
#[derive(Debug)]
pub struct Namespace {
    name: String,
    machine: Ipv4Addr,
    inside: Ipv4Addr,
}

impl Namespace {
    pub fn new() -> Self {
        static COUNT: AtomicU16 = AtomicU16::new(0);
        let number = std::process::id() % 10_000 * 8 + u32::from(COUNT.fetch_add(1, Relaxed) % 8);
        // 198.18.0.0/15 is for tests of networks (RFC 2544). Each link has four of its addresses.
        let first = u32::from(Ipv4Addr::new(198, 18, 0, 0)) + number % (1 << 15) * 4;
        let new = Self {
            name: format!("sg{number}"),
            machine: Ipv4Addr::from(first + 1),
            inside: Ipv4Addr::from(first + 2),
        };
        let name = &new.name;
        ip(&format!("netns add {name}"));
        ip(&format!("link add {name} type veth peer name inside netns {name}"));
        ip(&format!("address add {}/30 dev {name}", new.machine));
        ip(&format!("-n {name} address add {}/30 dev inside", new.inside));
        ip(&format!("link set {name} up"));
        ip(&format!("-n {name} link set inside up"));
        ip(&format!("-n {name} link set lo up"));
        new
    }

    /// The address of the processes inside.
    pub const fn address(&self) -> Ipv4Addr {
        self.inside
    }

    /// A command that runs inside.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command
    }

    /// Loses all packets in both directions.
    pub fn cut(&self) {
        self.cut_to_inside();
        self.cut_from_inside();
    }

    /// Loses the packets to the processes inside.
    pub fn cut_to_inside(&self) {
        let Self { name, inside, .. } = self;
        ip(&format!("neighbour replace {inside} lladdr {NOBODY} dev {name} nud permanent"));
    }

    /// Loses the packets from the processes inside.
    pub fn cut_from_inside(&self) {
        let Self { name, machine, .. } = self;
        ip(&format!(
            "-n {name} neighbour replace {machine} lladdr {NOBODY} dev inside nud permanent"
        ));
    }

    /// Carries all packets again.
    pub fn join(&self) {
        let Self { name, .. } = self;
        ip(&format!("neighbour flush dev {name} nud permanent"));
        ip(&format!("-n {name} neighbour flush dev inside nud permanent"));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        ip(&format!("netns delete {}", self.name));
    }
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}, which needs root: {error}");
}
