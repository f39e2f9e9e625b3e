//! The tokens of the admin port, and the callers that have them.
//!
//! Guarantees:
//! - A token is compared in constant time.
//! - A token with the role `view` changes nothing.
//!
//! Not covered:
//! - TLS and single sign-on: use a reverse proxy that adds a token and the trusted header.

mod role;
mod tokens;

use std::path::Path;
use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;

use super::wrong_tokens::WrongTokens;
use crate::config::settings::{HeaderName, SecretText};
use crate::engine::actions::MAX_OPERATOR_BYTES;
use crate::kernel::units::Nanos;
pub use role::Role;
use tokens::TokenDirectory;

/// The name of the token in the setting `admin.token` or `admin.token_file`.
const SINGLE_TOKEN_NAME: &str = "admin";

/// The tokens of the admin port.
#[derive(Clone, Default)]
pub struct AdminAccess {
    /// The setting `admin.token` or `admin.token_file`: a token with the role `operate`.
    pub token: Option<SecretText>,
    /// `true` if this start created [`Self::token`].
    pub has_new_token: bool,
    /// The directory in the setting `admin.token_dir`.
    pub directory: Option<Arc<TokenDirectory>>,
    /// The setting `admin.trusted_header`: in a request with a valid token, this header has
    /// the operator's name.
    pub trusted_header: Option<HeaderName>,
    /// Serves the pages that envoyproxy/ratelimit has too (`/`, `/rlconfig` and `/stats`)
    /// without a token. The other paths still need a token.
    pub debug_pages: bool,
    /// The wrong tokens that clients sent.
    pub wrong_tokens: Arc<WrongTokens>,
}

/// The caller of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The name of the caller's token, or from the trusted header.
    pub name: Arc<str>,
    /// The role of the token.
    pub role: Role,
    /// The reason why this caller cannot make changes; `None` if it can.
    pub why_read_only: Option<Arc<str>>,
}

impl AdminAccess {
    /// Loads the tokens of `directory`.
    ///
    /// # Errors
    /// A message if the directory or a token in it cannot be read.
    pub fn with_directory(self, directory: &Path) -> Result<Self, String> {
        let directory = Some(Arc::new(TokenDirectory::open(directory)?));
        Ok(Self { directory, ..self })
    }

    pub(super) fn has_tokens(&self) -> bool {
        self.token.is_some() || self.directory.is_some()
    }

    /// Returns the caller of a request with these headers; `None` for a missing or wrong token.
    pub(super) async fn caller(&self, headers: &HeaderMap, now: Nanos) -> Option<Caller> {
        if let Some(directory) = &self.directory {
            directory.refresh(now).await;
        }
        self.find_caller(headers)
    }

    /// Returns `true` if a token is needed, and the headers have one, valid or not.
    pub(super) fn has_token_of(&self, headers: &HeaderMap) -> bool {
        self.has_tokens() && offered_token(headers).is_some()
    }

    fn find_caller(&self, headers: &HeaderMap) -> Option<Caller> {
        if !self.has_tokens() {
            let why = "changes are forbidden, because no admin token is set (admin.token_file)";
            let caller = Caller {
                name: "anonymous".into(),
                role: Role::View,
                why_read_only: Some(why.into()),
            };
            return (!self.debug_pages).then_some(caller);
        }
        let offered = offered_token(headers)?;
        let is_single = self.token.as_ref().is_some_and(|token| token.matches(offered));
        let (token_name, role) = if is_single {
            (SINGLE_TOKEN_NAME.into(), Role::Operate)
        } else {
            self.directory.as_ref()?.find(offered)?
        };
        let why = format!("the token `{token_name}` has the role view; a change needs operate");
        let why_read_only = (role == Role::View).then(|| why.into());
        let name = self.trusted_name(headers).unwrap_or(token_name);
        Some(Caller { name, role, why_read_only })
    }

    /// Returns the operator's name in the trusted header, without control characters.
    fn trusted_name(&self, headers: &HeaderMap) -> Option<Arc<str>> {
        let header = self.trusted_header.as_ref().filter(|name| !name.as_str().is_empty())?;
        let name = headers.get(header.as_str())?.to_str().ok()?.trim();
        let is_valid = !name.is_empty() && name.len() <= MAX_OPERATOR_BYTES;
        is_valid.then(|| name.into())
    }
}

fn offered_token(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(AUTHORIZATION)?.as_bytes().strip_prefix(b"Bearer ")
}
