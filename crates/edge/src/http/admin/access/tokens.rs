//! The named tokens of the admin port: one file each, such as `operate.alice` or `view.grafana`.
//!
//! Guarantees:
//! - A new, changed or removed file applies within a second of the next request.
//! - While a file or its name is invalid, no token of the directory is valid.
//! - A token has at least 16 characters.
//!
//! Not covered:
//! - The randomness of tokens.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use super::role::Role;
use crate::config::settings::SecretText;
use crate::engine::actions::MAX_OPERATOR_BYTES;
use crate::kernel::units::Nanos;

/// The directory is read again after this time.
const MAX_AGE: Nanos = Nanos::SECOND;

/// A directory with one token in each file.
pub struct TokenDirectory {
    path: PathBuf,
    loaded: Mutex<(Option<Nanos>, Vec<NamedToken>)>,
}

/// The error for a token of fewer than [`SecretText::SHORTEST`] characters.
const SHORT_TOKEN: &str =
    "the token is shorter than 16 characters: create one with `openssl rand -hex 16`";

struct NamedToken {
    name: Arc<str>,
    role: Role,
    secret: SecretText,
}

impl TokenDirectory {
    /// Reads the directory once.
    ///
    /// # Errors
    /// A message if the directory or a token in it cannot be read.
    pub fn open(path: &Path) -> Result<Self, String> {
        let tokens = read_tokens(path)?;
        Ok(Self { path: path.into(), loaded: Mutex::new((None, tokens)) })
    }

    /// Reads the directory again if that was last done a second ago. `now` is an instant of the steady
    /// clock.
    pub(super) async fn refresh(&self, now: Nanos) {
        let is_old = |read_at| MAX_AGE <= now.since(read_at);
        if !self.loaded.lock().0.is_none_or(is_old) {
            return;
        }
        let path = self.path.clone();
        // Files may be on a slow disk, and this thread decides checks.
        let read = tokio::task::spawn_blocking(move || read_tokens(&path)).await;
        let tokens = read.unwrap_or_else(|panic| Err(panic.to_string())).unwrap_or_else(|error| {
            tracing::warn!("{error}");
            Vec::new()
        });
        *self.loaded.lock() = (Some(now), tokens);
    }

    /// Returns the name and the role of the token `offered`.
    pub(super) fn find(&self, offered: &[u8]) -> Option<(Arc<str>, Role)> {
        let loaded = self.loaded.lock();
        let token = loaded.1.iter().find(|token| token.secret.matches(offered))?;
        Some((Arc::clone(&token.name), token.role))
    }
}

fn read_tokens(directory: &Path) -> Result<Vec<NamedToken>, String> {
    let failed = |path: &Path, cause: &dyn std::fmt::Display| {
        format!("{}: {cause} (setting admin.token_dir)", path.display())
    };
    let mut tokens = Vec::new();
    for file in fs::read_dir(directory).map_err(|error| failed(directory, &error))? {
        let path = file.map_err(|error| failed(directory, &error))?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        // Kubernetes keeps the versions of a mounted secret in files that start with a dot.
        if name.starts_with('.') {
            continue;
        }
        let (role, name) = parse_file_name(name).ok_or_else(|| {
            failed(&path, &"the name of a token file must be view.NAME or operate.NAME")
        })?;
        let text = fs::read_to_string(&path).map_err(|error| failed(&path, &error))?;
        let secret = SecretText::new(text.trim())
            .ok_or_else(|| failed(&path, &"a token must be printable ASCII without blanks"))?;
        if secret.is_short() {
            return Err(failed(&path, &SHORT_TOKEN));
        }
        tokens.push(NamedToken { name: name.into(), role, secret });
    }
    Ok(tokens)
}

fn parse_file_name(name: &str) -> Option<(Role, &str)> {
    let (role, name) = name.split_once('.')?;
    let role = [Role::View, Role::Operate].into_iter().find(|known| known.as_str() == role)?;
    (!name.is_empty() && name.len() <= MAX_OPERATOR_BYTES).then_some((role, name))
}
