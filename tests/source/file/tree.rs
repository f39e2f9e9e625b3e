//! Tests of reading limits from a directory tree: selected files, their order, and refused trees.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use sluicegate::source::SourceReadError;
use sluicegate::source::file::{MAX_DEPTH, MAX_FILE_BYTES, MAX_FILES, MAX_TOTAL_BYTES, read_tree};

fn names(root: &Path) -> Vec<String> {
    let texts = read_tree(&[root.to_owned()]).unwrap();
    let below = format!("{}/", root.display());
    texts.iter().map(|text| text.name.strip_prefix(&below).unwrap().to_owned()).collect()
}

fn write(root: &Path, name: &str) {
    let path = root.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, name).unwrap();
}

#[test]
fn limits_files_of_any_extension_are_read_in_name_order() {
    let root = tempfile::tempdir().unwrap();
    for name in ["b.txt", "a.yaml", "sub/deep/n.yml", "README", "a.json", "sub.yaml"] {
        write(root.path(), name);
    }
    let wanted = ["README", "a.json", "a.yaml", "b.txt", "sub.yaml", "sub/deep/n.yml"];
    assert_eq!(names(root.path()), wanted);
    let texts = read_tree(&[root.path().to_owned()]).unwrap();
    assert_eq!(texts[3].bytes, b"b.txt");
}

#[test]
fn hidden_and_editor_files_are_ignored() {
    let root = tempfile::tempdir().unwrap();
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
        write(root.path(), name);
    }
    assert_eq!(names(root.path()), ["a.yaml"]);
}

#[test]
fn explicitly_named_file_is_always_read() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), ".limits~");
    let path = root.path().join(".limits~");
    let texts = read_tree(std::slice::from_ref(&path)).unwrap();
    assert_eq!((texts.len(), &*texts[0].name), (1, path.to_str().unwrap()));
}

#[test]
fn kubernetes_volume_files_are_read_once() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "..2024_01/a.yaml");
    symlink("..2024_01", root.path().join("..data")).unwrap();
    symlink("..data/a.yaml", root.path().join("a.yaml")).unwrap();
    assert_eq!(names(root.path()), ["a.yaml"]);
}

#[test]
fn directory_links_are_followed_only_if_named() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "real/a.yaml");
    symlink("real", root.path().join("link")).unwrap();
    symlink("..", root.path().join("real/up")).unwrap();
    assert_eq!(names(&root.path().join("link")), ["a.yaml"]);
}

#[test]
fn duplicate_and_empty_path_lists_are_accepted() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), "a.yaml");
    let file = root.path().join("a.yaml");
    assert_eq!(read_tree(&[root.path().to_owned(), file]).unwrap().len(), 1);
    assert_eq!(read_tree(&[]).unwrap(), []);
}

#[test]
fn missing_paths_and_dangling_links_are_named_errors() {
    let root = tempfile::tempdir().unwrap();
    let missing = root.path().join("missing");
    let error = read_tree(std::slice::from_ref(&missing)).unwrap_err();
    assert!(error.to_string().starts_with(missing.to_str().unwrap()), "{error}");
    symlink("nowhere", root.path().join("dangling.yaml")).unwrap();
    let error = read_tree(&[root.path().to_owned()]).unwrap_err();
    assert!(
        matches!(&error, SourceReadError::Unreadable { path, .. } if path.ends_with("dangling.yaml"))
    );
}

#[test]
fn devices_are_refused() {
    let error = read_tree(&[PathBuf::from("/dev/zero")]).unwrap_err();
    assert!(matches!(error, SourceReadError::NeitherFileNorDirectory { .. }));
}

#[test]
fn files_above_the_size_limit_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let file = File::create(root.path().join("a.yaml")).unwrap();
    file.set_len(MAX_FILE_BYTES).unwrap();
    assert_eq!(read_tree(&[root.path().to_owned()]).unwrap()[0].bytes.len() as u64, MAX_FILE_BYTES);
    file.set_len(MAX_FILE_BYTES + 1).unwrap();
    let error = read_tree(&[root.path().to_owned()]).unwrap_err();
    assert!(matches!(error, SourceReadError::TooLarge { most: MAX_FILE_BYTES, .. }));
}

#[test]
fn trees_above_the_total_size_limit_are_refused() {
    let root = tempfile::tempdir().unwrap();
    for number in 0..=MAX_TOTAL_BYTES / MAX_FILE_BYTES {
        File::create(root.path().join(number.to_string()))
            .unwrap()
            .set_len(MAX_FILE_BYTES)
            .unwrap();
    }
    let error = read_tree(&[root.path().to_owned()]).unwrap_err();
    assert!(matches!(error, SourceReadError::TotalTooLarge { most: MAX_TOTAL_BYTES, .. }));
}

#[test]
fn trees_above_the_file_count_limit_are_refused() {
    let root = tempfile::tempdir().unwrap();
    // Five digits, because a file named `4913` is ignored as a temporary file of Vim.
    for number in 0..MAX_FILES {
        File::create(root.path().join(format!("{number:05}"))).unwrap();
    }
    assert_eq!(read_tree(&[root.path().to_owned()]).unwrap().len(), MAX_FILES);
    File::create(root.path().join("one-more")).unwrap();
    let error = read_tree(&[root.path().to_owned()]).unwrap_err();
    assert!(matches!(error, SourceReadError::TooManyFiles { most: MAX_FILES, .. }));
}

#[test]
fn directories_below_the_depth_limit_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let mut deepest = PathBuf::new();
    (0..MAX_DEPTH).for_each(|_| deepest.push("d"));
    write(root.path(), deepest.join("a.yaml").to_str().unwrap());
    assert_eq!(names(root.path()).len(), 1);
    write(root.path(), deepest.join("d/a.yaml").to_str().unwrap());
    let error = read_tree(&[root.path().to_owned()]).unwrap_err();
    assert!(matches!(error, SourceReadError::TooDeep { most: MAX_DEPTH, .. }));
}
