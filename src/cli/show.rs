//! Implements `sluicegate show`, which prints a page of the admin port.

use std::io;

use super::args::ShowArgs;
use super::{CommandOutcome, Terminal, admin_client};

pub(super) fn show(args: &ShowArgs, terminal: &mut Terminal<'_>) -> io::Result<CommandOutcome> {
    match admin_client::get_page(&args.server, args.path.trim_start_matches('/'), &[]) {
        Ok(page) => {
            terminal.out.write_all(&page)?;
            Ok(CommandOutcome::Success)
        }
        Err(message) => {
            writeln!(terminal.err, "error: {message}")?;
            Ok(CommandOutcome::Failed)
        }
    }
}
