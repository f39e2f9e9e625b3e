//! Tests of the conversion of requests to checks, and of decisions to responses.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, RateLimit};
use envoy_types::pb::google::protobuf::UInt64Value;
use sluicegate::edge::ReplyOptions;
use sluicegate::edge::grpc::convert::{self, MAX_DESCRIPTORS, MAX_ENTRY_KEY_BYTES};
use sluicegate::engine::CheckError;
use sluicegate::kernel::decision::{Cost, Reason, Verdict};
use sluicegate::kernel::rate::CounterDecision;
use sluicegate::kernel::units::{Hits, Nanos, Unit};

use crate::edge::{
    ENFORCED, SHADOW, admitted, decision, denied, descriptor, free, from_counter, overridden,
    per_minute, request, room, shown,
};

fn refused(written: RateLimitDescriptor) -> CheckError {
    convert::to_check(&request(vec![written]), &ReplyOptions::default()).unwrap_err()
}

fn with_addend(value: u64, is_negative_hits: bool) -> RateLimitDescriptor {
    let hits_addend = Some(UInt64Value { value });
    RateLimitDescriptor { hits_addend, is_negative_hits, ..descriptor("k", "v") }
}

fn cost(every: u32, written: RateLimitDescriptor, reporting: &ReplyOptions) -> Cost {
    let mut request = request(vec![written]);
    request.hits_addend = every;
    convert::to_check(&request, reporting).unwrap().descriptors[0].cost
}

#[test]
fn an_empty_domain_is_reported_before_missing_descriptors() {
    let mut empty = request(vec![]);
    let asked = |r: &_| convert::to_check(r, &ReplyOptions::default()).unwrap_err();
    assert_eq!(asked(&empty), CheckError::NoDescriptors);
    empty.domain.clear();
    assert_eq!(asked(&empty), CheckError::EmptyDomain);
}

#[test]
fn descriptor_entries_keep_order_and_duplicates() {
    let mut written = descriptor("b", "1");
    written.entries.extend(descriptor("a", "").entries);
    written.entries.extend(descriptor("b", "1").entries);
    let request = request(vec![written]);
    let question = convert::to_check(&request, &ReplyOptions::default()).unwrap();
    assert_eq!(question.domain, "d");
    assert_eq!(question.descriptors[0].entries[..], [("b", "1"), ("a", ""), ("b", "1")]);
}

#[test]
fn descriptor_hits_override_request_hits_even_if_zero() {
    let plain = ReplyOptions::default();
    assert_eq!(cost(0, descriptor("k", "v"), &plain), Cost::Charge(Hits(1)));
    assert_eq!(cost(7, descriptor("k", "v"), &plain), Cost::Charge(Hits(7)));
    assert_eq!(cost(7, with_addend(0, false), &plain), Cost::Charge(Hits(0)));
    assert_eq!(cost(7, with_addend(2, false), &plain), Cost::Charge(Hits(2)));
    let most = (1 << 63) - 1;
    assert_eq!(cost(0, with_addend(most, false), &plain), Cost::Charge(Hits(most)));
}

#[test]
fn hits_above_63_bits_are_rejected() {
    let got = 1 << 63;
    for negative in [false, true] {
        let want = CheckError::HitsTooLarge { descriptor: 0, got };
        assert_eq!(refused(with_addend(got, negative)), want);
    }
    assert!(matches!(refused(with_addend(u64::MAX, false)), CheckError::HitsTooLarge { .. }));
}

#[test]
fn negative_hits_are_refunds_only_if_enabled() {
    let on = ReplyOptions { allow_negative_hits: true, ..ReplyOptions::default() };
    assert_eq!(cost(0, with_addend(3, true), &on), Cost::Refund(Hits(3)));
    let plain = RateLimitDescriptor { is_negative_hits: true, ..descriptor("k", "v") };
    assert_eq!(cost(4, plain.clone(), &on), Cost::Refund(Hits(4)));
    assert_eq!(refused(plain), CheckError::RefundsDisabled { descriptor: 0 });
}

#[test]
fn override_units_are_enum_numbers_from_one_to_seven() {
    let units = [
        (1, Unit::Second),
        (2, Unit::Minute),
        (3, Unit::Hour),
        (4, Unit::Day),
        (5, Unit::Month),
        (6, Unit::Year),
        (7, Unit::Week),
    ];
    for (number, unit) in units {
        let request = request(vec![overridden(9, number)]);
        let question = convert::to_check(&request, &ReplyOptions::default()).unwrap();
        let limit = question.descriptors[0].limit.unwrap();
        assert_eq!((limit.requests, limit.unit), (9, unit));
    }
    for got in [0, 8, 42, -1] {
        let want = CheckError::UnknownUnit { descriptor: 0, got };
        assert_eq!(refused(overridden(9, got)), want);
    }
}

#[test]
fn a_check_has_at_most_1000_descriptors() {
    let ask = |n| {
        let request = request(vec![descriptor("k", "v"); n]);
        convert::to_check(&request, &ReplyOptions::default()).map(|q| q.descriptors.len())
    };
    assert_eq!(ask(MAX_DESCRIPTORS), Ok(1_000));
    assert_eq!(ask(10_000), Err(CheckError::TooManyDescriptors { got: 10_000, most: 1_000 }));
}

#[test]
fn a_check_has_at_most_10000_entries() {
    let with = |n| RateLimitDescriptor {
        entries: vec![Entry { key: "k".into(), value: "v".into() }; n],
        ..RateLimitDescriptor::default()
    };
    let ask = |of: [usize; 2]| {
        let request = request(of.map(with).to_vec());
        convert::to_check(&request, &ReplyOptions::default()).map(|_| ())
    };
    assert_eq!(ask([1, 9_999]), Ok(()));
    let many = CheckError::TooManyEntries { got: 10_001, most: 10_000 };
    assert_eq!(ask([2, 9_999]), Err(many));
}

#[test]
fn keys_of_64_kib_are_rejected_and_values_are_accepted() {
    let (just, over) = ("x".repeat(MAX_ENTRY_KEY_BYTES - 1), "x".repeat(64 * 1024));
    let want = CheckError::EntryTooLong { descriptor: 0, got: 65_536, most: 65_536 };
    assert_eq!(refused(descriptor(&over, "v")), want);
    let request = request(vec![descriptor(&just, &over)]);
    assert!(convert::to_check(&request, &ReplyOptions::default()).is_ok());
}

#[test]
fn check_errors_name_the_invalid_descriptor() {
    let request = request(vec![descriptor("k", "v"), overridden(1, 42)]);
    let refused = convert::to_check(&request, &ReplyOptions::default()).unwrap_err();
    assert_eq!(refused, CheckError::UnknownUnit { descriptor: 1, got: 42 });
}

#[test]
fn check_errors_map_to_their_grpc_codes() {
    use tonic::Code::{InvalidArgument, Unknown};
    let table = [
        (CheckError::EmptyDomain, Unknown, "domain"),
        (CheckError::NoDescriptors, Unknown, "descriptor"),
        (CheckError::NoConfig, Unknown, "loaded"),
        (CheckError::TooManyDescriptors { got: 9, most: 8 }, InvalidArgument, "9"),
        (CheckError::TooManyEntries { got: 9, most: 8 }, InvalidArgument, "9"),
        (CheckError::EntryTooLong { descriptor: 0, got: 9, most: 8 }, InvalidArgument, "9"),
        (CheckError::HitsTooLarge { descriptor: 0, got: 9 }, InvalidArgument, "hits_addend"),
        (CheckError::UnknownUnit { descriptor: 0, got: 9 }, InvalidArgument, "unit"),
        (CheckError::RefundsDisabled { descriptor: 0 }, InvalidArgument, "limits.refunds"),
    ];
    for (refusal, code, word) in table {
        let status = convert::error_status(&refusal);
        assert_eq!(status.code(), code, "{refusal}");
        assert!(status.message().contains(word), "{}", status.message());
    }
}

#[test]
fn each_descriptor_has_one_status_in_order() {
    let minute = per_minute(10, "lim");
    let shadow = denied(per_minute(3, ""), Nanos::from_secs(9), SHADOW);
    let findings = vec![
        free(Reason::NoLimit),
        free(Reason::Replaced),
        free(Reason::Unlimited),
        admitted(minute.clone(), 4, Nanos::from_secs(59)),
        denied(minute, Nanos::from_secs(59), ENFORCED),
        shadow,
    ];
    let reply = convert::to_response(
        &request(vec![]),
        &decision(Verdict::Deny, findings),
        &ReplyOptions::default(),
    );
    assert_eq!(reply.overall_code(), Code::OverLimit);
    let shown: Vec<_> = reply
        .statuses
        .iter()
        .map(|s| {
            (s.code(), s.limit_remaining, s.duration_until_reset.map(|d| (d.seconds, d.nanos)))
        })
        .collect();
    let want = [
        (Code::Ok, 0, None),
        (Code::Ok, 0, None),
        (Code::Ok, 4_294_967_295, None),
        (Code::Ok, 4, Some((59, 0))),
        (Code::OverLimit, 0, Some((59, 0))),
        (Code::Ok, 0, Some((9, 0))),
    ];
    assert_eq!(shown, want);
    let limits: Vec<_> = reply.statuses.iter().map(|s| s.current_limit.clone()).collect();
    let lim = RateLimit { name: "lim".into(), requests_per_unit: 10, unit: 2 };
    let unnamed = RateLimit { name: String::new(), requests_per_unit: 3, unit: 2 };
    assert_eq!(limits, [None, None, None, Some(lim.clone()), Some(lim), Some(unnamed)]);
    assert!(reply.response_headers_to_add.is_empty() && reply.dynamic_metadata.is_none());
}

#[test]
fn reset_after_rounds_up_and_remaining_hits_saturate() {
    let finding = admitted(per_minute(1, ""), u64::MAX, Nanos(1_000_000_001));
    let answer = decision(Verdict::Allow, vec![finding]);
    let reply = convert::to_response(&request(vec![]), &answer, &ReplyOptions::default());
    assert_eq!(reply.statuses[0].duration_until_reset.unwrap().seconds, 2);
    assert_eq!(reply.statuses[0].limit_remaining, u32::MAX);
}

#[test]
fn units_keep_their_enum_number_custom_periods_become_unknown() {
    let units = [
        (Some(Unit::Second), rate_limit::Unit::Second, 1),
        (Some(Unit::Minute), rate_limit::Unit::Minute, 2),
        (Some(Unit::Hour), rate_limit::Unit::Hour, 3),
        (Some(Unit::Day), rate_limit::Unit::Day, 4),
        (Some(Unit::Month), rate_limit::Unit::Month, 5),
        (Some(Unit::Year), rate_limit::Unit::Year, 6),
        (Some(Unit::Week), rate_limit::Unit::Week, 7),
        (None, rate_limit::Unit::Unknown, 0),
    ];
    for (unit, want, number) in units {
        let limit = shown(5, Nanos::from_secs(90), unit, "");
        let finding = from_counter(CounterDecision::Allow(room(1, Nanos(1))), limit, ENFORCED);
        let answer = decision(Verdict::Allow, vec![finding]);
        let reply = convert::to_response(&request(vec![]), &answer, &ReplyOptions::default());
        let limit = reply.statuses[0].current_limit.clone().unwrap();
        assert_eq!((limit.unit(), limit.unit), (want, number));
    }
}

#[test]
fn setting_shadow_mode_changes_only_the_overall_code() {
    let over = denied(per_minute(1, ""), Nanos::SECOND, ENFORCED);
    let answer = decision(Verdict::Allow, vec![over]);
    let reply = convert::to_response(&request(vec![]), &answer, &ReplyOptions::default());
    assert_eq!(reply.overall_code(), Code::Ok);
    assert_eq!(reply.statuses[0].code(), Code::OverLimit);
}
