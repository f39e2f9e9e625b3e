//! The rate limit headers of responses.
//!
//! | header | content | style |
//! |---|---|---|
//! | `ratelimit-limit`, `-remaining`, `-reset` | the reported limit | `compat`, `all` |
//! | `ratelimit-policy`: `"default";q=100;w=60` | requests and period | `draft`, `all` |
//! | `ratelimit`: `"default";r=50;t=30` | remaining hits and reset-after | `draft`, `all` |
//! | `retry-after` | time until the request would be allowed | denials |
//! | `retry-after` | `reject.retry_after` of the concurrency limit | rejections |
//! | `x-envoy-ratelimited: true` | | denials |
//!
//! Guarantees:
//! - Times are whole seconds, rounded up.
//!
//! Sources: envoyproxy/ratelimit; RFC 9110 §10.2.3; draft-ietf-httpapi-ratelimit-headers-10.

use std::time::Duration;

use sluicegate_descriptors::filter_config::HeaderStyle;

use crate::limiter::{Answer, RejectReply, ReportedLimit};

/// The name and the value of a header.
pub(crate) type NamedHeader = (&'static str, String);

/// Returns the headers of a denial.
pub(crate) fn denial_headers(style: HeaderStyle, answer: &Answer) -> Vec<NamedHeader> {
    let mut headers = vec![("x-envoy-ratelimited", "true".to_owned())];
    headers.extend(answer.retry_after.map(|after| ("retry-after", seconds(after))));
    headers.extend(answer.reported.iter().flat_map(|limit| limit_headers(style, limit)));
    headers
}

/// Returns the headers of a rejection by a concurrency limit.
pub(crate) fn rejection_headers(reply: &RejectReply) -> Vec<NamedHeader> {
    let wait = reply.retry_after.map(|wait| wait.as_secs_ceil().max(1).to_string());
    wait.into_iter().map(|seconds| ("retry-after", seconds)).collect()
}

/// Returns the headers that report a limit.
pub(crate) fn limit_headers(style: HeaderStyle, limit: &ReportedLimit) -> Vec<NamedHeader> {
    let ReportedLimit { requests, period, remaining, reset_after } = limit;
    let reset = seconds(*reset_after);
    let mut headers = Vec::new();
    if matches!(style, HeaderStyle::Compat | HeaderStyle::All) {
        headers.push(("ratelimit-limit", requests.to_string()));
        headers.push(("ratelimit-remaining", remaining.to_string()));
        headers.push(("ratelimit-reset", reset.clone()));
    }
    if matches!(style, HeaderStyle::Draft | HeaderStyle::All) {
        let policy = format!("\"default\";q={requests};w={}", seconds(*period));
        headers.push(("ratelimit-policy", policy));
        headers.push(("ratelimit", format!("\"default\";r={remaining};t={reset}")));
    }
    headers
}

fn seconds(duration: Duration) -> String {
    let has_fraction = duration.subsec_nanos() != 0;
    duration.as_secs().saturating_add(u64::from(has_fraction)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limiter::RuleVerdict;

    const LIMIT: ReportedLimit = ReportedLimit {
        requests: 100,
        period: Duration::from_secs(60),
        remaining: 50,
        reset_after: Duration::from_millis(29_001),
    };

    fn header<'h>(headers: &'h [NamedHeader], name: &str) -> Option<&'h str> {
        headers.iter().find(|(known, _)| *known == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn each_style_has_its_headers() {
        assert!(limit_headers(HeaderStyle::None, &LIMIT).is_empty());
        let draft = limit_headers(HeaderStyle::Draft, &LIMIT);
        assert_eq!(header(&draft, "ratelimit-policy"), Some("\"default\";q=100;w=60"));
        assert_eq!(header(&draft, "ratelimit"), Some("\"default\";r=50;t=30"));
        assert_eq!(header(&draft, "ratelimit-limit"), None);
        let compat = limit_headers(HeaderStyle::Compat, &LIMIT);
        let named = |name| header(&compat, name);
        assert_eq!(named("ratelimit-limit"), Some("100"));
        assert_eq!(
            (named("ratelimit-remaining"), named("ratelimit-reset")),
            (Some("50"), Some("30"))
        );
        assert_eq!(limit_headers(HeaderStyle::All, &LIMIT).len(), 5);
    }

    #[test]
    fn a_denial_has_its_retry_after_rounded_up() {
        let answer = |retry_after| Answer {
            verdict: RuleVerdict::Deny,
            retry_after,
            reported: Some(LIMIT),
            ..Answer::unlimited()
        };
        let denied = denial_headers(HeaderStyle::None, &answer(Some(Duration::from_millis(1200))));
        assert_eq!(header(&denied, "retry-after"), Some("2"));
        assert_eq!(header(&denied, "x-envoy-ratelimited"), Some("true"));
        assert_eq!(denied.len(), 2);
        let all = denial_headers(HeaderStyle::All, &answer(None));
        assert_eq!((all.len(), header(&all, "retry-after")), (6, None));
    }
}
