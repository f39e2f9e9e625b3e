//! Concurrency limits, as a proxy enforces them.
//!
//! Guarantees:
//! - A `max_duration` never shrinks by a conversion, because requests may run for that long.

use sluicegate_kernel::concurrency::adaptive::{
    AdaptiveAlgorithm, AdaptiveConfig, AdaptiveTuning, Hundredths,
};
use sluicegate_kernel::concurrency::limiter::{LimiterConfig, QueueConfig};
use sluicegate_kernel::concurrency::{
    AdaptivePace, ClassParts, ConcurrencyMode, OverloadAnswers, PaceConfig, RejectReply,
    RequesterKeys, RetryAfterRule,
};
use sluicegate_kernel::coordinator::ConcurrencyFallback;
use sluicegate_kernel::coordinator::aggregate::VoteAggregate;
use sluicegate_kernel::proxy_rule::{ConcurrencyRule, ProxyRequesters};
use sluicegate_kernel::units::Nanos;

use crate::api::concurrency_limit::{Aggregate, Mode, OnFailure};
use crate::{api, micros, nanos};

/// The largest name of a bucket in reports, in bytes. So a full report fits into a message.
pub const MAX_BUCKET_BYTES: usize = 1_024;

/// Returns the limit, or `None` if it is invalid.
#[must_use]
pub fn concurrency_rule(wire: &api::ConcurrencyLimit) -> Option<ConcurrencyRule> {
    let max_duration = nanos(wire.max_duration_us);
    let mode = match Mode::try_from(wire.mode).ok()? {
        Mode::Unspecified => return None,
        Mode::Local => ConcurrencyMode::Local,
        Mode::Shared => ConcurrencyMode::Shared,
        Mode::Strict => ConcurrencyMode::Strict,
    };
    let on_failure = match OnFailure::try_from(wire.on_failure).ok()? {
        OnFailure::Unspecified => return None,
        OnFailure::Deny => ConcurrencyFallback::Deny,
        OnFailure::LocalShare => ConcurrencyFallback::Local,
        OnFailure::Allow => ConcurrencyFallback::Allow,
    };
    (max_duration != Nanos(0) && !wire.bucket.is_empty()).then_some(())?;
    Some(ConcurrencyRule {
        path: wire.rule.as_str().into(),
        bucket: wire.bucket.as_slice().into(),
        mode,
        rules: limiter_config(wire)?,
        requesters: wire.requesters.as_ref().map(|it| Box::new(requesters(it))),
        aggregate: aggregate(wire.aggregate)?,
        max_duration,
        on_failure,
        reject: rejection(wire.reject.as_ref()?)?,
        is_shadow: wire.shadow,
    })
}

/// Returns the message of a limit.
#[must_use]
pub fn concurrency_message(rule: &ConcurrencyRule) -> api::ConcurrencyLimit {
    let mode = match rule.mode {
        ConcurrencyMode::Local => Mode::Local,
        ConcurrencyMode::Shared => Mode::Shared,
        ConcurrencyMode::Strict => Mode::Strict,
    };
    let on_failure = match rule.on_failure {
        ConcurrencyFallback::Deny => OnFailure::Deny,
        ConcurrencyFallback::Local => OnFailure::LocalShare,
        ConcurrencyFallback::Allow => OnFailure::Allow,
    };
    let LimiterConfig { limit, adaptive, pace, queue, overloaded_by, retry_after, .. } = rule.rules;
    let queue_message =
        |QueueConfig { size, timeout }| api::PermitQueue { size, timeout_us: micros(timeout) };
    api::ConcurrencyLimit {
        rule: rule.path.to_string(),
        bucket: rule.bucket.to_vec(),
        mode: mode.into(),
        limit,
        adaptive: adaptive.as_ref().map(adaptive_message),
        queue: queue.map(queue_message),
        overload_http: overloaded_by.http_statuses().map(u32::from).collect(),
        overload_grpc: overloaded_by.grpc_codes().map(u32::from).collect(),
        honors_retry_after: retry_after == RetryAfterRule::Honour,
        aggregate: aggregate_message(rule.aggregate).into(),
        max_duration_us: micros(rule.max_duration),
        on_failure: on_failure.into(),
        reject: Some(rejection_message(&rule.reject)),
        shadow: rule.is_shadow,
        requesters: rule.requesters.as_ref().map(|it| requesters_message(it, &rule.rules)),
        pace: pace.map(pace_message),
    }
}

/// Returns the name of a bucket, or `None` if it is empty or too long.
pub(crate) fn bucket(name: &[u8]) -> Option<Box<[u8]>> {
    (1..=MAX_BUCKET_BYTES).contains(&name.len()).then(|| name.into())
}

pub(crate) fn aggregate(wire: i32) -> Option<VoteAggregate> {
    match Aggregate::try_from(wire).ok()? {
        Aggregate::Unspecified => None,
        Aggregate::Median => Some(VoteAggregate::Median),
        Aggregate::Minimum => Some(VoteAggregate::Min),
    }
}

pub(crate) const fn aggregate_message(aggregate: VoteAggregate) -> Aggregate {
    match aggregate {
        VoteAggregate::Median => Aggregate::Median,
        VoteAggregate::Min => Aggregate::Minimum,
    }
}

fn limiter_config(wire: &api::ConcurrencyLimit) -> Option<LimiterConfig> {
    let adaptive = match &wire.adaptive {
        Some(adaptive) => Some(adaptive_config(adaptive)?),
        None => None,
    };
    let queue = wire
        .queue
        .as_ref()
        .map(|queue| QueueConfig { size: queue.size, timeout: nanos(queue.timeout_us) });
    let retry_after =
        if wire.honors_retry_after { RetryAfterRule::Honour } else { RetryAfterRule::Ignore };
    let overloaded_by = overload_answers(wire)?;
    let requesters = wire.requesters.as_ref();
    let classes = requesters.map_or(Some(ClassParts::ONE), class_parts)?;
    let fair_keys = requesters.filter(|it| !it.customer_key.is_empty()).map(|it| it.max_customers);
    let fixed = LimiterConfig::fixed(wire.limit);
    let rules = LimiterConfig { adaptive, queue, overloaded_by, retry_after, ..fixed };
    let pace = match &wire.pace {
        Some(pace) => Some(pace_config(pace)?),
        None => None,
    };
    Some(LimiterConfig { pace, classes, fair_keys, ..rules })
}

fn pace_config(wire: &api::Pace) -> Option<PaceConfig> {
    let adaptive = wire.adaptive.as_ref().map(|adaptive| AdaptivePace {
        min: adaptive.min,
        max: adaptive.max,
        increase: adaptive.increase,
        decrease: Hundredths(adaptive.decrease_hundredths),
    });
    let is_valid = |it: &AdaptivePace| it.min <= it.max && it.decrease <= Hundredths(100);
    let is_valid = wire.unit_us != 0 && adaptive.as_ref().is_none_or(is_valid);
    is_valid.then_some(PaceConfig { unit: nanos(wire.unit_us), adaptive })
}

fn pace_message(PaceConfig { unit, adaptive }: PaceConfig) -> api::Pace {
    let adaptive = adaptive.map(|AdaptivePace { min, max, increase, decrease }| {
        let decrease_hundredths = decrease.0;
        api::AdaptivePace { min, max, increase, decrease_hundredths }
    });
    api::Pace { unit_us: micros(unit), adaptive }
}

fn class_parts(wire: &api::Requesters) -> Option<ClassParts> {
    if wire.classes.is_empty() {
        return Some(ClassParts::ONE);
    }
    let percents = wire.classes.iter().map(|class| u8::try_from(class.percent).ok());
    ClassParts::new(&percents.collect::<Option<Vec<_>>>()?)
}

fn requesters(wire: &api::Requesters) -> ProxyRequesters {
    let text = |text: &str| Some(Box::from(text)).filter(|_| !text.is_empty());
    let class_names = wire.classes.iter().map(|class| Box::from(&*class.name)).collect();
    let (class, customer) = (text(&wire.class_key), text(&wire.customer_key));
    let keys = RequesterKeys { class, class_names, customer };
    ProxyRequesters { keys, weight_column: text(&wire.weight_column) }
}

fn requesters_message(rule: &ProxyRequesters, numbers: &LimiterConfig) -> api::Requesters {
    let text = |text: &Option<Box<str>>| text.as_deref().unwrap_or_default().to_owned();
    let named = rule.keys.class_names.iter().zip(numbers.classes.percents());
    let classes = named.map(|(name, percent)| api::RequestClass {
        name: name.to_string(),
        percent: u32::from(*percent),
    });
    api::Requesters {
        class_key: text(&rule.keys.class),
        classes: classes.collect(),
        customer_key: text(&rule.keys.customer),
        max_customers: numbers.fair_keys.unwrap_or_default(),
        weight_column: text(&rule.weight_column),
    }
}

fn overload_answers(wire: &api::ConcurrencyLimit) -> Option<OverloadAnswers> {
    let mut answers = OverloadAnswers::NONE;
    for status in &wire.overload_http {
        let status = u16::try_from(*status).ok().filter(|status| (400..600).contains(status))?;
        answers = answers.with_http(status..=status);
    }
    for code in &wire.overload_grpc {
        answers =
            answers.with_grpc(u8::try_from(*code).ok().filter(|code| (1..=16).contains(code))?);
    }
    Some(answers)
}

fn adaptive_config(wire: &api::AdaptiveLimit) -> Option<AdaptiveConfig> {
    use api::adaptive_limit::Algorithm;
    let algorithm = match Algorithm::try_from(wire.algorithm).ok()? {
        Algorithm::Unspecified => return None,
        Algorithm::Gradient => AdaptiveAlgorithm::Gradient,
        Algorithm::Aimd => AdaptiveAlgorithm::Aimd,
        Algorithm::Gradient2 => AdaptiveAlgorithm::Gradient2,
    };
    let tuning = AdaptiveTuning {
        target: wire.target_us.map(nanos),
        tolerance: wire.tolerance_hundredths.map(Hundredths),
        increase: wire.increase,
        decrease: wire.decrease_hundredths.map(Hundredths),
        window: wire.window_us.map(nanos),
        smoothing: wire.smoothing_hundredths.map(Hundredths),
        probe_interval: wire.probe_interval_us.map(nanos),
        probe_depth: wire.probe_depth_hundredths.map(Hundredths),
    };
    let is_ordered = wire.min <= wire.max;
    is_ordered.then_some(AdaptiveConfig { algorithm, min: wire.min, max: wire.max, tuning })
}

fn adaptive_message(adaptive: &AdaptiveConfig) -> api::AdaptiveLimit {
    use api::adaptive_limit::Algorithm;
    let AdaptiveConfig { algorithm, min, max, tuning } = *adaptive;
    let algorithm = match algorithm {
        AdaptiveAlgorithm::Gradient => Algorithm::Gradient,
        AdaptiveAlgorithm::Aimd => Algorithm::Aimd,
        AdaptiveAlgorithm::Gradient2 => Algorithm::Gradient2,
    };
    let hundredths = |Hundredths(hundredths)| hundredths;
    api::AdaptiveLimit {
        algorithm: algorithm.into(),
        min,
        max,
        target_us: tuning.target.map(micros),
        tolerance_hundredths: tuning.tolerance.map(hundredths),
        increase: tuning.increase,
        decrease_hundredths: tuning.decrease.map(hundredths),
        window_us: tuning.window.map(micros),
        smoothing_hundredths: tuning.smoothing.map(hundredths),
        probe_interval_us: tuning.probe_interval.map(micros),
        probe_depth_hundredths: tuning.probe_depth.map(hundredths),
    }
}

fn rejection(wire: &api::RejectedReply) -> Option<RejectReply> {
    let status = u16::try_from(wire.status).ok().filter(|status| (400..600).contains(status))?;
    let retry_after = wire.retry_after_us.map(nanos);
    Some(RejectReply { status, retry_after, body: wire.body.as_str().into() })
}

fn rejection_message(rejection: &RejectReply) -> api::RejectedReply {
    api::RejectedReply {
        status: rejection.status.into(),
        retry_after_us: rejection.retry_after.map(micros),
        body: rejection.body.to_string(),
    }
}

#[cfg(test)]
pub(crate) mod tests;
