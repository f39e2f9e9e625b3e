//! A table in a file over HTTP: CSV or JSON lines.
//!
//! Guarantees:
//! - A file with the same `ETag` is not sent again.
//! - A reply that is cut off, empty, a redirect or an error page changes nothing.
//! - The token is read again for each request, the CA file after a failure.
//! - A read ends within [`READ_TIMEOUT`], after at most [`MAX_BYTES`] bytes.

use std::path::PathBuf;
use std::time::Duration;

use futures_util::future::BoxFuture;
use http_body_util::BodyExt as _;
use hyper::body::{Bytes, Incoming};
use hyper::http::header::{
    AUTHORIZATION, CONTENT_LENGTH, ETAG, HeaderValue, IF_NONE_MATCH, TRANSFER_ENCODING, USER_AGENT,
};
use hyper::http::{Request, Response, StatusCode};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::server::{RowRead, RowServer, RowsEnd};
use crate::telemetry::http_client::{ClientTlsFiles, HttpClient};
use crate::telemetry::{pem, with_causes};

/// The longest duration of one read.
const READ_TIMEOUT: Duration = Duration::from_secs(300);

/// The longest wait for the head of a reply, or for its next bytes.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// The largest file, in bytes.
const MAX_BYTES: usize = 4 << 30;

/// A file over HTTP.
#[derive(Debug)]
pub struct HttpRows {
    url: String,
    token_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
    client: Option<HttpClient>,
    /// The `ETag` of the last good reply.
    version: Option<HeaderValue>,
}

impl HttpRows {
    /// Creates a reader that connects at the first read. The token is sent as `Authorization: Bearer`.
    #[must_use]
    pub const fn new(url: String, token_file: Option<PathBuf>, ca_file: Option<PathBuf>) -> Self {
        Self { url, token_file, ca_file, client: None, version: None }
    }

    async fn read_in_time(&mut self, rows: mpsc::Sender<Bytes>) -> Result<RowsEnd, String> {
        let request = self.request().await?;
        let reply = self.client()?.start(request).await.map_err(|error| with_causes(&*error))?;
        let is_known = self.version.is_some();
        match reply.status() {
            StatusCode::NOT_MODIFIED if is_known => return Ok(RowsEnd::Same),
            StatusCode::OK => {}
            other => return Err(format!("the server replied `{other}`{}", fix_of(other))),
        }
        let version = reply.headers().get(ETAG).cloned();
        send_body(reply, &rows).await?;
        self.version = version;
        Ok(RowsEnd::Sent(None))
    }

    async fn request(&self) -> Result<Request<Bytes>, String> {
        let mut request = Request::get(&self.url).header(USER_AGENT, "sluicegate");
        if let Some(version) = &self.version {
            request = request.header(IF_NONE_MATCH, version);
        }
        if let Some(path) = self.token_file.clone() {
            let read = tokio::task::spawn_blocking(move || read_token(&path)).await;
            request = request.header(AUTHORIZATION, read.map_err(|error| error.to_string())??);
        }
        request.body(Bytes::new()).map_err(|error| error.to_string())
    }

    fn client(&mut self) -> Result<HttpClient, String> {
        if self.client.is_none() {
            let ca_file = self.ca_file.as_ref().map(|path| path.display().to_string());
            let files = ClientTlsFiles { ca_file, identity: None };
            self.client = Some(HttpClient::new(&files, REPLY_TIMEOUT)?);
        }
        self.client.clone().ok_or_else(|| "no client".to_owned())
    }
}

impl RowServer for HttpRows {
    fn tells_sameness(&self) -> bool {
        self.version.is_some()
    }

    fn read(
        &mut self,
        _: RowRead,
        rows: mpsc::Sender<Bytes>,
    ) -> BoxFuture<'_, Result<RowsEnd, String>> {
        Box::pin(async move {
            let read = timeout(READ_TIMEOUT, self.read_in_time(rows)).await;
            let read =
                read.unwrap_or_else(|_| Err(format!("the read took longer than {READ_TIMEOUT:?}")));
            if read.is_err() {
                (self.client, self.version) = (None, None);
            }
            read
        })
    }
}

/// Returns the fix for a status, if there is one.
fn fix_of(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => "; check `token_file`",
        other if other.is_redirection() => "; write the final URL into `source`",
        _ => "",
    }
}

/// Returns the header value with the token in a file.
fn read_token(path: &std::path::Path) -> Result<HeaderValue, String> {
    let bytes = pem::read_file(path).map_err(|error| error.to_string())?;
    let token = [b"Bearer ", bytes.trim_ascii()].concat();
    let mut value = HeaderValue::from_bytes(&token)
        .map_err(|_| format!("{}: must contain one line with the token", path.display()))?;
    value.set_sensitive(true);
    Ok(value)
}

async fn send_body(reply: Response<Incoming>, rows: &mpsc::Sender<Bytes>) -> Result<(), String> {
    // Without either header, the end of the connection ends the body, also if the server died.
    if ![CONTENT_LENGTH, TRANSFER_ENCODING].iter().any(|name| reply.headers().contains_key(name)) {
        return Err("the reply has no `Content-Length` and no chunks, so a cut would not be seen"
            .to_owned());
    }
    let (mut body, mut count, mut last) = (reply.into_body(), 0, None);
    loop {
        let frame = timeout(REPLY_TIMEOUT, body.frame()).await;
        let Some(frame) =
            frame.map_err(|_| format!("the server sent nothing for {REPLY_TIMEOUT:?}"))?
        else {
            break;
        };
        let frame = frame.map_err(|error| with_causes(&error))?;
        let Ok(chunk) = frame.into_data() else { continue };
        count += chunk.len();
        if MAX_BYTES < count {
            return Err(format!("the reply is larger than {MAX_BYTES} bytes"));
        }
        last = chunk.last().copied().or(last);
        if rows.send(chunk).await.is_err() {
            return Err("the rows were refused".to_owned());
        }
    }
    match last {
        Some(b'\n') => Ok(()),
        Some(_) => Err("the last line has no end, so the reply may be cut off".to_owned()),
        None => Err("the reply is empty".to_owned()),
    }
}
