//! Settings whose value is a word from a closed list.

use serde_json::{Value as Json, json};

use super::value::Value;

/// Defines an enum with one word for each variant.
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
            /// Returns the word for this variant.
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
    CounterKeys {
        /// Unambiguous keys: different counters never share one.
        Injective = "injective",
        /// The keys of envoyproxy/ratelimit, byte for byte.
        Envoyproxy = "envoyproxy",
    }
}
choice! {
    /// The decision for a new key when the store is full.
    WhenFull {
        /// Deny.
        Deny = "deny",
        /// Allow without counting.
        Allow = "allow",
    }
}
choice! {
    /// The lowest level of log lines that are written.
    LogLevel {
        /// Failures only.
        Error = "error",
        /// Also conditions that need attention.
        Warn = "warn",
        /// Also events.
        Info = "info",
        /// Also reasons for decisions.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }
}
choice! {
    /// The format of log lines.
    LogFormat {
        /// Text for people.
        Text = "text",
        /// One JSON object a line.
        Json = "json",
        /// One JSON object a line, with `@timestamp`, `@message` and `level`.
        Ratelimit = "reference",
    }
}
choice! {
    /// The rate limit headers in a response.
    ResponseHeaders {
        /// None.
        None = "none",
        /// The three headers of envoyproxy/ratelimit.
        Ratelimit = "reference",
        /// `RateLimit` and `RateLimit-Policy` of the IETF draft.
        Draft = "draft",
        /// Both.
        All = "all",
    }
}
choice! {
    /// The effect of a limit in a request.
    Overrides {
        /// It replaces the configured limit.
        Allow = "allow",
        /// It is ignored.
        Deny = "deny",
        /// It only tightens the configured limit.
        Max = "max",
    }
}
choice! {
    /// The names of the metrics.
    MetricNames {
        /// The names of this service.
        Own = "own",
        /// The names of envoyproxy/ratelimit.
        Ratelimit = "reference",
        /// Both.
        All = "all",
    }
}
choice! {
    /// The destination of envoyproxy/ratelimit's statistics.
    StatsSink {
        /// No destination.
        None = "none",
        /// StatsD.
        Statsd = "statsd",
        /// DogStatsD, with native tags.
        Dogstatsd = "dogstatsd",
        /// Standard error, one JSON object a line.
        Log = "log",
    }
}
choice! {
    /// The transport to StatsD.
    StatsProtocol {
        /// TCP.
        Tcp = "tcp",
        /// UDP.
        Udp = "udp",
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
    /// The effect of SIGHUP.
    OnHangup {
        /// Reloads the limits.
        Reload = "reload",
        /// Stops the process as SIGTERM does.
        Stop = "stop",
    }
}
