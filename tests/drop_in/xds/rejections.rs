//! Repeated rejections of limits from an xDS server.

use std::time::Duration;

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
