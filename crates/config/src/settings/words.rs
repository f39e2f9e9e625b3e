//! Numbers and durations that a word can replace: `auto`, `never` or `none`.
//!
//! Guarantees:
//! - Zero is not valid: it has no meaning besides the word.
//! - [`Value::read`] accepts what [`Value::show`] prints.

use std::marker::PhantomData;

use serde_json::{Value as Json, json};

use super::value::Value;

/// A word that replaces a value.
pub trait Word: 'static {
    /// The word, as in `server.yaml`.
    const WORD: &'static str;
}

macro_rules! words {
    ($($(#[doc = $doc:literal])+ $name:ident = $word:literal;)+) => { $(
        $(#[doc = $doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name;

        impl Word for $name {
            const WORD: &'static str = $word;
        }
    )+ };
}

words! {
    /// The process chooses the value.
    Auto = "auto";
    /// A time that is never reached.
    Never = "never";
    /// No value.
    Absent = "none";
}

/// A value above zero, or the word `W`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Or<T, W> {
    value: Option<T>,
    word: PhantomData<W>,
}

impl<T: Copy, W> Or<T, W> {
    /// The word.
    pub const WORD: Self = Self { value: None, word: PhantomData };

    /// A value above zero.
    pub(super) const fn value(value: T) -> Self {
        Self { value: Some(value), word: PhantomData }
    }

    /// Returns the value; `None` for the word.
    pub const fn get(self) -> Option<T> {
        self.value
    }
}

impl<T: Value + Copy + Default + PartialEq, W: Word> Value for Or<T, W> {
    fn read(texts: &[&str]) -> Option<Self> {
        match texts {
            [word] if *word == W::WORD => Some(Self::WORD),
            _ => T::read(texts).filter(|value| *value != T::default()).map(Self::value),
        }
    }
    fn accepts() -> String {
        format!("`{}`, or {}, but not 0", W::WORD, T::accepts())
    }
    fn show(&self) -> String {
        self.value.map_or_else(|| W::WORD.to_owned(), |value| value.show())
    }
    fn schema() -> Json {
        let value = T::schema();
        let kind = value["type"].clone();
        let kinds = if kind == "string" { kind } else { json!([kind, "string"]) };
        json!({"type": kinds, "anyOf": [{"const": W::WORD}, value]})
    }
}
