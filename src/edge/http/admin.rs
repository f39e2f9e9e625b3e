//! The admin port: what is loaded, and why a question would be answered as it would.
//!
//! Guarantees: with a token, nothing is shown without it; asking changes nothing and charges
//! nothing.
//! Leaves out: which address it listens on. Whoever binds it beyond loopback must set a token.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, Request, State};
use axum::http::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::Value;

use super::{JSON, PLAIN};

/// What the admin port shows.
#[derive(Clone)]
pub struct Admin {
    /// What callers send as `Authorization: Bearer …`, if they must.
    pub token: Option<Arc<str>>,
    /// `/config`.
    pub config: Arc<dyn Fn() -> Value + Send + Sync>,
    /// `/rlconfig`.
    pub rlconfig: Arc<dyn Fn() -> String + Send + Sync>,
    /// `/explain`.
    pub explain: Arc<dyn Fn(&Explain) -> Value + Send + Sync>,
}

/// What `/explain` is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explain {
    /// The domain.
    pub domain: String,
    /// The descriptors, each a list of keys and values.
    pub descriptors: Vec<Vec<(String, String)>>,
    /// What the question would cost.
    pub hits: u64,
}

/// The paths and what they are for, as `/` lists them.
const PATHS: [(&str, &str); 4] = [
    ("/", "this list"),
    ("/config", "what is loaded, what was refused and why, as JSON"),
    ("/explain", "what would match: ?domain=d&descriptor=k=v,k2=v2&hits=1, as JSON"),
    ("/rlconfig", "every limit, one a line"),
];

/// `/config`, `/rlconfig`, `/explain`; every other path lists them.
pub fn router(admin: Admin) -> Router {
    Router::new()
        .route(
            "/config",
            get(async |State(admin): State<Admin>| (JSON, (admin.config)().to_string())),
        )
        .route("/rlconfig", get(async |State(admin): State<Admin>| (PLAIN, (admin.rlconfig)())))
        .route("/explain", get(explain))
        .fallback(async || (PLAIN, list()))
        .layer(from_fn_with_state(admin.clone(), admit))
        .with_state(admin)
}

fn list() -> String {
    let line = |(path, help): &(&str, &str)| [*path, ": ", *help, "\n"].concat();
    PATHS.iter().map(line).collect()
}

async fn explain(
    State(admin): State<Admin>,
    Query(query): Query<Vec<(String, String)>>,
) -> Response {
    match Explain::read(query) {
        Ok(asked) => (JSON, (admin.explain)(&asked).to_string()).into_response(),
        Err(why) => (StatusCode::BAD_REQUEST, PLAIN, why + "\n").into_response(),
    }
}

impl Explain {
    /// Reads the query's pairs.
    ///
    /// # Errors
    /// A sentence for the person who asked.
    pub fn read(query: Vec<(String, String)>) -> Result<Self, String> {
        let mut asked = Self { hits: 1, ..Self::default() };
        for (name, value) in query {
            match &*name {
                "domain" => asked.domain = value,
                "descriptor" => asked.descriptors.push(entries(&value)?),
                "hits" => asked.hits = hits(&value)?,
                _ => return Err(format!("`{name}` is not domain, descriptor or hits")),
            }
        }
        if asked.domain.is_empty() || asked.descriptors.is_empty() {
            return Err("a domain and at least one descriptor are needed: \
                        /explain?domain=d&descriptor=k=v,k2=v2"
                .to_owned());
        }
        Ok(asked)
    }
}

fn entries(text: &str) -> Result<Vec<(String, String)>, String> {
    let entry = |part: &str| {
        let (key, value) = part
            .split_once('=')
            .ok_or_else(|| format!("`{part}` is not an entry; one is written key=value"))?;
        Ok((key.to_owned(), value.to_owned()))
    };
    text.split(',').map(entry).collect()
}

fn hits(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("hits `{text}` is not a whole number"))
}

async fn admit(State(admin): State<Admin>, request: Request, next: Next) -> Response {
    let known = admin.token.is_none_or(|token| bears(request.headers(), &token));
    if known {
        return next.run(request).await;
    }
    let challenge = [(WWW_AUTHENTICATE, "Bearer")];
    (StatusCode::UNAUTHORIZED, challenge, PLAIN, "a bearer token is needed\n").into_response()
}

fn bears(headers: &HeaderMap, token: &str) -> bool {
    let shown =
        headers.get(AUTHORIZATION).and_then(|value| value.as_bytes().strip_prefix(b"Bearer "));
    shown.is_some_and(|shown| same(shown, token.as_bytes()))
}

/// Looks at every byte whatever it finds, so that the time taken tells nothing of the token.
fn same(shown: &[u8], token: &[u8]) -> bool {
    let differing = shown.iter().zip(token).fold(0, |seen, (a, b)| seen | (a ^ b));
    shown.len() == token.len() && std::hint::black_box(differing) == 0
}
