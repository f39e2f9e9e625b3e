//! Converts settings to the policies of the engine and of replies.

use crate::config::settings::{self, Settings};
use crate::edge::{ReplyOptions, headers};
use crate::engine::{DecisionPolicy, KeyNaming, OverridePolicy, PlanSettings};

pub(super) fn engine_policy(settings: &Settings) -> DecisionPolicy {
    let keys = match settings.compat.store.key_format {
        settings::KeyFormat::Own => KeyNaming::Unique,
        settings::KeyFormat::Compat => KeyNaming::Envoyproxy,
    };
    let overrides = match settings.limits.overrides {
        settings::Overrides::Replace => OverridePolicy::Allow,
        settings::Overrides::Ignore => OverridePolicy::Deny,
        settings::Overrides::Lower => OverridePolicy::Max,
    };
    let planning =
        PlanSettings { keys, overrides, quota_for_all: settings.compat.limits.quota_mode };
    let near_limit_ratio = settings.telemetry.near_limit.get();
    DecisionPolicy {
        planning,
        is_shadow: settings.answers.shadow_mode,
        near_limit_ratio,
        descriptor_values: settings.telemetry.descriptor_values,
        max_counted_rules: settings.telemetry.metrics.max_rules,
    }
}

pub(super) fn reporting_options(settings: &Settings) -> ReplyOptions {
    ReplyOptions {
        headers: headers::RateLimitHeaders::from_settings(settings),
        upstream_names: settings
            .compat
            .answers
            .request_headers
            .then(|| headers::CompatHeaderNames::from_settings(settings)),
        dynamic_metadata: settings.answers.metadata,
        denied_by_metadata: matches!(
            settings.answers.denied_by,
            settings::DeniedBy::Metadata | settings::DeniedBy::Both
        ),
        allow_negative_hits: settings.limits.refunds,
    }
}
