//! Implements `sluicegate record`: writes the checks of a replica, or of Envoy's access log, to a
//! file.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write as _};
use std::path::Path;
use std::time::Duration;

use super::limits_input::load_limits;
use super::recording_args::{KeyForm, RecordArgs};
use super::{CommandOutcome, Terminal, admin_client};
use crate::config::Config;
use crate::config::hooks::Hook;
use crate::config::settings::{self, Settings};
use crate::recording::access_log::{ImportOptions, ImportSummary, import};
use crate::recording::hashed_values::new_salt;
use crate::recording::{RecordedOverrides, RecordedPlanning, RecordingEnd, RecordingReader};

/// The time after the end of a recording in which its last bytes must arrive.
const GRACE: Duration = Duration::from_secs(30);

pub(super) fn record(
    args: &RecordArgs,
    settings: Option<&Settings>,
    terminal: &mut Terminal<'_>,
) -> io::Result<CommandOutcome> {
    let result = match (&args.server, &args.access_log, settings) {
        (Some(server), None, _) => record_replica(args, server, terminal),
        (None, Some(log), Some(settings)) => import_log(args, log, settings, terminal),
        _ => Err("set --server, or --access-log with --settings".to_owned()),
    };
    match result {
        Ok(RecordingEnd { recorded, dropped }) => {
            let out = args.out.display();
            writeln!(terminal.out, "{recorded} calls recorded in {out}, {dropped} dropped")?;
            Ok(CommandOutcome::Success)
        }
        Err(message) => {
            writeln!(terminal.err, "error: {message}")?;
            Ok(CommandOutcome::Failed)
        }
    }
}

fn record_replica(
    args: &RecordArgs,
    server: &str,
    terminal: &mut Terminal<'_>,
) -> Result<RecordingEnd, String> {
    let keys = match args.keys {
        KeyForm::Hashed => "hashed",
        KeyForm::Clear => "clear",
    };
    let (duration, sample) = (args.duration.for_people(), args.sample.to_string());
    let reason = args.reason.as_deref().unwrap_or_default();
    let parameters = [("for", &*duration), ("sample", &sample), ("keys", keys), ("reason", reason)];
    let patience = Duration::from_nanos(args.duration.0).saturating_add(GRACE);
    let mut out = OutputFile { path: &args.out, file: None };
    // Progress: the command may take an hour. A closed standard error is no reason to fail.
    writeln!(terminal.err, "recording for {duration}").ok();
    admin_client::download(server, ("record", &parameters), patience, &mut out)?;
    out.flush().map_err(|error| file_error(&args.out, &error))?;
    if out.file.is_none() {
        return Err("the replica sent no recording".to_owned());
    }
    read_end(&args.out)
}

/// A file that is created when its first byte arrives, so that a refused recording leaves an earlier file as it is.
struct OutputFile<'p> {
    path: &'p Path,
    file: Option<BufWriter<File>>,
}

impl io::Write for OutputFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Some(file) = &mut self.file {
            return file.write(bytes);
        }
        self.file.insert(create(self.path).map_err(io::Error::other)?).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), BufWriter::flush)
    }
}

fn create(path: &Path) -> Result<BufWriter<File>, String> {
    File::create(path).map(BufWriter::new).map_err(|error| file_error(path, &error))
}

fn file_error(path: &Path, error: &io::Error) -> String {
    format!("{}: {error} (flag --out)", path.display())
}

/// Reads the whole recording, which validates it.
fn read_end(path: &Path) -> Result<RecordingEnd, String> {
    let name = path.display();
    let file = File::open(path).map_err(|error| file_error(path, &error))?;
    let mut reader =
        RecordingReader::open(BufReader::new(file)).map_err(|error| format!("{name}: {error}"))?;
    while reader.next_block().map_err(|error| format!("{name}: {error}"))?.is_some() {}
    reader.end().ok_or_else(|| {
        format!("the replica ended the recording early; {name} has the checks until then")
    })
}

fn import_log(
    args: &RecordArgs,
    log: &Path,
    settings: &Settings,
    terminal: &mut Terminal<'_>,
) -> Result<RecordingEnd, String> {
    let hook = find_hook(settings, args.hook.as_deref())?;
    let limits = match args.keys {
        KeyForm::Clear => None,
        KeyForm::Hashed => Some(hashed_limits(settings)?),
    };
    let hashed = limits.as_ref().map(|(salt, config)| (*salt, config));
    let options = ImportOptions { hook, hashed, planning: planning(settings) };
    let input = open_log(log)?;
    let summary = import(input, create(&args.out)?, &options)
        .map_err(|error| format!("{} to {}: {error}", log.display(), args.out.display()))?;
    for line in unusable_lines(&summary) {
        writeln!(terminal.err, "{line}").ok();
    }
    summary.end.ok_or_else(|| format!("{}: no usable line", log.display()))
}

fn find_hook<'s>(settings: &'s Settings, name: Option<&str>) -> Result<&'s Hook, String> {
    settings.hooks.find_or_first(name).ok_or_else(|| match name {
        Some(name) => format!("--hook {name}: the setting hooks has no such hook"),
        None => {
            "the setting hooks is empty; it builds the descriptors of the access log".to_owned()
        }
    })
}

/// Returns a salt, and the limits whose exact values stay clear.
fn hashed_limits(settings: &Settings) -> Result<([u8; 16], Config), String> {
    let limits = load_limits(&settings.limits.paths, settings.limits.merge_domains);
    let limits = limits.map_err(|error| {
        let error = error.trim_start_matches("error: ");
        format!("{error}\nHashing needs the limits (setting limits.paths), or set --keys clear")
    })?;
    let salt = new_salt().ok_or("the operating system returned no random numbers; retry")?;
    Ok((salt, limits))
}

fn planning(settings: &Settings) -> RecordedPlanning {
    RecordedPlanning {
        has_compatible_keys: settings.compat.store.key_format == settings::KeyFormat::Compat,
        overrides: match settings.limits.overrides {
            settings::Overrides::Replace => RecordedOverrides::Allow,
            settings::Overrides::Ignore => RecordedOverrides::Deny,
            settings::Overrides::Lower => RecordedOverrides::Max,
        },
        quota_for_all: settings.compat.limits.quota_mode,
    }
}

fn open_log(path: &Path) -> Result<Box<dyn BufRead>, String> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdin().lock()));
    }
    let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Box::new(BufReader::new(file)))
}

fn unusable_lines(summary: &ImportSummary) -> impl Iterator<Item = String> {
    summary.unusable.iter().map(|(cause, (count, first))| {
        format!("warning: {count} of {} lines, the first is line {first}: {cause}", summary.lines)
    })
}
