//! Settings whose value is one keyword of a closed list, as enums.

use serde_json::{Value as Json, json};

use super::value::Value;

/// Defines an enum whose variants each have a keyword.
macro_rules! choice {
    (
        $(#[$meta:meta])* $name:ident {
            $( $(#[$doc:meta])+ $variant:ident = $word:literal, )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $( $(#[$doc])+ $variant, )+ }

        impl $name {
            /// Returns the keyword of this variant.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self { $( Self::$variant => $word, )+ }
            }
        }

        impl Value for $name {
            const CHOICES: &'static [&'static str] = &[$($word),+];
            fn read(texts: &[&str]) -> Option<Self> {
                match texts { $( [$word] => Some(Self::$variant), )+ _ => None }
            }
            fn accepts() -> String {
                Self::CHOICES.join(" | ")
            }
            fn show(&self) -> String {
                self.word().to_owned()
            }
            fn schema() -> Json {
                json!({"type": "string", "enum": Self::CHOICES})
            }
        }
    };
}

choice! {
    /// The format of counter keys.
    KeyFormat {
        /// Unambiguous keys: two different counters never have the same key.
        Own = "own",
        /// The keys that envoyproxy/ratelimit uses, byte for byte.
        Compat = "compat",
    }
}
choice! {
    /// The crash safety of the tables in PostgreSQL.
    PostgresDurability {
        /// Counters survive a crash of the server.
        Full = "full",
        /// A crash or a failover of the server resets all counters.
        Unlogged = "unlogged",
    }
}
choice! {
    /// Whether a proxy is in front of several Redis servers.
    RedisProxy {
        /// There is a proxy if the server does not know `SCRIPT` or `INFO`.
        Auto = "auto",
        /// There is a proxy: each call has one counter.
        On = "on",
        /// There is none.
        Off = "off",
    }
}

/// The use of prepared statements in PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PostgresPrepare {
    /// Prepare, unless a pooler gives each transaction another server connection.
    Auto,
    /// Prepare always.
    On,
    /// Never prepare.
    Off,
}

impl Value for PostgresPrepare {
    const CHOICES: &'static [&'static str] = &["auto", "true", "false"];
    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            ["auto"] => Some(Self::Auto),
            ["true"] => Some(Self::On),
            ["false"] => Some(Self::Off),
            _ => None,
        }
    }
    fn accepts() -> String {
        Self::CHOICES.join(" | ")
    }
    fn show(&self) -> String {
        match self {
            Self::Auto => "auto".to_owned(),
            Self::On => "true".to_owned(),
            Self::Off => "false".to_owned(),
        }
    }
    fn schema() -> Json {
        json!({"type": ["string", "boolean"], "enum": ["auto", true, false]})
    }
}

choice! {
    /// The clients for which proxies' limits (`sluicegate.v1.Leases`) are served.
    #[derive(Default)]
    ProxyAccess {
        /// Clients with a verified certificate, loopback addresses and the Unix socket.
        #[default]
        Auto = "auto",
        /// All clients that reach the gRPC port.
        On = "on",
        /// No clients.
        Off = "off",
    }
}
choice! {
    /// The decision of a charge to a new key when the memory store is full.
    WhenFull {
        /// Deny.
        Deny = "deny",
        /// Allow, without counting the hits.
        Allow = "allow",
    }
}
choice! {
    /// The log level: less severe log lines are not written.
    LogLevel {
        /// Only failures.
        Error = "error",
        /// Failures, and conditions that need an operator's attention.
        Warn = "warn",
        /// All of `warn`, and events such as a reload.
        Info = "info",
        /// All of `info`, and the reasons for decisions.
        Debug = "debug",
        /// All log lines.
        Trace = "trace",
    }
}
choice! {
    /// The format of log lines.
    LogFormat {
        /// Text for people.
        Text = "text",
        /// One JSON object on each line.
        Json = "json",
        /// One JSON object on each line, with the keys of envoyproxy/ratelimit: `@timestamp`,
        /// `@message` and `level`.
        Compat = "compat",
    }
}
choice! {
    /// The form of descriptor values in log lines, in events and on admin pages.
    #[derive(Default)]
    DescriptorValues {
        /// The first 64 bytes.
        #[default]
        Shown = "shown",
        /// A hash of each value. The hash has no secret, so guesses of a value can be tested.
        Hashed = "hashed",
        /// A `*` instead of each value. Top keys are not counted.
        Hidden = "hidden",
    }
}
choice! {
    /// The rate limit headers that responses contain.
    ResponseHeaders {
        /// No rate limit headers.
        None = "none",
        /// The three headers of envoyproxy/ratelimit: limit, remaining hits and reset.
        Compat = "compat",
        /// `RateLimit` and `RateLimit-Policy` of the IETF draft.
        Draft = "draft",
        /// Both envoyproxy/ratelimit's and the IETF draft's headers.
        All = "all",
    }
}
choice! {
    /// The places in which a denial names the path of its rule.
    DeniedBy {
        /// In no place.
        None = "none",
        /// In the header `x-sluicegate-denied-by`.
        Header = "header",
        /// In the key `denied_by` of dynamic metadata.
        Metadata = "metadata",
        /// In the header and in dynamic metadata.
        Both = "both",
    }
}
choice! {
    /// The effect of an override: a limit that the request carries.
    Overrides {
        /// The override replaces the configured limit.
        Replace = "replace",
        /// The override is ignored.
        Ignore = "ignore",
        /// The override applies only if it is lower than the configured limit.
        Lower = "lower",
    }
}
choice! {
    /// The names under which metrics are exported.
    MetricNames {
        /// Sluicegate's own names.
        Own = "own",
        /// The names of envoyproxy/ratelimit.
        Compat = "compat",
        /// Both kinds of names.
        All = "all",
    }
}
choice! {
    /// The destination of envoyproxy/ratelimit's statistics.
    StatsSink {
        /// Statistics are not sent.
        None = "none",
        /// StatsD over TCP.
        Statsd = "statsd",
        /// StatsD over UDP.
        StatsdUdp = "statsd_udp",
        /// DogStatsD over UDP, with native tags.
        Dogstatsd = "dogstatsd",
        /// Standard error, with one JSON object on each line.
        Log = "log",
    }
}
choice! {
    /// The OTLP protocol.
    OtlpProtocol {
        /// gRPC.
        Grpc = "grpc",
        /// Protobuf over HTTP.
        Http = "http/protobuf",
    }
}
choice! {
    /// The signals that are exported by OTLP.
    OtlpExport {
        /// Traces and metrics.
        All = "all",
        /// Traces only.
        Traces = "traces",
        /// Nothing.
        None = "none",
    }
}
