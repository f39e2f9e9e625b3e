//! Ceilings on requests in flight, held by NGINX: by the ids and datagrams of the stock one, and by the connections of its Lua module. A
//! place is taken once and comes back, however the request ends.

use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;

use tempfile::TempDir;

use super::envoy::{WhenDown, replace_once};
use super::in_flight::{HOOKS, gauge, over_all, shows};
use super::nginx::{Nginx, Shipped};
use super::visits::{Visit, Visits};
use crate::http1::{self, Reply};
use crate::service::Service;
use crate::support::ports;
use crate::waiting::{PATIENCE, for_a_day_with_a_minute_left, until};

/// How NGINX holds a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Datagrams,
    Lua,
}

pub(super) const BOTH: [By; 2] = [By::Datagrams, By::Lua];

/// A client, NGINX, the service, and an upstream that answers by hand.
pub(super) struct Scene {
    _limits: TempDir,
    pub(super) service: Service,
    pub(super) nginx: Nginx,
    pub(super) upstream: Visits,
}

fn service(limits: &TempDir) -> Service {
    let flags = ["--hooks", HOOKS, "--drain-delay", "1ms", "--retry-after", "true"];
    let flags = flags.iter().chain(&["--response-headers", "draft", "--syslog-port", "0"]);
    let flags: Vec<_> = flags.map(|&flag| flag.to_owned()).collect();
    Service::start(limits.path(), &flags).unwrap()
}

impl Scene {
    /// With these descriptors in the domain that the hook asks about.
    fn with(by: By, descriptors: &str) -> Self {
        Self::before(by, descriptors, Visits::listen())
    }

    fn before(by: By, descriptors: &str, upstream: Visits) -> Self {
        Self::changed(by, descriptors, upstream, |_| {})
    }

    /// With something changed in the shipped configuration.
    pub(super) fn changed(
        by: By,
        descriptors: &str,
        upstream: Visits,
        change: impl Fn(&mut String),
    ) -> Self {
        let limits = tempfile::tempdir().unwrap();
        let text = format!("domain: edge\ndescriptors:\n{descriptors}");
        std::fs::write(limits.path().join("edge.yaml"), text).unwrap();
        let service = service(&limits);
        let shipped = shipped(by, service.syslog().unwrap());
        let (app, asked) = (upstream.address, service.http);
        let nginx = Nginx::start_changed(shipped, app, asked, WhenDown::Allow, change);
        Self { _limits: limits, service, nginx, upstream }
    }

    /// The ceiling over everything says this.
    pub(super) fn under(by: By, ceiling: &str) -> Self {
        Self::with(by, &over_all(ceiling))
    }

    /// Sends a request whose answer is waited for elsewhere.
    pub(super) fn send(&self) -> JoinHandle<std::io::Result<Reply>> {
        let ingress = self.nginx.ingress;
        std::thread::spawn(move || http1::get(ingress, "/", &[]))
    }

    /// Sends a request and keeps only the connection.
    pub(super) fn connect(&self) -> TcpStream {
        self.connect_to_say("GET / HTTP/1.1\r\nhost: edge\r\n\r\n")
    }

    /// The same with a request, or a part of one, that is written out.
    pub(super) fn connect_to_say(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.nginx.ingress).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream
    }

    fn get(&self) -> Reply {
        http1::get(self.nginx.ingress, "/", &[]).unwrap()
    }

    pub(super) fn waits(&self, waiting: u64) {
        shows(self.service.metrics, "sluicegate_requests_queued", waiting);
    }

    pub(super) fn holds(&self, in_flight: u64) {
        shows(self.service.metrics, "sluicegate_requests_in_flight", in_flight);
    }
}

fn answered(client: JoinHandle<std::io::Result<Reply>>) -> u16 {
    client.join().unwrap().unwrap().status
}

#[test]
fn a_ceiling_is_held_exactly_and_a_place_is_free_when_a_request_ends() {
    for by in BOTH {
        let scene =
            Scene::under(by, "limit: 3, reject: {status: 503, retry_after: 1500ms, body: busy}");
        let clients: Vec<_> = (0..3).map(|_| scene.send()).collect();
        let mut visits: Vec<_> = (0..3).map(|_| scene.upstream.next()).collect();
        scene.holds(3);
        for _ in 0..5 {
            let turned_away = scene.get();
            let log = scene.nginx.log();
            assert_eq!((turned_away.status, &*turned_away.text()), (503, "busy"), "{by:?} {log}");
            assert_eq!(turned_away.header("retry-after"), Some("2"), "rounded up");
            assert_eq!(turned_away.header("x-deny-status"), None);
        }
        scene.holds(3);
        visits.pop().unwrap().answer();
        scene.holds(2);
        let fourth = scene.send();
        visits.push(scene.upstream.next());
        scene.holds(3);
        visits.into_iter().for_each(Visit::answer);
        for client in clients.into_iter().chain([fourth]) {
            assert_eq!(answered(client), 200);
        }
        scene.holds(0);
    }
}

#[test]
fn a_streamed_body_holds_its_place_to_its_last_byte() {
    for by in BOTH {
        let scene = Scene::under(by, "limit: 1, reject: {status: 429}");
        let client = scene.send();
        let mut visit = scene.upstream.next();
        visit.begin();
        assert_eq!(scene.get().status, 429);
        scene.holds(1);
        visit.end();
        scene.holds(0);
        assert_eq!(answered(client), 200);
    }
}

#[test]
fn a_client_that_goes_frees_its_place_while_waiting_and_mid_body_and_in_the_queue() {
    for by in BOTH {
        let scene = Scene::under(by, "limit: 1, queue: {size: 1, timeout: 9s}");
        for begun in [false, true] {
            let client = scene.connect();
            let mut visit = scene.upstream.next();
            if begun {
                // More than NGINX keeps for itself, so that it meets the client that is gone.
                visit.stream();
            }
            scene.holds(1);
            let waits = scene.connect();
            scene.waits(1);
            assert_eq!(scene.get().status, 503, "the queue is full");
            drop(waits);
            scene.waits(0);
            scene.holds(1);
            drop(client);
            scene.holds(0);
        }
    }
}

#[test]
fn an_upstream_that_goes_frees_the_place_before_the_answer_and_within_it() {
    for by in BOTH {
        let scene = Scene::under(by, "limit: 1");
        for begun in [false, true] {
            let client = scene.send();
            let mut visit = scene.upstream.next();
            if begun {
                visit.begin();
            }
            scene.holds(1);
            visit.reset();
            // A request that NGINX can send again it may.
            scene.holds(0);
            let reply = client.join().unwrap();
            assert!(reply.is_err() || reply.unwrap().status == if begun { 200 } else { 502 });
        }
    }
}

#[test]
fn an_upstream_that_refuses_frees_the_place() {
    for by in BOTH {
        let mut upstream = Visits::listen();
        upstream.address = ports::free();
        let scene = Scene::before(by, &over_all("limit: 1"), upstream);
        for _ in 0..2 {
            assert_eq!(scene.get().status, 502);
            scene.holds(0);
        }
    }
}

#[test]
fn one_that_waits_is_let_in_when_a_place_is_free_and_turned_away_when_it_is_late() {
    for by in BOTH {
        let scene = Scene::under(by, "limit: 1, queue: {size: 1, timeout: 9s}");
        let first = scene.send();
        let held = scene.upstream.next();
        let waits = scene.send();
        scene.waits(1);
        held.answer();
        scene.upstream.next().answer();
        assert_eq!([answered(first), answered(waits)], [200, 200]);
        scene.holds(0);

        let scene = Scene::under(by, "limit: 1, queue: {size: 1, timeout: 50ms}");
        let first = scene.send();
        let held = scene.upstream.next();
        assert_eq!(scene.get().status, 503);
        held.answer();
        assert_eq!(answered(first), 200);
        scene.holds(0);
    }
}

#[test]
fn a_rate_limit_denies_with_429_and_gives_the_place_back() {
    for by in BOTH {
        let scene = Scene::with(
            by,
            "- key: upstream\n  value: all\n  concurrency: {limit: 1}\n\
             - key: api_key\n  rate_limit: {unit: year, requests_per_unit: 1, name: per-key}\n",
        );
        for_a_day_with_a_minute_left();
        let ingress = scene.nginx.ingress;
        let ask = move || http1::get(ingress, "/", &[("x-api-key", "k")]).unwrap();
        let first = std::thread::spawn(ask);
        scene.upstream.next().answer();
        let first = first.join().unwrap();
        assert_eq!(first.status, 200);
        assert!(first.header("ratelimit").is_some(), "{first:?}");
        scene.holds(0);
        for _ in 0..3 {
            let denied = ask();
            assert_eq!(denied.status, 429, "{by:?} {}", scene.nginx.log());
            assert!(denied.header("retry-after").is_some(), "{denied:?}");
            assert!(denied.header("ratelimit-policy").is_some(), "{denied:?}");
            scene.holds(0);
        }
    }
}

/// `error_page` catches this 403 as well, and by then the place is held.
#[test]
fn a_403_that_nginx_says_of_a_request_that_may_pass_reaches_the_client_and_gives_the_place_back() {
    let files = tempfile::tempdir().unwrap();
    // A directory without an index, which is not to be listed.
    let serves = format!("root {};", files.path().display());
    for by in BOTH {
        let ceiling = over_all("limit: 1, reject: {status: 503}");
        let scene = Scene::changed(by, &ceiling, Visits::listen(), |text| {
            replace_once(text, "proxy_pass http://app;", &serves);
        });
        for asked in 1..=3 {
            assert_eq!(scene.get().status, 403, "{by:?} {}", scene.nginx.log());
            scene.holds(0);
            let admitted = r#"sluicegate_questions_answered_total{verdict="admit"}"#;
            assert_eq!(gauge(scene.service.metrics, admitted), asked, "{by:?}");
        }
    }
}

#[test]
fn ids_and_headers_of_ours_that_a_client_sends_have_no_effect() {
    for by in BOTH {
        let scene = Scene::under(by, "limit: 2");
        let ingress = scene.nginx.ingress;
        let forged = [
            ("x-sluicegate-id", "0123456789abcdef"),
            ("x-request-id", "0123456789abcdef"),
            // It would ask about a domain without limits.
            ("x-hook", "other"),
            ("x-deny-status", "200"),
        ];
        let ask = move || http1::get(ingress, "/", &[forged, forged].concat());
        let clients = [(); 2].map(|()| std::thread::spawn(ask));
        let visits = [scene.upstream.next(), scene.upstream.next()];
        scene.holds(2);
        assert_eq!(ask().unwrap().status, 503, "{by:?}");
        visits.into_iter().for_each(Visit::answer);
        assert_eq!(clients.map(answered), [200, 200]);
        scene.holds(0);
    }
}

#[test]
fn a_killed_nginx_frees_its_places_at_once_with_lua_and_by_max_duration_without() {
    for by in BOTH {
        for signal in ["KILL", "TERM"] {
            // With datagrams nobody tells: the deadline is all there is.
            let max_duration = if by == By::Lua { "60s" } else { "1s" };
            let scene = Scene::under(by, &format!("limit: 9, max_duration: {max_duration}"));
            let _clients: Vec<_> = (0..5).map(|_| scene.connect()).collect();
            let _visits: Vec<_> = (0..5).map(|_| scene.upstream.next()).collect();
            if by == By::Lua {
                scene.holds(5);
            }
            scene.nginx.signal(signal);
            scene.holds(0);
        }
    }
}

#[test]
fn a_stopped_nginx_keeps_its_places_no_longer_than_max_duration() {
    for by in BOTH {
        let scene = Scene::under(by, "limit: 9, max_duration: 1s");
        let clients: Vec<_> = (0..3).map(|_| scene.send()).collect();
        let visits: Vec<_> = (0..3).map(|_| scene.upstream.next()).collect();
        scene.nginx.signal("STOP");
        scene.holds(0);
        scene.nginx.signal("CONT");
        visits.into_iter().for_each(Visit::answer);
        for client in clients {
            assert_eq!(answered(client), 200);
        }
        // What was taken back is not given back again.
        scene.holds(0);
        let client = scene.send();
        let visit = scene.upstream.next();
        scene.holds(1);
        visit.answer();
        assert_eq!(answered(client), 200);
        scene.holds(0);
    }
}

#[test]
fn requests_go_on_when_the_service_is_killed_or_told_to_go_and_pass_while_it_is_away() {
    for by in BOTH {
        for signal in ["KILL", "TERM"] {
            let mut scene = Scene::under(by, "limit: 1");
            let client = scene.send();
            let visit = scene.upstream.next();
            scene.holds(1);
            if signal == "KILL" {
                scene.service.kill();
            } else {
                scene.service.terminate();
                let status = scene.service.ended().unwrap();
                assert_eq!(status.code(), Some(0), "{status}\n{}", scene.service.log());
            }
            let passes = scene.send();
            scene.upstream.next().answer();
            assert_eq!(answered(passes), 200, "{by:?}");
            visit.answer();
            assert_eq!(answered(client), 200, "{by:?}");
        }
    }
}

/// The port stays, and so do NGINX's sockets to it. What was in flight goes on without a place.
#[test]
fn a_service_that_is_killed_and_started_again_counts_from_nothing_and_hears_the_ends_of_the_rest() {
    for by in BOTH {
        let limits = tempfile::tempdir().unwrap();
        let text = format!("domain: edge\ndescriptors:\n{}", over_all("limit: 2"));
        std::fs::write(limits.path().join("edge.yaml"), text).unwrap();
        let mut first = service(&limits);
        let (http, syslog) = (first.http, first.syslog().unwrap());
        let upstream = Visits::listen();
        let nginx = Nginx::start_as(shipped(by, syslog), upstream.address, http, WhenDown::Allow);
        let ingress = nginx.ingress;
        let send = || std::thread::spawn(move || http1::get(ingress, "/", &[]));
        let before = send();
        let visit = upstream.next();
        shows(first.metrics, "sluicegate_requests_in_flight", 1);
        first.kill();
        let again = again(&limits, http, syslog);
        // Its end finds nothing here, and takes nothing from anybody.
        let after = send();
        let later = upstream.next();
        shows(again.metrics, "sluicegate_requests_in_flight", 1);
        visit.answer();
        assert_eq!(answered(before), 200, "{by:?}");
        shows(again.metrics, "sluicegate_requests_in_flight", 1);
        later.answer();
        assert_eq!(answered(after), 200, "{by:?}");
        shows(again.metrics, "sluicegate_requests_in_flight", 0);
    }
}

const fn shipped(by: By, syslog: SocketAddr) -> Shipped {
    match by {
        By::Datagrams => Shipped::Concurrency(syslog),
        By::Lua => Shipped::Lua,
    }
}

/// The same service on the same ports.
fn again(limits: &TempDir, http: SocketAddr, syslog: SocketAddr) -> Service {
    let ports = [http.port().to_string(), syslog.port().to_string()];
    let flags = ["--hooks", HOOKS, "--http-port", &ports[0], "--syslog-port", &ports[1]];
    let flags = flags.map(str::to_owned);
    until("the same ports", || Service::start(limits.path(), &flags)).unwrap()
}

#[test]
fn a_forged_datagram_frees_nothing() {
    let scene = Scene::under(By::Datagrams, "limit: 1");
    let client = scene.send();
    let visit = scene.upstream.next();
    scene.holds(1);
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let forged =
        "<190>Nov 20 15:55:25 sluicegate: id=0123456789abcdef status=200 done=OK rtt=1.000";
    for datagram in [forged, &forged[..40], ""] {
        socket.send_to(datagram.as_bytes(), scene.service.syslog().unwrap()).unwrap();
    }
    let counted = |outcome: &str, count: u64| {
        let name = format!("sluicegate_syslog_datagrams_total{{outcome=\"{outcome}\"}}");
        shows(scene.service.metrics, &name, count);
    };
    counted("read", 1);
    counted("malformed", 2);
    scene.holds(1);
    visit.answer();
    assert_eq!(answered(client), 200);
    scene.holds(0);
    counted("read", 2);
}

#[test]
fn the_shipped_settings_and_ceilings_answer_what_the_shipped_nginx_asks() {
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/config");
    let flags = ["--settings", &format!("{config}/nginx.yaml"), "--syslog-port", "0"];
    let flags = flags.map(str::to_owned);
    let service = Service::start(format!("{config}/ceilings").as_ref(), &flags).unwrap();
    for shipped in [Shipped::Concurrency(service.syslog().unwrap()), Shipped::Lua] {
        let upstream = Visits::listen();
        let nginx = Nginx::start_as(shipped, upstream.address, service.http, WhenDown::Deny);
        let ingress = nginx.ingress;
        let ask = move || http1::get(ingress, "/", &[("x-api-key", "anybody")]).unwrap();
        let client = std::thread::spawn(ask);
        let visit = upstream.next();
        // One bucket for all, one for the key.
        shows(service.metrics, "sluicegate_requests_in_flight", 2);
        visit.answer();
        let reply = client.join().unwrap();
        assert_eq!(reply.status, 200, "{}", nginx.log());
        assert!(reply.header("ratelimit-policy").unwrap().contains("per-key"), "{reply:?}");
        shows(service.metrics, "sluicegate_requests_in_flight", 0);
    }
}
