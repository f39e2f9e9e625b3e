//! The words of other rate limiters, and our words for them.
//!
//! The sources are the documents of Kong (`rate-limiting`, `rate-limiting-advanced`), Traefik
//! (`rateLimit`, `inFlightReq`), NGINX (`limit_req`, `limit_conn`), Istio, Envoy's local rate limit
//! and Envoy Gateway, Limitador, express-rate-limit, rate-limiter-flexible, Bucket4j, gubernator
//! and fastapi-limiter.

use super::super::field_name::FieldName as Field;
use super::super::limits_block::LimitsBlock as Block;
use super::argument::Argument::{
    self, Count, FailClosed, FailOpen, Millis, Name, Prefix, Seconds, Strategy, Text,
};

/// Words of other products with one meaning.
pub(super) struct ForeignWord {
    /// The words in lower case, without `_`, `-` and `.`.
    pub(super) words: &'static [&'static str],
    pub(super) meaning: Meaning,
}

pub(super) enum Meaning {
    /// Fields of a block. The last one is the word's own field; those before it are needed with it.
    Fields(Block, &'static [(Field, Argument)]),
    /// A rate as text, such as `10r/s`.
    Rate,
    /// A setting of the service.
    Setting(&'static str),
    /// Something that Envoy's rate limit filter decides.
    Envoy(&'static str),
    /// A word without effect here, with the reason.
    Needless(&'static str),
}

use Meaning::{Envoy, Fields, Needless, Rate, Setting};

const fn row(words: &'static [&'static str], meaning: Meaning) -> ForeignWord {
    ForeignWord { words, meaning }
}

pub(super) static FOREIGN_WORDS: &[ForeignWord] = &[
    // The number of requests.
    row(
        &[
            "limit",
            "limits",
            "max",
            "maxvalue",
            "maxamount",
            "maxrequests",
            "maxhits",
            "average",
            "requests",
            "requestcount",
            "tokensperfill",
            "refillgreedy",
            "refilltokens",
            "tokens",
            "points",
            "times",
            "quota",
            "count",
            "threshold",
            "allow",
            "allowed",
            "hits",
            "amount",
            "replenishrate",
            "limitforperiod",
            "rpu",
            "numberofrequests",
            "calls",
            "numtokens",
        ],
        Fields(Block::RateLimit, &[(Field::RequestsPerUnit, Count)]),
    ),
    // The number of requests in one unit.
    row(
        &["second", "persecond", "rps", "qps", "requestspersecond", "ratepersecond"],
        Fields(Block::RateLimit, &[(Field::Unit, Text("second")), (Field::RequestsPerUnit, Count)]),
    ),
    row(
        &["minute", "perminute", "rpm", "requestsperminute"],
        Fields(Block::RateLimit, &[(Field::Unit, Text("minute")), (Field::RequestsPerUnit, Count)]),
    ),
    row(
        &["hour", "perhour", "rph", "requestsperhour"],
        Fields(Block::RateLimit, &[(Field::Unit, Text("hour")), (Field::RequestsPerUnit, Count)]),
    ),
    row(
        &["day", "perday", "rpd", "requestsperday"],
        Fields(Block::RateLimit, &[(Field::Unit, Text("day")), (Field::RequestsPerUnit, Count)]),
    ),
    row(
        &["month", "permonth", "requestspermonth"],
        Fields(Block::RateLimit, &[(Field::Unit, Text("month")), (Field::RequestsPerUnit, Count)]),
    ),
    row(
        &["year", "peryear", "requestsperyear"],
        Fields(Block::RateLimit, &[(Field::Unit, Text("year")), (Field::RequestsPerUnit, Count)]),
    ),
    row(&["rate", "ratelimitvalue", "limitexpression"], Rate),
    // The period.
    row(
        &[
            "window",
            "windowsize",
            "seconds",
            "period",
            "interval",
            "duration",
            "fillinterval",
            "validduration",
            "refillperiod",
            "refillinterval",
            "timewindow",
            "timeperiod",
            "windowseconds",
            "periodseconds",
            "intervalseconds",
            "bucketduration",
            "timeunit",
            "limitrefreshperiod",
            "refreshperiod",
            "every",
            "windowlength",
        ],
        Fields(Block::RateLimit, &[(Field::Per, Seconds)]),
    ),
    row(
        &["windowms", "durationms", "periodms", "intervalms", "ttl", "milliseconds"],
        Fields(Block::RateLimit, &[(Field::Per, Millis)]),
    ),
    // The way to count.
    row(
        &[
            "algorithm",
            "policy",
            "windowtype",
            "ratelimitalgorithm",
            "refillspeed",
            "type",
            "limiter",
            "ratelimiter",
            "refillstrategy",
        ],
        Fields(Block::RateLimit, &[(Field::Strategy, Strategy)]),
    ),
    row(
        &["tokenbucket", "leakybucket", "bucket", "bandwidth", "bandwidths"],
        Fields(Block::RateLimit, &[(Field::Strategy, Text("gcra"))]),
    ),
    row(
        &["slidingwindow", "rollingwindow", "movingwindow"],
        Fields(Block::RateLimit, &[(Field::Strategy, Text("sliding_window"))]),
    ),
    row(&["fixedwindow"], Fields(Block::RateLimit, &[(Field::Strategy, Text("fixed_window"))])),
    row(
        &[
            "capacity",
            "maxtokens",
            "burstcapacity",
            "bucketsize",
            "maxburst",
            "burstsize",
            "initialcapacity",
        ],
        Fields(Block::RateLimit, &[(Field::Strategy, Text("gcra")), (Field::Burst, Count)]),
    ),
    row(&["nodelay", "delay", "maxdelay"], Needless("a rate limit never delays a request")),
    // The decision without the store.
    row(
        &[
            "faulttolerant",
            "passonstoreerror",
            "failopen",
            "ignoreerrors",
            "skiponerror",
            "allowonerror",
            "onbackendfailure",
        ],
        Fields(Block::RateLimit, &[(Field::OnStoreFailure, FailOpen)]),
    ),
    row(
        &["failclosed", "failuremodedeny", "denyonerror"],
        Fields(Block::RateLimit, &[(Field::OnStoreFailure, FailClosed)]),
    ),
    row(
        &["syncrate", "behavior", "batching", "async"],
        Needless("each check counts at once; for fewer calls, `mode: leased`"),
    ),
    // Requests in flight.
    row(
        &[
            "amount",
            "max",
            "maxconcurrent",
            "maxconcurrency",
            "maxinflight",
            "maxrequests",
            "maxconnections",
            "maxparallel",
            "permits",
            "initiallimit",
            "limitconn",
            "inflight",
            "maxconcurrentcalls",
            "maxconcurrentrequests",
            "concurrent",
        ],
        Fields(Block::Concurrency, &[(Field::Limit, Count)]),
    ),
    row(&["policy", "limiter"], Fields(Block::Adaptive, &[(Field::Algorithm, Text("gradient"))])),
    row(&["minlimit", "minconcurrency"], Fields(Block::Adaptive, &[(Field::Min, Text("1"))])),
    row(&["maxlimit"], Fields(Block::Adaptive, &[(Field::Max, Text("1000"))])),
    row(
        &[
            "inflightreq",
            "limitconn",
            "maxconcurrent",
            "maxconcurrency",
            "maxinflight",
            "concurrencylimit",
        ],
        Fields(Block::Descriptor, &[(Field::Concurrency, Text("{limit: 100}"))]),
    ),
    // The whole limit.
    row(
        &[
            "ratelimit",
            "ratelimits",
            "throttle",
            "throttling",
            "limitreq",
            "limitreqzone",
            "ratelimiting",
            "quotas",
            "rules",
            "rule",
            "limitrules",
            "policies",
            "descriptor",
            "localratelimit",
            "global",
            "ratelimitconfig",
        ],
        Fields(
            Block::Descriptor,
            &[(Field::RateLimit, Text("{unit: minute, requests_per_unit: 100}"))],
        ),
    ),
    row(
        &["children", "nested", "subdescriptors"],
        Fields(Block::Descriptor, &[(Field::Descriptors, Text("[{key: path}]"))]),
    ),
    // The requests that a limit counts together.
    row(
        &[
            "limitby",
            "identifier",
            "zone",
            "uniquekey",
            "keygenerator",
            "variables",
            "variable",
            "sourcecriterion",
            "cachekey",
            "dimension",
            "dimensions",
            "by",
            "groupby",
            "header",
            "headername",
            "requestheadername",
            "keyprefix",
            "aggregateby",
            "aggregatekey",
        ],
        Fields(Block::Descriptor, &[(Field::Key, Name("api_key"))]),
    ),
    row(
        &["valueregex", "valueprefix", "regex", "pattern", "prefix", "valuepattern", "pathprefix"],
        Fields(Block::Descriptor, &[(Field::Value, Prefix)]),
    ),
    row(
        &["values", "valuelist", "anyof"],
        Fields(Block::Descriptor, &[(Field::Value, Name("gold"))]),
    ),
    row(
        &[
            "dryrun",
            "limitreqdryrun",
            "shadow",
            "reportonly",
            "logonly",
            "observe",
            "monitor",
            "shadowed",
            "filterenforced",
            "enabled",
            "disabled",
            "monitoronly",
        ],
        Fields(Block::Descriptor, &[(Field::ShadowMode, Text("true"))]),
    ),
    row(
        &[
            "conditions",
            "condition",
            "match",
            "matches",
            "entries",
            "actions",
            "clientselectors",
            "skip",
            "executecondition",
            "expression",
        ],
        Needless("the proxy's actions build descriptors; `key` and `value` select them here"),
    ),
    row(
        &["namespace", "service", "domains", "domainname"],
        Fields(Block::File, &[(Field::Domain, Name("shop"))]),
    ),
    // Calendars.
    row(
        &["timezone", "tz", "zone", "location"],
        Fields(Block::Calendar, &[(Field::TimeZone, Text("UTC"))]),
    ),
    row(
        &["startday", "start", "weekstart", "resetday", "anchor"],
        Fields(Block::Calendar, &[(Field::StartsOn, Text("1"))]),
    ),
    row(
        &["starttime", "starthour", "startshour", "resettime", "resethour", "resetat", "hour"],
        Fields(Block::Calendar, &[(Field::StartsAt, Text("12:00"))]),
    ),
    // The settings of the service.
    row(&["retryafter", "retryafterheader", "retryafterjittermax"], Setting("answers.retry_after")),
    row(
        &[
            "headers",
            "standardheaders",
            "legacyheaders",
            "hideclientheaders",
            "enablexratelimitheaders",
            "sendheaders",
            "responseheaders",
        ],
        Setting("answers.headers"),
    ),
    row(
        &["redis", "store", "storage", "backend", "redishost", "redisurl", "dictionaryname"],
        Setting("store.url"),
    ),
    // Envoy's part.
    row(
        &[
            "status",
            "statuscode",
            "errorcode",
            "limitreqstatus",
            "httpstatuscode",
            "rejectedcode",
            "ratelimitedstatus",
            "responsestatus",
        ],
        Envoy("`rate_limited_status`"),
    ),
    row(
        &["body", "message", "errormessage", "responsebody", "responsemessage"],
        Envoy("`response_headers_to_add`, and its connection manager `local_reply_config`"),
    ),
    row(&["timeout", "deadline"], Envoy("`timeout`")),
    row(&["hitsaddend", "cost", "weight"], Envoy("`hits_addend` in its actions")),
    // Words that need no replacement.
    row(
        &["priority", "order", "precedence"],
        Needless("the most specific descriptor matches first"),
    ),
    row(
        &["description", "comment", "notes", "id", "uuid", "version", "labels", "statprefix"],
        Needless("write a comment, or put your own data into `metadata`"),
    ),
];
