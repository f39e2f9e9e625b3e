//! The kinds of findings, with their severity, title and fix: a closed list.
//!
//! Guarantees:
//! - The first character of a name determines the severity.

use std::fmt;

use serde::Serialize;

/// The severity of a diagnostic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The file is valid. The finding explains a consequence of its content.
    Note,
    /// The file loads, but probably does not mean what its author intended.
    Warning,
    /// The file does not load.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Error => "error",
        })
    }
}

/// Defines [`Code`] from a list of variant, stable name, title and fix. The first letter of a name
/// is the severity: E error, W warning, N note.
macro_rules! codes {
    ($($variant:ident = $name:ident $title:literal $fix:literal,)*) => {
        /// The kinds of findings: a closed list.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $(#[doc = concat!(stringify!($name), ": ", $title, ".")] $variant,)*
        }

        impl Code {
            /// All codes, in the order of the list.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Returns the stable name of the code, for example `E01`.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($name),)* }
            }

            /// Returns a short description of the code.
            #[must_use]
            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)* }
            }

            /// Returns the usual fix, as Markdown with links from `docs/reference`.
            #[must_use]
            pub const fn fix(self) -> &'static str {
                match self { $(Self::$variant => $fix,)* }
            }
        }
    };
}

codes! {
    Syntax = E01 "invalid YAML"
        "see the position; common causes: a tab, an unclosed quote, an unquoted `*`",
    Encoding = E02 "an invalid encoding or character"
        "save the file as UTF-8, without control characters",
    TooLarge = E03 "the file is too large"
        "split it; the maximum is 64 MiB",
    TooDeep = E04 "the file is nested too deeply"
        "use at most 255 levels of descriptors",
    EndlessAlias = E05 "an alias inside its own block, or too many aliases"
        "write the block again instead of `*anchor`",
    BadMerge = E06 "a merge key (`<<`) without a mapping"
        "write the alias of a mapping: `<<: *anchor`",
    TagMisfit = E07 "a tag that does not match its value"
        "remove the tag (`!!int`, `!!bool`, …)",
    KeyNotText = E08 "a key that is not text"
        "use the name of a field",
    UnknownKey = E09 "an unknown field"
        "write the suggested line; words of other rate limiters get ours; own data goes into `metadata`",
    MisplacedField = E10 "a field in the wrong block"
        "write the suggested line, or move it as suggested, for example `burst` into `rate_limit`",
    NotMappingInList = E11 "a list item that is not a mapping"
        "write `- key: NAME`; in `replaces`, `- name: NAME`",
    FractionOrTooBig = E12 "a fraction, or an integer of more than 64 bits"
        "write a whole number (`1000` instead of `1e3`), or quote text: `\"1.5\"`",
    TypeMismatch = E13 "a value of the wrong type"
        "write `5` instead of `\"5\"`, and lists with `- `",
    MetadataNotText = E14 "binary metadata that is not UTF-8"
        "write text, or the bytes as base64 text without `!!binary`",

    IgnoredKey = W01 "a field that its block ignores"
        "move it as suggested, or remove it",
    RepeatedKey = W02 "a duplicate key in one block"
        "remove one of them; the last one counts",
    MergeOverwrites = W03 "a merge key (`<<`) that overwrites fields above it"
        "move `<<` to the top of the block",
    NotFinite = W04 "infinity or NaN in metadata"
        "write a finite number, or quote it; otherwise `/json` fails with 500",
    BinaryNotText = W05 "a binary value that is not UTF-8"
        "write the text itself",
    SecondDocument = W06 "a second YAML document, which is ignored"
        "move it to another file",

    EmptyDomain = E20 "a file without a domain"
        "add `domain: NAME`",
    DuplicateDomain = E21 "a domain in two files, without `limits.merge_domains`"
        "merge the files, or set `limits.merge_domains`",
    EmptyKey = E22 "a descriptor without a key"
        "add `key: NAME`, the key that Envoy sends",
    DuplicateDescriptor = E23 "two descriptors with the same composite key"
        "merge them, rename a key, or use [`rate_limits`](../limits.md#two-limits-on-the-same-traffic)",
    UnknownUnit = E24 "a missing or unknown unit"
        "add `unit: minute` or `per: 90s`",
    UnlimitedWithLimit = E25 "`unlimited` together with fields of a limit"
        "remove `unlimited`, or the other fields",
    EmptyReplaces = E26 "an empty name in `replaces`"
        "write `- name: NAME`",
    ReplacesItself = E27 "a rule that replaces itself"
        "remove the name",
    ShareWithoutWildcard = E28 "`share_threshold` on a descriptor without a `*`"
        "add a `*` (`value: /checkout/*`), or remove `share_threshold`",
    UnknownValue = E29 "an unknown value"
        "use a value of the list in the message, such as `strategy: gcra`",
    BadDuration = E31 "an invalid duration"
        "write for example `90s` or `1h30m`, at least `1ms`",
    Contradiction = E32 "fields or values that cannot be combined"
        "remove one of them, such as `unit` or `per`; for `burst`, use `strategy: gcra`",
    ZeroBurst = E33 "a burst of 0, which denies everything"
        "use `burst: 1` or more",
    ZeroRequests = E34 "a limit of 0 without `strategy: fixed_window`"
        "use 1 or more, or `strategy: fixed_window`",
    DoesNotFit = E35 "a limit or period too large to count exactly"
        "use the maximum in the message, or a shorter period",
    BadCalendar = E36 "a calendar with an invalid time zone, start or unit"
        "write for example `time_zone: Europe/Berlin`; see [calendars](../limits.md#calendars)",
    TooMany = E37 "too many descriptors in one domain"
        "split it into several domains",
    OutOfRange = E38 "a missing field, or a number out of range"
        "use the range in the message, such as `max_overshoot: 2%`",
    BadModuleConfig = E39 "an invalid config of Sluicegate's filter inside Envoy"
        "see the message",
    BadTableColumn = E40 "an invalid `from`, `by` or `prices`"
        "write `from: TABLE.COLUMN`, and in `by` the key of an entry of the rule; see the \
         [guide](../guides/limit-each-customer.md)",
    BadAmount = E41 "an invalid amount of tokens or money"
        "write a number and a unit, such as `2M tokens` or `500 usd`; see [budgets](../limits.md#budgets)",

    ShadowedPattern = W20 "a pattern that never matches"
        "move it up: `/cart/*` before `/c*`",
    ShadowedKey = W21 "a rule without a value that never matches"
        "narrow the pattern (`/c*` instead of `*`), or remove the rule",
    AmbiguousKey = W22 "a rule that also matches entries of another key"
        "rename one key: [patterns](../limits.md#patterns)",
    StarInKey = W23 "a `*` in a key, which also matches the value"
        "move the `*` into `value`",
    LargeBurst = W24 "a burst of more than ten times `requests_per_unit`"
        "lower `burst`, or remove it",
    CoarseTick = W25 "hits that return in steps of more than 1 % of the burst"
        "use a larger `burst` or a smaller `requests_per_unit`",
    NoEffect = W26 "a field without effect"
        "move it beside `rate_limit`; for `max_overshoot`, add `mode: leased`; for `usage`, add a `budget`",
    UnknownReplaces = W27 "an unknown rule name in `replaces`"
        "add `name: NAME` to the rule to replace",
    DeniesAll = W28 "a missing `requests_per_unit`, which denies every hit"
        "add `requests_per_unit: 600`, or 0 to deny everything",
    UnknownColocate = W29 "an unknown key in `colocate`"
        "use a key of the descriptors",
    LongExposure = W30 "a fleet-wide concurrency limit with a long or missing `max_duration`"
        "set `max_duration` to the route timeout (at most `5m`), or use `mode: local`",
    SmallShares = W31 "a concurrency limit too small for `mode: shared`"
        "use [`mode: strict`](../guides/share-a-concurrency-limit.md#mode-strict) up to `limit: 10`",
    CostlyStrict = W32 "a large concurrency limit with `mode: strict`"
        "use `mode: shared` from `limit: 1000`",
    LiteralValue = W33 "a network, template, regular expression or list as a value"
        "use a [pattern](../limits.md#patterns), one descriptor for each value, or another key",
    Unloadable = W34 "a module that Envoy closes with its last filter"
        "set `do_not_close: true` in `dynamic_module_config`",
    SmallBudget = W35 "a budget below the estimate of a request"
        "lower `at_most` or `estimate` in `usage`, or raise `amount`; see [budgets](../limits.md#budgets)",
    InventedCustomers = W36 "fair parts for customers that callers may invent"
        "add `weight: TABLE.COLUMN` to `fair`, and let only the proxy set the entry; see \
         [classes and fair parts](../limits.md#classes-and-fair-parts)",

    SeveralSlots = N40 "how a Redis Cluster charges an `all_or_nothing` domain, or budgets"
        "none needed; see [`colocate`](../limits.md#several-descriptors-in-one-check)",
    LeaseForecast = N41 "the expected store calls of a leased limit"
        "none needed; see [leases](../guides/lease-limits.md)",
    FailsOpen = N42 "an Envoy filter that fails open"
        "see [fail-open](../guides/share-a-concurrency-limit.md#fail-open-in-envoy)",
    FailsClosed = N43 "an Envoy filter that fails closed"
        "none needed; see [fail-open](../guides/share-a-concurrency-limit.md#fail-open-in-envoy)",
    UnreadTimeout = N44 "a timeout that Envoy's rate limit filter does not read"
        "write the filter's own `timeout`, beside `rate_limit_service`",
}

impl Code {
    /// Returns the severity of all findings with this code.
    #[must_use]
    pub const fn severity(self) -> Severity {
        match self.name().as_bytes() {
            [b'N', ..] => Severity::Note,
            [b'W', ..] => Severity::Warning,
            _ => Severity::Error,
        }
    }
}
