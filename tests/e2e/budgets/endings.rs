//! Tests of the amounts after each way to end a request.

use std::io::Read as _;
use std::sync::atomic::Ordering::SeqCst;

use super::provider::USED;
use super::{Amounts, ESTIMATE, LlmScene, WAYS};
use crate::e2e::envoy::{Shipped, replace_once};
use crate::support::waiting::until;

#[test]
fn usage_of_every_reply_is_settled_exactly() {
    for way in WAYS {
        let scene = LlmScene::start(way);
        let mut settled = 0;
        for (path, cost) in replies(way) {
            let reply = scene.ask(path);
            assert_eq!(reply.status, 200, "{way:?}: {path}: {reply:?}");
            settled += cost;
            scene.expect(Amounts::settled(settled), path);
        }
        assert_eq!(scene.provider.record.compressed.load(SeqCst), 0, "{way:?}");
    }
}

/// Paths of the provider, and the tokens that each is charged. Without usage, that is the estimate.
fn replies(way: Shipped) -> Vec<(&'static str, u64)> {
    let of_all = [
        ("/openai", USED),
        ("/json", USED),
        ("/embeddings", USED),
        ("/chat", USED),
        ("/no-usage", ESTIMATE),
    ];
    let others: &[_] = match way {
        // The filter reads only the OpenAI API.
        Shipped::Budgets => &[("/anthropic", ESTIMATE)],
        _ => &[("/anthropic", USED), ("/gemini", USED)],
    };
    [&of_all, others].concat()
}

#[test]
fn a_provider_error_costs_nothing() {
    for way in WAYS {
        let scene = LlmScene::start(way);
        for path in ["/status/429", "/status/500"] {
            assert_eq!(scene.ask(path).status.to_string(), path["/status/".len()..]);
            scene.expect(Amounts::default(), path);
        }
    }
}

#[test]
fn a_client_that_leaves_pays_the_estimate() {
    for way in WAYS {
        let scene = LlmScene::start(way);
        let one_hold = Amounts { settled: 0, held: ESTIMATE, open_holds: 1 };
        let mut client = scene.connect("/endless");
        assert!(0 < client.read(&mut [0; 1024]).unwrap(), "the reply has begun");
        scene.expect(one_hold, "while the reply is streamed");
        drop(client);
        scene.expect(Amounts::settled(ESTIMATE), "after an aborted reply");
        let client = scene.connect("/silent");
        scene.expect(Amounts { settled: ESTIMATE, ..one_hold }, "before the reply");
        drop(client);
        scene.expect(Amounts::settled(2 * ESTIMATE), "after a client that left before the reply");
    }
}

#[test]
fn concurrent_requests_reserve_at_most_the_amount() {
    const FIT: u64 = 6;
    for way in WAYS {
        let scene = LlmScene::start(way);
        let mut clients = Vec::new();
        for number in 1..=FIT {
            clients.push(scene.connect("/endless"));
            let held = Amounts {
                settled: 0,
                held: number * ESTIMATE,
                open_holds: u32::try_from(number).unwrap(),
            };
            scene.expect(held, "while replies are streamed");
        }
        let denied = scene.ask("/openai");
        assert_eq!(denied.status, 429, "{way:?}: {denied:?}");
        assert_eq!(denied.header("retry-after"), Some("1"), "{way:?}: {denied:?}");
        let full = Amounts { settled: 0, held: FIT * ESTIMATE, open_holds: 6 };
        scene.expect(full, "after a denied request");
        // A client that leaves earlier could cancel its request on the way to the provider.
        until("all requests to arrive", || match scene.provider.record.arrived.load(SeqCst) {
            FIT => Ok(()),
            arrived => Err(arrived.to_string()),
        })
        .unwrap();
        drop(clients);
        scene.expect(Amounts::settled(FIT * ESTIMATE), "after all clients left");
        let spent = scene.ask("/openai");
        let wait = spent.header("retry-after").and_then(|wait| wait.parse::<u64>().ok());
        assert_eq!(spent.status, 429, "{way:?}: {spent:?}");
        assert!(wait.is_some_and(|wait| 1 < wait), "until the next day: {spent:?}");
        assert_eq!(scene.provider.record.arrived.load(SeqCst), FIT, "{way:?}");
    }
}

#[test]
fn a_request_without_an_organization_reaches_no_provider() {
    for way in WAYS {
        let scene = LlmScene::start(way);
        for headers in [&[][..], &[("x-org", "")]] {
            let reply =
                crate::support::http1::get(scene.envoy.ingress, "/openai", headers).unwrap();
            assert_eq!(reply.status, 401, "{way:?}: {headers:?}");
        }
        assert_eq!(scene.provider.record.arrived.load(SeqCst), 0, "{way:?}");
    }
}

/// A client cannot choose the request id: two requests with one id would share a hold.
#[test]
fn an_id_of_the_client_is_replaced() {
    let scene = LlmScene::start(Shipped::Budgets);
    let headers = [&super::HEADERS[..], &[("x-sluicegate-id", "0123456789abcdef")]].concat();
    for number in 1..=2 {
        let reply = crate::support::http1::get(scene.envoy.ingress, "/openai", &headers).unwrap();
        assert_eq!(reply.status, 200, "{reply:?}");
        scene.expect(Amounts::settled(number * USED), "with an id of the client");
    }
}

/// In this mode Envoy ignores replies, so a denial would have no effect. The service refuses it.
/// Without `failure_mode_allow: true`, the request fails if the refusal arrives before the reply.
#[test]
fn observability_mode_reserves_nothing() {
    let scene = LlmScene::changed(Shipped::BudgetsExtProc, |text| {
        let mode = "observability_mode: true\n                      failure_mode_allow: true";
        replace_once(text, "failure_mode_allow: false", mode);
    });
    assert_eq!(scene.ask("/openai").status, 200);
    scene.expect(Amounts::default(), "in observability_mode");
}
