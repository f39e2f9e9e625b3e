//! The `sluicegate` binary: runs the command line and returns its exit code.

use std::io;
use std::process::ExitCode;

use sluicegate::cli::{self, Terminal};

#[cfg(all(target_os = "linux", feature = "jemalloc"))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let (mut out, mut err) = (io::stdout(), io::stderr());
    let mut terminal = Terminal { out: &mut out, err: &mut err };
    cli::run(std::env::args_os().collect(), std::env::vars_os(), &mut terminal).into()
}
