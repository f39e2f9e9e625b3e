//! Concurrency limits survive the way to a proxy, and invalid ones are refused.

use proptest::prelude::{Just, Strategy, any, prop, prop_assert_eq, prop_oneof, proptest};

use super::*;

fn times() -> impl Strategy<Value = Nanos> {
    (1_u64..100_000_000).prop_map(nanos)
}

fn adaptive() -> impl Strategy<Value = AdaptiveConfig> {
    let algorithms = prop_oneof![
        Just(AdaptiveAlgorithm::Gradient),
        Just(AdaptiveAlgorithm::Aimd),
        Just(AdaptiveAlgorithm::Gradient2)
    ];
    let hundredths = || prop::option::of(any::<u32>().prop_map(Hundredths));
    let tuning =
        (prop::option::of(times()), hundredths(), prop::option::of(any::<u32>()), hundredths());
    let times = || prop::option::of(times());
    let probes = (hundredths(), times(), hundredths());
    (algorithms, any::<(u32, u32)>(), tuning, times(), probes).prop_map(
        |(algorithm, (min, max), (target, tolerance, increase, decrease), window, probes)| {
            let (smoothing, probe_interval, probe_depth) = probes;
            let tuning = AdaptiveTuning {
                target,
                tolerance,
                increase,
                decrease,
                window,
                smoothing,
                probe_interval,
                probe_depth,
            };
            AdaptiveConfig { algorithm, min: min.min(max), max: max.max(min), tuning }
        },
    )
}

fn paces() -> impl Strategy<Value = PaceConfig> {
    let adaptive = (any::<(u32, u32)>(), any::<u32>(), 0_u32..=100).prop_map(
        |((min, max), increase, decrease)| AdaptivePace {
            min: min.min(max),
            max: max.max(min),
            increase,
            decrease: Hundredths(decrease),
        },
    );
    (times(), prop::option::of(adaptive)).prop_map(|(unit, adaptive)| PaceConfig { unit, adaptive })
}

fn overload_answers() -> impl Strategy<Value = OverloadAnswers> {
    (prop::collection::vec(400_u16..600, 0..9), prop::collection::vec(1_u8..17, 0..9)).prop_map(
        |(statuses, codes)| {
            let with_http = |answers: OverloadAnswers, status| answers.with_http(status..=status);
            let answers = statuses.into_iter().fold(OverloadAnswers::NONE, with_http);
            codes.into_iter().fold(answers, OverloadAnswers::with_grpc)
        },
    )
}

fn limiter_configs() -> impl Strategy<Value = LimiterConfig> {
    let queues = (any::<u32>(), times()).prop_map(|(size, timeout)| QueueConfig { size, timeout });
    let retry_after = prop_oneof![Just(RetryAfterRule::Ignore), Just(RetryAfterRule::Honour)];
    let options =
        (prop::option::of(adaptive()), prop::option::of(queues), prop::option::of(paces()));
    (any::<u32>(), options, overload_answers(), retry_after).prop_map(
        |(limit, (adaptive, queue, pace), overloaded_by, retry_after)| LimiterConfig {
            adaptive,
            pace,
            queue,
            overloaded_by,
            retry_after,
            ..LimiterConfig::fixed(limit)
        },
    )
}

/// How requests are told apart, with the numbers of the limiter.
fn requesters() -> impl Strategy<Value = (ProxyRequesters, ClassParts, Option<u32>)> {
    let parts = prop::collection::vec(1_u8..=100, 0..=8);
    let texts = || prop::option::of(".{1,9}".prop_map(Box::<str>::from));
    (parts, texts(), texts(), texts(), any::<u32>()).prop_map(
        |(mut parts, class, customer, weight_column, max_customers)| {
            parts.sort_unstable_by_key(|part| std::cmp::Reverse(*part));
            let class_names = parts.iter().map(|part| format!("class {part}").into()).collect();
            let classes = ClassParts::new(&parts).unwrap_or(ClassParts::ONE);
            let fair_keys = customer.is_some().then_some(max_customers);
            let keys = RequesterKeys { class, class_names, customer };
            (ProxyRequesters { keys, weight_column }, classes, fair_keys)
        },
    )
}

pub(crate) fn rules() -> impl Strategy<Value = ConcurrencyRule> {
    let mode = prop_oneof![
        Just(ConcurrencyMode::Local),
        Just(ConcurrencyMode::Shared),
        Just(ConcurrencyMode::Strict)
    ];
    let aggregate = prop_oneof![Just(VoteAggregate::Median), Just(VoteAggregate::Min)];
    let on_failure = prop_oneof![
        Just(ConcurrencyFallback::Deny),
        Just(ConcurrencyFallback::Local),
        Just(ConcurrencyFallback::Allow)
    ];
    let reject = (400_u16..600, prop::option::of(times()), ".{0,9}").prop_map(
        |(status, retry_after, body)| RejectReply { status, retry_after, body: body.into() },
    );
    let bucket = prop::collection::vec(any::<u8>(), 1..40);
    let enums = (mode, aggregate, on_failure, any::<bool>());
    // Boxed, because a test may build several of these large generators on its stack.
    let rules = (limiter_configs().boxed(), prop::option::of(requesters().boxed()));
    (bucket, enums, rules, times(), reject).prop_map(
        |(
            bucket,
            (mode, aggregate, on_failure, is_shadow),
            (rules, told),
            max_duration,
            reject,
        )| {
            let (requesters, classes, fair_keys) = match told {
                Some((rule, classes, keys)) => (Some(Box::new(rule)), classes, keys),
                None => (None, ClassParts::ONE, None),
            };
            let rules = LimiterConfig { classes, fair_keys, ..rules };
            ConcurrencyRule {
                path: "shop.user".into(),
                bucket: bucket.into(),
                mode,
                rules,
                aggregate,
                max_duration,
                on_failure,
                reject,
                is_shadow,
                requesters,
            }
        },
    )
}

proptest! {
    #[test]
    fn limits_survive_the_way_to_the_proxy(rule in rules()) {
        prop_assert_eq!(concurrency_rule(&concurrency_message(&rule)), Some(rule));
    }
}

fn message() -> api::ConcurrencyLimit {
    concurrency_message(&ConcurrencyRule {
        path: "shop.user".into(),
        bucket: b"bucket"[..].into(),
        mode: ConcurrencyMode::Shared,
        rules: LimiterConfig::fixed(10),
        aggregate: VoteAggregate::Median,
        max_duration: Nanos::SECOND,
        on_failure: ConcurrencyFallback::Local,
        reject: RejectReply { status: 503, retry_after: None, body: "busy".into() },
        is_shadow: false,
        requesters: Some(Box::new(ProxyRequesters {
            keys: RequesterKeys::default(),
            weight_column: None,
        })),
    })
}

fn classes(percents: &[u32]) -> Vec<api::RequestClass> {
    let class = |percent: &u32| api::RequestClass { name: "c".to_owned(), percent: *percent };
    percents.iter().map(class).collect()
}

#[test]
fn limits_with_undefined_values_are_refused() {
    let broken: [fn(&mut api::ConcurrencyLimit); 14] = [
        |limit| limit.mode = 0,
        |limit| limit.on_failure = 9,
        |limit| limit.aggregate = 0,
        |limit| limit.max_duration_us = 0,
        |limit| limit.bucket.clear(),
        |limit| limit.reject = None,
        |limit| limit.reject.as_mut().unwrap().status = 399,
        |limit| limit.overload_http.push(600),
        |limit| limit.overload_grpc.push(0),
        |limit| limit.adaptive = Some(api::AdaptiveLimit::default()),
        |limit| limit.requesters.as_mut().unwrap().classes = classes(&[101]),
        |limit| limit.requesters.as_mut().unwrap().classes = classes(&[100, 20, 50]),
        |limit| limit.pace = Some(api::Pace { unit_us: 0, adaptive: None }),
        |limit| {
            let adaptive = Some(api::AdaptivePace { min: 2, max: 1, ..Default::default() });
            limit.pace = Some(api::Pace { unit_us: 1, adaptive });
        },
    ];
    assert!(concurrency_rule(&message()).is_some());
    for (index, change) in broken.iter().enumerate() {
        let mut limit = message();
        change(&mut limit);
        assert_eq!(concurrency_rule(&limit), None, "{index}");
    }
}

#[test]
fn a_max_duration_is_rounded_up() {
    let mut rule = concurrency_rule(&message()).unwrap();
    rule.max_duration = Nanos(1_001);
    let received = concurrency_rule(&concurrency_message(&rule)).unwrap();
    assert_eq!(received.max_duration, Nanos(2_000));
}
