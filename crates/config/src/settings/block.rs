//! Defines blocks of settings as structs, and finds single settings in them by name.
//!
//! Guarantees:
//! - The name of a setting is its path in `server.yaml`, with dots: `store.tls.ca_file`.
//! - A block may occur in several places. Its settings have different names in each.

use super::setting::{PREFIX, Setting};
use super::value::Value;

/// A value of any setting.
pub(super) trait AnyValue {
    /// Replaces the value by the value of `texts`. Returns `None` and changes nothing if they are
    /// invalid.
    fn assign(&mut self, texts: &[&str]) -> Option<()>;
    /// Returns the value as YAML, with secrets masked.
    fn shown(&self) -> String;
    /// As [`Value::hides_secret`].
    fn hides_secret(&self) -> bool;
}

impl<T: Value> AnyValue for T {
    fn assign(&mut self, texts: &[&str]) -> Option<()> {
        *self = T::read(texts)?;
        Some(())
    }

    fn shown(&self) -> String {
        self.show()
    }

    fn hides_secret(&self) -> bool {
        Value::hides_secret(self)
    }
}

/// A struct of settings and of further blocks.
pub(super) trait Block: Default {
    /// Adds all settings and blocks below `path` to `list`.
    fn describe(path: &str, list: &mut SettingList);
    /// Returns the value of the setting `name`, which is relative to this block.
    fn value(&self, name: &str) -> Option<&dyn AnyValue>;
    /// As [`Block::value`], for changes.
    fn value_mut(&mut self, name: &str) -> Option<&mut dyn AnyValue>;
    /// Gives the setting `name` its default value.
    fn reset(&mut self, name: &str);
}

/// The description of a block of settings.
#[derive(Debug)]
pub struct SettingBlock {
    /// The name, with dots: `store.tls`.
    pub name: &'static str,
    /// The documentation of the block, for users.
    pub doc: String,
}

/// All settings and all blocks.
#[derive(Debug, Default)]
pub(super) struct SettingList {
    pub(super) settings: Vec<Setting>,
    pub(super) blocks: Vec<SettingBlock>,
}

impl SettingList {
    /// Adds the setting `key` of the block `path`.
    pub(super) fn add<T: Value>(
        &mut self,
        path: &str,
        key: &'static str,
        doc: &[&str],
        unit: &'static str,
    ) {
        let name = joined(path, key);
        let flat = name.replace('.', "_");
        self.settings.push(Setting {
            name,
            flag: flat.replace('_', "-"),
            variable: format!("{PREFIX}{}", flat.to_uppercase()),
            doc: one_line(doc),
            unit,
            accepts: T::accepts(),
            shape: T::SHAPE,
            choices: T::CHOICES,
            hidden: T::HIDDEN,
            is_scalar: T::IS_SCALAR,
            schema: T::schema(),
            masked: T::masked,
            why: T::why,
        });
    }

    /// Adds the block `key` of the block `path`, with all of its settings.
    pub(super) fn add_block<T: Block>(&mut self, path: &str, key: &str, doc: &[&str]) {
        let name = joined(path, key);
        self.blocks.push(SettingBlock { name, doc: one_line(doc) });
        T::describe(name, self);
    }
}

/// Returns the name of `key` in the block `path`. It is leaked: the list is made once in a process.
fn joined(path: &str, key: &str) -> &'static str {
    let name = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    name.leak()
}

fn one_line(doc: &[&str]) -> String {
    doc.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// Defines blocks as structs: for each, its name, the blocks inside it, and its settings with type,
/// default and unit.
macro_rules! blocks {
    ($(
        $(#[doc = $about:literal])+
        $Block:ident [ $( $(#[doc = $inner_doc:literal])+ $inner:ident: $Inner:ty, )* ] {
            $( $(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:expr, $unit:literal; )*
        }
    )+) => { $(
        $(#[doc = $about])+
        #[derive(Clone, Debug, PartialEq)]
        #[allow(clippy::struct_excessive_bools, reason = "each is a switch that a person sets")]
        pub struct $Block {
            $( $(#[doc = $inner_doc])+ pub $inner: $Inner, )*
            $( $(#[doc = $doc])+ pub $name: $type, )*
        }

        impl Default for $Block {
            fn default() -> Self {
                Self { $( $inner: <$Inner>::default(), )* $( $name: $default, )* }
            }
        }

        #[allow(unused_variables, reason = "some blocks contain no setting, or no other block")]
        impl Block for $Block {
            fn describe(path: &str, list: &mut SettingList) {
                $( list.add::<$type>(path, stringify!($name), &[$($doc),+], $unit); )*
                $( list.add_block::<$Inner>(path, stringify!($inner), &[$($inner_doc),+]); )*
            }

            fn value(&self, name: &str) -> Option<&dyn AnyValue> {
                $( if name == stringify!($name) { return Some(&self.$name); } )*
                let (block, rest) = name.split_once('.')?;
                $( if block == stringify!($inner) { return self.$inner.value(rest); } )*
                None
            }

            fn value_mut(&mut self, name: &str) -> Option<&mut dyn AnyValue> {
                $( if name == stringify!($name) { return Some(&mut self.$name); } )*
                let (block, rest) = name.split_once('.')?;
                $( if block == stringify!($inner) { return self.$inner.value_mut(rest); } )*
                None
            }

            fn reset(&mut self, name: &str) {
                $( if name == stringify!($name) { self.$name = $default; } )*
                let Some((block, rest)) = name.split_once('.') else { return };
                $( if block == stringify!($inner) { self.$inner.reset(rest); } )*
            }
        }
    )+ };
}
pub(super) use blocks;
