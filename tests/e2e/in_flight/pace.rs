//! Requests that start one by one, behind Envoy's `ext_proc`.

use std::thread;

use serde_json::Value;

use super::EnvoyScene;
use crate::support::http1;
use crate::support::waiting::{now, until};

const PACE: &str = "- key: upstream
  rate_limit:
    requests_per_unit: 10
    unit: second
    adaptive: {min: 1, decrease: 0.5}
    wait: {at_most: 10m, queue: 20}
";

fn rate(scene: &EnvoyScene) -> Value {
    let page = http1::get(scene.service.admin, "/concurrency", &[]).unwrap().body;
    let page: Value = serde_json::from_slice(&page).unwrap();
    page["limits"][0]["rate_per_second"].clone()
}

#[test]
fn a_refusal_of_the_upstream_halves_the_pace_of_later_requests() {
    let scene = EnvoyScene::with(PACE);
    let ingress = scene.envoy.ingress;
    let get = move || http1::get(ingress, "/", &[]).unwrap().status;
    let first = thread::spawn(get);
    scene.upstream.next().refuse();
    assert_eq!(first.join().unwrap(), 503);
    until("half of the rate", || match rate(&scene) {
        rate if rate == 5.0 => Ok(()),
        rate => Err(rate.to_string()),
    })
    .unwrap();
    let started_at = now();
    let requests: Vec<_> = (0..4).map(|_| thread::spawn(get)).collect();
    let visits: Vec<_> = requests.iter().map(|_| scene.upstream.next()).collect();
    let took = now() - started_at;
    // Nobody released a permit in the meantime. The first of the four may start at once.
    assert!(3 * 200 - 2 <= took.as_millis(), "{took:?}");
    visits.into_iter().for_each(super::Visit::answer);
    assert!(requests.into_iter().all(|request| request.join().unwrap() == 200));
}
