//! Every ending of a request on a real Envoy, for each of its hooks: the place comes back, as soon as is promised.
//!
//! `max_duration` is 60 s, far above every promise, except where nothing else could give the place back: a release that is
//! lost fails the test. `docs/reliability.md` keeps the table that this prints.

use std::cell::Cell;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use sluicegate::edge::grpc::{PING_AFTER, PONG_WITHIN};

use super::envoy::{Shipped, replace_once};
use super::in_flight::{Scene, gauge, over_all};
use super::observed::{self, Ending, ends, free_since, none_since, since_before};
use super::visits::Visit;
use crate::support::proxy::{Proxy, Upstream};
use crate::support::watchers::undisturbed;
use crate::waiting::{PATIENCE, now, until};

const HOOKS: [Shipped; 3] =
    [Shipped::ExtProc, Shipped::RlsConcurrency, Shipped::ExtAuthzConcurrency];

/// What the failure table calls so: a stream that is broken off is seen within it.
const AT_ONCE: Duration = Duration::from_millis(3);

const ROUTE: &str = "- match: {prefix: /}
                          route: {cluster: upstream}";

/// Routes for the endings that Envoy makes, before the shipped one.
const ROUTES: &str = r#"- match: {prefix: /late}
                          route: {cluster: upstream, timeout: 0.3s}
                        - match: {prefix: /again}
                          route: {cluster: upstream, retry_policy: {retry_on: "reset,5xx", num_retries: 1}}
                        - match: {prefix: /local}
                          direct_response: {status: 204}
                        - match: {prefix: /refused}
                          route: {cluster: nobody}
                        "#;

const ROUTER: &str = "                  - name: envoy.filters.http.router";

/// A filter behind the one that asks.
const LATER: &str = r#"                  - name: envoy.filters.http.rbac
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC
                      rules:
                        action: DENY
                        policies:
                          rejected:
                            permissions: [{url_path: {path: {prefix: /rejected}}}]
                            principals: [{any: true}]
"#;

const UPSTREAM: &str = "    - name: upstream
      type: STATIC";

/// A cluster where nobody listens: port 1 is nobody's.
const NOBODY: &str = r"    - name: nobody
      type: STATIC
      connect_timeout: 1s
      load_assignment:
        cluster_name: nobody
        endpoints:
          - lb_endpoints:
              - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 1}}}

";

fn with_endings(text: &mut String) {
    let upgrades = "use_remote_address: true
                upgrade_configs: [{upgrade_type: websocket}]";
    replace_once(text, "use_remote_address: true", upgrades);
    replace_once(text, ROUTE, &[ROUTES, ROUTE].concat());
    replace_once(text, ROUTER, &[LATER, ROUTER].concat());
    replace_once(text, UPSTREAM, &[NOBODY, UPSTREAM].concat());
}

/// Sends a request and keeps only the connection.
fn open(scene: &Scene, path: &str, headers: &str) -> TcpStream {
    let mut stream = TcpStream::connect(scene.envoy.ingress).unwrap();
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

/// One place, and one that waits for it.
const CEILING: &str = "limit: 1, queue: {size: 1, timeout: 9s}";

fn free(scene: &Scene, at: Instant) -> Duration {
    free_since(scene.service.metrics, at)
}

/// A request that is at the upstream, and its client.
fn under_way(scene: &Scene, headers: &str) -> (TcpStream, Visit) {
    let client = open(scene, "/", headers);
    let visit = scene.upstream.next();
    scene.holds(1);
    (client, visit)
}

/// The same with the first part of an answer sent and read.
fn answered_in_part(scene: &Scene) -> (TcpStream, Visit) {
    let (client, mut visit) = under_way(scene, "");
    visit.begin();
    assert_eq!(status(&client), 200);
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
    let (_client, visit) = answered_in_part(scene);
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

fn a_client_mid_body(scene: &Scene) -> Duration {
    let (client, _visit) = answered_in_part(scene);
    let at = now();
    drop(client);
    free(scene, at)
}

/// The place is another's: what is free again is the queue.
fn a_client_in_the_queue(scene: &Scene) -> Duration {
    let (_client, visit) = under_way(scene, "");
    let waits = open(scene, "/", "");
    scene.shows("sluicegate_requests_queued", 1);
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
    assert_eq!(status(&client), 503);
    took
}

fn an_upstream_mid_body(scene: &Scene) -> Duration {
    let (_client, visit) = answered_in_part(scene);
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

/// From when the upstream has the request: Envoy gives it 300 ms.
fn an_upstream_too_late(scene: &Scene) -> Duration {
    let client = open(scene, "/late", "");
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

/// What Envoy says itself: from when the client has heard it. A place was taken before.
fn said_by_envoy(scene: &Scene, path: &str, want: u16) -> Duration {
    let before = admitted(scene);
    assert_eq!(status(&open(scene, path, "")), want, "{path}");
    let took = free(scene, now());
    assert!(before < admitted(scene), "{path}: nobody asked for a place");
    took
}

/// Of a route that answers by itself the rate limit filter does not ask.
fn made_in_envoy(scene: &Scene) -> Duration {
    let Shipped::RlsConcurrency = scene.hook else { return said_by_envoy(scene, "/local", 204) };
    let before = admitted(scene);
    assert_eq!(status(&open(scene, "/local", "")), 204);
    assert_eq!(before, admitted(scene));
    Duration::ZERO
}

fn admitted(scene: &Scene) -> u64 {
    gauge(scene.service.metrics, r#"sluicegate_questions_answered_total{verdict="admit"}"#)
}

/// Each with how soon the failure table of the hooks has it, in milliseconds after what ended it: for `ext_proc`, two rate
/// limit filters, and `ext_authz` with the access log.
type Row = (&'static str, [u64; 3], fn(&Scene) -> Duration);

const ENDINGS: [Row; 14] = [
    ("an answer", [3, 3, 3], an_answer),
    ("a streamed body", [11, 10, 9], a_streamed_body),
    ("a client that goes while it waits", [3, 1, 1], a_client_that_waits),
    ("a client that goes mid-body", [2, 2, 2], a_client_mid_body),
    ("a client that goes from the queue", [1, 1, 1], a_client_in_the_queue),
    ("an upstream that goes before its head", [3, 3, 5], an_upstream_before_its_head),
    ("an upstream that goes mid-body", [2, 2, 2], an_upstream_mid_body),
    ("a websocket that its client closes", [1, 2, 3], a_websocket_by_its_client),
    ("a websocket that its upstream closes", [1, 2, 3], a_websocket_by_its_upstream),
    ("an upstream that is later than 300 ms", [300, 305, 303], an_upstream_too_late),
    ("an upstream that is tried again", [3, 3, 3], an_upstream_tried_again),
    ("an upstream that refuses", [1, 1, 1], |scene| said_by_envoy(scene, "/refused", 503)),
    ("a later filter that says no", [1, 1, 3], |scene| said_by_envoy(scene, "/rejected", 403)),
    ("an answer made in Envoy", [3, 0, 3], made_in_envoy),
];

#[test]
fn with_every_hook_a_place_is_free_as_soon_as_the_failure_table_says_whatever_ends_the_request() {
    for (column, hook) in HOOKS.into_iter().enumerate() {
        let scene = Scene::changed(hook, &over_all(CEILING), with_endings);
        for (what, promised, end) in ENDINGS {
            let ending = Ending { what, promised: promised[column], end };
            ends(name(hook), scene.service.metrics, &scene, &ending);
        }
    }
}

const fn name(hook: Shipped) -> &'static str {
    match hook {
        Shipped::ExtProc => "`ext_proc`",
        Shipped::RlsConcurrency => "two rate limit filters",
        _ => "`ext_authz` and access log",
    }
}

/// An Envoy that goes breaks its streams off, and what it would tell by other ways may be lost with it.
/// `max_duration`, and the second within which the service looks for places that are over it.
const DEADLINE: Duration = Duration::from_secs(2 + 1);

const fn bounded(hook: Shipped) -> &'static str {
    match hook {
        Shipped::ExtProc => "limit: 9",
        _ => "limit: 9, max_duration: 2s",
    }
}

/// Two requests under way, and what happens to their Envoy then. `at_once` is for the hook whose stream breaks.
fn fails(what: &str, at_once: Duration, fail: fn(&mut Scene, &Proxy) -> Instant) {
    for hook in HOOKS {
        undisturbed(|| {
            let (mut scene, door) = behind_a_door(hook, bounded(hook));
            let _clients = [scene.connect(), scene.connect()];
            let _visits = [scene.upstream.next(), scene.upstream.next()];
            scene.holds(2);
            let promised = if let Shipped::ExtProc = hook { at_once } else { DEADLINE };
            let metrics = scene.service.metrics;
            observed::fails(name(hook), what, promised, metrics, || fail(&mut scene, &door))
        });
    }
}

/// Envoy finds the service behind a proxy.
fn behind_a_door(hook: Shipped, ceiling: &str) -> (Scene, Proxy) {
    let door = Cell::new(None);
    let listen = |service| {
        let proxy = Proxy::before(Upstream::Tcp(service));
        let address = proxy.address();
        door.set(Some(proxy));
        address
    };
    let scene = Scene::through(hook, &over_all(ceiling), |_| {}, listen);
    (scene, door.take().unwrap())
}

#[test]
fn with_every_hook_an_envoy_that_is_told_to_go_gives_all_its_places_back() {
    fails("SIGTERM to Envoy", AT_ONCE, |scene, _| since_before(|| scene.envoy.signal("TERM")));
}

fn seen(scene: &Scene, event: &str) -> u64 {
    let name = format!("sluicegate_permit_ids_total{{event=\"{event}\"}}");
    gauge(scene.service.metrics, &name)
}

/// A worker of Envoy that ends may or may not write what it still has to say: no setting of Envoy changes that.
#[test]
fn an_envoy_whose_requests_end_before_it_is_told_to_go_loses_no_release_and_one_that_is_not_drained_does()
 {
    for hook in [Shipped::RlsConcurrency, Shipped::ExtAuthzConcurrency] {
        for drained in [true, false] {
            let scene = Scene::changed(hook, &over_all("limit: 99, max_duration: 5s"), |_| {});
            let clients: Vec<_> = (0..20).map(|_| scene.connect()).collect();
            let mut visits: Vec<_> = (0..20).map(|_| scene.upstream.next()).collect();
            scene.holds(20);
            if drained {
                assert_eq!(scene.envoy.post("/healthcheck/fail"), 200);
                visits.drain(..).for_each(Visit::answer);
                scene.holds(0);
            }
            scene.envoy.signal("TERM");
            scene.holds(0);
            // A deadline frees a place at once and is counted a little later.
            let all_counted = || match ["released", "expired"].map(|event| seen(&scene, event)) {
                [released, expired] if released + expired == 20 => Ok([released, expired]),
                counted => Err(format!("{counted:?} released and expired, of 20")),
            };
            let [released, expired] = until("what became of each", all_counted).unwrap();
            println!("{}, drained {drained}: {released} of 20 by their release", name(hook));
            assert!(!drained || expired == 0, "{expired} were lost");
            drop((clients, visits));
        }
    }
}

#[test]
fn with_every_hook_an_envoy_that_is_killed_keeps_its_places_no_longer_than_is_told() {
    // How long the system takes to end it is no promise of ours.
    fails("SIGKILL to Envoy", AT_ONCE, |scene, _| {
        scene.envoy.kill();
        now()
    });
}

/// What is seen of both is silence. Only the stream of `ext_proc` shows that, by the server's pings; elsewhere
/// `max_duration` ends what is held.
#[test]
fn with_every_hook_an_envoy_that_hangs_keeps_its_places_no_longer_than_is_told() {
    fails("SIGSTOP to Envoy", PING_AFTER + PONG_WITHIN, |scene, _| {
        since_before(|| scene.envoy.signal("STOP"))
    });
}

#[test]
fn with_every_hook_an_envoy_whose_network_is_gone_keeps_its_places_no_longer_than_is_told() {
    let what = "no network between Envoy and the service";
    fails(what, PING_AFTER + PONG_WITHIN, |_, door| since_before(|| door.go_silent()));
}

/// What was in flight goes on without a place, and the next service counts what it admits.
#[test]
fn with_every_hook_a_service_that_is_killed_takes_no_request_with_it_and_the_next_one_leaks_nothing()
 {
    for hook in HOOKS {
        let (mut scene, door) = behind_a_door(hook, "limit: 9");
        let client = scene.send();
        let visit = scene.upstream.next();
        scene.holds(1);
        scene.serve_anew();
        door.lead_to(Upstream::Tcp(scene.service.grpc));
        door.cut();
        scene.holds(0);
        visit.answer();
        assert_eq!(client.join().unwrap().unwrap().status, 200, "{hook:?}");
        let counted = || {
            let client = scene.send();
            let visit = scene.upstream.next();
            let held = gauge(scene.service.metrics, "sluicegate_requests_in_flight");
            visit.answer();
            assert_eq!(client.join().unwrap().unwrap().status, 200);
            if held == 1 { Ok(()) } else { Err(held.to_string()) }
        };
        until("Envoy asks the next one", counted).unwrap();
        scene.holds(0);
    }
}
