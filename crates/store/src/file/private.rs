//! Opens the files of the file store so that only their owner can read them.
//!
//! Guarantees:
//! - A new directory has mode 0700, and a new file 0600.
//! - A file that others could read is closed to them when its owner opens it.
//!
//! Not covered:
//! - Modes of a directory that exists: it may be a volume.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// The bits of a mode for users other than the owner.
const OTHERS: u32 = 0o077;

/// Creates the directory and its missing parents.
pub(super) fn create_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(path)
}

/// Opens the file with these options. If `options` create it, only its owner can read it.
pub(super) fn open_file(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = options.mode(FILE_MODE).open(path)?;
    if file.metadata()?.permissions().mode() & OTHERS != 0 {
        // Fails if another user owns the file, which then decides about its mode.
        file.set_permissions(Permissions::from_mode(FILE_MODE)).ok();
    }
    Ok(file)
}
