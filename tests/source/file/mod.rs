//! Tests that valid changes of limits files are soon in force and invalid changes never are.
//!
//! Guarantees:
//! - Polling is off except in the tests of polling, so file system events trigger the loads.
//! - Every wait uses the channel of published configurations, with a generous timeout.

mod no_limits;
mod refused;
mod tree;

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluicegate::config::Config;
use sluicegate::config::diagnostic::Diagnostics;
use sluicegate::kernel::units::{Nanos, Revision};
use sluicegate::source::file::{FileFilter, FileSourceOptions, start};
use sluicegate::source::{ConfigParser, ConfigSource, PublishedConfig, TextFile};
use tempfile::TempDir;
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(180);

const NEVER: Duration = Duration::from_secs(86_400);

const NOW: Nanos = Nanos::from_secs(1_700_000_000);

type Accepted = Arc<Mutex<HashMap<Revision, Vec<String>>>>;

/// A configuration source under test, and the texts that its loader accepted.
struct Watched {
    source: ConfigSource,
    accepted: Accepted,
}

/// A loader that refuses files whose text begins with `bad`.
fn loader(accepted: &Accepted) -> Arc<ConfigParser> {
    let accepted = Arc::clone(accepted);
    Arc::new(move |texts: &[TextFile], revision| {
        assert!(texts.iter().all(|text| text.bytes != b"panic"), "a test asks for it");
        let bad = texts.iter().any(|text| text.bytes.starts_with(b"bad"));
        if bad {
            return Err(Diagnostics::default());
        }
        let texts = texts.iter().map(|text| String::from_utf8(text.bytes.clone()).unwrap());
        accepted.lock().unwrap().insert(revision, texts.collect());
        Ok((Config::default(), Diagnostics::default()))
    })
}

async fn watching(path: &Path) -> Watched {
    watching_as(options(path)).await
}

async fn watching_as(options: FileSourceOptions) -> Watched {
    let accepted = Accepted::default();
    let source = start(options, loader(&accepted), || NOW).await;
    Watched { source, accepted }
}

fn options(path: &Path) -> FileSourceOptions {
    let (paths, debounce) = (vec![path.to_owned()], Duration::from_millis(5));
    FileSourceOptions { paths, debounce, poll_interval: NEVER, filter: FileFilter::default() }
}

impl Watched {
    fn published(&self) -> PublishedConfig {
        self.source.published.borrow().clone()
    }

    fn in_force(&self) -> Vec<String> {
        let revision = self.published().status.revision;
        self.accepted.lock().unwrap().get(&revision).cloned().unwrap_or_default()
    }

    async fn until(&mut self, wanted: impl FnMut(&PublishedConfig) -> bool) -> PublishedConfig {
        if let Ok(published) = timeout(DEADLINE, self.source.published.wait_for(wanted)).await {
            return published.expect("the source runs").clone();
        }
        panic!("not in time; in force is {:?} of {:?}", self.in_force(), self.published())
    }

    /// Waits until exactly these texts are in force and the last load had no error.
    async fn until_in_force(&mut self, wanted: &[&str]) -> PublishedConfig {
        let accepted = Arc::clone(&self.accepted);
        self.until(move |PublishedConfig { status, .. }| {
            let accepted = accepted.lock().unwrap();
            accepted.get(&status.revision).is_some_and(|texts| texts == wanted)
                && status.last_error.is_none()
        })
        .await
    }

    async fn until_refused(&mut self) -> PublishedConfig {
        self.until(|published| published.status.last_error.is_some()).await
    }
}

/// A temporary directory with the file `limits/a.yaml`.
fn limits_directory() -> (TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let limits = root.path().join("limits");
    fs::create_dir(&limits).unwrap();
    fs::write(limits.join("a.yaml"), "a").unwrap();
    (root, limits)
}

#[tokio::test]
async fn first_load_is_published_at_start() {
    let (_root, limits) = limits_directory();
    let source = watching(&limits).await;
    let published = source.published();
    assert_eq!(source.in_force(), ["a"]);
    assert_eq!(published.config.as_ref().unwrap().revision, Revision(1));
    let status = published.status;
    assert_eq!(
        (status.revision, status.successful_loads, status.failed_loads),
        (Revision(1), 1, 0)
    );
    assert_eq!(status.loaded_at, Some(NOW));
    assert_eq!(*status.files, [Arc::from(limits.join("a.yaml").to_str().unwrap())]);
}

#[tokio::test]
async fn each_file_change_increases_the_revision() {
    let (_root, limits) = limits_directory();
    let mut source = watching(&limits).await;
    fs::write(limits.join("a.yaml"), "a2").unwrap();
    let first = source.until_in_force(&["a2"]).await;
    fs::write(limits.join("b.txt"), "b").unwrap();
    let second = source.until_in_force(&["a2", "b"]).await;
    fs::remove_file(limits.join("a.yaml")).unwrap();
    let third = source.until_in_force(&["b"]).await;
    assert!(Revision(1) < first.status.revision);
    assert!(first.status.revision < second.status.revision);
    assert!(second.status.revision < third.status.revision);
    fs::remove_file(limits.join("b.txt")).unwrap();
    source.until_in_force(&[]).await;
}

#[tokio::test]
async fn editor_saves_by_rename_are_applied() {
    let (_root, limits) = limits_directory();
    let mut source = watching(&limits).await;
    fs::write(limits.join(".a.yaml.swp"), "bad").unwrap();
    fs::rename(limits.join("a.yaml"), limits.join("a.yaml~")).unwrap();
    fs::write(limits.join(".a.yaml.new"), "a2").unwrap();
    fs::rename(limits.join(".a.yaml.new"), limits.join("a.yaml")).unwrap();
    source.until_in_force(&["a2"]).await;
}

#[tokio::test]
async fn files_moved_in_or_out_are_noticed() {
    let (root, limits) = limits_directory();
    let mut source = watching(&limits).await;
    let outside = root.path().join("outside");
    fs::rename(limits.join("a.yaml"), &outside).unwrap();
    source.until_in_force(&[]).await;
    fs::rename(&outside, limits.join("a.yaml")).unwrap();
    source.until_in_force(&["a"]).await;
}

#[tokio::test]
async fn kubernetes_config_map_update_is_applied_without_an_error() {
    let root = tempfile::tempdir().unwrap();
    let volume = root.path();
    let version = |number: u32, text: &str| {
        let directory = volume.join(format!("..v{number}"));
        fs::create_dir(&directory).unwrap();
        fs::write(directory.join("a.yaml"), text).unwrap();
        symlink(&directory, volume.join("..data_tmp")).unwrap();
        fs::rename(volume.join("..data_tmp"), volume.join("..data")).unwrap();
    };
    version(1, "one");
    symlink("..data/a.yaml", volume.join("a.yaml")).unwrap();
    let mut whole = watching(volume).await;
    let mut single = watching(&volume.join("a.yaml")).await;
    version(2, "two");
    fs::remove_dir_all(volume.join("..v1")).unwrap();
    whole.until_in_force(&["two"]).await;
    single.until_in_force(&["two"]).await;
    assert_eq!(whole.published().status.failed_loads, 0);
}

#[tokio::test]
async fn continuous_writes_do_not_block_loads() {
    let (_root, limits) = limits_directory();
    let debounce = Duration::from_millis(100);
    let mut source = watching_as(FileSourceOptions { debounce, ..options(&limits) }).await;
    source.source.published.mark_unchanged();
    let restless = async {
        for number in 0.. {
            fs::write(limits.join("a.yaml"), format!("number {number}")).unwrap();
            let pause = timeout(Duration::from_millis(1), source.source.published.changed());
            if pause.await.is_ok() {
                break;
            }
        }
    };
    timeout(DEADLINE, restless).await.expect("it is read in time");
}

#[tokio::test]
async fn directory_created_later_is_found() {
    let root = tempfile::tempdir().unwrap();
    let limits = root.path().join("some/where/limits");
    let mut source = watching(&limits).await;
    assert!(source.published().config.is_none());
    fs::create_dir_all(&limits).unwrap();
    fs::write(limits.join("a.yaml"), "a").unwrap();
    source.until_in_force(&["a"]).await;
}

#[tokio::test]
async fn existing_and_new_subdirectories_are_watched() {
    let (_root, limits) = limits_directory();
    fs::create_dir(limits.join("old")).unwrap();
    let mut source = watching(&limits).await;
    fs::write(limits.join("old/b.yaml"), "b").unwrap();
    source.until_in_force(&["a", "b"]).await;
    fs::create_dir_all(limits.join("new/er")).unwrap();
    fs::write(limits.join("new/er/c.yaml"), "c").unwrap();
    source.until_in_force(&["a", "c", "b"]).await;
    fs::write(limits.join("new/er/c.yaml"), "d").unwrap();
    source.until_in_force(&["a", "d", "b"]).await;
}

#[tokio::test]
async fn symbolic_links_in_the_path_are_watched() {
    let root = tempfile::tempdir().unwrap();
    for release in ["one", "two"] {
        fs::create_dir_all(root.path().join(release).join("limits")).unwrap();
        fs::write(root.path().join(release).join("limits/a.yaml"), release).unwrap();
    }
    let current = root.path().join("current");
    symlink("one", &current).unwrap();
    let mut source = watching(&current.join("limits")).await;
    symlink("two", root.path().join("next")).unwrap();
    fs::rename(root.path().join("next"), &current).unwrap();
    source.until_in_force(&["two"]).await;
}

#[tokio::test]
async fn polling_finds_changes_without_file_system_events() {
    let (root, limits) = limits_directory();
    let outside = root.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("b.yaml"), "b").unwrap();
    symlink(outside.join("b.yaml"), limits.join("b.yaml")).unwrap();
    let look = Duration::from_millis(20);
    let mut source =
        watching_as(FileSourceOptions { poll_interval: look, ..options(&limits) }).await;
    fs::write(outside.join("b.yaml"), "b2").unwrap();
    source.until_in_force(&["a", "b2"]).await;
}

#[tokio::test]
async fn unchanged_reload_counts_but_keeps_the_configuration() {
    let (_root, limits) = limits_directory();
    let mut source = watching(&limits).await;
    let before = source.published().config.clone().unwrap();
    source.source.reload.request();
    let published = source.until(|published| published.status.successful_loads == 2).await;
    assert!(Arc::ptr_eq(published.config.as_ref().unwrap(), &before));
    assert_eq!(published.status.revision, Revision(1));
}

#[tokio::test]
async fn reading_files_triggers_no_load() {
    let (_root, limits) = limits_directory();
    let mut source = watching(&limits).await;
    source.source.reload.request();
    source.until(|published| published.status.successful_loads == 2).await;
    fs::read(limits.join("a.yaml")).unwrap();
    // If reading triggered a load, each load would trigger the next one after the debounce delay of
    // 5 ms.
    let third = source.source.published.wait_for(|published| published.status.successful_loads > 2);
    assert!(timeout(Duration::from_millis(300), third).await.is_err());
}

#[tokio::test]
async fn configuration_source_stops_without_receivers() {
    let (_root, limits) = limits_directory();
    let ConfigSource { published, task, .. } = watching(&limits).await.source;
    drop(published);
    timeout(DEADLINE, task).await.expect("it stops in time").expect("it stops in order");
}
