//! The number of log lines during faults of an xDS server.

use super::{descriptor, domain, start, wait_for_limit};
use crate::support::log_lines::{count, few_lines_during};
use crate::support::ports;
use crate::support::waiting::until;
use crate::support::xds::Xds;

#[test]
fn a_server_that_closes_each_stream_is_logged_few_times() {
    let xds = Xds::start();
    let service = start(&xds, &[("LOG_LEVEL", "info")]);
    xds.publish("1", &[domain("d", vec![descriptor("k", 2)])]);
    wait_for_limit(&service, "d", "k", 2);
    let lines = few_lines_during(&service, || xds.hang_up());
    let (begins, ends) =
        (count(&lines, "the server closed the stream"), count(&lines, "xDS server responds again"));
    assert!((1..=4).contains(&begins) && (1..=begins).contains(&ends), "{}", lines.join("\n"));
}

#[test]
fn an_absent_server_is_logged_at_begin_and_end() {
    let xds = Xds::start_at(ports::free(), None);
    let service = start(&xds, &[("LOG_LEVEL", "info")]);
    xds.publish("1", &[domain("d", vec![descriptor("k", 2)])]);
    wait_for_limit(&service, "d", "k", 2);
    let address = xds.address;
    drop(xds);
    let lines = few_lines_during(&service, || {});
    assert!(0 < count(&lines, "xDS stream failed"), "{}", lines.join("\n"));
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
    let lines = few_lines_during(&service, || xds.publish("2", &refused));
    assert_eq!(count(&lines, "limits from the xDS server rejected"), 1, "{}", lines.join("\n"));
}

#[test]
fn resources_without_limits_are_logged_as_no_limits() {
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
}
