//! Implements `sluicegate top`: the keys with the most hits of a running fleet, as a live table.
//!
//! Guarantees:
//! - Without a terminal, with `--once` or as JSON, the table is printed once.
//! - Once, the command waits up to [`FLEET_WAIT`] for the other replicas.
//! - Control characters of a descriptor never reach the terminal.
//! - A failed read of a live table is shown, and tried again.
//!
//! Not covered:
//! - The width of the terminal: long descriptors are cut after 80 characters.

mod table;

use std::io::{self, IsTerminal as _};
use std::thread::sleep;
use std::time::Duration;

use super::args::{TopArgs, TopFormat};
use super::{CommandOutcome, Terminal, admin_client};
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
    if args.once || args.format == TopFormat::Json || !io::stdout().is_terminal() {
        return match read_fleet(args) {
            Ok(reply) => print_once(args, &reply, terminal),
            Err(error) => fail(&error, terminal),
        };
    }
    let mut shown = match read(args) {
        Ok(TopReply { page, .. }) if page.keys == "off" => return fail(OFF, terminal),
        Ok(TopReply { page, .. }) => table(&page, args.rows),
        Err(error) => return fail(&error, terminal),
    };
    loop {
        write!(terminal.out, "{CLEAR}{shown}")?;
        terminal.out.flush()?;
        sleep(REFRESH_INTERVAL);
        shown = match read(args) {
            Ok(TopReply { page, .. }) => table(&page, args.rows),
            Err(error) => format!("{error}; retrying\n"),
        };
    }
}

const OFF: &str =
    "top keys are off at this replica; set telemetry.descriptor_values to shown or hashed";

struct TopReply {
    body: Vec<u8>,
    page: TopPage,
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
        TopFormat::Text if reply.page.keys == "off" => return fail(OFF, terminal),
        TopFormat::Text => write!(terminal.out, "{}", table(&reply.page, args.rows))?,
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
    while reply.page.replicas < reply.page.live_replicas && waited < FLEET_WAIT {
        sleep(FLEET_POLL);
        waited += FLEET_POLL;
        reply = read(args)?;
    }
    Ok(reply)
}

fn read(args: &TopArgs) -> Result<TopReply, String> {
    let mut parameters = vec![("window", args.window.word()), ("limit", ROWS_READ)];
    parameters.extend(args.domain.as_deref().map(|domain| ("domain", domain)));
    parameters.extend(args.rule.as_deref().map(|path| ("path", path)));
    let body = admin_client::get_page(&args.server, "top", &parameters)?;
    let page = serde_json::from_slice(&body)
        .map_err(|error| format!("{}: invalid reply to /top: {error}", args.server))?;
    Ok(TopReply { body, page })
}
