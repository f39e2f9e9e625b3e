//! Finds settings by name, in the list of all settings.
//!
//! Guarantees:
//! - The list is made once in a process.

use std::sync::LazyLock;

use super::block::{AnyValue, Block as _, SettingBlock, SettingList};
use super::list::Settings;
use super::setting::Setting;

static LIST: LazyLock<SettingList> = LazyLock::new(|| {
    let mut list = SettingList::default();
    Settings::describe("", &mut list);
    // Settings outside of blocks follow the blocks, and `compat` is last.
    list.settings.sort_by_key(|row| (row.name.starts_with("compat."), !row.name.contains('.')));
    list
});

/// Returns all settings, in the order in which users read them.
#[must_use]
pub fn table() -> &'static [Setting] {
    &LIST.settings
}

/// Returns all blocks of settings. A block follows the block that contains it.
#[must_use]
pub fn setting_blocks() -> &'static [SettingBlock] {
    &LIST.blocks
}

pub(crate) fn find_setting(name: &str) -> Option<&'static Setting> {
    table().iter().find(|row| row.name == name)
}

pub(super) fn is_block(name: &str) -> bool {
    setting_blocks().iter().any(|block| block.name == name)
}

impl Setting {
    /// Returns the value that this setting has in `settings`, as YAML.
    #[must_use]
    pub fn show(&self, settings: &Settings) -> String {
        settings.value(self.name).map(AnyValue::shown).unwrap_or_default()
    }

    /// Returns `true` if [`Setting::show`] masks a part of the value in `settings`.
    #[must_use]
    pub fn hides_secret(&self, settings: &Settings) -> bool {
        settings.value(self.name).is_some_and(AnyValue::hides_secret)
    }

    pub(super) fn assign(&self, settings: &mut Settings, texts: &[&str]) -> Option<()> {
        settings.value_mut(self.name)?.assign(texts)
    }
}
