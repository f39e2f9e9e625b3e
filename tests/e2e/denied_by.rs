//! The access log of a real Envoy names the rule that denied a request.
//!
//! Guarantees:
//! - The access log is that of the shipped `config/envoy/rls.yaml`.

use serde_json::{Value, json};

use super::envoy::{Envoy, WhenDown};
use super::{serve, upstream};
use crate::support::http1;
use crate::support::waiting::for_a_day_with_a_minute_left;

const LIMITS: &str = "domain: shop
descriptors:
- key: api_key
  rate_limit: {unit: day, requests_per_unit: 1}
- key: path
  value: /pay
  rate_limit: {unit: day, requests_per_unit: 0}
";

/// Path, API key, response code and rule. A rule is named only if it denied.
const REQUESTS: [(&str, &str, u16, Option<&str>); 4] = [
    ("/first", "ann", 200, None),
    ("/second", "ann", 429, Some("shop.api_key")),
    ("/pay", "ben", 429, Some("shop.path_/pay")),
    ("/third", "eve", 200, None),
];

#[test]
fn envoys_access_log_names_the_rule_that_denied() {
    for_a_day_with_a_minute_left();
    let limits = tempfile::tempdir().unwrap();
    std::fs::write(limits.path().join("shop.yaml"), LIMITS).unwrap();
    let service =
        serve(limits.path(), &["--answers-metadata", "true", "--answers-denied-by", "metadata"]);
    let envoy = Envoy::start(upstream::start(), &[service.grpc], WhenDown::Deny);
    for (path, key, code, _) in REQUESTS {
        let reply = http1::get(envoy.ingress, path, &[("x-api-key", key)]).unwrap();
        assert_eq!(reply.status, code, "{path}: {reply:?}");
    }
    let log = envoy.access_log(REQUESTS.len());
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (path, _, code, rule) in REQUESTS {
        let line = lines.iter().find(|line| line["path"] == path).expect(&log);
        assert_eq!((&line["response_code"], &line["denied_by"]), (&json!(code), &json!(rule)));
    }
}
