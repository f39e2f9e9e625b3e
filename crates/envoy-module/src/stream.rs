//! The view of one HTTP stream that Envoy gives to a hook.

use sluicegate_descriptors::filter_config::RouteFilterConfig;

/// A map of headers, with Envoy's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum HeaderMap {
    Request = 0,
    Response = 2,
    ResponseTrailers = 3,
}

/// One value of a header, and the number of its values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeaderValue<'s> {
    pub(crate) bytes: &'s [u8],
    pub(crate) count: usize,
}

/// The result of a hook for headers, with Envoy's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum HeadersStatus {
    Continue = 0,
    StopIteration = 1,
    /// Waits, and reads no more of the body than Envoy's buffer takes.
    StopAllIterationAndWatermark = 4,
}

/// The number of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CounterId(pub(crate) usize);

/// A response of the filter itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalResponse<'r> {
    pub(crate) status: u16,
    pub(crate) headers: &'r [(&'static str, String)],
    pub(crate) body: &'r str,
    /// The response code details in Envoy's access log.
    pub(crate) details: &'r str,
}

/// A function that wakes a waiting stream. It may run on any thread.
pub(crate) type WakeFn = Box<dyn FnOnce() + Send>;

/// Envoy's counters, as a hook of a stream or of a config sees them.
pub(crate) trait CounterSink {
    /// Adds to a counter. The labels are the values of the names in its definition.
    fn increment(&self, counter: CounterId, labels: &[&str], value: u64);
}

/// One HTTP stream during one hook.
///
/// Values that it returns end before the next change of the stream. The methods that end the hook's
/// part of the stream consume it, because Envoy may then destroy the stream.
pub(crate) trait EnvoyStream: CounterSink + Sized {
    /// Returns the value of a header with this lower-case name; the first has the index 0.
    fn header(&self, map: HeaderMap, name: &str, index: usize) -> Option<HeaderValue<'_>>;

    /// Returns the client's address with its port, such as `192.0.2.1:5000`.
    fn source_address(&self) -> Option<&[u8]>;

    /// Returns Envoy's response code details, such as `via_upstream`.
    fn response_code_details(&self) -> Option<&[u8]>;

    /// Returns a text in the dynamic metadata.
    fn metadata_text(&self, namespace: &str, key: &str) -> Option<&[u8]>;

    /// Returns the config of the route.
    fn route_config(&self) -> Option<&RouteFilterConfig>;

    /// Writes a text to the dynamic metadata.
    fn set_metadata(&mut self, namespace: &str, key: &str, value: &str);

    /// Sets a header of the response.
    fn set_response_header(&mut self, name: &str, value: &str);

    /// Returns a function that makes Envoy call the hook `scheduled` of this stream.
    fn wake_fn(&self) -> Option<WakeFn>;

    /// Sends a response instead of calling the upstream.
    fn send_response(self, response: &LocalResponse<'_>);

    /// Continues the request after a stopped iteration.
    fn continue_decoding(self);
}
