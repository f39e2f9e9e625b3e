//! Tests of the libraries and of the glibc that the module needs, and of its link options.
//!
//! Guarantees:
//! - Envoy's images without a shell have all needed libraries.
//!
//! Not covered:
//! - The version of glibc, if the machine that builds has a newer one than these images.

use std::path::Path;
use std::process::Command;

use super::MODULE;

/// Envoy's images are based on Ubuntu 22.04, with glibc 2.35, and on distroless Debian 12, with 2.36.
const OLDEST_GLIBC: (u32, u32) = (2, 35);

fn printed(program: &str, arguments: &[&str], file: Option<&Path>) -> String {
    let output = Command::new(program).args(arguments).args(file).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split('.').map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[test]
fn module_needs_only_libraries_of_distroless_images() {
    let headers = printed("objdump", &["-p"], Some(&MODULE.join("libsluicegate_envoy.so")));
    let needed = headers.lines().filter_map(|line| line.trim().strip_prefix("NEEDED"));
    let needed: Vec<_> = needed.map(str::trim).collect();
    assert!(needed.contains(&"libc.so.6"), "{needed:?}");
    let is_present =
        |name: &&str| ["libc.so", "libm.so", "ld-linux"].iter().any(|it| name.starts_with(it));
    assert!(needed.iter().all(is_present), "{needed:?}");
}

#[test]
fn module_is_marked_to_stay_loaded() {
    let flags = printed("readelf", &["-d"], Some(&MODULE.join("libsluicegate_envoy.so")));
    let flags_1 = flags.lines().find(|line| line.contains("(FLAGS_1)"));
    assert!(flags_1.is_some_and(|line| line.contains("NODELETE")), "{flags}");
}

#[test]
fn module_runs_with_the_glibc_of_envoy_images() {
    let built_with = printed("getconf", &["GNU_LIBC_VERSION"], None);
    let built_with = built_with.trim().strip_prefix("glibc ").and_then(version).unwrap();
    if (2, 36) < built_with {
        println!("not checked: this machine has glibc {built_with:?}");
        return;
    }
    let symbols = printed("objdump", &["-T"], Some(&MODULE.join("libsluicegate_envoy.so")));
    let versions = symbols.split("(GLIBC_").skip(1).filter_map(|rest| rest.split(')').next());
    let newest = versions.filter_map(version).max().unwrap();
    assert!(newest <= OLDEST_GLIBC, "needs glibc {newest:?}");
}
