//! The hooks of one HTTP stream.
//!
//! Guarantees:
//! - Each request is continued or answered once, also after a panic.
//! - A wait ends at the deadlines and queue timeouts, which the limiter keeps.
//! - A stream that ends while it waits cancels its wait.
//! - The permits of a request are released at the end of its stream.
//! - Response hooks work for streams without request hooks.

use std::cell::Cell;
use std::iter;
use std::sync::Arc;

use crate::answer::{record_decision, send_denial};
use crate::counters::{Event, PlainEvent, events};
use crate::guard::plant;
use crate::headers::limit_headers;
use crate::in_flight::InFlightRequest;
use crate::limiter::{
    Admission, Answer, Check, PendingAnswer, ReportedLimit, Started, wait_settings,
};
use crate::module::FilterModule;
use crate::request::with_descriptors;
use crate::stream::{EnvoyStream, HeadersStatus};

/// The filter of one HTTP stream. Envoy may call its hooks within each other.
pub(crate) struct StreamFilter {
    module: Arc<FilterModule>,
    state: Cell<StreamState>,
    in_flight: Cell<Option<InFlightRequest>>,
}

#[derive(Default)]
enum StreamState {
    /// No check has started.
    #[default]
    Unchecked,
    /// The creation of the filter panicked.
    Broken,
    Waiting(PendingAnswer),
    /// The request continues; the response gets the headers of this limit.
    Allowed(Option<ReportedLimit>),
    /// The filter sent the response, or the stream ended.
    Ended,
}

impl StreamFilter {
    pub(crate) fn new(module: Arc<FilterModule>) -> Self {
        Self { module, state: Cell::default(), in_flight: Cell::default() }
    }

    /// The filter of a stream whose [`StreamFilter::new`] panicked. It decides by the failure mode.
    pub(crate) fn broken(module: Arc<FilterModule>) -> Self {
        Self { state: Cell::new(StreamState::Broken), ..Self::new(module) }
    }

    /// Checks a request at its headers.
    pub(crate) fn on_request_headers(&self, stream: impl EnvoyStream) -> HeadersStatus {
        self.module.count_outside_events(&stream);
        match self.state.take() {
            StreamState::Unchecked => {}
            StreamState::Broken => {
                self.module.count_panic(&stream);
                return self.fall_back(stream);
            }
            state => {
                self.state.set(state);
                return HeadersStatus::Continue;
            }
        }
        match self.start_check(&stream) {
            None => HeadersStatus::Continue,
            Some(Started::Decided(admission)) => {
                let answer = self.keep_permits(admission);
                self.apply(stream, &answer)
            }
            Some(Started::Waiting(pending)) => self.wait(stream, pending),
        }
    }

    /// Ends a wait.
    pub(crate) fn on_scheduled(&self, stream: impl EnvoyStream) {
        let StreamState::Waiting(pending) = self.state_or_put_back() else { return };
        // The limiter wakes a stream only with an answer. If it does not, the stream must not hang.
        let admission = pending.take().unwrap_or_else(|| self.failed_answer().into());
        let answer = self.keep_permits(admission);
        self.apply_late(stream, &answer);
    }

    /// Adds the rate limit headers to the response of an allowed request.
    pub(crate) fn on_response_headers(&self, mut stream: impl EnvoyStream, is_end: bool) {
        self.update_in_flight(|request| request.on_response_headers(&stream, is_end));
        let state = self.state.take();
        if let StreamState::Allowed(Some(limit)) = &state {
            for (name, value) in limit_headers(self.module.config.headers, limit) {
                stream.set_response_header(name, &value);
            }
        }
        self.state.set(state);
    }

    /// Notes the end of the response.
    pub(crate) fn on_response_body(&self, is_end: bool) {
        self.update_in_flight(|request| request.on_response_data(is_end));
    }

    /// Reads the gRPC code, and notes the end of the response.
    pub(crate) fn on_response_trailers(&self, stream: &impl EnvoyStream) {
        self.update_in_flight(|request| request.on_response_trailers(stream));
    }

    /// Cancels a wait, and releases the permits.
    pub(crate) fn on_stream_complete(&self, stream: &impl EnvoyStream) {
        self.state.set(StreamState::Ended);
        if let Some(request) = self.in_flight.take() {
            request.release(stream);
        }
    }

    /// Decides by the failure mode after a panic at the request headers.
    /// After a response it leaves the stream alone, because Envoy may have destroyed it.
    pub(crate) fn after_request_panic(&self, stream: impl EnvoyStream) -> HeadersStatus {
        match self.state.take() {
            StreamState::Ended => {
                self.state.set(StreamState::Ended);
                HeadersStatus::StopIteration
            }
            allowed @ StreamState::Allowed(_) => {
                self.state.set(allowed);
                HeadersStatus::Continue
            }
            _ => {
                self.module.count_panic(&stream);
                self.fall_back(stream)
            }
        }
    }

    /// Decides by the failure mode after a panic at the end of a wait, with the same care.
    pub(crate) fn after_scheduled_panic(&self, stream: impl EnvoyStream) {
        let state = self.state.take();
        if matches!(state, StreamState::Allowed(_) | StreamState::Ended) {
            self.state.set(state);
            return;
        }
        self.module.count_panic(&stream);
        self.apply_late(stream, &self.failed_answer());
    }

    /// Counts the panic of another hook.
    pub(crate) fn after_panic(&self, stream: &impl EnvoyStream) {
        self.module.count_panic(stream);
    }

    /// Keeps the permits of a request until its end.
    fn keep_permits(&self, admission: Admission) -> Answer {
        self.in_flight.set(InFlightRequest::new(admission.permits));
        admission.answer
    }

    fn update_in_flight(&self, update: impl FnOnce(&mut InFlightRequest)) {
        if let Some(mut request) = self.in_flight.take() {
            update(&mut request);
            self.in_flight.set(Some(request));
        }
    }

    fn start_check(&self, stream: &impl EnvoyStream) -> Option<Started> {
        let config = &self.module.config;
        let limiter = self.module.limiter.as_ref()?;
        if is_route_off(stream) {
            return None;
        }
        let route = stream.route_config();
        let actions = route.and_then(|route| route.descriptors.as_ref());
        let actions = actions.unwrap_or(&config.descriptors);
        with_descriptors(stream, actions, config.path, |descriptors| {
            let (domain, wait) = (&config.domain, wait_settings(config));
            let check = Check { domain, descriptors, wait };
            (!descriptors.is_empty()).then(|| limiter.start(&check))
        })
    }

    fn wait(&self, stream: impl EnvoyStream, pending: PendingAnswer) -> HeadersStatus {
        self.module.count(&stream, iter::once(Event::Plain(PlainEvent::Wait)));
        let Some(wake) = stream.wake_fn() else { return self.fall_back(stream) };
        pending.wake_with(wake);
        self.state.set(StreamState::Waiting(pending));
        HeadersStatus::StopAllIterationAndWatermark
    }

    fn fall_back(&self, stream: impl EnvoyStream) -> HeadersStatus {
        if is_route_off(&stream) {
            self.state.set(StreamState::Allowed(None));
            return HeadersStatus::Continue;
        }
        self.apply(stream, &self.failed_answer())
    }

    /// Returns the answer by the failure mode.
    fn failed_answer(&self) -> Answer {
        Answer::failed(wait_settings(&self.module.config).failure)
    }

    /// Applies an answer within the hook for request headers.
    fn apply(&self, mut stream: impl EnvoyStream, answer: &Answer) -> HeadersStatus {
        if self.record(&mut stream, answer) {
            return HeadersStatus::Continue;
        }
        send_denial(stream, &self.module, answer);
        plant("after_response");
        HeadersStatus::StopIteration
    }

    /// Applies an answer to a request that waited.
    fn apply_late(&self, mut stream: impl EnvoyStream, answer: &Answer) {
        if self.record(&mut stream, answer) {
            stream.continue_decoding();
        } else {
            send_denial(stream, &self.module, answer);
        }
    }

    /// Counts and records an answer, and returns `true` if the request continues. From here on, a
    /// panic must neither continue nor answer the request again.
    fn record(&self, stream: &mut impl EnvoyStream, answer: &Answer) -> bool {
        self.module.count(stream, events(answer));
        record_decision(stream, answer);
        let is_allowed = answer.verdict.is_allowed();
        let allowed = StreamState::Allowed(answer.reported);
        self.state.set(if is_allowed { allowed } else { StreamState::Ended });
        is_allowed
    }

    /// Takes the state of a waiting stream; leaves other states.
    fn state_or_put_back(&self) -> StreamState {
        match self.state.take() {
            waiting @ StreamState::Waiting(_) => waiting,
            state => {
                self.state.set(state);
                StreamState::Ended
            }
        }
    }
}

fn is_route_off(stream: &impl EnvoyStream) -> bool {
    stream.route_config().is_some_and(|route| !route.enabled)
}
