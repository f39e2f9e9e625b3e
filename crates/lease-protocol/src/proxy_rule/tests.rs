//! A rule that is converted to a message and back is unchanged. Invalid messages are refused.

use proptest::prelude::{Just, Strategy as Generator, any, prop, prop_oneof, proptest};
use proptest::{prop_assert, prop_assert_eq};

use super::*;
use crate::concurrency::tests::rules as concurrency_rules;
use crate::tests::strategies;

fn texts() -> impl Generator<Value = Option<Arc<str>>> {
    prop::option::of(".{1,9}".prop_map(Arc::from))
}

/// Times in microseconds.
fn times() -> impl Generator<Value = Nanos> {
    (0_u64..1 << 50).prop_map(nanos)
}

fn verdicts() -> impl Generator<Value = Verdict> {
    prop_oneof![Just(Verdict::Allow), Just(Verdict::Deny)]
}

fn limits() -> impl Generator<Value = ProxyLimit> {
    let overshoot = prop::option::of(any::<u64>())
        .prop_map(|most| most.map_or(Overshoot::InWindow, |most| Overshoot::AtMost(Hits(most))));
    let sizing = prop_oneof![
        any::<u64>().prop_map(|hits| LeaseSizing::Fixed(Hits(hits))),
        Just(LeaseSizing::Recent),
        Just(LeaseSizing::Learned)
    ];
    let terms = (overshoot, times(), sizing).prop_map(|(overshoot, duration, sizing)| LeaseTerms {
        overshoot,
        duration,
        sizing,
    });
    let strategy = strategies().prop_filter_map("invalid numbers", |strategy| strategy);
    let on_failure = prop::option::of(verdicts());
    (texts(), any::<(u32, u64)>(), strategy, terms, on_failure).prop_map(
        |(name, (requests, period), strategy, terms, on_failure)| {
            let period = Nanos(period);
            ProxyLimit { name, requests, period, strategy, terms, on_failure }
        },
    )
}

fn rules() -> impl Generator<Value = ProxyRule> {
    let handling = prop_oneof![
        Just(ProxyHandling::Unlimited),
        Just(ProxyHandling::Ask),
        Just(ProxyHandling::AskTogether),
        verdicts().prop_map(ProxyHandling::Forced),
        prop::collection::vec(limits(), 1..4)
            .prop_map(|limits| ProxyHandling::Leased(limits.into()))
    ];
    let counter = prop::collection::vec((".{0,9}", ".{0,9}"), 0..4).prop_map(|entries| {
        entries.into_iter().map(|(key, value)| (key.into(), value.into())).collect()
    });
    let concurrency = prop::option::of(concurrency_rules().prop_map(Box::new).boxed());
    let validity = prop::option::of(times());
    let weight =
        (".{0,9}", ".{0,9}", prop::option::of(any::<u32>())).prop_map(|(key, column, weight)| {
            CustomerWeight { key: key.into(), column: column.into(), weight }
        });
    let weights = prop::collection::vec(weight, 0..4).prop_map(Box::from);
    let concurrency = (concurrency, weights);
    (handling, any::<(u64, bool, bool)>(), validity, texts(), counter, concurrency).prop_map(
        |(
            handling,
            (limits, is_for_any_values, is_shadow),
            valid_for,
            path,
            counter,
            (concurrency, weights),
        )| {
            ProxyRule {
                valid_for,
                is_for_any_values,
                path,
                is_shadow,
                counter,
                concurrency,
                weights,
                ..ProxyRule::unmatched(handling, limits)
            }
        },
    )
}

proptest! {
    #[test]
    fn rules_survive_the_way_to_the_proxy(rule in rules()) {
        prop_assert_eq!(proxy_rule(&proxy_rule_message(&rule)), Some(rule));
    }

    #[test]
    fn any_message_is_refused_or_a_rule_of_the_protocol(
        rule in rules(),
        numbers in (0..9, 0..7, 0..5, any::<(u64, u64)>()),
        missing: [bool; 2],
    ) {
        let mut message = proxy_rule_message(&rule);
        let (handling, kind, on_failure, (period_ns, most)) = numbers;
        message.handling = handling;
        for limit in &mut message.leased {
            limit.strategy = limit.strategy.take().filter(|_| !missing[0]);
            limit.sizes = limit.sizes.take().filter(|_| !missing[1]);
            (limit.on_failure, limit.max_overshoot) = (on_failure, Some(most));
            if let Some(strategy) = &mut limit.strategy {
                (strategy.kind, strategy.period_ns) = (kind, period_ns);
            }
        }
        let received = proxy_rule(&message);
        let again = received.as_ref().and_then(|rule| proxy_rule(&proxy_rule_message(rule)));
        prop_assert_eq!(again, received);
    }

    #[test]
    fn no_time_of_validity_grows(valid_for: u64) {
        let rule = ProxyRule {
            valid_for: Some(Nanos(valid_for)),
            ..ProxyRule::unmatched(ProxyHandling::Ask, 0)
        };
        let received = proxy_rule(&proxy_rule_message(&rule)).and_then(|rule| rule.valid_for);
        prop_assert!(received.is_some_and(|received| received <= Nanos(valid_for)));
    }
}

/// The message of a leased rule with one limit.
fn message() -> api::RuleReply {
    let terms = LeaseTerms {
        overshoot: Overshoot::AtMost(Hits(10)),
        duration: Nanos::SECOND,
        sizing: LeaseSizing::Recent,
    };
    let strategy = api::RateStrategy { kind: 5, hits: 9, period_ns: 1_000, ..Default::default() };
    let limit = ProxyLimit {
        name: None,
        requests: 9,
        period: Nanos(1_000),
        strategy: crate::strategy(&strategy).unwrap(),
        terms,
        on_failure: None,
    };
    proxy_rule_message(&ProxyRule::unmatched(ProxyHandling::Leased([limit].into()), 7))
}

#[test]
fn rules_with_undefined_values_are_refused() {
    let broken: [fn(&mut api::RuleReply); 8] = [
        |rule| rule.handling = 0,
        |rule| rule.handling = 99,
        |rule| rule.leased.clear(),
        |rule| rule.leased[0].strategy = None,
        |rule| rule.leased[0].sizes = None,
        |rule| rule.leased[0].sizes = Some(api::LeaseSizes { sizes: None }),
        |rule| rule.leased[0].on_failure = 9,
        |rule| rule.concurrency = Some(api::ConcurrencyLimit::default()),
    ];
    assert!(proxy_rule(&message()).is_some());
    for (index, change) in broken.iter().enumerate() {
        let mut rule = message();
        change(&mut rule);
        assert_eq!(proxy_rule(&rule), None, "{index}");
    }
}
