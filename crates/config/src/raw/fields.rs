//! Finds the field of a block for a key of the file.
//!
//! Not covered:
//! - Keys that no block has (see [`super::names`]).

use super::field_name::FieldName;
use super::typed::{Block, FieldMap, FieldTarget, ListItem};
use super::{
    Adaptive, AdaptiveRate, Budget, Calendar, Classes, Concurrency, Defaults, Descriptor, Fair,
    File, Penalty, Queue, RateLimit, Reject, Usage, Wait,
};
use crate::diagnostic::{Span, Spanned};

/// Implements [`FieldMap`] by a list of keys and fields, and lists the keys.
macro_rules! fields {
    ($($block:ident $(($span:ident $(, $incomplete:ident)?))? { $($name:ident => $field:ident),+ })+) => { $(
        impl $block {
            pub(super) const FIELD_NAMES: &'static [FieldName] = &[$(FieldName::$name),+];
        }

        impl FieldMap for $block {
            fn field(&mut self, name: FieldName) -> Option<&mut dyn FieldTarget> {
                Some(match name {
                    $(FieldName::$name => &mut self.$field,)+
                    _ => return None,
                })
            }

            $(fn place(&mut self, span: Span) {
                self.$span = span;
            }

            $(fn mark_incomplete(&mut self) {
                self.$incomplete = true;
            })?)?
        }
    )+ };
}

fields! {
    File {
        Domain => domain,
        Descriptors => descriptors,
        Charge => charge,
        Colocate => colocate,
        Defaults => defaults,
        Usage => usage
    }
    Defaults (span, is_incomplete) {
        Strategy => strategy,
        OnExcess => on_excess,
        Mode => mode,
        MaxOvershoot => max_overshoot,
        OnStoreFailure => on_store_failure
    }
    Descriptor (span, is_incomplete) {
        Key => key,
        Value => value,
        Network => network,
        CounterPer => counter_per,
        RateLimit => rate_limit,
        RateLimits => rate_limits,
        Descriptors => descriptors,
        ShadowMode => shadow_mode,
        QuotaMode => quota_mode,
        DetailedMetric => detailed_metric,
        ValueToMetric => value_to_metric,
        ShareThreshold => share_threshold,
        Metadata => metadata,
        Concurrency => concurrency,
        Budget => budget
    }
    Budget (span, is_incomplete) {
        Amount => amount,
        Unit => unit,
        Per => per,
        Calendar => calendar,
        Prepaid => prepaid,
        Of => of,
        WarnAt => warn_at,
        OnStoreFailure => on_store_failure,
        From => from,
        By => by
    }
    Usage (span, is_incomplete) {
        Estimate => estimate,
        AtMost => at_most,
        TimeLimit => time_limit,
        OnExpiry => on_expiry,
        Prices => prices,
        Model => model
    }
    RateLimit (span, is_incomplete) {
        Unit => unit,
        RequestsPerUnit => requests_per_unit,
        Unlimited => unlimited,
        Name => name,
        Replaces => replaces,
        Per => per,
        Strategy => strategy,
        Burst => burst,
        OnExcess => on_excess,
        Mode => mode,
        MaxOvershoot => max_overshoot,
        LeaseHits => lease_hits,
        OnStoreFailure => on_store_failure,
        Calendar => calendar,
        Adaptive => adaptive,
        Wait => wait,
        From => from,
        By => by,
        Penalty => penalty
    }
    Penalty (span, is_incomplete) {
        After => after,
        Within => within,
        For => length,
        Status => status
    }
    AdaptiveRate (span) {
        Algorithm => algorithm,
        Min => min,
        Max => max,
        Increase => increase,
        Decrease => decrease,
        OverloadedBy => overloaded_by,
        PausedBy => paused_by
    }
    Wait (span, is_incomplete) { AtMost => at_most, Queue => queue }
    Calendar (span, is_incomplete) {
        TimeZone => time_zone,
        StartsOn => starts_on,
        StartsAt => starts_at
    }
    Concurrency (span, is_incomplete) {
        Limit => limit,
        Adaptive => adaptive,
        Mode => mode,
        OnStoreFailure => on_store_failure,
        Queue => queue,
        Classes => classes,
        Fair => fair,
        MaxDuration => max_duration,
        Reject => reject,
        From => from,
        By => by
    }
    Adaptive (span) {
        Algorithm => algorithm,
        Min => min,
        Max => max,
        OverloadedBy => overloaded_by,
        PausedBy => paused_by,
        Target => target,
        Tolerance => tolerance,
        Increase => increase,
        Decrease => decrease,
        Window => window,
        Smoothing => smoothing,
        ProbeInterval => probe_interval,
        ProbeDepth => probe_depth,
        Aggregate => aggregate
    }
    Queue (span, is_incomplete) { Size => size, Timeout => timeout }
    Classes (span, is_incomplete) { By => by, UpTo => up_to }
    Fair (span, is_incomplete) { By => by, Weight => weight, MaxKeys => max_keys }
    Reject (span) { Status => status, RetryAfter => retry_after, Body => body }
}

impl Block for Defaults {}
impl Block for Budget {}
impl Block for Usage {}
impl Block for Calendar {}
impl Block for Concurrency {}
impl Block for Adaptive {}
impl Block for AdaptiveRate {}
impl Block for Wait {}
impl Block for Penalty {}
impl Block for Queue {}
impl Block for Classes {}
impl Block for Fair {}
impl Block for Reject {}
impl Block for RateLimit {
    /// To decide this, envoyproxy/ratelimit's parser accepts only the spelling `null`.
    const NULL_IS_EMPTY: bool = true;
}

impl ListItem for RateLimit {
    const TITLE: &'static str = "an item of `rate_limits`";
}

impl ListItem for Descriptor {
    const TITLE: &'static str = "a descriptor";
}

/// An item of `replaces`, whose only field is `name`.
impl ListItem for Spanned<String> {
    const TITLE: &'static str = "an item of `replaces`";
}

impl FieldMap for Spanned<String> {
    fn field(&mut self, name: FieldName) -> Option<&mut dyn FieldTarget> {
        if name == FieldName::Name { Some(self) } else { None }
    }

    fn place(&mut self, span: Span) {
        self.span = span;
    }
}
