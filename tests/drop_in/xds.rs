//! Tests of limits from an xDS management server.

use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Stdio};
use std::time::Duration;

use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Any, Struct, Value};
use sluicegate::edge::grpc::tls::TlsFiles;
use sluicegate::source::xds::message::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitReplace, RateLimitUnit,
};
use sluicegate::source::xds::{Backoff, BackoffBounds};

use crate::http1;
use crate::service::Service;
use crate::support::certificates::Authority;
use crate::support::ports;
use crate::support::xds::Xds;
use crate::waiting::{for_a_day_with_a_minute_left, until};

fn policy(requests: u32, unit: RateLimitUnit) -> RateLimitPolicy {
    RateLimitPolicy { requests_per_unit: requests, unit: unit.into(), ..RateLimitPolicy::default() }
}

fn descriptor(key: &str, requests: u32) -> RateLimitDescriptor {
    let rate_limit = Some(policy(requests, RateLimitUnit::Day));
    RateLimitDescriptor { key: key.to_owned(), rate_limit, ..RateLimitDescriptor::default() }
}

fn domain(name: &str, descriptors: Vec<RateLimitDescriptor>) -> RateLimitConfig {
    RateLimitConfig { name: format!("resource {name}"), domain: name.to_owned(), descriptors }
}

/// Starts `ratelimit` with limits from `xds`. Counters are in memory, because only the limits are
/// tested.
fn start(xds: &Xds, more: &[(&str, &str)]) -> Service {
    let url = xds.address.to_string();
    let variables = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", &*url),
        ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
        ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10ms"),
        ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "50ms"),
        ("USE_STATSD", "false"),
        ("SLUICEGATE_STORE_URL", "memory"),
        ("SLUICEGATE_COMPAT_STORE_KEY_FORMAT", "own"),
        ("SLUICEGATE_COMPAT_STORE_EXPIRY_JITTER", "300s"),
    ];
    Service::start_as_ratelimit(&[&variables, more].concat()).unwrap()
}

fn check(service: &Service, domain: &str, key: &str) -> (u16, String) {
    let body = format!(
        r#"{{"domain":"{domain}","descriptors":[{{"entries":[{{"key":"{key}","value":"v"}}]}}]}}"#
    );
    let reply = http1::call(service.http, "POST", "/json", &[], Some(body.as_bytes())).unwrap();
    (reply.status, reply.text())
}

fn stat(service: &Service, name: &str) -> u64 {
    let reply = http1::get(service.admin, "/stats", &[]).unwrap();
    let stats: serde_json::Value = serde_json::from_slice(&reply.body).unwrap();
    stats["stats"][name].as_u64().unwrap_or(0)
}

fn wait_for_limit(service: &Service, domain: &str, key: &str, limit: usize) {
    until("these limits", || {
        let rules = http1::get(service.admin, "/rlconfig", &[]).unwrap().text();
        let line = format!("{domain}.{key}: unit=DAY requests_per_unit={limit},");
        if rules.contains(&line) { Ok(()) } else { Err(rules) }
    })
    .unwrap();
}

#[test]
fn xds_requests_have_the_node_and_valid_limits_are_acked() {
    for_a_day_with_a_minute_left();
    let xds = Xds::start();
    let service = start(
        &xds,
        &[
            ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
            ("CONFIG_GRPC_XDS_NODE_METADATA", "zone=a,team=b"),
            ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "x-tenant:t1"),
        ],
    );
    assert_eq!(check(&service, "d", "k").0, 400, "no limits yet");
    xds.publish("1", &[domain("d", vec![descriptor("k", 2)])]);
    assert_eq!(xds.wait_for_ack("1"), ("1".to_owned(), None));
    wait_for_limit(&service, "d", "k", 2);
    assert_eq!([(); 3].map(|()| check(&service, "d", "k").0), [200, 200, 429]);
    let first = &xds.requests()[0];
    let node = first.request.node.clone().unwrap();
    assert_eq!(
        (first.request.version_info.as_str(), first.request.response_nonce.as_str()),
        ("", "")
    );
    assert_eq!(
        first.request.type_url,
        "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"
    );
    assert_eq!(node.id, "envoy-ratelimit");
    let zone = &node.metadata.unwrap().fields["zone"];
    assert_eq!(zone.kind, Some(Kind::StringValue("a".to_owned())));
    assert_eq!(first.headers.get("x-tenant").unwrap(), "t1");
    assert_eq!(
        xds.requests()[1].request.node.as_ref().unwrap().id,
        "envoy-ratelimit",
        "in every request"
    );
}

#[test]
fn invalid_limits_are_nacked_and_old_ones_stay_in_force() {
    let xds = Xds::start();
    let service = start(&xds, &[]);
    xds.publish("1", &[domain("d", vec![descriptor("k", 2)])]);
    assert_eq!(xds.wait_for_ack("1").1, None);
    wait_for_limit(&service, "d", "k", 2);
    let unknown = RateLimitDescriptor {
        rate_limit: Some(policy(2, RateLimitUnit::Unknown)),
        ..descriptor("k", 2)
    };
    let both = RateLimitPolicy { unlimited: true, ..policy(1, RateLimitUnit::Day) };
    let both = RateLimitDescriptor { rate_limit: Some(both), ..descriptor("k", 1) };
    let bad: [(&str, Vec<RateLimitConfig>, &str); 5] = [
        ("2", vec![domain("d", vec![unknown])], "resource d: invalid unit `unknown`"),
        ("3", vec![domain("", vec![])], "domain"),
        ("4", vec![domain("d", vec![]), domain("d", vec![])], "d"),
        ("5", vec![domain("d", vec![descriptor("k", 1), descriptor("k", 2)])], "d.k"),
        ("6", vec![domain("d", vec![both])], "unlimited"),
    ];
    for (nth, (version, configs, why)) in bad.into_iter().enumerate() {
        xds.publish(version, &configs);
        let (kept, refused) = xds.wait_for_ack(version);
        assert_eq!(kept, "1", "the version last taken");
        assert!(refused.as_ref().unwrap().contains(why), "{refused:?}");
        assert_eq!(stat(&service, "ratelimit.service.config_load_error"), nth as u64 + 1);
    }
    let any = |type_url: &str, value: &[u8]| {
        vec![Any { type_url: type_url.to_owned(), value: value.to_vec() }]
    };
    xds.tell_resources("7", any("type.googleapis.com/envoy.config.cluster.v3.Cluster", b""));
    assert!(xds.wait_for_ack("7").1.unwrap().contains("Cluster"));
    xds.tell_resources("8", any(sluicegate::source::xds::message::TYPE_URL, b"\xff\xff"));
    assert!(xds.wait_for_ack("8").1.unwrap().contains("cannot be read"));
    assert_eq!(stat(&service, "ratelimit.service.config_load_error"), 5, "these were no limits");
    wait_for_limit(&service, "d", "k", 2);
    xds.publish("9", &[domain("d", vec![descriptor("k", 3)])]);
    assert_eq!(xds.wait_for_ack("9"), ("9".to_owned(), None));
    wait_for_limit(&service, "d", "k", 3);
}

#[test]
fn undecodable_xds_response_counts_as_a_refused_load() {
    let xds = Xds::start();
    let service = start(&xds, &[("USE_PROMETHEUS", "true")]);
    let assert_metrics = |refused: u64, stale: u64| {
        let page = http1::get(service.metrics, "/metrics", &[]).unwrap().text();
        let counted = format!("sluicegate_config_loads_total{{outcome=\"refused\"}} {refused}\n");
        let stale = format!("sluicegate_config_stale {stale}\n");
        assert!(page.contains(&counted) && page.contains(&stale), "{page}");
    };
    xds.publish("1", &[domain("d", vec![descriptor("k", 2)])]);
    wait_for_limit(&service, "d", "k", 2);
    let ours = sluicegate::source::xds::message::TYPE_URL;
    let other = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
    for (refused, version, type_url) in [(1, "2", ours), (2, "3", other)] {
        let value = b"\xff\xff".to_vec();
        xds.tell_resources(version, vec![Any { type_url: type_url.to_owned(), value }]);
        let told = xds.wait_for_ack(version).1.unwrap();
        let loads = until("it is shown", || match service.loads()? {
            loads if loads.refused == refused => Ok(loads),
            loads => Err(format!("{} refused, {}", loads.refused, loads.last_error)),
        })
        .unwrap();
        let shown = loads.last_error["diagnostics"][0]["message"].as_str().unwrap();
        let which = format!("version `{version}` of {}: cannot be read: {told}", xds.address);
        assert_eq!(shown, which);
        assert_metrics(refused, 1);
    }
    assert_eq!(stat(&service, "ratelimit.service.config_load_error"), 0, "as in the reference");
    xds.publish("4", &[domain("d", vec![descriptor("k", 3)])]);
    wait_for_limit(&service, "d", "k", 3);
    let mended = until("it is mended", || match service.loads()?.last_error {
        none if none.is_null() => Ok(()),
        error => Err(error.to_string()),
    });
    mended.unwrap();
    assert_metrics(2, 0);
}

#[test]
fn each_xds_response_replaces_all_limits() {
    let xds = Xds::start();
    let service = start(&xds, &[("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true")]);
    let health = || http1::get(service.http, "/healthcheck", &[]).unwrap().status;
    let becomes = |status: u16| {
        let is = || if health() == status { Ok(()) } else { Err(health().to_string()) };
        until("health", is).unwrap();
    };
    assert_eq!(health(), 500);
    xds.publish(
        "1",
        &[domain("d", vec![descriptor("k", 2)]), domain("e", vec![descriptor("k", 4)])],
    );
    wait_for_limit(&service, "e", "k", 4);
    becomes(200);
    // Version 2 removes the domains `d` and `e`, and adds `f`.
    xds.publish("2", &[domain("f", vec![descriptor("k", 5)])]);
    wait_for_limit(&service, "f", "k", 5);
    assert!(!http1::get(service.admin, "/rlconfig", &[]).unwrap().text().contains("d.k"));
    xds.publish("3", &[]);
    assert_eq!(
        xds.wait_for_ack("3"),
        ("3".to_owned(), None),
        "no domain at all is a configuration"
    );
    becomes(500);
}

#[test]
fn after_rapid_updates_the_last_xds_response_is_in_force() {
    let xds = Xds::start();
    let service = start(&xds, &[]);
    let one = vec![domain("d", vec![descriptor("k", 1)])];
    let other = vec![domain("d", vec![descriptor("k", 2), descriptor("l", 3)])];
    for version in 1..=40 {
        let (configs, bad) = (if version % 2 == 0 { &one } else { &other }, domain("", vec![]));
        if version % 5 == 0 {
            xds.publish(&version.to_string(), &[bad]);
        } else {
            xds.publish(&version.to_string(), configs);
        }
    }
    xds.publish("41", &other);
    assert_eq!(xds.wait_for_ack("41"), ("41".to_owned(), None));
    wait_for_limit(&service, "d", "l", 3);
    let kept: Vec<_> =
        xds.requests().iter().map(|asked| asked.request.version_info.clone()).collect();
    assert!(
        kept.iter().all(|version| version.parse().is_ok_and(|nth: u32| !nth.is_multiple_of(5))
            || version.is_empty()),
        "{kept:?}"
    );
}

#[test]
fn lost_xds_stream_keeps_limits_and_resumes_with_their_version() {
    let xds = Xds::start_at(ports::free(), None);
    let service = start(&xds, &[]);
    xds.publish("1", &[domain("d", vec![descriptor("k", 2)])]);
    assert_eq!(xds.wait_for_ack("1").1, None);
    wait_for_limit(&service, "d", "k", 2);
    xds.publish("2", &[domain("", vec![])]);
    assert!(xds.wait_for_ack("2").1.is_some());
    let before = xds.requests().len();
    xds.hang_up();
    let again = until("another stream", || {
        xds.requests().get(before).cloned().ok_or_else(|| "not yet".to_owned())
    });
    let again = again.unwrap().request;
    assert_eq!((again.version_info.as_str(), again.response_nonce.as_str()), ("1", ""));
    // Restarts the xDS server at the same address.
    let address = xds.address;
    drop(xds);
    assert_eq!(check(&service, "d", "k").0, 200);
    let xds = Xds::start_at(address, None);
    xds.publish("7", &[domain("d", vec![descriptor("k", 9)])]);
    assert_eq!(xds.wait_for_ack("7"), ("7".to_owned(), None));
    wait_for_limit(&service, "d", "k", 9);
}

#[test]
fn xds_reconnect_delays_double_and_reset_after_a_response() {
    let xds = Xds::start();
    let service = start(
        &xds,
        &[
            ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "100ms"),
            ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "10s"),
            ("XDS_CLIENT_BACKOFF_JITTER", "false"),
        ],
    );
    let wait_for_requests = |requests: usize| {
        let came = || match xds.requests().len() {
            came if requests <= came => Ok(()),
            came => Err(format!("{came} requests")),
        };
        until("a request", came).unwrap();
    };
    for stream in 1..=2 {
        wait_for_requests(stream);
        // The first `hang_up` sends the response headers, the second closes the stream.
        xds.hang_up();
        xds.hang_up();
    }
    wait_for_requests(3);
    xds.publish("1", &[domain("d", vec![descriptor("k", 2)])]);
    assert_eq!(xds.wait_for_ack("1").1, None);
    xds.hang_up();
    let waits = || {
        let log = service.log();
        let waits = log.lines().filter_map(|line| line.rsplit_once("retry_in="));
        waits.map(|(_, wait)| wait.to_owned()).collect::<Vec<_>>()
    };
    until("three waits", || if waits().len() < 3 { Err(service.log()) } else { Ok(()) }).unwrap();
    assert_eq!(waits()[..3], ["0.1s", "0.2s", "0.1s"]);
}

#[test]
fn ports_stay_closed_until_the_first_limits_arrive() {
    let xds = Xds::start();
    let port = ports::free().port();
    let (address, port_text) = (xds.address.to_string(), port.to_string());
    let variables = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", &*address),
        ("PORT", &*port_text),
        ("USE_STATSD", "false"),
    ];
    let mut process = crate::service::as_ratelimit();
    let mut process = process.envs(variables).stdout(Stdio::null()).spawn().unwrap();
    until("it asks", || if xds.requests().is_empty() { Err(String::new()) } else { Ok(()) })
        .unwrap();
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "closed while it waits");
    crate::signals::send(process.id(), "TERM");
    let ended = until("its end", || match process.try_wait() {
        Ok(Some(status)) => Ok(status),
        other => Err(format!("{other:?}")),
    });
    let _ = process.kill();
    assert_eq!(ended.unwrap().code(), Some(0));
    let address = xds.address;
    std::thread::spawn(move || {
        until(
            "it asks again",
            || if xds.requests().len() < 2 { Err(String::new()) } else { Ok(()) },
        )
        .unwrap();
        xds.publish("1", &[domain("d", vec![descriptor("k", 1)])]);
        until(
            "it takes them",
            || if xds.requests().len() < 3 { Err(String::new()) } else { Ok(()) },
        )
        .unwrap();
    });
    let text = address.to_string();
    let variables = [
        ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
        ("CONFIG_GRPC_XDS_SERVER_URL", &*text),
        ("USE_STATSD", "false"),
    ];
    let service = Service::start_as_ratelimit(&variables).unwrap();
    assert!(service.said.contains("domain d: 1 rules"), "{}", service.said);
}

/// A process that waits for its first limits, and its log. The process is killed on drop.
struct WaitingProcess(Child, tempfile::NamedTempFile);

impl Drop for WaitingProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl WaitingProcess {
    fn start(http: SocketAddr, grpc: SocketAddr, server: SocketAddr) -> Self {
        Self::with_backoff(["10ms", "50ms"], http, grpc, server)
    }

    fn with_backoff(
        [least, most]: [&str; 2],
        http: SocketAddr,
        grpc: SocketAddr,
        server: SocketAddr,
    ) -> Self {
        let mut command = crate::service::sluicegate();
        command.args([
            "serve",
            "--compat-xds-backoff-min",
            least,
            "--compat-xds-backoff-max",
            most,
        ]);
        command.args([
            "--listen-admin-port",
            "0",
            "--listen-metrics-port",
            "0",
            "--limits-xds-server",
        ]);
        command.arg(server.to_string()).arg("--listen-http-port").arg(http.port().to_string());
        command.arg("--listen-grpc-port").arg(grpc.port().to_string());
        let log = tempfile::NamedTempFile::new().unwrap();
        command.stdout(Stdio::null()).stderr(log.reopen().unwrap());
        Self(command.args(["--listen-host", "127.0.0.1"]).spawn().unwrap(), log)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.1.path()).unwrap()
    }
}

#[test]
fn process_without_limits_is_live_but_not_ready() {
    let (http, grpc, server) = (ports::free(), ports::free(), ports::free());
    let waiting = WaitingProcess::start(http, grpc, server);
    let status = |path: &str| match http1::get(http, path, &[]) {
        Ok(reply) => Ok(reply.status),
        Err(error) => Err(error.to_string()),
    };
    let becomes = |path: &str, wanted: u16| {
        let is = || match status(path)? {
            found if found == wanted => Ok(()),
            found => Err(found.to_string()),
        };
        until(path, is).unwrap();
    };
    becomes("/livez", 200);
    assert_eq!(["/readyz", "/healthcheck"].map(status), [Ok(503), Ok(500)]);
    // Until limits arrive, connections close without a response: a proxy then tries another
    // replica, but it may not retry an error.
    for path in ["/check", "/json", "/hold", "/"] {
        assert!(status(path).is_err(), "{path}: {:?}", status(path));
    }
    assert!(TcpStream::connect(grpc).is_err(), "gRPC is closed while it waits");
    let xds = Xds::start_at(server, None);
    xds.publish("1", &[domain("d", vec![descriptor("k", 1)])]);
    becomes("/readyz", 200);
    becomes("/livez", 200);
    assert!(TcpStream::connect(grpc).is_ok());
    drop(waiting);
}

#[test]
fn idle_client_connection_does_not_block_startup() {
    let (http, server) = (ports::free(), ports::free());
    let _waiting = WaitingProcess::start(http, ports::free(), server);
    let silent = until("the port", || TcpStream::connect(http).map_err(|error| error.to_string()));
    let silent = silent.unwrap();
    assert_eq!(http1::get(http, "/livez", &[]).unwrap().status, 200);
    let xds = Xds::start_at(server, None);
    xds.publish("1", &[domain("d", vec![descriptor("k", 1)])]);
    let is_ready = || match http1::get(http, "/readyz", &[]) {
        Ok(reply) if reply.status == 200 => Ok(()),
        other => Err(format!("{other:?}")),
    };
    until("it is ready", is_ready).unwrap();
    drop(silent);
}

#[test]
fn sighup_during_startup_reconnects_to_xds_at_once() {
    let (http, server) = (ports::free(), ports::free());
    // Without SIGHUP, the next connection attempt would be an hour later.
    let mut waiting = WaitingProcess::with_backoff(["1h", "1h"], http, ports::free(), server);
    let called = || match waiting.log() {
        log if log.contains("xDS stream failed") => Ok(()),
        log => Err(log),
    };
    until("its first call", called).unwrap();
    let xds = Xds::start_at(server, None);
    xds.publish("1", &[domain("d", vec![descriptor("k", 1)])]);
    crate::signals::send(waiting.0.id(), "HUP");
    let is_ready = || match http1::get(http, "/readyz", &[]) {
        Ok(reply) if reply.status == 200 => Ok(()),
        other => Err(format!("{other:?}")),
    };
    let ready = until("it is ready", is_ready);
    let ended = waiting.0.try_wait().unwrap();
    assert!(ready.is_ok() && ended.is_none(), "{ready:?}, {ended:?}: {}", waiting.log());
}

#[test]
fn mutual_tls_verifies_the_xds_server() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let own = ours.sign(&["management.test"]);
    let client = ours.sign(&["ratelimit.test"]);
    let xds = Xds::start_with_tls(TlsFiles {
        certificate: own.certificate.into(),
        key: own.key.into(),
        client_ca: Some(ours.ca().into()),
        client_name: Some("ratelimit.test".to_owned()),
    });
    xds.publish("1", &[domain("d", vec![descriptor("k", 2)])]);
    let ca = ours.ca();
    let mutual = [
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &*client.certificate),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &*client.key),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &*ca),
        ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "management.test"),
    ];
    wait_for_limit(&start(&xds, &mutual), "d", "k", 2);
    let with = |name: &str, text: &str| {
        let mut other: Vec<_> = mutual.to_vec();
        other.iter_mut().find(|(known, _)| *known == name).unwrap().1 = "";
        let mut other: Vec<_> =
            other.iter().map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect();
        other.iter_mut().find(|(known, _)| known == name).unwrap().1 = text.to_owned();
        let other: Vec<_> = other.iter().map(|(n, t)| (&**n, &**t)).collect();
        let service = start(&xds, &other);
        let no_stream = format!("and retrying server={} error=no connection", xds.address);
        let is_logged = || match service.log() {
            log if log.contains(&no_stream) => Ok(()),
            log => Err(log),
        };
        until("it is refused", is_logged).unwrap();
        assert_eq!(check(&service, "d", "k").0, 400, "{name}");
    };
    with("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", &theirs.ca());
    with("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "other.test");
}

fn text(text: &str) -> Value {
    Value { kind: Some(Kind::StringValue(text.to_owned())) }
}

fn fields(of: &[(&str, Value)]) -> Struct {
    Struct { fields: of.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect() }
}

fn block(of: &[(&str, Value)]) -> Value {
    Value { kind: Some(Kind::StructValue(fields(of))) }
}

#[test]
fn xds_message_fields_match_the_yaml_fields() {
    for_a_day_with_a_minute_left();
    let xds = Xds::start();
    let service = start(&xds, &[("RESPONSE_DYNAMIC_METADATA", "true")]);
    let unlimited = RateLimitPolicy {
        unlimited: true,
        name: "free".to_owned(),
        replaces: vec![RateLimitReplace { name: "paid".to_owned() }],
        ..RateLimitPolicy::default()
    };
    let nodes = vec![
        RateLimitDescriptor {
            value: "v".to_owned(),
            descriptors: vec![descriptor("inner", 7)],
            rate_limit: None,
            ..descriptor("outer", 0)
        },
        RateLimitDescriptor { rate_limit: Some(unlimited), ..descriptor("free", 0) },
        RateLimitDescriptor { shadow_mode: true, ..descriptor("shadow", 0) },
        RateLimitDescriptor { quota_mode: true, detailed_metric: true, ..descriptor("quota", 1) },
        RateLimitDescriptor {
            metadata: Some(fields(&[("team", text("a"))])),
            ..descriptor("meta", 5)
        },
    ];
    xds.publish("1", &[domain("d", nodes)]);
    assert_eq!(xds.wait_for_ack("1").1, None);
    wait_for_limit(&service, "d", "outer_v.inner", 7);
    let rules = http1::get(service.admin, "/rlconfig", &[]).unwrap().text();
    assert!(rules.contains("d.free: unit=UNKNOWN requests_per_unit=0, "), "{rules}");
    assert!(rules.contains("d.shadow: unit=DAY requests_per_unit=0, shadow_mode: true"), "{rules}");
    assert!(
        rules.contains(
            "d.quota: unit=DAY requests_per_unit=1, shadow_mode: false, quota_mode: true"
        )
    );
    assert_eq!(check(&service, "d", "shadow").0, 200);
    assert!(check(&service, "d", "meta").1.contains(r#""metadata":{"team":"a"}"#));
    assert_eq!(check(&service, "d", "quota").0, 200);
    assert_eq!(
        stat(&service, "ratelimit.service.rate_limit.d.quota_v.within_limit"),
        1,
        "detailed"
    );
}

#[test]
fn sluicegate_fields_in_xds_metadata_are_applied_and_removed() {
    for_a_day_with_a_minute_left();
    let xds = Xds::start();
    let service = start(&xds, &[("RESPONSE_DYNAMIC_METADATA", "true")]);
    let with = |ours: Value| RateLimitDescriptor {
        metadata: Some(fields(&[("team", text("a")), ("sluicegate", ours)])),
        ..descriptor("k", 60)
    };
    let burst = Value { kind: Some(Kind::NumberValue(2.0)) };
    let gcra = block(&[("rate_limit", block(&[("strategy", text("gcra")), ("burst", burst)]))]);
    xds.publish("1", &[domain("d", vec![with(gcra)])]);
    assert_eq!(xds.wait_for_ack("1").1, None);
    wait_for_limit(&service, "d", "k", 60);
    let answers = [(); 3].map(|()| check(&service, "d", "k"));
    assert_eq!(answers.each_ref().map(|(status, _)| *status), [200, 200, 429], "a burst of two");
    assert!(answers[0].1.contains(r#""metadata":{"team":"a"}"#), "{}", answers[0].1);
    for (version, ours, why) in [
        ("2", block(&[("rate_limit", block(&[("strategi", text("gcra"))]))]), "strategi"),
        ("3", block(&[("key", text("other"))]), "`key` stands under `sluicegate`"),
        ("4", text("gcra"), "must hold words"),
    ] {
        xds.publish(version, &[domain("d", vec![with(ours)])]);
        let refused = xds.wait_for_ack(version).1.unwrap();
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn xds_backoff_doubles_to_its_maximum_and_resets() {
    let second = Duration::from_secs(1);
    let bounds = BackoffBounds { min: second, max: 5 * second, jitter: false, seed: 0 };
    let mut backoff = Backoff::new(bounds);
    assert_eq!([(); 5].map(|()| backoff.next_wait().as_secs()), [1, 2, 4, 5, 5]);
    backoff.reset();
    assert_eq!(backoff.next_wait(), second);
    let none = BackoffBounds { min: Duration::ZERO, max: Duration::ZERO, jitter: true, seed: 0 };
    let mut never_at_once = Backoff::new(none);
    assert!((0..9).all(|_| Duration::ZERO < never_at_once.next_wait()));
    let mut drawn = Backoff::new(BackoffBounds { jitter: true, ..bounds });
    for due in [1, 2, 4, 5, 5, 5] {
        let wait = drawn.next_wait();
        assert!(second <= wait && wait <= due * second, "{wait:?} of {due}");
    }
}
