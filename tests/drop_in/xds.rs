//! Tests of limits from an xDS management server.

mod fields;
mod log_lines;
mod reconnect;
mod rejections;
mod startup;

use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Any, Struct, Value};
use sluicegate::edge::grpc::tls::TlsFiles;
use sluicegate::source::xds::message::{
    RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit,
};

use crate::support::certificates::Authority;
use crate::support::http1;
use crate::support::service::Service;
use crate::support::waiting::{for_a_day_with_a_minute_left, until};
use crate::support::xds::Xds;

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
    assert!(xds.wait_for_ack("8").1.unwrap().contains("cannot be decoded"));
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
        let counted = format!("sluicegate_config_loads_total{{outcome=\"rejected\"}} {refused}\n");
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
        let no_stream = format!("and retrying server={} error=connection failed", xds.address);
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
