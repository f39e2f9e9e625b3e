//! Invalid and unreadable files: errors, and the configuration that stays in force.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sluicegate::kernel::units::Revision;
use sluicegate::source::file::{FileFilter, FileSourceOptions};
use sluicegate::source::{LoadFailure, PublishedConfig, SourceReadError};
use tokio::time::timeout;

use super::{NOW, limits_directory, options, watching, watching_as};
use crate::support::http1;
use crate::support::service::{Loads, Service};
use crate::support::waiting::{now, until};

/// Replaces a file atomically. A file that is written in place is empty for a moment, and on a
/// busy machine the source may load it then.
fn put(path: &Path, text: &str) {
    let beside = path.with_file_name(".beside");
    fs::write(&beside, text).unwrap();
    fs::rename(beside, path).unwrap();
}

#[tokio::test]
async fn half_written_file_is_refused_until_complete() {
    let (_root, limits) = limits_directory();
    let mut source = watching(&limits).await;
    fs::write(limits.join("a.yaml"), "ba").unwrap();
    source.until_in_force(&["ba"]).await;
    let mut file = fs::File::options().append(true).open(limits.join("a.yaml")).unwrap();
    file.write_all(b"d").unwrap();
    source.until_refused().await;
    assert_eq!(source.in_force(), ["ba"]);
    fs::write(limits.join("a.yaml"), "a complete one").unwrap();
    source.until_in_force(&["a complete one"]).await;
}

#[tokio::test]
async fn debounce_hides_a_half_written_file() {
    // On a busy machine, the two writes may be further apart than the debounce delay. Then the test
    // proves nothing, so it is repeated with a longer delay.
    let mut debounce = Duration::from_secs(1);
    while !is_hidden_by(debounce).await {
        debounce *= 2;
    }
}

/// Writes half of a file and then all of it. Asserts that only the complete file is loaded. Returns
/// `false` if the writes were further apart than `debounce`.
async fn is_hidden_by(debounce: Duration) -> bool {
    let (_root, limits) = limits_directory();
    let mut source = watching_as(FileSourceOptions { debounce, ..options(&limits) }).await;
    source.source.published.mark_unchanged();
    let began = now();
    fs::write(limits.join("a.yaml"), "bad").unwrap();
    // Without the debounce delay, the source would read the file within this time.
    let early = timeout(Duration::from_millis(50), source.source.published.changed()).await;
    fs::write(limits.join("a.yaml"), "good").unwrap();
    if debounce <= began.elapsed() {
        return false;
    }
    assert!(early.is_err());
    let published = source.until_in_force(&["good"]).await;
    assert_eq!((published.status.failed_loads, published.status.revision), (0, Revision(2)));
    true
}

#[tokio::test]
async fn one_invalid_file_keeps_the_last_valid_revision() {
    let (_root, limits) = limits_directory();
    let mut source = watching(&limits).await;
    let before = source.published().config.clone().unwrap();
    put(&limits.join("b.yaml"), "bad");
    put(&limits.join("c.yaml"), "c");
    let published = source.until_refused().await;
    assert!(Arc::ptr_eq(published.config.as_ref().unwrap(), &before));
    assert_eq!(published.status.revision, Revision(1));
    let refused = published.status.last_error.unwrap();
    assert_eq!(refused.at, NOW);
    assert!(matches!(refused.reason, LoadFailure::Invalid(_)), "{refused:?}");
    fs::remove_file(limits.join("b.yaml")).unwrap();
    let published = source.until_in_force(&["a", "c"]).await;
    assert_eq!(published.status.revision, Revision(2));
}

#[tokio::test]
async fn refused_first_load_leaves_no_configuration() {
    let (_root, limits) = limits_directory();
    put(&limits.join("a.yaml"), "bad");
    let mut source = watching(&limits).await;
    let published = source.published();
    assert!(published.config.is_none() && published.status.last_error.is_some());
    assert_eq!(published.status.revision, Revision(0));
    put(&limits.join("a.yaml"), "good");
    source.until_in_force(&["good"]).await;
}

#[tokio::test]
async fn removed_directory_is_refused_and_reloaded_on_return() {
    let (root, limits) = limits_directory();
    let mut source = watching(&limits).await;
    fs::remove_dir_all(&limits).unwrap();
    let published = source
        .until(|published| {
            published.status.last_error.as_ref().is_some_and(|refused| {
                matches!(&refused.reason, LoadFailure::Unreadable(error) if error.to_string().contains("limits"))
            })
        })
        .await;
    assert!(published.config.is_some(), "the last good one stays");
    fs::create_dir(&limits).unwrap();
    fs::write(limits.join("a.yaml"), "back").unwrap();
    source.until_in_force(&["back"]).await;
    // The recreated directory is watched like the old one.
    fs::write(limits.join("a.yaml"), "again").unwrap();
    source.until_in_force(&["again"]).await;
    // A directory that atomically replaces it is watched, too.
    fs::create_dir(root.path().join("next")).unwrap();
    fs::write(root.path().join("next/a.yaml"), "next").unwrap();
    fs::rename(&limits, root.path().join("old")).unwrap();
    fs::rename(root.path().join("next"), &limits).unwrap();
    source.until_in_force(&["next"]).await;
    fs::write(limits.join("a.yaml"), "last").unwrap();
    source.until_in_force(&["last"]).await;
}

#[tokio::test]
async fn optional_tree_is_empty_if_missing_refused_if_unreadable() {
    let (root, _limits) = limits_directory();
    let (current, next) = (root.path().join("current"), root.path().join("next"));
    symlink("limits", &current).unwrap();
    let tree = FileFilter { optional: true, ..FileFilter::default() };
    let mut source = watching_as(FileSourceOptions { filter: tree, ..options(&current) }).await;
    let before = source.published().config.clone().unwrap();
    // A link to itself exists, but it cannot be followed.
    symlink("current", &next).unwrap();
    fs::rename(&next, &current).unwrap();
    let published = source.until_refused().await;
    assert!(Arc::ptr_eq(published.config.as_ref().unwrap(), &before));
    let why = &published.status.last_error.as_ref().unwrap().reason;
    assert!(matches!(why, LoadFailure::Unreadable(SourceReadError::Unreadable { .. })), "{why:?}");
    fs::remove_file(&current).unwrap();
    source.until_in_force(&[]).await;
}

#[tokio::test]
async fn explicit_reload_reports_unchanged_invalid_files_again() {
    let (_root, limits) = limits_directory();
    let mut source = watching(&limits).await;
    put(&limits.join("a.yaml"), "bad");
    let first = source.until_refused().await.status.last_error.unwrap();
    let refused = source.published().status.failed_loads;
    put(&limits.join("a.yaml"), "bad");
    let touched = source.until(|published| published.status.failed_loads > refused).await;
    assert!(Arc::ptr_eq(&touched.status.last_error.unwrap(), &first));
    source.source.reload.request();
    let is_reported_again = |published: &PublishedConfig| {
        published.status.last_error.as_ref().is_some_and(|error| !Arc::ptr_eq(error, &first))
    };
    source.until(is_reported_again).await;
    // The valid text is restored: the revision stays the same and the error is cleared.
    put(&limits.join("a.yaml"), "a");
    let published = source.until_in_force(&["a"]).await;
    assert_eq!(published.status.revision, Revision(1));
}

#[tokio::test]
async fn invalid_files_are_reported_again_after_read_errors() {
    let (root, limits) = limits_directory();
    put(&limits.join("a.yaml"), "bad");
    let mut source = watching(&limits).await;
    let bad = |published: &PublishedConfig| {
        let refused = published.status.last_error.as_ref();
        refused.is_some_and(|refused| matches!(refused.reason, LoadFailure::Invalid(_)))
    };
    assert!(bad(&source.published()));
    fs::rename(&limits, root.path().join("away")).unwrap();
    source.until(|published| !bad(published)).await;
    fs::rename(root.path().join("away"), &limits).unwrap();
    source.until(bad).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn polling_reports_an_unreadable_file_once() {
    let (_root, limits) = limits_directory();
    // `/proc/self/mem` is a regular file whose first byte is unreadable.
    symlink("/proc/self/mem", limits.join("b.yaml")).unwrap();
    let look = Duration::from_millis(5);
    let mut source =
        watching_as(FileSourceOptions { poll_interval: look, ..options(&limits) }).await;
    let status = source.published().status;
    let why = &status.last_error.as_ref().unwrap().reason;
    assert!(matches!(why, LoadFailure::Unreadable(SourceReadError::Unreadable { .. })), "{why:?}");
    let again = source.source.published.wait_for(|published| published.status.failed_loads > 1);
    assert!(timeout(Duration::from_millis(300), again).await.is_err());
    fs::remove_file(limits.join("b.yaml")).unwrap();
    source.until_in_force(&["a"]).await;
}

/// Sets the maximum number of open files of the service and returns the previous maximum.
#[cfg(target_os = "linux")]
fn set_open_file_limit(service: &Service, most: Option<u64>) -> Option<u64> {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    let pid = Pid::from_raw(service.id().try_into().unwrap()).unwrap();
    let maximum = getrlimit(Resource::Nofile).maximum;
    prlimit(Some(pid), Resource::Nofile, Rlimit { current: most, maximum }).unwrap().current
}

#[cfg(target_os = "linux")]
#[test]
fn unreadable_file_is_retried_without_a_change() {
    let (_root, limits) = limits_directory();
    let file = limits.join("a.yaml");
    let rules =
        "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 2}\n";
    put(&file, rules);
    let service = Service::start(&file, &[]).unwrap();
    // stdin, stdout and stderr use up this maximum, so the limits file is visible but cannot be
    // opened.
    let usual = set_open_file_limit(&service, Some(3));
    put(&file, &rules.replace("unit: 2", "unit: 3"));
    until("it is refused", || match service.log() {
        log if log.contains("failed to load limits: keeping revision 1") => Ok(()),
        log => Err(log),
    })
    .unwrap();
    assert!(!service.log().contains("error.sources"), "{}", service.log());
    set_open_file_limit(&service, usual);
    until("it is read", || match service.loads()? {
        Loads { loaded: 2.., last_error, .. } if last_error.is_null() => Ok(()),
        Loads { loaded, last_error, .. } => Err(format!("{loaded} loads, {last_error}")),
    })
    .unwrap();
}

#[test]
fn log_reports_valid_limits_only_after_a_refused_load() {
    const OVER: &str = "limits valid again";
    let (_root, limits) = limits_directory();
    let file = limits.join("a.yaml");
    let rules =
        "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 2}\n";
    put(&file, rules);
    let service = Service::start(&file, &[]).unwrap();
    let wait_for_log = |what: &str| {
        until(what, || match service.log() {
            log if log.contains(what) => Ok(()),
            log => Err(log),
        })
    };
    // Reloads unchanged limits that were not refused before.
    service.signal("HUP");
    until("it is read again", || match service.loads()?.loaded {
        2.. => Ok(()),
        loaded => Err(format!("{loaded} loads")),
    })
    .unwrap();
    put(&file, "domain: d\nno word: 1\n");
    wait_for_log("limits rejected: keeping revision 1").unwrap();
    assert!(!service.log().contains(OVER), "{}", service.log());
    put(&file, rules);
    wait_for_log(OVER).unwrap();
    assert_eq!(service.log().matches("limits loaded").count(), 1, "{}", service.log());
}

#[test]
fn unknown_hook_domain_warns_once_per_loss() {
    const UNKNOWN_DOMAIN: &str = "no file has this hook's domain";
    let (_root, limits) = limits_directory();
    let file = limits.join("a.yaml");
    let rules = |domain: &str, requests: u32| {
        format!(
            "domain: {domain}\ndescriptors:\n- key: k\n  rate_limit: {{unit: day, requests_per_unit: {requests}}}\n"
        )
    };
    put(&file, &rules("other", 1));
    let hooks =
        r#"[{"name": "edge", "domain": "shop", "descriptors": [[{"remote_address": {}}]]}]"#;
    let service = Service::start(&file, &["--hooks".to_owned(), hooks.to_owned()]).unwrap();
    // A load is counted after it is logged, so the log is complete when the count is reached.
    let is_loaded = |loads: u64| {
        until("it is loaded", || match service.loads()?.loaded {
            loaded if loads <= loaded => Ok(service.log().matches(UNKNOWN_DOMAIN).count()),
            loaded => Err(format!("{loaded} loads")),
        })
    };
    assert_eq!(is_loaded(1), Ok(1));
    let line = service.log().lines().find(|line| line.contains(UNKNOWN_DOMAIN)).unwrap().to_owned();
    assert!(["edge", "shop", "other"].iter().all(|word| line.contains(word)), "{line}");
    put(&file, &rules("other", 2));
    assert_eq!(is_loaded(service.loads().unwrap().loaded.max(2)), Ok(1));
    put(&file, &rules("shop", 2));
    // A load is logged before `/config` shows it, so the log is complete here.
    until("the domain is there", || match http1::get(service.admin, "/config", &[]) {
        Ok(reply) if reply.text().contains("\"shop\"") => Ok(()),
        other => Err(format!("{:?}", other.map(|reply| reply.text()))),
    })
    .unwrap();
    put(&file, &rules("other", 2));
    until("it is lost again", || match service.log().matches(UNKNOWN_DOMAIN).count() {
        2 => Ok(()),
        _ => Err(service.log()),
    })
    .unwrap();
}

#[tokio::test]
async fn loader_panic_is_a_refused_load() {
    let (_root, limits) = limits_directory();
    let mut source = watching(&limits).await;
    fs::write(limits.join("a.yaml"), "panic").unwrap();
    let published = source.until_refused().await;
    assert!(matches!(published.status.last_error.unwrap().reason, LoadFailure::ParserPanicked));
    fs::write(limits.join("a.yaml"), "calm").unwrap();
    source.until_in_force(&["calm"]).await;
}
