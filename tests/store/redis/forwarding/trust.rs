//! Authentication between replicas, by secret and by certificate.

use prost::Message as _;
use sluicegate::edge::grpc::peer::api::peers_client::PeersClient;
use sluicegate::edge::grpc::peer::api::{Batch, Event, IdState, Outcome, Update, Updates};
use sluicegate::edge::grpc::peer::{BatchSigner, MAX_BATCH_MESSAGES};
use sluicegate::engine::fleet::incarnation::incarnation_name;
use tonic::Code;
use tonic::transport::Endpoint;

use super::{PeerFleet, Protocol, id, peer_events, wait_for_count};
use crate::support::certificates::Authority;
use crate::support::dice::{Dice, seed};
use crate::support::service::Service;
use crate::support::waiting::{PATIENCE, until};

const SECRET: &str = "the-secret-of-this-fleet-1";

fn update(id: &str) -> Update {
    let (event, outcome) = (Event::Released.into(), Outcome::Success.into());
    Update { id: id.to_owned(), event, outcome, ..Update::default() }
}

fn batch(from: &str, to: &str, sequence: u64, updates: Vec<Update>) -> Batch {
    let updates = Updates { updates }.encode_to_vec();
    Batch { from: from.to_owned(), to: to.to_owned(), sequence, updates, signature: Vec::new() }
}

fn signed(mut batch: Batch, secret: &str) -> Batch {
    batch.signature = BatchSigner::new(secret).sign(&batch);
    batch
}

impl PeerFleet {
    /// Sends `batch` to the first replica, as any client with access to the peer port could.
    fn deliver(&self, batch: Batch) -> Result<Vec<i32>, Code> {
        let _inside = self.runtime.enter();
        let endpoint = Endpoint::from_shared(format!("http://{}", self.peer_address(0))).unwrap();
        let endpoint = endpoint.timeout(PATIENCE);
        let mut client = PeersClient::new(endpoint.connect_lazy());
        let delivered = self.runtime.block_on(client.deliver(batch));
        delivered.map(|result| result.into_inner().states).map_err(|status| status.code())
    }
}

#[test]
fn only_authenticated_peer_messages_are_accepted_and_only_once() {
    let scene = PeerFleet::with(2, &["--fleet-peers-secret", SECRET]);
    let [first, second, third] = [1, 2, 3].map(id);
    let a = scene.acquire(Protocol::Rls, 0, &first);
    scene.acquire(Protocol::Rls, 0, &second);
    let b = scene.acquire(Protocol::Rls, 1, &third);
    let ends = |id: &str| vec![update(id)];

    let good = batch(&b, &a, 1_000, ends(&first));
    assert_eq!(scene.deliver(good.clone()), Err(Code::PermissionDenied), "no signature");
    let forged = signed(good.clone(), "the-secret-of-this-fleet-2");
    assert_eq!(scene.deliver(forged), Err(Code::PermissionDenied), "another secret");
    let mut changed = signed(good.clone(), SECRET);
    changed.updates = Updates { updates: ends(&second) }.encode_to_vec();
    assert_eq!(
        scene.deliver(changed),
        Err(Code::PermissionDenied),
        "the signature of another batch"
    );
    assert_eq!(peer_events(&scene.fleet[0], "rejected"), 3);
    assert_eq!(scene.in_flight(0), 2, "nothing was heeded");

    let good = signed(good, SECRET);
    assert_eq!(scene.deliver(good.clone()), Ok(vec![IdState::HadPermits.into()]));
    assert_eq!(scene.in_flight(0), 1);
    assert_eq!(scene.deliver(good), Err(Code::PermissionDenied), "it came before");
    let old = signed(batch(&b, &a, 936, ends(&second)), SECRET);
    assert_eq!(scene.deliver(old), Err(Code::PermissionDenied), "64 before the last");

    let former = signed(batch(&incarnation_name("b", 1), &a, 1, ends(&second)), SECRET);
    assert_eq!(scene.deliver(former), Err(Code::FailedPrecondition), "an earlier incarnation");
    let own = signed(batch(&a, &a, 1, ends(&second)), SECRET);
    assert_eq!(scene.deliver(own), Err(Code::FailedPrecondition), "nobody writes to itself");
    let elsewhere = signed(batch(&b, &incarnation_name("a", 1), 1_001, ends(&second)), SECRET);
    assert_eq!(scene.deliver(elsewhere), Err(Code::NotFound), "for an earlier incarnation");

    let mut garbage = batch(&b, &a, 1_002, Vec::new());
    garbage.updates = vec![0xff; 100];
    assert_eq!(scene.deliver(signed(garbage, SECRET)), Err(Code::InvalidArgument));
    let many = signed(batch(&b, &a, 1_003, vec![update(&second); MAX_BATCH_MESSAGES + 1]), SECRET);
    assert_eq!(scene.deliver(many), Err(Code::InvalidArgument), "one update too many");
    assert_eq!(scene.in_flight(0), 1, "nothing was heeded");
    let mixed = vec![update("!"), update(&third), update(&second)];
    let want = [IdState::Malformed, IdState::Unknown, IdState::HadPermits].map(i32::from);
    assert_eq!(scene.deliver(signed(batch(&b, &a, 1_004, mixed), SECRET)), Ok(want.to_vec()));
    scene.wait_until_idle(0);
    assert_eq!(scene.early_releases(), [0, 0]);
    for service in &scene.fleet {
        assert!(!service.log().contains(SECRET) && !service.said.contains(SECRET));
    }
}

fn any_update(dice: &mut Dice, known: &str) -> Update {
    let any_number = |dice: &mut Dice| dice.pick(&[0, 1, 1 << 40, u64::MAX]);
    let id = match dice.up_to(3) {
        0 => "x".repeat(usize::try_from(dice.up_to(1_000)).unwrap()),
        1 => known.to_owned(),
        number => id(usize::try_from(1_000 + number).unwrap()),
    };
    let [event, outcome] = [(); 2].map(|()| i32::try_from(dice.up_to(5)).unwrap());
    let rtt_ns = dice.once_in(2).then(|| any_number(dice));
    let source = vec![7; usize::try_from(dice.up_to(20)).unwrap()];
    Update { id, event, outcome, rtt_ns, source, ..Update::default() }
}

/// A batch of a client that does not know the secret: it changes or repeats batches of others.
#[test]
fn random_unauthenticated_batches_release_no_permit() {
    let scene = PeerFleet::with(2, &["--fleet-peers-secret", SECRET]);
    let [first, second] = [1, 2].map(id);
    let a = scene.acquire(Protocol::Rls, 0, &first);
    let b = scene.acquire(Protocol::Rls, 1, &second);
    let recorded = signed(batch(&b, &a, 1_000, vec![update(&id(3))]), SECRET);
    scene.deliver(recorded.clone()).unwrap();
    let seed = seed();
    let mut dice = Dice::new(seed);
    for _ in 0..1_000 {
        let updates = (0..dice.up_to(20)).map(|_| any_update(&mut dice, &first)).collect();
        let sequence = dice.pick(&[0, 1_000, 1_001, u64::MAX]);
        let names = [&*a, &*b, "", "another-0123456789abcdef"];
        let forged = batch(dice.pick(&names), dice.pick(&names), sequence, updates);
        let sent = match dice.up_to(3) {
            0 => recorded.clone(),
            1 => Batch { signature: recorded.signature.clone(), ..forged },
            2 => Batch { signature: vec![9; usize::try_from(dice.up_to(99)).unwrap()], ..forged },
            _ => signed(forged, "the-secret-of-another-fleet"),
        };
        assert_eq!(scene.deliver(sent), Err(Code::PermissionDenied), "SLUICEGATE_SEED={seed}");
    }
    assert_eq!([scene.in_flight(0), scene.in_flight(1)], [1, 1]);
    scene.release(Protocol::Rls, 0, &first, &a);
    scene.wait_until_idle(0);
}

#[test]
fn a_replica_with_another_secret_is_rejected() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{SECRET}\n")).unwrap();
    let file = file.path().display().to_string();
    let known = vec!["--fleet-peers-secret", SECRET];
    let scene = PeerFleet::each(&[
        known,
        vec!["--fleet-peers-secret-file", &file],
        vec!["--fleet-peers-secret", "the-secret-of-another-fleet"],
    ]);
    let (first, second) = (id(1), id(2));
    let owner = scene.acquire(Protocol::Rls, 0, &first);
    scene.acquire(Protocol::Rls, 0, &second);
    scene.release(Protocol::Rls, 2, &first, &owner);
    wait_for_count(&scene.fleet[2], "timed_out", 1);
    assert_eq!(scene.in_flight(0), 2);
    assert!(scene.fleet[2].log().contains("is `fleet.peers.secret` the same on all replicas?"));
    scene.release(Protocol::Rls, 1, &first, &owner);
    scene.release(Protocol::Rls, 1, &second, "");
    scene.wait_until_idle(0);
}

#[test]
fn rolling_secret_rotation_loses_no_release() {
    let (old, new) = (SECRET, "the-secret-of-this-fleet-2");
    let files = [(); 2].map(|()| tempfile::NamedTempFile::new().unwrap());
    for file in &files {
        std::fs::write(file.path(), old).unwrap();
    }
    let paths = files.each_ref().map(|file| file.path().display().to_string());
    let flags = paths.each_ref().map(|path| vec!["--fleet-peers-secret-file", &**path]);
    let mut scene = PeerFleet::each(&flags);
    let pass_on = |scene: &PeerFleet, from: usize, to: usize, number: usize| {
        let owner = scene.acquire(Protocol::Permits, to, &id(number));
        scene.release_by_api(from, &id(number), &owner);
        scene.wait_until_idle(to);
    };
    let read_anew = |service: &crate::support::service::Service, words: &str| {
        until(words, || match service.log() {
            log if log.contains(words) => Ok(()),
            log => Err(log),
        })
        .unwrap();
    };
    let words = "fleet.peers.secret_file reloaded";
    std::fs::write(files[0].path(), new).unwrap();
    read_anew(&scene.fleet[0], words);
    pass_on(&scene, 0, 1, 1);
    pass_on(&scene, 1, 0, 2);
    // A replica that starts after the rotation knows only the new secret.
    scene.fleet.push(scene.serve("c", &["--fleet-peers-secret", new]));
    scene.wait_until_peers_known();
    pass_on(&scene, 0, 2, 3);
    pass_on(&scene, 2, 0, 4);
    std::fs::write(files[1].path(), "short").unwrap();
    read_anew(&scene.fleet[1], "keeping the previous secret");
    pass_on(&scene, 1, 0, 5);
    std::fs::write(files[1].path(), new).unwrap();
    read_anew(&scene.fleet[1], words);
    pass_on(&scene, 1, 2, 6);
    pass_on(&scene, 2, 1, 7);
    for service in &scene.fleet {
        assert_eq!(peer_events(service, "rejected"), 0);
        assert!(!service.log().contains(new) && !service.log().contains(old));
    }
}

#[test]
fn peers_without_a_trusted_certificate_are_rejected() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (ours, theirs) = (authority.sign(&["peers.sluicegate"]), other.sign(&["peers.sluicegate"]));
    let misnamed = authority.sign(&["somebody.else"]);
    let (ca, their_ca) = (authority.ca(), other.ca());
    let of = |files: &crate::support::certificates::Files, ca: &str| {
        let pairs = [
            ("--fleet-peers-tls-cert-file", files.certificate.clone()),
            ("--fleet-peers-tls-key-file", files.key.clone()),
            ("--fleet-peers-tls-ca-file", ca.to_owned()),
            ("--fleet-peers-tls-server-name", "peers.sluicegate".to_owned()),
        ];
        pairs.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect::<Vec<_>>()
    };
    for stranger in [of(&theirs, &their_ca), of(&theirs, &ca), of(&misnamed, &ca), Vec::new()] {
        let members = [of(&ours, &ca), of(&ours, &ca), stranger];
        let members = members.each_ref().map(|flags| flags.iter().map(|flag| &**flag).collect());
        let scene = PeerFleet::each(&members);
        let id = id(1);
        let owner = scene.acquire(Protocol::Rls, 0, &id);
        scene.release(Protocol::Rls, 2, &id, &owner);
        wait_for_count(&scene.fleet[2], "timed_out", 1);
        assert_eq!((scene.in_flight(0), peer_events(&scene.fleet[0], "received")), (1, 0));
        scene.release(Protocol::Rls, 1, &id, &owner);
        scene.wait_until_idle(0);
        let plain = batch(&owner, &owner, 1, Vec::new());
        assert!(scene.deliver(plain).is_err(), "plain text");
    }
}

#[test]
fn insecure_peer_settings_prevent_startup() {
    let scene = PeerFleet::of(0);
    let url = scene.store.url();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "short\n").unwrap();
    let path = file.path().display().to_string();
    for (flags, expected) in [
        (&["--listen-peer-host", "0.0.0.0"][..], "set fleet.peers.secret_file"),
        (
            &["--listen-peer-host", "0.0.0.0", "--fleet-peers-secret", SECRET],
            "set fleet.peers.address",
        ),
        (&["--fleet-peers-secret", "short"], "shorter than 16"),
        (&["--fleet-peers-secret", SECRET, "--fleet-peers-secret-file", "/x"], "keep one of them"),
        (&["--fleet-peers-secret-file", "/nowhere"], "/nowhere"),
        (&["--fleet-peers-secret-file", &path], "at least 16"),
        (&["--fleet-peers-tls-cert-file", "/x"], "set all four"),
        (&["--fleet-peers-networks", "10.0.0.0/8"], "outside of `fleet.peers.networks`"),
        (
            &["--listen-peer-port", "none", "--fleet-peers-secret", SECRET],
            "connects to no other replica",
        ),
    ] {
        let all: Vec<_> =
            ["--store-url", &url].iter().chain(flags).map(|&f| f.to_owned()).collect();
        let refused = Service::start(scene.limits.path(), &all);
        let why = refused.err().expect("it must not start");
        assert!(why.contains(expected), "{flags:?}: {why}");
        assert!(!why.contains(SECRET) && !why.contains("short\n"), "{why}");
    }
}
