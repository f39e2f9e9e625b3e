//! Which files are read, in which order, and what is refused.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use sluicegate::source::SourceError;
use sluicegate::source::file::{DEEPEST, LARGEST_FILE, LARGEST_TOGETHER, MOST_FILES, read_tree};

/// The names below `room`, in the order they are read.
fn names(room: &Path) -> Vec<String> {
    let texts = read_tree(&[room.to_owned()]).unwrap();
    let below = format!("{}/", room.display());
    texts.iter().map(|text| text.name.strip_prefix(&below).unwrap().to_owned()).collect()
}

fn write(room: &Path, name: &str) {
    let path = room.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, name).unwrap();
}

#[test]
fn every_regular_file_counts_whatever_its_extension_in_the_order_of_names() {
    let room = tempfile::tempdir().unwrap();
    for name in ["b.txt", "a.yaml", "sub/deep/n.yml", "README", "a.json", "sub.yaml"] {
        write(room.path(), name);
    }
    let wanted = ["README", "a.json", "a.yaml", "b.txt", "sub.yaml", "sub/deep/n.yml"];
    assert_eq!(names(room.path()), wanted);
    let texts = read_tree(&[room.path().to_owned()]).unwrap();
    assert_eq!(texts[3].bytes, b"b.txt");
}

#[test]
fn dot_files_and_what_editors_leave_behind_do_not_count() {
    let room = tempfile::tempdir().unwrap();
    for name in [
        "a.yaml",
        ".a.yaml.swp",
        ".hidden",
        ".git/config",
        "a.yaml~",
        "x.swp",
        "x.swx",
        "#a.yaml#",
        ".#a.yaml",
        "4913",
    ] {
        write(room.path(), name);
    }
    assert_eq!(names(room.path()), ["a.yaml"]);
}

#[test]
fn a_file_that_is_named_counts_whatever_its_name() {
    let room = tempfile::tempdir().unwrap();
    write(room.path(), ".limits~");
    let path = room.path().join(".limits~");
    let texts = read_tree(std::slice::from_ref(&path)).unwrap();
    assert_eq!((texts.len(), &*texts[0].name), (1, path.to_str().unwrap()));
}

#[test]
fn a_kubernetes_volume_is_read_once() {
    let room = tempfile::tempdir().unwrap();
    write(room.path(), "..2024_01/a.yaml");
    symlink("..2024_01", room.path().join("..data")).unwrap();
    symlink("..data/a.yaml", room.path().join("a.yaml")).unwrap();
    assert_eq!(names(room.path()), ["a.yaml"]);
}

#[test]
fn a_named_symbolic_link_is_followed_one_to_a_directory_below_is_not() {
    let room = tempfile::tempdir().unwrap();
    write(room.path(), "real/a.yaml");
    symlink("real", room.path().join("link")).unwrap();
    symlink("..", room.path().join("real/up")).unwrap();
    assert_eq!(names(&room.path().join("link")), ["a.yaml"]);
}

#[test]
fn a_path_named_twice_is_read_once_and_none_at_all_is_an_empty_configuration() {
    let room = tempfile::tempdir().unwrap();
    write(room.path(), "a.yaml");
    let file = room.path().join("a.yaml");
    assert_eq!(read_tree(&[room.path().to_owned(), file]).unwrap().len(), 1);
    assert_eq!(read_tree(&[]).unwrap(), []);
}

#[test]
fn what_is_not_there_is_an_error_that_names_it() {
    let room = tempfile::tempdir().unwrap();
    let missing = room.path().join("missing");
    let error = read_tree(std::slice::from_ref(&missing)).unwrap_err();
    assert!(error.to_string().starts_with(missing.to_str().unwrap()), "{error}");
    symlink("nowhere", room.path().join("dangling.yaml")).unwrap();
    let error = read_tree(&[room.path().to_owned()]).unwrap_err();
    assert!(
        matches!(&error, SourceError::Unreadable { path, .. } if path.ends_with("dangling.yaml"))
    );
}

#[test]
fn a_device_is_neither_file_nor_directory() {
    let error = read_tree(&[PathBuf::from("/dev/zero")]).unwrap_err();
    assert!(matches!(error, SourceError::NeitherFileNorDirectory { .. }));
}

#[test]
fn a_file_larger_than_files_may_be_is_refused_one_as_large_is_not() {
    let room = tempfile::tempdir().unwrap();
    let file = File::create(room.path().join("a.yaml")).unwrap();
    file.set_len(LARGEST_FILE).unwrap();
    assert_eq!(read_tree(&[room.path().to_owned()]).unwrap()[0].bytes.len() as u64, LARGEST_FILE);
    file.set_len(LARGEST_FILE + 1).unwrap();
    let error = read_tree(&[room.path().to_owned()]).unwrap_err();
    assert!(matches!(error, SourceError::TooLarge { most: LARGEST_FILE, .. }));
}

#[test]
fn files_larger_together_than_they_may_be_are_refused() {
    let room = tempfile::tempdir().unwrap();
    for number in 0..=LARGEST_TOGETHER / LARGEST_FILE {
        File::create(room.path().join(number.to_string())).unwrap().set_len(LARGEST_FILE).unwrap();
    }
    let error = read_tree(&[room.path().to_owned()]).unwrap_err();
    assert!(matches!(error, SourceError::TooLargeTogether { most: LARGEST_TOGETHER, .. }));
}

#[test]
fn more_files_than_there_may_be_are_refused() {
    let room = tempfile::tempdir().unwrap();
    // Five digits: a `4913` alone would be taken for what Vim leaves behind.
    for number in 0..MOST_FILES {
        File::create(room.path().join(format!("{number:05}"))).unwrap();
    }
    assert_eq!(read_tree(&[room.path().to_owned()]).unwrap().len(), MOST_FILES);
    File::create(room.path().join("one-more")).unwrap();
    let error = read_tree(&[room.path().to_owned()]).unwrap_err();
    assert!(matches!(error, SourceError::TooMany { most: MOST_FILES, .. }));
}

#[test]
fn directories_may_be_nested_as_deep_as_stated_and_no_deeper() {
    let room = tempfile::tempdir().unwrap();
    let mut deepest = PathBuf::new();
    (0..DEEPEST).for_each(|_| deepest.push("d"));
    write(room.path(), deepest.join("a.yaml").to_str().unwrap());
    assert_eq!(names(room.path()).len(), 1);
    write(room.path(), deepest.join("d/a.yaml").to_str().unwrap());
    let error = read_tree(&[room.path().to_owned()]).unwrap_err();
    assert!(matches!(error, SourceError::TooDeep { most: DEEPEST, .. }));
}
