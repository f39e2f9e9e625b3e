//! Requests that start one by one, paced by the module in Envoy.

use std::thread;

use super::super::super::envoy::{Envoy, replace_once};
use super::super::super::stepwise_upstream::{Visit, Visits};
use super::super::launch;
use super::{configuration, fleet_page, open, proxies_of, status};
use crate::support::http1;
use crate::support::service::Service;
use crate::support::waiting::{now, until};

const LIMITS: &str = "domain: shop
descriptors:
- key: upstream
  rate_limit:
    requests_per_unit: 10
    unit: second
    adaptive: {min: 1, decrease: 0.5}
    wait: {at_most: 10m, queue: 20}
";

#[test]
fn a_refusal_halves_the_pace_inside_envoy() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("shop.yaml"), LIMITS).unwrap();
    let service = Service::start(&dir.path().join("shop.yaml"), &[]).unwrap();
    let upstream = Visits::listen();
    let mut text = configuration(upstream.address, service.grpc);
    let first = "- - request_headers: {header_name: x-api-key, descriptor_key: api_key}";
    let action = "- - generic_key: {descriptor_key: upstream, descriptor_value: all}";
    replace_once(&mut text, first, action);
    let envoy = Envoy::launch(text, 0, &launch("1.40"));
    until("a permit", || match status(&open(envoy.ingress, "/local", "")) {
        204 => Ok(()),
        status => Err(format!("{status}\n{}", envoy.log())),
    })
    .unwrap();
    let ingress = envoy.ingress;
    let get = move || http1::get(ingress, "/", &[]).unwrap().status;
    let refused = thread::spawn(get);
    upstream.next().refuse();
    assert_eq!(refused.join().unwrap(), 503);
    until("half of the rate", || {
        let page = fleet_page(&service);
        let rate = proxies_of(&page)[0]["concurrency"][0]["share"].as_u64();
        if rate == Some(5) { Ok(()) } else { Err(page.to_string()) }
    })
    .unwrap();
    let started_at = now();
    let requests: Vec<_> = (0..4).map(|_| thread::spawn(get)).collect();
    let visits: Vec<_> = requests.iter().map(|_| upstream.next()).collect();
    let took = now() - started_at;
    // The page rounds the rate, which is below 5.5 per second.
    assert!(3 * 181 - 2 <= took.as_millis(), "{took:?}");
    visits.into_iter().for_each(Visit::answer);
    assert!(requests.into_iter().all(|request| request.join().unwrap() == 200));
}
