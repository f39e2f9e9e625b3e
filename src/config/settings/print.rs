//! Prints all settings: for `--print-config`, as `server.yaml`, and as JSON Schema.

use serde_json::{Value as Json, json};

use super::{LoadedSettings, Setting, SettingOrigin, Settings, table};

/// Returns the value and the origin of each setting. The text is a valid `server.yaml`, except that
/// secrets are masked.
#[must_use]
pub fn print_config(loaded: &LoadedSettings) -> String {
    let lines: Vec<_> = table().iter().map(|row| (yaml_line(row, &loaded.settings), row)).collect();
    let width = lines.iter().map(|(line, _)| line.len()).max().unwrap_or_default().min(40);
    let lines = lines.into_iter().map(|(line, row)| {
        let origin = loaded.origins.get(row.name).unwrap_or(&SettingOrigin::Default);
        format!("{line:width$}  # {origin}\n")
    });
    lines.collect::<Vec<_>>().concat()
}

/// Returns the text of `config/server.yaml`: every setting with its default, unit and description.
#[must_use]
pub fn server_yaml() -> String {
    let settings = Settings::default();
    let rows = table().iter().map(|row| {
        format!("\n# {}\n# {}\n{}\n", row.doc, accepted_values(row), yaml_line(row, &settings))
    });
    std::iter::once(SERVER_YAML_HEAD.to_owned()).chain(rows).collect::<Vec<_>>().concat()
}

const SERVER_YAML_HEAD: &str = "\
# yaml-language-server: $schema=schema/sluicegate-server.schema.json
#
# Every setting at its default. Give the file to `sluicegate serve --settings server.yaml` and keep
# only what you change. The setting `a_b_c` is also the flag `--a-b-c`, which wins over everything,
# and the variable `SLUICEGATE_A_B_C`, which wins over this file.
";

/// Returns the JSON Schema of `server.yaml`.
#[must_use]
pub fn schema() -> Json {
    let properties: serde_json::Map<_, _> =
        table().iter().map(|row| (row.name.to_owned(), schema_property(row))).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "server.yaml of Sluicegate",
        "description": "What a Sluicegate process can be told. Flags and the environment win over it.",
        "type": "object",
        "additionalProperties": false,
        "properties": properties,
    })
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

fn accepted_values(row: &Setting) -> String {
    if row.accepts.contains(row.unit) || row.unit == "word" || row.unit == "switch" {
        return row.accepts.clone();
    }
    format!("{}: {}", row.unit, row.accepts)
}

fn yaml_line(row: &Setting, settings: &Settings) -> String {
    format!("{}: {}", row.name, row.show(settings))
}
