//! Clients that leave in the window where the answer arrives: no place leaks, with any of Envoy's hooks.
//!
//! What takes a place comes 20 ms later to the service than what gives it back, and clients leave within 3 ms of the moment at
//! which half of them are answered, which each finds by itself however busy the machine is: so some releases overtake
//! their acquires, and the rest meet the answer on its way. The known-bad variants run beside and leak: one rate limit
//! filter that takes and gives back, and two before a service that remembers no release which came first.
#![expect(clippy::print_stdout, reason = "what was seen is part of the proof")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use sluicegate::config::hooks::Hooks;
use sluicegate::edge::health::Ready;

use super::envoy::{Envoy, Shipped, WhenDown, configured, replace_once};
use super::in_flight::{gauge, over_all};
use super::leaving::{forgetful, leaked};
use super::upstream;
use crate::edge::grpc::served_with;
use crate::service::Service;
use crate::support::dice::{Dice, seed};
use crate::support::proxy::{Flow, Proxy, Upstream, Way};
use crate::waiting::until;

const REQUESTS: usize = 4_000;
const CLIENTS: usize = 32;
/// Half of them are answered, once each client has found out when that is; a machine that is busy takes long for that.
const MANY: u64 = REQUESTS as u64 / 10;
const LATE: Duration = Duration::from_millis(20);
const CEILING: &str = "limit: 100000, max_duration: 10m";

const HOOKS: &str = r#"[{"name": "edge", "domain": "edge", "descriptors": [
    [{"generic_key": {"descriptor_key": "upstream", "descriptor_value": "all"}}]]}]"#;

/// The service's cluster by the long way.
fn late_cluster(door: SocketAddr) -> String {
    format!(
        r#"
    - name: late
      type: STATIC
      connect_timeout: 1s
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: {{http2_protocol_options: {{}}}}
      circuit_breakers: {{thresholds: [{{max_requests: 100000, max_pending_requests: 100000}}]}}
      load_assignment:
        cluster_name: late
        endpoints:
          - lb_endpoints:
              - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}
"#,
        door.port()
    )
}

/// The last mention of the service's cluster by a filter is the one that takes a place.
fn take_the_long_way(text: &mut String, door: SocketAddr) {
    const TO_SERVICE: &str = "{cluster_name: sluicegate}";
    let at = text.rfind(TO_SERVICE).unwrap();
    text.replace_range(at..at + TO_SERVICE.len(), "{cluster_name: late}");
    text.push_str(&late_cluster(door));
}

/// The release moves into the filter that acquires, where the filter's own cancellation loses it.
fn with_one_filter(text: &mut String) {
    let start = text.find("                  # Gives the place back.").unwrap();
    let end = text.find("                  # Takes the place, or waits for one.").unwrap();
    text.replace_range(start..end, "");
    let acquire =
        "- request_headers: {header_name: x-sluicegate-id, descriptor_key: sluicegate.acquire}";
    let release = r#"
                        - actions:
                            - request_headers: {header_name: x-sluicegate-id, descriptor_key: sluicegate.release}
                          hits_addend: {format: "%DURATION%"}
                          apply_on_stream_done: true"#;
    replace_once(text, acquire, &[acquire, release].concat());
}

/// Those that `ext_proc` let pass, which are places without an id.
const STREAMS: &str = r#"sluicegate_edge_requests_total{protocol="ext_proc",outcome="admit"}"#;

/// What was seen of one run.
#[derive(Debug)]
struct Seen {
    acquired: u64,
    over: u64,
    leaked: u64,
}

/// One who comes, and leaves at about the time when the answer does: from `EARLY` before it to as long after.
struct Client {
    ingress: SocketAddr,
    dice: Dice,
    /// When half of its visits are answered.
    answered: Duration,
}

impl Client {
    const EARLY: Duration = Duration::from_millis(3);
    const STEP: Duration = Duration::from_millis(1);

    fn visit(&mut self) {
        let mut stream = TcpStream::connect(self.ingress).unwrap();
        let after = Duration::from_micros(self.dice.up_to(2 * 3_000));
        let patience = self.answered.saturating_sub(Self::EARLY) + after;
        stream.set_read_timeout(Some(patience.max(Self::STEP))).unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nhost: edge\r\n\r\n").unwrap();
        self.answered = match stream.read(&mut [0; 64]) {
            Ok(1..) => self.answered.saturating_sub(Self::STEP),
            _ => self.answered + Self::STEP,
        };
    }
}

/// Clients that have all left, and what they left behind: an Envoy that is killed tells of no end any more, and has one to
/// tell of until the last place is counted.
struct Gone {
    /// Of their dice.
    seed: u64,
    _envoy: Envoy,
    _door: Proxy,
}

/// All visits.
fn leave(hook: Shipped, change: fn(&mut String), grpc: SocketAddr) -> Gone {
    let door = Proxy::before(Upstream::Tcp(grpc));
    door.set(Way::ToStore, Flow::Delay(LATE));
    let mut text = configured(hook, upstream::start(), &[grpc], WhenDown::Allow);
    change(&mut text);
    take_the_long_way(&mut text, door.address());
    let envoy = Envoy::start_with(text, 1);
    let first = seed();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let dice = Dice::new(first.wrapping_add(client as u64));
            let mut client = Client { ingress: envoy.ingress, dice, answered: LATE };
            scope.spawn(move || (0..REQUESTS / CLIENTS).for_each(|_| client.visit()));
        }
    });
    Gone { seed: first, _envoy: envoy, _door: door }
}

fn chaos(name: &str, hook: Shipped, change: fn(&mut String)) -> Seen {
    let limits = tempfile::tempdir().unwrap();
    let text = format!("domain: edge\ndescriptors:\n{}", over_all(CEILING));
    std::fs::write(limits.path().join("edge.yaml"), text).unwrap();
    let flags = ["--hooks", HOOKS].map(str::to_owned);
    let service = Service::start(limits.path(), &flags).unwrap();
    let gone = leave(hook, change, service.grpc);
    let ids = |event| {
        gauge(service.metrics, &format!(r#"sluicegate_permit_ids_total{{event="{event}"}}"#))
    };
    let streams = gauge(service.metrics, STREAMS);
    let in_flight = || gauge(service.metrics, "sluicegate_requests_in_flight");
    let calm = until("all places", || match in_flight() {
        0 => Ok(()),
        held => Err(held.to_string()),
    });
    let leaked = if calm.is_ok() { 0 } else { in_flight() };
    let seen = Seen { acquired: ids("acquired") + streams, over: ids("over"), leaked };
    println!("{name}: {REQUESTS} requests, seed {}: {seen:?}", gone.seed);
    seen
}

#[test]
fn with_ext_proc_no_place_leaks() {
    let seen = chaos("ext_proc", Shipped::ExtProc, |_| {});
    assert!(seen.leaked == 0 && MANY < seen.acquired, "{seen:?}");
}

#[test]
fn with_ext_authz_and_the_access_log_no_place_leaks_and_releases_that_came_first_are_why() {
    let seen = chaos("ext_authz and access log", Shipped::ExtAuthzConcurrency, |_| {});
    assert!(seen.leaked == 0 && 0 < seen.over && MANY < seen.acquired, "{seen:?}");
}

#[test]
fn with_two_rate_limit_filters_no_place_leaks_and_with_one_they_do() {
    let good = chaos("two rate limit filters", Shipped::RlsConcurrency, |_| {});
    assert!(good.leaked == 0 && 0 < good.over && MANY < good.acquired, "{good:?}");
    let bad =
        chaos("one rate limit filter, known to be bad", Shipped::RlsConcurrency, with_one_filter);
    assert!(10 <= bad.leaked, "{bad:?}");
}

#[test]
fn without_the_memory_of_early_releases_two_rate_limit_filters_leak() {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let engine = forgetful(CEILING);
    let serving = served_with(Arc::clone(&engine), Ready::Yes, Hooks::default());
    let served = runtime.block_on(serving);
    let gone = leave(Shipped::RlsConcurrency, |_| {}, served.address);
    let leaked = leaked(&engine);
    println!(
        "two rate limit filters, no tombstones: {REQUESTS} requests, seed {}: {leaked} leaked",
        gone.seed
    );
}
