//! Where spans and counts are told: to the collector that `OTEL_*` names, by OTLP over gRPC.
//!
//! Guarantees: without `OTEL_EXPORTER_OTLP_ENDPOINT`, or its form for one signal, nothing is told and nothing runs; a collector
//! that is slow or gone costs spans and never an answer, for what waits is bounded; what cannot be honoured is said in words.
//! Leaves out: OTLP over HTTP, TLS to the collector, and the buckets of histograms, of which only count and sum are told.

use std::sync::Arc;
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Meter, MeterProvider as _};
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::{MetricExporter, SpanExporter};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::SdkMeterProvider;
use opentelemetry_sdk::trace::SdkTracerProvider;

use super::trace::{self, Propagators};

/// How long the last spans and counts may take to be told.
const GOODBYE: Duration = Duration::from_secs(2);

/// The page of metrics, as Prometheus reads it.
pub type Page = Arc<dyn Fn() -> String + Send + Sync>;

/// A variable of the environment, if it is set and not empty.
pub type Variable<'v> = &'v dyn Fn(&str) -> Option<String>;

/// What is told, and to whom.
#[derive(Debug, Default)]
pub struct Told {
    spans: Option<SdkTracerProvider>,
    counts: Option<SdkMeterProvider>,
}

/// Begins to tell what the environment asks for. Within a runtime of tokio.
///
/// The second part is what it asks for and is not told, each with a sentence why.
#[must_use]
pub fn start(variable: Variable<'_>, page: &Page) -> (Told, Vec<String>) {
    let mut refused = Vec::new();
    if variable("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true")) {
        return (Told::default(), refused);
    }
    let mut wanted = |signal| match wanted(signal, variable) {
        Ok(wanted) => wanted,
        Err(why) => {
            refused.push(why);
            false
        }
    };
    let (spans, counts) = (wanted("TRACES"), wanted("METRICS"));
    let mut told = Told::default();
    if spans {
        told.spans = keep(tell_spans(variable), &mut refused);
    }
    if counts {
        told.counts = keep(tell_counts(page), &mut refused);
    }
    (told, refused)
}

fn keep<T>(told: Result<T, String>, refused: &mut Vec<String>) -> Option<T> {
    told.map_err(|why| refused.push(why)).ok()
}

/// Whether a signal is to be told, or why it cannot be.
fn wanted(signal: &str, variable: Variable<'_>) -> Result<bool, String> {
    let own = |name: &str| variable(&format!("OTEL_EXPORTER_OTLP_{signal}_{name}"));
    let either = |name: &str| own(name).or_else(|| variable(&format!("OTEL_EXPORTER_OTLP_{name}")));
    let exporter = format!("OTEL_{signal}_EXPORTER");
    match variable(&exporter).as_deref() {
        None | Some("otlp") => {}
        Some("none") => return Ok(false),
        Some(other) => return Err(format!("{exporter} is {other}; this tells otlp or none")),
    }
    let Some(endpoint) = either("ENDPOINT") else { return Ok(false) };
    if endpoint.starts_with("https:") {
        let why = "name a collector that is near, by http://";
        return Err(format!(
            "{signal}: {endpoint} takes TLS, which this does not speak here; {why}"
        ));
    }
    match either("PROTOCOL").as_deref() {
        None | Some("grpc") => Ok(true),
        Some(other) => Err(format!(
            "{signal}: OTLP over {other} is not spoken here; set OTEL_EXPORTER_OTLP_PROTOCOL=grpc and port 4317"
        )),
    }
}

/// The service's name and what `OTEL_RESOURCE_ATTRIBUTES` adds.
fn resource() -> Resource {
    let named = Resource::builder();
    let version = KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
    if std::env::var_os("OTEL_SERVICE_NAME").is_some() {
        return named.with_attribute(version).build();
    }
    named.with_service_name("sluicegate").with_attribute(version).build()
}

fn tell_spans(variable: Variable<'_>) -> Result<SdkTracerProvider, String> {
    let propagators = variable("OTEL_PROPAGATORS");
    let propagators = Propagators::read(propagators.as_deref())
        .ok_or("OTEL_PROPAGATORS: tracecontext, b3 and b3multi are read, and baggage and none")?;
    let exporter = SpanExporter::builder().with_tonic().build();
    let exporter = exporter.map_err(|error| format!("spans cannot be told: {error}"))?;
    let provider = SdkTracerProvider::builder();
    let provider = provider.with_batch_exporter(exporter).with_resource(resource()).build();
    trace::tell(provider.tracer("sluicegate"), propagators);
    Ok(provider)
}

fn tell_counts(page: &Page) -> Result<SdkMeterProvider, String> {
    let exporter = MetricExporter::builder().with_tonic().build();
    let exporter = exporter.map_err(|error| format!("counts cannot be told: {error}"))?;
    let provider = SdkMeterProvider::builder();
    let provider = provider.with_periodic_exporter(exporter).with_resource(resource()).build();
    let meter = provider.meter("sluicegate");
    for family in families(&page()) {
        observe(&meter, family, Arc::clone(page));
    }
    Ok(provider)
}

/// A name that is told, and whether it only grows.
#[derive(Debug, PartialEq, Eq)]
struct Family {
    name: String,
    help: String,
    grows: bool,
}

/// The families of a page; a histogram is told as two, its count and its sum.
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

/// Looks at the page whenever counts are told. One list of metrics serves both, so that neither can lack one.
fn observe(meter: &Meter, family: Family, page: Page) {
    let Family { name, help, grows } = family;
    let look = {
        let name = name.clone();
        move |observer: &dyn AsyncInstrument<f64>| {
            for (labels, value) in samples(&page(), &name) {
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

/// The samples of one name: labels and value.
fn samples(page: &str, name: &str) -> Vec<(Vec<KeyValue>, f64)> {
    let own = page.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        let (labels, value) = match rest.strip_prefix('{') {
            Some(rest) => rest.split_once("} ")?,
            None => ("", rest.strip_prefix(' ')?),
        };
        let labels = labels.split(',').filter_map(|label| label.split_once('='));
        let labels = labels
            .map(|(key, value)| KeyValue::new(key.to_owned(), value.trim_matches('"').to_owned()));
        Some((labels.collect(), value.parse().ok()?))
    });
    own.collect()
}

impl Told {
    /// Whether anything is told.
    #[must_use]
    pub const fn anything(&self) -> bool {
        self.spans.is_some() || self.counts.is_some()
    }

    /// Tells what is left. Blocks for some seconds at most, so not on a thread that answers.
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

    fn wants(variables: &[(&str, &str)]) -> (bool, bool, usize) {
        let look = |name: &str| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let told = ["TRACES", "METRICS"].map(|signal| wanted(signal, &look));
        let [spans, counts] = told.each_ref().map(|told| matches!(told, Ok(true)));
        (spans, counts, told.iter().filter(|told| told.is_err()).count())
    }

    #[test]
    fn nothing_is_told_unless_somebody_is_named() {
        let all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317");
        assert_eq!(wants(&[]), (false, false, 0));
        assert_eq!(wants(&[all]), (true, true, 0));
        assert_eq!(wants(&[all, ("OTEL_METRICS_EXPORTER", "none")]), (true, false, 0));
        let own = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://c:4317");
        assert_eq!(wants(&[own]), (false, true, 0));
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_and_the_rest_is_told() {
        let all = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317");
        assert_eq!(wants(&[all, ("OTEL_TRACES_EXPORTER", "zipkin")]), (false, true, 1));
        assert_eq!(wants(&[all, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")]), (false, false, 2));
        let tls = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://c:4317");
        assert_eq!(wants(&[all, tls]), (false, true, 1));
    }

    #[test]
    fn every_sample_of_a_page_is_found_under_its_name_alone() {
        let page = "# HELP a_total Help.\n# TYPE a_total counter\na_total{x=\"1\",y=\"2\"} 3\na_total_more 4\n\
                    # HELP b Help.\n# TYPE b histogram\nb_bucket{le=\"1\"} 1\nb_sum 0.5\nb_count 1\n";
        let named: Vec<_> = families(page).into_iter().map(|f| (f.name, f.grows)).collect();
        let wanted = [("a_total", true), ("b_count", true), ("b_sum", true)];
        assert_eq!(named, wanted.map(|(name, grows)| (name.to_owned(), grows)));
        let found = samples(page, "a_total");
        assert_eq!(found, [(vec![KeyValue::new("x", "1"), KeyValue::new("y", "2")], 3.0)]);
        assert_eq!(samples(page, "b_sum"), [(vec![], 0.5)]);
    }
}
