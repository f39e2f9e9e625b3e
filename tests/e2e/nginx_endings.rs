//! Every ending of a request on a real NGINX, by datagrams and by Lua's connections: the place comes back, as soon as is
//! promised.
//!
//! `max_duration` is 60 s, far above every promise, except where nothing else could give the place back.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::envoy::replace_once;
use super::in_flight::{gauge, over_all};
use super::in_nginx::{BOTH, By, Scene};
use super::observed::{self, Ending, ends, free_since, none_since, since_before};
use super::visits::{Visit, Visits};
use crate::support::watchers::undisturbed;
use crate::waiting::{PATIENCE, now};

/// One place, and one that waits for it.
const CEILING: &str = "limit: 1, queue: {size: 1, timeout: 9s}";

/// A stream that is broken off is seen within it.
const AT_ONCE: Duration = Duration::from_millis(3);

/// `max_duration`, and the second within which the service looks for places that are over it.
const DEADLINE: Duration = Duration::from_secs(1 + 1);

/// Upstreams for the endings that NGINX makes, chosen by the path, a short patience, and `WebSockets`.
fn with_endings(text: &mut String, app: SocketAddr) {
    let servers = format!(
        "upstream app {{ server {app}; }}
    upstream again {{ server {app} max_fails=0; server {app} max_fails=0; }}
    upstream nobody {{ server 127.0.0.1:1; }}
    map $request_uri $to {{ default app; /refused nobody; /again again; }}"
    );
    replace_once(text, &format!("upstream app {{\n        server {app};\n    }}"), &servers);
    let pass = "proxy_read_timeout 300ms;
            proxy_http_version 1.1;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection $http_connection;
            proxy_pass http://$to;";
    replace_once(text, "proxy_pass http://app;", pass);
}

fn scene(by: By) -> Scene {
    let upstream = Visits::listen();
    let app = upstream.address;
    Scene::changed(by, &over_all(CEILING), upstream, move |text| with_endings(text, app))
}

fn free(scene: &Scene, at: Instant) -> Duration {
    free_since(scene.service.metrics, at)
}

fn open(scene: &Scene, path: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(scene.nginx.ingress).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: edge\r\n{headers}\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    stream
}

/// The status of the answer that is waited for.
fn status(mut stream: &TcpStream) -> u16 {
    let mut head = [0; 12];
    stream.read_exact(&mut head).unwrap();
    std::str::from_utf8(&head[9..]).unwrap().parse().unwrap()
}

/// A request that is at the upstream, and its client.
fn under_way(scene: &Scene, headers: &str) -> (TcpStream, Visit) {
    let client = open(scene, "/", headers);
    let visit = scene.upstream.next();
    scene.holds(1);
    (client, visit)
}

fn switched(scene: &Scene) -> (TcpStream, Visit) {
    let (client, mut visit) = under_way(scene, "connection: upgrade\r\nupgrade: websocket\r\n");
    visit.switch();
    assert_eq!(status(&client), 101);
    scene.holds(1);
    (client, visit)
}

fn an_answer(scene: &Scene) -> Duration {
    let (client, visit) = under_way(scene, "");
    let at = now();
    visit.answer();
    let took = free(scene, at);
    assert_eq!(status(&client), 200);
    took
}

fn a_streamed_body(scene: &Scene) -> Duration {
    let (client, mut visit) = under_way(scene, "");
    visit.begin();
    assert_eq!(status(&client), 200);
    scene.holds(1);
    let at = now();
    visit.end();
    free(scene, at)
}

fn a_client_that_waits(scene: &Scene) -> Duration {
    let (client, _visit) = under_way(scene, "");
    let at = now();
    drop(client);
    free(scene, at)
}

/// More than NGINX keeps for itself is on its way, so that it meets the client that is gone.
fn a_client_mid_body(scene: &Scene) -> Duration {
    let (client, mut visit) = under_way(scene, "");
    visit.stream();
    assert_eq!(status(&client), 200);
    scene.holds(1);
    let at = now();
    drop(client);
    free(scene, at)
}

/// The place is another's: what is free again is the queue.
fn a_client_in_the_queue(scene: &Scene) -> Duration {
    let (_client, visit) = under_way(scene, "");
    let waits = open(scene, "/", "");
    scene.waits(1);
    let at = now();
    drop(waits);
    let took = none_since(scene.service.metrics, "sluicegate_requests_queued", at);
    scene.holds(1);
    visit.answer();
    scene.holds(0);
    took
}

fn an_upstream_before_its_head(scene: &Scene) -> Duration {
    let (client, visit) = under_way(scene, "");
    let at = now();
    visit.reset();
    let took = free(scene, at);
    assert_eq!(status(&client), 502);
    took
}

fn an_upstream_mid_body(scene: &Scene) -> Duration {
    let (client, mut visit) = under_way(scene, "");
    visit.begin();
    assert_eq!(status(&client), 200);
    scene.holds(1);
    let at = now();
    visit.reset();
    free(scene, at)
}

fn a_websocket_by_its_client(scene: &Scene) -> Duration {
    let (client, _visit) = switched(scene);
    let at = now();
    drop(client);
    free(scene, at)
}

fn a_websocket_by_its_upstream(scene: &Scene) -> Duration {
    let (_client, visit) = switched(scene);
    let at = now();
    visit.reset();
    free(scene, at)
}

/// From when the upstream has the request: NGINX gives it 300 ms.
fn an_upstream_too_late(scene: &Scene) -> Duration {
    let client = open(scene, "/", "");
    let _visit = scene.upstream.next();
    let at = now();
    scene.holds(1);
    let took = free(scene, at);
    assert_eq!(status(&client), 504);
    took
}

fn an_upstream_tried_again(scene: &Scene) -> Duration {
    let client = open(scene, "/again", "");
    scene.upstream.next().reset();
    let second = scene.upstream.next();
    scene.holds(1);
    let at = now();
    second.answer();
    let took = free(scene, at);
    assert_eq!(status(&client), 200);
    took
}

/// From when the client has heard it. A place was taken before.
fn an_upstream_that_refuses(scene: &Scene) -> Duration {
    const ADMITTED: &str = r#"sluicegate_questions_answered_total{verdict="admit"}"#;
    let admitted = || gauge(scene.service.metrics, ADMITTED);
    let before = admitted();
    assert_eq!(status(&open(scene, "/refused", "")), 502);
    let took = free(scene, now());
    assert!(before < admitted(), "nobody asked for a place");
    took
}

/// New workers take what comes, and the old one finishes what it has.
fn a_reload(scene: &Scene) -> Duration {
    let (client, visit) = under_way(scene, "");
    scene.nginx.reload();
    let (next, second) = (open(scene, "/", ""), &scene.upstream);
    scene.waits(1);
    let at = now();
    visit.answer();
    let second = second.next();
    let took = at.elapsed();
    second.answer();
    assert_eq!([status(&client), status(&next)], [200, 200]);
    scene.holds(0);
    took
}

/// Each with how soon the failure table of the hooks has it, in milliseconds after what ended it: by datagrams, and by Lua's
/// connections. What it has not (`WebSockets`, tries again, a reload) is as soon as an answer.
type Row = (&'static str, [u64; 2], fn(&Scene) -> Duration);

const ENDINGS: [Row; 13] = [
    ("an answer", [4, 1], an_answer),
    ("a streamed body", [5, 8], a_streamed_body),
    ("a client that goes while it waits", [3, 2], a_client_that_waits),
    ("a client that goes mid-body", [2, 2], a_client_mid_body),
    ("a client that goes from the queue", [1, 1], a_client_in_the_queue),
    ("an upstream that goes before its head", [2, 2], an_upstream_before_its_head),
    ("an upstream that goes mid-body", [2, 2], an_upstream_mid_body),
    ("a websocket that its client closes", [4, 1], a_websocket_by_its_client),
    ("a websocket that its upstream closes", [4, 1], a_websocket_by_its_upstream),
    ("an upstream that is later than 300 ms", [306, 302], an_upstream_too_late),
    ("an upstream that is tried again", [4, 1], an_upstream_tried_again),
    ("an upstream that refuses", [1, 1], an_upstream_that_refuses),
    ("a reload of NGINX, and an answer", [4, 1], a_reload),
];

const fn name(by: By) -> &'static str {
    match by {
        By::Datagrams => "NGINX by datagrams",
        By::Lua => "NGINX by Lua's connections",
    }
}

#[test]
fn a_place_is_free_as_soon_as_the_failure_table_says_whatever_ends_the_request() {
    for (column, by) in BOTH.into_iter().enumerate() {
        let scene = scene(by);
        for (what, promised, end) in ENDINGS {
            let ending = Ending { what, promised: promised[column], end };
            ends(name(by), scene.service.metrics, &scene, &ending);
        }
    }
}

/// Two requests under way, and the signal that their NGINX gets then.
fn fails(signal: &str, promised: [Duration; 2]) {
    let what = format!("SIG{signal} to NGINX");
    for (column, by) in BOTH.into_iter().enumerate() {
        undisturbed(|| {
            let scene = Scene::under(by, "limit: 9, max_duration: 1s");
            let _clients = [scene.connect(), scene.connect()];
            let _visits = [scene.upstream.next(), scene.upstream.next()];
            let (metrics, nginx) = (scene.service.metrics, scene.nginx.processes());
            let fail = || since_before(|| nginx.signal(signal));
            observed::fails(name(by), &what, promised[column], metrics, fail)
        });
    }
}

#[test]
fn an_nginx_that_ends_frees_its_places_at_once_with_lua_and_by_max_duration_without() {
    fails("TERM", [DEADLINE, AT_ONCE]);
    fails("KILL", [DEADLINE, AT_ONCE]);
}

#[test]
fn an_nginx_that_hangs_keeps_its_places_no_longer_than_max_duration() {
    fails("STOP", [DEADLINE; 2]);
}
