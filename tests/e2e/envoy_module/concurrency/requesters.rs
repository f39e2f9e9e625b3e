//! Classes and fair parts of a limit that Envoy enforces.

use std::sync::mpsc::{Sender, channel};

use serde_json::json;

use super::super::super::envoy::{Envoy, replace_once};
use super::super::super::stepwise_upstream::Visits;
use super::super::launch;
use super::{configuration, wait_for_permit, wait_for_waiting};
use crate::support::http1;
use crate::support::service::Service;
use crate::support::waiting::PATIENCE;

const LIMITS: &str = "domain: shop
descriptors:
- key: upstream
  concurrency:
    limit: 1
    mode: local
    queue: {size: 20, timeout: 10m}
    classes: {by: tier, up_to: {gold: 100%, batch: 100%}}
    fair: {by: customer, weight: customers.weight}
";

/// The descriptors of a request, each with one entry.
const ACTIONS: [&str; 3] = [
    "generic_key: {descriptor_key: upstream, descriptor_value: all}",
    "request_headers: {header_name: x-customer, descriptor_key: customer}",
    "request_headers: {header_name: x-tier, descriptor_key: tier}",
];

struct Scene {
    service: Service,
    envoy: Envoy,
    upstream: Visits,
}

impl Scene {
    /// Starts Envoy and Sluicegate, with a table of these customers.
    fn start(customers: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("shop.yaml"), LIMITS).unwrap();
        let rows = dir.path().join("customers.jsonl");
        let lines = customers.iter().map(|id| json!({"id": id, "weight": 1}).to_string() + "\n");
        std::fs::write(&rows, lines.collect::<String>()).unwrap();
        let source = format!("file://{}", rows.display());
        let tables = json!([{"name": "customers", "source": source}]).to_string();
        let flags = ["--tables".to_owned(), tables];
        let service = Service::start(&dir.path().join("shop.yaml"), &flags).unwrap();
        let upstream = Visits::listen();
        let mut text = configuration(upstream.address, service.grpc);
        let first = "- - request_headers: {header_name: x-api-key, descriptor_key: api_key}";
        let indent = " ".repeat(28);
        let actions = ACTIONS.map(|action| format!("- - {action}"));
        replace_once(&mut text, first, &actions.join(&format!("\n{indent}")));
        let envoy = Envoy::launch(text, 0, &launch("1.40"));
        wait_for_permit(&envoy);
        Self { service, envoy, upstream }
    }

    /// Sends a request, which reports its customer at its end.
    fn send(&self, customer: &'static str, tier: &'static str, ended: &Sender<&'static str>) {
        let (ingress, ended) = (self.envoy.ingress, ended.clone());
        std::thread::spawn(move || {
            let headers = [("x-customer", customer), ("x-tier", tier)];
            assert_eq!(http1::get(ingress, "/", &headers).unwrap().status, 200);
            ended.send(customer).unwrap();
        });
    }
}

/// The first class comes first. In the last one, each known customer has a turn, and so have all
/// invented ones together.
#[test]
fn envoy_serves_classes_and_customers_in_turn() {
    let scene = Scene::start(&["hog", "acme", "vip"]);
    let (ended, ends) = channel();
    scene.send("hog", "batch", &ended);
    let mut visit = scene.upstream.next();
    let waiting = [
        ("hog", "batch"),
        ("hog", "batch"),
        ("invented-1", "batch"),
        ("invented-2", "unlisted"),
        ("acme", "batch"),
        ("vip", "gold"),
    ];
    for (number, (customer, tier)) in (1..).zip(waiting) {
        scene.send(customer, tier, &ended);
        wait_for_waiting(&scene.service, number);
    }
    let mut order = Vec::new();
    for _ in waiting {
        visit.answer();
        order.push(ends.recv_timeout(PATIENCE).unwrap());
        visit = scene.upstream.next();
    }
    visit.answer();
    order.push(ends.recv_timeout(PATIENCE).unwrap());
    assert_eq!(order, ["hog", "vip", "invented-1", "acme", "hog", "invented-2", "hog"]);
}
