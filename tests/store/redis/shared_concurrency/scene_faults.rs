//! Faults of the fleet: stopped, restarted and disconnected replicas, and a restored store.

use std::time::Duration;

use super::{FleetFault, REPLICAS, SHARE_EXPIRY, SharedFleet, share};
use crate::store::redis::metric;
use crate::support::waiting::{now, soon, until};

/// The duration of a stop (SIGSTOP) of a replica, or of a store outage: its share expires.
pub(super) const FAULT_DURATION: Duration = Duration::from_millis(1_500);

const EXPIRED: &str = "sluicegate_permit_ids_total{event=\"expired\"}";

impl SharedFleet {
    pub(super) fn inject(&mut self, fault: FleetFault) {
        let at = self.random_replica();
        match fault {
            FleetFault::Kill => self.restart_replica(at),
            FleetFault::Stop => self.stop(at),
            FleetFault::Cut => {
                self.proxies[at].refuse(true);
                self.proxies[at].cut();
                std::thread::sleep(FAULT_DURATION);
                self.proxies[at].refuse(false);
            }
            FleetFault::Silence => {
                self.proxies[at].go_silent();
                std::thread::sleep(FAULT_DURATION);
                self.proxies[at].pass();
            }
            FleetFault::Flush => self.store.clear(),
            FleetFault::Restart => {
                self.store.kill();
                std::thread::sleep(SHARE_EXPIRY / 2);
                self.store.launch();
            }
            FleetFault::Snapshot => self.restore_snapshot_without_replica(at),
            FleetFault::Newcomer => self.restore_snapshot_then_new_replica(at),
            FleetFault::Rolling => {
                for at in 0..REPLICAS {
                    let mut old = self.fleet[at].take().unwrap();
                    *self.channels[at].lock() = None;
                    old.terminate();
                    old.ended().unwrap();
                    self.start(at);
                }
            }
        }
    }

    fn stop(&self, replica: usize) {
        let service = self.fleet[replica].as_ref().unwrap();
        self.inside.set_share_stopped(share(service));
        service.signal("STOP");
        let from = now();
        std::thread::sleep(FAULT_DURATION);
        *self.stops[replica].lock() = Some((from, now()));
        service.signal("CONT");
    }

    fn restart_replica(&mut self, replica: usize) {
        *self.channels[replica].lock() = None;
        self.fleet[replica] = None;
        self.start(replica);
    }

    /// Restores a snapshot of Redis that was taken before the given replica restarted. This replica
    /// keeps its share and reports last.
    fn restore_snapshot_without_replica(&mut self, replica: usize) {
        self.store.redis().command(&["SAVE"]);
        self.restart_replica(replica);
        self.wait_until_full();
        self.restore_snapshot(&[replica], |_| {});
    }

    /// Restores a snapshot of Redis. The first report comes from a new replica that is in no
    /// snapshot.
    fn restore_snapshot_then_new_replica(&mut self, replica: usize) {
        self.store.redis().command(&["SAVE"]);
        self.wait_until_full();
        let others: Vec<usize> = (0..REPLICAS).filter(|other| *other != replica).collect();
        self.restore_snapshot(&others, |scene| scene.restart_replica(replica));
    }

    /// Restarts Redis from its snapshot and runs `then` while the `disconnected` replicas cannot
    /// report.
    fn restore_snapshot(&mut self, disconnected: &[usize], then: impl FnOnce(&mut Self)) {
        for at in disconnected {
            self.proxies[*at].refuse(true);
            self.proxies[*at].cut();
        }
        self.store.kill();
        self.store.redis().launch(&["--port", "0"]);
        // Redis accepts connections before it has loaded the snapshot.
        until("the snapshot is read", || {
            let info = self.store.redis().command(&["INFO", "persistence"]).text();
            let loaded = info.lines().any(|line| {
                line.strip_prefix("rdb_last_load_keys_loaded:").is_some_and(|keys| keys != "0")
            });
            if loaded { Ok(()) } else { Err(info) }
        })
        .unwrap();
        std::fs::remove_file(self.store.socket().with_file_name("dump.rdb")).unwrap();
        then(self);
        std::thread::sleep(SHARE_EXPIRY / 2);
        for at in disconnected {
            self.proxies[*at].refuse(false);
        }
    }

    /// Stops all callers. Returns the time until no replica has a permit in use. Asserts that all
    /// permits were released, and none expired.
    pub(super) fn drain(&mut self) -> Duration {
        let expired =
            || -> u64 { self.fleet.iter().flatten().map(|service| metric(service, EXPIRED)).sum() };
        let (expired_before, late_before) = (expired(), self.inside.late_releases());
        self.inside.finish();
        let callers = std::mem::take(&mut self.callers);
        let all_ended = async {
            for caller in callers {
                soon("the end of a caller", caller).await.unwrap();
            }
        };
        self.runtime.block_on(all_ended);
        let last = now();
        assert_eq!(self.inside.in_flight(), 0);
        for service in self.fleet.iter().flatten() {
            until("no place is held", || match metric(service, "sluicegate_requests_in_flight") {
                0 => Ok(()),
                held => Err(held.to_string()),
            })
            .unwrap();
        }
        let delay = last.elapsed();
        let late = self.inside.late_releases() - late_before;
        assert!(expired() - expired_before <= late, "a release was lost: {late} were late");
        delay
    }
}
