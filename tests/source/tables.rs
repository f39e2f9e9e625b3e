//! Tables in files: swaps, half files, and the copy on disk.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::num::NonZeroU32;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use hyper::body::Bytes;

use parking_lot::Mutex;
use sluicegate::config::tables::{Amount, Lookup, TableSpec, TableState, TableStates};
use sluicegate::kernel::units::Nanos;
use sluicegate::source::tables::{
    HttpRows, RowRead, RowServer, RowSource, RowsEnd, TableContext, TableOptions, follow,
};
use tempfile::TempDir;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::support::waiting::soon;

struct Followed {
    states: Arc<TableStates>,
    task: JoinHandle<()>,
}

impl Drop for Followed {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn options(path: &Path, copy: Option<PathBuf>) -> TableOptions {
    TableOptions {
        spec: Arc::new(TableSpec::new("customers", [].into(), 10).unwrap()),
        source: RowSource::File(path.to_owned()),
        refresh: Nanos::MILLI,
        copy,
    }
}

fn start(options: TableOptions) -> Followed {
    start_at(options, Arc::new(|| Nanos::SECOND))
}

fn start_at(options: TableOptions, now: Arc<dyn Fn() -> Nanos + Send + Sync>) -> Followed {
    let states = Arc::new(TableStates::new([("customers", "file".into())]));
    let context = TableContext {
        states: Arc::clone(&states),
        publish: Arc::new(|_| ()),
        check: Arc::new(|_: &str, _: &str, number: NonZeroU32| {
            if number.get() < 1_000_000 { Ok(()) } else { Err("too large".to_owned()) }
        }),
        now,
    };
    Followed { states, task: tokio::spawn(follow(options, context)) }
}

impl Followed {
    /// Waits for a state.
    async fn state(&self, what: &str, is_it: impl Fn(&TableState) -> bool) -> TableState {
        let reached = async {
            loop {
                let state = self.states.all().remove(0);
                if is_it(&state) {
                    return state;
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        soon(what, reached).await
    }

    async fn rows(&self, rows: usize) -> TableState {
        self.state(&format!("{rows} rows"), |state| count(state) == rows && !state.is_from_copy)
            .await
    }
}

fn count(state: &TableState) -> usize {
    state.table.as_ref().map_or(0, |table| table.rows())
}

fn csv(ids: std::ops::Range<u32>) -> String {
    let rows = ids.map(|id| format!("c{id},{}\n", id + 1));
    format!("id,api\n{}", rows.collect::<String>())
}

fn file() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("customers.csv");
    (dir, path)
}

#[tokio::test]
async fn a_file_that_appears_and_changes_is_loaded() {
    let (_dir, path) = file();
    let followed = start(options(&path, None));
    let missing = followed.state("an error", |state| state.error.is_some()).await;
    assert!(missing.error.unwrap().contains("customers.csv"), "the error names the file");
    fs::write(&path, csv(0..10)).unwrap();
    assert_eq!(followed.rows(10).await.error, None);
    fs::write(&path, csv(0..11)).unwrap();
    followed.rows(11).await;
}

/// The kubelet swaps the target of a link to a directory.
#[tokio::test]
async fn a_swap_of_a_configmap_is_loaded() {
    let dir = tempfile::tempdir().unwrap();
    for (version, rows) in [("v1", 0..20), ("v2", 0..21)] {
        fs::create_dir(dir.path().join(version)).unwrap();
        fs::write(dir.path().join(version).join("customers.csv"), csv(rows)).unwrap();
    }
    let data = dir.path().join("..data");
    symlink("v1", &data).unwrap();
    let path = dir.path().join("customers.csv");
    symlink("..data/customers.csv", &path).unwrap();
    let followed = start(options(&path, None));
    followed.rows(20).await;
    symlink("v2", dir.path().join("..data_tmp")).unwrap();
    fs::rename(dir.path().join("..data_tmp"), &data).unwrap();
    followed.rows(21).await;
}

#[tokio::test]
async fn a_damaged_file_changes_nothing() {
    let (_dir, path) = file();
    fs::write(&path, csv(0..1_000)).unwrap();
    let followed = start(options(&path, None));
    let before = followed.rows(1_000).await.table.unwrap().digest();
    let whole = csv(0..1_000);
    let renamed = csv(1_000..2_000);
    for (damage, reason) in [
        ("", "is empty"),
        ("id,api\n", "1000 of 1000 ids"),
        (&whole[..whole.len() / 2], "half written"),
        (&*renamed, "1000 of 1000 ids"),
        ("\u{0}\u{1}\n", "no column `id`"),
    ] {
        fs::write(&path, damage).unwrap();
        let is_it =
            |state: &TableState| state.error.as_ref().is_some_and(|error| error.contains(reason));
        let state = followed.state(reason, is_it).await;
        assert_eq!(state.table.unwrap().digest(), before);
    }
    fs::write(&path, &whole).unwrap();
    followed.state("no error", |state| state.error.is_none()).await;
}

/// Opening a pipe would wait for a writer.
#[tokio::test]
async fn a_pipe_is_an_error_and_the_next_file_is_loaded() {
    let (_dir, path) = file();
    let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
    assert!(made.success());
    let followed = start(options(&path, None));
    followed.state("an error", |state| state.error.is_some()).await;
    fs::remove_file(&path).unwrap();
    fs::write(&path, csv(0..3)).unwrap();
    followed.rows(3).await;
}

#[tokio::test]
async fn bad_rows_are_named_and_the_others_apply() {
    let (_dir, path) = file();
    fs::write(&path, format!("{}bad,-1\nhuge,1000000\n", csv(0..3))).unwrap();
    let followed = start(options(&path, None));
    let state = followed.rows(3).await;
    let names: Vec<_> = state.bad_rows.iter().map(|bad| &*bad.row).collect();
    assert_eq!((state.bad, names), (2, vec!["bad", "huge"]));
}

#[tokio::test]
async fn a_restart_without_its_source_serves_the_copy() {
    let (dir, path) = file();
    let copy = dir.path().join("copy.jsonl");
    fs::write(&path, csv(0..50)).unwrap();
    let followed = start(options(&path, Some(copy.clone())));
    let digest = followed.rows(50).await.table.unwrap().digest();
    let written = async {
        while !copy.exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon("the copy", written).await;
    drop(followed);
    fs::remove_file(&path).unwrap();
    let restarted = start(options(&path, Some(copy.clone())));
    let state = restarted.state("the copy", |state| state.table.is_some()).await;
    assert_eq!((state.is_from_copy, state.table.unwrap().digest()), (true, digest));
    // The copy bounds what the first read of the source may remove.
    fs::write(&path, csv(0..10)).unwrap();
    let is_refused = |state: &TableState| {
        state.error.as_ref().is_some_and(|error| error.contains("40 of 50 ids"))
    };
    restarted.state("a refusal", is_refused).await;
    drop(restarted);
    // Half a copy is no copy.
    let bytes = fs::read(&copy).unwrap();
    fs::write(&copy, &bytes[..bytes.len() / 2]).unwrap();
    let again = start(options(&path, Some(copy)));
    again.rows(10).await;
}

/// A database whose full reads lose most ids, and whose changes are right.
struct Shrunken {
    full_reads: usize,
}

impl RowServer for Shrunken {
    fn knows_changes(&self) -> bool {
        true
    }

    fn read(
        &mut self,
        read: RowRead,
        rows: mpsc::Sender<Bytes>,
    ) -> BoxFuture<'_, Result<RowsEnd, String>> {
        let row = |id| format!("{{\"id\": \"c{id}\", \"api\": 1}}\n");
        let lines: String = match read {
            RowRead::All => {
                self.full_reads += 1;
                (0..if self.full_reads == 1 { 100 } else { 10 }).map(row).collect()
            }
            RowRead::Since(_) => format!("{{\"id\": \"c99\", \"api\": {}}}\n", self.full_reads + 1),
        };
        Box::pin(async move {
            rows.send(lines.into()).await.unwrap();
            Ok(RowsEnd::Sent(Some(SystemTime::UNIX_EPOCH)))
        })
    }
}

/// All rows are read once an hour. Each look at the clock is ten minutes later.
#[tokio::test]
async fn changes_arrive_although_the_full_reads_are_refused() {
    let source = RowSource::Server(Box::new(Shrunken { full_reads: 0 }));
    let (looks, mut options) = (AtomicU64::new(0), options(Path::new("unused"), None));
    options.source = source;
    let now = move || Nanos::from_secs(600 * looks.fetch_add(1, Relaxed));
    let followed = start_at(options, Arc::new(now));
    let amount = |state: &TableState, id: &str| {
        let table = state.table.as_ref()?;
        let lookup = table.lookup(id, table.column("api")?, Nanos(0));
        Some(lookup)
    };
    let number = |number| Some(Lookup::Found(Amount::from_number(number)));
    // After two refused full reads, changes still arrive.
    let state = followed.state("a late change", |state| amount(state, "c99") == number(4)).await;
    assert_eq!((count(&state), amount(&state, "c50")), (100, number(1)));
}

/// Answers one request with each of `replies`, over a connection of its own. The last reply stays.
/// Returns the URL, and the requests.
fn serve_replies(replies: Vec<String>) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/customers", listener.local_addr().unwrap());
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&requests);
    std::thread::spawn(move || {
        let mut replies = replies.into_iter();
        let mut reply = String::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // A client may be dropped at any time.
            let Ok(request) = read_request(&mut stream) else { continue };
            seen.lock().push(request);
            reply = replies.next().unwrap_or(reply);
            let _ = stream.write_all(reply.as_bytes());
        }
    });
    (url, requests)
}

fn read_request(stream: &mut TcpStream) -> io::Result<String> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        request.push(byte[0]);
    }
    Ok(String::from_utf8(request).unwrap())
}

fn reply(status: &str, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
    )
}

fn over_http(url: String, token_file: Option<PathBuf>) -> TableOptions {
    let source = RowSource::Server(Box::new(HttpRows::new(url, token_file, None)));
    TableOptions { source, ..options(Path::new("unused"), None) }
}

#[tokio::test]
async fn a_file_over_http_is_sent_again_only_with_another_etag() {
    let dir = tempfile::tempdir().unwrap();
    let token_file = dir.path().join("token");
    fs::write(&token_file, "first\n").unwrap();
    let unchanged = "HTTP/1.1 304 Not Modified\r\nconnection: close\r\n\r\n";
    let (url, requests) = serve_replies(vec![
        reply("200 OK", "etag: \"v1\"\r\n", &csv(0..20)),
        unchanged.to_owned(),
        reply("200 OK", "etag: \"v2\"\r\n", "{\"id\": \"c1\", \"api\": 7}\n"),
        unchanged.to_owned(),
    ]);
    let followed = start(over_http(url, Some(token_file.clone())));
    let digest = followed.rows(20).await.table.unwrap().digest();
    fs::write(&token_file, "second\n").unwrap();
    // The second file removes too many ids. That it is unchanged later does not make it good.
    let refused = |state: &TableState| state.error.as_ref().is_some_and(|it| it.contains("19 of"));
    followed.state("a refusal", refused).await;
    soon("more requests", async {
        while requests.lock().len() < 6 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let state = followed.state("still refused", refused).await;
    assert_eq!(state.table.unwrap().digest(), digest);
    let requests = requests.lock().clone();
    let has = |at: usize, text: &str| requests[at].to_ascii_lowercase().contains(text);
    assert!(has(0, "authorization: bearer first") && !has(0, "if-none-match"), "{requests:?}");
    assert!(has(1, "if-none-match: \"v1\""), "{requests:?}");
    assert!(has(4, "if-none-match: \"v2\"") && has(4, "bearer second"), "{requests:?}");
}

#[tokio::test]
async fn equal_rows_of_the_source_confirm_the_copy() {
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("copy");
    let (url, _) = serve_replies(vec![reply("200 OK", "", &csv(0..20))]);
    let with_copy = || TableOptions { copy: Some(copy.clone()), ..over_http(url.clone(), None) };
    let followed = start(with_copy());
    followed.rows(20).await;
    soon("the copy", async {
        while !copy.exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    drop(followed);
    // `rows` waits until the rows are not those of the copy.
    start(with_copy()).rows(20).await;
}

#[tokio::test]
async fn a_faulty_reply_changes_nothing() {
    let whole = csv(0..100);
    let good = reply("200 OK", "", &whole);
    let cut = good.split_at(good.len() - whole.len() / 2).0.to_owned();
    let faults = [
        (reply("302 Found", "location: http://localhost/\r\n", ""), "302 Found"),
        (reply("401 Unauthorized", "", "no token\n"), "401 Unauthorized"),
        (reply("304 Not Modified", "", ""), "304 Not Modified"),
        (reply("200 OK", "", ""), "is empty"),
        (reply("200 OK", "", "<html>\n</html>\n"), "no column `id`"),
        (reply("200 OK", "", whole.trim_end()), "last line has no end"),
        (reply("200 OK", "", "id,api\n"), "100 of 100 ids"),
        (cut, "end of file"),
        (format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{whole}"), "no `Content-Length`"),
        ("SSH-2.0-OpenSSH\r\n\r\n".to_owned(), "invalid HTTP version"),
    ];
    for (fault, reason) in faults {
        let (url, _) = serve_replies(vec![good.clone(), fault.clone()]);
        let followed = start(over_http(url, None));
        let before = followed.rows(100).await.table.unwrap().digest();
        let is_it = |state: &TableState| state.error.as_ref().is_some_and(|it| it.contains(reason));
        let state = followed.state(&format!("{reason:?} for {fault:?}"), is_it).await;
        assert_eq!(state.table.unwrap().digest(), before, "{reason}");
    }
}
