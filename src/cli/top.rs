//! Implements `sluicegate top`: the keys with the most hits of a running fleet, or the classes of the
//! concurrency limits of a replica, as a live table.
//!
//! Guarantees:
//! - Without a terminal, with `--once` or as JSON, the table is printed once.
//! - Once, the command waits up to [`FLEET_WAIT`] for the keys of the other replicas.
//! - Control characters of a descriptor never reach the terminal.
//! - A failed read of a live table is shown, and tried again.
//!
//! Not covered:
//! - The width of the terminal: long descriptors are cut after 80 characters.

mod classes;
mod table;

use std::io::{self, IsTerminal as _};
use std::thread::sleep;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::args::{TopArgs, TopFormat, TopRows, TopWindowArg};
use super::{CommandOutcome, Terminal, admin_client};
use classes::{ConcurrencyPage, class_table};
pub(super) use table::printable;
use table::{TopPage, table};

/// The interval between two reads of a live table.
const REFRESH_INTERVAL: Duration = Duration::from_secs(2);

/// The longest wait for the counts of other replicas, which report only while a page is read.
const FLEET_WAIT: Duration = Duration::from_secs(5);
const FLEET_POLL: Duration = Duration::from_millis(500);

/// Clears the screen and moves the cursor to its first column.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// The rows that are read: more than are shown, because the keys with the most hits and those with
/// the most denied hits are joined.
const ROWS_READ: &str = "100";

pub(super) fn top(args: &TopArgs, terminal: &mut Terminal<'_>) -> io::Result<CommandOutcome> {
    if args.by == TopRows::Class && args.window.is_some() {
        return fail(
            "--window works only with --by key: classes have no window; remove it",
            terminal,
        );
    }
    if args.once || args.format == TopFormat::Json || !io::stdout().is_terminal() {
        return match read_fleet(args) {
            Ok(reply) => print_once(args, &reply, terminal),
            Err(error) => fail(&error, terminal),
        };
    }
    let mut shown = match read(args).and_then(|reply| reply.page.table(args)) {
        Ok(table) => table,
        Err(error) => return fail(&error, terminal),
    };
    loop {
        write!(terminal.out, "{CLEAR}{shown}")?;
        terminal.out.flush()?;
        sleep(REFRESH_INTERVAL);
        shown = read(args)
            .and_then(|reply| reply.page.table(args))
            .unwrap_or_else(|error| format!("{error}; retrying\n"));
    }
}

const OFF: &str =
    "top keys are off at this replica; set telemetry.descriptor_values to shown or hashed";

struct TopReply {
    body: Vec<u8>,
    page: Page,
}

enum Page {
    Keys(TopPage),
    Classes(ConcurrencyPage),
}

impl Page {
    /// Formats the page.
    ///
    /// # Errors
    /// The replica does not count keys.
    fn table(&self, args: &TopArgs) -> Result<String, String> {
        match self {
            Self::Keys(page) if page.keys == "off" => Err(OFF.to_owned()),
            Self::Keys(page) => Ok(table(page, args.rows)),
            Self::Classes(page) => Ok(class_table(page, args)),
        }
    }

    /// Returns `true` if the page counts all live replicas, or only one by its nature.
    const fn is_whole(&self) -> bool {
        match self {
            Self::Keys(page) => page.live_replicas <= page.replicas,
            Self::Classes(_) => true,
        }
    }
}

fn print_once(
    args: &TopArgs,
    reply: &TopReply,
    terminal: &mut Terminal<'_>,
) -> io::Result<CommandOutcome> {
    match args.format {
        TopFormat::Json => {
            writeln!(terminal.out, "{}", String::from_utf8_lossy(&reply.body).trim_end())?;
        }
        TopFormat::Text => match reply.page.table(args) {
            Ok(table) => write!(terminal.out, "{table}")?,
            Err(error) => return fail(&error, terminal),
        },
    }
    Ok(CommandOutcome::Success)
}

fn fail(error: &str, terminal: &mut Terminal<'_>) -> io::Result<CommandOutcome> {
    writeln!(terminal.err, "error: {error}")?;
    Ok(CommandOutcome::Failed)
}

/// Reads the page until it counts all live replicas, at most for [`FLEET_WAIT`].
fn read_fleet(args: &TopArgs) -> Result<TopReply, String> {
    let mut reply = read(args)?;
    let mut waited = Duration::ZERO;
    while !reply.page.is_whole() && waited < FLEET_WAIT {
        sleep(FLEET_POLL);
        waited += FLEET_POLL;
        reply = read(args)?;
    }
    Ok(reply)
}

fn read(args: &TopArgs) -> Result<TopReply, String> {
    match args.by {
        TopRows::Key => {
            let window = args.window.unwrap_or(TopWindowArg::Minute);
            let mut parameters = vec![("window", window.word()), ("limit", ROWS_READ)];
            parameters.extend(args.domain.as_deref().map(|domain| ("domain", domain)));
            parameters.extend(args.rule.as_deref().map(|path| ("path", path)));
            read_page(args, ("top", &parameters), Page::Keys)
        }
        TopRows::Class => read_page(args, ("concurrency", &[]), Page::Classes),
    }
}

fn read_page<P: DeserializeOwned>(
    args: &TopArgs,
    (name, parameters): (&str, &[(&str, &str)]),
    page_of: fn(P) -> Page,
) -> Result<TopReply, String> {
    let body = admin_client::get_page(&args.server, name, parameters)?;
    let page = serde_json::from_slice(&body)
        .map_err(|error| format!("{}: invalid reply to /{name}: {error}", args.server))?;
    Ok(TopReply { body, page: page_of(page) })
}
