//! Refused budgets: each error with its place and its fix.

use super::{file, found, load};

/// Fields with an error at `@`, its code and message, and its fix.
type Wrong = (&'static str, &'static str, &'static str);

const EXAMPLE: &str = "write a number and a unit, such as `amount: 500 usd`";

/// Wrong amounts, each with the message after the amount, and the fix.
const AMOUNTS: &[(&str, &str, &str)] = &[
    ("500$", "is not an amount", "write `amount: 500 usd`"),
    ("$500", "is not an amount", "write `amount: 500 usd`"),
    ("500€", "is not an amount", "write `amount: 500 eur`"),
    ("$0.50", "is not an amount", "write `amount: 0.50 usd`"),
    ("usd 500", "is not an amount", "write `amount: 500 usd`"),
    ("500usd", "is not an amount", "write `amount: 500 usd`"),
    ("500", "has no unit", EXAMPLE),
    ("0.5", "has no unit", EXAMPLE),
    ("99999999999999999999", "has no unit", EXAMPLE),
    ("2m tokens", "is not an amount", "write `amount: 2M tokens`"),
    ("32K tokens", "is not an amount", "write `amount: 32k tokens`"),
    ("2 M tokens", "has an unknown unit", "write `amount: 2M tokens`"),
    ("2 million tokens", "has an unknown unit", "write `amount: 2M tokens`"),
    ("1b tokens", "is not an amount", "write `amount: 1G tokens`"),
    ("200 input tokens", "has an unknown unit", "write `amount: 200 input_tokens`"),
    ("1 token", "has an unknown unit", "write `amount: 1 tokens`"),
    ("5k tok", "has an unknown unit", "write `amount: 5k tokens`"),
    ("20 dollars", "has an unknown unit", "write `amount: 20 usd`"),
    ("1_000 usd", "is not an amount", "write `amount: 1000 usd`"),
    ("'1,000 usd'", "is not an amount", "write `amount: 1000 usd`"),
    ("'1,000,000.25 usd'", "is not an amount", "write `amount: 1000000.25 usd`"),
    ("'0,50 usd'", "is not an amount", "write `amount: 0.50 usd`"),
    ("1 000 usd", "has an unknown unit", "write `amount: 1000 usd`"),
    ("010 usd", "is not an amount", "write `amount: 10 usd`"),
    (".5 usd", "is not an amount", "write `amount: 0.5 usd`"),
    ("5. usd", "is not an amount", "write `amount: 5 usd`"),
    ("-5 usd", "is negative", EXAMPLE),
    ("unlimited", "is not an amount", EXAMPLE),
    ("1e6 tokens", "is not an amount", EXAMPLE),
    ("'1.000,50 usd'", "is not an amount", EXAMPLE),
    ("500 requests", "has an unknown unit", EXAMPLE),
    ("''", "is not an amount", EXAMPLE),
    (
        "0 usd",
        "is nothing",
        "use more than 0; to deny everything, use a `rate_limit` of 0 requests",
    ),
    (
        "0.0000001 usd",
        "has too many decimals",
        "use whole tokens, and at most six decimals of a currency",
    ),
    (
        "1.5 tokens",
        "has too many decimals",
        "use whole tokens, and at most six decimals of a currency",
    ),
    ("9008M usd", "is too large to count exactly", "use at most `9000M usd` or `9000000G tokens`"),
    (
        "9007199254740992 tokens",
        "is too large to count exactly",
        "use at most `9000M usd` or `9000000G tokens`",
    ),
];

#[test]
fn wrong_amounts_get_their_place_and_fix() {
    for (amount, problem, fix) in AMOUNTS {
        let text = file("prices: models", &format!("budget: {{amount: @{amount}, unit: day}}"));
        let message = format!("E41 `amount: {}` {problem}", amount.trim_matches('\''));
        assert_refused(&text, &[(&message, fix)]);
    }
}

#[test]
fn every_amount_of_a_fix_is_accepted() {
    let mut accepted = 0;
    for (_, _, fix) in AMOUNTS {
        let Some(line) = fix.strip_prefix("write `").and_then(|fix| fix.strip_suffix('`')) else {
            continue;
        };
        let text = file("prices: models", &format!("budget: {{{line}, unit: day}}"));
        let findings = load(&[("a.yaml", &text)], false).unwrap().1;
        let is_known = |code: &str| ["W26", "W35"].contains(&code);
        assert!(findings.iter().all(|one| is_known(one.code.name())), "{text}{findings:?}");
        accepted += 1;
    }
    assert!(20 < accepted, "{accepted}");
}

/// Wrong fields of the only budget, beside which the domain has prices.
const BUDGETS: &[Wrong] = &[
    (
        "@unit: day",
        "E38 `budget` needs an `amount`",
        "add for example `amount: 500 usd`; for top-ups, write `prepaid: true` and `of: usd`",
    ),
    (
        "@amount: 5 usd",
        "E24 `budget` needs a `unit`",
        "add for example `unit: month`; for top-ups instead of periods, write `prepaid: true`",
    ),
    ("amount: 5 usd, unit: @monthly", "E24 invalid unit `monthly`", "did you mean `month`?"),
    (
        "amount: 5 usd, unit: day, per: @5m",
        "E32 `per: 5m` cannot be combined with `unit: day`",
        "remove one of the two",
    ),
    ("amount: 5 usd, per: @900ms", "E31 `per: 900ms` is shorter than 1s", "use at least `1s`"),
    (
        "amount: 5 usd, per: @5 minutes",
        "E31 `per: 5 minutes` is not a duration",
        "use whole numbers and `ms`, `s`, `m`, `h` or `d`, such as `90s` or `1h30m`",
    ),
    (
        "amount: 5 usd, per: 5h, calendar: {@time_zone: UTC}",
        "E32 `calendar` cannot be combined with `per`",
        "use `unit: day`, `week`, `month` or `year` instead of `per`",
    ),
    (
        "amount: 5 usd, unit: hour, calendar: {@time_zone: UTC}",
        "E36 `calendar` needs a unit of at least a day",
        "remove it, or use day, week, month or year",
    ),
    (
        "amount: 5 usd, unit: day, of: @usd",
        "E32 `of` needs `prepaid: true`",
        "remove it: `amount` has the unit; or add `prepaid: true`",
    ),
    (
        "prepaid: @true",
        "E38 `prepaid: true` needs `of`",
        "add the unit of the top-ups, such as `of: usd` or `of: tokens`",
    ),
    (
        "prepaid: true, of: @dollars",
        "E41 `of: dollars` is not a unit",
        "use `tokens`, `input_tokens`, `output_tokens`, or a currency such as `usd`",
    ),
    (
        "prepaid: true, of: usd, amount: @5 usd",
        "E32 `amount` cannot be combined with `prepaid: true`",
        "remove one of the two: top-ups give the amount of a prepaid budget",
    ),
    (
        "prepaid: true, of: usd, from: @t.c",
        "E32 `from` cannot be combined with `prepaid: true`",
        "remove one of the two: top-ups give the amount of a prepaid budget",
    ),
    (
        "amount: 5 usd, unit: day, warn_at: [@0%]",
        "E38 `warn_at`: `0%` is not a percentage from `1%` to `100%`",
        "use whole percentages, such as `[80%, 100%]`",
    ),
    (
        "amount: 5 usd, unit: day, warn_at: [@101%]",
        "E38 `warn_at`: `101%` is not a percentage from `1%` to `100%`",
        "use whole percentages, such as `[80%, 100%]`",
    ),
    (
        "amount: 5 usd, unit: day, warn_at: [@80]",
        "E38 `warn_at`: `80` is not a percentage from `1%` to `100%`",
        "write `80%`",
    ),
    (
        "amount: 5 usd, unit: day, warn_at: [@0.8]",
        "E38 `warn_at`: `0.8` is not a percentage from `1%` to `100%`",
        "use whole percentages, such as `[80%, 100%]`",
    ),
    (
        "amount: 5 usd, unit: day, warn_at: [100%, @80%]",
        "E38 `warn_at`: `80%` comes after `100%`",
        "write ascending percentages, such as `[80%, 100%]`",
    ),
    (
        "amount: 5 usd, unit: day, warn_at: [80%, @80%]",
        "E38 `warn_at`: `80%` comes after `80%`",
        "write ascending percentages, such as `[80%, 100%]`",
    ),
    (
        "amount: 5 usd, unit: day, warn_at: @80%",
        "E13 `warn_at` must be a list, not the text `80%`",
        "write a list, such as `warn_at: [80%, 100%]`",
    ),
    (
        "amount: 5 usd, unit: day, on_store_failure: @local",
        "E29 `on_store_failure: local` is not valid in `budget`",
        "use `deny`, `error` or `allow`: a replica alone does not know what others spent",
    ),
    (
        "amount: 5 usd, unit: day, on_store_failure: @closed",
        "E29 `on_store_failure: closed` is not a valid value",
        "did you mean `deny`?",
    ),
    (
        "amount: 5 usd, unit: day, from: @customers",
        "E40 `from: customers` is not a table and its column",
        "write `from: TABLE.COLUMN`, such as `from: customers.api`",
    ),
    (
        "amount: 5 usd, unit: day, @requests_per_unit: 5",
        "W01 `requests_per_unit` is ignored in `budget`",
        "move it to `rate_limit`",
    ),
    (
        "amount: 5 usd, unit: day, @strategy: gcra",
        "E10 `strategy` is not valid in `budget`",
        "move it to `defaults` or `rate_limit`",
    ),
    ("@ammount: 5 usd, unit: day", "E09 unknown field `ammount`", "did you mean `amount`?"),
    ("@prepayed: true, of: usd", "E09 unknown field `prepayed`", "did you mean `prepaid`?"),
];

/// Wrong fields of `usage`, beside a budget of tokens.
const USAGES: &[Wrong] = &[
    ("estimate: @learned", "E29 `estimate: learned` is not a valid value", "did you mean `learn`?"),
    (
        "estimate: @average",
        "E29 `estimate: average` is not a valid value",
        "use one of `max_tokens`, `learn`, or a number such as `4k tokens`",
    ),
    (
        "estimate: @4000",
        "E41 `estimate: 4000` has no unit",
        "write a number and a unit, such as `estimate: 4k tokens`",
    ),
    (
        "estimate: @4 usd",
        "E41 `estimate: 4 usd` is not a number of tokens",
        "write a number and a unit, such as `estimate: 4k tokens`",
    ),
    (
        "estimate: @4K tokens",
        "E41 `estimate: 4K tokens` is not an amount",
        "write `estimate: 4k tokens`",
    ),
    (
        "at_most: @500$",
        "E41 `at_most: 500$` is not an amount",
        "write a number and a unit, such as `at_most: 32k tokens`",
    ),
    (
        "at_most: @5k input_tokens",
        "E41 `at_most: 5k input_tokens` is not a number of tokens",
        "write a number and a unit, such as `at_most: 32k tokens`",
    ),
    (
        "estimate: @5k tokens, at_most: 4k tokens",
        "E32 `estimate: 5k tokens` is larger than `at_most: 4k tokens`",
        "use a smaller `estimate`",
    ),
    ("time_limit: @999ms", "E31 `time_limit: 999ms` is out of range", "use 1s to 24h"),
    ("time_limit: @86401s", "E31 `time_limit: 86401s` is out of range", "use 1s to 24h"),
    (
        "time_limit: @600",
        "E31 `time_limit: 600` is not a duration",
        "use whole numbers and `s`, `m` or `h`, such as `10m`",
    ),
    (
        "on_expiry: @cancel",
        "E29 `on_expiry: cancel` is not a valid value",
        "did you mean `release`?",
    ),
    (
        "prices: @prices.yaml",
        "E40 `prices: prices.yaml` is not the name of a table",
        "write the `name` of a table of the setting `tables`, such as `prices: models`",
    ),
    (
        "@prices: models",
        "W26 `prices` has no effect: no budget of this domain is of money",
        "remove `prices`",
    ),
    ("@price: models", "E09 unknown field `price`", "did you mean `prices`?"),
];

/// Asserts that a file has exactly these findings, one at each `@`, which is not part of the file.
fn assert_refused(marked: &str, wrong: &[(&str, &str)]) {
    let place = |(at, _): (usize, &str)| {
        let before = marked[..at].replace('@', "");
        let last = before.rsplit('\n').next().unwrap_or_default();
        format!("{}:{}", before.matches('\n').count() + 1, last.chars().count() + 1)
    };
    let places: Vec<_> = marked.match_indices('@').map(place).collect();
    assert_eq!(places.len(), wrong.len(), "{marked}");
    let expected = places.iter().zip(wrong);
    let expected: Vec<_> = expected
        .map(|(place, (message, fix))| (format!("{place} {message}"), (*fix).to_owned()))
        .collect();
    assert_eq!(found(&marked.replace('@', "")), expected, "{marked}");
}

#[test]
fn wrong_budgets_get_their_place_and_fix() {
    for (fields, message, fix) in BUDGETS {
        let text = file("prices: models", &format!("budget: {{{fields}}}"));
        assert_refused(&text, &[(message, fix)]);
    }
}

#[test]
fn wrong_usage_gets_its_place_and_fix() {
    for (fields, message, fix) in USAGES {
        let text = file(fields, "budget: {amount: 50k tokens, unit: day}");
        assert_refused(&text, &[(message, fix)]);
    }
}

const COLOCATED: &str = "domain: d
colocate: k
usage: {prices: p}
descriptors:
- key: k
  budget: {amount: 5 usd, unit: day}
  descriptors:
  - {key: l, budget: {@amount: 6 eur, unit: day}}
  - {key: m, budget: {amount: 6 tokens, unit: day}}
- {key: n, budget: {@amount: 6 usd, unit: day}, descriptors: [{key: k}]}
";

#[test]
fn budgets_of_a_domain_share_currency_and_slot() {
    let message = "E32 a budget of `eur`, but one of `usd` in a.yaml:6:12";
    let currency = (message, "use one currency in a domain: its prices have one currency");
    let message = "E32 this budget has no entry `k` (`colocate`), so it may be in another slot of \
                   a Redis Cluster than other budgets of a check";
    let fix = "move it below a descriptor with `key: k`, or remove `colocate`";
    assert_refused(COLOCATED, &[currency, (message, fix)]);
}

/// Fields that are right in themselves, but not together.
const DOMAINS: &[Wrong] = &[
    (
        "colocate: k\ndescriptors: [{key: k, budget: {@amount: 5 usd, unit: day}}]",
        "E38 a budget of `usd` needs the prices of models",
        "add `usage: {prices: TABLE}` at the top of the file, with a table of the setting `tables`",
    ),
    (
        "descriptors: [{key: k, quota_mode: true, budget: {@amount: 5 tokens, unit: day}}]",
        "E32 `budget` cannot be combined with `quota_mode: true`",
        "remove `quota_mode`: each budget of a check must allow it",
    ),
    (
        "colocate: k\nusage: {at_most: 5k tokens}\n\
         descriptors: [{key: @k, budget: {amount: 4k tokens, unit: day}}]",
        "W35 `amount: 4k tokens` is below `at_most: 5k tokens` of `usage`, so a reserve without a \
         number of tokens is denied",
        "use `at_most: 4k tokens` or less in `usage`, or a larger `amount`",
    ),
    (
        "colocate: k\nusage: {estimate: 5k tokens}\n\
         descriptors: [{key: @k, budget: {amount: 4k output_tokens, unit: day}}]",
        "W35 `amount: 4k output_tokens` is below `estimate: 5k tokens` of `usage`, so every reserve \
         is denied",
        "use `estimate: 4k tokens` or less in `usage`, or a larger `amount`",
    ),
    (
        "usage: {@estimate: learn}\ndescriptors: [{key: k}]",
        "W26 `usage` has no effect: no descriptor of this domain has a budget",
        "add a `budget`, or remove it",
    ),
    (
        "descriptors:\n- {key: j}\n- {key: @k, budget: {amount: 5 tokens, unit: day}}",
        "N40 in a Redis Cluster, all budgets of this domain are on one node",
        "to use several nodes, add `colocate: KEY` with a key of all descriptors that have budgets",
    ),
    (
        "@budget: {unit: day}\ndescriptors: [{key: k}]",
        "E10 `budget` is not valid in the top level of the file",
        "move it to a descriptor",
    ),
];

#[test]
fn budgets_that_contradict_their_domain_are_refused() {
    for (fields, message, fix) in DOMAINS {
        assert_refused(&format!("domain: d\n{fields}\n"), &[(message, fix)]);
    }
}

/// Other files of the domain may have the prices, or the budgets, but are unreadable.
#[test]
fn unreadable_files_cause_no_error_about_prices() {
    let money =
        "domain: d\ncolocate: k\ndescriptors: [{key: k, budget: {amount: 5 usd, unit: day}}]\n";
    let findings = load(&[("a.yaml", money), ("b.yaml", "domain: [")], true).unwrap_err();
    let codes: Vec<_> = findings.iter().map(|one| one.code.name()).collect();
    assert_eq!(codes, ["E01"]);
}
