//! Settings of the file store.

use std::time::Duration;

use sluicegate::config::settings::{FileSync, StoreUrl, print_config};
use sluicegate::kernel::units::Nanos;

use crate::config::settings::{flags, load_valid, read_errors};

#[test]
fn file_urls_name_an_absolute_directory() {
    for (url, directory) in [
        ("file:///var/lib/sluicegate", "/var/lib/sluicegate"),
        ("file:///with%20blank/", "/with blank/"),
    ] {
        let loaded = load_valid(&flags(&[("store-url", url)]));
        assert_eq!(loaded.settings.store.url, StoreUrl::File(directory.into()), "{url}");
        assert!(print_config(&loaded).contains(&format!("file://{directory}")), "{url}");
    }
    for (url, fix) in [
        ("file://var/lib", "write `file:///var/lib`"),
        ("/var/lib", "write `file:///var/lib`"),
        ("file:///", "is not the URL of a directory"),
        ("file:///a?b", "is not the URL of a directory"),
    ] {
        let errors = read_errors(&flags(&[("store-url", url)])).join("\n");
        assert!(errors.contains(fix), "{url}: {errors}");
    }
}

#[test]
fn file_sync_is_an_interval_or_always() {
    let sync = |text: &str| {
        let flags = flags(&[("store-url", "file:///data"), ("store-file-sync", text)]);
        load_valid(&flags).settings.store.file.sync
    };
    assert_eq!(sync("always"), FileSync::Always);
    assert_eq!(sync("1s"), FileSync::Every(Nanos::SECOND));
    let default = load_valid(&flags(&[("store-url", "file:///data")])).settings.store.file.sync;
    let FileSync::Every(interval) = default else { panic!("{default:?}") };
    assert_eq!(Duration::from(interval), Duration::from_millis(10));
    for text in ["0", "10us", "never", "10"] {
        let errors = read_errors(&flags(&[("store-file-sync", text)])).join("\n");
        assert!(errors.contains("always, or an interval of at least 1ms"), "{text}: {errors}");
    }
}

#[test]
fn file_settings_without_a_file_store_have_no_effect() {
    let errors = read_errors(&flags(&[("store-file-sync", "always")])).join("\n");
    assert!(
        errors.contains(
            "`store.file.sync` has no effect, because `store.url` is not the URL of a directory"
        ),
        "{errors}"
    );
    let errors =
        read_errors(&flags(&[("store-url", "file:///data"), ("store-password-file", "/secret")]));
    assert!(errors.join("\n").contains("`store.password_file` has no effect"), "{errors:?}");
}
