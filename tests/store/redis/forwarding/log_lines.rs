//! The number of log lines while releases are refused or cannot be delivered.

use super::{PeerFleet, Protocol, id};
use crate::support::log_lines::{assert_line_count, count, few_lines_during, minutes_since};
use crate::support::waiting::now;

const REFUSED: &str = "failed to forward releases";

#[test]
fn refused_releases_are_one_line_for_all_replicas() {
    let scene = PeerFleet::each(&[
        vec!["--fleet-peers-secret", "the-secret-of-this-fleet-1"],
        vec!["--fleet-peers-secret", "the-secret-of-this-fleet-1"],
        vec!["--fleet-peers-secret", "the-secret-of-another-fleet"],
    ]);
    let owners = [0, 1].map(|replica| scene.acquire(Protocol::Rls, replica, &id(9 + replica)));
    let (mut next, began) = (20, now());
    let lines = few_lines_during(&scene.fleet[2], || {
        for owner in &owners {
            next += 1;
            scene.release(Protocol::Rls, 2, &id(next), owner);
        }
    });
    assert_line_count(count(&lines, REFUSED), 1, began, &lines.join("\n"));
}

#[test]
fn a_restarted_replica_causes_few_lines_in_the_others() {
    let mut scene = PeerFleet::of(2);
    let (mut next, began) = (20, now());
    for _ in 0..3 {
        let owner = scene.acquire(Protocol::Rls, 0, &id(next));
        let restarted = scene.serve("a", &[]);
        // Killed, so that the releases name an incarnation that is gone.
        scene.fleet[0].kill();
        scene.fleet[0] = restarted;
        for _ in 0..10 {
            next += 1;
            scene.release(Protocol::Rls, 1, &id(next), &owner);
        }
    }
    let lines = few_lines_during(&scene.fleet[1], || {});
    let (log, more) = (scene.fleet[1].log(), minutes_since(began));
    let [all, last] = [log.matches(REFUSED).count(), count(&lines, REFUSED)];
    assert!(all <= 4 * (1 + more) && last <= 2 + more, "{log}");
}
