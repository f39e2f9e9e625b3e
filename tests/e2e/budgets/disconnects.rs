//! Tests of clients that leave during the reserve call.

use std::net::SocketAddr;

use super::{Amounts, ESTIMATE, LlmScene, WAYS, amounts_of};
use crate::e2e::envoy::Shipped;
use crate::e2e::envoy_disconnects::delay_acquires;
use crate::support::proxy::{Flow, Proxy, Upstream, Way};
use crate::support::waiting::until;

/// Starts a scene whose reserves pass a proxy. Settles of the rate limit filter do not.
fn scene_with_proxy(way: Shipped) -> (LlmScene, Proxy) {
    let proxy = Proxy::before(Upstream::Tcp(SocketAddr::from(([127, 0, 0, 1], 1))));
    let address = proxy.address();
    let scene = LlmScene::changed(way, |text| delay_acquires(text, address));
    proxy.set_upstream(Upstream::Tcp(scene.service.grpc));
    (scene, proxy)
}

fn wait_until_idle(scene: &LlmScene) {
    for gauge in ["http.ingress.downstream_rq_active", "cluster.sluicegate.upstream_rq_active"] {
        until(gauge, || match scene.envoy.counter(gauge) {
            0 => Ok(()),
            active => Err(active.to_string()),
        })
        .unwrap();
    }
}

/// The settle of the rate limit filter overtakes the reserve, which then takes no hold.
#[test]
fn a_client_that_leaves_before_the_reserve_leaves_no_hold() {
    for way in WAYS {
        let (scene, proxy) = scene_with_proxy(way);
        assert_eq!(scene.ask("/status/500").status, 500, "opens the connections");
        let sent = proxy.bytes(Way::ToStore);
        proxy.set(Way::ToStore, Flow::Hold);
        let client = scene.connect("/openai");
        until("the reserve", || match proxy.bytes(Way::ToStore) {
            bytes if sent < bytes => Ok(()),
            _ => Err("not sent".to_owned()),
        })
        .unwrap();
        drop(client);
        wait_until_idle(&scene);
        proxy.pass();
        assert_eq!(scene.ask("/status/500").status, 500, "arrives after the held reserve");
        // With ext_proc, the service may read the request before it sees that the stream was reset.
        let most = if way == Shipped::BudgetsExtProc { ESTIMATE } else { 0 };
        until("the end of the request", || match amounts_of(&scene.service) {
            [found, _] if found.open_holds == 0 && found.settled <= most => Ok(()),
            found => Err(format!("{way:?}: {found:?}")),
        })
        .unwrap();
        assert_eq!(scene.provider.record.arrived.load(std::sync::atomic::Ordering::SeqCst), 2);
    }
}

/// The service has replied, and cannot know that the provider never got the request.
#[test]
fn a_lost_reply_to_a_reserve_leaves_no_hold() {
    for way in WAYS {
        let (scene, proxy) = scene_with_proxy(way);
        assert_eq!(scene.ask("/status/500").status, 500, "opens the connections");
        scene.expect(Amounts::default(), "after an error of the provider");
        proxy.set(Way::FromStore, Flow::Hold);
        let client = scene.connect("/openai");
        let hold = Amounts { settled: 0, held: ESTIMATE, open_holds: 1 };
        scene.expect(hold, "while the reply to the reserve is held");
        drop(client);
        until("no hold", || match amounts_of(&scene.service) {
            [found, _] if found.open_holds == 0 => Ok(()),
            found => Err(format!("{way:?}: {found:?}")),
        })
        .unwrap();
        scene.expect(Amounts::settled(ESTIMATE), "after a lost reply to the reserve");
        proxy.pass();
    }
}
