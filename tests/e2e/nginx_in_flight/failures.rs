//! NGINX or the service stops, and forged requests.

use std::net::SocketAddr;

use tempfile::TempDir;

use super::{INTEGRATIONS, Integration, NginxScene, service, shipped, status_of};
use crate::e2e::envoy::WhenDown;
use crate::e2e::in_flight::{HOOKS, expect_gauge, limit_all_requests};
use crate::e2e::nginx::Nginx;
use crate::e2e::stepwise_upstream::{Visit, Visits};
use crate::support::http1;
use crate::support::service::Service;
use crate::support::waiting::until;

#[test]
fn forged_request_ids_and_headers_have_no_effect() {
    for by in INTEGRATIONS {
        let scene = NginxScene::with_limit(by, "limit: 2");
        let ingress = scene.nginx.ingress;
        let forged = [
            ("x-sluicegate-id", "0123456789abcdef"),
            ("x-request-id", "0123456789abcdef"),
            // This hook has a domain without limits.
            ("x-hook", "other"),
            ("x-deny-status", "200"),
        ];
        let ask = move || http1::get(ingress, "/", &[forged, forged].concat());
        let clients = [(); 2].map(|()| std::thread::spawn(ask));
        let visits = [scene.upstream.next(), scene.upstream.next()];
        scene.expect_in_flight(2);
        assert_eq!(ask().unwrap().status, 503, "{by:?}");
        visits.into_iter().for_each(Visit::answer);
        assert_eq!(clients.map(status_of), [200, 200]);
        scene.expect_in_flight(0);
    }
}

#[test]
fn nginx_exit_frees_permits_immediately_or_by_max_duration() {
    for by in INTEGRATIONS {
        for signal in ["KILL", "TERM"] {
            // After its exit, NGINX sends no syslog datagrams, so only `max_duration` frees the
            // permits.
            let max_duration = if by == Integration::Lua { "60s" } else { "1s" };
            let scene =
                NginxScene::with_limit(by, &format!("limit: 9, max_duration: {max_duration}"));
            let _clients: Vec<_> = (0..5).map(|_| scene.connect()).collect();
            let _visits: Vec<_> = (0..5).map(|_| scene.upstream.next()).collect();
            if by == Integration::Lua {
                scene.expect_in_flight(5);
            }
            scene.nginx.signal(signal);
            scene.expect_in_flight(0);
        }
    }
}

#[test]
fn max_duration_frees_permits_of_a_stopped_nginx() {
    for by in INTEGRATIONS {
        let scene = NginxScene::with_limit(by, "limit: 9, max_duration: 1s");
        let clients: Vec<_> = (0..3).map(|_| scene.send()).collect();
        let visits: Vec<_> = (0..3).map(|_| scene.upstream.next()).collect();
        scene.nginx.signal("STOP");
        scene.expect_in_flight(0);
        scene.nginx.signal("CONT");
        visits.into_iter().for_each(Visit::answer);
        for client in clients {
            assert_eq!(status_of(client), 200);
        }
        // Late releases of the expired permits release no other permit. This one does not expire.
        scene.expect_in_flight(0);
        scene.replace_limit("limit: 9, max_duration: 10m");
        let client = scene.send();
        let visit = scene.upstream.next();
        scene.expect_in_flight(1);
        visit.answer();
        assert_eq!(status_of(client), 200);
        scene.expect_in_flight(0);
    }
}

#[test]
fn exit_of_the_service_fails_no_nginx_request() {
    for by in INTEGRATIONS {
        for signal in ["KILL", "TERM"] {
            let mut scene = NginxScene::with_limit(by, "limit: 1");
            let client = scene.send();
            let visit = scene.upstream.next();
            scene.expect_in_flight(1);
            if signal == "KILL" {
                scene.service.kill();
            } else {
                scene.service.terminate();
                let status = scene.service.ended().unwrap();
                assert_eq!(status.code(), Some(0), "{status}\n{}", scene.service.log());
            }
            let passes = scene.send();
            scene.upstream.next().answer();
            assert_eq!(status_of(passes), 200, "{by:?}");
            visit.answer();
            assert_eq!(status_of(client), 200, "{by:?}");
        }
    }
}

/// The service restarts on the same ports, which NGINX continues to use. Requests in flight
/// continue without a permit.
#[test]
fn restarted_service_counts_only_new_requests() {
    for by in INTEGRATIONS {
        let limits = tempfile::tempdir().unwrap();
        let text = format!("domain: edge\ndescriptors:\n{}", limit_all_requests("limit: 2"));
        std::fs::write(limits.path().join("edge.yaml"), text).unwrap();
        let mut first = service(&limits);
        let (http, syslog) = (first.http, first.syslog().unwrap());
        let upstream = Visits::listen();
        let nginx = Nginx::start_as(shipped(by, syslog), upstream.address, http, WhenDown::Allow);
        let ingress = nginx.ingress;
        let send = || std::thread::spawn(move || http1::get(ingress, "/", &[]));
        let before = send();
        let visit = upstream.next();
        expect_gauge(first.metrics, "sluicegate_requests_in_flight", 1);
        first.kill();
        let second = restart_on(&limits, http, syslog);
        // The release of the old request matches no permit of the restarted service.
        let after = send();
        let later = upstream.next();
        expect_gauge(second.metrics, "sluicegate_requests_in_flight", 1);
        visit.answer();
        assert_eq!(status_of(before), 200, "{by:?}");
        expect_gauge(second.metrics, "sluicegate_requests_in_flight", 1);
        later.answer();
        assert_eq!(status_of(after), 200, "{by:?}");
        expect_gauge(second.metrics, "sluicegate_requests_in_flight", 0);
    }
}

/// Restarts the service on the same ports.
fn restart_on(limits: &TempDir, http: SocketAddr, syslog: SocketAddr) -> Service {
    let ports = [http.port().to_string(), syslog.port().to_string()];
    let flags =
        ["--hooks", HOOKS, "--listen-http-port", &ports[0], "--listen-syslog-port", &ports[1]];
    let flags = flags.map(str::to_owned);
    until("the same ports", || Service::start(limits.path(), &flags)).unwrap()
}

#[test]
fn forged_syslog_datagrams_release_no_permit() {
    let scene = NginxScene::with_limit(Integration::Datagrams, "limit: 1");
    let client = scene.send();
    let visit = scene.upstream.next();
    scene.expect_in_flight(1);
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let forged =
        "<190>Nov 20 15:55:25 sluicegate: id=0123456789abcdef status=200 done=OK rtt=1.000";
    for datagram in [forged, &forged[..40], ""] {
        socket.send_to(datagram.as_bytes(), scene.service.syslog().unwrap()).unwrap();
    }
    let counted = |kind: &str, count: u64| {
        let name = format!("sluicegate_syslog_datagrams_total{{kind=\"{kind}\"}}");
        expect_gauge(scene.service.metrics, &name, count);
    };
    counted("release", 1);
    counted("malformed", 2);
    scene.expect_in_flight(1);
    visit.answer();
    assert_eq!(status_of(client), 200);
    scene.expect_in_flight(0);
    counted("release", 2);
}
