//! Profiles where the reference has them: that of processors, for who has the token; of the others a sentence.

use super::process;
use crate::http1;

#[test]
fn where_the_reference_has_profiles_there_is_one_and_a_sentence_says_so_of_the_others() {
    let variables = [("USE_PROMETHEUS", "true"), ("SLUICEGATE_BACKEND", "memory")];
    let (_root, service) = process::start(&variables);
    for path in [
        "/debug/pprof",
        "/debug/pprof/",
        "/debug/pprof/trace",
        "/debug/pprof/heap",
        "/debug/pprof/goroutine?debug=1",
    ] {
        let reply = http1::get(service.admin, path, &[]).unwrap();
        // No 200: a collector of profiles would keep the sentence as one.
        assert_eq!(reply.status, 404, "{path}");
        assert!(reply.text().contains("/debug/pprof/profile"), "{path}: {}", reply.text());
        assert_eq!(http1::get(service.metrics, path, &[]).unwrap().status, 404, "{path}");
    }
    let path = "/debug/pprof/profile?seconds=1";
    assert_eq!(http1::get(service.metrics, path, &[]).unwrap().status, 404, "never there");
    let refused = http1::get(service.admin, path, &[]).unwrap();
    assert_eq!(refused.status, 401, "{}", refused.text());
    let token = [("authorization", "Bearer open-sesame")];
    let reply = http1::get(service.admin, path, &token).unwrap();
    // Of a gzip: this name has other commands, and the profiler is none of them.
    assert_eq!((reply.status, reply.body.get(..2)), (200, Some(&[0x1f, 0x8b][..])));
    let list = http1::get(service.admin, "/debug/other", &[]).unwrap();
    assert_eq!(list.status, 200, "every other path is the list, as there");
}
