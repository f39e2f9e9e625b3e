//! Lost streams, reconnects and their delays.

use std::time::Duration;

use sluicegate::source::xds::{Backoff, BackoffBounds};

use super::{check, descriptor, domain, start, wait_for_limit};
use crate::support::ports;
use crate::support::waiting::until;
use crate::support::xds::Xds;

#[test]
fn lost_xds_stream_keeps_limits_and_resumes_with_their_version() {
    let xds = Xds::start_at(ports::free(), None);
    let service = start(&xds, &[]);
    xds.publish("1", &[domain("d", vec![descriptor("k", 2)])]);
    assert_eq!(xds.wait_for_ack("1").1, None);
    wait_for_limit(&service, "d", "k", 2);
    xds.publish("2", &[domain("", vec![])]);
    assert!(xds.wait_for_ack("2").1.is_some());
    let before = xds.requests().len();
    xds.hang_up();
    let again = until("another stream", || {
        xds.requests().get(before).cloned().ok_or_else(|| "not yet".to_owned())
    });
    let again = again.unwrap().request;
    assert_eq!((again.version_info.as_str(), again.response_nonce.as_str()), ("1", ""));
    // Restarts the xDS server at the same address.
    let address = xds.address;
    drop(xds);
    assert_eq!(check(&service, "d", "k").0, 200);
    let xds = Xds::start_at(address, None);
    xds.publish("7", &[domain("d", vec![descriptor("k", 9)])]);
    assert_eq!(xds.wait_for_ack("7"), ("7".to_owned(), None));
    wait_for_limit(&service, "d", "k", 9);
}

#[test]
fn xds_reconnect_delays_double_and_reset_after_a_response() {
    let xds = Xds::start();
    let service = start(
        &xds,
        &[
            ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "100ms"),
            ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "10s"),
            ("XDS_CLIENT_BACKOFF_JITTER", "false"),
            ("LOG_LEVEL", "debug"),
        ],
    );
    let wait_for_requests = |requests: usize| {
        let came = || match xds.requests().len() {
            came if requests <= came => Ok(()),
            came => Err(format!("{came} requests")),
        };
        until("a request", came).unwrap();
    };
    for stream in 1..=2 {
        wait_for_requests(stream);
        // The first `hang_up` sends the response headers, the second closes the stream.
        xds.hang_up();
        xds.hang_up();
    }
    wait_for_requests(3);
    xds.publish("1", &[domain("d", vec![descriptor("k", 2)])]);
    assert_eq!(xds.wait_for_ack("1").1, None);
    xds.hang_up();
    let waits = || {
        let log = service.log();
        let waits = log.lines().filter_map(|line| line.rsplit_once("retry_in="));
        waits.map(|(_, wait)| wait.to_owned()).collect::<Vec<_>>()
    };
    until("three waits", || if waits().len() < 3 { Err(service.log()) } else { Ok(()) }).unwrap();
    assert_eq!(waits()[..3], ["0.1s", "0.2s", "0.1s"]);
}

#[test]
fn xds_backoff_doubles_to_its_maximum_and_resets() {
    let second = Duration::from_secs(1);
    let bounds = BackoffBounds { min: second, max: 5 * second, jitter: false, seed: 0 };
    let mut backoff = Backoff::new(bounds);
    assert_eq!([(); 5].map(|()| backoff.next_wait().as_secs()), [1, 2, 4, 5, 5]);
    backoff.reset();
    assert_eq!(backoff.next_wait(), second);
    let none = BackoffBounds { min: Duration::ZERO, max: Duration::ZERO, jitter: true, seed: 0 };
    let mut never_at_once = Backoff::new(none);
    assert!((0..9).all(|_| Duration::ZERO < never_at_once.next_wait()));
    let mut drawn = Backoff::new(BackoffBounds { jitter: true, ..bounds });
    for due in [1, 2, 4, 5, 5, 5] {
        let wait = drawn.next_wait();
        assert!(second <= wait && wait <= due * second, "{wait:?} of {due}");
    }
}
