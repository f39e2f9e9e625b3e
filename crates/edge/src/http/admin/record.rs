//! Serves `/record`: streams the checks of this replica as a recording.
//!
//! Guarantees:
//! - The recording ends when the client disconnects.
//! - It has an operator and a reason, and an entry in the audit log.
//! - An invalid query gets status 400 with the cause, a second recording 409.
//!
//! Not covered:
//! - The content of the recording (see [`crate::engine::recorder`]).

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::stream;

use super::actions::{ChangeQuery, QueryPairs};
use super::port::Admin;
use crate::config::resolve::duration;
use crate::engine::Engine;
use crate::engine::actions::{AuditEntry, Operator};
use crate::engine::recorder::{RecordError, RecordedKeys, RecordingOptions, RecordingStream};
use crate::http::response::PLAIN;
use crate::kernel::units::Nanos;
use crate::recording::percent::Percent;

const DEFAULT_DURATION: Nanos = Nanos::from_secs(600);

pub(super) async fn record(
    State(admin): State<Admin>,
    Query(query): Query<QueryPairs>,
    change: ChangeQuery,
) -> Response {
    let options = match parse_options(&query) {
        Ok(options) => options,
        Err(message) => return text(StatusCode::BAD_REQUEST, &message),
    };
    let operator = change.operator();
    if let Err(error) = admin.engine.validate_operator(operator) {
        return text(StatusCode::BAD_REQUEST, &error.to_string());
    }
    let recording = match admin.engine.start_recording(options) {
        Ok(recording) => recording,
        Err(error) => return text(status_of(error), &error.to_string()),
    };
    admin.engine.append_audit(audit_entry(&admin.engine, options, operator)).await;
    ([(CONTENT_TYPE, "application/octet-stream")], body_of(recording)).into_response()
}

fn audit_entry(engine: &Engine, options: RecordingOptions, operator: Operator<'_>) -> AuditEntry {
    let RecordingOptions { sample, duration, keys } = options;
    let value = format!("{} keys, {sample} of the descriptors", keys.name());
    AuditEntry {
        value: Some(value.into()),
        duration_ms: Some(duration.0 / Nanos::MILLI.0),
        ..engine.audit_entry("record", "", operator)
    }
}

/// Returns the recording as a body. hyper drops the body, and so ends the recording, when the client
/// disconnects.
fn body_of(recording: RecordingStream) -> Body {
    Body::from_stream(stream::unfold(recording, |mut recording| async {
        let bytes = recording.next_bytes().await?;
        Some((Ok::<_, Infallible>(bytes), recording))
    }))
}

fn parse_options(query: &[(String, String)]) -> Result<RecordingOptions, String> {
    let mut options = RecordingOptions {
        sample: Percent::ALL,
        duration: DEFAULT_DURATION,
        keys: RecordedKeys::Hashed,
    };
    for (name, text) in query {
        match &**name {
            "sample" => {
                options.sample = Percent::parse(text)
                    .ok_or_else(|| format!("`sample` must be like 1%, got `{text}`"))?;
            }
            "for" => {
                options.duration = duration::parse(text)
                    .map_err(|_| format!("`for` must be a duration such as 10m, got `{text}`"))?;
            }
            "keys" => {
                options.keys = RecordedKeys::parse(text)
                    .ok_or_else(|| format!("`keys` must be hashed or clear, got `{text}`"))?;
            }
            "reason" => {}
            other => {
                return Err(format!(
                    "unknown parameter `{other}`; use sample, for, keys and reason"
                ));
            }
        }
    }
    Ok(options)
}

const fn status_of(error: RecordError) -> StatusCode {
    match error {
        RecordError::AlreadyRecording => StatusCode::CONFLICT,
        RecordError::InvalidDuration => StatusCode::BAD_REQUEST,
        RecordError::NoConfig | RecordError::NoRandomNumbers => StatusCode::SERVICE_UNAVAILABLE,
    }
}

fn text(status: StatusCode, message: &str) -> Response {
    (status, PLAIN, format!("{message}\n")).into_response()
}
