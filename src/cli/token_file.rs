//! The file with the token of the admin port: `serve` creates it, and all commands read it.
//!
//! Guarantees:
//! - A created token has 128 random bits. Only the user of the process can read its file.
//! - An existing file is never changed. A file has a whole token as soon as it exists.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use ring::rand::SystemRandom;

use crate::config::settings::SecretText;

/// Reads the token in the file `path`.
///
/// # Errors
/// A message with the path if the file has no valid token of at least 16 characters.
pub(super) fn read(path: &Path) -> Result<SecretText, String> {
    let text = fs::read_to_string(path).map_err(|error| failed(path, &error))?;
    let token = SecretText::new(text.trim())
        .ok_or_else(|| failed(path, &"a token must be printable ASCII without blanks"))?;
    if token.is_short() {
        let why =
            "the token is shorter than 16 characters: remove the file, and restart the service";
        return Err(failed(path, &why));
    }
    Ok(token)
}

/// Reads the token in the file `path`. If there is no such file, first writes a random token into
/// it. Returns the token, and `true` if it is new.
///
/// # Errors
/// A message with the path if the file cannot be read or created.
pub(super) fn read_or_create(path: &Path) -> Result<(SecretText, bool), String> {
    let is_new = !path.exists() && create(path).map_err(|error| failed(path, &error))?;
    read(path).map(|token| (token, is_new))
}

/// Writes a random token into a new file. Returns `false` if another process created it first.
fn create(path: &Path) -> std::io::Result<bool> {
    let mut draft = path.as_os_str().to_owned();
    // The number of the process is 1 in every container, and a killed start leaves its draft.
    draft.push(format!(".{}", random_token()?));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
    file.write_all(random_token()?.as_bytes())?;
    let linked = fs::hard_link(&draft, path);
    fs::remove_file(&draft)?;
    match linked {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        linked => linked.map(|()| true),
    }
}

fn random_token() -> std::io::Result<String> {
    let bytes: [u8; 16] = ring::rand::generate(&SystemRandom::new())
        .map_err(|_| std::io::Error::other("the system has no random numbers for a token"))?
        .expose();
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

fn failed(path: &Path, cause: &dyn std::fmt::Display) -> String {
    format!("{}: {cause} (setting admin.token_file)", path.display())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_missing_file_gets_a_token_that_stays_and_is_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let (token, is_new) = read_or_create(&path).unwrap();
        assert!(is_new && token.reveal().len() == 32);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read_or_create(&path), Ok((token, false)));
        let other = folder.path().join("other");
        assert_ne!(read_or_create(&other).unwrap().0, read(&path).unwrap());
    }

    #[test]
    fn an_invalid_file_is_an_error_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        for (text, why) in
            [("", "printable"), ("two words of a token", "printable"), ("short", "16")]
        {
            fs::write(&path, text).unwrap();
            let error = read_or_create(&path).unwrap_err();
            assert!(error.contains(why) && error.contains("admin.token_file"), "{error}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert!(
            read_or_create(&folder.path().join("absent/token")).unwrap_err().contains("absent")
        );
    }
}
