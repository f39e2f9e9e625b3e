//! Lists and reads the files below the configured paths.
//!
//! Guarantees:
//! - Files with any extension are read, as in envoyproxy/ratelimit.
//! - Dot files are skipped unless enabled, so Kubernetes' `..data` is not read twice.
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

use crate::source::{SourceError, TextFile};

/// The largest file in bytes. 100,000 limits need about 10 MB.
pub const LARGEST_FILE: u64 = 64 << 20;
/// The largest total in bytes, because all files are in memory at the same time.
pub const LARGEST_TOGETHER: u64 = 256 << 20;
/// The maximum number of files.
pub const MOST_FILES: usize = 10_000;
/// The maximum number of directories between a configured path and a file. Bounds the stack.
pub const DEEPEST: usize = 32;

/// The filter for files below the configured paths.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// The required prefix of a file's name, followed by a dot. The name is the path below
    /// the configured one, with dots for slashes. An empty prefix matches every file.
    pub prefix: String,
    /// Includes names that begin with a dot.
    pub dot_files: bool,
    /// Treats a missing path as an empty directory.
    pub optional: bool,
}

impl Tree {
    /// Returns `true` if the file at `path` below `root` has the required prefix.
    fn has(&self, root: &Path, path: &Path) -> bool {
        if self.prefix.is_empty() {
            return true;
        }
        let below = path.strip_prefix(root).unwrap_or(path);
        let name = below.to_string_lossy().replace('/', ".");
        name.strip_prefix(&*self.prefix).is_some_and(|rest| rest.starts_with('.'))
    }

    fn passes_over(&self, name: &OsStr) -> bool {
        if name.as_encoded_bytes().starts_with(b".") {
            return !self.dot_files;
        }
        is_left_behind(name)
    }
}

/// The files and directories before reading.
#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) files: Vec<Listed>,
    pub(super) directories: Vec<PathBuf>,
    /// The paths that are neither regular files nor directories.
    pub(super) passed_over: Vec<PathBuf>,
    bytes: u64,
    /// Changes when a file is written, replaced, added or removed.
    pub(super) fingerprint: u64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Listed {
    name: String,
    path: PathBuf,
    /// The inode, the size, and the time of the last change of content or inode.
    state: [u64; 4],
}

/// Reads the files below `paths`, sorted by name.
///
/// # Errors
///
/// The first file or directory that cannot be read, or the first exceeded bound.
pub fn read_tree(paths: &[PathBuf]) -> Result<Vec<TextFile>, SourceError> {
    let (listing, error) = list(paths, &Tree::default());
    error.map_or_else(|| read(&listing), Err)
}

/// Lists the files below `paths`. After an error, the listing contains the files found so far.
pub(super) fn list(paths: &[PathBuf], tree: &Tree) -> (Listing, Option<SourceError>) {
    let mut listing = Listing::default();
    let mut error = None;
    for path in paths {
        // Only a missing path is optional. Skipping an inaccessible one would remove its limits.
        if tree.optional && matches!(path.try_exists(), Ok(false)) {
            continue;
        }
        let before = listing.files.len();
        if let Err(failed) = listing.named(path, tree) {
            error = error.or(Some(failed));
        }
        let mut nth = 0;
        listing.files.retain(|file| {
            nth += 1;
            nth <= before || tree.has(path, &file.path)
        });
    }
    listing.files.sort_unstable();
    listing.files.dedup_by(|a, b| a.name == b.name);
    let mut hasher = SipHasher13::new();
    (&listing.files, error.as_ref().map(ToString::to_string)).hash(&mut hasher);
    listing.fingerprint = hasher.finish();
    (listing, error)
}

pub(super) fn read(listing: &Listing) -> Result<Vec<TextFile>, SourceError> {
    let read = listing.files.iter().map(|file| {
        let bytes = read_file(&file.path)?;
        Ok(TextFile { name: Arc::from(file.name.as_str()), bytes })
    });
    read.collect()
}

fn read_file(path: &Path) -> Result<Vec<u8>, SourceError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(LARGEST_FILE + 1).read_to_end(&mut bytes))
        .map_err(unreadable(path))?;
    // The file may have grown since it was listed.
    within(LARGEST_FILE, bytes.len() as u64, path).map(|()| bytes)
}

fn within(most: u64, bytes: u64, path: &Path) -> Result<(), SourceError> {
    if most < bytes {
        return Err(SourceError::TooLarge { path: path.to_owned(), most });
    }
    Ok(())
}

impl Listing {
    /// Adds a configured path. Follows symbolic links.
    fn named(&mut self, path: &Path, tree: &Tree) -> Result<(), SourceError> {
        let metadata = fs::metadata(path).map_err(unreadable(path))?;
        if metadata.is_dir() {
            return self.directory(path, 0, tree);
        }
        if !metadata.is_file() {
            return Err(SourceError::NeitherFileNorDirectory { path: path.to_owned() });
        }
        self.file(path, &metadata)
    }

    fn directory(&mut self, path: &Path, depth: usize, tree: &Tree) -> Result<(), SourceError> {
        if depth > DEEPEST {
            return Err(SourceError::TooDeep { path: path.to_owned(), most: DEEPEST });
        }
        self.directories.push(path.to_owned());
        for entry in fs::read_dir(path).map_err(unreadable(path))? {
            let entry = entry.map_err(unreadable(path))?;
            if !tree.passes_over(&entry.file_name()) {
                self.entry(&entry.path(), depth, tree)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, path: &Path, depth: usize, tree: &Tree) -> Result<(), SourceError> {
        let own = match fs::symlink_metadata(path) {
            // Deleted since the directory was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            own => own.map_err(unreadable(path))?,
        };
        if own.is_dir() {
            return self.directory(path, depth + 1, tree);
        }
        let metadata = fs::metadata(path).map_err(unreadable(path))?;
        if metadata.is_file() {
            return self.file(path, &metadata);
        }
        self.passed_over.push(path.to_owned());
        Ok(())
    }

    fn file(&mut self, path: &Path, metadata: &Metadata) -> Result<(), SourceError> {
        if self.files.len() >= MOST_FILES {
            return Err(SourceError::TooMany { path: path.to_owned(), most: MOST_FILES });
        }
        within(LARGEST_FILE, metadata.len(), path)?;
        self.bytes = self.bytes.saturating_add(metadata.len());
        if self.bytes > LARGEST_TOGETHER {
            let path = path.to_owned();
            return Err(SourceError::TooLargeTogether { path, most: LARGEST_TOGETHER });
        }
        let changed = [metadata.ctime(), metadata.ctime_nsec()].map(i64::cast_unsigned);
        let state = [metadata.ino(), metadata.len(), changed[0], changed[1]];
        let name = path.to_string_lossy().into_owned();
        self.files.push(Listed { name, path: path.to_owned(), state });
        Ok(())
    }
}

/// Returns `true` for files of editors: backups, swap files,
/// and `4913`, which Vim creates to test for write access.
fn is_left_behind(name: &OsStr) -> bool {
    let name = name.to_string_lossy();
    let ends = ["~", ".swp", ".swx"];
    ends.iter().any(|end| name.ends_with(end))
        || (name.starts_with('#') && name.ends_with('#'))
        || name == "4913"
}

fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> SourceError {
    let path = path.to_owned();
    move |error| SourceError::Unreadable { path, error }
}
