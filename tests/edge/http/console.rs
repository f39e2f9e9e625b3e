//! Tests of the console's files: headers, sizes, and safe contents.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Request};
use regex::Regex;
use tonic::codegen::Service as _;

use super::admin::admin;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/edge/src/http/console");

/// The largest transfer of the first page, in bytes.
const MAX_FIRST_PAGE: usize = 200_000;

struct Reply {
    status: u16,
    headers: HeaderMap,
    body: Vec<u8>,
}

impl Reply {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

/// Sends a request without a token to an admin port that has one.
async fn send(method: &str, path: &str, headers: &[(&str, &str)]) -> Reply {
    let router: Router = admin(Some("open-sesame-please"));
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let Ok(reply) = router.clone().call(request.body(Body::empty()).unwrap()).await;
    let (status, headers) = (reply.status().as_u16(), reply.headers().clone());
    let body = axum::body::to_bytes(reply.into_body(), usize::MAX).await.unwrap().to_vec();
    Reply { status, headers, body }
}

/// The files below the folder, as paths relative to it.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let found = entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] });
    found.map(|path| path.strip_prefix(FOLDER).unwrap_or(&path).to_owned()).collect()
}

/// The path of each file in the folder, with the address that serves it. The README is for
/// developers only.
fn served_files() -> Vec<(PathBuf, String)> {
    let paths = files(Path::new(FOLDER)).into_iter();
    let served = paths.filter(|path| path.file_name().unwrap() != "README.md");
    served
        .map(|path| match path.to_str().unwrap() {
            "index.html" => (path, "/console".to_owned()),
            name => (path.clone(), format!("/console/{name}")),
        })
        .collect()
}

/// The files that this project writes, with their text.
fn own_files() -> Vec<(PathBuf, String)> {
    let files = served_files().into_iter().map(|(path, _)| path);
    let own = files.filter(|path| !path.starts_with("vendor"));
    own.map(|path| (path.clone(), fs::read_to_string(Path::new(FOLDER).join(path)).unwrap()))
        .collect()
}

#[tokio::test]
async fn every_console_file_is_served_without_a_token() {
    let files = served_files();
    assert!(20 < files.len(), "{files:?}");
    for (path, address) in files {
        let reply = send("GET", &address, &[]).await;
        assert_eq!(reply.status, 200, "{address}");
        let bytes = fs::read(Path::new(FOLDER).join(&path)).unwrap();
        assert!(reply.body == bytes, "{address} differs from {}", path.display());
        let content_type = match path.extension().unwrap().to_str().unwrap() {
            "html" => "text/html; charset=utf-8",
            "js" => "text/javascript; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "svg" => "image/svg+xml",
            _ => "text/plain; charset=utf-8",
        };
        assert_eq!(reply.header("content-type"), content_type, "{address}");
        assert_eq!(reply.header("x-content-type-options"), "nosniff", "{address}");
        assert_eq!(reply.header("cache-control"), "no-cache", "{address}");
    }
    assert_eq!(send("GET", "/config", &[]).await.status, 401, "data needs a token");
}

#[tokio::test]
async fn unchanged_console_files_are_not_sent_again() {
    let mut tags = BTreeSet::new();
    for (_, address) in served_files() {
        let tag = send("GET", &address, &[]).await.header("etag").to_owned();
        for known in [tag.clone(), format!("W/{tag}"), format!("\"other\", {tag}"), "*".to_owned()]
        {
            let reply = send("GET", &address, &[("if-none-match", &known)]).await;
            assert_eq!((reply.status, reply.body.len()), (304, 0), "{address} {known}");
            assert_eq!(reply.header("etag"), tag, "{address}");
        }
        let changed = send("GET", &address, &[("if-none-match", "\"0123456789abcdef\"")]).await;
        assert_eq!(changed.status, 200, "{address}");
        assert!(tags.insert(tag), "two files have the tag of {address}");
    }
}

#[tokio::test]
async fn only_known_console_files_are_served_and_only_to_readers() {
    for path in [
        "/console/nothing.js",
        "/console/index.html/",
        "/console/vendor",
        "/console/pages/",
        "/console/../admin.rs",
        "/console/%2e%2e/admin.rs",
        "/console//app.js",
    ] {
        let reply = send("GET", path, &[]).await;
        assert_eq!(reply.status, 404, "{path}");
        assert_eq!(reply.header("x-content-type-options"), "nosniff", "{path}");
    }
    for path in ["/console", "/console/app.js"] {
        let head = send("HEAD", path, &[]).await;
        assert_eq!((head.status, head.body.len()), (200, 0), "{path}");
        for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
            assert_eq!(send(method, path, &[]).await.status, 405, "{method} {path}");
        }
    }
    let redirect = send("GET", "/console/", &[]).await;
    assert_eq!((redirect.status, redirect.header("location")), (308, "../console"));
}

#[test]
fn the_first_page_is_small() {
    let sizes = served_files()
        .into_iter()
        .map(|(path, _)| fs::metadata(Path::new(FOLDER).join(path)).unwrap().len());
    let bytes = usize::try_from(sizes.sum::<u64>()).unwrap();
    assert!(bytes <= MAX_FIRST_PAGE, "{bytes} bytes");
}

/// Data reaches the page only as text, and the content security policy needs no exception.
#[test]
fn console_files_have_no_markup_from_data_and_no_inline_code() {
    let forbidden = Regex::new(
        r"(?x) innerHTML | outerHTML | insertAdjacentHTML | document\.write | createContextualFragment
        | DOMParser | srcdoc | \beval\b | new\ Function | javascript: | \sstyle= | \son[a-z]+=
        | <style | setAttribute\(.style | document\.cookie",
    )
    .unwrap();
    for (path, text) in own_files() {
        let found = forbidden.find(&text).map(|found| found.as_str());
        assert_eq!(found, None, "{}", path.display());
    }
    let index = fs::read_to_string(Path::new(FOLDER).join("index.html")).unwrap();
    let script = Regex::new(r"<script([^>]*)>([^<]*)</script>").unwrap();
    let scripts: Vec<_> = script.captures_iter(&index).collect();
    assert_eq!(scripts.len(), 3);
    assert!(scripts.iter().all(|found| found[1].contains("src=") && found[2].is_empty()));
}

#[test]
fn console_files_name_no_other_host() {
    let address = Regex::new(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}").unwrap();
    for (path, text) in own_files() {
        // A name space is an identifier, which no browser fetches.
        let text = text.replace("http://www.w3.org/2000/svg", "");
        let found = address.find(&text).map(|found| found.as_str());
        assert_eq!(found, None, "{}", path.display());
    }
}

/// Every script that the page loads exists, and every module is preloaded, so that the first page
/// needs two round trips.
#[test]
fn the_page_preloads_every_module() {
    let index = fs::read_to_string(Path::new(FOLDER).join("index.html")).unwrap();
    let link = Regex::new(r#"(?:href|src)="console/([^"]+)""#).unwrap();
    let linked: BTreeSet<_> =
        link.captures_iter(&index).map(|found| PathBuf::from(&found[1])).collect();
    let is_loaded = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension != "html" && extension != "uPlot")
    };
    let served: BTreeSet<_> = served_files().into_iter().map(|(path, _)| path).collect();
    assert_eq!(linked, served.into_iter().filter(is_loaded).collect());
}

#[test]
fn console_scripts_are_short() {
    for (path, text) in own_files() {
        let is_script = path.extension().is_some_and(|extension| extension == "js");
        let longest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        assert!(!is_script || text.lines().count() < 400, "{}", path.display());
        assert!(!is_script || longest <= 120, "{}: {longest} columns", path.display());
    }
}
