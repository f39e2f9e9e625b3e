//! Settings whose value is one word of a closed list.

use serde_json::{Value as Json, json};

use super::value::Value;

/// A closed list of words, each with its meaning.
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
            /// The word that is written for it.
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
    /// How a counter's key is written.
    CounterKeys {
        /// Two different counters never share a key.
        Injective = "injective",
        /// The reference's keys, byte for byte.
        Envoyproxy = "envoyproxy",
    }
}
choice! {
    /// What a new key gets when there is no room for it.
    WhenFull {
        /// A denial.
        Deny = "deny",
        /// A pass, uncounted.
        Allow = "allow",
    }
}
choice! {
    /// The least important log line that is written.
    LogLevel {
        /// Only what failed.
        Error = "error",
        /// And what a person should look at.
        Warn = "warn",
        /// And what happened.
        Info = "info",
        /// And why.
        Debug = "debug",
        /// And everything else.
        Trace = "trace",
    }
}
choice! {
    /// How a log line is written.
    LogFormat {
        /// For people.
        Text = "text",
        /// One JSON object a line.
        Json = "json",
        /// One JSON object a line, with `@timestamp`, `@message` and `level`.
        Reference = "reference",
    }
}
choice! {
    /// Which rate limit headers an answer carries.
    ResponseHeaders {
        /// None.
        None = "none",
        /// The reference's three.
        Reference = "reference",
        /// `RateLimit` and `RateLimit-Policy` of the IETF draft.
        Draft = "draft",
        /// Both.
        All = "all",
    }
}
choice! {
    /// What a limit carried in a request may do.
    Overrides {
        /// Replace the configured one.
        Allow = "allow",
        /// Nothing: it is ignored.
        Deny = "deny",
        /// Only tighten the configured one.
        Max = "max",
    }
}
choice! {
    /// Whose metrics are shown.
    MetricNames {
        /// This service's.
        Own = "own",
        /// The reference's.
        Reference = "reference",
        /// Both.
        All = "all",
    }
}
choice! {
    /// Where the reference's statistics are sent.
    StatsSink {
        /// Nowhere.
        None = "none",
        /// To StatsD.
        Statsd = "statsd",
        /// To DogStatsD, with real tags.
        Dogstatsd = "dogstatsd",
        /// To standard error, one JSON object a line.
        Log = "log",
    }
}
choice! {
    /// How StatsD is spoken to.
    StatsProtocol {
        /// A connection.
        Tcp = "tcp",
        /// Datagrams.
        Udp = "udp",
    }
}
choice! {
    /// How OTLP is spoken.
    OtlpProtocol {
        /// Over gRPC.
        Grpc = "grpc",
        /// In protobuf over HTTP.
        Http = "http/protobuf",
    }
}
choice! {
    /// What SIGHUP does.
    OnHangup {
        /// Loads the limits anew.
        Reload = "reload",
        /// Ends the process as SIGTERM does.
        Stop = "stop",
    }
}
