//! `/debug/pprof`: where Go's services have their profiles, that of processors alone.
//!
//! Guarantees: what is not here is a 404 in words, never a 200, which a collector of profiles would keep as one.
//! Leaves out: taking one ([`take`]), and who may.

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_DISPOSITION, CONTENT_TYPE, HeaderName};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};

use super::super::{NO_SNIFFING, PLAIN};
use super::Admin;
use crate::telemetry::profile::{LONGEST, Refused, take};

/// Where the profile is.
pub(super) const PATH: &str = "/debug/pprof/profile";

const FILE: [(HeaderName, &str); 2] = [
    (CONTENT_TYPE, "application/octet-stream"),
    (CONTENT_DISPOSITION, "attachment; filename=\"profile\""),
];

pub(super) fn router() -> Router<Admin> {
    Router::new()
        .route(PATH, get(profile))
        .route("/debug/pprof", any(no_others))
        .route("/debug/pprof/", any(no_others))
        .route("/debug/pprof/{*of}", any(no_others))
}

async fn no_others() -> Response {
    let why = "of profiles there is one here, /debug/pprof/profile?seconds=30: where the process spends its time on \
               processors; what memory is for is on the metrics page\n";
    (StatusCode::NOT_FOUND, PLAIN, why).into_response()
}

async fn profile(
    State(mut admin): State<Admin>,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    let refused = |status, why: String| (status, PLAIN, why + "\n").into_response();
    let seconds = match seconds(&query) {
        Ok(seconds) => seconds,
        Err(why) => return refused(StatusCode::BAD_REQUEST, why),
    };
    let taken = tokio::select! {
        taken = take(seconds) => taken,
        _ = admin.leaving.wait_for(|leaving| *leaving) => {
            return refused(StatusCode::SERVICE_UNAVAILABLE, "the service is leaving".to_owned());
        }
    };
    match taken {
        Ok(profile) => (FILE, NO_SNIFFING, profile).into_response(),
        Err(why @ Refused::Busy) => refused(StatusCode::CONFLICT, why.to_string()),
        Err(why @ Refused::Failed(_)) => {
            refused(StatusCode::INTERNAL_SERVER_ERROR, why.to_string())
        }
        Err(why @ Refused::CannotLook(_)) => {
            let cure = "`perf record -g -p PID` from outside makes one for who may";
            refused(StatusCode::NOT_IMPLEMENTED, format!("{why}; {cure}"))
        }
    }
}

/// For how long; 30 as Go's where nothing is said.
fn seconds(query: &[(String, String)]) -> Result<u64, String> {
    let Some((_, said)) = query.iter().find(|(name, _)| name == "seconds") else { return Ok(30) };
    let longest = LONGEST.as_secs();
    let seconds = said.parse().ok().filter(|seconds| (1..=longest).contains(seconds));
    seconds.ok_or_else(|| format!("seconds={said}: a whole number from 1 to {longest} is wanted"))
}
