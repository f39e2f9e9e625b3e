//! Lists and reads the files below the configured paths.
//!
//! Guarantees:
//! - Files with any extension are read in the order of their names, as in envoyproxy/ratelimit.
//! - Files whose names begin with a dot are skipped unless enabled, so that Kubernetes' `..data` is
//!   not read twice.
//! - Backups and swap files of editors, and symbolic links to directories, are skipped.
//! - The number and sizes of files are bounded.

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
/// The maximum total size of all files, which are in memory at the same time, in bytes.
pub const MAX_TOTAL_BYTES: u64 = 256 << 20;
/// The maximum number of files of limits.
pub const MAX_FILES: usize = 10_000;
/// The maximum number of directories between a configured path and a file.
pub const MAX_DEPTH: usize = 32;

/// The filter for files below the configured paths.
#[derive(Clone, Debug, Default)]
pub struct FileFilter {
    /// The required first part of a file's path with dots for slashes: `config` matches
    /// `config/a.yaml`.
    pub prefix: String,
    /// `true` to include files and directories whose names begin with a dot.
    pub dot_files: bool,
    /// `true` to treat a missing configured path as an empty directory.
    pub optional: bool,
}

impl FileFilter {
    fn matches_prefix(&self, root: &Path, path: &Path) -> bool {
        if self.prefix.is_empty() {
            return true;
        }
        let path_below_root = path.strip_prefix(root).unwrap_or(path);
        let name = path_below_root.to_string_lossy().replace('/', ".");
        name.strip_prefix(&*self.prefix).is_some_and(|rest| rest.starts_with('.'))
    }

    fn skips(&self, name: &OsStr) -> bool {
        if name.as_encoded_bytes().starts_with(b".") {
            return !self.dot_files;
        }
        is_editor_file(name)
    }
}

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
    /// The inode number, the size, and the seconds and nanoseconds of the last change (`ctime`).
    change_marker: [u64; 4],
}

/// Reads the files below `paths`, sorted by name.
///
/// # Errors
/// A file or directory cannot be read, or a bound is exceeded.
pub fn read_tree(paths: &[PathBuf]) -> Result<Vec<TextFile>, SourceReadError> {
    let (listing, error) = list_files(paths, &FileFilter::default());
    error.map_or_else(|| read_files(&listing), Err)
}

/// Lists the files below `paths`. After an error, the listing contains the files found so far.
pub(super) fn list_files(
    paths: &[PathBuf],
    filter: &FileFilter,
) -> (FileListing, Option<SourceReadError>) {
    let mut listing = FileListing::default();
    let mut error = None;
    for path in paths {
        // Skip only a missing path: skipping an inaccessible path would remove its limits.
        if filter.optional && matches!(path.try_exists(), Ok(false)) {
            continue;
        }
        let files_before = listing.files.len();
        if let Err(path_error) = listing.add_path(path, filter) {
            error = error.or(Some(path_error));
        }
        let added = listing.files.split_off(files_before);
        let matching = added.into_iter().filter(|file| filter.matches_prefix(path, &file.path));
        listing.files.extend(matching);
    }
    listing.files.sort_unstable();
    listing.files.dedup_by(|a, b| a.name == b.name);
    let mut hasher = SipHasher13::new();
    (&listing.files, error.as_ref().map(ToString::to_string)).hash(&mut hasher);
    listing.fingerprint = hasher.finish();
    (listing, error)
}

pub(super) fn read_files(listing: &FileListing) -> Result<Vec<TextFile>, SourceReadError> {
    let text_files = listing.files.iter().map(|file| {
        let bytes = read_file(&file.path)?;
        Ok(TextFile { name: Arc::from(file.name.as_str()), bytes })
    });
    text_files.collect()
}

fn read_file(path: &Path) -> Result<Vec<u8>, SourceReadError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_FILE_BYTES + 1).read_to_end(&mut bytes))
        .map_err(unreadable_error(path))?;
    // The file may have grown since it was listed.
    check_file_size(bytes.len() as u64, path).map(|()| bytes)
}

fn check_file_size(bytes: u64, path: &Path) -> Result<(), SourceReadError> {
    if MAX_FILE_BYTES < bytes {
        return Err(SourceReadError::TooLarge { path: path.to_owned(), most: MAX_FILE_BYTES });
    }
    Ok(())
}

impl FileListing {
    /// Adds the files below a configured path, which may be a symbolic link.
    fn add_path(&mut self, path: &Path, filter: &FileFilter) -> Result<(), SourceReadError> {
        let metadata = fs::metadata(path).map_err(unreadable_error(path))?;
        if metadata.is_dir() {
            return self.add_directory(path, 0, filter);
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
        filter: &FileFilter,
    ) -> Result<(), SourceReadError> {
        if depth > MAX_DEPTH {
            return Err(SourceReadError::TooDeep { path: path.to_owned(), most: MAX_DEPTH });
        }
        self.directories.push(path.to_owned());
        for entry in fs::read_dir(path).map_err(unreadable_error(path))? {
            let entry = entry.map_err(unreadable_error(path))?;
            if !filter.skips(&entry.file_name()) {
                self.add_entry(&entry.path(), depth, filter)?;
            }
        }
        Ok(())
    }

    fn add_entry(
        &mut self,
        path: &Path,
        depth: usize,
        filter: &FileFilter,
    ) -> Result<(), SourceReadError> {
        let link_metadata = match fs::symlink_metadata(path) {
            // The file was deleted after the directory was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            metadata => metadata.map_err(unreadable_error(path))?,
        };
        if link_metadata.is_dir() {
            return self.add_directory(path, depth + 1, filter);
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
        check_file_size(metadata.len(), path)?;
        self.bytes = self.bytes.saturating_add(metadata.len());
        if self.bytes > MAX_TOTAL_BYTES {
            let path = path.to_owned();
            return Err(SourceReadError::TotalTooLarge { path, most: MAX_TOTAL_BYTES });
        }
        let [seconds, nanos] = [metadata.ctime(), metadata.ctime_nsec()].map(i64::cast_unsigned);
        let change_marker = [metadata.ino(), metadata.len(), seconds, nanos];
        let name = path.to_string_lossy().into_owned();
        self.files.push(ListedFile { name, path: path.to_owned(), change_marker });
        Ok(())
    }
}

/// Returns `true` for backups, swap files, and `4913`, with which Vim tests for write access.
fn is_editor_file(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    ["~", ".swp", ".swx"].iter().any(|suffix| name.ends_with(suffix))
        || (name.starts_with('#') && name.ends_with('#'))
        || name == "4913"
}

fn unreadable_error(path: &Path) -> impl FnOnce(io::Error) -> SourceReadError {
    let path = path.to_owned();
    move |error| SourceReadError::Unreadable { path, error }
}
