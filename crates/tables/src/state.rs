//! The state of each table of a replica: its versions, loads and bad rows.

use std::sync::{Arc, Mutex, PoisonError};

use crate::kernel::units::Nanos;
use crate::{BadRow, Table};

/// The state of one table.
#[derive(Clone, Debug, Default)]
pub struct TableState {
    /// The name of the table.
    pub name: Box<str>,
    /// The source, without secrets.
    pub source: Box<str>,
    /// The current version; `None` before the first load.
    pub table: Option<Arc<Table>>,
    /// `true` if the version is from the copy on disk, and the source has not answered yet.
    pub is_from_copy: bool,
    /// The instant at which the source last confirmed the current version.
    pub confirmed_at: Option<Nanos>,
    /// The instant of the last change.
    pub changed_at: Option<Nanos>,
    /// The bad rows of the last load.
    pub bad: usize,
    /// The first of them.
    pub bad_rows: Vec<BadRow>,
    /// The reason why the last read of the source changed nothing, if it failed.
    pub error: Option<Box<str>>,
}

/// The states of all tables of a replica.
#[derive(Debug, Default)]
pub struct TableStates(Mutex<Vec<TableState>>);

impl TableStates {
    /// Creates the states of tables that are not loaded, as pairs of name and source.
    #[must_use]
    pub fn new<'n>(tables: impl IntoIterator<Item = (&'n str, Box<str>)>) -> Self {
        let state = |(name, source): (&str, Box<str>)| TableState {
            name: name.into(),
            source,
            ..TableState::default()
        };
        Self(Mutex::new(tables.into_iter().map(state).collect()))
    }

    /// Returns a copy of all states.
    #[must_use]
    pub fn all(&self) -> Vec<TableState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the state of one table. Returns the current versions of all tables, if all are loaded.
    pub fn update(
        &self,
        name: &str,
        change: impl FnOnce(&mut TableState),
    ) -> Option<Arc<[Arc<Table>]>> {
        let mut states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = states.iter_mut().find(|state| *state.name == *name) {
            change(state);
        }
        states.iter().map(|state| state.table.clone()).collect()
    }

    /// Returns `true` if every table has a version.
    #[must_use]
    pub fn are_loaded(&self) -> bool {
        let states = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        states.iter().all(|state| state.table.is_some())
    }
}
