//! The explanation of the class and the customer of a request.

use sluicegate::config::explain::explain;
use sluicegate::kernel::units::{Hits, Nanos};

use crate::config::load_clean;

const LIMITS: &str = "- key: up\n  concurrency: {limit: 10, max_duration: 9s, queue: {size: 1, timeout: 1s}, \
                      classes: {by: tier, up_to: {critical: 100%, batch: 50%}}, \
                      fair: {by: customer, weight: customers.weight}}\n\
                      - {key: plain, concurrency: {limit: 10, max_duration: 9s}}\n";

/// Returns the class and the customer in the explanation of the first descriptor.
fn requester(descriptors: &[Vec<(&str, &str)>]) -> [Option<String>; 2] {
    let config = load_clean(LIMITS);
    let mut explained = explain(&config, "d", descriptors, Hits(1), Nanos(0));
    let concurrency = explained.descriptors.remove(0).concurrency.unwrap();
    [concurrency.class, concurrency.customer]
}

#[test]
fn explain_shows_the_class_and_the_customer_of_any_descriptor() {
    let up = vec![("up", "gpu")];
    let shared = Some("shared part of all unknown customers, weight 1".to_owned());
    let class = |text: &str| Some(text.to_owned());
    let found = requester(&[up.clone(), vec![("tier", "critical")], vec![("customer", "acme")]]);
    assert_eq!(found, [class("critical, below 100% of the limit"), shared.clone()], "no rows yet");
    let found = requester(&[up, vec![("tier", "invented")]]);
    assert_eq!(found, [class("batch, below 50% of the limit"), shared]);
    assert_eq!(requester(&[vec![("plain", "x")]]), [None, None]);
}
