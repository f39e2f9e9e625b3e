//! Answers health probes on the HTTP port while the process waits for the first limits, for the first
//! rows of its tables, or for the store.
//!
//! Guarantees:
//! - `/livez` succeeds, and readiness checks fail.
//! - Other requests get no reply, so that proxies try another replica.
//! - Idle connections delay no other connection, and close when the wait ends.
//!
//! Not covered:
//! - The duration of the wait.
//! - The listener of the HTTP port, which the service continues to use.

use std::convert::Infallible;
use std::fmt;
use std::future::ready;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::http::StatusCode;
use hyper::http::header::{CONTENT_TYPE, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use tokio::net::{TcpListener, TcpStream};

use crate::edge::brief_connections::BriefConnections;

/// The pause after a failed accept. Prevents a busy
/// loop when the process has no free file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Answers health probes on `port`, if any, as long as the future is polled.
/// Readiness probes get the text of `state` at that time.
pub(super) async fn answer_probes(
    port: Option<&TcpListener>,
    state: impl fmt::Display,
) -> Infallible {
    let Some(port) = port else { return std::future::pending().await };
    let mut connections = BriefConnections::default();
    loop {
        match port.accept().await {
            Ok((stream, _)) => connections.serve(serve_connection(stream, state.to_string())),
            Err(_) => tokio::time::sleep(ACCEPT_RETRY_DELAY).await,
        }
    }
}

async fn serve_connection(stream: TcpStream, state: String) {
    let respond =
        move |request: Request<Incoming>| ready(probe_reply(request.uri().path(), &state));
    let mut http = Builder::new(TokioExecutor::new()).http1_only();
    // One request per connection: the next request must reach the service itself.
    http.http1().timer(TokioTimer::new()).keep_alive(false);
    // Ignore the error of a client that disconnects.
    http.serve_connection(TokioIo::new(stream), service_fn(respond)).await.ok();
}

/// Replies to health probes as a process that is alive and not ready. An error closes the
/// connection: proxies then retry another replica, as they do not after an error reply.
fn probe_reply(path: &str, state: &str) -> std::io::Result<Response<String>> {
    let (status, text) = match path {
        "/livez" => (StatusCode::OK, "alive\n".to_owned()),
        "/readyz" => (StatusCode::SERVICE_UNAVAILABLE, format!("{state}\n")),
        "/healthcheck" => (StatusCode::INTERNAL_SERVER_ERROR, String::new()),
        _ => return Err(std::io::Error::other("the service is not ready")),
    };
    let mut answer = Response::new(text);
    *answer.status_mut() = status;
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(CONTENT_TYPE, text);
    Ok(answer)
}
