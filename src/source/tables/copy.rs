//! The file with the last good copy of a table.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::load::CheckNumber;
use crate::config::tables::{LoadReport, Table, TableSpec, read_copy, write_copy};

#[derive(Clone, Debug)]
pub(super) struct CopyFile(PathBuf);

impl CopyFile {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the copy; `None` if there is none, or if it is not usable.
    pub(super) fn read(
        &self,
        spec: &Arc<TableSpec>,
        check: &CheckNumber,
    ) -> Option<(Table, LoadReport)> {
        let file = match File::open(&self.0) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => return self.unusable(spec, &error),
        };
        let check = |column: &str, number| check(spec.name(), column, number);
        match read_copy(spec, BufReader::new(file), &check) {
            Ok(read) => Some(read),
            Err(error) => self.unusable(spec, &error),
        }
    }

    fn unusable<T>(&self, spec: &TableSpec, error: &dyn std::fmt::Display) -> Option<T> {
        let path = self.0.display();
        tracing::warn!(table = spec.name(), %path, %error, "the copy of the table is not usable");
        None
    }

    /// Replaces the copy. After a crash, the file has the old or the new copy.
    pub(super) fn write(&self, table: &Table) -> io::Result<()> {
        let mut new = self.0.clone().into_os_string();
        new.push(".new");
        let mut output = BufWriter::new(File::create(&new)?);
        write_copy(table, &mut output)?;
        output.flush()?;
        output.get_ref().sync_all()?;
        fs::rename(&new, &self.0)?;
        let directory = self.0.parent().filter(|directory| !directory.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }
}
