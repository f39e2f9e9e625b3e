//! Links libgcc into the module, because Envoy's images without a shell lack `libgcc_s.so.1`.
//! Marks the module so that it stays loaded, because its threads keep running.
//!
//! Guarantees:
//! - A linker script replaces the shared library, in the module only.
//! - The dynamic linker never unloads the module, also without Envoy's `do_not_close`.
//!
//! Not covered:
//! - Targets other than Linux with glibc. They link as usual.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

/// The static libraries with the contents of `libgcc_s.so.1`.
const LINKER_SCRIPT: &str = "GROUP(-lgcc_eh -lgcc)\n";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build.rs");
    let target = |part: &str| env::var(format!("CARGO_CFG_TARGET_{part}")).unwrap_or_default();
    if target("OS") == "linux" {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
    if target("OS") == "linux" && target("ENV") == "gnu" {
        let directory = PathBuf::from(env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
        fs::write(directory.join("libgcc_s.so"), LINKER_SCRIPT)?;
        println!("cargo::rustc-cdylib-link-arg=-L{}", directory.display());
    }
    Ok(())
}
