//! The number of log lines during faults of an xDS server.

use std::time::{Duration, Instant};

use super::{descriptor, domain, start, wait_for_limit};
use crate::support::log_lines::{assert_line_count, count, minutes_since};
use crate::support::ports;
use crate::support::service::Service;
use crate::support::waiting::{now, until};
use crate::support::xds::Xds;

/// The number of streams or responses of a fault.
const FAULTS: usize = 40;

/// The duration of an absence of the server: at least forty connection attempts.
const ABSENCE: Duration = Duration::from_secs(2);

/// The largest number of log lines in a minute.
const MAX_LINES: usize = 20;

/// The log of a fault.
struct FaultLog<'a> {
    service: &'a Service,
    began: Instant,
    /// The lines before the fault.
    before: usize,
}

impl<'a> FaultLog<'a> {
    fn start(service: &'a Service) -> Self {
        Self { service, began: now(), before: service.log().lines().count() }
    }

    /// Asserts the bound on all lines, and returns the lines of the fault.
    fn end(&self) -> Vec<String> {
        let log = self.service.log();
        let lines: Vec<_> = log.lines().skip(self.before).map(str::to_owned).collect();
        let most = MAX_LINES * (1 + minutes_since(self.began));
        assert!(lines.len() <= most, "{} lines:\n{log}", lines.len());
        lines
    }
}

#[test]
fn a_server_that_closes_each_stream_is_logged_few_times() {
    let xds = Xds::start();
    let service = start(&xds, &[("LOG_LEVEL", "info")]);
    xds.publish("1", &[domain("d", vec![descriptor("k", 2)])]);
    wait_for_limit(&service, "d", "k", 2);
    assert_eq!(xds.wait_for_ack("1").1, None);
    let fault = FaultLog::start(&service);
    for _ in 0..FAULTS {
        let before = xds.requests().len();
        xds.hang_up();
        // The next stream sends its first request, and acknowledges the response.
        until("the next stream", || match xds.requests().len() {
            came if before + 2 <= came => Ok(()),
            came => Err(format!("{} requests", came - before)),
        })
        .unwrap();
    }
    let (lines, minutes) = (fault.end(), 1 + minutes_since(fault.began));
    let (begins, ends) =
        (count(&lines, "the server closed the stream"), count(&lines, "xDS server responds again"));
    let are_few = (1..=4 * minutes).contains(&begins) && (1..=begins).contains(&ends);
    assert!(are_few, "{}", lines.join("\n"));
}

#[test]
fn an_absent_server_is_logged_at_begin_and_end() {
    let xds = Xds::start_at(ports::free(), None);
    let service = start(&xds, &[("LOG_LEVEL", "info")]);
    xds.publish("1", &[domain("d", vec![descriptor("k", 2)])]);
    wait_for_limit(&service, "d", "k", 2);
    let fault = FaultLog::start(&service);
    let address = xds.address;
    drop(xds);
    until("the begin is logged", || match service.log() {
        log if log.contains("xDS stream failed") => Ok(()),
        log => Err(log),
    })
    .unwrap();
    std::thread::sleep(ABSENCE);
    fault.end();
    let xds = Xds::start_at(address, None);
    xds.publish("1", &[domain("d", vec![descriptor("k", 2)])]);
    until("the end is logged", || match service.log() {
        log if log.contains("xDS server responds again") => Ok(()),
        log => Err(log),
    })
    .unwrap();
}

#[test]
fn a_loop_of_rejections_is_one_line() {
    let xds = Xds::start();
    let service = start(&xds, &[("LOG_LEVEL", "info")]);
    let refused = [domain("d", vec![descriptor("k", 3), descriptor("k", 4)])];
    let fault = FaultLog::start(&service);
    for rejected in 1..=FAULTS as u64 {
        xds.publish("2", &refused);
        until("a rejection", || match service.loads()?.refused {
            refused if rejected <= refused => Ok(()),
            refused => Err(format!("{refused} rejections")),
        })
        .unwrap();
    }
    let lines = fault.end();
    let rejections = count(&lines, "limits from the xDS server rejected");
    assert_line_count(rejections, 1, fault.began, &lines.join("\n"));
}

#[test]
fn resources_without_limits_are_accepted_and_logged_as_no_limits() {
    let xds = Xds::start();
    let service = start(&xds, &[("LOG_LEVEL", "info")]);
    let warning = "no limits are loaded, so every check is allowed";
    for (version, resources) in [("1", vec![]), ("2", vec![domain("d", vec![])])] {
        xds.publish(version, &resources);
        assert_eq!(xds.wait_for_ack(version).1, None);
        let wanted = format!(
            "{warning}: the resources from the xDS server have none resources={}",
            resources.len()
        );
        assert_eq!(service.log().matches(&wanted).count(), 1, "{}", service.log());
    }
    xds.publish("3", &[domain("d", vec![descriptor("k", 1)])]);
    assert_eq!(xds.wait_for_ack("3").1, None);
    assert_eq!(service.log().matches(warning).count(), 2, "{}", service.log());
    // As in envoyproxy/ratelimit, an empty answer removes limits.
    xds.publish("4", &[]);
    assert_eq!(xds.wait_for_ack("4"), ("4".to_owned(), None));
    assert_eq!(service.log().matches(warning).count(), 3, "{}", service.log());
}
