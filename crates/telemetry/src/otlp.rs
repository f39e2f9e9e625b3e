//! Exports spans and metrics to the collector that the `OTEL_*` environment variables name, by OTLP
//! over gRPC or HTTP.
//!
//! Guarantees:
//! - Nothing is exported without `OTEL_EXPORTER_OTLP_ENDPOINT` or its variants for traces and
//!   metrics.
//! - A slow or unavailable collector loses spans, but never delays a reply.
//! - Queues of spans are bounded.
//! - An unsupported protocol or exporter of one signal (spans or metrics) is reported. The other
//!   signal is still exported.
//!
//! Not covered:
//! - OTLP in JSON.
//! - The buckets of histograms: only count and sum are exported.

mod collector_client;
mod page_cache;

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
use tonic::codegen::http::Uri;

use super::trace::{self, Propagators};
use crate::http_client::ClientTlsFiles;
use collector_client::OtlpHttpClient;
pub use page_cache::RenderPage;
use page_cache::{PageCache, PageReader};

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout of the last export of each signal during shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// A function that returns the value of an environment variable, or `None` if it is unset or empty.
pub type EnvLookup<'v> = &'v dyn Fn(&str) -> Option<String>;

/// The transport protocol of OTLP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtlpTransport {
    /// OTLP over gRPC.
    #[default]
    Grpc,
    /// OTLP in protobuf over HTTP.
    Http,
}

/// The values for unset `OTEL_*` environment variables.
#[derive(Clone, Debug)]
pub struct OtlpDefaults {
    /// The transport protocol of OTLP.
    pub protocol: OtlpTransport,
    /// Enables the export of metrics.
    pub has_metrics: bool,
    /// Attributes of the OpenTelemetry resource. The default of `service.name` is `sluicegate`.
    pub attributes: Vec<(String, String)>,
    /// The sampled fraction, 0 to 1, of the traces for which the caller has not decided whether to
    /// sample.
    pub sampled_fraction: f64,
}

impl Default for OtlpDefaults {
    fn default() -> Self {
        let (protocol, attributes) = (OtlpTransport::Grpc, Vec::new());
        Self { protocol, has_metrics: true, attributes, sampled_fraction: 1.0 }
    }
}

/// The exporter settings of one signal: spans or metrics.
#[derive(Clone, Debug)]
struct ExporterConfig {
    protocol: OtlpTransport,
    endpoint: String,
    tls_files: ClientTlsFiles,
    timeout: Duration,
}

/// The running exporters of spans and metrics.
#[derive(Debug, Default)]
pub struct OtlpExporters {
    tracer_provider: Option<SdkTracerProvider>,
    meter_provider: Option<SdkMeterProvider>,
}

/// Starts the exporters that the environment variables configure. Must run within a Tokio runtime.
///
/// Also returns an error message for each signal (spans, metrics) that cannot be exported.
#[must_use]
pub fn start(
    variable: EnvLookup<'_>,
    defaults: &OtlpDefaults,
    page: &RenderPage,
) -> (OtlpExporters, Vec<String>) {
    let mut errors = Vec::new();
    if variable("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true")) {
        return (OtlpExporters::default(), errors);
    }
    let mut wanted = |signal| match exporter_config(signal, variable, defaults) {
        Ok(wanted) => wanted,
        Err(why) => {
            errors.push(why);
            None
        }
    };
    let (spans, counts) = (wanted("TRACES"), wanted("METRICS"));
    let resource = resource(variable, defaults);
    let mut exporters = OtlpExporters::default();
    if let Some(way) = spans {
        let spans = start_span_export(&way, variable, defaults.sampled_fraction, resource.clone());
        exporters.tracer_provider = keep_or_report(spans, &mut errors);
    }
    if let Some(way) = counts {
        exporters.meter_provider =
            keep_or_report(start_metric_export(&way, page, resource), &mut errors);
    }
    (exporters, errors)
}

fn keep_or_report<T>(result: Result<T, String>, refused: &mut Vec<String>) -> Option<T> {
    result.map_err(|why| refused.push(why)).ok()
}

/// Reads the environment variables for `signal`, which is `TRACES` or `METRICS`. Returns `None` if
/// the signal is not exported.
fn exporter_config(
    signal: &str,
    variable: EnvLookup<'_>,
    defaults: &OtlpDefaults,
) -> Result<Option<ExporterConfig>, String> {
    let own = |name: &str| variable(&format!("OTEL_EXPORTER_OTLP_{signal}_{name}"));
    let either = |name: &str| own(name).or_else(|| variable(&format!("OTEL_EXPORTER_OTLP_{name}")));
    let exporter = format!("OTEL_{signal}_EXPORTER");
    match variable(&exporter).as_deref() {
        None if signal == "METRICS" && !defaults.has_metrics => return Ok(None),
        None | Some("otlp") => {}
        Some("none") => return Ok(None),
        Some(other) => return Err(format!("{exporter} must be otlp or none, got `{other}`")),
    }
    let Some(endpoint) = either("ENDPOINT") else { return Ok(None) };
    let variable_name = match own("ENDPOINT") {
        Some(_) => format!("OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"),
        None => "OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(),
    };
    check_endpoint(&variable_name, &endpoint)?;
    let protocol = match either("PROTOCOL").as_deref() {
        None => defaults.protocol,
        Some("grpc") => OtlpTransport::Grpc,
        Some("http/protobuf") => OtlpTransport::Http,
        Some(other) => {
            let supported = "set OTEL_EXPORTER_OTLP_PROTOCOL to grpc or http/protobuf";
            return Err(format!("{signal}: OTLP over {other} is not supported; {supported}"));
        }
    };
    let identity = match (either("CLIENT_CERTIFICATE"), either("CLIENT_KEY")) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => {
            return Err(format!(
                "{signal}: set both OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and \
                 OTEL_EXPORTER_OTLP_CLIENT_KEY"
            ));
        }
    };
    let timeout_ms = either("TIMEOUT").and_then(|text| text.parse().ok());
    Ok(Some(ExporterConfig {
        protocol,
        endpoint,
        tls_files: ClientTlsFiles { ca_file: either("CERTIFICATE"), identity },
        timeout: timeout_ms.map_or(DEFAULT_TIMEOUT, Duration::from_millis),
    }))
}

/// Verifies that the endpoint is a URL with a host. Go programs also accept `host:port`.
fn check_endpoint(variable: &str, endpoint: &str) -> Result<(), String> {
    let rest = ["http://", "https://"].iter().find_map(|scheme| {
        let start = endpoint.get(..scheme.len())?;
        start.eq_ignore_ascii_case(scheme).then(|| &endpoint[scheme.len()..])
    });
    let is_host = |text: &str| !text.is_empty() && !text.starts_with(['/', ':', '?']);
    let is_url = |url: &str| url.parse::<Uri>().is_ok_and(|url| url.host().is_some());
    match rest {
        Some(rest) if is_host(rest) && is_url(endpoint) => return Ok(()),
        _ => {}
    }
    let address = endpoint.rsplit("//").next().unwrap_or(endpoint).trim();
    let corrected = format!("http://{address}");
    Err(if is_host(address) && is_url(&corrected) && !address.contains('@') {
        format!("{variable}: write {corrected} (https:// for TLS)")
    } else {
        format!("{variable}: write the collector's URL, such as http://collector:4317")
    })
}

/// Builds the OpenTelemetry resource, which describes this process. `OTEL_*` variables take
/// precedence over the settings.
fn resource(variable: EnvLookup<'_>, defaults: &OtlpDefaults) -> Resource {
    let attributes = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let names = attributes.split(',').filter_map(|pair| pair.split_once('='));
    let configured: Vec<&str> = names.map(|(name, _)| name.trim()).collect();
    let mut own = defaults.attributes.clone();
    own.push(("service.version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()));
    if variable("OTEL_SERVICE_NAME").is_some() {
        own.retain(|(name, _)| name != "service.name");
    } else if !own.iter().any(|(name, _)| name == "service.name") {
        own.push(("service.name".to_owned(), "sluicegate".to_owned()));
    }
    own.retain(|(name, _)| !configured.contains(&&**name));
    let own = own.into_iter().map(|(name, text)| KeyValue::new(name, text));
    Resource::builder().with_attributes(own).build()
}

fn start_span_export(
    way: &ExporterConfig,
    variable: EnvLookup<'_>,
    sampled: f64,
    resource: Resource,
) -> Result<SdkTracerProvider, String> {
    let propagators = variable("OTEL_PROPAGATORS");
    let propagators = Propagators::parse(propagators.as_deref())
        .ok_or("OTEL_PROPAGATORS must list tracecontext, b3, b3multi, baggage or none")?;
    let exporter = match (way.protocol, way.tls_channel()?) {
        (OtlpTransport::Http, _) => {
            let http = SpanExporter::builder().with_http().with_http_client(way.http_client()?);
            http.with_protocol(opentelemetry_otlp::Protocol::HttpBinary).build()
        }
        (OtlpTransport::Grpc, None) => with_grpc(SpanExporter::builder().with_tonic()).build(),
        (OtlpTransport::Grpc, Some(channel)) => {
            with_grpc(SpanExporter::builder().with_tonic()).with_channel(channel).build()
        }
    };
    let exporter =
        exporter.map_err(|error| format!("failed to create the span exporter: {error}"))?;
    let mut provider = SdkTracerProvider::builder();
    if variable("OTEL_TRACES_SAMPLER").is_none() {
        let part = Sampler::TraceIdRatioBased(sampled);
        provider = provider.with_sampler(Sampler::ParentBased(Box::new(part)));
    }
    let provider = provider.with_batch_exporter(exporter).with_resource(resource).build();
    trace::install_tracer(provider.tracer("sluicegate"), propagators);
    Ok(provider)
}

fn start_metric_export(
    way: &ExporterConfig,
    page: &RenderPage,
    resource: Resource,
) -> Result<SdkMeterProvider, String> {
    let exporter = match (way.protocol, way.tls_channel()?) {
        (OtlpTransport::Http, _) => {
            let http = MetricExporter::builder().with_http().with_http_client(way.http_client()?);
            http.with_protocol(opentelemetry_otlp::Protocol::HttpBinary).build()
        }
        (OtlpTransport::Grpc, None) => with_grpc(MetricExporter::builder().with_tonic()).build(),
        (OtlpTransport::Grpc, Some(channel)) => {
            with_grpc(MetricExporter::builder().with_tonic()).with_channel(channel).build()
        }
    };
    let exporter =
        exporter.map_err(|error| format!("failed to create the metric exporter: {error}"))?;
    let provider = SdkMeterProvider::builder();
    let provider = provider.with_periodic_exporter(exporter).with_resource(resource).build();
    let meter = provider.meter("sluicegate");
    let shared = Arc::new(PageCache::new(Arc::clone(page)));
    for family in parse_families(&page()) {
        register_family(&meter, family, PageReader::new(&shared));
    }
    Ok(provider)
}

/// Sets the protocol explicitly, because the exporter would otherwise read it from the environment.
fn with_grpc<B: opentelemetry_otlp::WithExportConfig>(builder: B) -> B {
    builder.with_protocol(opentelemetry_otlp::Protocol::Grpc)
}

impl ExporterConfig {
    /// Returns a gRPC channel with TLS. `None` for HTTP or plain text, where the exporter connects
    /// itself.
    fn tls_channel(&self) -> Result<Option<tonic::transport::Channel>, String> {
        let is_secure = self.protocol == OtlpTransport::Grpc && self.endpoint.starts_with("https:");
        let channel = is_secure
            .then(|| collector_client::tls_channel(&self.endpoint, &self.tls_files, self.timeout));
        channel.transpose()
    }

    fn http_client(&self) -> Result<OtlpHttpClient, String> {
        OtlpHttpClient::new(&self.tls_files, self.timeout)
    }
}

/// A metric family that is exported over OTLP, as a counter or a gauge.
#[derive(Debug, PartialEq, Eq)]
struct ExportedFamily {
    name: String,
    help: String,
    is_counter: bool,
}

/// Returns the metric families of a metrics page. A histogram becomes two families: its count and
/// its sum.
fn parse_families(page: &str) -> Vec<ExportedFamily> {
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
        let family = |end: &&str| ExportedFamily {
            name: format!("{name}{end}"),
            help: help.to_owned(),
            is_counter: kind != "gauge",
        };
        found.extend(endings.iter().map(family));
    }
    found
}

/// Registers `family` for export. Each export reads the metrics page, so both always have the same
/// metrics.
fn register_family(meter: &Meter, family: ExportedFamily, page: PageReader) {
    let ExportedFamily { name, help, is_counter: grows } = family;
    let callback = {
        let name = name.clone();
        move |observer: &dyn AsyncInstrument<f64>| {
            for (labels, value) in parse_samples(&page.next_page(), &name) {
                observer.observe(value, &labels);
            }
        }
    };
    if grows {
        meter.f64_observable_counter(name).with_description(help).with_callback(callback).build();
    } else {
        meter.f64_observable_gauge(name).with_description(help).with_callback(callback).build();
    }
}

fn parse_samples(page: &str, name: &str) -> Vec<(Vec<KeyValue>, f64)> {
    page.lines().filter_map(|line| parse_sample(line.strip_prefix(name)?)).collect()
}

/// Parses the labels and the value of a sample: the rest of a line after the sample's name.
fn parse_sample(rest: &str) -> Option<(Vec<KeyValue>, f64)> {
    let (labels, value) = match rest.strip_prefix('{') {
        Some(rest) => parse_labels(rest)?,
        None => (Vec::new(), rest),
    };
    Some((labels, value.strip_prefix(' ')?.parse().ok()?))
}

/// Parses the labels of a sample up to the closing brace. Also returns the text after the brace.
fn parse_labels(mut rest: &str) -> Option<(Vec<KeyValue>, &str)> {
    let mut labels = Vec::new();
    loop {
        if let Some(after) = rest.strip_prefix('}') {
            return Some((labels, after));
        }
        let (key, quoted) = rest.split_once("=\"")?;
        let (value, after) = unquote_label(quoted)?;
        labels.push(KeyValue::new(key.to_owned(), value));
        rest = after.strip_prefix(',').unwrap_or(after);
    }
}

/// Removes the escapes of a label's value. Also returns the text after the closing quote.
fn unquote_label(text: &str) -> Option<(String, &str)> {
    let (mut value, mut chars) = (String::new(), text.chars());
    loop {
        match chars.next()? {
            '"' => return Some((value, chars.as_str())),
            '\\' => value.push(match chars.next()? {
                'n' => '\n',
                itself => itself,
            }),
            letter => value.push(letter),
        }
    }
}

impl OtlpExporters {
    /// Returns `true` if any signal is exported.
    #[must_use]
    pub const fn is_active(&self) -> bool {
        self.tracer_provider.is_some() || self.meter_provider.is_some()
    }

    /// Exports the last spans and metrics. Blocks for up to 2 s for each of both, so it must not
    /// run on a thread that serves requests.
    pub fn shutdown(self) {
        if let Some(spans) = self.tracer_provider {
            drop(spans.shutdown_with_timeout(SHUTDOWN_TIMEOUT));
        }
        if let Some(counts) = self.meter_provider {
            drop(counts.shutdown_with_timeout(SHUTDOWN_TIMEOUT));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config_of(
        variables: &[(&str, &str)],
        signal: &str,
    ) -> Result<Option<ExporterConfig>, String> {
        let lookup = |name: &str| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        exporter_config(signal, &lookup, &OtlpDefaults::default())
    }

    fn exported_signals(variables: &[(&str, &str)]) -> (bool, bool, usize) {
        let configs = ["TRACES", "METRICS"].map(|signal| config_of(variables, signal));
        let [spans, counts] = configs.each_ref().map(|config| matches!(config, Ok(Some(_))));
        (spans, counts, configs.iter().filter(|config| config.is_err()).count())
    }

    #[test]
    fn otlp_export_requires_a_configured_endpoint() {
        let all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317");
        assert_eq!(exported_signals(&[]), (false, false, 0));
        assert_eq!(exported_signals(&[all]), (true, true, 0));
        assert_eq!(exported_signals(&[all, ("OTEL_METRICS_EXPORTER", "none")]), (true, false, 0));
        let own = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://c:4317");
        assert_eq!(exported_signals(&[own]), (false, true, 0));
    }

    #[test]
    fn unsupported_otlp_settings_disable_only_their_own_signal() {
        let all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "https://c:4317");
        assert_eq!(exported_signals(&[all, ("OTEL_TRACES_EXPORTER", "zipkin")]), (false, true, 1));
        assert_eq!(
            exported_signals(&[all, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")]),
            (false, false, 2)
        );
        let half = ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "/key");
        assert_eq!(exported_signals(&[all, half]), (false, true, 1));
    }

    #[test]
    fn signal_specific_variables_override_general_ones() {
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://all"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
            ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/all"),
            ("OTEL_EXPORTER_OTLP_METRICS_CERTIFICATE", "/metrics"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "250"),
        ];
        let [spans, counts] =
            ["TRACES", "METRICS"].map(|signal| config_of(&variables, signal).unwrap().unwrap());
        assert_eq!((spans.protocol, counts.protocol), (OtlpTransport::Grpc, OtlpTransport::Http));
        assert_eq!(spans.tls_files.ca_file.as_deref(), Some("/all"));
        assert_eq!(counts.tls_files.ca_file.as_deref(), Some("/metrics"));
        assert_eq!(spans.timeout, Duration::from_millis(250));
    }

    #[test]
    fn metric_samples_are_found_by_their_exact_name() {
        let page = "# HELP a_total Help.\n# TYPE a_total counter\na_total{x=\"1\",y=\"2\"} 3\na_total_more 4\n\
                    # HELP b Help.\n# TYPE b histogram\nb_bucket{le=\"1\"} 1\nb_sum 0.5\nb_count 1\n";
        let named: Vec<_> =
            parse_families(page).into_iter().map(|f| (f.name, f.is_counter)).collect();
        let wanted = [("a_total", true), ("b_count", true), ("b_sum", true)];
        assert_eq!(named, wanted.map(|(name, grows)| (name.to_owned(), grows)));
        let found = parse_samples(page, "a_total");
        assert_eq!(found, [(vec![KeyValue::new("x", "1"), KeyValue::new("y", "2")], 3.0)]);
        assert_eq!(parse_samples(page, "b_sum"), [(vec![], 0.5)]);
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
        assert_eq!(parse_samples(page, "a"), wanted);
    }
}
