//! Writes `docs/reference/settings.md`, the reference of all settings.

use std::fmt::Write as _;

use super::print::accepted_values;
use super::{Setting, SettingBlock, Settings, setting_blocks, table};

const HEAD: &str = "\
# Settings

Each setting is a key in `server.yaml`, a flag and an
environment variable. Flags take precedence over variables, and variables over the file.

```yaml
# server.yaml
store:
  timeout: 20ms                    # --store-timeout 20ms   SLUICEGATE_STORE_TIMEOUT=20ms
limits: {paths: [config/limits]}   # --limits-paths config/limits
```

`sluicegate serve --print-config` prints all settings with their origins.
`sluicegate schema server` prints the JSON Schema of `server.yaml`.
";

const TABLE_HEAD: &str =
    "| setting | flag | variable | default | meaning |\n|---|---|---|---|---|\n";

/// Returns the text of the reference page, with one table for each block.
#[must_use]
pub fn reference_page() -> String {
    let blocks = setting_blocks().iter().filter(|block| rows(block.name).next().is_some());
    let (compat, native): (Vec<_>, Vec<_>) =
        blocks.partition(|block| block.name.starts_with("compat"));
    let outside = format!("\n## Outside of blocks\n\n{TABLE_HEAD}{}", table_rows(""));
    let native: String = native.into_iter().map(section).collect();
    let compat: String = compat.into_iter().map(section).collect();
    [HEAD, &native, &outside, &compat].concat()
}

fn section(block: &SettingBlock) -> String {
    format!("\n## `{}`\n\n{}\n\n{TABLE_HEAD}{}", block.name, block.doc, table_rows(block.name))
}

fn rows(block: &str) -> impl Iterator<Item = &'static Setting> {
    table().iter().filter(move |row| row.block() == block)
}

fn table_rows(block: &str) -> String {
    let defaults = Settings::default();
    let mut text = String::new();
    for row in rows(block) {
        let default = row.show(&defaults);
        let meaning = format!("{} Accepts {}.", row.doc, accepted_values(row)).replace('|', "\\|");
        // Writing to a string never fails.
        writeln!(
            text,
            "| `{}` | `--{}` | `{}` | `{default}` | {meaning} |",
            row.name, row.flag, row.variable
        )
        .ok();
    }
    text
}
