//! Repeated rejections of limits from an xDS server.

use std::time::Duration;

use sluicegate::source::xds::message::{RateLimitConfig, RateLimitDescriptor};

use crate::support::waiting::{now, until};
use crate::support::xds::Xds;

use super::{descriptor, domain, start, wait_for_limit};

/// The duration of the fault.
const FAULT_TIME: Duration = Duration::from_secs(5);

fn nacks(xds: &Xds) -> usize {
    xds.requests().iter().filter(|asked| asked.request.error_detail.is_some()).count()
}

#[test]
fn a_server_that_repeats_a_rejected_version_gets_few_nacks() {
    let xds = Xds::start();
    let service = start(&xds, &[("LOG_LEVEL", "info")]);
    xds.publish("1", &[domain("d", vec![descriptor("k", 2)])]);
    assert_eq!(xds.wait_for_ack("1").1, None);
    // As go-control-plane's snapshot cache, answers each NACK with the same version at once.
    let refused = [domain("d", vec![descriptor("k", 3), descriptor("k", 4)])];
    xds.publish("2", &refused);
    let (began, mut answered) = (now(), 0);
    while now() - began < FAULT_TIME {
        if answered < nacks(&xds) {
            answered = nacks(&xds);
            xds.publish("2", &refused);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    // At 0, 0.5, 1.5 and 3.5 seconds.
    assert_eq!(nacks(&xds), 4);
    let lines = service.log().matches("limits from the xDS server rejected").count();
    assert_eq!(lines, 1, "{}", service.log());
    wait_for_limit(&service, "d", "k", 2);
    xds.publish("3", &[domain("d", vec![descriptor("k", 5)])]);
    assert_eq!(xds.wait_for_ack("3"), ("3".to_owned(), None));
    wait_for_limit(&service, "d", "k", 5);
    let end = "limits from the xDS server accepted again";
    until("the end is logged", || {
        if service.log().contains(end) { Ok(()) } else { Err(service.log()) }
    })
    .unwrap();
}

#[test]
fn a_server_that_repeats_without_waiting_gets_delayed_nacks() {
    let xds = Xds::start();
    let service = start(&xds, &[]);
    let began = now();
    while now() - began < FAULT_TIME {
        xds.publish("1", &[domain("", vec![])]);
        std::thread::sleep(Duration::from_millis(20));
    }
    let nacks = nacks(&xds);
    assert!((3..=5).contains(&nacks), "{nacks} NACKs");
    let lines = service.log().matches("limits from the xDS server rejected").count();
    assert_eq!(lines, 1, "{}", service.log());
}

#[test]
fn a_rejected_duplicate_is_named_by_its_path_of_keys() {
    let xds = Xds::start();
    let _service = start(&xds, &[]);
    // Two policies on one route.
    let masked = |requests| RateLimitDescriptor {
        value: "0.0.0.0/0".to_owned(),
        rate_limit: None,
        descriptors: vec![descriptor("remote_address", requests)],
        ..descriptor("masked_remote_address", 1)
    };
    let route = RateLimitDescriptor {
        value: "r".to_owned(),
        rate_limit: None,
        descriptors: vec![masked(15), masked(300)],
        ..descriptor("r", 1)
    };
    xds.publish("1", &[domain("shop", vec![route])]);
    let wanted = "resource shop: duplicate descriptor composite key \
                  `shop.r_r.masked_remote_address_0.0.0.0/0`; merge the two descriptors";
    assert_eq!(xds.wait_for_ack("1").1.as_deref(), Some(wanted));
    xds.publish(
        "2",
        &[domain("d", vec![]), RateLimitConfig { name: "b".to_owned(), ..domain("d", vec![]) }],
    );
    let refused = xds.wait_for_ack("2").1.unwrap();
    assert!(refused.starts_with("b: duplicate domain `d`, first in resource d; "), "{refused}");
}
