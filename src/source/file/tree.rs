//! The files below the paths that were named.
//!
//! Guarantees: every regular file counts, whatever its extension, as in the reference; dot files, unless asked for,
//! and what editors leave behind do not, so that a Kubernetes volume is read once and not also
//! through its `..data`. Files come in the order of their names. What is read is bounded.
//! Leaves out: directories behind symbolic links below a named path: they are passed over.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::hash::{Hash, Hasher};
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use siphasher::sip::SipHasher13;

use crate::source::{SourceError, TextFile};

/// The largest file, in bytes; a hundred thousand limits take about ten million.
pub const LARGEST_FILE: u64 = 64 << 20;
/// The most that all files may hold together, in bytes: they are all in memory at once.
pub const LARGEST_TOGETHER: u64 = 256 << 20;
/// The most files.
pub const MOST_FILES: usize = 10_000;
/// How many directories may lie between a named one and a file; bounds the stack.
pub const DEEPEST: usize = 32;

/// Which files below the named paths count.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// The beginning of a file's name, that is its path below the named one with dots for slashes; a dot
    /// follows. Empty for all files.
    pub prefix: String,
    /// Whether names that begin with a dot count.
    pub dot_files: bool,
    /// Whether a path that is not there is one with nothing below it.
    pub optional: bool,
}

impl Tree {
    /// Whether the file at `path` below `root` counts.
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

/// What is there, before it is read.
#[derive(Debug, Default)]
pub(super) struct Listing {
    /// The files, by name.
    pub(super) files: Vec<Listed>,
    /// The directories that were listed.
    pub(super) directories: Vec<PathBuf>,
    /// What was passed over although it could have been meant.
    pub(super) passed_over: Vec<PathBuf>,
    /// The size of all files.
    bytes: u64,
    /// Changes when any file is written, replaced, added or taken away.
    pub(super) fingerprint: u64,
}

/// One file that is there.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Listed {
    name: String,
    path: PathBuf,
    /// Inode, size, and when content or inode last changed.
    state: [u64; 4],
}

/// Reads the files below `paths`, in the order of their names.
///
/// # Errors
///
/// The first file or directory that cannot be read, or the first bound that is passed.
pub fn read_tree(paths: &[PathBuf]) -> Result<Vec<TextFile>, SourceError> {
    let (listing, error) = list(paths, &Tree::default());
    error.map_or_else(|| read(&listing), Err)
}

/// Lists the files below `paths`. What could be listed is listed even when there is an error.
pub(super) fn list(paths: &[PathBuf], tree: &Tree) -> (Listing, Option<SourceError>) {
    let mut listing = Listing::default();
    let mut error = None;
    for path in paths {
        // What cannot be looked at may be there all the same: to take it for nothing would lift every limit.
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

/// Reads what is listed.
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
    // It may have grown since it was listed.
    within(LARGEST_FILE, bytes.len() as u64, path).map(|()| bytes)
}

fn within(most: u64, bytes: u64, path: &Path) -> Result<(), SourceError> {
    if most < bytes {
        return Err(SourceError::TooLarge { path: path.to_owned(), most });
    }
    Ok(())
}

impl Listing {
    /// A path that a person named: followed wherever it leads.
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
            // It went away since the directory was read; so it is not there.
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

/// What editors leave behind: backups, swap files, and the `4913` by which Vim finds
/// out whether it may write.
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
