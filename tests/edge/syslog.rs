//! Ends of requests by datagrams: what is read, what is dropped, and who is heard.

use std::net::SocketAddr;
use std::sync::Arc;

use sluicegate::backend::memory::{Memory, WhenFull};
use sluicegate::clock::Clock;
use sluicegate::config;
use sluicegate::config::settings::Networks;
use sluicegate::edge::syslog::{Ended, LONGEST, ended, refined, serve};
use sluicegate::engine::{Admitted, Engine, Policy};
use sluicegate::kernel::concurrency::Outcome;
use sluicegate::kernel::decision::{Cost, Descriptor, Question};
use sluicegate::kernel::units::{Hits, Nanos, Revision};
use tokio::net::UdpSocket;

use crate::waiting::soon;

const ID: &str = "0123456789abcdef";
const OWNER: &str = "00ff00ff00ff00ff";
const HEAD: &str = "<190>Nov 20 15:55:25 sluicegate: ";

fn read(rest: &str) -> Option<(Outcome, Option<Nanos>)> {
    ended(format!("{HEAD}{rest}").as_bytes()).map(|ended| (ended.outcome, ended.rtt))
}

#[test]
fn what_nginx_writes_is_read() {
    let whole = format!("{HEAD}id={ID} status=200 done=OK rtt=1.234");
    let rtt = Some(Nanos(1_234_000_000));
    let wanted = Ended { id: ID, owner: None, outcome: Outcome::Success, rtt };
    assert_eq!(ended(whole.as_bytes()), Some(wanted));
    for (said, owner) in [("", None), ("-", None), (OWNER, Some(OWNER))] {
        let whole = whole.replace("rtt=", &format!("owner={said} rtt="));
        assert_eq!(ended(whole.as_bytes()), Some(Ended { owner, ..wanted }), "{said}");
    }
    // A day below ten has a blank.
    let early = whole.replace("Nov 20", "Nov  2");
    assert_eq!(ended(early.as_bytes()), Some(wanted));
}

#[test]
fn how_a_request_ended_is_what_its_status_and_its_times_say() {
    let ms = |n| Some(Nanos(n * Nanos::MILLI.0));
    for (said, outcome, rtt) in [
        ("status=200 done=OK rtt=0.000", Outcome::Success, ms(0)),
        ("status=404 done=OK rtt=0.012", Outcome::Success, ms(12)),
        // The client closed: before there was an answer, and within it.
        ("status=499 done= rtt=0.012", Outcome::Ignored, ms(12)),
        ("status=200 done= rtt=0.012", Outcome::Ignored, ms(12)),
        ("status=502 done=OK rtt=0.000", Outcome::Dropped, ms(0)),
        ("status=504 done=OK rtt=60.001", Outcome::Dropped, ms(60_001)),
        // No upstream was asked: NGINX itself answered.
        ("status=500 done=OK rtt=-", Outcome::Ignored, None),
        ("status=499 done= rtt=-", Outcome::Ignored, None),
        // Attempts: the last one is the one that answered.
        ("status=200 done=OK rtt=0.001, 0.250", Outcome::Success, ms(250)),
        ("status=200 done=OK rtt=0.001, 0.002 : 0.003", Outcome::Success, ms(3)),
        ("status=200 done=OK rtt=0.007 : -", Outcome::Success, ms(7)),
    ] {
        assert_eq!(read(&format!("id={ID} {said}")), Some((outcome, rtt)), "{said}");
    }
}

#[test]
fn what_is_not_a_release_to_the_letter_is_none() {
    let good = format!("{HEAD}id={ID} status=200 done=OK rtt=0.001");
    assert!(ended(good.as_bytes()).is_some());
    for end in 0..good.len() {
        assert_eq!(ended(&good.as_bytes()[..end]), None, "cut at {end}");
    }
    for (from, to) in [
        ("<190>", "190 "),
        ("<190>", "<192>"),
        ("<190>", "<+90>"),
        ("<190>", "<>"),
        ("Nov 20", "2026-11-20"),
        ("15:55:25", "15.55.25"),
        ("sluicegate: ", "host sluicegate: "),
        ("sluicegate:", "nginx:"),
        (ID, "0123456789abcde"),
        (ID, "0123456789abcde!"),
        (ID, ""),
        ("rtt=", "owner=00ff rtt="),
        ("rtt=", "owner=00ff00ff00ff00fg rtt="),
        ("rtt=", "owner=00ff00ff00ff00ff"),
        ("rtt=", "owner=- owner=- rtt="),
        ("status=200", "status=2000"),
        ("status=200", "status=+20"),
        ("status=200", "status=-"),
        ("done=OK", "done=ok"),
        ("done=OK ", ""),
        ("rtt=0.001", "rtt="),
        ("rtt=0.001", "rtt=0.1"),
        ("rtt=0.001", "rtt=-1.001"),
        ("rtt=0.001", "rtt=99999999999999999999.001"),
        ("rtt=0.001", "rtt=0.001,0.002"),
        ("rtt=0.001", "rtt=0.001 "),
        ("rtt=0.001", "rtt=0.001\n"),
        ("rtt=0.001", "rtt=0.001 id=another-0123456789"),
        ("id=", " id="),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good, "{from}");
        assert_eq!(ended(bad.as_bytes()), None, "{bad}");
    }
    assert_eq!(ended(&[good.as_bytes(), b"\xff"].concat()), None);
}

/// NGINX's millisecond is cut: 7 stands for 7.0 to 7.999, and what comes between the answer and the datagram is little.
#[test]
fn the_time_from_here_to_here_counts_unless_a_slow_client_had_its_part_in_it() {
    let us = |n: u64| Nanos(n * 1_000);
    for (nginx, own, wanted) in [
        (us(7_000), Some(us(7_300)), us(7_300)),
        (us(0), Some(us(350)), us(350)),
        (us(7_000), Some(us(8_500)), us(8_500)),
        (us(7_000), Some(us(8_501)), us(7_500)),
        (us(7_000), None, us(7_500)),
    ] {
        assert_eq!(refined(nginx, own), wanted, "{nginx} {own:?}");
    }
}

/// An engine under which one request is in flight, and the port for its end.
struct Scene {
    engine: Arc<Engine>,
    port: SocketAddr,
    own: UdpSocket,
}

impl Scene {
    async fn listening_to(networks: &str) -> Self {
        let memory = Arc::new(Memory::new(10, WhenFull::Deny, [0; 16]));
        let engine = Arc::new(Engine::new(Clock::manual(Nanos::SECOND), memory, Policy::default()));
        let text = b"domain: d\ndescriptors:\n- key: k\n  concurrency: {limit: 9}\n";
        let (config, _) = config::load([("a.yaml", &text[..])], Revision(1), false).unwrap();
        engine.publish(Arc::new(config));
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let port = socket.local_addr().unwrap();
        tokio::spawn(serve(socket, Arc::clone(&engine), Networks::new(networks).unwrap()));
        let own = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        Self { engine, port, own }
    }

    async fn acquire(&self, id: &str) {
        let entries = [("k", "v")].into_iter().collect();
        let descriptor = Descriptor { entries, cost: Cost::Charge(Hits(1)), limit: None };
        let question = Question { domain: "d", descriptors: [descriptor].into_iter().collect() };
        let admitted = self.engine.acquire((id, 0), &question, &question, None).await.unwrap();
        assert!(matches!(admitted, Admitted::Decided(..)));
    }

    async fn send(&self, datagram: &[u8]) {
        self.own.send_to(datagram, self.port).await.unwrap();
    }

    fn in_flight(&self) -> u64 {
        self.engine.ceilings().total().in_flight
    }

    /// Waits until so many are in flight. Datagrams of one socket arrive in their order.
    async fn comes_to(&self, in_flight: u64) {
        let comes = async {
            while self.in_flight() != in_flight {
                tokio::task::yield_now().await;
            }
        };
        soon("so many in flight", comes).await;
    }
}

fn release(id: &str) -> Vec<u8> {
    format!("{HEAD}id={id} status=200 done=OK rtt=0.001").into_bytes()
}

#[tokio::test]
async fn a_datagram_gives_back_what_its_id_holds_and_no_other_does() {
    let scene = Scene::listening_to("127.0.0.1").await;
    let other = "another-0123456789";
    scene.acquire(ID).await;
    scene.acquire(other).await;
    for dropped in [
        b"".to_vec(),
        release(ID)[..50].to_vec(),
        release("garbage"),
        release("unknown-0123456789"),
        // Its beginning is a release; the whole is too long to be one.
        [release(ID), b", 0.001".repeat(LONGEST / 7)].concat(),
        vec![0xff; 60_000],
    ] {
        scene.send(&dropped).await;
    }
    scene.send(&release(other)).await;
    scene.comes_to(1).await;
    // Twice is once.
    for _ in 0..3 {
        scene.send(&release(other)).await;
    }
    scene.send(&release(ID)).await;
    scene.comes_to(0).await;
}

#[tokio::test]
async fn who_is_not_trusted_is_not_heard() {
    let scene = Scene::listening_to("127.0.0.0/8, 192.0.2.0/24").await;
    let deaf = Scene::listening_to("192.0.2.0/24, ::1").await;
    for scene in [&scene, &deaf] {
        scene.acquire(ID).await;
        scene.send(&release(ID)).await;
    }
    scene.comes_to(0).await;
    // A second of the runtime's own datagrams later nothing has changed.
    for _ in 0..100 {
        deaf.send(&release(ID)).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(deaf.in_flight(), 1);
}
