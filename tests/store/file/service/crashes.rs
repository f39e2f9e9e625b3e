//! Crashes of `serve` under load: no limit is exceeded, and only the last interval is forgotten.

use std::fs::File;
use std::io::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use super::{Deployment, check};
use crate::support::dice::{self, Dice};
use crate::support::service::Service;
use crate::support::waiting::{Ends, now, until};

const CLIENTS: usize = 3;

/// The pause between two saves in the tests of crashes.
const INTERVAL: Duration = Duration::from_millis(10);

/// The number of crashes of a test: `SLUICEGATE_CRASHES`, or 40.
fn crashes() -> usize {
    std::env::var("SLUICEGATE_CRASHES").map_or(40, |count| count.parse().unwrap())
}

/// The checks between the start of a process and its death.
struct Life {
    /// The answered and allowed checks, oldest first.
    allowed: Vec<Instant>,
    sent: u64,
    killed_at: Instant,
}

/// The instants of the allowed checks of a process that still runs.
type AllowedChecks = Mutex<Vec<Instant>>;

/// Sends checks from several clients until `wait` returns, and then kills the process.
fn live<T>(service: &mut Service, wait: impl FnOnce(&AllowedChecks) -> T) -> (Life, T) {
    let (allowed, sent, stop) =
        (AllowedChecks::default(), AtomicU64::new(0), AtomicBool::new(false));
    let http = service.http;
    let (killed_at, waited) = std::thread::scope(|scope| {
        let _ends = Ends(&stop);
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    sent.fetch_add(1, SeqCst);
                    if check(http).is_some_and(|answer| answer.is_allowed) {
                        allowed.lock().unwrap().push(now());
                    }
                }
            });
        }
        let waited = wait(&allowed);
        let killed_at = now();
        service.kill();
        (killed_at, waited)
    });
    let mut allowed = allowed.into_inner().unwrap();
    allowed.sort_unstable();
    (Life { allowed, sent: sent.into_inner(), killed_at }, waited)
}

#[test]
fn crashes_with_sync_always_exceed_no_limit() {
    const LIMIT: usize = 1_500;
    let deployment =
        Deployment::new(LIMIT as u64, &["--store-file-sync", "always", "--store-timeout", "20s"]);
    let mut dice = Dice::new(dice::seed());
    let mut allowed = 0;
    for _ in 0..crashes() {
        let mut service = deployment.start();
        let lifetime = Duration::from_millis(dice.up_to(40));
        let (life, ()) = live(&mut service, |_| std::thread::sleep(lifetime));
        allowed += life.allowed.len();
        assert!(allowed <= LIMIT, "{allowed} checks were allowed");
    }
    let service = deployment.start();
    while check(service.http).unwrap().is_allowed {
        allowed += 1;
    }
    assert!(allowed <= LIMIT, "{allowed} checks were allowed");
}

/// A thread that saves every [`INTERVAL`] beside the service: the yardstick for its saves.
struct Yardstick {
    /// A directory of its own, because the service watches the folder of its limits.
    directory: tempfile::TempDir,
    dice: Dice,
}

impl Yardstick {
    /// Waits for `saves` saves and a few allowed checks. Returns the age of the oldest data that a
    /// crash at a random instant would forget.
    fn wait(&mut self, saves: u64, allowed: &AllowedChecks) -> Duration {
        const MIN_CHECKS: usize = 20;
        let (completed, saved_data_of, stop) =
            (AtomicU64::new(0), Mutex::new(now()), AtomicBool::new(false));
        let phase = Duration::from_micros(self.dice.up_to(10_000));
        let path = self.directory.path().join("saved");
        std::thread::scope(|scope| {
            let _ends = Ends(&stop);
            scope.spawn(|| {
                let mut file = File::create(&path).unwrap();
                while !stop.load(SeqCst) {
                    std::thread::sleep(INTERVAL);
                    let began = now();
                    file.write_all(&[1; 4_096]).unwrap();
                    file.sync_data().unwrap();
                    *saved_data_of.lock().unwrap() = began;
                    completed.fetch_add(1, SeqCst);
                }
            });
            until("saves and checks", || {
                let (done, checks) = (completed.load(SeqCst), allowed.lock().unwrap().len());
                let is_enough = saves <= done && MIN_CHECKS <= checks;
                is_enough.then_some(()).ok_or_else(|| format!("{done} saves, {checks} checks"))
            })
            .unwrap();
            std::thread::sleep(phase);
            saved_data_of.lock().unwrap().elapsed()
        })
    }
}

/// The charges that one crash forgot.
struct Loss {
    answered: usize,
    forgotten: usize,
    /// The age of the oldest forgotten charge.
    age: Duration,
    /// The age of the oldest data that the yardstick would have lost.
    yardstick: Duration,
}

/// Crashes the service after at least `saves` saves of the yardstick, `crashes` times. Asserts that
/// no restart is ahead, and that none forgets charges that an earlier start restored.
fn crash_repeatedly(crashes: usize, sync: &str, saves: u64) -> Vec<Loss> {
    const LIMIT: u64 = 1_000_000_000;
    let deployment = Deployment::new(LIMIT, &["--store-file-sync", sync]);
    let mut dice = Dice::new(dice::seed());
    let directory = tempfile::tempdir().unwrap();
    let mut yardstick = Yardstick { directory, dice: Dice::new(dice.roll()) };
    // Sends one check, and returns the hits before it.
    let restored_hits = |service: &Service| LIMIT - check(service.http).unwrap().remaining - 1;
    let mut service = deployment.start();
    let (mut used, mut checked_at) = (restored_hits(&service), now());
    let mut losses = Vec::new();
    for _ in 0..crashes {
        let saves = saves + dice.up_to(saves);
        let (life, lost_beside) = live(&mut service, |allowed| yardstick.wait(saves, allowed));
        service = deployment.start();
        let kept = restored_hits(&service);
        let sent = 1 + life.sent;
        assert!(kept <= used + sent, "{kept} hits after {used} and {sent} checks");
        assert!(used <= kept, "{kept} hits after {used} restored ones");
        let answered = [&[checked_at][..], &life.allowed].concat();
        let kept_checks = usize::try_from(kept - used).unwrap().min(answered.len());
        let age = answered.get(kept_checks).map(|oldest| life.killed_at.duration_since(*oldest));
        losses.push(Loss {
            answered: answered.len(),
            forgotten: answered.len() - kept_checks,
            age: age.unwrap_or_default(),
            yardstick: lost_beside,
        });
        (used, checked_at) = (kept, now());
    }
    losses
}

fn median(mut durations: Vec<Duration>) -> Duration {
    durations.sort_unstable();
    durations[durations.len() / 2]
}

/// The median age of the oldest forgotten charge, and the bound of it: an interval and a write. A
/// busy machine makes both late, so the bound is a multiple of the yardstick's age.
fn median_age_and_bound(losses: &[Loss]) -> (Duration, Duration) {
    let age = median(losses.iter().map(|loss| loss.age).collect());
    let yardstick = median(losses.iter().map(|loss| loss.yardstick).collect());
    (age, INTERVAL + 5 * yardstick)
}

#[test]
fn crashes_forget_only_the_last_interval() {
    let (age, bound) = median_age_and_bound(&crash_repeatedly(crashes(), "10ms", 8));
    println!("median age {age:?}, bound {bound:?}");
    assert!(age <= bound, "median {age:?}, bound {bound:?}");
}

#[test]
fn crashes_without_sync_are_caught() {
    let losses = crash_repeatedly(3, "1h", 50);
    assert!(losses.iter().all(|loss| loss.forgotten == loss.answered), "some were saved");
    let (age, bound) = median_age_and_bound(&losses);
    assert!(bound < age, "median {age:?}, bound {bound:?}");
}
