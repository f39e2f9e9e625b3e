//! Exports spans and metrics to the collector of the `OTEL_*` variables, by OTLP over gRPC or HTTP.
//!
//! Guarantees:
//! - Without `OTEL_EXPORTER_OTLP_ENDPOINT` or its variant for a signal, nothing runs.
//! - A slow or unavailable collector loses spans, but never delays a reply.
//! - Queues are bounded.
//! - Unsupported protocols and exporters are reported, and the other signal is still exported.
//!
//! Not covered:
//! - OTLP in JSON.
//! - The buckets of histograms: only count and sum are exported.

mod call;
mod shared;

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Meter, MeterProvider as _};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{
    MetricExporter, SpanExporter, WithExportConfig as _, WithHttpConfig as _, WithTonicConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};

use super::trace::{self, Propagators};
use call::{Files, Http};
use shared::{Reader, Shared};

const PATIENCE: Duration = Duration::from_secs(10);
/// The timeout of the last export of each signal during shutdown.
const GOODBYE: Duration = Duration::from_secs(2);

/// A function that renders the metrics page in Prometheus' text format.
pub type Page = Arc<dyn Fn() -> String + Send + Sync>;

/// Returns the value of an environment variable, or `None` if it is unset or empty.
pub type Variable<'v> = &'v dyn Fn(&str) -> Option<String>;

/// The transport of OTLP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// OTLP over gRPC.
    #[default]
    Grpc,
    /// OTLP in protobuf over HTTP.
    Http,
}

/// The values for unset `OTEL_*` variables.
#[derive(Clone, Debug)]
pub struct Defaults {
    /// The transport of OTLP.
    pub protocol: Protocol,
    /// Enables the export of metrics.
    pub counts: bool,
    /// The OpenTelemetry service name.
    pub service: String,
    /// Further resource attributes.
    pub attributes: Vec<(String, String)>,
    /// The sampled fraction of traces without a sampling decision of the caller, 0 to 1.
    pub sampled: f64,
}

impl Default for Defaults {
    fn default() -> Self {
        let service = "sluicegate".to_owned();
        let (protocol, attributes) = (Protocol::Grpc, Vec::new());
        Self { protocol, counts: true, service, attributes, sampled: 1.0 }
    }
}

/// The exporter settings of one signal.
#[derive(Clone, Debug)]
struct Way {
    protocol: Protocol,
    endpoint: String,
    files: Files,
    patience: Duration,
}

/// The running exporters.
#[derive(Debug, Default)]
pub struct Told {
    spans: Option<SdkTracerProvider>,
    counts: Option<SdkMeterProvider>,
}

/// Starts the exporters that the environment configures. Must run within a Tokio runtime.
///
/// Also returns an error message for each signal that cannot be exported.
#[must_use]
pub fn start(variable: Variable<'_>, defaults: &Defaults, page: &Page) -> (Told, Vec<String>) {
    let mut refused = Vec::new();
    if variable("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true")) {
        return (Told::default(), refused);
    }
    let mut wanted = |signal| match wanted(signal, variable, defaults) {
        Ok(wanted) => wanted,
        Err(why) => {
            refused.push(why);
            None
        }
    };
    let (spans, counts) = (wanted("TRACES"), wanted("METRICS"));
    let resource = resource(variable, defaults);
    let mut told = Told::default();
    if let Some(way) = spans {
        let spans = tell_spans(&way, variable, defaults.sampled, resource.clone());
        told.spans = keep(spans, &mut refused);
    }
    if let Some(way) = counts {
        told.counts = keep(tell_counts(&way, page, resource), &mut refused);
    }
    (told, refused)
}

fn keep<T>(told: Result<T, String>, refused: &mut Vec<String>) -> Option<T> {
    told.map_err(|why| refused.push(why)).ok()
}

/// Reads the settings of `signal`. Returns `None` if it is not exported.
fn wanted(
    signal: &str,
    variable: Variable<'_>,
    defaults: &Defaults,
) -> Result<Option<Way>, String> {
    let own = |name: &str| variable(&format!("OTEL_EXPORTER_OTLP_{signal}_{name}"));
    let either = |name: &str| own(name).or_else(|| variable(&format!("OTEL_EXPORTER_OTLP_{name}")));
    let exporter = format!("OTEL_{signal}_EXPORTER");
    match variable(&exporter).as_deref() {
        None if signal == "METRICS" && !defaults.counts => return Ok(None),
        None | Some("otlp") => {}
        Some("none") => return Ok(None),
        Some(other) => return Err(format!("{exporter} is {other}; this tells otlp or none")),
    }
    let Some(endpoint) = either("ENDPOINT") else { return Ok(None) };
    let protocol = match either("PROTOCOL").as_deref() {
        None => defaults.protocol,
        Some("grpc") => Protocol::Grpc,
        Some("http/protobuf") => Protocol::Http,
        Some(other) => {
            let spoken = "OTEL_EXPORTER_OTLP_PROTOCOL is grpc or http/protobuf";
            return Err(format!("{signal}: OTLP over {other} is not spoken here; {spoken}"));
        }
    };
    let identity = match (either("CLIENT_CERTIFICATE"), either("CLIENT_KEY")) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => return Err(format!("{signal}: a client's certificate is good with its key only")),
    };
    let patience = either("TIMEOUT").and_then(|text| text.parse().ok());
    Ok(Some(Way {
        protocol,
        endpoint,
        files: Files { certificate: either("CERTIFICATE"), identity },
        patience: patience.map_or(PATIENCE, Duration::from_millis),
    }))
}

/// Builds the resource. The `OTEL_*` variables take precedence over the settings.
fn resource(variable: Variable<'_>, defaults: &Defaults) -> Resource {
    let attributes = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let names = attributes.split(',').filter_map(|pair| pair.split_once('='));
    let said: Vec<&str> = names.map(|(name, _)| name.trim()).collect();
    let mut own = defaults.attributes.clone();
    own.push(("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()));
    if variable("OTEL_SERVICE_NAME").is_none() {
        own.push(("service.name".to_owned(), defaults.service.clone()));
    }
    own.retain(|(name, _)| !said.contains(&&**name));
    let own = own.into_iter().map(|(name, text)| KeyValue::new(name, text));
    Resource::builder().with_attributes(own).build()
}

fn tell_spans(
    way: &Way,
    variable: Variable<'_>,
    sampled: f64,
    resource: Resource,
) -> Result<SdkTracerProvider, String> {
    let propagators = variable("OTEL_PROPAGATORS");
    let propagators = Propagators::read(propagators.as_deref())
        .ok_or("OTEL_PROPAGATORS: tracecontext, b3 and b3multi are read, and baggage and none")?;
    let exporter = match (way.protocol, way.channel()?) {
        (Protocol::Http, _) => {
            let http = SpanExporter::builder().with_http().with_http_client(way.client()?);
            http.with_protocol(opentelemetry_otlp::Protocol::HttpBinary).build()
        }
        (Protocol::Grpc, None) => with_grpc(SpanExporter::builder().with_tonic()).build(),
        (Protocol::Grpc, Some(channel)) => {
            with_grpc(SpanExporter::builder().with_tonic()).with_channel(channel).build()
        }
    };
    let exporter = exporter.map_err(|error| format!("spans cannot be told: {error}"))?;
    let mut provider = SdkTracerProvider::builder();
    if variable("OTEL_TRACES_SAMPLER").is_none() {
        let part = Sampler::TraceIdRatioBased(sampled);
        provider = provider.with_sampler(Sampler::ParentBased(Box::new(part)));
    }
    let provider = provider.with_batch_exporter(exporter).with_resource(resource).build();
    trace::tell(provider.tracer("sluicegate"), propagators);
    Ok(provider)
}

fn tell_counts(way: &Way, page: &Page, resource: Resource) -> Result<SdkMeterProvider, String> {
    let exporter = match (way.protocol, way.channel()?) {
        (Protocol::Http, _) => {
            let http = MetricExporter::builder().with_http().with_http_client(way.client()?);
            http.with_protocol(opentelemetry_otlp::Protocol::HttpBinary).build()
        }
        (Protocol::Grpc, None) => with_grpc(MetricExporter::builder().with_tonic()).build(),
        (Protocol::Grpc, Some(channel)) => {
            with_grpc(MetricExporter::builder().with_tonic()).with_channel(channel).build()
        }
    };
    let exporter = exporter.map_err(|error| format!("counts cannot be told: {error}"))?;
    let provider = SdkMeterProvider::builder();
    let provider = provider.with_periodic_exporter(exporter).with_resource(resource).build();
    let meter = provider.meter("sluicegate");
    let shared = Arc::new(Shared::new(Arc::clone(page)));
    for family in families(&page()) {
        observe(&meter, family, Reader::of(&shared));
    }
    Ok(provider)
}

/// Sets the protocol explicitly, because the exporter would read the environment again.
fn with_grpc<B: opentelemetry_otlp::WithExportConfig>(builder: B) -> B {
    builder.with_protocol(opentelemetry_otlp::Protocol::Grpc)
}

impl Way {
    /// Returns the TLS connection. `None` for plain text, which the exporter connects itself.
    fn channel(&self) -> Result<Option<tonic::transport::Channel>, String> {
        let is_secure = self.protocol == Protocol::Grpc && self.endpoint.starts_with("https:");
        let channel = is_secure.then(|| call::secure(&self.endpoint, &self.files, self.patience));
        channel.transpose()
    }

    fn client(&self) -> Result<Http, String> {
        Http::new(&self.files, self.patience)
    }
}

/// An exported metric. `grows` is true for counters.
#[derive(Debug, PartialEq, Eq)]
struct Family {
    name: String,
    help: String,
    grows: bool,
}

/// Returns the families of a page. A histogram becomes two: its count and its sum.
fn families(page: &str) -> Vec<Family> {
    let mut found = Vec::new();
    let mut help = "";
    for line in page.lines() {
        if let Some((_, text)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' '))
        {
            help = text;
        }
        let Some((name, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' '))
        else {
            continue;
        };
        let endings: &[&str] = if kind == "histogram" { &["_count", "_sum"] } else { &[""] };
        let family = |end: &&str| Family {
            name: format!("{name}{end}"),
            help: help.to_owned(),
            grows: kind != "gauge",
        };
        found.extend(endings.iter().map(family));
    }
    found
}

/// Registers `family`. Each export reads the metrics page, so both always have the same metrics.
fn observe(meter: &Meter, family: Family, page: Reader) {
    let Family { name, help, grows } = family;
    let look = {
        let name = name.clone();
        move |observer: &dyn AsyncInstrument<f64>| {
            for (labels, value) in samples(&page.next(), &name) {
                observer.observe(value, &labels);
            }
        }
    };
    if grows {
        meter.f64_observable_counter(name).with_description(help).with_callback(look).build();
    } else {
        meter.f64_observable_gauge(name).with_description(help).with_callback(look).build();
    }
}

fn samples(page: &str, name: &str) -> Vec<(Vec<KeyValue>, f64)> {
    page.lines().filter_map(|line| sample(line.strip_prefix(name)?)).collect()
}

/// Parses the rest of a line after the name of the sample.
fn sample(rest: &str) -> Option<(Vec<KeyValue>, f64)> {
    let (labels, value) = match rest.strip_prefix('{') {
        Some(rest) => labels(rest)?,
        None => (Vec::new(), rest),
    };
    Some((labels, value.strip_prefix(' ')?.parse().ok()?))
}

/// Parses labels up to the closing brace. Also returns the text after the brace.
fn labels(mut rest: &str) -> Option<(Vec<KeyValue>, &str)> {
    let mut labels = Vec::new();
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (key, quoted) = rest.split_once("=\"")?;
        let (value, after) = unquoted(quoted)?;
        labels.push(KeyValue::new(key.to_owned(), value));
        rest = after.strip_prefix(',').unwrap_or(after);
    }
}

/// Removes the escapes of a label's value. Also returns the text after the closing quote.
fn unquoted(text: &str) -> Option<(String, &str)> {
    let (mut value, mut letters) = (String::new(), text.chars());
    loop {
        match letters.next()? {
            '"' => return Some((value, letters.as_str())),
            '\\' => value.push(match letters.next()? {
                'n' => '\n',
                itself => itself,
            }),
            letter => value.push(letter),
        }
    }
}

impl Told {
    /// Returns `true` if any signal is exported.
    #[must_use]
    pub const fn anything(&self) -> bool {
        self.spans.is_some() || self.counts.is_some()
    }

    /// Exports the remaining spans and metrics. Blocks for up to 2 s for each signal,
    /// so it must not run on a thread that serves requests.
    pub fn finish(self) {
        if let Some(spans) = self.spans {
            drop(spans.shutdown_with_timeout(GOODBYE));
        }
        if let Some(counts) = self.counts {
            drop(counts.shutdown_with_timeout(GOODBYE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(variables: &[(&str, &str)], signal: &str) -> Result<Option<Way>, String> {
        let look = |name: &str| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        wanted(signal, &look, &Defaults::default())
    }

    fn wants(variables: &[(&str, &str)]) -> (bool, bool, usize) {
        let told = ["TRACES", "METRICS"].map(|signal| way(variables, signal));
        let [spans, counts] = told.each_ref().map(|told| matches!(told, Ok(Some(_))));
        (spans, counts, told.iter().filter(|told| told.is_err()).count())
    }

    #[test]
    fn export_requires_a_configured_endpoint() {
        let all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317");
        assert_eq!(wants(&[]), (false, false, 0));
        assert_eq!(wants(&[all]), (true, true, 0));
        assert_eq!(wants(&[all, ("OTEL_METRICS_EXPORTER", "none")]), (true, false, 0));
        let own = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://c:4317");
        assert_eq!(wants(&[own]), (false, true, 0));
    }

    #[test]
    fn unsupported_settings_disable_only_their_own_signal() {
        let all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c:4317");
        assert_eq!(wants(&[all, ("OTEL_TRACES_EXPORTER", "zipkin")]), (false, true, 1));
        assert_eq!(wants(&[all, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")]), (false, false, 2));
        let half = ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "/key");
        assert_eq!(wants(&[all, half]), (false, true, 1));
    }

    #[test]
    fn signal_specific_variables_override_general_ones() {
        let said = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/all"),
            ("OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE", "/metrics"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "250"),
        ];
        let [spans, counts] =
            ["TRACES", "METRICS"].map(|signal| way(&said, signal).unwrap().unwrap());
        assert_eq!((spans.protocol, counts.protocol), (Protocol::Grpc, Protocol::Http));
        assert_eq!(spans.files.certificate.as_deref(), Some("/all"));
        assert_eq!(counts.files.certificate.as_deref(), Some("/metrics"));
        assert_eq!(spans.patience, Duration::from_millis(250));
    }

    #[test]
    fn samples_are_found_by_their_exact_name() {
        let page = "# HELP a_total Help.\n# TYPE a_total counter\na_total{x=\"1\",y=\"2\"} 3\na_total_more 4\n\
                    # HELP b Help.\n# TYPE b histogram\nb_bucket{le=\"1\"} 1\nb_sum 0.5\nb_count 1\n";
        let named: Vec<_> = families(page).into_iter().map(|f| (f.name, f.grows)).collect();
        let wanted = [("a_total", true), ("b_count", true), ("b_sum", true)];
        assert_eq!(named, wanted.map(|(name, grows)| (name.to_owned(), grows)));
        let found = samples(page, "a_total");
        assert_eq!(found, [(vec![KeyValue::new("x", "1"), KeyValue::new("y", "2")], 3.0)]);
        assert_eq!(samples(page, "b_sum"), [(vec![], 0.5)]);
    }

    /// Prometheus' text format has the escapes `\\`, `\"` and `\n`, only in the values of labels.
    #[test]
    fn label_values_are_unescaped() {
        let page = r#"a{path="d.k_x,y"} 1
a{path="d.k_x,z"} 2
a{path="d.k_\\"} 3
a{path="d.k_\\n\n"} 4
a{path="\"q\"",verdict="={},"} 5
a{path="d.k_{1} 2",verdict="\"} 9"} 6
a{path=""} 7
"#;
        let labelled = |labels: &[(&'static str, &'static str)], value: f64| {
            let labels = labels.iter().map(|(key, text)| KeyValue::new(*key, *text));
            (labels.collect::<Vec<_>>(), value)
        };
        let wanted = [
            labelled(&[("path", "d.k_x,y")], 1.0),
            labelled(&[("path", "d.k_x,z")], 2.0),
            labelled(&[("path", r"d.k_\")], 3.0),
            labelled(&[("path", "d.k_\\n\n")], 4.0),
            labelled(&[("path", "\"q\""), ("verdict", "={},")], 5.0),
            labelled(&[("path", "d.k_{1} 2"), ("verdict", "\"} 9")], 6.0),
            labelled(&[("path", "")], 7.0),
        ];
        assert_eq!(samples(page, "a"), wanted);
    }
}
