//! Evaluates the facts about a Redis.
//!
//! Guarantees:
//! - Pure: no I/O and no clock.
//! - Each finding has the problem, its consequence and the fix.
//! - An unknown fact causes no finding. A refused script is a known fact.
//!
//! Not covered:
//! - Collecting the facts.

use serde::Serialize;

use crate::kernel::units::Nanos;

/// The oldest Redis version with every command of the scripts.
const OLDEST: (u32, u32) = (6, 2);

/// The clock difference that causes a finding. NTP keeps clocks closer
/// than this, and a smaller error is invisible at a window's edge.
const FAR: Nanos = Nanos(500 * Nanos::MILLI.0);

const SLOTS: u64 = 16_384;

/// The facts about one Redis process. A fact is `None` if it could not be determined.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    /// The address, or the path of the socket.
    pub(super) at: String,
    pub(super) version: Option<(u32, u32)>,
    /// `master` or `slave`.
    pub(super) role: Option<String>,
    pub(super) loading: bool,
    /// `true` if `INFO` contains the `run_id`.
    pub(super) names_its_run: Option<bool>,
    pub(super) policy: Option<String>,
    /// The limit in bytes. 0 means no limit.
    pub(super) maxmemory: Option<u64>,
    pub(super) used: Option<u64>,
    /// The number of keys evicted since the start.
    pub(super) evicted: Option<u64>,
    /// `true` if the append-only file is on.
    pub(super) appends: Option<bool>,
    pub(super) saves: Option<bool>,
    /// `true` if the last snapshot failed.
    pub(super) last_save_failed: bool,
    pub(super) cluster: Option<Cluster>,
    /// With Sentinel: `true` if it accepts writes without a connected replica.
    pub(super) writes_alone: Option<bool>,
    /// The least possible difference to this machine's clock.
    pub(super) skew: Option<Nanos>,
    /// The median of several round trips.
    pub(super) round_trip: Option<Nanos>,
    /// The result of a script that runs the same commands as ours.
    pub(super) script: Option<Result<(), String>>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Cluster {
    pub(super) is_ok: bool,
    pub(super) slots: u64,
}

/// The requirements of the settings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) deadline: Nanos,
    /// `true` if envoyproxy/ratelimit's keys are used. Their windows follow this machine's clock.
    pub(super) reference: bool,
    pub(super) several: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// Limits are not enforced, or not counted.
    Error,
    /// Limits are enforced until some event, such as a restart.
    Warning,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// The stable identifier of the kind of finding.
    pub(super) code: &'static str,
    pub(super) at: String,
    /// The problem and its consequence.
    pub(super) message: String,
    pub(super) help: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let severity = if self.severity == Severity::Error { "error" } else { "warning" };
        write!(f, "{severity}[{}]: {}: {}; {}", self.code, self.at, self.message, self.help)
    }
}

/// Returns the findings about `facts`, errors first.
pub(super) fn judge(facts: &Facts, wanted: Wanted) -> Vec<Finding> {
    let mut judge = Judge { at: &facts.at, findings: Vec::new() };
    judge.fitness(facts);
    judge.memory(facts);
    judge.cluster(facts);
    judge.sentinels(facts);
    judge.speed(facts, wanted);
    judge.clock(facts, wanted);
    judge.persistence(facts);
    judge.together(facts, wanted);
    judge.findings.sort_by_key(|finding| finding.severity != Severity::Error);
    judge.findings
}

struct Judge<'f> {
    at: &'f str,
    findings: Vec<Finding>,
}

impl Judge<'_> {
    fn say(&mut self, severity: Severity, code: &'static str, message: String, help: &str) {
        let (at, help) = (self.at.to_owned(), help.to_owned());
        self.findings.push(Finding { severity, code, at, message, help });
    }

    fn error(&mut self, code: &'static str, message: impl Into<String>, help: &str) {
        self.say(Severity::Error, code, message.into(), help);
    }

    fn warning(&mut self, code: &'static str, message: impl Into<String>, help: &str) {
        self.say(Severity::Warning, code, message.into(), help);
    }

    fn fitness(&mut self, facts: &Facts) {
        if let Some((major, minor)) = facts.version.filter(|version| *version < OLDEST) {
            let message = format!("version {major}.{minor} lacks commands that the scripts use");
            self.error("version", message, "run Redis 6.2 or later");
        }
        let is_replica = facts.role.as_deref() == Some("slave");
        if is_replica {
            let cure = "name the primary, or its sentinels, as `backend`";
            self.error("replica", "this is a replica and may not count", cure);
        }
        if facts.loading {
            self.error("loading", "it still reads its data and does not answer", "wait for it");
        }
        if facts.names_its_run == Some(false) {
            let message = "it does not say which run of it this is (INFO, `run_id`): where it falls back to \
                           an older state, ceilings on requests in flight are not held until those end";
            self.warning("run_id", message, "let the user run INFO");
        }
        // A replica refuses all scripts, and has a finding already.
        if let (Some(Err(why)), false) = (&facts.script, is_replica) {
            let message = format!("scripts that count are refused ({why})");
            let cure = if why.contains("OOM ") {
                "raise `maxmemory`, or count fewer keys there; no key can be added until then"
            } else {
                "let the user run EVAL, EVALSHA, SCRIPT LOAD and what scripts call, on our keys: docs/reliability.md, Rights"
            };
            self.error("scripts", message, cure);
        }
    }

    fn memory(&mut self, facts: &Facts) {
        let policy = facts.policy.as_deref().filter(|policy| *policy != "noeviction");
        if let Some(policy) = policy {
            let message = format!(
                "maxmemory-policy {policy} evicts counters, and with them what was used up"
            );
            self.error("eviction", message, "set `maxmemory-policy noeviction`");
        }
        if let (Some(evicted @ 1..), true) = (facts.evicted, policy.is_some()) {
            let message = format!("{evicted} keys were evicted since it started");
            self.warning("evicted", message, "see `eviction`; limits were not held to the full");
        }
        let (Some(most @ 1..), Some(used)) = (facts.maxmemory, facts.used) else { return };
        if most / 10 * 9 <= used {
            let message =
                format!("{used} of {most} bytes are used; at the end no key can be added");
            self.warning("memory", message, "raise `maxmemory`, or count fewer keys there");
        }
    }

    fn cluster(&mut self, facts: &Facts) {
        let Some(cluster) = facts.cluster else { return };
        if cluster.slots < SLOTS {
            let message = format!("{} of {SLOTS} slots have a node", cluster.slots);
            self.error("slots", message, "assign them: limits in the others are not counted");
        } else if !cluster.is_ok {
            self.error("cluster", "the Cluster says that it is down", "see CLUSTER INFO there");
        }
    }

    fn sentinels(&mut self, facts: &Facts) {
        if facts.writes_alone == Some(true) {
            let message = "it writes without a replica: cut off, it goes on beside the primary that the sentinels choose, \
                           and both count, and grant a ceiling on requests in flight";
            let cure = "set `min-replicas-to-write 1` and a `min-replicas-max-lag` of a few seconds on each";
            self.warning("two_primaries", message, cure);
        }
    }

    fn speed(&mut self, facts: &Facts, wanted: Wanted) {
        let Some(took) = facts.round_trip else { return };
        let deadline = wanted.deadline;
        let message =
            format!("a round trip takes {} of the {deadline} of `backend_deadline`", micros(took));
        let cure = "bring Redis nearer, or raise `backend_deadline`";
        if deadline <= took {
            self.error("latency", message, cure);
        } else if Nanos(deadline.0 / 2) <= took {
            self.warning("latency", message, cure);
        }
    }

    fn clock(&mut self, facts: &Facts, wanted: Wanted) {
        let Some(skew) = facts.skew.filter(|skew| FAR <= *skew) else { return };
        let apart = format!("its clock and this machine's are {} apart", millis(skew));
        let cure = "let both follow one time server";
        if wanted.reference {
            let message = format!("{apart}, and windows of the reference's keys begin by this one");
            self.error("clock", message, cure);
        } else {
            self.warning("clock", format!("{apart}; its own rules every counter"), cure);
        }
    }

    fn persistence(&mut self, facts: &Facts) {
        let cure = "set `appendonly yes`, or take it that a restart begins every limit afresh";
        match (facts.appends, facts.saves) {
            (Some(false), Some(false)) => {
                self.warning("persistence", "nothing is kept over a restart", cure);
            }
            (Some(false), Some(true)) if facts.last_save_failed => {
                let message =
                    "the last snapshot could not be written, and a restart loses counters";
                self.warning("persistence", message, "see its log and its disk");
            }
            _ => {}
        }
    }

    fn together(&mut self, facts: &Facts, wanted: Wanted) {
        if wanted.reference && (wanted.several || facts.cluster.is_some()) {
            let message = "the reference's keys of one question live in several places, \
                where `charge: all_or_nothing` and `stop_when_over` decide in two steps";
            let cure =
                "another question may come between; one node, or a prefix with a {tag}, is atomic";
            self.warning("two_steps", message, cure);
        }
    }
}

fn micros(time: Nanos) -> String {
    format!("{}us", time.0 / Nanos::MICRO.0)
}

fn millis(time: Nanos) -> String {
    format!("{}ms", time.0 / Nanos::MILLI.0)
}

#[cfg(test)]
mod tests {
    use super::{Cluster, FAR, Facts, Nanos, SLOTS, Severity, Wanted, judge};

    const WANTED: Wanted =
        Wanted { deadline: Nanos(15 * Nanos::MILLI.0), reference: false, several: false };

    fn sound() -> Facts {
        Facts {
            at: "h:1".to_owned(),
            version: Some((7, 0)),
            role: Some("master".to_owned()),
            names_its_run: Some(true),
            policy: Some("noeviction".to_owned()),
            maxmemory: Some(0),
            used: Some(1_000_000),
            evicted: Some(0),
            appends: Some(true),
            saves: Some(true),
            skew: Some(Nanos(0)),
            round_trip: Some(Nanos(200_000)),
            script: Some(Ok(())),
            ..Facts::default()
        }
    }

    /// Returns the codes, with `!` for an error.
    fn codes(facts: &Facts, wanted: Wanted) -> Vec<String> {
        let code = |it: super::Finding| {
            assert!(it.to_string().contains("h:1: ") && !it.help.is_empty());
            format!("{}{}", if it.severity == Severity::Error { "!" } else { "" }, it.code)
        };
        judge(facts, wanted).into_iter().map(code).collect()
    }

    #[test]
    fn a_healthy_or_unknown_store_has_no_findings() {
        assert!(codes(&sound(), WANTED).is_empty());
        let unknown = Facts { at: "h:1".to_owned(), ..Facts::default() };
        assert!(codes(&unknown, WANTED).is_empty());
    }

    #[test]
    fn each_defect_is_reported_once() {
        let text = |text: &str| Some(text.to_owned());
        let refused = || Some(Err("NOPERM".to_owned()));
        let ok = Cluster { is_ok: true, slots: SLOTS };
        let cases: Vec<(&str, Facts)> = vec![
            ("!version", Facts { version: Some((6, 0)), ..sound() }),
            ("!version", Facts { version: Some((5, 9)), ..sound() }),
            ("", Facts { version: Some((6, 2)), ..sound() }),
            ("!replica", Facts { role: text("slave"), script: refused(), ..sound() }),
            ("!loading", Facts { loading: true, ..sound() }),
            ("run_id", Facts { names_its_run: Some(false), ..sound() }),
            ("!scripts", Facts { script: refused(), ..sound() }),
            ("!eviction", Facts { policy: text("allkeys-lru"), ..sound() }),
            ("!eviction", Facts { policy: text("volatile-ttl"), ..sound() }),
            ("memory", Facts { maxmemory: Some(1_100_000), ..sound() }),
            ("", Facts { maxmemory: Some(2_000_000), ..sound() }),
            ("!slots", Facts { cluster: Some(Cluster { slots: SLOTS - 1, ..ok }), ..sound() }),
            ("!cluster", Facts { cluster: Some(Cluster { is_ok: false, ..ok }), ..sound() }),
            ("", Facts { cluster: Some(ok), ..sound() }),
            ("two_primaries", Facts { writes_alone: Some(true), ..sound() }),
            ("", Facts { writes_alone: Some(false), ..sound() }),
            ("!latency", Facts { round_trip: Some(WANTED.deadline), ..sound() }),
            ("latency", Facts { round_trip: Some(Nanos(WANTED.deadline.0 / 2)), ..sound() }),
            ("clock", Facts { skew: Some(FAR), ..sound() }),
            ("persistence", Facts { appends: Some(false), saves: Some(false), ..sound() }),
            ("", Facts { appends: Some(false), ..sound() }),
        ];
        for (code, facts) in cases {
            let expected: Vec<&str> = [code].into_iter().filter(|code| !code.is_empty()).collect();
            assert_eq!(codes(&facts, WANTED), expected, "{facts:?}");
        }
        let evicting = Facts { policy: text("allkeys-lru"), evicted: Some(3), ..sound() };
        assert_eq!(codes(&evicting, WANTED), ["!eviction", "evicted"]);
        let failing = Facts { appends: Some(false), last_save_failed: true, ..sound() };
        assert_eq!(codes(&failing, WANTED), ["persistence"]);
    }

    #[test]
    fn oom_script_errors_suggest_raising_maxmemory() {
        let cure = |why: &str| {
            let facts = Facts { script: Some(Err(why.to_owned())), ..sound() };
            judge(&facts, WANTED).into_iter().map(|it| it.help).collect::<String>()
        };
        let full = cure("OOM command not allowed when used memory > 'maxmemory'.");
        assert!(full.contains("raise `maxmemory`") && !full.contains("EVAL"), "{full}");
        assert!(cure("NOPERM this user has no permissions").contains("let the user run EVAL"));
    }

    #[test]
    fn compatibility_keys_make_clock_skew_an_error_and_report_two_steps() {
        let wanted = Wanted { reference: true, ..WANTED };
        assert_eq!(codes(&Facts { skew: Some(FAR), ..sound() }, wanted), ["!clock"]);
        assert!(codes(&sound(), wanted).is_empty());
        assert_eq!(codes(&sound(), Wanted { several: true, ..wanted }), ["two_steps"]);
        let cluster = Some(Cluster { is_ok: true, slots: SLOTS });
        assert_eq!(codes(&Facts { cluster, ..sound() }, wanted), ["two_steps"]);
    }
}
