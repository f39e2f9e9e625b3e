//! Reads the password and certificate files of the settings, again for each connection.
//!
//! Guarantees:
//! - A replaced file takes effect at the next connection, also if the path is a symbolic link.
//! - No error contains a file's content.
//! - At most [`pem::MAX_FILE_BYTES`] bytes of a file are read.

use fred::error::{Error, ErrorKind};

use super::options::Password;
use crate::pem;

/// Returns the password, read from its file if the settings name a file. Fails if the file cannot
/// be read, or does not contain exactly one line.
pub(crate) async fn read_password(source: &Password) -> Result<String, Error> {
    let path = match source {
        Password::Plain(text) => return Ok(text.clone()),
        Password::File(path) => path.clone(),
    };
    let bytes = run_blocking({
        let path = path.clone();
        move || pem::read_file(&path).map_err(|error| file_error(&error))
    });
    let text = String::from_utf8(bytes.await?)
        .map_err(|_| file_error(&pem::PemError::new(&path, &"not UTF-8 text")))?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.is_empty() || line.contains(['\n', '\0']) {
        return Err(file_error(&pem::PemError::new(
            &path,
            &"must contain one line with the password",
        )));
    }
    Ok(line.to_owned())
}

/// Runs `work`, which may block, in a thread outside the async runtime's workers.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(_panicked) => Err(Error::new(ErrorKind::Canceled, "stopping")),
    }
}

pub(super) fn file_error(error: &pem::PemError) -> Error {
    Error::new(ErrorKind::Config, error.to_string())
}
