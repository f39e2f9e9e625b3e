//! Lets a request to the admin port pass, or refuses it.
//!
//! Guarantees:
//! - A page in a browser can make changes only from the admin port's own origin.
//! - The reply to a wrong token is delayed ([`WrongTokens`](super::wrong_tokens::WrongTokens)).
//! - Without a token, only clients that address this machine by IP or `localhost` are served.

use axum::extract::{Request, State};
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::access::AdminAccess;
use super::browser::{has_local_host, is_same_origin};
use super::port::Admin;
use super::wrong_tokens::TooManyWrongTokens;
use crate::http::connection::HttpPeer;
use crate::http::response::PLAIN;

/// Lets a request pass if its caller may use the path and the method.
pub(super) async fn authorize(
    State(admin): State<Admin>,
    mut request: Request,
    next: Next,
) -> Response {
    let access = &admin.access;
    let caller = access.caller(request.headers(), admin.engine.clock().steady()).await;
    // Also for public paths, whose replies would otherwise show at once whether a token is valid.
    if caller.is_none() && access.has_token_of(request.headers()) {
        let address = HttpPeer::from_extensions(request.extensions()).address();
        if let Err(TooManyWrongTokens) = access.wrong_tokens.delay(address).await {
            let message = "too many wrong tokens at the same time\n";
            return (StatusCode::TOO_MANY_REQUESTS, PLAIN, message).into_response();
        }
    }
    if admin.is_public(request.uri().path()) {
        if let Some(caller) = caller {
            request.extensions_mut().insert(caller);
        }
        return next.run(request).await;
    }
    let Some(caller) = caller else { return unauthorized(access) };
    if !access.has_tokens() && !has_local_host(request.headers()) {
        return refuse(
            "without an admin token, the Host header must be an IP address or localhost; \
             set admin.token_file",
        );
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        if let Some(why) = &caller.why_read_only {
            return refuse(why);
        }
        if !is_same_origin(request.headers()) {
            return refuse("a page of another origin must not make changes");
        }
    }
    request.extensions_mut().insert(caller);
    next.run(request).await
}

fn unauthorized(access: &AdminAccess) -> Response {
    let challenge = [(WWW_AUTHENTICATE, "Bearer")];
    let message = if access.has_tokens() {
        "a bearer token is required\n"
    } else {
        "a bearer token is required, but no admin token is set (admin.token_file)\n"
    };
    (StatusCode::UNAUTHORIZED, challenge, PLAIN, message).into_response()
}

fn refuse(why: &str) -> Response {
    (StatusCode::FORBIDDEN, PLAIN, format!("{why}\n")).into_response()
}
