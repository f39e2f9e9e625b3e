//! Files that settings name, read anew for each connection.
//!
//! Guarantees: a file that is replaced or rotated, by a rename or through a link, is read as it is
//! when the next connection is made; no error has anything of what a file holds in it; at most
//! [`pem::LARGEST`] bytes are read.
//! Leaves out: what a certificate must be ([`super::tls`]).

use fred::error::{Error, ErrorKind};

use super::options::Password;
use crate::pem;

/// The password itself.
///
/// # Errors
/// Its file cannot be read, or holds none.
pub(super) async fn password(of: &Password) -> Result<String, Error> {
    let path = match of {
        Password::Plain(text) => return Ok(text.clone()),
        Password::File(path) => path.clone(),
    };
    let bytes = aside({
        let path = path.clone();
        move || pem::read(&path).map_err(|error| wrong(&error))
    });
    let text = String::from_utf8(bytes.await?)
        .map_err(|_| wrong(&pem::Error::of(&path, &"is not UTF-8")))?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.is_empty() || line.contains(['\n', '\0']) {
        return Err(wrong(&pem::Error::of(&path, &"does not hold one line with a password")));
    }
    Ok(line.to_owned())
}

/// Runs what may wait for a disk where it keeps nobody from answering.
pub(super) async fn aside<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(_gone) => Err(Error::new(ErrorKind::Canceled, "stopping")),
    }
}

/// What is wrong with a file, as the client's error.
pub(super) fn wrong(error: &pem::Error) -> Error {
    Error::new(ErrorKind::Config, format!("the file {error}"))
}
