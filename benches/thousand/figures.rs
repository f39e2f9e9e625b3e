//! The figures of one run, and their laws.
//!
//! | figure | law |
//! |---|---|
//! | shares and requests in flight, at each instant | at most the limit |
//! | hits allowed of a key, at each second | at most the burst, the rate × time, and the hits lost |
//! | hits of leases at replicas | at most `max_overshoot` and the hits unlisted |
//! | the same hits | at most the hits that the lease table lists and the hits unlisted |
//! | time to converge after a change of demand, or after a partition ends | at most three heartbeats |
//! | time to converge after a partition, rolling update or failover | 6 s more: lifetime and `max_duration` |
//!
//! *Hits lost* are those charged in the last 100 ms before the failover, which the new store does not know.
//! *Hits unlisted* are those of leases granted or renewed in that time.

use sluicegate_kernel::units::Nanos;

use super::store::{HOT_KEYS, Key};

/// Leases of ordinary keys, of hot keys, shares of an ample limit, of a scarce limit, membership.
pub const CLASSES: usize = 5;
/// The seconds in which messages and CPU time are counted.
const COUNTED_SECONDS: f64 = 4.0;
/// The heartbeat interval and the time for which the permits of a silent replica stay reserved.
const HEARTBEAT: Nanos = Nanos::SECOND;
const LONGEST_USE: Nanos = Nanos(6 * Nanos::SECOND.0);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Start,
    Flip,
    Partition,
    Healing,
    RollingUpdate,
    Failover,
}

/// The messages about shares in one second, and their CPU time in nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Second {
    pub messages: u64,
    pub cpu: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Figures {
    pub replicas: u32,
    /// Messages to the store and its CPU time in nanoseconds, by class, in [`COUNTED_SECONDS`].
    pub messages: [u64; CLASSES],
    pub cpu: [u64; CLASSES],
    /// The replicas in all replies to membership heartbeats.
    pub listed: u64,
    /// The same of shares, in the busiest second.
    pub busiest: Second,
    second: Second,
    /// The time from each event until each replica had its part of each limit.
    pub converged: Vec<(Event, Nanos)>,
    /// An event after which the fleet had not converged before the next one.
    pub unconverged: Option<Event>,
    /// The largest part of a shared limit in use.
    pub permits: f64,
    /// The largest part of a `max_overshoot` at replicas, without the hits lost.
    pub outstanding: f64,
    /// The most hits of one key lost in the failover.
    pub lost: u64,
    /// The first broken law.
    pub broken: Option<String>,
}

impl Event {
    pub const ALL: [Self; 6] = [
        Self::Start,
        Self::Flip,
        Self::Partition,
        Self::Healing,
        Self::RollingUpdate,
        Self::Failover,
    ];

    /// The longest time to converge.
    const fn bound(self) -> Nanos {
        match self {
            // A lost departure reserves the permits as long as a crash does.
            Self::Partition | Self::Failover | Self::RollingUpdate => {
                LONGEST_USE.plus(Nanos(3 * HEARTBEAT.0))
            }
            _ => Nanos(3 * HEARTBEAT.0),
        }
    }
}

impl Figures {
    pub fn new(replicas: u32) -> Self {
        Self { replicas, ..Self::default() }
    }

    /// Records calls that the store applied, and their CPU time.
    pub fn record_calls(&mut self, is_counted: bool, class: usize, calls: u64, cpu: u64) {
        if is_counted {
            self.messages[class] += calls;
            self.cpu[class] += cpu;
        }
        if class == 2 || class == 3 {
            self.second.messages += calls;
            self.second.cpu += cpu;
        }
    }

    /// Ends a second.
    pub fn end_second(&mut self) {
        let Second { messages, cpu } = std::mem::take(&mut self.second);
        self.busiest.messages = self.busiest.messages.max(messages);
        self.busiest.cpu = self.busiest.cpu.max(cpu);
    }

    pub fn record_permits(&mut self, now: Nanos, used: u64, limit: u64) {
        self.permits = self.permits.max(used as f64 / limit as f64);
        if limit < used {
            self.break_law(now, &format!("{used} permits of {limit}"));
        }
    }

    pub fn record_key(&mut self, now: Nanos, key: &Key, allowed: u64, held: u64) {
        let refilled = u128::from(now.0) * u128::from(key.rate) / u128::from(Nanos::SECOND.0);
        let most = u64::from(key.burst) + refilled as u64 + key.lost;
        let listed = key.table.outstanding(now).0 + key.unlisted;
        self.lost = self.lost.max(key.lost);
        self.outstanding =
            self.outstanding.max(held.saturating_sub(key.unlisted) as f64 / key.budget as f64);
        if most < allowed {
            self.break_law(now, &format!("{allowed} hits allowed, the limit allows {most}"));
        }
        if key.budget + key.unlisted < held || listed < held {
            let budget = key.budget;
            self.break_law(
                now,
                &format!("{held} hits at replicas, {listed} listed, max_overshoot {budget}"),
            );
        }
    }

    fn break_law(&mut self, now: Nanos, what: &str) {
        self.broken.get_or_insert_with(|| format!("{:.2} s: {what}", now.0 as f64 / 1e9));
    }

    /// The first law that this run alone breaks.
    pub fn broken_law(&self) -> Option<String> {
        let late = self.converged.iter().find(|(event, after)| event.bound() < *after);
        let late = late
            .map(|(event, after)| format!("converged {} ms after {event:?}", after.0 / 1_000_000));
        let never = self.unconverged.map(|event| format!("not converged after {event:?}"));
        self.broken.clone().or(late).or(never)
    }

    /// Messages of some classes in one second.
    pub fn messages_per_second(&self, classes: &[usize]) -> f64 {
        classes.iter().map(|class| self.messages[*class] as f64).sum::<f64>() / COUNTED_SECONDS
    }

    /// The CPU time of one message of a class, in nanoseconds.
    pub fn cpu_of_message(&self, class: usize) -> f64 {
        self.cpu[class] as f64 / self.messages[class].max(1) as f64
    }

    pub fn listed_per_second(&self) -> f64 {
        self.listed as f64 / COUNTED_SECONDS
    }

    /// The CPU time in one second of all messages, in milliseconds.
    pub fn cpu_per_second(&self) -> f64 {
        self.cpu.iter().map(|cpu| *cpu as f64).sum::<f64>() / COUNTED_SECONDS / 1e6
    }

    /// The seconds until the fleet converged, or NaN.
    pub fn converged_after(&self, event: Event) -> f64 {
        let found = self.converged.iter().find(|(other, _)| *other == event);
        found.map_or(f64::NAN, |(_, after)| after.0 as f64 / 1e9)
    }
}

/// The class of messages about the leases of a key.
pub const fn class_of_key(key: u32) -> usize {
    if (key as usize) < HOT_KEYS { 1 } else { 0 }
}
