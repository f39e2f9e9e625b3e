//! Implements `sluicegate check`, which validates files of limits.
//!
//! Guarantees:
//! - Prints up to 200 findings per file, errors first, then a summary of all.
//! - Warnings count as errors only with `--warnings-as-errors`.
//!
//! Not covered:
//! - Finding the problems: see [`crate::config`].

use std::io;

use serde_json::{Value, json};

use super::args::{Check, Format};
use super::{Outcome, Terminal};
use crate::config::diagnostic::{Code, Counts, Diagnostic, Diagnostics};
use crate::config::load;
use crate::kernel::units::Revision;
use crate::source::file::read_tree;

const SARIF: &str = "https://json.schemastore.org/sarif-2.1.0.json";

pub(super) fn check(args: &Check, terminal: &mut Terminal<'_>) -> io::Result<Outcome> {
    let files = match read_tree(&args.paths) {
        Ok(files) => files,
        Err(error) => {
            writeln!(terminal.err, "error: {}", error.in_full())?;
            return Ok(Outcome::CouldNotSay);
        }
    };
    let named = files.iter().map(|file| (&*file.name, &*file.bytes));
    let loaded = load(named, Revision::default(), args.merge_domains);
    let found = loaded.map_or_else(|found| found, |(_, warnings)| warnings);
    let checked = Checked { found, files: files.len() };
    match args.format {
        Format::Text => checked.text(terminal.out)?,
        Format::Json => writeln!(terminal.out, "{:#}", checked.json())?,
        Format::Sarif => writeln!(terminal.out, "{:#}", checked.sarif())?,
    }
    let Counts { errors, warnings, .. } = checked.found.counts();
    let bad = errors > 0 || (args.warnings_as_errors && warnings > 0);
    Ok(if bad { Outcome::No } else { Outcome::Yes })
}

struct Checked {
    found: Diagnostics,
    files: usize,
}

impl Checked {
    fn text(&self, out: &mut dyn io::Write) -> io::Result<()> {
        if !self.found.is_empty() {
            writeln!(out, "{}", self.found)?;
        }
        let Counts { errors, warnings, notes } = self.found.counts();
        writeln!(
            out,
            "{} in {}: {}, {}{}",
            counted(errors.saturating_add(warnings), "finding"),
            counted(self.files, "file"),
            counted(errors, "error"),
            counted(warnings, "warning"),
            if notes == 0 { String::new() } else { format!("; {}", counted(notes, "note")) },
        )
    }

    fn json(&self) -> Value {
        let Counts { errors, warnings, notes } = self.found.counts();
        json!({
            "files": self.files,
            "errors": errors,
            "warnings": warnings,
            "notes": notes,
            "findings": &*self.found,
            "more": self.found.more(),
        })
    }

    fn sarif(&self) -> Value {
        let rule =
            |code: &Code| json!({"id": code.name(), "shortDescription": {"text": code.title()}});
        let rules: Vec<Value> = Code::ALL.iter().map(rule).collect();
        let driver = json!({
            "name": "sluicegate",
            "semanticVersion": env!("CARGO_PKG_VERSION"),
            "rules": rules,
        });
        let results: Vec<Value> = self.found.iter().map(result).collect();
        let mut run = json!({"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results});
        if let Some(invocations) = not_shown(self.found.more()) {
            run["invocations"] = invocations;
        }
        json!({"$schema": SARIF, "version": "2.1.0", "runs": [run]})
    }
}

/// Returns the note about findings that are not in the output.
fn not_shown(more: Counts) -> Option<Value> {
    let told = json!({"level": "warning", "message": {"text": format!("and {more}, not shown")}});
    let run = json!({"executionSuccessful": true, "toolExecutionNotifications": [told]});
    (!more.is_none()).then(|| json!([run]))
}

fn result(one: &Diagnostic) -> Value {
    let place = &one.place;
    let text = match &one.help {
        Some(help) => format!("{}: {help}", one.message),
        None => one.message.clone(),
    };
    json!({
        "ruleId": one.code.name(),
        "level": one.severity(),
        "message": {"text": text},
        "locations": [{"physicalLocation": {
            "artifactLocation": {"uri": uri(&place.file)},
            "region": {
                "startLine": place.line,
                "startColumn": place.column,
                "endColumn": place.column + place.width,
            },
        }}],
    })
}

/// Percent-encodes a path for use as a URI reference.
fn uri(path: &str) -> String {
    let kept = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    path.bytes()
        .map(|byte| if kept(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

fn counted(number: usize, thing: &str) -> String {
    match number {
        1 => format!("1 {thing}"),
        _ => format!("{number} {thing}s"),
    }
}
