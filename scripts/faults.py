#!/usr/bin/env python3
"""Writes the fault report of a release, docs/operations/faults.md: real processes, and one fault after the other.

  scripts/faults.py            runs all faults (about 15 minutes), and writes the page
  scripts/faults.py FILTER     runs the faults whose test has this text in its name, and prints their rows

A test that measures prints its row; the others only pass or fail. A failed test has `FAILED` in its row. The exit code is
then 1, and the page is written all the same. Needs what scripts/test.sh installs, `ip`,
and root for the network namespaces.
"""

import datetime
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/operations/faults.md"

# Section, fault, promise, test. The rows of a test that measures have their own faults and promises.
FAULTS = [
    ("Redis", "", "", "store::redis::faults::fallbacks_apply_until_a_killed_redis_restarts"),
    ("Redis", "", "", "store::redis::faults::stopped_redis_delays_no_decision_beyond_the_timeout"),
    ("Redis", "", "", "store::redis::network::network_faults_delay_no_decision_beyond_the_timeout"),
    ("Redis", "", "", "store::partitions::a_lost_network_to_redis_delays_no_decision_beyond_the_timeout"),
    ("Redis Sentinel", "", "", "store::redis::sentinel::killed_primary_fails_over_without_late_decisions"),
    ("Redis Sentinel", "", "", "store::redis::sentinel::stopped_primary_is_not_used_after_it_resumes"),
    ("Redis Sentinel", "", "", "store::redis::sentinel::after_a_manual_failover_the_old_primary_is_not_used"),
    ("Redis Cluster", "", "", "store::redis::cluster::killed_primary_fails_only_its_slots_until_failover"),
    ("Redis Cluster", "", "", "store::redis::cluster::stopped_primary_fails_only_its_slots_until_failover"),
    ("PostgreSQL", "the server is stopped", "fallbacks decide, and the breaker opens",
     "store::postgres::outages::a_silent_postgres_opens_the_breaker_until_it_replies"),
    ("PostgreSQL", "", "", "store::postgres::outages::network_faults_delay_no_decision_beyond_the_timeout"),
    ("PostgreSQL", "", "", "store::partitions::a_lost_network_to_postgres_delays_no_decision_beyond_the_timeout"),
    ("PostgreSQL", "`kill -9` of the server, full durability", "no hit is lost",
     "store::postgres::outages::logged_counters_survive_a_crash_of_the_server"),
    ("PostgreSQL", "a replica is paused in its transaction", "the other replicas decide",
     "store::postgres::outages::a_replica_paused_in_a_transaction_does_not_block_the_others"),
    ("PostgreSQL", "a standby is promoted", "counters continue",
     "store::postgres::connections::a_promoted_standby_continues_the_counters"),
    ("File store", "the disk is full", "decisions continue, and saving resumes",
     "store::file::service::a_full_disk_stops_saving_until_space_is_free"),
    ("File store", "the disk is slow", "the fallback decides after `store.timeout`",
     "store::file::always::a_check_fails_when_the_disk_takes_too_long"),
    ("File store", "pages of the file are damaged", "the damage is detected",
     "store::file::faults::damaged_pages_are_detected"),
    ("File store", "the file is corrupt", "the service does not start",
     "store::file::service::a_second_process_and_a_corrupt_file_stop_serve"),
    ("File store", "`kill -9` of the service, `sync: always`", "no limit is exceeded",
     "store::file::service::crashes::crashes_with_sync_always_exceed_no_limit"),
    ("File store", "`kill -9` of the service, `sync: interval`", "at most the last interval is lost",
     "store::file::service::crashes::crashes_forget_only_the_last_interval"),
    ("File store", "the clock is set back between two runs", "no extra hit is allowed",
     "store::file::service::a_clock_set_back_between_two_processes_grants_nothing"),
    ("Replicas", "replicas are killed, stopped or cut from Redis", "a shared concurrency limit is never exceeded",
     "store::redis::shared_concurrency::shared_limit_is_never_exceeded_during_faults"),
    ("Replicas", "Redis restarts with an old snapshot", "the same",
     "store::redis::shared_concurrency::shared_limit_is_never_exceeded_after_a_snapshot_restore"),
    ("Replicas", "replicas with a strict limit are killed or stopped", "it is never exceeded",
     "store::redis::strict_concurrency::strict_limit_is_never_exceeded_during_faults"),
    ("Replicas", "replicas with leases are killed or stopped", "the limit and `max_overshoot` hold",
     "store::postgres::fleet_faults::leases_over_postgres_never_exceed_the_overshoot_bound"),
    ("Replicas", "a rolling update under load", "no request fails", "e2e::rollout::rolling_update_fails_no_request"),
    ("Envoy", "`kill -9` of Envoy", "its permits are released",
     "e2e::in_flight::releases::killed_envoy_releases_all_permits"),
    ("Envoy", "the network between Envoy and a replica is lost", "its permits are released",
     "e2e::envoy_releases::envoy_failures::network_loss_frees_permits"),
    ("Envoy", "hot restart with the module", "no request fails, and the bound of leases holds",
     "e2e::envoy_module::changes::hot_restart_fails_no_request_and_keeps_the_bound"),
    ("Envoy", "crashes of replicas with budgets", "no budget is exceeded",
     "e2e::budgets::faults::ext_proc_never_exceeds_a_budget_through_crashes"),
    ("Certificates", "a certificate is replaced, or its key does not match", "the last valid one is served",
     "drop_in::tls::replaced_certificates_are_served_when_the_key_matches"),
    ("Certificates", "an untrusted certificate of Redis", "nothing is sent",
     "store::redis::tls::only_a_trusted_certificate_with_the_right_name_connects"),
]

HEAD = ["fault", "promise", "slowest decision", "late or failed", "wrong", "lost hits", "normal after", "test"]


def test_program():
    """Compiles the tests. Returns their program."""
    command = ["cargo", "test", "--locked", "--workspace", "--test", "all", "--no-run", "--message-format", "json"]
    lines = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    messages = (json.loads(line) for line in lines)
    return [m["executable"] for m in messages if m.get("executable") and m["target"]["name"] == "all"][-1]


def rows_of(fault, program):
    """Runs the test of a fault. Returns its rows, and true if it passed."""
    _, what, promise, test = fault
    command = [program, "--exact", test, "--nocapture", "--test-threads", "1"]
    run = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if "1 passed" not in run.stdout and "1 failed" not in run.stdout:
        sys.exit(f"no such test: {test}")
    outcome = "passed" if run.returncode == 0 else "FAILED"
    printed = [re.split(r" *\| *", line[line.index("| ") + 2:].rstrip("| ")) for line in run.stdout.splitlines()
               if re.match(r"(test \S+ \.\.\. )?\| ", line)]
    # Rows of single stores have no column of lost hits.
    measured = [row if len(row) == 7 else [*row[:5], "", *row[5:]] for row in printed if row[0] != "what happened"]
    rows = measured or [[what, promise, "", "", "0" if outcome == "passed" else "some", "", ""]]
    return [row + [outcome] for row in rows], outcome == "passed"


def table(rows):
    line = lambda row: "| " + " | ".join(row) + " |"
    return "\n".join([line(HEAD), "|" + "---|" * len(HEAD), *map(line, rows)])


def main():
    wanted = sys.argv[1] if len(sys.argv) > 1 else ""
    program, sections, passed = test_program(), {}, True
    for fault in FAULTS:
        if wanted in fault[3]:
            rows, is_passed = rows_of(fault, program)
            sections.setdefault(fault[0], []).extend(rows)
            passed = passed and is_passed
            print(*(" | ".join(row) for row in rows), sep="\n", flush=True)
    if not wanted:
        version = re.search(r'^version = "(.*)"', (ROOT / "Cargo.toml").read_text(), re.M).group(1)
        text = PAGE.read_text().split("<!-- rows -->")[0] if PAGE.exists() else ""
        text += f"<!-- rows -->\nVersion {version}, {datetime.date.today()}, {os.cpu_count()} processors.\n"
        for name, rows in sections.items():
            text += f"\n## {name}\n\n{table(rows)}\n"
        PAGE.write_text(text)
    sys.exit(0 if passed else 1)


main()
