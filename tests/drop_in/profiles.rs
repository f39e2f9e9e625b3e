//! Tests of the paths `/debug/pprof/*`, where envoyproxy/ratelimit serves Go profiles.

use super::process;
use crate::support::http1;

#[test]
fn pprof_paths_return_501_and_mention_perf() {
    let variables = [("USE_PROMETHEUS", "true"), ("SLUICEGATE_STORE_URL", "memory")];
    let (_root, service) = process::start(&variables);
    for path in
        ["/debug/pprof", "/debug/pprof/", "/debug/pprof/profile?seconds=1", "/debug/pprof/heap"]
    {
        let reply = http1::get(service.admin, path, &[]).unwrap();
        assert_eq!(reply.status, 501, "{path}");
        assert!(reply.text().contains("perf record"), "{path}: {}", reply.text());
        assert_eq!(http1::get(service.metrics, path, &[]).unwrap().status, 404, "{path}");
    }
    let list = http1::get(service.admin, "/debug/other", &[]).unwrap();
    assert_eq!(list.status, 200, "every other path is the list, as there");
}
