//! Lists and reads the files below the configured paths.
//!
//! Guarantees:
//! - Files with any extension are read, as in envoyproxy/ratelimit.
//! - Files whose names begin with a dot are skipped unless enabled, so that Kubernetes' `..data` is
//!   not read twice.
//! - Backups and swap files of editors are skipped.
//! - Files are sorted by name.
//! - The number and sizes of files are bounded.
//!
//! Not covered:
//! - Symbolic links to directories below a configured path: they are skipped.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::hash::{Hash, Hasher};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use siphasher::sip::SipHasher13;

use crate::source::{SourceReadError, TextFile};

/// The maximum size of a file, in bytes. 100,000 limits need about 10 MB.
pub const MAX_FILE_BYTES: u64 = 64 << 20;
/// The maximum total size of all files, in bytes. It is bounded because all files are in memory at
/// the same time.
pub const MAX_TOTAL_BYTES: u64 = 256 << 20;
/// The maximum number of files of limits.
pub const MAX_FILES: usize = 10_000;
/// The maximum number of directories between a configured path and a file. Bounds the depth of
/// recursion.
pub const MAX_DEPTH: usize = 32;

/// The filter for files below the configured paths.
#[derive(Clone, Debug, Default)]
pub struct FileFilter {
    /// The required prefix of a file's name, followed by a dot. Here, the name is the path below
    /// the configured directory with dots for slashes: `config` matches the file `config/a.yaml`.
    /// An empty prefix matches every file.
    pub prefix: String,
    /// Includes files and directories whose names begin with a dot.
    pub dot_files: bool,
    /// Treats a missing configured path as an empty directory.
    pub optional: bool,
}

impl FileFilter {
    /// Returns `true` if the file at `path`, which is below `root`, has the required
    /// [`Self::prefix`].
    fn matches_prefix(&self, root: &Path, path: &Path) -> bool {
        if self.prefix.is_empty() {
            return true;
        }
        let below = path.strip_prefix(root).unwrap_or(path);
        let name = below.to_string_lossy().replace('/', ".");
        name.strip_prefix(&*self.prefix).is_some_and(|rest| rest.starts_with('.'))
    }

    fn skips(&self, name: &OsStr) -> bool {
        if name.as_encoded_bytes().starts_with(b".") {
            return !self.dot_files;
        }
        is_editor_file(name)
    }
}

/// The files and directories below the configured paths, before the files are read.
#[derive(Debug, Default)]
pub(super) struct FileListing {
    pub(super) files: Vec<ListedFile>,
    pub(super) directories: Vec<PathBuf>,
    /// The skipped paths, which are neither regular files nor directories.
    pub(super) skipped: Vec<PathBuf>,
    bytes: u64,
    /// A hash that changes when a file is written, replaced, added or removed.
    pub(super) fingerprint: u64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct ListedFile {
    name: String,
    path: PathBuf,
    /// The inode number, the size, and the time of the last change of content or inode (`ctime`:
    /// seconds, nanoseconds).
    change_marker: [u64; 4],
}

/// Reads the files below `paths`, sorted by name.
///
/// # Errors
///
/// The first file or directory that cannot be read, or the first exceeded bound.
pub fn read_tree(paths: &[PathBuf]) -> Result<Vec<TextFile>, SourceReadError> {
    let (listing, error) = list_files(paths, &FileFilter::default());
    error.map_or_else(|| read_files(&listing), Err)
}

/// Lists the files below `paths`. After an error, the listing contains the files found so far.
pub(super) fn list_files(
    paths: &[PathBuf],
    tree: &FileFilter,
) -> (FileListing, Option<SourceReadError>) {
    let mut listing = FileListing::default();
    let mut error = None;
    for path in paths {
        // Skip only a missing path. Skipping a path that is not accessible would remove its limits.
        if tree.optional && matches!(path.try_exists(), Ok(false)) {
            continue;
        }
        let before = listing.files.len();
        if let Err(failed) = listing.add_path(path, tree) {
            error = error.or(Some(failed));
        }
        let mut position = 0;
        listing.files.retain(|file| {
            position += 1;
            position <= before || tree.matches_prefix(path, &file.path)
        });
    }
    listing.files.sort_unstable();
    listing.files.dedup_by(|a, b| a.name == b.name);
    let mut hasher = SipHasher13::new();
    (&listing.files, error.as_ref().map(ToString::to_string)).hash(&mut hasher);
    listing.fingerprint = hasher.finish();
    (listing, error)
}

pub(super) fn read_files(listing: &FileListing) -> Result<Vec<TextFile>, SourceReadError> {
    let read = listing.files.iter().map(|file| {
        let bytes = read_file(&file.path)?;
        Ok(TextFile { name: Arc::from(file.name.as_str()), bytes })
    });
    read.collect()
}

fn read_file(path: &Path) -> Result<Vec<u8>, SourceReadError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
        .map_err(unreadable_error(path))?;
    // The file may have grown since it was listed.
    check_file_size(MAX_FILE_BYTES, bytes.len() as u64, path).map(|()| bytes)
}

fn check_file_size(most: u64, bytes: u64, path: &Path) -> Result<(), SourceReadError> {
    if most < bytes {
        return Err(SourceReadError::TooLarge { path: path.to_owned(), most });
    }
    Ok(())
}

impl FileListing {
    /// Adds the files below a configured path. Follows a symbolic link at the configured path
    /// itself.
    fn add_path(&mut self, path: &Path, tree: &FileFilter) -> Result<(), SourceReadError> {
        let metadata = fs::metadata(path).map_err(unreadable_error(path))?;
        if metadata.is_dir() {
            return self.add_directory(path, 0, tree);
        }
        if !metadata.is_file() {
            return Err(SourceReadError::NeitherFileNorDirectory { path: path.to_owned() });
        }
        self.add_file(path, &metadata)
    }

    fn add_directory(
        &mut self,
        path: &Path,
        depth: usize,
        tree: &FileFilter,
    ) -> Result<(), SourceReadError> {
        if depth > MAX_DEPTH {
            return Err(SourceReadError::TooDeep { path: path.to_owned(), most: MAX_DEPTH });
        }
        self.directories.push(path.to_owned());
        for entry in fs::read_dir(path).map_err(unreadable_error(path))? {
            let entry = entry.map_err(unreadable_error(path))?;
            if !tree.skips(&entry.file_name()) {
                self.add_entry(&entry.path(), depth, tree)?;
            }
        }
        Ok(())
    }

    fn add_entry(
        &mut self,
        path: &Path,
        depth: usize,
        tree: &FileFilter,
    ) -> Result<(), SourceReadError> {
        let link_metadata = match fs::symlink_metadata(path) {
            // The file was deleted after the directory was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            own => own.map_err(unreadable_error(path))?,
        };
        if link_metadata.is_dir() {
            return self.add_directory(path, depth + 1, tree);
        }
        let metadata = fs::metadata(path).map_err(unreadable_error(path))?;
        if metadata.is_file() {
            return self.add_file(path, &metadata);
        }
        self.skipped.push(path.to_owned());
        Ok(())
    }

    fn add_file(&mut self, path: &Path, metadata: &Metadata) -> Result<(), SourceReadError> {
        if self.files.len() >= MAX_FILES {
            return Err(SourceReadError::TooManyFiles { path: path.to_owned(), most: MAX_FILES });
        }
        check_file_size(MAX_FILE_BYTES, metadata.len(), path)?;
        self.bytes = self.bytes.saturating_add(metadata.len());
        if self.bytes > MAX_TOTAL_BYTES {
            let path = path.to_owned();
            return Err(SourceReadError::TotalTooLarge { path, most: MAX_TOTAL_BYTES });
        }
        let changed = [metadata.ctime(), metadata.ctime_nsec()].map(i64::cast_unsigned);
        let state = [metadata.ino(), metadata.len(), changed[0], changed[1]];
        let name = path.to_string_lossy().into_owned();
        self.files.push(ListedFile { name, path: path.to_owned(), change_marker: state });
        Ok(())
    }
}

/// Returns `true` if `name` is a temporary file of an editor: a backup, a swap file, or `4913`,
/// which Vim creates to test for write access.
fn is_editor_file(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let ends = ["~", ".swp", ".swx"];
    ends.iter().any(|end| name.ends_with(end))
        || (name.starts_with('#') && name.ends_with('#'))
        || name == "4913"
}

fn unreadable_error(path: &Path) -> impl FnOnce(io::Error) -> SourceReadError {
    let path = path.to_owned();
    move |error| SourceReadError::Unreadable { path, error }
}
