//! Prints all settings: for `--print-config`, as `server.yaml`, and as JSON Schema.

use serde_json::{Value as Json, json};

use super::{
    LoadedSettings, Setting, SettingBlock, SettingOrigin, Settings, setting_blocks, table,
};

/// Returns the value and the origin of each setting. The text is a `server.yaml` with the same
/// values, except that secrets are masked; a comment says so.
#[must_use]
pub fn print_config(loaded: &LoadedSettings) -> String {
    let lines: Vec<_> = table().iter().map(|row| (yaml_line(row, &loaded.settings), row)).collect();
    let width = lines.iter().map(|(line, _)| line.len()).max().unwrap_or_default().min(40);
    let mut path = BlockPath::default();
    let lines = lines.into_iter().map(|(line, row)| {
        let origin = loaded.origins.get(row.name).unwrap_or(&SettingOrigin::Default);
        let headings = path.enter(row.block()).into_iter().map(heading);
        let headings: String = headings.map(|heading| heading + "\n").collect();
        let hides = row.hides_secret(&loaded.settings);
        let secret = if hides { "; its secret is not shown" } else { "" };
        format!("{headings}{line:width$}  # {origin}{secret}\n")
    });
    lines.collect::<Vec<_>>().concat()
}

/// Returns the text of `config/server.yaml`: every setting with its default, unit and description.
#[must_use]
pub fn server_yaml() -> String {
    let settings = Settings::default();
    let mut path = BlockPath::default();
    let rows = table().iter().map(|row| {
        let blocks = path.enter(row.block()).into_iter();
        let headings = blocks
            .map(|block| format!("\n{}{}\n", comment(block.name, &block.doc), heading(block)))
            .collect::<Vec<_>>()
            .concat();
        let gap = if headings.is_empty() { "\n" } else { "" };
        let doc = comment(row.name, &row.doc) + &comment(row.name, &accepted_values(row));
        format!("{headings}{gap}{doc}{}\n", yaml_line(row, &settings))
    });
    std::iter::once(SERVER_YAML_HEAD.to_owned()).chain(rows).collect::<Vec<_>>().concat()
}

const SERVER_YAML_HEAD: &str = "\
# yaml-language-server: $schema=schema/sluicegate-server.schema.json
#
# Every setting at its default. Give the file to `sluicegate serve --settings server.yaml` and keep
# only what you change. The setting `a: {b_c: …}` is also the flag `--a-b-c`, which wins over
# everything, and the variable `SLUICEGATE_A_B_C`, which wins over this file.
";

/// The block of the last printed setting.
#[derive(Default)]
struct BlockPath(&'static str);

impl BlockPath {
    /// Goes to `block`. Returns the blocks whose headings precede its first setting.
    fn enter(&mut self, block: &'static str) -> Vec<&'static SettingBlock> {
        let is_open = |outer: &str| is_inside(self.0, outer);
        let outer = setting_blocks().iter().filter(|outer| is_inside(block, outer.name));
        let entered = outer.filter(|outer| !is_open(outer.name)).collect();
        self.0 = block;
        entered
    }
}

/// Returns `true` if `name` is `block` or inside of it.
fn is_inside(name: &str, block: &str) -> bool {
    name.strip_prefix(block).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns the spaces before a key in `server.yaml`.
fn indent(name: &str) -> String {
    "  ".repeat(name.matches('.').count())
}

fn heading(block: &SettingBlock) -> String {
    let key = block.name.rsplit('.').next().unwrap_or(block.name);
    format!("{}{key}:", indent(block.name))
}

fn comment(name: &str, text: &str) -> String {
    format!("{}# {text}\n", indent(name))
}

/// Returns the JSON Schema of `server.yaml`.
#[must_use]
pub fn schema() -> Json {
    let mut schema = block_schema("");
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema".into();
    schema["title"] = "server.yaml of Sluicegate".into();
    schema["description"] = "Settings of a Sluicegate process. Flags and environment variables \
                             take precedence."
        .into();
    schema
}

/// Returns the schema of the block `name`, with all blocks inside it.
fn block_schema(name: &str) -> Json {
    let parent = |name: &str| name.rsplit_once('.').map_or("", |(parent, _)| parent).to_owned();
    let key = |name: &str| name.rsplit('.').next().unwrap_or(name).to_owned();
    let settings = table().iter().filter(|row| row.block() == name);
    let settings = settings.map(|row| (row.key().to_owned(), schema_property(row)));
    let blocks = setting_blocks().iter().filter(|block| parent(block.name) == name);
    let blocks = blocks.map(|block| {
        let mut schema = block_schema(block.name);
        schema["description"] = block.doc.as_str().into();
        (key(block.name), schema)
    });
    let properties: serde_json::Map<_, _> = settings.chain(blocks).collect();
    json!({"type": "object", "additionalProperties": false, "properties": properties})
}

fn schema_property(row: &Setting) -> Json {
    let mut property = row.schema.clone();
    property["description"] = format!("{} Takes {}.", row.doc, accepted_values(row)).into();
    property["default"] = default_as_json(row);
    property
}

/// Returns the default value of a setting as JSON. The text of a default is either JSON or an
/// unquoted word.
fn default_as_json(row: &Setting) -> Json {
    let shown = row.show(&Settings::default());
    serde_json::from_str(&shown).unwrap_or(Json::String(shown))
}

pub(super) fn accepted_values(row: &Setting) -> String {
    if row.accepts.contains(row.unit) || row.unit == "word" || row.unit == "switch" {
        return row.accepts.clone();
    }
    format!("{}: {}", row.unit, row.accepts)
}

fn yaml_line(row: &Setting, settings: &Settings) -> String {
    format!("{}{}: {}", indent(row.name), row.key(), row.show(settings))
}

#[cfg(test)]
mod tests;
