//! Every ending of a request on a real Envoy, for each of its hooks: the place comes back.
//!
//! `max_duration` is three times as long as a test waits, except where nothing else could give the place back: a release
//! that is lost fails the test.

use std::cell::Cell;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::envoy::{Shipped, replace_once};
use super::in_flight::{Scene, gauge, over_all};
use crate::support::proxy::{Proxy, Upstream};
use crate::waiting::{PATIENCE, until};

const HOOKS: [Shipped; 3] =
    [Shipped::ExtProc, Shipped::RlsConcurrency, Shipped::ExtAuthzConcurrency];

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

#[test]
fn with_every_hook_the_place_comes_back_whatever_ends_the_request() {
    for hook in HOOKS {
        let scene = Scene::changed(hook, &over_all("limit: 9"), with_endings);
        let held = Cell::new(0);
        let ends = |what: &str, end: &dyn Fn()| {
            end();
            scene.holds(0);
            held.set(held.get() + 1);
            println!("{hook:?}: {what}");
        };
        ends("answered", &|| {
            let client = open(&scene, "/", "");
            let visit = scene.upstream.next();
            scene.holds(1);
            visit.answer();
            assert_eq!(status(&client), 200);
        });
        ends("a streamed body", &|| {
            let client = open(&scene, "/", "");
            let mut visit = scene.upstream.next();
            visit.begin();
            assert_eq!(status(&client), 200);
            scene.holds(1);
            visit.end();
        });
        ends("a client that goes, waiting and mid-body", &|| {
            for begun in [false, true] {
                let client = open(&scene, "/", "");
                let mut visit = scene.upstream.next();
                if begun {
                    visit.begin();
                    assert_eq!(status(&client), 200);
                }
                scene.holds(1);
                drop(client);
                scene.holds(0);
            }
        });
        ends("an upstream that goes, before its head and after it", &|| {
            for begun in [false, true] {
                let client = open(&scene, "/", "");
                let mut visit = scene.upstream.next();
                scene.holds(1);
                if begun {
                    visit.begin();
                }
                visit.reset();
                assert_eq!(status(&client), if begun { 200 } else { 503 });
            }
        });
        ends("a websocket, closed by the client and by the upstream", &|| {
            for by_client in [true, false] {
                let upgrade = "connection: upgrade\r\nupgrade: websocket\r\n";
                let client = open(&scene, "/", upgrade);
                let mut visit = scene.upstream.next();
                visit.switch();
                assert_eq!(status(&client), 101);
                scene.holds(1);
                if by_client {
                    drop(client);
                    scene.holds(0);
                } else {
                    visit.reset();
                    scene.holds(0);
                }
            }
        });
        ends("an upstream that is too late", &|| {
            let client = open(&scene, "/late", "");
            let _visit = scene.upstream.next();
            assert_eq!(status(&client), 504);
        });
        ends("an upstream that is tried again, in one place", &|| {
            let client = open(&scene, "/again", "");
            scene.upstream.next().reset();
            let second = scene.upstream.next();
            scene.holds(1);
            second.answer();
            assert_eq!(status(&client), 200);
        });
        for (what, path, want) in [
            ("an upstream that refuses", "/refused", 503),
            ("a later filter that says no", "/rejected", 403),
            ("an answer made in Envoy", "/local", 204),
        ] {
            ends(what, &|| assert_eq!(status(&open(&scene, path, "")), want, "{what}"));
        }
        assert_eq!(held.get(), 10, "every one of them was tried");
    }
}

/// An Envoy that goes breaks its streams off, and some of what it would tell by other ways may be lost with it.
const fn bounded(hook: Shipped) -> &'static str {
    match hook {
        Shipped::ExtProc => "limit: 9",
        _ => "limit: 9, max_duration: 2s",
    }
}

#[test]
fn with_every_hook_an_envoy_that_is_told_to_go_gives_all_its_places_back() {
    for hook in HOOKS {
        let scene = Scene::changed(hook, &over_all(bounded(hook)), |_| {});
        let _clients = [scene.connect(), scene.connect()];
        let _visits = [scene.upstream.next(), scene.upstream.next()];
        scene.holds(2);
        scene.envoy.signal("TERM");
        scene.holds(0);
    }
}

/// What is seen of it is silence. Only the stream of `ext_proc` shows that, by the server's pings; elsewhere
/// `max_duration` ends what is held.
#[test]
fn with_every_hook_an_envoy_that_hangs_keeps_its_places_no_longer_than_is_told() {
    for hook in HOOKS {
        let scene = Scene::changed(hook, &over_all(bounded(hook)), |_| {});
        let _clients = [scene.connect(), scene.connect()];
        let _visits = [scene.upstream.next(), scene.upstream.next()];
        scene.holds(2);
        scene.envoy.signal("STOP");
        scene.holds(0);
    }
}

#[test]
fn with_ext_authz_an_envoy_that_is_killed_keeps_its_places_no_longer_than_max_duration() {
    let ceiling = over_all("limit: 9, max_duration: 1s");
    let mut scene = Scene::changed(Shipped::ExtAuthzConcurrency, &ceiling, |_| {});
    let _client = scene.connect();
    let _visit = scene.upstream.next();
    scene.holds(1);
    scene.envoy.kill();
    scene.holds(0);
}

/// What was in flight goes on without a place, and the next service counts what it admits.
#[test]
fn with_every_hook_a_service_that_is_killed_takes_no_request_with_it_and_the_next_one_leaks_nothing()
 {
    for hook in HOOKS {
        let door = Cell::new(None);
        let listen = |service| {
            let proxy = Proxy::before(Upstream::Tcp(service));
            let address = proxy.address();
            door.set(Some(proxy));
            address
        };
        let mut scene = Scene::through(hook, &over_all("limit: 9"), |_| {}, listen);
        let door = door.take().unwrap();
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
