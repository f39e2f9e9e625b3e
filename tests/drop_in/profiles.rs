//! Profiles: there are none, and whoever fetches one is told so and where to turn.

use super::process;
use crate::http1;

#[test]
fn where_the_reference_has_profiles_a_sentence_says_what_there_is_instead() {
    let variables = [("USE_PROMETHEUS", "true"), ("SLUICEGATE_BACKEND", "memory")];
    let (_root, service) = process::start(&variables);
    for path in [
        "/debug/pprof",
        "/debug/pprof/",
        "/debug/pprof/profile?seconds=30",
        "/debug/pprof/trace",
        "/debug/pprof/heap",
        "/debug/pprof/goroutine?debug=1",
    ] {
        let reply = http1::get(service.admin, path, &[]).unwrap();
        // No 200: a collector of profiles would keep the sentence as one.
        assert_eq!(reply.status, 404, "{path}");
        assert!(reply.text().contains("perf record"), "{path}: {}", reply.text());
        assert_eq!(http1::get(service.metrics, path, &[]).unwrap().status, 404, "{path}");
    }
    let list = http1::get(service.admin, "/debug/other", &[]).unwrap();
    assert_eq!(list.status, 200, "every other path is the list, as there");
}
