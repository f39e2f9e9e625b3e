//! Implements `sluicegate validate`, which validates files of limits. Prints up to 200 findings per
//! file, errors first, then a summary.

use std::io;

use serde_json::{Value, json};

use super::admin_client::percent_encode;
use super::args::{FindingsFormat, ValidateArgs};
use super::limits_input::read_limits_files;
use super::{CommandOutcome, Terminal};
use crate::config::diagnostic::{Code, Diagnostic, Diagnostics, SeverityCounts};
use crate::config::envoy_filter::examine_filters;
use crate::config::load;
use crate::kernel::units::Revision;
use crate::source::file::read_tree;

const SARIF: &str = "https://json.schemastore.org/sarif-2.1.0.json";

pub(super) fn validate(
    args: &ValidateArgs,
    terminal: &mut Terminal<'_>,
) -> io::Result<CommandOutcome> {
    let report = match examine(args) {
        Ok(report) => report,
        Err(message) => {
            writeln!(terminal.err, "{message}")?;
            return Ok(CommandOutcome::Failed);
        }
    };
    match args.format {
        FindingsFormat::Text => report.print_text(terminal.out)?,
        FindingsFormat::Json => writeln!(terminal.out, "{:#}", report.to_json())?,
        FindingsFormat::Sarif => writeln!(terminal.out, "{:#}", report.to_sarif())?,
    }
    let SeverityCounts { errors, warnings, .. } = report.findings.counts();
    let has_failed = errors > 0 || (args.warnings_as_errors && warnings > 0);
    Ok(if has_failed { CommandOutcome::Negative } else { CommandOutcome::Success })
}

/// Examines the files of limits and the Envoy configurations.
fn examine(args: &ValidateArgs) -> Result<CheckReport, String> {
    let files = if args.paths.is_empty() { Vec::new() } else { read_limits_files(&args.paths)? };
    let envoy_files =
        read_tree(&args.envoy_filter).map_err(|error| format!("error: {}", error.with_cause()))?;
    let named_files = files.iter().map(|file| (&*file.name, &*file.bytes));
    let loaded = load(named_files, Revision::default(), args.merge_domains);
    let mut findings = loaded.map_or_else(|findings| findings, |(_, warnings)| warnings);
    let explained = envoy_files.iter().map(|file| examine_filters(&file.name, &file.bytes));
    let explained: Vec<_> = explained.collect();
    if !envoy_files.is_empty() && explained.iter().all(|notes| notes.is_empty()) {
        let paths: Vec<_> =
            args.envoy_filter.iter().map(|path| path.display().to_string()).collect();
        let paths = paths.join(", ");
        return Err(format!(
            "error: no rate limit, ext_authz, ext_proc or Sluicegate filter in {paths}; \
             pass a file with Envoy's filters"
        ));
    }
    for notes in explained {
        findings.append(notes);
    }
    Ok(CheckReport { findings, files: files.len() + envoy_files.len() })
}

struct CheckReport {
    findings: Diagnostics,
    files: usize,
}

impl CheckReport {
    fn print_text(&self, out: &mut dyn io::Write) -> io::Result<()> {
        if !self.findings.is_empty() {
            writeln!(out, "{}", self.findings)?;
        }
        let SeverityCounts { errors, warnings, notes } = self.findings.counts();
        writeln!(
            out,
            "{} in {}: {}, {}{}",
            count_text(errors.saturating_add(warnings), "finding"),
            count_text(self.files, "file"),
            count_text(errors, "error"),
            count_text(warnings, "warning"),
            if notes == 0 { String::new() } else { format!("; {}", count_text(notes, "note")) },
        )
    }

    fn to_json(&self) -> Value {
        let SeverityCounts { errors, warnings, notes } = self.findings.counts();
        json!({
            "files": self.files,
            "errors": errors,
            "warnings": warnings,
            "notes": notes,
            "findings": &*self.findings,
            "more": self.findings.not_shown(),
        })
    }

    fn to_sarif(&self) -> Value {
        let rule =
            |code: &Code| json!({"id": code.name(), "shortDescription": {"text": code.title()}});
        let rules: Vec<Value> = Code::ALL.iter().map(rule).collect();
        let driver = json!({
            "name": "sluicegate",
            "semanticVersion": env!("CARGO_PKG_VERSION"),
            "rules": rules,
        });
        let results: Vec<Value> = self.findings.iter().map(sarif_result).collect();
        let mut run = json!({"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results});
        if let Some(invocations) = omitted_findings_notice(self.findings.not_shown()) {
            run["invocations"] = invocations;
        }
        json!({"$schema": SARIF, "version": "2.1.0", "runs": [run]})
    }
}

/// Returns the SARIF notification with the number of omitted findings, or `None` if there are none.
fn omitted_findings_notice(omitted: SeverityCounts) -> Option<Value> {
    let notice =
        json!({"level": "warning", "message": {"text": format!("and {omitted}, not shown")}});
    let run = json!({"executionSuccessful": true, "toolExecutionNotifications": [notice]});
    (!omitted.is_zero()).then(|| json!([run]))
}

fn sarif_result(diagnostic: &Diagnostic) -> Value {
    let location = &diagnostic.location;
    let text = match &diagnostic.help {
        Some(help) => format!("{}: {help}", diagnostic.message),
        None => diagnostic.message.clone(),
    };
    json!({
        "ruleId": diagnostic.code.name(),
        "level": diagnostic.severity(),
        "message": {"text": text},
        "locations": [{"physicalLocation": {
            "artifactLocation": {"uri": percent_encode(&location.file, b"/")},
            "region": {
                "startLine": location.line,
                "startColumn": location.column,
                "endColumn": location.column + location.width,
            },
        }}],
    })
}

fn count_text(number: usize, thing: &str) -> String {
    match number {
        1 => format!("1 {thing}"),
        _ => format!("{number} {thing}s"),
    }
}
