//! Repeated rejections of limits from an xDS server.

use std::time::{Duration, Instant};

use sluicegate::source::xds::message::{RateLimitConfig, RateLimitDescriptor};

use crate::support::log_lines::assert_line_count;
use crate::support::service::Service;
use crate::support::waiting::{PATIENCE, now, until};
use crate::support::xds::Xds;

use super::{descriptor, domain, start, wait_for_limit};

/// The interval between the responses of a server that does not wait.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(20);

fn nacks(xds: &Xds) -> usize {
    xds.requests().iter().filter(|asked| asked.request.error_detail.is_some()).count()
}

/// The delay of the NACK of the nth repetition of a rejected response, from 0.
fn delay(repetition: usize) -> Duration {
    Duration::from_millis(500 << repetition)
}

/// Asserts that the rejections since `began` are one line, and a further one in each minute.
fn assert_logged_once_a_minute(service: &Service, began: Instant) {
    let log = service.log();
    let lines = log.matches("limits from the xDS server rejected").count();
    assert_line_count(lines, 1, began, &log);
}

#[test]
fn a_server_that_repeats_a_rejected_version_gets_few_nacks() {
    let xds = Xds::start();
    let service = start(&xds, &[("LOG_LEVEL", "info")]);
    xds.publish("1", &[domain("d", vec![descriptor("k", 2)])]);
    assert_eq!(xds.wait_for_ack("1").1, None);
    let refused = [domain("d", vec![descriptor("k", 3), descriptor("k", 4)])];
    let began = now();
    xds.publish("2", &refused);
    assert!(xds.wait_for_ack("2").1.is_some());
    // As go-control-plane's snapshot cache, answers each NACK with the same version at once.
    for repetition in 0..3 {
        assert_eq!(nacks(&xds), 1 + repetition);
        let repeated_at = now();
        xds.publish("2", &refused);
        until("the next NACK", || match nacks(&xds) {
            came if 1 + repetition < came => Ok(()),
            came => Err(format!("{came} NACKs")),
        })
        .unwrap();
        let took = repeated_at.elapsed();
        assert!(delay(repetition) <= took, "NACK {repetition} after {took:?}");
    }
    assert_eq!(nacks(&xds), 4);
    assert_logged_once_a_minute(&service, began);
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
    // The first NACK has no delay, and each later one has at least the sum of all delays before.
    let earliest = |nacks: usize| (0..nacks.saturating_sub(1)).map(delay).sum::<Duration>();
    loop {
        xds.publish("1", &[domain("", vec![])]);
        let came = nacks(&xds);
        let took = began.elapsed();
        assert!(earliest(came) <= took, "{came} NACKs within {took:?}");
        assert!(took < PATIENCE, "{came} NACKs");
        if 4 <= came {
            break;
        }
        std::thread::sleep(PUBLISH_INTERVAL);
    }
    assert_logged_once_a_minute(&service, began);
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
