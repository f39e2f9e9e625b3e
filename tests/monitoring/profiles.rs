//! Profiles of the running service, read by pprof itself, and what becomes of the service while one is taken.
//!
//! Guarantees: pprof finds in it what the service did and no more time than the system says; whoever ends first, the asker, the
//! profiler or the service, leaves nothing behind: no thread that stands still, no process that goes on.
//! Leaves out: how little it costs (`benches/profile.rs`), and systems that do not let one process look at another.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use sluicegate::telemetry::profile::sampler::take;

use super::root;
use crate::http1::{self, Reply};
use crate::service::Service;
use crate::support::dice::seed;
use crate::waiting::{Ends, PATIENCE, now, until};

const LIMITS: &str = "domain: shop\ndescriptors:\n- key: api_key\n  \
                      rate_limit: {unit: day, requests_per_unit: 1000000000}\n";
const QUESTION: &[u8] =
    br#"{"domain": "shop", "descriptors": [{"entries": [{"key": "api_key", "value": "a"}]}]}"#;

fn serve(flags: &[&str]) -> (tempfile::TempDir, Service) {
    let limits = tempfile::tempdir().unwrap();
    fs::write(limits.path().join("shop.yaml"), LIMITS).unwrap();
    let flags: Vec<_> = flags.iter().map(|&flag| flag.to_owned()).collect();
    let service = Service::start(limits.path(), &flags).unwrap();
    (limits, service)
}

fn ask(http: SocketAddr) -> u16 {
    http1::call(http, "POST", "/json", &[], Some(QUESTION)).unwrap().status
}

/// Asks all the time beside this.
fn under_load<T>(service: &Service, work: impl FnOnce() -> T) -> T {
    let (over, http) = (AtomicBool::new(false), service.http);
    std::thread::scope(|scope| {
        let _ends = Ends(&over);
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Relaxed) {
                    assert_eq!(ask(http), 200);
                }
            });
        }
        work()
    })
}

fn profile(admin: SocketAddr, seconds: &str) -> Reply {
    http1::get(admin, &format!("/debug/pprof/profile?seconds={seconds}"), &[]).unwrap()
}

fn begun(service: &Service, seconds: u64) -> JoinHandle<Reply> {
    let admin = service.admin;
    let asked = spawn(move || profile(admin, &seconds.to_string()));
    until("a profiler that looks", || looking(service)).unwrap();
    asked
}

/// Whether a profiler has read what it needs to begin with, and looks.
fn looking(service: &Service) -> Result<(), String> {
    let pid = profiler(service).ok_or("none")?;
    let files = fs::read_dir(format!("/proc/{pid}/fd")).map_err(|error| error.to_string())?;
    let memory = format!("/proc/{}/mem", service.id());
    let held = |file: fs::DirEntry| fs::read_link(file.path()).is_ok_and(|at| at == *memory);
    if files.flatten().any(held) { Ok(()) } else { Err(format!("{pid} has not begun")) }
}

/// The service's child, if it has one.
fn profiler(service: &Service) -> Option<u32> {
    let is_child = |pid: &u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let mut words = stat.rsplit(") ").next().unwrap_or_default().split(' ');
        let gone = words.next().is_none_or(|state| state == "Z");
        !gone && words.next() == Some(&service.id().to_string())
    };
    processes().find(is_child)
}

fn processes() -> impl Iterator<Item = u32> {
    let listed = fs::read_dir("/proc").unwrap();
    listed.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

fn no_profiler(service: &Service) {
    let none = || match profiler(service) {
        None => Ok(()),
        Some(pid) => Err(format!("{pid} goes on")),
    };
    until("the end of the profiler", none).unwrap();
}

/// What the whole process took of processors, in nanoseconds: that of its threads, none of which ends here.
fn taken(service: &Service) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{}/task", service.id())).unwrap();
    let of = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        text.split(' ').next().and_then(|nanos| nanos.parse::<u64>().ok()).unwrap_or(0)
    };
    tasks.flatten().map(of).sum()
}

fn standing_still(service: &Service) -> usize {
    let tasks = fs::read_dir(format!("/proc/{}/task", service.id())).unwrap();
    let stands = |task: &fs::DirEntry| {
        let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with(['t', 'T']))
    };
    tasks.flatten().filter(stands).count()
}

/// What pprof says of it, functions by all that is in them, in nanoseconds.
fn read_by_pprof(profile: &[u8]) -> String {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(profile).unwrap();
    let mut pprof = Command::new(root().join(".tools/bin/pprof"));
    pprof.args(["-top", "-cum", "-unit=ns", "-nodecount=100000", "-nodefraction=0"]);
    let out = pprof.args(["-symbolize=none"]).arg(file.path()).output();
    let out = out.expect("no pprof in .tools/bin: run scripts/chart.sh");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Nanoseconds in functions that are called like this.
fn within(report: &str, name: &str) -> u64 {
    let most = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let nanos = words.nth(3)?.strip_suffix("ns")?.parse::<f64>().ok()?;
        words.nth(1)?.contains(name).then_some(format!("{nanos:.0}").parse::<u64>().ok()?)
    };
    report.lines().filter_map(most).max().unwrap_or(0)
}

#[test]
fn pprof_reads_in_a_profile_what_the_service_did_and_no_more_than_the_system_says() {
    let (_limits, service) = serve(&["--threads", "2"]);
    let (reply, took) = under_load(&service, || {
        let before = taken(&service);
        let reply = profile(service.admin, "2");
        (reply, taken(&service) - before)
    });
    assert_eq!(reply.status, 200, "{}", reply.text());
    let report = read_by_pprof(&reply.body);
    assert!(report.contains("Type: cpu"), "{report}");
    let all = within(&report, "std::thread");
    assert!(0 < all && all <= took, "{all} of {took}\n{report}");
    // The profiler reads names after it has looked, and the service goes on meanwhile.
    assert!(took / 4 < all, "{all} of {took}\n{report}");
    let answering = within(&report, "sluicegate::edge::http");
    assert!(all / 10 < answering && answering <= all, "{answering} of {all}\n{report}");
    assert!(report.contains("sluicegate::engine::"), "{report}");
}

#[test]
fn one_profile_is_taken_at_a_time_and_questions_are_answered_meanwhile() {
    let (_limits, service) = serve(&[]);
    let first = begun(&service, 5);
    let second = profile(service.admin, "1");
    assert_eq!((second.status, ask(service.http)), (409, 200), "{}", second.text());
    assert_eq!(first.join().unwrap().status, 200);
    no_profiler(&service);
    assert_eq!(profile(service.admin, "1").status, 200);
    assert_eq!(ask(service.http), 200);
}

#[test]
fn who_goes_away_takes_the_profiler_along() {
    let (_limits, service) = serve(&[]);
    let mut asker = TcpStream::connect(service.admin).unwrap();
    write!(asker, "GET /debug/pprof/profile?seconds=300 HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
    until("a profiler", || looking(&service)).unwrap();
    drop(asker);
    no_profiler(&service);
    let again = || match profile(service.admin, "1").status {
        200 => Ok(()),
        other => Err(other.to_string()),
    };
    until("the next profile", again).unwrap();
}

#[test]
fn a_profiler_that_is_killed_leaves_no_thread_standing() {
    let (_limits, service) = serve(&["--threads", "2"]);
    under_load(&service, || {
        for _ in 0..10 {
            let asked = begun(&service, 300);
            crate::signals::send(profiler(&service).unwrap(), "KILL");
            let reply = asked.join().unwrap();
            assert_eq!(reply.status, 500, "{}", reply.text());
            assert!(reply.text().contains("the profiler ended"), "{}", reply.text());
            assert_eq!((standing_still(&service), ask(service.http)), (0, 200));
        }
    });
}

#[test]
fn a_service_that_is_killed_takes_the_profiler_along() {
    let (_limits, mut service) = serve(&[]);
    let asked = service.admin;
    let asked = spawn(move || http1::get(asked, "/debug/pprof/profile?seconds=300", &[]));
    until("a profiler that looks", || looking(&service)).unwrap();
    let profiler = profiler(&service).unwrap();
    service.kill();
    until("the end of the profiler", || match fs::exists(format!("/proc/{profiler}/exe")) {
        Ok(true) if is_ours(profiler) => Err("it goes on".to_owned()),
        _ => Ok(()),
    })
    .unwrap();
    assert!(asked.join().unwrap().is_err());
}

/// Whether this is still our program: the number may be another's by now.
fn is_ours(pid: u32) -> bool {
    let run = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    run.split('\0').nth(1) == Some("profile")
}

#[test]
fn what_the_service_is_sent_arrives_while_it_is_looked_at() {
    let (_limits, mut service) = serve(&["--drain-delay", "0s", "--drain-timeout", "20s"]);
    let asked = under_load(&service, || {
        let asked = begun(&service, 300);
        for loads in 2..12 {
            service.signal("HUP");
            let loaded = || match service.loads().unwrap().loaded {
                enough if loads <= enough => Ok(()),
                few => Err(format!("{few} of {loads}")),
            };
            until("a load", loaded).unwrap();
        }
        looking(&service).unwrap();
        asked
    });
    // Nor does it keep the service from leaving, which else would wait for what is under way.
    service.terminate();
    let reply = asked.join().unwrap();
    assert_eq!((reply.status, &*reply.text()), (503, "the service is leaving\n"));
    let status = service.ended().unwrap();
    assert_eq!(status.code(), Some(0), "{status}\n{}", service.log());
}

/// A process that is always on a processor and answers each signal, before it is sent that one again.
const BUSY: &str = r#"
import os, select, signal, time
names = "HUP USR1 USR2 ALRM TERM IO URG XCPU VTALRM PROF WINCH PWR".split()
sent = [getattr(signal, "SIG" + name) for name in names]
answers, answer = os.pipe()
sender = os.getpid()
os.set_blocking(answer, False)
busy = os.fork()
if busy == 0:
    for one in sent:
        signal.signal(one, lambda *_: None)
    signal.set_wakeup_fd(answer)
    os.write(answer, b"r")
    while os.getppid() == sender:
        pass
    os._exit(1)
os.read(answers, 1)
print(busy, flush=True)
enough = time.monotonic() + 60
for burst in range(20000):
    if 200 < burst and enough < time.monotonic():
        break
    for one in sent:
        os.kill(busy, one)
    left = len(sent)
    while left and select.select([answers], [], [], 20)[0]:
        left -= len(os.read(answers, left))
    if left:
        print(left, "of burst", burst, "were lost", flush=True)
        break
os.kill(busy, signal.SIGKILL)
os.waitpid(busy, 0)
print("over")
"#;

#[test]
fn no_signal_is_lost_that_comes_while_a_thread_is_held() {
    let mut sender =
        Command::new("python3").args(["-c", BUSY]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(sender.stdout.take().unwrap()).lines().map_while(Result::ok);
    let busy = lines.next().unwrap().parse().unwrap();
    let looks = AtomicU64::new(0);
    let counted = || {
        looks.fetch_add(1, Relaxed);
        true
    };
    // As often as can be, so that signals meet the moments in which it is held; for longer than the sender takes.
    let taken = take(busy, Duration::from_secs(600), Duration::ZERO, clock(), counted);
    // Nothing is read before: where it is not gone its sender waits for us.
    assert!(taken.is_err_and(|why| why.contains("the process is gone")));
    assert_eq!(lines.next().as_deref(), Some("over"));
    sender.wait().unwrap();
    assert!(1_000 < looks.into_inner(), "it was hardly looked at");
}

/// Nanoseconds since now.
fn clock() -> impl Fn() -> u64 {
    let began = now();
    move || u64::try_from(began.elapsed().as_nanos()).unwrap()
}

/// Processes that are always on a processor, one after the other, each killed within a millisecond or so of the line that says that
/// it is looked at, and waited for.
const KILLED: &str = r"
import os, random, signal, sys
chance, parent = random.Random(int(sys.argv[1])), os.getpid()
for _ in range(100):
    busy = os.fork()
    while busy == 0 and os.getppid() == parent:
        pass
    if busy == 0:
        os._exit(1)
    print(busy, flush=True)
    sys.stdin.readline()
    for _ in range(chance.randrange(20000)):
        pass
    os.kill(busy, signal.SIGKILL)
    os.waitpid(busy, 0)
";

#[test]
fn whoever_is_killed_while_it_is_held_is_gone_for_its_parent() {
    let seed = seed();
    let mut parent = Command::new("python3");
    parent.args(["-c", KILLED, &seed.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut parent = parent.spawn().unwrap();
    let tell = parent.stdin.take().unwrap();
    let lines = BufReader::new(parent.stdout.take().unwrap()).lines().map_while(Result::ok);
    let mut killed = 0;
    for busy in lines {
        let told = AtomicBool::new(false);
        let looked_at = || told.swap(true, Relaxed) || (&tell).write_all(b"\n").is_ok();
        let taken = take(busy.parse().unwrap(), PATIENCE, Duration::ZERO, clock(), looked_at);
        let why = taken.map_or_else(|why| why, |_| "it is dead and still there".to_owned());
        assert!(why.contains("the process is gone"), "seed {seed}, {killed} were gone: {why}");
        killed += 1;
    }
    assert_eq!(killed, 100);
    assert!(parent.wait().unwrap().success());
}

#[test]
fn a_length_that_is_none_is_refused_in_words() {
    let (_limits, service) = serve(&[]);
    for seconds in ["0", "301", "-1", "1.5", "long", ""] {
        let reply = profile(service.admin, seconds);
        assert_eq!(reply.status, 400, "{seconds}");
        assert!(reply.text().contains("a whole number from 1 to 300"), "{}", reply.text());
    }
}
