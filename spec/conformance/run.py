#!/usr/bin/env python3
"""Replays the recorded scenarios of this folder against any rate limit server (README.md).

Exit code 0: no difference. 1: a difference that is not known. 2: the options are wrong, or name no scenario.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import queue
import sys
import time

sys.dont_write_bytecode = True
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
try:
    import replay
    import server
    import state
except ModuleNotFoundError as missing:
    print(f"{missing}: run scripts/examples.sh, or `pip install grpcio protobuf` in a venv", file=sys.stderr)
    sys.exit(2)

HERE = pathlib.Path(__file__).resolve().parent
COLUMNS = ["passed", "failed", "skipped", "known", "info"]
DAY, MINUTE = 86_400, 60


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--command", help="shell command that starts the server, once per scenario")
    kind.add_argument("--address", help="HOST:PORT of a server that runs: its gRPC port")
    parser.add_argument("--http", help="HOST:PORT of the HTTP port (with --address)")
    parser.add_argument("--debug", help="HOST:PORT of the debug port (with --address)")
    parser.add_argument("--config-dir", help="empty folder from which that server reloads files (with --address)")
    parser.add_argument("--reset", help="shell command that empties the counters (with --address)")
    parser.add_argument("--redis", help="HOST:PORT of a Redis. Its databases 0 to JOBS-1 are EMPTIED")
    parser.add_argument("--not-counters", action="append", default=[], metavar="TEXT",
                        help="keys in Redis that begin with this text are no counters")
    parser.add_argument("--statsd", action="store_true", help="receive and compare StatsD counters (with --command)")
    parser.add_argument("--reload-wait", type=float, default=2, help="seconds from a file change to its effect [2]")
    parser.add_argument("--timeout", type=float, default=10, help="seconds for each call [10]")
    parser.add_argument("--jobs", type=int, default=4, help="scenarios at once, with --command [4]")
    parser.add_argument("--group", action="append", default=[], help="only this group")
    parser.add_argument("--only", action="append", default=[], metavar="ID", help="only this scenario")
    parser.add_argument("--known", help="file of known differences: lines of an id and a reason")
    parser.add_argument("--vectors", default=HERE / "vectors", help="folder of the scenarios")
    parser.add_argument("--descriptors", default=HERE / "../../proto/ratelimit.binpb", help="of the Protobuf messages")
    options = parser.parse_args()
    if options.address and not (options.config_dir and (options.reset or options.redis)):
        parser.error("--address needs --config-dir, and --reset or --redis: each scenario starts with empty counters")
    if options.address:
        options.jobs = 1
    return options


def read_scenarios(options):
    """Pairs of a group and a scenario."""
    for path in sorted(pathlib.Path(options.vectors).glob("*.json")):
        for scenario in json.loads(path.read_text()):
            is_named = scenario["id"] in options.only or path.stem in options.group
            if is_named or not (options.only or options.group):
                yield path.stem, scenario


def read_known(options):
    """Reasons by id. A line that begins with `memory` applies only without --redis."""
    known = {}
    for line in pathlib.Path(options.known).read_text().splitlines() if options.known else []:
        if line.startswith("memory ") and options.redis:
            continue
        name, _, reason = line.removeprefix("memory ").partition(" ")
        if name and name != "#":
            known[name] = reason.strip()
    return known


def wait_for_a_day_with_a_minute_left():
    """Windows of a day and longer must not end during a scenario."""
    left = DAY - time.time() % DAY
    if left < MINUTE:
        time.sleep(left + 1)


class Summary:
    def __init__(self, known):
        self.known, self.tallies = known, collections.defaultdict(collections.Counter)
        self.skipped, self.open, self.notes, self.failures = collections.Counter(), collections.Counter(), [], []

    def add(self, group, scenario, skipped, difference):
        name, tally = scenario["id"], self.tallies[group]
        if skipped:
            tally["skipped"] += 1
            self.skipped[skipped] += 1
        elif group == "defects" or "defect" in scenario:
            tally["info"] += 1
            came = difference or "answers as recorded"
            self.notes.append(f"{name} is about a defect ({scenario.get('note', scenario['name'])}): {came}")
        elif difference and name in self.known:
            tally["known"] += 1
            self.notes.append(f"{name} differs: {self.known[name]} ({difference})")
        elif difference:
            tally["failed"] += 1
            self.failures.append(f"{name} ({scenario['name']}): {difference}")
        else:
            tally["passed"] += 1
            if name in self.known:
                self.notes.append(f"{name} is listed as a known difference, and passes")

    def count_open(self, scenario, options):
        """Counts the recorded facts that this run does not compare."""
        by_redis, by_stats = ["store"] * (not options.redis), ["metrics"] * (not options.statsd)
        for field in by_redis + by_stats + ["prometheus"] * bool(options.address):
            self.open[field] += field in scenario
        self.open["commands"] += any("commands" in step for step in scenario["steps"])

    def print(self):
        for note in self.notes:
            print(f"note    {note}")
        print("\n" + f"{'group':<24}" + "".join(f"{column:>9}" for column in COLUMNS))
        total = sum(self.tallies.values(), collections.Counter())
        for group, tally in [*sorted(self.tallies.items()), ("all", total)]:
            print(f"{group:<24}" + "".join(f"{tally[column]:>9}" for column in COLUMNS))
        print()
        for reason, count in self.skipped.items():
            print(f"skipped: {count}, {reason}")
        compared = ", ".join(f"{field} of {count} scenarios" for field, count in self.open.items() if count)
        print(f"not compared: {compared or 'nothing'}")
        for failure in self.failures:
            print(f"FAILED  {failure}")


def main():
    options = parse_options()
    scenarios, summary = list(read_scenarios(options)), Summary(read_known(options))
    if not scenarios:
        print("--only and --group name no scenario", file=sys.stderr)
        return 2
    try:
        running = server.Running(options) if options.address else None
        stores = queue.SimpleQueue()
        for database in range(options.jobs):
            stores.put(state.Redis(options.redis, database, options.timeout) if options.redis else None)
    except (OSError, server.NotStarted) as error:
        print(error, file=sys.stderr)
        return 2
    replayer = replay.Replay(replay.Protocol(options.descriptors), options, running)

    def run(scenario):
        skipped = replay.reason_to_skip(scenario, options)
        if skipped:
            return skipped, None
        wait_for_a_day_with_a_minute_left()
        store = stores.get()
        try:
            return None, replayer.run(scenario, store)
        finally:
            stores.put(store)

    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        results = pool.map(run, [scenario for _, scenario in scenarios])
        for (group, scenario), (skipped, difference) in zip(scenarios, results):
            summary.add(group, scenario, skipped, difference)
            if not skipped:
                summary.count_open(scenario, options)
    if running:
        running.close()
    summary.print()
    return 1 if summary.failures else 0


if __name__ == "__main__":
    sys.exit(main())
