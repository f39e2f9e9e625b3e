//! Concurrency limits through two rate limit filters.

use super::EnvoyScene;
use crate::e2e::stepwise_upstream::Visit;
use crate::support::http1;

#[test]
fn limit_of_two_rate_limit_filters_is_exact_and_permits_are_released() {
    let scene = EnvoyScene::with_rls_limit("limit: 2, reject: {retry_after: 1500ms, body: busy}");
    let clients = [scene.send(), scene.send()];
    let [first, second] = [scene.upstream.next(), scene.upstream.next()];
    scene.expect_in_flight(2);
    for _ in 0..5 {
        let rejected = scene.get();
        assert_eq!((rejected.status, rejected.text().as_str()), (503, "busy"));
        assert_eq!(rejected.header("retry-after"), Some("2"));
    }
    first.answer();
    scene.expect_in_flight(1);
    second.answer();
    scene.expect_in_flight(0);
    for client in clients {
        assert_eq!(client.join().unwrap().unwrap().status, 200);
    }
}

#[test]
fn two_rate_limit_filters_release_permits_on_disconnect_and_reset() {
    let scene = EnvoyScene::with_rls_limit("limit: 1, queue: {size: 1, timeout: 5m}");
    let client = scene.connect();
    let visit = scene.upstream.next();
    let queued = scene.connect();
    scene.expect_gauge("sluicegate_requests_queued", 1);
    drop(queued);
    scene.expect_gauge("sluicegate_requests_queued", 0);
    scene.expect_in_flight(1);
    drop(client);
    scene.expect_in_flight(0);
    visit.reset();
    let client = scene.send();
    let visit = scene.upstream.next();
    scene.expect_in_flight(1);
    visit.reset();
    scene.expect_in_flight(0);
    assert_eq!(client.join().unwrap().unwrap().status, 503);
}

#[test]
fn max_duration_frees_permits_of_a_killed_envoy() {
    let mut scene = EnvoyScene::with_rls_limit("limit: 1, max_duration: 1s");
    let _client = scene.connect();
    let _visit = scene.upstream.next();
    scene.envoy.kill();
    scene.expect_in_flight(0);
}

/// Clients must not be able to choose a request id or a hook.
#[test]
fn forged_request_ids_and_hooks_have_no_effect() {
    let limit = "limit: 2, reject: {status: 503}";
    for scene in [
        EnvoyScene::with_limit(limit),
        EnvoyScene::with_rls_limit(limit),
        EnvoyScene::with_ext_authz_limit(limit),
    ] {
        forged_headers_have_no_effect(&scene);
    }
}

fn forged_headers_have_no_effect(scene: &EnvoyScene) {
    // The hook `other` has a domain without limits, so it would allow every request.
    let forged = [
        ("x-sluicegate-id", "0123456789abcdef"),
        ("x-request-id", "0123456789abcdef"),
        ("x-sluicegate-hook", "other"),
        ("x-hook", "other"),
        ("hook", "other"),
    ];
    let (ingress, ask) = (scene.envoy.ingress, http1::get);
    let clients = [(); 2].map(|()| std::thread::spawn(move || ask(ingress, "/", &forged)));
    let visits = [scene.upstream.next(), scene.upstream.next()];
    scene.expect_in_flight(2);
    assert_eq!(ask(ingress, "/", &forged).unwrap().status, 503, "{}", scene.envoy.log());
    visits.into_iter().for_each(Visit::answer);
    for client in clients {
        assert_eq!(client.join().unwrap().unwrap().status, 200);
    }
    scene.expect_in_flight(0);
}
