//! Connections above `listen.max_connections`.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::support::http1;
use crate::support::service::Service;
use crate::support::waiting::until;

const MAX_CONNECTIONS: usize = 4;

/// The connection preface and an empty SETTINGS frame (RFC 9113, 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

fn serve() -> (tempfile::TempDir, Service) {
    let limits = tempfile::tempdir().unwrap();
    std::fs::write(limits.path().join("d.yaml"), "domain: d\n").unwrap();
    let most = ["--listen-max-connections".to_owned(), MAX_CONNECTIONS.to_string()];
    let service = Service::start(limits.path(), &most).unwrap();
    (limits, service)
}

/// Opens `count` connections that send an incomplete request.
fn slow_clients(port: SocketAddr, count: usize) -> Vec<TcpStream> {
    let open = |_| {
        let mut client = TcpStream::connect(port).unwrap();
        client.write_all(b"P").unwrap();
        client
    };
    (0..count).map(open).collect()
}

fn metric(service: &Service, series: &str) -> u64 {
    let page = http1::get(service.metrics, "/metrics", &[]).unwrap().text();
    let line = page.lines().find_map(|line| line.strip_prefix(series)).unwrap();
    line.trim().parse().unwrap()
}

#[test]
fn health_probes_succeed_above_the_maximum_and_other_requests_get_503() {
    let (_limits, service) = serve();
    let slow = slow_clients(service.http, MAX_CONNECTIONS + 200);
    for path in ["/livez", "/readyz", "/healthcheck"] {
        let reply = http1::get(service.http, path, &[]).unwrap();
        assert_eq!(reply.status, 200, "{path}: {}", reply.text());
    }
    let refused = http1::get(service.http, "/json", &[]).unwrap();
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("listen.max_connections"), "{}", refused.text());
    // The slow clients have all connections still, so the probes waited for none of them.
    assert_eq!(metric(&service, "sluicegate_connections_open{port=\"http\"}"), 4);
    assert_eq!(metric(&service, "sluicegate_connections_refused_total{port=\"http\"}"), 204);
    let log = service.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("refused a connection")).collect();
    assert!(lines.len() == 1 && lines[0].contains("listen.max_connections"), "{log}");
    drop(slow);
    until("a slot is free", || match http1::get(service.http, "/json", &[]) {
        Ok(reply) if reply.status != 503 => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .unwrap();
}

fn has_goaway(mut frames: &[u8]) -> bool {
    while let [a, b, c, kind, _, _, _, _, _, payload @ ..] = frames {
        if *kind == 7 {
            return true;
        }
        frames = &payload[usize::try_from(u32::from_be_bytes([0, *a, *b, *c])).unwrap()..];
    }
    false
}

#[tokio::test]
async fn a_grpc_connection_above_the_maximum_gets_unavailable_and_goaway() {
    let (_limits, service) = serve();
    let slow = slow_clients(service.grpc, MAX_CONNECTIONS);
    let check = async || {
        let channel = service.door().connect_lazy();
        HealthClient::new(channel).check(HealthCheckRequest::default()).await
    };
    let refused = check().await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("listen.max_connections"), "{refused}");
    let mut refused = TcpStream::connect(service.grpc).unwrap();
    refused.write_all(PREFACE).unwrap();
    let mut frames = Vec::new();
    refused.read_to_end(&mut frames).unwrap();
    assert!(has_goaway(&frames), "{frames:?}");
    drop(slow);
    until("a slot is free", || {
        match metric(&service, "sluicegate_connections_open{port=\"grpc\"}") {
            0 => Ok(()),
            open => Err(open.to_string()),
        }
    })
    .unwrap();
    check().await.unwrap();
}
