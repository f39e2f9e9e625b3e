//! Tests of rate limit response headers. Expected values follow the IETF draft
//! `draft-ietf-httpapi-ratelimit-headers` and RFC 9651.

use sluicegate::config::settings::{DeniedBy, ResponseHeaders, Settings};
use sluicegate::edge::headers::{CompatHeaderNames, RateLimitHeaders};
use sluicegate::engine::Decision;
use sluicegate::kernel::decision::{
    DescriptorDecision, Enforcement, Reason, Verdict, binding_index,
};
use sluicegate::kernel::rate::CounterDecision;
use sluicegate::kernel::units::{Nanos, Unit};

use super::{
    ENFORCED, QUOTA, SHADOW, admitted, decision, denied, free, from_counter, per_minute, room,
    shown,
};

fn reference() -> RateLimitHeaders {
    RateLimitHeaders {
        compat_names: Some(CompatHeaderNames::default()),
        ..RateLimitHeaders::default()
    }
}

fn draft() -> RateLimitHeaders {
    RateLimitHeaders { draft: true, ..RateLimitHeaders::default() }
}

fn sent(headers: &RateLimitHeaders, decision: &Decision) -> Vec<(String, String)> {
    headers
        .for_decision(decision)
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect()
}

fn pairs<const N: usize>(want: [(&str, &str); N]) -> Vec<(String, String)> {
    want.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

fn policy_and_limit(findings: Vec<DescriptorDecision>) -> [String; 2] {
    let headers = sent(&draft(), &decision(Verdict::Allow, findings));
    let [(policy_name, policy), (limit_name, limit)] = headers.try_into().unwrap();
    assert_eq!([&*policy_name, &*limit_name], ["RateLimit-Policy", "RateLimit"]);
    [policy, limit]
}

fn retry_after(verdict: Verdict, findings: Vec<DescriptorDecision>) -> Option<String> {
    let headers = RateLimitHeaders { retry_after: true, ..RateLimitHeaders::default() };
    let sent = sent(&headers, &decision(verdict, findings));
    assert!(sent.iter().all(|(name, _)| name == "Retry-After"));
    sent.into_iter().next().map(|(_, value)| value)
}

fn over(seconds: u64) -> DescriptorDecision {
    denied(per_minute(1, ""), Nanos::from_secs(seconds), ENFORCED)
}

fn quota(seconds: u64) -> DescriptorDecision {
    denied(per_minute(1, ""), Nanos::from_secs(seconds), QUOTA)
}

fn never(standing: Enforcement) -> DescriptorDecision {
    from_counter(CounterDecision::ExceedsLimit(room(1, Nanos::SECOND)), per_minute(1, ""), standing)
}

#[test]
fn rate_limit_headers_are_off_by_default() {
    assert!(sent(&RateLimitHeaders::default(), &decision(Verdict::Deny, vec![over(9)])).is_empty());
}

#[test]
fn envoyproxy_headers_describe_the_binding_limit() {
    let mut answer = decision(
        Verdict::Allow,
        vec![
            admitted(per_minute(9, ""), 8, Nanos::from_secs(3)),
            admitted(per_minute(2, ""), 1, Nanos(58_000_000_001)),
        ],
    );
    answer.binding = Some(1);
    let want = [("RateLimit-Limit", "2"), ("RateLimit-Remaining", "1"), ("RateLimit-Reset", "59")];
    assert_eq!(sent(&reference(), &answer), pairs(want));
}

#[test]
fn no_headers_are_sent_without_a_binding_limit() {
    let mut nothing =
        decision(Verdict::Allow, vec![free(Reason::Unlimited), free(Reason::NoLimit)]);
    let all = RateLimitHeaders { draft: true, retry_after: true, ..reference() };
    assert!(sent(&all, &nothing).is_empty());
    nothing.binding = Some(7);
    assert!(sent(&all, &nothing).is_empty());
}

#[test]
fn configured_header_names_are_sent_unchanged() {
    let names =
        CompatHeaderNames { limit: "x-limit".into(), remaining: "X-Left".into(), reset: "".into() };
    let headers = RateLimitHeaders { compat_names: Some(names), ..RateLimitHeaders::default() };
    let answer =
        decision(Verdict::Allow, vec![admitted(per_minute(2, ""), 1, Nanos::from_secs(7))]);
    assert_eq!(sent(&headers, &answer), pairs([("x-limit", "2"), ("X-Left", "1"), ("", "7")]));
}

#[test]
fn ietf_draft_headers_list_every_charged_limit() {
    let day = shown(1_000, Nanos::from_secs(86_400), Some(Unit::Day), "daily");
    let findings = vec![
        admitted(per_minute(100, "burst"), 50, Nanos::from_secs(30)),
        free(Reason::Unlimited),
        admitted(day, 999, Nanos(86_399_000_000_001)),
    ];
    let [policy, limit] = policy_and_limit(findings);
    assert_eq!(policy, r#""burst";q=100;w=60, "daily";q=1000;w=86400"#);
    assert_eq!(limit, r#""burst";r=50;t=30, "daily";r=999;t=86400"#);
}

#[test]
fn periods_below_one_second_are_shown_as_one_second() {
    let limit = shown(5, Nanos(250_000_000), None, "quick");
    let [policy, limit] = policy_and_limit(vec![admitted(limit, 4, Nanos(1))]);
    assert_eq!((&*policy, &*limit), (r#""quick";q=5;w=1"#, r#""quick";r=4;t=1"#));
}

#[test]
fn unnamed_and_duplicate_limits_are_numbered_in_both_headers() {
    let unnamed = || admitted(per_minute(2, ""), 1, Nanos::from_secs(7));
    let other = admitted(per_minute(2, "a"), 1, Nanos::from_secs(7));
    let [policy, limit] = policy_and_limit(vec![unnamed(), other, unnamed(), unnamed()]);
    let names = [r#""default""#, r#""a""#, r#""default-2""#, r#""default-3""#];
    assert_eq!(policy, names.map(|name| format!("{name};q=2;w=60")).join(", "));
    assert_eq!(limit, names.map(|name| format!("{name};r=1;t=7")).join(", "));
}

/// The draft matches the items of its two headers by name, so each name must be unique.
#[test]
fn numbered_limit_names_are_unique() {
    let limit = |name: &&str| admitted(per_minute(2, name), 1, Nanos::from_secs(7));
    for (names, want) in [
        (&["a", "a", "a-2"][..], &["a", "a-3", "a-2"][..]),
        (&["a-2", "a", "a"], &["a-2", "a", "a-3"]),
        (&["", "default-2", ""], &["default", "default-2", "default-3"]),
        (&["a", "a", "a-2", "a-2", "a"], &["a", "a-3", "a-2", "a-2-2", "a-4"]),
        (&["\u{fc}", "%c3%bc"], &["%c3%bc", "%c3%bc-2"]),
    ] {
        let [policy, limit] = policy_and_limit(names.iter().map(limit).collect());
        let shown = |rest| {
            let each = want.iter().map(|name| format!("\"{name}\";{rest}"));
            each.collect::<Vec<_>>().join(", ")
        };
        assert_eq!((policy, limit), (shown("q=2;w=60"), shown("r=1;t=7")), "{names:?}");
    }
}

#[test]
fn limit_names_are_escaped_as_structured_field_strings() {
    let names = [
        (r#"say "hi" \o/"#, r#""say \"hi\" \\o/""#),
        ("für\tdich", r#""f%c3%bcr%09dich""#),
        ("a\r\nset-cookie: x", r#""a%0d%0aset-cookie: x""#),
        ("~ ", r#""~ ""#),
        ("\x7f", r#""%7f""#),
    ];
    for (name, want) in names {
        let [policy, _] = policy_and_limit(vec![admitted(per_minute(2, name), 1, Nanos::SECOND)]);
        assert_eq!(policy, format!("{want};q=2;w=60"));
    }
}

#[test]
fn ietf_draft_headers_omit_shadow_limits() {
    let shadow = denied(per_minute(1, "s"), Nanos::SECOND, SHADOW);
    let headers = sent(&draft(), &decision(Verdict::Allow, vec![shadow]));
    assert!(headers.is_empty());
}

/// A limit that allowed without charging has no remaining hits to report.
#[test]
fn limit_that_allowed_uncharged_is_neither_shown_nor_binding() {
    for (reason, standing) in [
        (Reason::Forced, ENFORCED),
        (Reason::StoreFull, ENFORCED),
        (Reason::StoreDownAllowed, ENFORCED),
        (Reason::StoreDownDenied, SHADOW),
    ] {
        let counted = || admitted(per_minute(10, "counted"), 5, Nanos::from_secs(7));
        let zero = admitted(per_minute(600, "not"), 0, Nanos(0));
        let uncounted = DescriptorDecision { reason, enforcement: standing, ..zero };
        assert_eq!(
            binding_index([&uncounted, &counted()].into_iter(), false),
            Some(1),
            "{reason:?}"
        );
        assert_eq!(binding_index([&uncounted].into_iter(), false), None, "{reason:?}");
        let [policy, limit] = policy_and_limit(vec![uncounted.clone(), counted()]);
        assert_eq!(policy, r#""counted";q=10;w=60"#, "{reason:?}");
        assert_eq!(limit, r#""counted";r=5;t=7"#, "{reason:?}");
        // A limit that denies is binding even if it was not charged.
        let denies =
            DescriptorDecision { verdict: Verdict::Deny, enforcement: ENFORCED, ..uncounted };
        assert_eq!(binding_index([&denies, &counted()].into_iter(), false), Some(0), "{reason:?}");
    }
}

/// The setting `answers.shadow_mode` makes every limit a shadow limit.
#[test]
fn setting_shadow_mode_disables_the_ietf_draft_headers() {
    let chosen = |shadow_mode| {
        let mut settings = Settings::default();
        settings.answers.headers = ResponseHeaders::All;
        settings.answers.shadow_mode = shadow_mode;
        RateLimitHeaders::from_settings(&settings)
    };
    let names = |headers: &RateLimitHeaders| {
        let over = decision(Verdict::Allow, vec![over(9)]);
        sent(headers, &over).into_iter().map(|(name, _)| name).collect::<Vec<_>>()
    };
    let reference = ["RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"];
    assert_eq!(names(&chosen(true)), reference);
    assert_eq!(
        names(&chosen(false)),
        [&reference[..], &["RateLimit-Policy", "RateLimit"]].concat()
    );
}

#[test]
fn ietf_draft_headers_list_eight_limits_with_fifteen_digits_at_most() {
    let findings = vec![admitted(per_minute(2, "n"), u64::MAX, Nanos::SECOND); 9];
    let [policy, limit] = policy_and_limit(findings);
    assert_eq!(policy.split(", ").count(), 8);
    assert!(limit.starts_with(r#""n";r=999999999999999;t=1, "n-2";"#), "{limit}");
}

#[test]
fn retry_after_rounds_up_to_at_least_one_second() {
    let after = |nanos| {
        let finding = denied(per_minute(1, ""), Nanos(nanos), ENFORCED);
        retry_after(Verdict::Deny, vec![finding]).unwrap()
    };
    assert_eq!(after(7_000_000_000), "7");
    assert_eq!(after(7_000_000_001), "8");
    assert_eq!(after(0), "1");
}

#[test]
fn allowed_checks_have_no_retry_after() {
    let fine = admitted(per_minute(2, ""), 1, Nanos::SECOND);
    assert_eq!(retry_after(Verdict::Allow, vec![fine]), None);
    assert_eq!(retry_after(Verdict::Allow, vec![over(9)]), None, "global shadow mode");
}

#[test]
fn retry_after_is_when_every_enforced_limit_allows() {
    assert_eq!(retry_after(Verdict::Deny, vec![over(3), over(9), over(5)]).unwrap(), "9");
}

#[test]
fn retry_after_is_when_the_first_quota_limit_allows() {
    assert_eq!(retry_after(Verdict::Deny, vec![quota(9), quota(3)]).unwrap(), "3");
    assert_eq!(retry_after(Verdict::Deny, vec![quota(9), over(5)]).unwrap(), "9");
    let passing = from_counter(CounterDecision::Allow(room(1, Nanos(1))), per_minute(1, ""), QUOTA);
    assert_eq!(retry_after(Verdict::Deny, vec![quota(9), passing, over(5)]).unwrap(), "5");
}

#[test]
fn permanent_denials_have_no_retry_after() {
    assert_eq!(retry_after(Verdict::Deny, vec![over(3), never(ENFORCED)]), None);
    assert_eq!(retry_after(Verdict::Deny, vec![over(3), never(QUOTA)]), None);
    let group = vec![quota(4), never(QUOTA)];
    assert_eq!(retry_after(Verdict::Deny, group).unwrap(), "4");
    let shadow = vec![over(3), never(SHADOW)];
    assert_eq!(retry_after(Verdict::Deny, shadow).unwrap(), "3");
}

#[test]
fn denied_by_names_the_rule_only_in_denials() {
    let headers = RateLimitHeaders { denied_by: true, ..RateLimitHeaders::default() };
    let mut denial = decision(Verdict::Deny, vec![over(3)]);
    denial.denied_by = Some("shop.path_/a b\"%\n\u{e9}".into());
    let value = "shop.path_/a b\"%25%0a%c3%a9";
    assert_eq!(sent(&headers, &denial), pairs([("x-sluicegate-denied-by", value)]));
    assert!(sent(&headers, &decision(Verdict::Allow, vec![free(Reason::NoLimit)])).is_empty());
    assert!(sent(&RateLimitHeaders::default(), &denial).is_empty());
}

#[test]
fn the_setting_denied_by_selects_the_header() {
    let words = [DeniedBy::None, DeniedBy::Header, DeniedBy::Metadata, DeniedBy::Both];
    let has_header = words.map(|denied_by| {
        let mut settings = Settings::default();
        settings.answers.denied_by = denied_by;
        RateLimitHeaders::from_settings(&settings).denied_by
    });
    assert_eq!(has_header, [false, true, false, true]);
    assert_eq!(Settings::default().answers.denied_by, DeniedBy::None);
}
