//! Reads the caller's trace from the request headers.
//!
//! Guarantees:
//! - Invalid trace headers are ignored.
//! - A caller's decision not to sample is respected.
//! - Baggage is ignored.

use opentelemetry::Context;
use opentelemetry::propagation::{Extractor, TextMapPropagator as _};
use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState,
};
use opentelemetry_sdk::propagation::TraceContextPropagator;

/// A function that returns the value of the request header with the given lower-case name.
pub type HeaderLookup<'h> = &'h dyn Fn(&str) -> Option<&'h str>;

/// The formats of trace headers that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Propagators {
    /// W3C: `traceparent`, `tracestate`.
    pub w3c: bool,
    /// B3: `b3`, or `x-b3-traceid` and the other `x-b3-*` headers.
    pub b3: bool,
}

impl Propagators {
    /// Parses the variable `OTEL_PROPAGATORS`. Returns `None` for an unknown name.
    #[must_use]
    pub fn parse(text: Option<&str>) -> Option<Self> {
        let Some(text) = text.filter(|text| !text.trim().is_empty()) else {
            return Some(Self { w3c: true, b3: true });
        };
        let mut propagators = Self { w3c: false, b3: false };
        for name in text.split(',').map(str::trim) {
            match name {
                "tracecontext" => propagators.w3c = true,
                "b3" | "b3multi" => propagators.b3 = true,
                "baggage" | "none" => {}
                _ => return None,
            }
        }
        Some(propagators)
    }
}

/// Returns the parent of the check's span, or `None` if the caller decided not to sample.
pub(super) fn parent_context(
    propagators: Propagators,
    headers: HeaderLookup<'_>,
) -> Option<Context> {
    if propagators.w3c && headers("traceparent").is_some() {
        return Some(TraceContextPropagator::new().extract(&HeaderExtractor(headers)));
    }
    if !propagators.b3 {
        return Some(Context::new());
    }
    match parse_b3(headers) {
        B3Parent::Absent => Some(Context::new()),
        B3Parent::DoNotSample => None,
        B3Parent::Trace(parent) => Some(Context::new().with_remote_span_context(parent)),
    }
}

struct HeaderExtractor<'h>(HeaderLookup<'h>);

impl Extractor for HeaderExtractor<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        (self.0)(key)
    }

    fn keys(&self) -> Vec<&str> {
        Vec::new()
    }
}

enum B3Parent {
    Absent,
    DoNotSample,
    Trace(SpanContext),
}

/// Parses the header `b3` or the headers `x-b3-*`. Source: openzipkin/b3-propagation.
fn parse_b3(headers: HeaderLookup<'_>) -> B3Parent {
    if let Some(single) = headers("b3") {
        let mut parts = single.split('-');
        return match (parts.next(), parts.next(), parts.next()) {
            (Some("0"), None, None) => B3Parent::DoNotSample,
            (Some(trace), Some(span), sampled) => b3_parent(trace, span, sampled),
            _ => B3Parent::Absent,
        };
    }
    let debug = headers("x-b3-flags").filter(|flags| *flags == "1");
    let sampled = debug.or_else(|| headers("x-b3-sampled"));
    match (headers("x-b3-traceid"), headers("x-b3-spanid"), sampled) {
        (Some(trace), Some(span), sampled) => b3_parent(trace, span, sampled),
        (_, _, Some("0" | "false")) => B3Parent::DoNotSample,
        _ => B3Parent::Absent,
    }
}

fn b3_parent(trace: &str, span: &str, sampled: Option<&str>) -> B3Parent {
    let is_hex = |text: &str, lengths: &[usize]| {
        lengths.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
    };
    let (Ok(trace_id), Ok(span_id)) = (TraceId::from_hex(trace), SpanId::from_hex(span)) else {
        return B3Parent::Absent;
    };
    if !is_hex(trace, &[16, 32]) || !is_hex(span, &[16]) {
        return B3Parent::Absent;
    }
    let flags = match sampled {
        Some("1" | "d" | "true") => TraceFlags::SAMPLED,
        _ => TraceFlags::default(),
    };
    let parent = SpanContext::new(trace_id, span_id, flags, true, TraceState::default());
    if parent.is_valid() { B3Parent::Trace(parent) } else { B3Parent::Absent }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "80f198ee56343ba864fe8b2a57d3eff7";
    const SPAN: &str = "e457b5a2e4d86bd1";

    fn parent(sent: &[(&str, &str)]) -> String {
        let headers = |name: &str| sent.iter().find(|(key, _)| *key == name).map(|(_, v)| *v);
        let Some(context) = parent_context(Propagators { w3c: true, b3: true }, &headers) else {
            return "do not sample".to_owned();
        };
        let span = context.span().span_context().clone();
        if span.is_valid() {
            expected_parent(span.trace_id(), span.is_sampled())
        } else {
            "none".to_owned()
        }
    }

    fn expected_parent(trace: impl std::fmt::Display, sampled: bool) -> String {
        format!("{trace} {SPAN} {sampled}")
    }

    #[test]
    fn w3c_and_b3_headers_yield_the_parent_span() {
        let w3c = |flags: &str| format!("00-{TRACE}-{SPAN}-{flags}");
        assert_eq!(parent(&[("traceparent", &w3c("01"))]), expected_parent(TRACE, true));
        assert_eq!(parent(&[("traceparent", &w3c("00"))]), expected_parent(TRACE, false));
        let b3 = |rest: &str| format!("{TRACE}-{SPAN}{rest}");
        for (rest, sampled) in [("-1", true), ("-d", true), ("-0", false), ("", false)] {
            assert_eq!(parent(&[("b3", &b3(rest))]), expected_parent(TRACE, sampled), "{rest}");
        }
        assert_eq!(parent(&[("b3", &b3("-1-05e3ac9a4f6e3b90"))]), expected_parent(TRACE, true));
        let several =
            [("x-b3-traceid", &TRACE[16..]), ("x-b3-spanid", SPAN), ("x-b3-sampled", "1")];
        let long = format!("{:0>32}", &TRACE[16..]);
        assert_eq!(parent(&several), expected_parent(long, true));
        let debug = [("x-b3-traceid", TRACE), ("x-b3-spanid", SPAN), ("x-b3-flags", "1")];
        assert_eq!(parent(&debug), expected_parent(TRACE, true));
    }

    #[test]
    fn a_bare_do_not_sample_header_is_honored() {
        assert_eq!(parent(&[("b3", "0")]), "do not sample");
        assert_eq!(parent(&[("x-b3-sampled", "0")]), "do not sample");
    }

    #[test]
    fn malformed_trace_headers_are_ignored() {
        let zero = "0".repeat(32);
        for sent in [
            &[][..],
            &[("traceparent", "00-zz-1-01")],
            &[("b3", "d")],
            &[("b3", &format!("{zero}-{SPAN}-1"))],
            &[("b3", &format!("{TRACE}-+457b5a2e4d86bd1-1"))],
            &[("b3", &format!("1{TRACE}-{SPAN}-1"))],
            &[("x-b3-traceid", TRACE)],
        ] {
            assert_eq!(parent(sent), "none", "{sent:?}");
        }
    }

    #[test]
    fn only_configured_propagators_are_used() {
        let read = |text| Propagators::parse(text).map(|parsed| (parsed.w3c, parsed.b3));
        assert_eq!(read(None), Some((true, true)));
        assert_eq!(read(Some("tracecontext,baggage")), Some((true, false)));
        assert_eq!(read(Some("b3multi")), Some((false, true)));
        assert_eq!(read(Some("none")), Some((false, false)));
        assert_eq!(read(Some("tracecontext,xray")), None);
    }
}
