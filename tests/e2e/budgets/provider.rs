//! An LLM provider that streams its replies, and reports their usage at the end.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use futures_util::{StreamExt as _, stream};

/// The tokens of each reply: 100 input tokens, of which 60 are cached, and 20 output tokens.
pub(super) const USED: u64 = 120;

const EVENT_STREAM: &str = "text/event-stream";

/// The pause between two events of `/chat`.
const PAUSE: Duration = Duration::from_millis(5);

/// The events of `/chat` before its usage.
const EVENTS: usize = 6;

/// A provider. It answers until the test binary exits.
pub(super) struct Provider {
    pub(super) address: SocketAddr,
    pub(super) record: Arc<Record>,
}

/// What the provider did.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// Requests that arrived.
    pub(super) arrived: AtomicU64,
    /// Requests that arrived with an `accept-encoding`.
    pub(super) compressed: AtomicU64,
    /// Tokens that the provider works for: of all replies with 200, also of those that a client left.
    pub(super) served: AtomicU64,
    /// Replies to `/burst` wait for this number of requests.
    pub(super) burst: AtomicU64,
}

impl Provider {
    pub(super) fn start() -> Self {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let (address, record) = (listener.local_addr().unwrap(), Arc::new(Record::default()));
        let shared = Arc::clone(&record);
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::TcpListener::from_std(listener).unwrap();
                let app = Router::new()
                    .fallback(move |request: Request<Body>| answer(Arc::clone(&shared), request));
                axum::serve(listener, app).await.unwrap();
            });
        });
        Self { address, record }
    }
}

/// Replies as the path says: with a status, or a body with or without usage.
async fn answer(record: Arc<Record>, request: Request<Body>) -> Response {
    record.arrived.fetch_add(1, SeqCst);
    let is_compressed = request.headers().contains_key(header::ACCEPT_ENCODING);
    record.compressed.fetch_add(is_compressed.into(), SeqCst);
    if let Some(status) = refusal(request.uri()) {
        return status.into_response();
    }
    record.served.fetch_add(USED, SeqCst);
    match request.uri().path() {
        "/openai" => whole(EVENT_STREAM, OPENAI),
        "/anthropic" => whole(EVENT_STREAM, ANTHROPIC),
        "/gemini" => whole(EVENT_STREAM, GEMINI),
        "/json" => whole("application/json", JSON),
        "/embeddings" => whole("application/json", EMBEDDINGS),
        "/no-usage" => whole(EVENT_STREAM, WORD),
        // The first event, and then nothing until the client leaves.
        "/endless" => streamed(stream::iter([WORD.to_owned()]).chain(stream::pending())),
        "/silent" => std::future::pending().await,
        "/burst" => {
            while record.arrived.load(SeqCst) < record.burst.load(SeqCst) {
                tokio::time::sleep(PAUSE).await;
            }
            whole(EVENT_STREAM, OPENAI)
        }
        "/chat" => {
            let words = stream::iter(0..EVENTS).then(async |_| {
                tokio::time::sleep(PAUSE).await;
                WORD.to_owned()
            });
            streamed(words.chain(stream::iter([OPENAI.to_owned()])))
        }
        path => panic!("no reply for {path}"),
    }
}

fn refusal(uri: &Uri) -> Option<StatusCode> {
    uri.path().strip_prefix("/status/").map(|status| status.parse().unwrap())
}

fn whole(content_type: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, content_type)], text).into_response()
}

fn streamed(events: impl futures_util::Stream<Item = String> + Send + 'static) -> Response {
    let body = Body::from_stream(events.map(Ok::<_, Infallible>));
    ([(header::CONTENT_TYPE, EVENT_STREAM)], body).into_response()
}

const WORD: &str = "data: {\"model\":\"large\",\"choices\":[{\"delta\":{\"content\":\"word\"}}],\"usage\":null}\n\n";

/// With `stream_options: {include_usage: true}`.
const OPENAI: &str = concat!(
    "data: {\"model\":\"large\",\"choices\":[{\"delta\":{\"content\":\"word\"}}],\"usage\":null}\n\n",
    "data: {\"model\":\"large\",\"choices\":[],\"usage\":{\"prompt_tokens\":100,\"completion_tokens\":20,\
     \"total_tokens\":120,\"prompt_tokens_details\":{\"cached_tokens\":60}}}\n\n",
    "data: [DONE]\n\n"
);

const ANTHROPIC: &str = concat!(
    "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"large\",\"usage\":\
     {\"input_tokens\":40,\"cache_read_input_tokens\":60,\"output_tokens\":1}}}\n\n",
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":7}}\n\n",
    "event: message_delta\ndata: {\"type\":\"message_delta\",\"usage\":{\"output_tokens\":20}}\n\n",
    "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"
);

/// With `alt=sse`.
const GEMINI: &str = concat!(
    "data: {\"candidates\":[{}],\"usageMetadata\":{\"promptTokenCount\":100,\"candidatesTokenCount\":3}}\r\n\r\n",
    "data: {\"candidates\":[{}],\"usageMetadata\":{\"promptTokenCount\":100,\"cachedContentTokenCount\":60,\
     \"candidatesTokenCount\":15,\"thoughtsTokenCount\":5}}\r\n\r\n"
);

const JSON: &str = "{\"model\":\"large\",\"choices\":[{}],\"usage\":{\"prompt_tokens\":100,\
     \"completion_tokens\":20,\"prompt_tokens_details\":{\"cached_tokens\":60}}}";

/// Embeddings have no output tokens.
const EMBEDDINGS: &str =
    "{\"model\":\"large\",\"data\":[],\"usage\":{\"prompt_tokens\":120,\"total_tokens\":120}}";
