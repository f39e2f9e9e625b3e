//! Tests of the reserved keys.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::google::protobuf::UInt64Value;

use super::*;
use crate::config::prices::TokenCounts;
use crate::kernel::concurrency::OverloadAnswers;
use crate::kernel::concurrency::RequestOutcome;
use crate::kernel::units::Nanos;

const ID: &str = "0123456789abcdef";

type Written<'w> = (&'w [(&'w str, &'w str)], Option<u64>);

fn request(descriptors: &[Written<'_>]) -> RateLimitRequest {
    let entry = |&(key, value): &(&str, &str)| Entry { key: key.into(), value: value.into() };
    let descriptor = |(entries, hits): &Written<'_>| RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        hits_addend: hits.map(|value| UInt64Value { value }),
        ..RateLimitDescriptor::default()
    };
    let descriptors = descriptors.iter().map(descriptor).collect();
    RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 0 }
}

fn end(descriptors: &[Written<'_>]) -> RequestEnd {
    match take_reserved(&mut request(descriptors)) {
        Ok(ReservedCall::End(end)) => end,
        other => panic!("{other:?}"),
    }
}

fn refused_descriptor(descriptors: &[Written<'_>]) -> usize {
    match take_reserved(&mut request(descriptors)) {
        Err(CheckError::BadId { descriptor, .. }) => descriptor,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_reserved_key_before_the_last_entry_has_no_effect() {
    let mut asked =
        request(&[(&[("sluicegate.acquire", ID), ("k", "v")], None), (&[("k", "v")], None)]);
    let before = asked.clone();
    assert_eq!(take_reserved(&mut asked), Ok(ReservedCall::Plain));
    assert_eq!(asked, before);
}

#[test]
fn acquire_entries_are_removed_and_apply_only_to_their_descriptors() {
    let mut asked = request(&[
        (&[("k", "v"), ("sluicegate.acquire", ID)], None),
        (&[("other", "v")], None),
        (&[("l", "v"), ("sluicegate.acquire", ID)], None),
    ]);
    let (id, permits, budgets, tokens) = (ID.into(), vec![0, 2], Vec::new(), None);
    let start = RequestStart { id, permits, budgets, tokens };
    assert_eq!(take_reserved(&mut asked), Ok(ReservedCall::Start(start)));
    let wanted: [Written<'_>; 3] =
        [(&[("k", "v")], None), (&[("other", "v")], None), (&[("l", "v")], None)];
    assert_eq!(asked, request(&wanted));
}

#[test]
fn a_releases_status_and_latency_determine_the_request_outcome() {
    let release = [("sluicegate.release", ID)];
    let (rtt, status) = ([("sluicegate.rtt_us", "-")], [("sluicegate.status", "-")]);
    let took = [("sluicegate.duration_ms", "-")];
    let ended = |rest: &[Written<'_>]| {
        let all: Vec<_> = [(&release[..], Some(7))].into_iter().chain(rest.to_vec()).collect();
        let ReleaseCall { outcome, rtt, .. } = end(&all).release.unwrap();
        (OverloadAnswers::DEFAULT.classify(outcome), rtt)
    };
    let micros = Some(Nanos(1_500_000));
    assert_eq!(ended(&[]), (RequestOutcome::Ignored, None));
    assert_eq!(ended(&[(&rtt, Some(1_500))]), (RequestOutcome::Success, micros));
    assert_eq!(ended(&[(&rtt, Some(1_500)), (&took, Some(9))]), (RequestOutcome::Success, micros));
    assert_eq!(ended(&[(&took, Some(9))]), (RequestOutcome::Ignored, Some(Nanos(9_000_000))));
    // A status without a latency or duration means that the response was incomplete.
    for (code, with_a_time, alone) in [
        (0, RequestOutcome::Ignored, RequestOutcome::Ignored),
        (200, RequestOutcome::Success, RequestOutcome::Ignored),
        (404, RequestOutcome::Success, RequestOutcome::Ignored),
        (429, RequestOutcome::Dropped, RequestOutcome::Dropped),
        (499, RequestOutcome::Success, RequestOutcome::Ignored),
        (500, RequestOutcome::Dropped, RequestOutcome::Dropped),
        (503, RequestOutcome::Dropped, RequestOutcome::Dropped),
    ] {
        for time in [(&rtt[..], Some(9)), (&took[..], Some(9))] {
            assert_eq!(ended(&[(&status, Some(code)), time]).0, with_a_time, "{code}");
        }
        assert_eq!(ended(&[(&status, Some(code))]), (alone, None), "{code}");
    }
}

#[test]
fn only_a_permit_release_may_name_an_owner() {
    let (release, owner) = ([("sluicegate.release", ID)], [("sluicegate.owner", "x")]);
    let named = |descriptors: &[Written<'_>]| end(descriptors).release.unwrap().owner;
    assert_eq!(named(&[(&release, None)]), None);
    assert_eq!(named(&[(&owner, None), (&release, None)]), Some("x".into()));
    assert_eq!(refused_descriptor(&[(&owner, None)]), 0, "of nothing");
    let acquire = [("k", "v"), ("sluicegate.acquire", ID)];
    assert_eq!(refused_descriptor(&[(&owner, None), (&acquire, None)]), 1);
}

#[test]
fn malformed_request_ids_and_misplaced_reserved_keys_are_rejected() {
    let long = "x".repeat(129);
    for id in ["", "0123456789abcde", "0123456789abcde!", "0123456789abcdé", &long] {
        assert_eq!(refused_descriptor(&[(&[("k", "v"), ("sluicegate.acquire", id)], None)]), 0);
        assert_eq!(refused_descriptor(&[(&[("sluicegate.release", id)], None)]), 0);
    }
    let acquire = [("k", "v"), ("sluicegate.acquire", ID)];
    let other = [("k", "v"), ("sluicegate.acquire", "another-0123456789")];
    let release = [("sluicegate.release", ID)];
    assert_eq!(refused_descriptor(&[(&acquire, None), (&other, None)]), 1);
    assert_eq!(refused_descriptor(&[(&acquire, None), (&release, None)]), 0);
    assert_eq!(refused_descriptor(&[(&[("k", "v")], None), (&release, None)]), 1);
    assert_eq!(refused_descriptor(&[(&[("sluicegate.acquire", ID)], None)]), 0);
    assert_eq!(refused_descriptor(&[(&[("sluicegate.status", "-")], Some(200))]), 0);
}

#[test]
fn a_request_acquires_and_reserves_with_one_id() {
    let mut asked = request(&[
        (&[("upstream", "gpu"), ("sluicegate.acquire", ID)], None),
        (&[("org", "acme"), ("sluicegate.reserve", ID)], Some(900)),
        (&[("org", "acme"), ("model", "m"), ("sluicegate.reserve", ID)], Some(1_000)),
        (&[("path", "/")], None),
    ]);
    let (id, permits, budgets, tokens) = (ID.into(), vec![0], vec![1, 2], Some(1_000));
    let start = RequestStart { id, permits, budgets, tokens };
    assert_eq!(take_reserved(&mut asked), Ok(ReservedCall::Start(start)));
    assert_eq!(asked.descriptors[2].entries.len(), 2);
}

#[test]
fn a_settle_names_its_budgets_and_its_usage() {
    let org = [("org", "acme"), ("sluicegate.settle", ID)];
    let (input, cached, output) = (
        [("sluicegate.settle_input", ID)],
        [("sluicegate.settle_cached_input", ID)],
        [("sluicegate.settle_output", ID)],
    );
    let ended =
        end(&[(&org, Some(120)), (&input, Some(100)), (&cached, Some(80)), (&output, None)]);
    assert_eq!((ended.budgets, ended.release), (vec![0], None));
    let tokens = TokenCounts { input: 20, cached_input: 80, output: 0, any: 0 };
    assert_eq!(ended.usage, RequestUsage::Tokens(tokens));
    let release = [("sluicegate.release", ID)];
    let ended = end(&[(&release, None), (&org, Some(120))]);
    assert_eq!((ended.budgets, ended.release.is_some()), (vec![1], true));
    assert_eq!(ended.usage, RequestUsage::Tokens(TokenCounts { any: 120, ..Default::default() }));
}

/// Envoy sends 1 if a number is missing in the metadata.
#[test]
fn a_settle_without_usage_is_never_a_charge_of_one_token() {
    let org = [("org", "acme"), ("sluicegate.settle", ID)];
    let status = [("sluicegate.status", "-")];
    for hits in [None, Some(0), Some(1)] {
        assert_eq!(end(&[(&org, hits)]).usage, RequestUsage::Unknown, "{hits:?}");
        for (code, usage) in [
            (0, RequestUsage::Unknown),
            (200, RequestUsage::Unknown),
            (400, RequestUsage::Nothing),
            (503, RequestUsage::Nothing),
        ] {
            assert_eq!(end(&[(&org, hits), (&status, Some(code))]).usage, usage, "{hits:?} {code}");
        }
    }
    let bare = [("sluicegate.settle", ID)];
    assert_eq!(refused_descriptor(&[(&bare, Some(9))]), 0, "no budget is named");
    let reserve = [("org", "acme"), ("sluicegate.reserve", ID)];
    assert_eq!(refused_descriptor(&[(&org, Some(9)), (&reserve, None)]), 1);
}
