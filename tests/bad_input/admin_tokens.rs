//! Tests of short and wrong tokens of the admin port.

use super::{Fixture, LIMITS};
use crate::support::http1;
use crate::support::waiting::now;

const TOKEN: &str = "open-sesame-please";

const WRONG: &str = "sluicegate_admin_wrong_tokens_total";

/// The delay of a reply to a wrong token.
const DELAY: std::time::Duration = std::time::Duration::from_secs(1);

#[test]
fn wrong_admin_tokens_are_delayed_counted_and_logged() {
    let fixture = Fixture::with(LIMITS, &["--admin-token", TOKEN]);
    let status = |token: &str| {
        let header = format!("Bearer {token}");
        let headers = [("authorization", &*header)];
        http1::get(fixture.service.admin, "/config", &headers).unwrap().status
    };
    assert_eq!(http1::get(fixture.service.admin, "/config", &[]).unwrap().status, 401);
    assert_eq!((status(TOKEN), fixture.metric(WRONG)), (200, 0));
    for wrong in ["open-sesame-please-pleasE", "open", "open-sesame-please!"] {
        let asked_at = now();
        assert_eq!(status(wrong), 401, "{wrong}");
        assert!(DELAY <= asked_at.elapsed(), "{wrong}: {:?}", asked_at.elapsed());
    }
    assert_eq!((status(TOKEN), fixture.metric(WRONG)), (200, 3));
    let log = fixture.service.log();
    let lines: Vec<_> = log.lines().filter(|line| line.contains("wrong admin token")).collect();
    assert!(lines.len() == 1 && lines[0].contains("address=127.0.0.1"), "{log}");
    assert!(!log.contains("sesame"), "{log}");
}
