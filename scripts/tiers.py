#!/usr/bin/env python3
"""Runs the tests in tiers, in the order of the table in tests/README.md.

  scripts/tiers.py pure service fleet     these tiers
  scripts/tiers.py --repeat 5 fleet       five times in a row

A tier has a number of tests that run at once. A test of the binary `all` is in the tier with its
longest module prefix. All other test binaries are in the first tier.

Prints a progress line, a line for each tier, the ten slowest tests, and for each failure the
command that repeats it. The whole output is in target/tests/TIER.log. Ends a tier in which no test
ends for ten minutes, and prints the stacks of its threads.
"""

import argparse
import collections
import fcntl
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOGS = os.path.join(ROOT, "target", "tests")
STALLED_SECONDS = 600
PROGRESS_SECONDS = 30

Binary = collections.namedtuple("Binary", "path folder repeat is_all")
Tier = collections.namedtuple("Tier", "name modules at_once")
ENDED = re.compile(r"^test (\S+)(?: - should panic)? \.\.\. (?:.* )?(ok|FAILED|ignored)(?: <([0-9.]+)s>)?$")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("tiers", nargs="+")
    options = parser.parse_args()
    table = read_table()
    unknown = set(options.tiers) - {tier.name for tier in table}
    if unknown:
        sys.exit(f"no such tier in tests/README.md: {', '.join(unknown)}")
    os.makedirs(LOGS, exist_ok=True)
    by_tier = sort_into_tiers(table, build())
    # Two runs on one machine, for example of two checkouts, would disturb each other.
    with open(os.path.join(tempfile.gettempdir(), "sluicegate-tests.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        runs = [
            TierRun(tier, by_tier[tier.name]).run()
            for _ in range(options.repeat)
            for tier in table
            if tier.name in options.tiers
        ]
    report(runs)


def read_table():
    """Reads the rows of tests/README.md: tier, number at once, modules."""
    row = re.compile(r"^\| ([a-z]+) \| (\d+|cores) \| (.*) \|")
    tiers = []
    with open(os.path.join(ROOT, "tests", "README.md")) as page:
        for found in filter(None, map(row.match, page)):
            at_once = os.cpu_count() if found[2] == "cores" else int(found[2])
            tiers.append(Tier(found[1], re.findall(r"`([a-z0-9_:]+)`", found[3]), at_once))
    return tiers


def build():
    """Builds all test binaries and returns them."""
    command = ["cargo", "test", "--locked", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if built.returncode:
        sys.exit(built.returncode)
    messages = map(json.loads, built.stdout.splitlines())
    return [binary(message) for message in messages if message.get("executable") and message["profile"]["test"]]


def binary(message):
    folder = os.path.dirname(message["manifest_path"])
    kind, name = message["target"]["kind"][0], message["target"]["name"]
    target = {"test": f"--test {name}", "bin": f"--bin {name}"}.get(kind, "--lib")
    package = re.search(r"([\w-]+)@|/([\w-]+)#[\d.]+$", message["package_id"])
    package = package[1] or package[2] if folder != ROOT else "sluicegate"
    repeat = f"cargo test --locked -p {package} {target} -- --exact"
    return Binary(message["executable"], folder, repeat, folder == ROOT and name == "all")


def sort_into_tiers(table, binaries):
    """Returns pairs of binary and test names for each tier."""
    by_tier = {tier.name: [] for tier in table}
    for one in binaries:
        listed = subprocess.run([one.path, "--list"], cwd=one.folder, stdout=subprocess.PIPE, text=True, check=True)
        names = re.findall(r"^(.*): test$", listed.stdout, re.M)
        if one.is_all:
            chosen = {name: tier_of(table, name) for name in names}
            for tier in table:
                by_tier[tier.name].append((one, [name for name in names if chosen[name] == tier.name]))
        else:
            by_tier[table[0].name].append((one, names))
    return by_tier


def tier_of(table, name):
    prefixes = [(len(module), tier.name) for tier in table for module in tier.modules if name.startswith(module)]
    if not prefixes:
        sys.exit(f"tests/README.md has no tier for the module of {name}")
    return max(prefixes)[1]


class TierRun:
    """One run of the tests of a tier."""

    def __init__(self, tier, binaries):
        self.tier = tier
        self.binaries = [pair for pair in binaries if pair[1]]
        self.count = sum(len(names) for _, names in self.binaries)
        self.seconds = {}
        self.failures = []
        self.broken = []
        self.log = open(os.path.join(LOGS, f"{tier.name}.log"), "w")
        self.last_end = time.monotonic()

    def run(self):
        self.began = time.monotonic()
        for one, names in self.binaries:
            self.run_binary(one, names)
        self.took = time.monotonic() - self.began
        self.log.close()
        print(f"{self.summary()}  in {self.took:.0f} s", flush=True)
        return self

    def summary(self):
        # Failures of a binary that died have no names.
        failed = len(self.failures) + len(self.broken)
        return f"    {self.tier.name}: {len(self.seconds)} of {self.count} tests ended, {failed} failed"

    def run_binary(self, one, names):
        command = [one.path, "--exact", "--show-output", f"--test-threads={self.tier.at_once}"]
        command += ["-Zunstable-options", "--report-time", *names]
        # Lets the test harness of a stable compiler print the time of each test.
        environment = dict(os.environ, RUSTC_BOOTSTRAP="1", RUST_BACKTRACE="0")
        child = subprocess.Popen(
            command,
            cwd=one.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        unended = set(names)
        over = threading.Event()
        watcher = threading.Thread(target=self.watch, args=(child, unended, over))
        watcher.start()
        for line in child.stdout:
            self.log.write(line)
            self.note(line.rstrip("\n"), one, unended)
        code = child.wait()
        over.set()
        watcher.join()
        has_failures = any(failed is one for failed, _ in self.failures)
        if unended or (code and not has_failures):
            self.broken.append(f"{one.path} ended with {code}; no result of these tests: {sorted(unended)[:20]}")

    def note(self, line, one, unended):
        ended = ENDED.match(line)
        if not ended or ended[1] not in unended:
            return
        unended.discard(ended[1])
        self.last_end = time.monotonic()
        self.seconds[ended[1]] = float(ended[3] or 0)
        if ended[2] == "FAILED":
            self.failures.append((one, ended[1]))
            print(f"    FAILED: {ended[1]}", flush=True)

    def watch(self, child, unended, over):
        """Prints progress, and ends a binary in which no test ends any more."""
        self.last_end = time.monotonic()
        while not over.wait(PROGRESS_SECONDS):
            print(f"{self.summary()} after {time.monotonic() - self.began:.0f} s", flush=True)
            if STALLED_SECONDS < time.monotonic() - self.last_end:
                print(f"\nNo test ended for {STALLED_SECONDS} s. Some of these run: {sorted(unended)[:40]}")
                print_stacks(child.pid)
                child.kill()
                return


def print_stacks(process):
    """Prints this project's frames of each thread, innermost first."""
    gdb = ["gdb", "--batch", "--pid", str(process), "-ex", "set print frame-arguments none"]
    gdb += ["-ex", "thread apply all backtrace"]
    try:
        stacks = subprocess.run(gdb, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, timeout=120).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"no stacks of process {process}: {error}")
        return
    print("\n".join(line[:200] for line in stacks.splitlines() if re.match(r"Thread|.*(all|sluicegate\w*)::", line)))


def report(runs):
    times = collections.Counter()
    for run in runs:
        times.update({f"{run.tier.name}  {name}": seconds for name, seconds in run.seconds.items()})
    print("\nThe slowest tests:")
    for name, seconds in times.most_common(10):
        print(f"    {seconds:7.1f} s  {name}")
    failures = [(run, *failure) for run in runs for failure in run.failures]
    for run, one, name in failures:
        print_output(run, name)
    for run, one, name in failures:
        print(f"repeat: {one.repeat} {name}")
    broken = [cause for run in runs for cause in run.broken]
    print("\n".join(broken))
    failed = len(failures) + len(broken)
    print(f"\n{sum(len(run.seconds) for run in runs) - len(failures)} passed, {failed} failed")
    sys.exit(1 if failed else 0)


def print_output(run, name):
    """Prints what a failed test wrote."""
    with open(run.log.name) as log:
        text = log.read()
    block = re.search(rf"^---- {re.escape(name)} stdout ----\n(.*?)(?=^---- |^failures:$|\Z)", text, re.M | re.S)
    print(f"\n---- {name}\n{block[1].strip()[-8000:] if block else 'no output'}\n")


if __name__ == "__main__":
    main()
