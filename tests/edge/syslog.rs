//! Tests of releases of permits by NGINX's syslog datagrams: parsing, latency and trusted networks.

use std::net::SocketAddr;
use std::sync::Arc;

use sluicegate::clock::Clock;
use sluicegate::config;
use sluicegate::config::settings::Networks;
use sluicegate::edge::syslog::{
    MAX_DATAGRAM_BYTES, SyslogRelease, parse_release, refine_rtt, serve,
};
use sluicegate::engine::{AdmissionOutcome, DecisionPolicy, Engine};
use sluicegate::kernel::concurrency::{
    OverloadAnswers, ReportedOutcome, RequestOutcome, UpstreamAnswer,
};
use sluicegate::kernel::decision::{Check, Cost, Descriptor};
use sluicegate::kernel::units::{Hits, Nanos, Revision};
use sluicegate::store::memory::{MemoryStore, WhenFull};
use tokio::net::UdpSocket;

use crate::support::waiting::soon;

const ID: &str = "0123456789abcdef";
const OWNER: &str = "00ff00ff00ff00ff";
const HEAD: &str = "<190>Nov 20 15:55:25 sluicegate: ";

fn read(rest: &str) -> Option<(RequestOutcome, Option<Nanos>)> {
    let datagram = format!("{HEAD}{rest}");
    let ended = parse_release(datagram.as_bytes())?;
    Some((OverloadAnswers::DEFAULT.classify(ended.outcome), ended.rtt))
}

#[test]
fn syslog_datagrams_of_nginx_are_parsed() {
    let whole = format!("{HEAD}id={ID} status=200 done=OK rtt=1.234");
    let rtt = Some(Nanos(1_234_000_000));
    let outcome = ReportedOutcome::Answered(UpstreamAnswer::with_http_status(200));
    let wanted = SyslogRelease { id: ID, owner: None, outcome, rtt };
    assert_eq!(parse_release(whole.as_bytes()), Some(wanted));
    for (fields, owner) in [("", None), ("-", None), (OWNER, Some(OWNER))] {
        let whole = whole.replace("rtt=", &format!("owner={fields} rtt="));
        assert_eq!(
            parse_release(whole.as_bytes()),
            Some(SyslogRelease { owner, ..wanted }),
            "{fields}"
        );
    }
    // In syslog dates, a day below ten is padded with a space.
    let early = whole.replace("Nov 20", "Nov  2");
    assert_eq!(parse_release(early.as_bytes()), Some(wanted));
}

#[test]
fn status_and_times_of_nginx_determine_the_request_outcome() {
    let ms = |n| Some(Nanos(n * Nanos::MILLI.0));
    for (fields, outcome, rtt) in [
        ("status=200 done=OK rtt=0.000", RequestOutcome::Success, ms(0)),
        ("status=404 done=OK rtt=0.012", RequestOutcome::Success, ms(12)),
        // These clients disconnected before or during the response.
        ("status=499 done= rtt=0.012", RequestOutcome::Ignored, ms(12)),
        ("status=200 done= rtt=0.012", RequestOutcome::Ignored, ms(12)),
        ("status=429 done=OK rtt=0.003", RequestOutcome::Dropped, ms(3)),
        ("status=429 done= rtt=0.003", RequestOutcome::Dropped, ms(3)),
        ("status=502 done=OK rtt=0.000", RequestOutcome::Dropped, ms(0)),
        ("status=504 done=OK rtt=60.001", RequestOutcome::Dropped, ms(60_001)),
        // NGINX responded without an upstream request.
        ("status=500 done=OK rtt=-", RequestOutcome::Ignored, None),
        ("status=499 done= rtt=-", RequestOutcome::Ignored, None),
        // NGINX tried several upstreams, and the last one responded.
        ("status=200 done=OK rtt=0.001, 0.250", RequestOutcome::Success, ms(250)),
        ("status=200 done=OK rtt=0.001, 0.002 : 0.003", RequestOutcome::Success, ms(3)),
        ("status=200 done=OK rtt=0.007 : -", RequestOutcome::Success, ms(7)),
    ] {
        assert_eq!(read(&format!("id={ID} {fields}")), Some((outcome, rtt)), "{fields}");
    }
}

#[test]
fn malformed_datagrams_are_rejected() {
    let good = format!("{HEAD}id={ID} status=200 done=OK rtt=0.001");
    assert!(parse_release(good.as_bytes()).is_some());
    for end in 0..good.len() {
        assert_eq!(parse_release(&good.as_bytes()[..end]), None, "cut at {end}");
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
        assert_eq!(parse_release(bad.as_bytes()), None, "{bad}");
    }
    assert_eq!(parse_release(&[good.as_bytes(), b"\xff"].concat()), None);
}

/// NGINX truncates latencies to milliseconds: 7 means 7.0 to 7.999 ms. The service measures more
/// exactly, with the small delay of the datagram.
#[test]
fn latency_measured_by_service_is_used_unless_far_above_nginx_latency() {
    let us = |n: u64| Nanos(n * 1_000);
    for (nginx, own, wanted) in [
        (us(7_000), Some(us(7_300)), us(7_300)),
        (us(0), Some(us(350)), us(350)),
        (us(7_000), Some(us(8_500)), us(8_500)),
        (us(7_000), Some(us(8_501)), us(7_500)),
        (us(7_000), None, us(7_500)),
    ] {
        assert_eq!(refine_rtt(nginx, own), wanted, "{nginx} {own:?}");
    }
}

struct SyslogPort {
    engine: Arc<Engine>,
    port: SocketAddr,
    own: UdpSocket,
}

impl SyslogPort {
    async fn trusting(networks: &str) -> Self {
        let memory = Arc::new(MemoryStore::new(10, WhenFull::Deny, [0; 16]));
        let engine =
            Arc::new(Engine::new(Clock::manual(Nanos::SECOND), memory, DecisionPolicy::default()));
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
        let question = Check { domain: "d", descriptors: [descriptor].into_iter().collect() };
        let admitted = self.engine.acquire((id, 0), &question, &question, None).await.unwrap();
        assert!(matches!(admitted, AdmissionOutcome::Decided(..)));
    }

    async fn send(&self, datagram: &[u8]) {
        self.own.send_to(datagram, self.port).await.unwrap();
    }

    fn in_flight(&self) -> u64 {
        self.engine.concurrency_limits().totals().in_flight
    }

    /// Waits until `in_flight` requests are in flight. Datagrams of a socket arrive in order, so
    /// earlier ones have been read.
    async fn wait_for_in_flight(&self, in_flight: u64) {
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
async fn a_datagram_releases_only_the_permits_of_its_request_id() {
    let port = SyslogPort::trusting("127.0.0.1").await;
    let other = "another-0123456789";
    port.acquire(ID).await;
    port.acquire(other).await;
    for dropped in [
        b"".to_vec(),
        release(ID)[..50].to_vec(),
        release("garbage"),
        release("unknown-0123456789"),
        // A datagram that starts like a release but is too long.
        [release(ID), b", 0.001".repeat(MAX_DATAGRAM_BYTES / 7)].concat(),
        vec![0xff; 60_000],
    ] {
        port.send(&dropped).await;
    }
    port.send(&release(other)).await;
    port.wait_for_in_flight(1).await;
    // A repeated release counts once.
    for _ in 0..3 {
        port.send(&release(other)).await;
    }
    port.send(&release(ID)).await;
    port.wait_for_in_flight(0).await;
}

#[tokio::test]
async fn datagrams_from_untrusted_networks_are_ignored() {
    let port = SyslogPort::trusting("127.0.0.0/8, 192.0.2.0/24").await;
    let untrusting = SyslogPort::trusting("192.0.2.0/24, ::1").await;
    for port in [&port, &untrusting] {
        port.acquire(ID).await;
        port.send(&release(ID)).await;
    }
    port.wait_for_in_flight(0).await;
    // More datagrams from an untrusted network change nothing.
    for _ in 0..100 {
        untrusting.send(&release(ID)).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(untrusting.in_flight(), 1);
}
