//! Replicas that die, hang, come back and cannot be called.

use std::io::Write as _;
use std::net::TcpStream;
use std::time::Duration;

use super::{By, NODES, Scene, counts, id, letters, metric};
use crate::waiting::{PATIENCE, now, until};

#[test]
fn an_owner_that_was_killed_and_began_anew_under_its_name_is_not_taken_for_the_old_one() {
    let mut scene = Scene::of(2);
    let (first, second) = (id(1), id(2));
    let old = scene.acquire(By::Rls, 0, &first);
    scene.fleet[0].kill();
    let port = scene.desk(0).port().to_string();
    scene.fleet[0] = scene.serve(NODES[0], &["--peer-port", &port]);
    // The same id, taken anew: the old owner's end is not its own.
    let new = scene.acquire(By::Rls, 0, &first);
    scene.acquire(By::Rls, 0, &second);
    assert_ne!(old, new);
    scene.release(By::Rls, 1, &first, &old);
    counts(&scene.fleet[1], "late", 1);
    assert_eq!(scene.in_flight(0), 2, "the old owner is gone, and its deadline was the end");
    scene.see_each_other();
    let began = now();
    scene.release(By::Rls, 1, &first, &new);
    scene.release(By::Rls, 1, &second, "");
    scene.is_free(0);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    assert_eq!(scene.remembered(), [0, 0]);
}

#[test]
fn a_replica_that_hangs_keeps_up_no_end_for_others_and_hears_its_own_when_it_goes_on() {
    let scene = Scene::of(3);
    let [hung, well, nobodys, early] = [1, 2, 3, 4].map(id);
    let (at_hung, at_well) = (scene.acquire(By::Rls, 0, &hung), scene.acquire(By::Rls, 2, &well));
    scene.acquire(By::Rls, 2, &nobodys);
    scene.fleet[0].signal("STOP");
    let began = now();
    scene.release(By::Rls, 1, &hung, &at_hung);
    scene.release(By::Rls, 1, &well, &at_well);
    scene.release(By::Rls, 1, &nobodys, "");
    scene.is_free(2);
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    // Who does not answer does not keep the others from remembering.
    assert!(!scene.tell(1, &early, ""));
    let began = now();
    until("two remember it", || {
        match [1, 2].map(|at| metric(&scene.fleet[at], "sluicegate_early_releases")) {
            [1, 1] => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .unwrap();
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    scene.fleet[0].signal("CONT");
    scene.is_free(0);
    assert_eq!(letters(&scene.fleet[1], "dropped"), 0);
}

#[test]
fn a_replica_that_is_gone_costs_its_letters_and_nothing_else() {
    let mut scene = Scene::of(3);
    let [gone, well] = [1, 2].map(id);
    let (at_gone, at_well) = (scene.acquire(By::Rls, 0, &gone), scene.acquire(By::Rls, 2, &well));
    scene.fleet[0].kill();
    scene.release(By::Rls, 1, &gone, &at_gone);
    scene.release(By::Rls, 1, &well, &at_well);
    scene.is_free(2);
    counts(&scene.fleet[1], "late", 1);
    assert!(scene.fleet[1].log().contains("takes no ends of requests"), "{}", scene.fleet[1].log());
}

#[test]
fn a_name_that_nobody_has_ends_in_three_seconds_and_one_that_is_none_is_no_name() {
    let scene = Scene::of(2);
    let (first, second) = (id(1), id(2));
    scene.acquire(By::Rls, 0, &first);
    scene.acquire(By::Rls, 0, &second);
    scene.release(By::Rls, 1, &first, "0123456789abcdef");
    counts(&scene.fleet[1], "late", 1);
    assert_eq!(scene.in_flight(0), 2);
    scene.release(By::Rls, 1, &first, "nobody");
    scene.release(By::ExtAuthz, 1, &second, "../../etc/passwd");
    scene.is_free(0);
}

#[test]
fn an_address_outside_the_networks_is_not_called() {
    let (inside, outside) = ("127.0.0.1/32", "127.0.0.0/8");
    let home = vec!["--peer-networks", inside];
    let abroad = vec!["--peer-host", "127.0.0.2", "--peer-networks", outside];
    let scene = Scene::each(&[abroad, home]);
    let (first, second) = (id(1), id(2));
    let owner = scene.acquire(By::Rls, 0, &first);
    scene.release(By::Rls, 1, &first, &owner);
    counts(&scene.fleet[1], "foreign", 1);
    assert_eq!((scene.in_flight(0), letters(&scene.fleet[0], "received")), (1, 0));
    assert!(scene.fleet[1].log().contains("`peer_networks`"), "{}", scene.fleet[1].log());
    // The other way is allowed.
    let owner = scene.acquire(By::Rls, 1, &second);
    scene.release(By::Rls, 0, &second, &owner);
    scene.is_free(1);
}

#[test]
fn a_replica_that_was_lost_from_sight_for_a_while_is_heard_and_hears_as_before() {
    let scene = Scene::of(2);
    // More parcels than a replica that begins to count anew could send in a letter's time.
    for number in 0..100 {
        let owner = scene.acquire(By::Rls, 0, &id(number));
        assert!(scene.tell(1, &id(number), &owner));
    }
    let owner = scene.acquire(By::Rls, 0, &id(100));
    scene.fleet[0].signal("STOP");
    until("it is lost from sight", || {
        let seen = super::shown(&scene.fleet[1]);
        if seen["members"].as_array().unwrap().len() == 1 { Ok(()) } else { Err(seen.to_string()) }
    })
    .unwrap();
    scene.fleet[0].signal("CONT");
    scene.see_each_other();
    scene.release(By::Rls, 1, &id(100), &owner);
    scene.is_free(0);
    assert_eq!(letters(&scene.fleet[0], "refused"), 0);
}

/// It sees the others at once, and they see it at their next beat: until then they do not hear it.
#[test]
fn a_replica_that_has_just_begun_is_heard_as_soon_as_it_is_seen() {
    let mut scene = Scene::of(1);
    let id = id(1);
    let owner = scene.acquire(By::Rls, 0, &id);
    scene.fleet.push(scene.serve(NODES[1], &[]));
    scene.release(By::Rls, 1, &id, &owner);
    scene.is_free(0);
    assert_eq!(letters(&scene.fleet[1], "late"), 0);
}

#[test]
fn a_store_that_is_gone_does_not_part_replicas_that_know_each_other() {
    let mut scene = Scene::of(2);
    let id = id(1);
    let owner = scene.acquire(By::Rls, 0, &id);
    scene.store.kill();
    scene.release(By::Rls, 1, &id, &owner);
    scene.is_free(0);
}

#[test]
fn garbage_at_the_port_for_replicas_does_nothing() {
    let scene = Scene::of(2);
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let long = vec![0xff; 1 << 20];
    for garbage in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 100], &long, &[&preface[..], &long].concat()]
    {
        let mut stream = TcpStream::connect(scene.desk(0)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        // It may be hung up on before all is sent.
        let _ = stream.write_all(garbage);
    }
    let silent: Vec<_> = (0..100).map(|_| TcpStream::connect(scene.desk(0)).unwrap()).collect();
    let id = id(1);
    let owner = scene.acquire(By::Rls, 0, &id);
    scene.release(By::Rls, 1, &id, &owner);
    scene.is_free(0);
    drop(silent);
}
