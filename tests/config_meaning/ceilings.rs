//! What `concurrency` means, and what of it is refused.

use sluicegate::config::concurrency::{Ceiling, Mode, Reject};
use sluicegate::kernel::concurrency::limiter::{Rules, Waiting};
use sluicegate::kernel::concurrency::policy::{Adaptive, Law};
use sluicegate::kernel::units::Nanos;

use super::{find, said, sound};

/// With a `max_duration`, where none is said: without one W30 is told, which most of this is not about.
fn lasting(words: &str) -> String {
    let said = words.contains("max_duration") || words.contains("mode: ");
    if said { words.to_owned() } else { format!("{words}, max_duration: 60s") }
}

/// The ceiling of a node `k` that says this.
fn ceiling(words: &str) -> Ceiling {
    let config = sound(&format!("- key: k\n  concurrency: {{{}}}\n", lasting(words)));
    config.domains["d"].tree.ceiling([("k", "v")]).unwrap().ceiling.clone()
}

/// What was said of a node that says this begins so.
fn refused(words: &str, expected: &[&str]) {
    refused_as_it_is(&lasting(words), expected);
}

fn refused_as_it_is(words: &str, expected: &[&str]) {
    let said = said(&format!("- key: k\n  concurrency: {{{words}}}\n"));
    let told: Vec<_> = said.iter().map(|said| said.split_once(' ').unwrap().1).collect();
    assert_eq!(told.len(), expected.len(), "{words}: {said:#?}");
    for (told, expected) in told.iter().zip(expected) {
        assert!(told.starts_with(expected), "{words}: {told}\nwanted {expected}");
    }
}

#[test]
fn a_ceiling_says_how_many_who_waits_and_what_the_others_are_told() {
    assert_eq!(ceiling("limit: 64").rules, Rules::fixed(64));
    assert_eq!(ceiling("limit: 64, mode: local").reject, Reject::default());
    assert_eq!(ceiling("limit: 64, mode: local").max_duration, Nanos::from_secs(60));
    assert_eq!(ceiling("limit: 64, max_duration: 5m").max_duration, Nanos::from_secs(300));
    let all = ceiling(
        "limit: 64, adaptive: {policy: aimd, min: 8, max: 512}, \
         queue: {size: 100, timeout: 300ms}, \
         reject: {status: 429, retry_after: 1500ms, body: 'busy, retry shortly'}",
    );
    let adaptive = Some(Adaptive { law: Law::Aimd, min: 8, max: 512 });
    let timeout = Nanos(300 * Nanos::MILLI.0);
    let waiting = Some(Waiting { size: 100, timeout });
    assert_eq!(all.rules, Rules { limit: 64, adaptive, waiting });
    let retry_after = Some(Nanos(1_500 * Nanos::MILLI.0));
    assert_eq!(all.reject, Reject { status: 429, retry_after, body: "busy, retry shortly".into() });
    let bounds = |limit| ceiling(&format!("limit: {limit}, adaptive: {{}}")).rules.adaptive;
    assert_eq!(bounds(64), Some(Adaptive { law: Law::Gradient, min: 1, max: 1000 }));
    assert_eq!(bounds(2000), Some(Adaptive { law: Law::Gradient, min: 1, max: 2000 }));
}

#[test]
fn a_node_with_nothing_but_a_ceiling_limits_no_rate_and_does_not_exempt_from_one_above() {
    let config = sound(
        "- key: k\n  rate_limit: {unit: day, requests_per_unit: 1}\n\
         - key: k\n  value: v\n  concurrency: {limit: 2, max_duration: 60s}\n\
         - key: both\n  concurrency: {limit: 3, max_duration: 60s}\n  \
         rate_limit: {unit: day, requests_per_unit: 1}\n",
    );
    let of = |key, value| {
        let found = config.domains["d"].tree.ceiling([(key, value)]);
        found.map(|found| found.ceiling.rules.limit)
    };
    assert!(find(&config, "k=v").is_none(), "as a node without rate_limit in the base language");
    assert_eq!((of("k", "v"), of("k", "w")), (Some(2), None));
    assert!(find(&config, "both=x").is_some());
    assert_eq!(of("both", "x"), Some(3));
}

#[test]
fn what_cannot_be_held_is_refused_with_its_place() {
    refused("limit: 0", &["E38 `limit: 0`"]);
    refused("mode: local", &["E38 a ceiling needs a `limit`"]);
    refused(
        "limit: 1, mode: local, on_backend_failure: deny",
        &["E32 `on_backend_failure` beside `mode: local`"],
    );
    refused("limit: 1, on_backend_failure: error", &["E29 `on_backend_failure: error`"]);
    refused("limit: 64, mode: leased", &["W30 a ceiling without `max_duration`"]);
    refused_as_it_is("limit: 64", &["W30 a ceiling without `max_duration`, which is 60s then"]);
    refused("limit: 64, mode: local", &[]);
    refused("limit: 64, mode: strict", &[]);
    refused("limit: 64, mode: leased, max_duration: 301s", &["W30 a fleet's ceiling with"]);
    refused("limit: 64, max_duration: 301s", &["W30 a fleet's ceiling with `max_duration: 301s`"]);
    refused("limit: 64, mode: leesed, max_duration: 301s", &["E29 `mode: leesed`"]);
    refused("limit: 64, mode: leased, max_duration: 5m", &[]);
    refused("limit: 4, mode: strict, adaptive: {}", &["E32 `adaptive` beside `mode: strict`"]);
    refused("limit: 1, mode: cached_deny", &["E29 `mode: cached_deny`"]);
    refused("limit: 1, max_duration: 0s", &["E31 `max_duration: 0s` is no time at all"]);
    refused("limit: 1, adaptive: {policy: vegas}", &["E29 `policy: vegas`"]);
    refused("limit: 1, adaptive: {min: 0}", &["E38 `min: 0`"]);
    refused("limit: 4, adaptive: {min: 5}", &["E32 `limit: 4` is not between `min` 5"]);
    refused("limit: 4, adaptive: {max: 3}", &["E32 `limit: 4` is not between `min` 1 and `max` 3"]);
    refused("limit: 1, queue: {size: 1}", &["E38 a queue needs"]);
    refused("limit: 1, queue: {timeout: 1s}", &["E38 a queue needs"]);
    refused("limit: 1, queue: {size: 0, timeout: 1s}", &["E38 `size: 0`"]);
    refused("limit: 1, queue: {size: 1, timeout: 0s}", &["E31 `timeout: 0s`"]);
    refused("limit: 1, queue: {size: 1, timeout: soon}", &["E31 `timeout: soon` is no duration"]);
    refused("limit: 1, queue: {size: 1, timeout: 999999d}", &["E31 `timeout: 999999d` is longer"]);
    for status in ["200", "399", "600", "70000"] {
        let expected = format!("E38 `status: {status}`");
        refused(&format!("limit: 1, reject: {{status: {status}}}"), &[&expected]);
    }
    refused("limit: 1, reject: {retry_after: later}", &["E31 `retry_after: later`"]);
    refused("limit: 1, burst: 2", &["E10 `burst` has no place in `concurrency`"]);
    refused("limit: 1, queues: {}", &["E09 there is no key `queues`"]);
    refused("limit: many", &["E13 `limit` wants"]);
}

#[test]
fn a_mode_that_does_not_fit_how_large_a_ceiling_is_is_told() {
    let leased =
        |limit: u32, more: &str| format!("limit: {limit}, mode: leased, max_duration: 5m{more}");
    refused(&leased(10, ""), &["W31 `limit: 10` in shares"]);
    refused(&leased(11, ""), &[]);
    refused(&leased(10, ", adaptive: {}"), &[]);
    refused("limit: 10", &[]);
    for limit in [1, 10, 999] {
        refused(&format!("limit: {limit}, mode: strict"), &[]);
    }
    refused("limit: 1000, mode: strict", &["W32 `limit: 1000` with `mode: strict`"]);
    assert_eq!(ceiling("limit: 10, mode: strict").mode, Some(Mode::Strict));
    let said = ceiling("limit: 10, mode: strict, on_backend_failure: deny").to_string();
    assert_eq!(said, "10 in flight, mode strict, on backend failure deny, rejected with 503");
}

#[test]
fn words_of_a_ceiling_are_refused_elsewhere() {
    let said = said("- key: k\n  queue: {size: 1, timeout: 1s}\n");
    assert!(said[0].contains("E10 `queue` has no place in a descriptor"), "{said:?}");
}

#[test]
fn shadow_mode_counts_for_a_ceiling() {
    let config =
        sound("- key: k\n  shadow_mode: true\n  concurrency: {limit: 1, max_duration: 60s}\n");
    assert!(config.domains["d"].tree.ceiling([("k", "")]).unwrap().ceiling.shadow);
}
