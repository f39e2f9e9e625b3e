//! Files that settings name, read anew for each connection.
//!
//! Guarantees: a file that is replaced or rotated, by a rename or through a link, is read as it is
//! when the next connection is made; no error has anything of what a file holds in it; at most
//! [`LARGEST`] bytes are read.
//! Leaves out: what a certificate must be ([`super::tls`]).

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use fred::error::{Error, ErrorKind};

use super::options::Password;

/// More than any chain of certificates or password takes.
const LARGEST: u64 = 1 << 20;

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
        move || read(&path)
    });
    let text = String::from_utf8(bytes.await?).map_err(|_| refused(&path, "is not UTF-8"))?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    let line = line.strip_suffix('\r').unwrap_or(line);
    if line.is_empty() || line.contains(['\n', '\0']) {
        return Err(refused(&path, "does not hold one line with a password"));
    }
    Ok(line.to_owned())
}

/// What the file holds.
///
/// # Errors
/// It cannot be read, or is too large.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(LARGEST + 1).read_to_end(&mut bytes));
    match read {
        Err(error) => Err(refused(path, &format!("cannot be read: {error}"))),
        Ok(_) if LARGEST < u64::try_from(bytes.len()).unwrap_or(u64::MAX) => {
            Err(refused(path, "holds more than a mebibyte"))
        }
        Ok(_) => Ok(bytes),
    }
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

/// What is wrong with a file.
pub(super) fn refused(path: &Path, why: &str) -> Error {
    Error::new(ErrorKind::Config, format!("the file {} {why}", path.display()))
}
