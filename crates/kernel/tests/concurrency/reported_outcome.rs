//! The outcome of an upstream's answer by the list of answers that mean overload.

use sluicegate_kernel::concurrency::{
    OverloadAnswers, ReportedOutcome, RequestOutcome, UpstreamAnswer,
};

fn answer(http: Option<u16>, grpc: Option<u8>) -> UpstreamAnswer {
    UpstreamAnswer { http, grpc, has_latency: true, retry_after: None }
}

fn classify(list: OverloadAnswers, answer: UpstreamAnswer) -> RequestOutcome {
    list.classify(ReportedOutcome::Answered(answer))
}

#[test]
fn by_default_429_5xx_and_two_grpc_codes_mean_overload() {
    for status in 0..=u16::MAX {
        let wanted = match status {
            429 | 500..=599 => RequestOutcome::Dropped,
            100..=499 => RequestOutcome::Success,
            _ => RequestOutcome::Ignored,
        };
        let found = classify(OverloadAnswers::DEFAULT, answer(Some(status), None));
        assert_eq!(found, wanted, "{status}");
    }
    for code in 0..=u8::MAX {
        let wanted = match code {
            0 => RequestOutcome::Success,
            8 | 14 => RequestOutcome::Dropped,
            _ => RequestOutcome::Ignored,
        };
        let found = classify(OverloadAnswers::DEFAULT, answer(Some(200), Some(code)));
        assert_eq!(found, wanted, "gRPC {code}");
        assert_eq!(classify(OverloadAnswers::DEFAULT, answer(None, Some(code))), wanted);
    }
}

#[test]
fn refusals_outside_the_list_are_ignored() {
    let list = OverloadAnswers::NONE.with_http(503..=504).with_http(404..=404).with_grpc(14);
    for (http, grpc, wanted) in [
        (503, None, RequestOutcome::Dropped),
        (504, None, RequestOutcome::Dropped),
        (404, None, RequestOutcome::Dropped),
        (403, None, RequestOutcome::Success),
        (429, None, RequestOutcome::Ignored),
        (502, None, RequestOutcome::Ignored),
        (505, None, RequestOutcome::Ignored),
        (200, Some(14), RequestOutcome::Dropped),
        (200, Some(8), RequestOutcome::Ignored),
        (503, Some(8), RequestOutcome::Dropped),
    ] {
        assert_eq!(classify(list, answer(Some(http), grpc)), wanted, "{http} {grpc:?}");
    }
}

#[test]
fn an_answer_without_a_latency_is_never_a_success() {
    for (status, wanted) in [
        (200, RequestOutcome::Ignored),
        (404, RequestOutcome::Ignored),
        (429, RequestOutcome::Dropped),
        (503, RequestOutcome::Dropped),
    ] {
        let incomplete =
            UpstreamAnswer { has_latency: false, ..UpstreamAnswer::with_http_status(status) };
        assert_eq!(classify(OverloadAnswers::DEFAULT, incomplete), wanted, "{status}");
    }
}

#[test]
fn the_list_does_not_change_known_outcomes() {
    for outcome in [RequestOutcome::Success, RequestOutcome::Ignored, RequestOutcome::Dropped] {
        for list in [OverloadAnswers::NONE, OverloadAnswers::DEFAULT] {
            assert_eq!(list.classify(outcome.into()), outcome);
        }
    }
}
