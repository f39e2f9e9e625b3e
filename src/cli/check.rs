//! `sluicegate check`: what is wrong with files of limits.
//!
//! Guarantees: every finding of every file, then one line that sums them up; sound files with
//! warnings are sound unless warnings are to be errors.
//! Leaves out: finding problems, which is for [`crate::config`].

use std::io;

use serde_json::{Value, json};

use super::args::{Check, Format};
use super::{Outcome, Terminal};
use crate::config::diagnostic::{Code, Diagnostic, Severity};
use crate::config::load;
use crate::kernel::units::Revision;
use crate::source::file::read_tree;

/// Where the SARIF format is defined.
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
    let bad = checked.count(Severity::Error) > 0;
    let bad = bad || (args.warnings_as_errors && checked.count(Severity::Warning) > 0);
    Ok(if bad { Outcome::No } else { Outcome::Yes })
}

struct Checked {
    found: Vec<Diagnostic>,
    files: usize,
}

impl Checked {
    fn count(&self, severity: Severity) -> usize {
        self.found.iter().filter(|one| one.severity() == severity).count()
    }

    fn text(&self, out: &mut dyn io::Write) -> io::Result<()> {
        for one in &self.found {
            writeln!(out, "{one}")?;
        }
        let notes = self.count(Severity::Note);
        writeln!(
            out,
            "{} in {}: {}, {}{}",
            counted(self.found.len() - notes, "finding"),
            counted(self.files, "file"),
            counted(self.count(Severity::Error), "error"),
            counted(self.count(Severity::Warning), "warning"),
            if notes == 0 { String::new() } else { format!("; {}", counted(notes, "note")) },
        )
    }

    fn json(&self) -> Value {
        json!({
            "files": self.files,
            "errors": self.count(Severity::Error),
            "warnings": self.count(Severity::Warning),
            "notes": self.count(Severity::Note),
            "findings": self.found,
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
        json!({
            "$schema": SARIF,
            "version": "2.1.0",
            "runs": [{"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}],
        })
    }
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

/// A path as the reference it must be there: what a URI may not hold is percent-encoded.
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
