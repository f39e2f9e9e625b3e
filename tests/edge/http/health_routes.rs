//! Health on the metrics port.

use crate::support::http1;
use crate::support::service::Service;

#[test]
fn the_metrics_port_serves_health() {
    let limits = tempfile::tempdir().unwrap();
    std::fs::write(limits.path().join("d.yaml"), "domain: d\n").unwrap();
    let service = Service::start(limits.path(), &[]).unwrap();
    for (path, text) in [("/livez", "alive\n"), ("/readyz", "ready\n"), ("/healthcheck", "OK")] {
        let reply = http1::get(service.metrics, path, &[]).unwrap();
        assert_eq!((reply.status, reply.text().as_str()), (200, text), "{path}");
    }
    // A metrics page at the path of a health check replaces it.
    let flags = ["--compat-metrics-path", "/livez"].map(str::to_owned);
    let service = Service::start(limits.path(), &flags).unwrap();
    let page = http1::get(service.metrics, "/livez", &[]).unwrap().text();
    assert!(page.contains("sluicegate_checks_total"), "{page}");
}
